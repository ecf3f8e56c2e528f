"""A connection with a thread of its own, lent to one function at a time.

The only module that uses private parts of aiosqlite: the queue of its thread (`_tx`), its connection (`_conn`,
`_connection`) and the thread (`_thread`). Its public methods run one statement a hop.
`tests/store/test_inside_aiosqlite.py` fails when these parts change, and `pyproject.toml` bounds the version.
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import aiosqlite

from conclave.logs.setup import get_logger
from conclave.store.engine import sqlite
from conclave.store.engine.connection import StoreConnection, of_store
from conclave.store.engine.faults import StoreError

T = TypeVar("T")

log = get_logger(__name__)


class ConnectionThread(aiosqlite.Connection):
    """An aiosqlite connection that runs a whole function on its thread: one hop a call, not one a statement.

    A function must leave the connection as it got it, without an open transaction or statement. An open statement keeps
    the snapshot that it reads: later reads on the connection would not see what was committed since, neither a login
    nor a removal. An exception is enough to keep one open, as its traceback holds the cursor of the loop that it left.
    So after each call the connection is checked, and replaced by a new one if anything is open on it.
    """

    def __init__(self, path: Path, prepare: Callable[[StoreConnection], object] = lambda _: None) -> None:
        """Prepare only; await it to open it. ``path``: an existing database.

        ``prepare`` is called with each new connection, before anything else uses it.
        """
        self._path = path
        self._prepare = prepare
        self._is_missing = False
        super().__init__(self._open, iter_chunk_size=64)
        self._thread.daemon = True  # a process that could not close its store must still be able to end

    @property
    def connection(self) -> StoreConnection:
        """The open connection. Only while nothing runs on the thread. Raises StoreError if it could not be replaced."""
        if self._is_missing:
            raise StoreError(f"{self._path}: a connection could not be replaced")
        return of_store(self._conn)

    async def run(self, fn: Callable[[sqlite3.Connection], T]) -> T:
        """Run ``fn`` on the thread and return its result. Raises what it raises, and StoreError."""
        return await self.submit(fn)

    def submit(self, fn: Callable[[sqlite3.Connection], T]) -> "asyncio.Future[T]":
        """Run ``fn`` on the thread; return the future of its result. No task has to wake up for that."""
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._tx.put_nowait((done, partial(self._lend, fn)))
        return done

    def _open(self) -> StoreConnection:
        connection = sqlite.connect(self._path)
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _lend(self, fn: Callable[[sqlite3.Connection], T]) -> T:
        if self._is_missing:  # the last call could not replace it
            self._replace()
        connection = self.connection
        try:
            return fn(connection)
        finally:
            if not sqlite.is_idle(connection):
                log.warning("connection_replaced", path=str(self._path))
                with contextlib.suppress(sqlite3.Error, StoreError):  # then the next call tries again, and says why
                    self._replace()

    def _replace(self) -> None:
        """Close the connection and open another one. Raises sqlite3.Error or StoreError."""
        former = of_store(self._conn)
        self._is_missing = True
        former.close()
        self._connection = connection = self._open()
        connection.waits_until = former.waits_until
        self._is_missing = False
