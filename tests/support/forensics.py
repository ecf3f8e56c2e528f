"""Finding bodies in files, byte by byte.

A body is made of blocks of 12 bytes: a random mark of the search, the body's number, a checksum. Any 24 bytes in
a row of a body hold a whole block, so a search for the mark finds every such piece, wherever it begins, and
knows whose it is.

What lies in the archive's files is packed. So these are unpacked and searched too.
"""

import os
import re
import struct
import subprocess
import tempfile
import zlib
from collections.abc import Container, Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow
from pyarrow import parquet

BLOCK = 12


class Search:
    """Makes bodies, and finds what is left of them."""

    def __init__(self) -> None:
        self._mark = os.urandom(4)
        # A block, and all that follow it and are the same: one find for a piece of a body, however long.
        self._piece = re.compile(re.escape(self._mark) + rb"(.{8})(?:" + re.escape(self._mark) + rb"\1)*", re.DOTALL)

    def body(self, number: int, size: int) -> bytes:
        """Make body ``number``, ``size`` bytes long."""
        return (self._block(number) * (size // BLOCK + 1))[:size]

    def numbers_in(self, *folders: Path) -> set[int]:
        """Return the numbers of all bodies of which a piece lies in any file under ``folders``."""
        return self.numbers_in_files(*(path for folder in folders for path in folder.rglob("*") if path.is_file()))

    def numbers_beside_a_server(self, folder: Path) -> set[int]:
        """Do as ``numbers_in`` where this process has a database in ``folder`` open.

        It must not close the database's files itself: it would lose SQLite's locks on them. So another process copies.
        """
        with tempfile.TemporaryDirectory() as copied:
            subprocess.run(["cp", "-a", f"{folder}/.", copied], check=True)
            return self.numbers_in(Path(copied))

    def numbers_in_files(self, *paths: Path) -> set[int]:
        """Return the numbers of all bodies of which a piece lies in any of the files."""
        found: set[int] = set()
        for path in paths:
            found |= self._numbers_in(path.read_bytes())
            if path.suffix == ".parquet":
                for data in _unpacked(path):
                    found |= self._numbers_in(data)
        return found

    def where(self, numbers: Container[int], *folders: Path) -> dict[str, set[int]]:
        """Return which of ``numbers`` lie in which files: for the message of an assertion."""
        files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
        found = {str(path): {each for each in self.numbers_in_files(path) if each in numbers} for path in files}
        return {path: those for path, those in found.items() if those}

    def left_of(self, erased: Container[int], *folders: Path) -> set[int]:
        """Return which of the ``erased`` bodies can still be found."""
        return {number for number in self.numbers_in(*folders) if number in erased}

    def _numbers_in(self, data: bytes) -> set[int]:
        found: set[int] = set()
        at = 0
        while piece := self._piece.search(data, at):
            begin, at = piece.span()
            (number,) = struct.unpack_from("<I", data, begin + len(self._mark))
            if data[begin : begin + BLOCK] == self._block(number):
                found.add(number)
            else:
                at = begin + 1  # a mark that was cut off: a whole one may begin within what was taken for its block
        return found

    def _block(self, number: int) -> bytes:
        begin = self._mark + struct.pack("<I", number)
        return begin + struct.pack("<I", zlib.crc32(begin))


def _unpacked(path: Path) -> Iterator[bytes]:
    with suppress(pyarrow.ArrowException, OSError):  # a file that was not written as a whole
        for column in parquet.read_table(path, partitioning=None).itercolumns():
            for chunk in column.chunks:
                yield from (each.to_pybytes() for each in chunk.buffers() if each)
