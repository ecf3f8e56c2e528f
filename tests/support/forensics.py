"""Finding bodies in files, byte by byte.

A body is made of blocks of 12 bytes: a random mark of the search, the body's number, a checksum. Any 24 bytes in
a row of a body hold a whole block, so a search for the mark finds every such piece, wherever it begins, and
knows whose it is.

Such bodies shrink, as real ones, which are encrypted, do not: what lies in the archive's files is not to be seen in
their bytes. So whatever in a file begins as a zstd frame is unpacked and searched too.
"""

import os
import re
import struct
import subprocess
import tempfile
import zlib
from collections.abc import Container, Iterator
from pathlib import Path

import pyarrow

BLOCK = 12

ZSTD = b"\x28\xb5\x2f\xfd"
"""How a zstd frame begins."""


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
            data = path.read_bytes()
            found |= self._numbers_in(data)
            for unpacked in _unpacked(data):
                found |= self._numbers_in(unpacked)
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


def _unpacked(data: bytes) -> Iterator[bytes]:
    """Yield what is in each zstd frame of ``data``, as far as it can be read: the file may be half written."""
    at = data.find(ZSTD)
    while at != -1:
        end = _end_of_frame(data, at)
        stream = pyarrow.CompressedInputStream(pyarrow.BufferReader(memoryview(data)[at:end]), "zstd")
        parts = []
        try:
            while part := stream.read(1 << 16):
                parts.append(part)
        except OSError:
            end = at + len(ZSTD)  # cut off, or no frame: the next may begin anywhere
        yield b"".join(parts)
        at = data.find(ZSTD, end)


def _end_of_frame(data: bytes, begin: int) -> int:
    """Return where the zstd frame ends that begins there, by RFC 8878; at most the end of ``data``."""
    at = begin + len(ZSTD)
    descriptor = data[at] if at < len(data) else 0
    is_single = descriptor >> 5 & 1
    at += 1 + (not is_single) + (0, 1, 2, 4)[descriptor & 3] + (is_single, 2, 4, 8)[descriptor >> 6]
    is_last = False
    while not is_last and at + 3 <= len(data):
        header = int.from_bytes(data[at : at + 3], "little")
        is_last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
        at += 3 + (1 if kind == 1 else size)
    return min(len(data), at + (4 if descriptor >> 2 & 1 else 0))
