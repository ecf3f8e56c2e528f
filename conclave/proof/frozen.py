"""Reads the bytes of the database's file while they do not change, although the server goes on writing.

The server writes to the write-ahead log. The file changes only when the log is copied into it, and SQLite copies
nothing that is newer than what an open reader sees. So there is a moment that can be held: a reader begins, and then
all of the log is copied, if there was no commit in between. From then on the file is, byte by byte, what this reader
sees, until the reader ends. Others do not wait for that: senders write to the log, readers read.

Meanwhile the log grows. So a moment is held for HELD_SECONDS only, and then another one is taken.
"""

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from conclave.proof.pages import HEADER_BYTES, Layout, MalformedError, read_layout
from conclave.store.engine import sqlite

HELD_SECONDS = 0.25
"""A moment is held for a quarter of a second, or a little longer: a busy server writes some megabytes meanwhile."""

ATTEMPTS, PAUSE_SECONDS = 200, 0.025
"""Holding a moment is tried at most 200 times, 25 ms apart."""


class NotFrozenError(Exception):
    """Some reader is always open, so the log is never copied as a whole. The file cannot be examined."""


class Frozen:
    """The database at one moment: as SQLite reads it (``connection``), and its file, which is the same."""

    def __init__(self, connection: sqlite3.Connection, descriptor: int, deadline: float) -> None:
        """``descriptor``: the open file. ``deadline``: until when the moment may be held, of the monotonic clock."""
        self.connection = connection
        self._descriptor = descriptor
        self._deadline = deadline
        self.size = os.fstat(descriptor).st_size
        self.layout: Layout = read_layout(os.pread(descriptor, HEADER_BYTES, 0))

    def read(self, page: int) -> bytes:
        """Return the bytes of a page. Raises MalformedError if the file does not have it."""
        data = self.read_bytes(self.layout.begin_of(page), self.layout.page_bytes)
        if len(data) < self.layout.page_bytes:
            raise MalformedError(f"page {page} is not in the file")
        return data

    def read_bytes(self, begin: int, size: int) -> bytes:
        """Return at most ``size`` bytes from ``begin`` on."""
        return os.pread(self._descriptor, size, begin)

    def is_over(self) -> bool:
        """Tell whether the moment has been held for long enough."""
        return time.monotonic() > self._deadline


@contextmanager
def frozen(database: Path, descriptor: int) -> Iterator[Frozen]:
    """Hold a moment for the block.

    ``descriptor``: the database's file, which this process has opened before, and closes when it has no connection any
    more: closing it would end the locks of SQLite. Raises NotFrozenError, MalformedError, StoreError, sqlite3.Error.
    """
    with (
        closing(sqlite.connect(database)) as copier,
        closing(sqlite.connect(database, readonly=True)) as reader,
    ):
        for _ in range(ATTEMPTS):
            sqlite.checkpoint(copier)
            reader.execute("BEGIN")
            reader.execute("SELECT 1 FROM sqlite_schema").fetchone()  # only now the reader has a moment
            busy, logged, copied = copier.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            if not busy and logged == copied:
                break
            reader.execute("ROLLBACK")
            time.sleep(PAUSE_SECONDS)
        else:
            raise NotFrozenError
        yield Frozen(reader, descriptor, time.monotonic() + HELD_SECONDS)
