"""What may be known of erased messages from the key file: a plain model of the numbers that live, and a search."""

import random
from collections.abc import Iterable, Sequence
from pathlib import Path

from conclave.keys import records, tree
from conclave.keys.store import LAST_NUMBER, GroupRanges, KeyStore
from conclave.keys.tree import Range

JUMP = 1 << 32
"""A restore goes on with numbers at the next multiple of this."""


def ranges(numbers: Iterable[int]) -> list[Range]:
    """Return numbers as ranges that do not meet."""
    found: list[Range] = []
    for number in sorted(numbers):
        if found and found[-1].last + 1 == number:
            found[-1] = Range(found[-1].first, number)
        else:
            found.append(Range(number, number))
    return found


class Memory:
    """What a key store should know: the roots that were drawn, and the numbers that live of each group."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.roots: dict[bytes, bytes] = {}
        self.living: dict[bytes, set[int]] = {}
        self.last: dict[bytes, int] = {}
        self.erased: set[tuple[bytes, int]] = set()
        self._drawn = b""

    def draw(self, count: int) -> bytes:
        """Draw the secret of a root, and remember it."""
        self._drawn = self.random.randbytes(count)
        return self._drawn

    def give(self, store: KeyStore, group_id: bytes, count: int, *, jump: bool = False) -> None:
        """Give numbers of a group, as sends do: from its last one on, or after a restore."""
        last = self.last.get(group_id, 0)
        if jump:
            last = (last // JUMP + 1) * JUMP - 1
        for number in range(last + 1, last + 1 + count):
            self._drawn = b""
            try:
                store.prepare([(group_id, number)])
            finally:
                if self._drawn:  # also where it failed: the root may be in the file
                    self.roots[records.block_name(group_id, number >> tree.HEIGHT)] = self._drawn
            self.living.setdefault(group_id, set()).add(number)
            self.last[group_id] = number

    def forget(self, group_id: bytes, numbers: Iterable[int]) -> list[Range]:
        """Note that numbers are erased, and return them as ranges."""
        gone = self.living[group_id].intersection(numbers)
        self.living[group_id] -= gone
        self.erased |= {(group_id, number) for number in gone}
        return ranges(gone)

    def told(self) -> list[GroupRanges]:
        """Return what lives, as a run tells it: also the numbers that were not given yet."""
        return [
            (group_id, [*ranges(numbers), Range(self.last[group_id] + 1, LAST_NUMBER)])
            for group_id, numbers in self.living.items()
        ]

    def key(self, group_id: bytes, number: int) -> bytes:
        """Return the key that a message should have."""
        root = self.roots[records.block_name(group_id, number >> tree.HEIGHT)]
        return tree.descend(root, tree.BLOCK + number % tree.BLOCK, tree.HEIGHT)

    def require_living(self, store: KeyStore) -> None:
        """Require that every message that lives has its key."""
        for group_id, numbers in self.living.items():
            asked = sorted(numbers)
            assert store.keys(group_id, asked) == [self.key(group_id, number) for number in asked]

    def require_lost(self, store: KeyStore, folder: Path) -> None:
        """Require that no erased message has a key, and that nothing in any file leads to one."""
        for group_id, number in self.erased:
            assert store.keys(group_id, [number]) == [None]
        assert self.remains(folder) == []

    def remains(self, folder: Path) -> Sequence[tuple[bytes, int]]:
        """Return the erased numbers whose keys follow from some 32 bytes in any file of a folder.

        A key follows from the nodes on its way to the root, and from nothing else.
        """
        data = b"\n".join(each.read_bytes() for each in sorted(folder.iterdir()))
        found, seen = [], dict[tuple[bytes, int], bool]()
        for group_id, number in sorted(self.erased):
            named = records.block_name(group_id, number >> tree.HEIGHT)
            leaf, secret = tree.BLOCK + number % tree.BLOCK, self.roots[named]
            for steps in range(tree.HEIGHT, -1, -1):
                position = leaf >> steps
                if position != tree.ROOT:
                    secret = tree.children(secret)[position & 1]
                if (named, position) not in seen:
                    seen[named, position] = secret in data
                if seen[named, position]:
                    found.append((group_id, number))
                    break
        return found
