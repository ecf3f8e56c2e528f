"""The keys of all messages: generated before they are needed, and destroyed when their messages are erased.

The caller must ensure two orders. Keys are generated (``prepare``) before the transaction that uses them commits. The
arguments of ``retain_only`` and ``erase`` must not be outdated by concurrent sends: numbers above a group's last one
always count as retained, and a group may be omitted only if it cannot be created during the call.
"""

import secrets
from bisect import bisect_left
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from itertools import islice
from pathlib import Path
from threading import RLock

from conclave.keys import cipher, copying, records, tree
from conclave.keys.file import KeyFile, KeyFileError
from conclave.keys.tree import Cover, Node, Range

LAST_NUMBER = 2**63 - 1
"""The end of an unbounded range: no message has a greater number."""

BLOCKS_PER_WRITE = 4096
"""At most 4,096 covers are written at once: about 2 MiB. Other processes wait until the write has finished."""

NEIGHBOURS_STEPS = 4
"""Keys are derived 16 at a time: neighbours share most of their path, and are used together."""

NEIGHBOURS = 1 << NEIGHBOURS_STEPS

INDEXES = tree.BLOCK >> NEIGHBOURS_STEPS
"""A block has 4,096 runs of 16 neighbours."""

_NO_KEYS = (None,) * NEIGHBOURS

MAX_CACHED_RUNS = 4096
"""The keys of 4,096 runs of 16 neighbours are cached: about 6 MB."""

MAX_CACHED_COVERS = 4096
"""The covers of the 4,096 blocks with the latest sends are cached, so that sends need not read them."""

GroupRanges = tuple[bytes, Sequence[Range]]
"""A group id, and ascending ranges of the group's numbers, which neither overlap nor touch."""


class KeyStore:
    """The keys of a server. Thread-safe; another process may have the same file open."""

    def __init__(self, path: Path, draw: Callable[[int], bytes] = secrets.token_bytes) -> None:
        """Open the key file at ``path``. ``draw``: returns that many random bytes. Raises KeyFileError."""
        self._file, self._draw = KeyFile(path), draw
        cipher.library()  # import it now, not during the first send
        self._mutex = RLock()
        self._cached_runs: OrderedDict[tuple[bytes, int], list[bytes | None]] = OrderedDict()
        self._cached_covers: OrderedDict[bytes, Cover] = OrderedDict()
        self._unconfirmed: set[bytes] = set()

    def close(self) -> None:
        """Close the key file, and clear the caches."""
        with self._mutex:
            self._cached_runs.clear()
            self._cached_covers.clear()
            self._file.close()

    def prepare(self, numbers: Iterable[tuple[bytes, int]]) -> None:
        """Generate, durably, the roots from which the keys of new numbers derive: group ids and sequence numbers.

        Raises KeyFileError: then these numbers must not be assigned.
        """
        names = {records.block_name(group_id, number >> tree.HEIGHT) for group_id, number in numbers}
        missing_names = [each for each in names if not self._file.knows(each)]
        if not missing_names:
            return
        for begin in range(0, len(missing_names), BLOCKS_PER_WRITE):
            with self._file.locked() as write:
                batch = [
                    each for each in missing_names[begin : begin + BLOCKS_PER_WRITE] if self._file.read(each) is None
                ]
                write([(each, (Node(tree.ROOT, self._draw(tree.SECRET_BYTES)),)) for each in batch])

    def new_keys(self, numbers: Sequence[tuple[bytes, int]]) -> list[bytes | None]:
        """Prepare the keys of new numbers, and return them; None for a number that was used and erased before.

        Raises KeyFileError.
        """
        self.prepare(numbers)
        numbers_by_group: dict[bytes, list[int]] = defaultdict(list)
        for group_id, number in numbers:
            numbers_by_group[group_id].append(number)
        keys_by_number = {
            (group_id, number): key
            for group_id, group_numbers in numbers_by_group.items()
            for number, key in zip(group_numbers, self.keys(group_id, group_numbers), strict=True)
        }
        keys = [keys_by_number[each] for each in numbers]
        with self._mutex:
            for name in {records.block_name(group_id, number >> tree.HEIGHT) for group_id, number in numbers}:
                self._unconfirmed.add(name)
                nodes = self._file.read(name)
                if nodes is not None:
                    self._cached_covers[name] = nodes
                    self._cached_covers.move_to_end(name)
            while len(self._cached_covers) > MAX_CACHED_COVERS:
                self._cached_covers.popitem(last=False)
        return keys

    def confirm(self) -> None:
        """Record that the transaction that called ``new_keys`` has committed."""
        self._unconfirmed.clear()

    def roll_back(self) -> None:
        """Drop what ``new_keys`` has cached since ``confirm``: its transaction was rolled back.

        The next send calls ``new_keys`` again, and notes the serial number. Otherwise an older vault that lacks the
        root would not be detected.
        """
        if self._unconfirmed:
            self._evict(self._unconfirmed)
            self._unconfirmed.clear()

    def cached_keys(self, numbers: Sequence[tuple[bytes, int]]) -> list[bytes] | None:
        """Return the keys of new numbers from the cache, without reading the file or waiting for other threads.

        None if any is not cached. A cached cover may be outdated by erasures, but contains all numbers that are not yet
        assigned.
        """
        keys: list[bytes] = []
        for group_id, number in numbers:
            name, number_in_block = records.block_name(group_id, number >> tree.HEIGHT), number % tree.BLOCK
            neighbours = self._cached_runs.get((name, number_in_block >> NEIGHBOURS_STEPS))
            if neighbours is None:
                nodes = self._cached_covers.get(name)
                if nodes is None:
                    return None
                neighbours = _run_keys(nodes, number_in_block >> NEIGHBOURS_STEPS)
                self._cache((name, number_in_block >> NEIGHBOURS_STEPS), nodes, neighbours)
            key = neighbours[number_in_block % NEIGHBOURS]
            if key is None:
                return None
            keys.append(key)
        return keys

    def _cache(self, run_id: tuple[bytes, int], nodes: Cover, neighbours: list[bytes | None]) -> None:
        """Cache keys derived from a cover, if that is still cached and no other thread holds the mutex."""
        if self._mutex.acquire(blocking=False):
            try:
                if self._cached_covers.get(run_id[0]) is nodes:
                    self._cached_runs[run_id] = neighbours
                    if len(self._cached_runs) > MAX_CACHED_RUNS:
                        self._cached_runs.popitem(last=False)
            finally:
                self._mutex.release()

    def covered(self, group_id: bytes, bounds: Range) -> list[Range]:
        """Return the numbers of a group that have keys, as ranges that do not touch. Raises KeyFileError."""
        ranges: list[Range] = []
        with self._mutex:
            self.refresh()
            for block in range(bounds.first >> tree.HEIGHT, (bounds.last >> tree.HEIGHT) + 1):
                for node in self._file.read(records.block_name(group_id, block)) or ():
                    first, last = tree.span(node.position)
                    ranges.append(Range(first + (block << tree.HEIGHT), last + (block << tree.HEIGHT)))
        return tree.intersection(tree.union(ranges), [bounds])

    def have_keys(self, group_id: bytes, numbers: Sequence[int]) -> list[bool]:
        """Return for each number of a group whether it has a key. Raises KeyFileError."""
        covers: dict[bytes, Cover] = {}
        has_key = []
        with self._mutex:
            self.refresh()
            for number in numbers:
                name = records.block_name(group_id, number >> tree.HEIGHT)
                if name not in covers:
                    covers[name] = self._file.read(name) or ()
                has_key.append(tree.covering_node(covers[name], number % tree.BLOCK) is not None)
        return has_key

    def are_unused(self, group_id: bytes, numbers: Iterable[int]) -> bool:
        """Return whether none of these numbers was used and erased before. Raises KeyFileError.

        A number is unused if it has a key, or if its block has no cover, and so will get a new root.
        """
        with self._mutex:
            self.refresh()
            covers: dict[bytes, Cover | None] = {}
            for number in numbers:
                name = records.block_name(group_id, number >> tree.HEIGHT)
                if name not in covers:
                    covers[name] = self._cached_covers.get(name) or (
                        self._file.read(name) if self._file.knows(name) else None
                    )
                nodes = covers[name]
                if nodes is not None and tree.covering_node(nodes, number % tree.BLOCK) is None:
                    return False
        return True

    def refresh(self) -> None:
        """Read the changes of other processes. Raises KeyFileError, after clearing the caches."""
        with self._mutex:
            try:
                self._evict(self._file.refresh())
            except KeyFileError:
                self._cached_covers.clear()
                self._cached_runs.clear()
                raise

    def copy(self, target: Path) -> int:
        """Write a copy of the key file, see ``copying.copy``."""
        return copying.copy(self._file, target)

    def blocks(self) -> list[tuple[bytes, int]]:
        """Return the blocks that have a cover: group id and block number. Raises KeyFileError."""
        return [records.parse_block_name(each) for each in self._file.names()]

    @property
    def path(self) -> Path:
        """The path of the key file."""
        return self._file.path

    @property
    def keys_id(self) -> bytes:
        """The id of the key file."""
        return self._file.keys_id

    @property
    def serial(self) -> int:
        """The number of the key file's last known change."""
        return self._file.serial

    @property
    def is_empty(self) -> bool:
        """Whether there is no key. Raises KeyFileError."""
        return not self._file.names()

    @property
    def damage(self) -> int:
        """The number of damaged records, see ``KeyFile.damage``."""
        return self._file.damage

    def keys(self, group_id: bytes, numbers: Sequence[int]) -> list[bytes | None]:
        """Return the keys of a group's numbers; None for each that was erased or never generated. Raises KeyFileError.

        The common path of neighbours, such as the numbers of a page, is derived once.
        """
        with self._mutex:
            self.refresh()
            keys_by_run: dict[int, Sequence[bytes | None]] = {}
            missing_runs: dict[int, list[int]] = {}
            for index in dict.fromkeys(number >> NEIGHBOURS_STEPS for number in numbers):
                run_keys = self._cached_runs.get(_run_id(group_id, index))
                if run_keys is None:
                    missing_runs.setdefault(index >> (tree.HEIGHT - NEIGHBOURS_STEPS), []).append(index)
                else:
                    self._cached_runs.move_to_end(_run_id(group_id, index))
                    keys_by_run[index] = run_keys
            for block, indexes in missing_runs.items():
                nodes = self._file.read(records.block_name(group_id, block))
                keys_by_run |= (
                    dict.fromkeys(indexes, _NO_KEYS) if nodes is None else self._derived(group_id, nodes, indexes)
                )
            return [keys_by_run[number >> NEIGHBOURS_STEPS][number % NEIGHBOURS] for number in numbers]

    def _derived(self, group_id: bytes, nodes: Cover, indexes: Sequence[int]) -> dict[int, list[bytes | None]]:
        """Derive and cache keys of one block. ``indexes``: the indexes of runs of 16 neighbours."""
        keys_by_run: dict[int, list[bytes | None]] = {}
        for first, last in _runs(sorted(indexes)):
            keys_by_run |= zip(
                range(first, last + 1), _keys_of_runs(nodes, first % INDEXES, last - first + 1), strict=True
            )
        for index, neighbours in keys_by_run.items():
            self._cached_runs[_run_id(group_id, index)] = neighbours
        while len(self._cached_runs) > MAX_CACHED_RUNS:
            self._cached_runs.popitem(last=False)
        return keys_by_run

    def erase(self, ranges: Iterable[GroupRanges]) -> int:
        """Destroy the keys in ``ranges``: when this returns, they cannot be derived from the file.

        Returns how many covers have changed. Raises KeyFileError: then some keys may be left, and the caller has to
        repeat the call.
        """
        ranges_by_group = dict(ranges)
        blocks_by_group = self._blocks_by_group(ranges_by_group)
        return self._change(
            (records.block_name(group_id, block), _without(_within(ranges_by_group[group_id], block)))
            for group_id, blocks in blocks_by_group.items()
            for block in blocks
        )

    def retain_only(self, retained: Iterable[GroupRanges]) -> int:
        """Destroy all keys except those of ``retained``, as ``erase`` does. ``retained`` has each existing group once.

        A group retains the numbers of its messages, and those not yet assigned, up to LAST_NUMBER.
        """
        blocks_by_group = self._blocks_by_group()

        def changes() -> Iterator[tuple[bytes, Callable[[Cover], Cover]]]:
            for group_id, ranges in retained:
                for block in blocks_by_group.pop(group_id, ()):
                    yield records.block_name(group_id, block), _restricted_to(_within(ranges, block))
            for group_id, blocks in blocks_by_group.items():
                for block in blocks:
                    yield records.block_name(group_id, block), _restricted_to([])

        return self._change(changes())

    def _evict(self, names: Set[bytes]) -> None:
        """Remove changed covers, and the keys derived from them, from the caches."""
        with self._mutex:
            for name in names:
                self._cached_covers.pop(name, None)
            for each in [each for each in self._cached_runs if each[0] in names] if names else ():
                del self._cached_runs[each]

    def _blocks_by_group(self, groups: dict[bytes, Sequence[Range]] | None = None) -> dict[bytes, list[int]]:
        """Return the blocks that have a cover, by group: of all groups, or only of those in ``groups``."""
        blocks_by_group: dict[bytes, list[int]] = defaultdict(list)
        for group_id, block in self.blocks():
            if groups is None or group_id in groups:
                blocks_by_group[group_id].append(block)
        return dict(blocks_by_group)

    def _change(self, changes: Iterable[tuple[bytes, Callable[[Cover], Cover]]]) -> int:
        """Change covers in batches, and return how many have changed."""
        remaining, count = iter(changes), 0
        while batch := list(islice(remaining, BLOCKS_PER_WRITE)):
            with self._file.locked() as write:
                changed_covers = []
                for name, change in batch:
                    former = self._file.read(name)
                    if former is not None and (nodes := change(former)) != former:
                        changed_covers.append((name, nodes))
                write(changed_covers)
            self._evict({name for name, _ in changed_covers})
            count += len(changed_covers)
        return count


def _without(erased: Sequence[Range]) -> Callable[[Cover], Cover]:
    return lambda nodes: tree.without(nodes, erased)


def _restricted_to(retained: Sequence[Range]) -> Callable[[Cover], Cover]:
    return lambda nodes: tree.restrict_to(nodes, retained)


def _within(ranges: Sequence[Range], block: int) -> list[Range]:
    """Return the parts of ``ranges`` that are in a block, as numbers within the block."""
    begin = block << tree.HEIGHT
    parts = []
    for index in range(bisect_left(ranges, begin, key=lambda each: each.last), len(ranges)):
        first, last = ranges[index]
        if first >= begin + tree.BLOCK:
            break
        parts.append(Range(max(first - begin, 0), min(last - begin, tree.BLOCK - 1)))
    return parts


def _run_id(group_id: bytes, index: int) -> tuple[bytes, int]:
    return records.block_name(group_id, index // INDEXES), index % INDEXES


def _runs(indexes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last of each run of neighbours."""
    begin = 0
    for position in range(1, len(indexes) + 1):
        if position == len(indexes) or indexes[position] != indexes[position - 1] + 1:
            yield indexes[begin], indexes[position - 1]
            begin = position


def _keys_of_runs(nodes: Cover, first: int, count: int) -> Iterator[list[bytes | None]]:
    """Yield the keys of ``count`` runs of 16 neighbours in a block, beginning with the run number ``first``."""
    end = first + count
    while first < end:
        node = tree.covering_node(nodes, first << NEIGHBOURS_STEPS)
        covered_end = tree.span(node.position)[1] + 1 >> NEIGHBOURS_STEPS if node else first
        if node is None or covered_end <= first:  # some of the 16 keys are erased
            yield [_leaf(nodes, (first << NEIGHBOURS_STEPS) + each) for each in range(NEIGHBOURS)]
            first += 1
            continue
        run_count = min(covered_end, end) - first
        steps = tree.HEIGHT + 1 - NEIGHBOURS_STEPS - node.position.bit_length()
        first_in_node = first - (tree.span(node.position)[0] >> NEIGHBOURS_STEPS)
        for run_root in tree.descend_to_range(node.secret, first_in_node, run_count, steps):
            yield [*tree.leaves(run_root, NEIGHBOURS_STEPS)]
        first += run_count


def _run_keys(nodes: Cover, index: int) -> list[bytes | None]:
    """Return the keys of 16 neighbours, derived together if none of them is erased."""
    return next(_keys_of_runs(nodes, index, 1))


def _leaf(nodes: Cover, number: int) -> bytes | None:
    node = tree.covering_node(nodes, number)
    if node is None:
        return None
    leaf = tree.BLOCK + number
    return tree.descend(node.secret, leaf, leaf.bit_length() - node.position.bit_length())
