"""What the disk alone can do: a synced commit of SQLite, and a sync without it. Each for some seconds in one thread."""

import os
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from bench.load import Outcome
from conclave.store.engine import schema, sqlite

BLOCK_BYTES = 4096
PREALLOCATED_BYTES = 16 * 1024 * 1024


def commits(path: Path, body_bytes: int, seconds: float) -> Outcome:
    """Insert a body a commit, with the store's pragmas and SQLite's own checkpoints, into a database made for it."""
    if not path.exists():
        schema.prepare(path)
    with closing(sqlite.connect(path)) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS probe (id INTEGER PRIMARY KEY, body BLOB)")
        body = os.urandom(body_bytes)

        def commit() -> None:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO probe (body) VALUES (?)", (body,))
            connection.execute("COMMIT")

        return _repeat(commit, seconds)


def appended_syncs(path: Path, seconds: float) -> Outcome:
    """Make a file longer by 4 KiB, and fsync it."""
    block = os.urandom(BLOCK_BYTES)
    with path.open("wb", buffering=0) as file:

        def sync() -> None:
            file.write(block)
            os.fsync(file.fileno())

        return _repeat(sync, seconds)


def overwritten_syncs(path: Path, seconds: float) -> Outcome:
    """Write 4 KiB over what a file has, and fdatasync it."""
    block = os.urandom(BLOCK_BYTES)
    with path.open("wb", buffering=0) as file:
        file.write(bytes(PREALLOCATED_BYTES))
        os.fsync(file.fileno())
        place = 0

        def sync() -> None:
            nonlocal place
            os.pwrite(file.fileno(), block, place)
            os.fdatasync(file.fileno())
            place = (place + BLOCK_BYTES) % PREALLOCATED_BYTES

        return _repeat(sync, seconds)


def _repeat(work: Callable[[], None], seconds: float) -> Outcome:
    took = []
    began = now = time.perf_counter()
    while now < began + seconds:
        work()
        done = time.perf_counter()
        took.append(done - now)
        now = done
    return Outcome(len(took) / (now - began), took)
