"""Looks at a key file, or at a copy of one, as it lies there: takes no lock, and changes nothing."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from conclave.keys import records, replacing, tree
from conclave.keys.file import KeyFileError
from conclave.keys.records import UNIT_BYTES, RecordState
from conclave.keys.tree import Cover, Range
from conclave.system.locks import open_to_lock


class Flaw(NamedTuple):
    """What lies in a key file and should not. ``offset``: in the file."""

    offset: int
    told: str


class Inspection:
    """A key file as it was when it was looked at.

    ``keys_id`` and ``serial``: see ``KeyFile``. ``size``: its bytes. ``flaws``: what is no whole cover of a block and
    was not overwritten either. Of each block the last whole cover counts.
    """

    def __init__(self, path: Path) -> None:
        """Look at the file ``path``. Raises KeyFileError."""
        self.path = path
        try:
            self._data = replacing.read_current(path)
        except OSError as error:
            raise KeyFileError(f"{path}: {error.strerror}") from error
        head = records.of_file(self._data)
        if head is None:
            raise KeyFileError(f"{path}: is not a key file")
        self.serial, self.keys_id = head
        self.size = len(self._data)
        self.flaws: list[Flaw] = []
        self._places: dict[bytes, tuple[int, int]] = {}
        self._scan()

    def _scan(self) -> None:
        for found in records.walk(self._data, UNIT_BYTES):
            if found.state is RecordState.SOUND:
                self.serial = max(self.serial, found.serial)
                if former := self._places.pop(found.name, None):
                    self.flaws.append(Flaw(former[0], "a former cover was not overwritten"))
                if not found.is_empty:
                    self._places[found.name] = (found.offset, found.size)
            elif found.state is RecordState.HALF_DEAD:
                self.flaws.append(Flaw(found.offset, "a former cover was overwritten in part"))
            elif found.state is RecordState.UNSOUND:
                self.flaws.append(Flaw(found.offset, "is not as it was written"))

    def blocks(self) -> list[tuple[bytes, int]]:
        """Return the blocks that have a cover: ids of groups, numbers of blocks."""
        return [records.parts(each) for each in self._places]

    def offset(self, group_id: bytes, block: int) -> int:
        """Return where in the file the cover of a block lies."""
        return self._places[records.name(group_id, block)][0]

    def cover(self, group_id: bytes, block: int) -> Cover:
        """Return the cover of a block, without nodes if it has none."""
        named = records.name(group_id, block)
        if named not in self._places:
            return ()
        offset, size = self._places[named]
        return records.decode(self._data[offset : offset + size], named) or ()

    def ranges(self, group_id: bytes, block: int) -> list[Range]:
        """Return the numbers of a block whose keys follow from what is here."""
        begin = block << tree.HEIGHT
        spans = (tree.span(node.position) for node in self.cover(group_id, block))
        return tree.joined((begin + first, begin + last) for first, last in spans)

    def write(self, target: Path) -> None:
        """Write a key file with what is here to ``target``, in the place of what is there. Raises KeyFileError."""
        try:
            replacing.remove_leftovers(target)
            with open_to_lock(replacing.beside(target, replacing.NEW), os.O_CREAT | os.O_EXCL) as descriptor:
                end = replacing.write_all(descriptor, records.file_head(self.serial, self.keys_id), 0)
                for offset, size in self._places.values():
                    end = replacing.write_all(descriptor, self._data[offset : offset + size], end)
                os.fsync(descriptor)
            replacing.take_its_place(target)
        except OSError as error:
            raise KeyFileError(f"{target}: {error.strerror}") from error

    def living(self, group_id: bytes, numbers: Sequence[int]) -> list[bool]:
        """Tell of each number of a group whether its key follows from what is here."""
        covers: dict[int, Cover] = {}
        found = []
        for number in numbers:
            block = number >> tree.HEIGHT
            if block not in covers:
                covers[block] = self.cover(group_id, block)
            found.append(tree.node_above(covers[block], number % tree.BLOCK) is not None)
        return found
