"""Finding bodies in files, byte by byte.

A body is made of blocks of 12 bytes: a random mark of the search, the body's number, a checksum. Any 24 bytes in
a row of a body hold a whole block, so a search for the mark finds every such piece, wherever it begins, and
knows whose it is.
"""

import os
import struct
import zlib
from collections.abc import Container
from pathlib import Path

BLOCK = 12


class Search:
    """Makes bodies, and finds what is left of them."""

    def __init__(self) -> None:
        self._mark = os.urandom(4)

    def body(self, number: int, size: int) -> bytes:
        """Make body ``number``, ``size`` bytes long."""
        return (self._block(number) * (size // BLOCK + 1))[:size]

    def numbers_in(self, *folders: Path) -> set[int]:
        """Return the numbers of all bodies of which a piece lies in any file under ``folders``."""
        return self.numbers_in_files(*(path for folder in folders for path in folder.rglob("*") if path.is_file()))

    def numbers_in_files(self, *paths: Path) -> set[int]:
        """Return the numbers of all bodies of which a piece lies in any of the files."""
        found: set[int] = set()
        for path in paths:
            found |= self._numbers_in_file(path.read_bytes())
        return found

    def left_of(self, erased: Container[int], *folders: Path) -> set[int]:
        """Return which of the ``erased`` bodies can still be found."""
        return {number for number in self.numbers_in(*folders) if number in erased}

    def _numbers_in_file(self, data: bytes) -> set[int]:
        found: set[int] = set()
        at = data.find(self._mark)
        while at != -1 and at + BLOCK <= len(data):
            (number,) = struct.unpack_from("<I", data, at + len(self._mark))
            if data[at : at + BLOCK] == self._block(number):
                found.add(number)
            at = data.find(self._mark, at + 1)
        return found

    def _block(self, number: int) -> bytes:
        begin = self._mark + struct.pack("<I", number)
        return begin + struct.pack("<I", zlib.crc32(begin))
