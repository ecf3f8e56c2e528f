"""The keys of all messages: drawn before they are needed, given while their messages live, and lost with them.

Who calls makes sure of two orders. A key is drawn (``begin``) before the transaction that uses it is committed. What
lives or is dead is told (``settle``, ``erase``) as of a transaction that no send can overtake: numbers above a group's
last one live always, and a group that is not named is gone only if none can be made meanwhile.
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
"""The end of a range that has none: no message has a greater number."""

BLOCKS_A_WRITE = 4096
"""At most 4,096 covers are written at once: about 2 MiB, for which the other process waits."""

NEIGHBOURS_STEPS = 4
"""Keys are derived 16 at a time: neighbours share most of their path, and are asked for together."""

NEIGHBOURS = 1 << NEIGHBOURS_STEPS

INDEXES = tree.BLOCK >> NEIGHBOURS_STEPS
"""A block has 4,096 times 16 neighbours."""

_NO_KEYS = (None,) * NEIGHBOURS

REMEMBERED = 4096
"""The keys of 4,096 times 16 neighbours are kept in memory: about 6 MB."""

BEGUN = 4096
"""The covers of 4,096 blocks that messages were lately sent in are kept in memory, so that no send has to read them."""

GroupRanges = tuple[bytes, Sequence[Range]]
"""The id of a group, and numbers of it: ranges in ascending order that do not meet."""


class KeyStore:
    """The keys of a server. Threads may share it; another process may have the same file open."""

    def __init__(self, path: Path, draw: Callable[[int], bytes] = secrets.token_bytes) -> None:
        """Open the key file at ``path``. ``draw``: returns so many random bytes. Raises KeyFileError."""
        self._file, self._draw = KeyFile(path), draw
        cipher.library()  # so that no send waits until it is loaded
        self._mutex = RLock()
        self._remembered: OrderedDict[tuple[bytes, int], list[bytes | None]] = OrderedDict()
        self._begun: OrderedDict[bytes, Cover] = OrderedDict()
        self._unconfirmed: set[bytes] = set()

    def close(self) -> None:
        """Close the key file, and forget all keys."""
        with self._mutex:
            self._remembered.clear()
            self._begun.clear()
            self._file.close()

    def begin(self, numbers: Iterable[tuple[bytes, int]]) -> None:
        """Draw what the keys of new numbers need: ids of groups, sequence numbers. It is durable when this returns.

        Raises KeyFileError: then these numbers must not be given.
        """
        wanted = {records.name(group_id, number >> tree.HEIGHT) for group_id, number in numbers}
        lacking = [each for each in wanted if not self._file.had(each)]
        if not lacking:
            return
        for at in range(0, len(lacking), BLOCKS_A_WRITE):
            with self._file.held() as write:
                some = [each for each in lacking[at : at + BLOCKS_A_WRITE] if self._file.read(each) is None]
                write([(each, (Node(tree.ROOT, self._draw(tree.SECRET_BYTES)),)) for each in some])

    def of_new(self, numbers: Sequence[tuple[bytes, int]]) -> list[bytes | None]:
        """Draw what the keys of new numbers need, see ``begin``, and return them; None: it was given and erased before.

        Raises KeyFileError.
        """
        self.begin(numbers)
        of_groups: dict[bytes, list[int]] = defaultdict(list)
        for group_id, number in numbers:
            of_groups[group_id].append(number)
        given = {
            (group_id, number): key
            for group_id, some in of_groups.items()
            for number, key in zip(some, self.keys(group_id, some), strict=True)
        }
        found = [given[each] for each in numbers]
        with self._mutex:
            for named in {records.name(group_id, number >> tree.HEIGHT) for group_id, number in numbers}:
                self._unconfirmed.add(named)
                nodes = self._file.read(named)
                if nodes is not None:
                    self._begun[named] = nodes
                    self._begun.move_to_end(named)
            while len(self._begun) > BEGUN:
                self._begun.popitem(last=False)
        return found

    def confirm(self) -> None:
        """Note that the transaction is committed in which ``of_new`` was called, and that the database knows of it."""
        self._unconfirmed.clear()

    def undo(self) -> None:
        """Forget what ``of_new`` has remembered since: its transaction is undone, and the database knows nothing of it.

        The next number goes through ``of_new`` again. Otherwise a vault that lacks the root would pass for whole.
        """
        if self._unconfirmed:
            self._forget(self._unconfirmed)
            self._unconfirmed.clear()

    def at_hand(self, numbers: Sequence[tuple[bytes, int]]) -> list[bytes] | None:
        """Return the keys of new numbers at once, from memory: no file is read, and no other thread waited for.

        None if some are not at hand. A number that was not given yet is in the cover of its block, whatever was erased
        there since.
        """
        found: list[bytes] = []
        for group_id, number in numbers:
            named, within = records.name(group_id, number >> tree.HEIGHT), number % tree.BLOCK
            neighbours = self._remembered.get((named, within >> NEIGHBOURS_STEPS))
            if neighbours is None:
                nodes = self._begun.get(named)
                if nodes is None:
                    return None
                neighbours = _neighbours(nodes, within >> NEIGHBOURS_STEPS)
                self._remember((named, within >> NEIGHBOURS_STEPS), nodes, neighbours)
            key = neighbours[within % NEIGHBOURS]
            if key is None:
                return None
            found.append(key)
        return found

    def _remember(self, place: tuple[bytes, int], nodes: Cover, neighbours: list[bytes | None]) -> None:
        """Note what was derived of a cover, if that is in memory still, and no other thread is at work just now."""
        if self._mutex.acquire(blocking=False):
            try:
                if self._begun.get(place[0]) is nodes:
                    self._remembered[place] = neighbours
                    if len(self._remembered) > REMEMBERED:
                        self._remembered.popitem(last=False)
            finally:
                self._mutex.release()

    def kept(self, group_id: bytes, within: Range) -> list[Range]:
        """Return which numbers of a group have keys, as ranges that do not meet. Raises KeyFileError."""
        found: list[Range] = []
        with self._mutex:
            self.refresh()
            for block in range(within.first >> tree.HEIGHT, (within.last >> tree.HEIGHT) + 1):
                for node in self._file.read(records.name(group_id, block)) or ():
                    first, last = tree.span(node.position)
                    found.append(Range(first + (block << tree.HEIGHT), last + (block << tree.HEIGHT)))
        return tree.both(tree.joined(found), [within])

    def living(self, group_id: bytes, numbers: Sequence[int]) -> list[bool]:
        """Tell of each number of a group whether it has a key. Raises KeyFileError."""
        covers: dict[bytes, Cover] = {}
        found = []
        with self._mutex:
            self.refresh()
            for number in numbers:
                named = records.name(group_id, number >> tree.HEIGHT)
                if named not in covers:
                    covers[named] = self._file.read(named) or ()
                found.append(tree.node_above(covers[named], number % tree.BLOCK) is not None)
        return found

    def are_free(self, group_id: bytes, numbers: Iterable[int]) -> bool:
        """Tell whether no number of these was given and erased before: it has a key, or its block none. Raises as keys.

        In a block without a cover a new root is drawn.
        """
        with self._mutex:
            self.refresh()
            covers: dict[bytes, Cover | None] = {}
            for number in numbers:
                named = records.name(group_id, number >> tree.HEIGHT)
                if named not in covers:
                    covers[named] = self._begun.get(named) or (
                        self._file.read(named) if self._file.had(named) else None
                    )
                nodes = covers[named]
                if nodes is not None and tree.node_above(nodes, number % tree.BLOCK) is None:
                    return False
        return True

    def refresh(self) -> None:
        """Take up what another process has changed. Raises KeyFileError: then nothing is at hand any more."""
        with self._mutex:
            try:
                self._forget(self._file.refresh())
            except KeyFileError:
                self._begun.clear()
                self._remembered.clear()
                raise

    def copy(self, target: Path) -> int:
        """Write a copy of the key file, see ``copying.copy``."""
        return copying.copy(self._file, target)

    def blocks(self) -> list[tuple[bytes, int]]:
        """Return the blocks that have a cover: ids of groups, numbers of blocks. Raises KeyFileError."""
        return [records.parts(each) for each in self._file.names()]

    @property
    def path(self) -> Path:
        """Where the key file is."""
        return self._file.path

    @property
    def keys_id(self) -> bytes:
        """The id of the key file."""
        return self._file.keys_id

    @property
    def serial(self) -> int:
        """The number of the key file's last change that is known."""
        return self._file.serial

    @property
    def is_empty(self) -> bool:
        """Whether there is no key. Raises KeyFileError."""
        return not self._file.names()

    @property
    def damage(self) -> int:
        """At how many places the key file is not as it was written, see ``KeyFile.damage``."""
        return self._file.damage

    def keys(self, group_id: bytes, numbers: Sequence[int]) -> list[bytes | None]:
        """Return the key of each number of a group; None: it was erased, or never drawn. Raises KeyFileError.

        What neighbours have in common, as the numbers of a page do, is derived once.
        """
        with self._mutex:
            self.refresh()
            of: dict[int, Sequence[bytes | None]] = {}
            blocks: dict[int, list[int]] = {}
            for index in dict.fromkeys(number >> NEIGHBOURS_STEPS for number in numbers):
                found = self._remembered.get(_place(group_id, index))
                if found is None:
                    blocks.setdefault(index >> (tree.HEIGHT - NEIGHBOURS_STEPS), []).append(index)
                else:
                    self._remembered.move_to_end(_place(group_id, index))
                    of[index] = found
            for block, wanted in blocks.items():
                nodes = self._file.read(records.name(group_id, block))
                of |= dict.fromkeys(wanted, _NO_KEYS) if nodes is None else self._derived(group_id, nodes, wanted)
            return [of[number >> NEIGHBOURS_STEPS][number % NEIGHBOURS] for number in numbers]

    def _derived(self, group_id: bytes, nodes: Cover, wanted: Sequence[int]) -> dict[int, list[bytes | None]]:
        """Derive keys of one block, and remember them. ``wanted``: each stands for 16 neighbours."""
        found: dict[int, list[bytes | None]] = {}
        for first, last in _runs(sorted(wanted)):
            found |= zip(range(first, last + 1), _of_run(nodes, first % INDEXES, last - first + 1), strict=True)
        for index, neighbours in found.items():
            self._remembered[_place(group_id, index)] = neighbours
        while len(self._remembered) > REMEMBERED:
            self._remembered.popitem(last=False)
        return found

    def erase(self, dead: Iterable[GroupRanges]) -> int:
        """Lose the keys of ``dead``, for good: no byte of the file yields them when this returns.

        Returns how many covers have changed. Raises KeyFileError: then some keys may be left, and this is repeated.
        """
        wanted = dict(dead)
        present = self._present(wanted)
        return self._change(
            (records.name(group_id, block), _shortened_by(_within(wanted[group_id], block)))
            for group_id, blocks in present.items()
            for block in blocks
        )

    def settle(self, living: Iterable[GroupRanges]) -> int:
        """Lose all keys but those of ``living``, as ``erase`` does. ``living`` names each group that there is, once.

        What lives of a group are its messages and the numbers that it has not given yet, up to LAST_NUMBER.
        """
        present = self._present()

        def wanted() -> Iterator[tuple[bytes, Callable[[Cover], Cover]]]:
            for group_id, some in living:
                for block in present.pop(group_id, ()):
                    yield records.name(group_id, block), _reduced_to(_within(some, block))
            for group_id, blocks in present.items():
                for block in blocks:
                    yield records.name(group_id, block), _reduced_to([])

        return self._change(wanted())

    def _forget(self, changed: Set[bytes]) -> None:
        """Drop from memory what was derived of covers that have changed."""
        with self._mutex:
            for named in changed:
                self._begun.pop(named, None)
            for each in [each for each in self._remembered if each[0] in changed] if changed else ():
                del self._remembered[each]

    def _present(self, among: dict[bytes, Sequence[Range]] | None = None) -> dict[bytes, list[int]]:
        """Return the blocks that have a cover, by group: of all groups, or ``among`` some."""
        present: dict[bytes, list[int]] = defaultdict(list)
        for group_id, block in self.blocks():
            if among is None or group_id in among:
                present[group_id].append(block)
        return dict(present)

    def _change(self, wanted: Iterable[tuple[bytes, Callable[[Cover], Cover]]]) -> int:
        """Change covers, some at once, and return how many are other than before."""
        waiting, count = iter(wanted), 0
        while some := list(islice(waiting, BLOCKS_A_WRITE)):
            with self._file.held() as write:
                changed = []
                for named, change in some:
                    former = self._file.read(named)
                    if former is not None and (nodes := change(former)) != former:
                        changed.append((named, nodes))
                write(changed)
            self._forget({named for named, _ in changed})
            count += len(changed)
        return count


def _shortened_by(dead: Sequence[Range]) -> Callable[[Cover], Cover]:
    return lambda nodes: tree.without(nodes, dead)


def _reduced_to(living: Sequence[Range]) -> Callable[[Cover], Cover]:
    return lambda nodes: tree.kept(nodes, living)


def _within(some: Sequence[Range], block: int) -> list[Range]:
    """Return what of ``some`` lies in a block, as numbers within it."""
    begin = block << tree.HEIGHT
    found = []
    for index in range(bisect_left(some, begin, key=lambda each: each.last), len(some)):
        first, last = some[index]
        if first >= begin + tree.BLOCK:
            break
        found.append(Range(max(first - begin, 0), min(last - begin, tree.BLOCK - 1)))
    return found


def _place(group_id: bytes, index: int) -> tuple[bytes, int]:
    return records.name(group_id, index // INDEXES), index % INDEXES


def _runs(indexes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last of each run of neighbours."""
    begin = 0
    for at in range(1, len(indexes) + 1):
        if at == len(indexes) or indexes[at] != indexes[at - 1] + 1:
            yield indexes[begin], indexes[at - 1]
            begin = at


def _of_run(nodes: Cover, first: int, count: int) -> Iterator[list[bytes | None]]:
    """Yield the keys of ``count`` times 16 neighbours, the first of which is 16 times ``first``, within a block."""
    end = first + count
    while first < end:
        node = tree.node_above(nodes, first << NEIGHBOURS_STEPS)
        reach = tree.span(node.position)[1] + 1 >> NEIGHBOURS_STEPS if node else first
        if node is None or reach <= first:  # some of the 16 are lost
            yield [_leaf(nodes, (first << NEIGHBOURS_STEPS) + each) for each in range(NEIGHBOURS)]
            first += 1
            continue
        some = min(reach, end) - first
        steps = tree.HEIGHT + 1 - NEIGHBOURS_STEPS - node.position.bit_length()
        place = first - (tree.span(node.position)[0] >> NEIGHBOURS_STEPS)
        for above in tree.descend_to_some(node.secret, place, some, steps):
            yield [*tree.leaves(above, NEIGHBOURS_STEPS)]
        first += some


def _neighbours(nodes: Cover, index: int) -> list[bytes | None]:
    """Return the keys of 16 neighbours, derived together if all of them live."""
    return next(_of_run(nodes, index, 1))


def _leaf(nodes: Cover, number: int) -> bytes | None:
    node = tree.node_above(nodes, number)
    if node is None:
        return None
    leaf = tree.BLOCK + number
    return tree.descend(node.secret, leaf, leaf.bit_length() - node.position.bit_length())
