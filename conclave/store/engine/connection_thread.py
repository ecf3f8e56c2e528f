"""A connection with a thread of its own.

The only module that uses private parts of aiosqlite: the queue of its thread (`_tx`), its connection (`_conn`) and the
thread (`_thread`). Its public methods run one statement a hop. `tests/store/test_inside_aiosqlite.py` fails when these
parts change, and `pyproject.toml` bounds the version.
"""

import asyncio
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import aiosqlite

from conclave.store.engine import sqlite

T = TypeVar("T")


class Owner(aiosqlite.Connection):
    """An aiosqlite connection that runs a whole function on its thread: one hop a call, not one a statement."""

    def __init__(self, path: Path) -> None:
        """Prepare only; await it to open it. ``path``: an existing database."""
        super().__init__(partial(sqlite.connect, path), iter_chunk_size=64)
        self._thread.daemon = True  # a process that could not close its store must still be able to end

    @property
    def connection(self) -> sqlite3.Connection:
        """The open connection. Only while nothing runs on the thread."""
        return self._conn

    async def run(self, fn: Callable[[sqlite3.Connection], T]) -> T:
        """Run ``fn`` on the thread and return its result."""
        return await self.submit(fn)

    def submit(self, fn: Callable[[sqlite3.Connection], T]) -> "asyncio.Future[T]":
        """Have ``fn`` run on the thread; return the future of its result. Nothing waits for a task to be woken."""
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._tx.put_nowait((done, partial(fn, self._conn)))
        return done
