"""Searches files for marks, byte by byte, also in what is packed by zstd, as the archive's files are."""

import mmap
import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

ZSTD = b"\x28\xb5\x2f\xfd"
"""How a zstd frame begins."""

CHUNK_BYTES = 4 * 1024 * 1024
"""A file is read 4 MiB at a time."""

PIECE_BYTES = 64 * 1024
"""What is unpacked is searched 64 KiB at a time: of a frame that is cut off, all pieces but the last can be read."""


@dataclass(frozen=True)
class Hit:
    """Where a mark was found."""

    mark: bytes
    path: Path
    offset: int
    """In the file, of the mark, or of the packed frame that has it."""


class Search:
    """Searches files for marks. Each is told at most ``most`` times of a file, or of a frame that is packed in one."""

    def __init__(self, marks: Collection[bytes], most: int) -> None:
        """``marks``: none is longer than a few hundred bytes."""
        self._marks = marks
        self._most = most
        self._overlap = max(map(len, marks)) - 1

    def in_bytes(self, path: Path) -> Iterator[Hit]:
        """Search a file that may change or vanish meanwhile. Raises OSError."""
        with suppress(FileNotFoundError), path.open("rb") as file:
            yield from self._in_pieces(path, iter(partial(file.read, CHUNK_BYTES), b""))

    def in_packed(self, path: Path) -> Iterator[Hit]:
        """Search what a file of the archive has packed. It may vanish, but it is not shortened. Raises OSError."""
        with suppress(FileNotFoundError), path.open("rb") as file:
            if not os.fstat(file.fileno()).st_size:
                return
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                for begin, pieces in unpacked(data):
                    yield from (Hit(hit.mark, path, begin) for hit in self._in_pieces(path, pieces))

    def _in_pieces(self, path: Path, pieces: Iterator[bytes]) -> Iterator[Hit]:
        found = dict.fromkeys(self._marks, 0)
        former, begin = b"", 0
        for piece in pieces:
            joined = former + piece
            for mark in self._marks:
                at = joined.find(mark)
                while at >= 0 and found[mark] < self._most:
                    found[mark] += 1
                    yield Hit(mark, path, begin + at)
                    at = joined.find(mark, at + 1)
            former = joined[-self._overlap :]
            begin += len(joined) - len(former)


def unpacked(data: bytes | mmap.mmap) -> Iterator[tuple[int, Iterator[bytes]]]:
    """Yield each zstd frame of ``data``: where it begins, and its content in pieces, as far as it can be read.

    The file may be half written, and what looks like a frame may be none. Take the pieces of one before the next.
    """
    at = data.find(ZSTD)
    while at != -1:
        frame = _Frame(data, at)
        yield at, frame.pieces()
        at = data.find(ZSTD, frame.end)


class _Frame:
    """A zstd frame. ``end``: where to go on behind it, once its pieces were taken."""

    def __init__(self, data: bytes | mmap.mmap, begin: int) -> None:
        self._data = data
        self._begin = begin
        self.end = _end_of_frame(data, begin)

    def pieces(self) -> Iterator[bytes]:
        import pyarrow  # noqa: PLC0415 - only the archive's files need it

        packed = pyarrow.BufferReader(self._data[self._begin : self.end])
        stream = pyarrow.CompressedInputStream(packed, "zstd")
        try:
            while piece := stream.read(PIECE_BYTES):
                yield piece
        except OSError:
            self.end = self._begin + len(ZSTD)  # cut off, or no frame: the next may begin anywhere


def _end_of_frame(data: bytes | mmap.mmap, begin: int) -> int:
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
