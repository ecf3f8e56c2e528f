"""Inspects a key file, or a copy of one, without locking or changing it."""

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
    """A defect of a key file, at a byte ``offset`` in the file."""

    offset: int
    description: str


class Inspection:
    """The contents of a key file at the time of the inspection.

    ``keys_id`` and ``serial``: see ``KeyFile``. ``size``: in bytes. ``flaws``: records that are neither valid nor
    completely overwritten. The last valid cover of each block counts.
    """

    def __init__(self, path: Path) -> None:
        """Read the file ``path``. Raises KeyFileError."""
        self.path = path
        try:
            self._data = replacing.read_current(path)
        except OSError as error:
            raise KeyFileError(f"{path}: {error.strerror}") from error
        head = records.parse_file_head(self._data)
        if head is None:
            raise KeyFileError(f"{path}: is not a key file")
        self.serial, self.keys_id = head
        self.size = len(self._data)
        self.flaws: list[Flaw] = []
        self._locations: dict[bytes, tuple[int, int]] = {}
        self._scan()

    def _scan(self) -> None:
        for record in records.scan(self._data, UNIT_BYTES):
            if record.state is RecordState.VALID:
                self.serial = max(self.serial, record.serial)
                if former := self._locations.pop(record.name, None):
                    self.flaws.append(Flaw(former[0], "an old cover was not overwritten"))
                if not record.is_empty:
                    self._locations[record.name] = (record.offset, record.size)
            elif record.state is RecordState.PARTLY_ERASED:
                self.flaws.append(Flaw(record.offset, "an old cover was only partly overwritten"))
            elif record.state is RecordState.INVALID:
                self.flaws.append(Flaw(record.offset, "the record is damaged"))

    def blocks(self) -> list[tuple[bytes, int]]:
        """Return the blocks that have a cover: group id and block number."""
        return [records.parse_block_name(each) for each in self._locations]

    def offset(self, group_id: bytes, block: int) -> int:
        """Return the offset of a block's cover in the file."""
        return self._locations[records.block_name(group_id, block)][0]

    def cover(self, group_id: bytes, block: int) -> Cover:
        """Return the cover of a block; an empty one if it has none."""
        name = records.block_name(group_id, block)
        if name not in self._locations:
            return ()
        offset, size = self._locations[name]
        return records.decode(self._data[offset : offset + size], name) or ()

    def ranges(self, group_id: bytes, block: int) -> list[Range]:
        """Return the numbers of a block whose keys can be derived."""
        begin = block << tree.HEIGHT
        spans = (tree.span(node.position) for node in self.cover(group_id, block))
        return tree.union((begin + first, begin + last) for first, last in spans)

    def write(self, target: Path) -> None:
        """Write a key file with these covers to ``target``, replacing an existing file. Raises KeyFileError."""
        try:
            replacing.remove_leftovers(target)
            with open_to_lock(replacing.sibling(target, replacing.NEW), os.O_CREAT | os.O_EXCL) as descriptor:
                end = replacing.write_all(descriptor, records.file_head(self.serial, self.keys_id), 0)
                for offset, size in self._locations.values():
                    end = replacing.write_all(descriptor, self._data[offset : offset + size], end)
                os.fsync(descriptor)
            replacing.replace_current(target)
        except OSError as error:
            raise KeyFileError(f"{target}: {error.strerror}") from error

    def have_keys(self, group_id: bytes, numbers: Sequence[int]) -> list[bool]:
        """Return for each number of a group whether its key can be derived."""
        covers: dict[int, Cover] = {}
        has_key = []
        for number in numbers:
            block = number >> tree.HEIGHT
            if block not in covers:
                covers[block] = self.cover(group_id, block)
            has_key.append(tree.covering_node(covers[block], number % tree.BLOCK) is not None)
        return has_key
