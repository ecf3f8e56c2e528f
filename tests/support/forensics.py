"""Finding bodies in files: byte by byte, and those that can be decrypted with the key files that are there.

A body is made of blocks of 12 bytes: a random mark of the search, the body's number, a checksum. Any 24 bytes in
a row of a body hold a whole block, so a search for the mark finds every such piece, wherever it begins, and
knows whose it is.

What lies in the archive's files is packed. So these are unpacked and searched too.
"""

import os
import re
import sqlite3
import struct
import subprocess
import tempfile
import zlib
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from conclave.keys import cipher, records, tree
from conclave.keys.cipher import AlteredError
from conclave.keys.inspection import Inspection
from conclave.store.bodies import LAST_NUMBER, NUMBER_BITS

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

    def numbers_in_files(self, *paths: Path) -> set[int]:
        """Return the numbers of all bodies of which a piece lies in any of the files."""
        found: set[int] = set()
        for path in paths:
            found |= self._numbers_in(path.read_bytes())
            if path.suffix == ".parquet":
                for data in _unpacked(path):
                    found |= self._numbers_in(data)
        return found

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


Place = tuple[bytes, int]
"""The id of a group, a sequence number."""

_EVER: list[tuple[Place, bytes]] = []
"""What this process has encrypted in the test, whether or not it was stored then."""

_encrypt_all = cipher.encrypt_all


def begin(patch: pytest.MonkeyPatch) -> None:
    """Note from now on what this process encrypts."""
    _EVER.clear()
    patch.setattr(cipher, "encrypt_all", _encrypt_and_note)


@contextmanager
def of_test() -> Iterator[None]:
    """Forget at the end what is encrypted in the block."""
    before = len(_EVER)
    yield
    del _EVER[before:]


def _encrypt_and_note(keys: Sequence[bytes], placed: Sequence[Place], bodies: Sequence[bytes]) -> list[bytes]:
    found = _encrypt_all(keys, placed, bodies)
    _EVER.extend(zip(placed, found, strict=True))
    return found


class StoreSearch(Search):
    """Finds bodies of a store that can be read: no byte of them is in any file, and the keys are in key files.

    It has all that was ever stored by this process, and what it finds in databases and in the archive's files, now or
    before. So what was erased is found if a key file still leads to its key, wherever its row is.
    """

    def __init__(self) -> None:
        super().__init__()
        self._stored: set[tuple[Place, bytes]] = set()
        self._group_ids: dict[int, bytes] = {}

    def numbers_in(self, *places: Path) -> set[int]:
        """Return the numbers of all bodies that can be read by who has these folders and files.

        Another process copies them: if this one closed a file of a database that it has open, it would lose SQLite's
        locks on it.
        """
        with tempfile.TemporaryDirectory() as copied:
            for number, place in enumerate(places):
                subprocess.run(["cp", "-a", place, f"{copied}/{number}"], check=True)
            files = [path for path in Path(copied).rglob("*") if path.is_file()]
            assert self.numbers_in_files(*files) == set(), "bodies are stored encrypted only"
            heads = {path: path.read_bytes()[: records.UNIT_BYTES] for path in files}
            found = [Inspection(path) for path, head in heads.items() if records.parse_file_head(head)]
            for path, head in heads.items():
                if head.startswith(b"SQLite format 3\0"):
                    self._read_database(path)
            for path in heads:
                if path.suffix == ".parquet":
                    self._read_archive(path)
        read = (opened for place, stored in {*self._stored, *_EVER} for opened in _opened(found, place, stored))
        return {number for body in read for number in self._numbers_in(body[: 2 * BLOCK])}

    def _read_database(self, path: Path) -> None:
        with closing(sqlite3.connect(path)) as connection:
            tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_schema")}
            if "message_bodies" not in tables:
                return
            groups = "SELECT group_key, group_id FROM groups UNION ALL SELECT group_key, group_id FROM tombstones"
            self._group_ids |= connection.execute(groups)
            for message_id, stored in connection.execute("SELECT message_id, body FROM message_bodies"):
                group_id = self._group_ids.get(message_id >> NUMBER_BITS, b"")
                self._stored.add(((group_id, message_id & LAST_NUMBER), stored))

    def _read_archive(self, path: Path) -> None:
        with suppress(pyarrow.ArrowException, OSError):  # a file that was not written as a whole
            for row in parquet.read_table(path, columns=COLUMNS, partitioning=None).to_pylist():
                group_key, number, stored = (row[name] for name in COLUMNS)
                self._stored.add(((self._group_ids.get(group_key, b""), number), stored))


COLUMNS = ["group_key", "sequence_num", "mls_message"]


def key_of(found: Inspection, place: Place) -> bytes | None:
    """Derive the key of a body from what a key file has, if anything there leads to it."""
    group_id, number = place
    node = tree.covering_node(found.cover(group_id, number >> tree.HEIGHT), number % tree.BLOCK)
    if node is None:
        return None
    leaf = tree.BLOCK + number % tree.BLOCK
    return tree.descend(node.secret, leaf, leaf.bit_length() - node.position.bit_length())


def _opened(files: Iterable[Inspection], place: Place, stored: bytes) -> Iterator[bytes]:
    for key in {key_of(found, place) for found in files} - {None}:
        with suppress(AlteredError):
            yield cipher.decrypt(key or b"", *place, stored)


def _unpacked(path: Path) -> Iterator[bytes]:
    with suppress(pyarrow.ArrowException, OSError):  # a file that was not written as a whole
        for column in parquet.read_table(path, partitioning=None).itercolumns():
            for chunk in column.chunks:
                yield from (each.to_pybytes() for each in chunk.buffers() if each)
