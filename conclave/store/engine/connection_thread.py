"""A database connection with its own thread, on which functions run one at a time.

The only module that uses private parts of aiosqlite: the queue of its thread (`_tx`), its connection (`_conn`,
`_connection`) and the thread (`_thread`). The public methods need a thread switch for each statement.
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
    """An aiosqlite connection that runs whole functions on its thread, with one thread switch for each call.

    A function must not leave a transaction or statement open. An open statement keeps its snapshot, so later reads on
    the connection would not see newer commits, such as a login or a removal. Even an exception may keep one open, since
    its traceback refers to the cursor. So after each call the connection is checked, and replaced if anything is open.
    """

    def __init__(self, path: Path, prepare: Callable[[StoreConnection], object] = lambda _: None) -> None:
        """Prepare the object; await it to open the connection. ``path``: an existing database.

        ``prepare`` is called with each new connection, before any other use.
        """
        self._path = path
        self._prepare = prepare
        self._is_missing = False
        super().__init__(self._open, iter_chunk_size=64)
        self._thread.daemon = True  # a process must be able to end even if it could not close its store

    @property
    def connection(self) -> StoreConnection:
        """The open connection, for use while the thread is idle. Raises StoreError if it could not be replaced."""
        if self._is_missing:
            raise StoreError(f"{self._path}: a connection could not be replaced")
        return of_store(self._conn)

    async def run(self, fn: Callable[[sqlite3.Connection], T]) -> T:
        """Run ``fn`` on the thread and return its result. Raises the exceptions of ``fn``, and StoreError."""
        return await self.submit(fn)

    def submit(self, fn: Callable[[sqlite3.Connection], T]) -> "asyncio.Future[T]":
        """Run ``fn`` on the thread; return the future of its result. No task is needed."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._tx.put_nowait((future, partial(self._call, fn)))
        return future

    def _open(self) -> StoreConnection:
        connection = sqlite.connect(self._path)
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _call(self, fn: Callable[[sqlite3.Connection], T]) -> T:
        if self._is_missing:  # the previous call could not replace it
            self._replace()
        connection = self.connection
        try:
            return fn(connection)
        finally:
            if not sqlite.is_idle(connection):
                log.warning("connection_replaced", path=str(self._path))
                with contextlib.suppress(sqlite3.Error, StoreError):  # the next call tries again, and raises
                    self._replace()

    def _replace(self) -> None:
        """Close the connection and open another one. Raises sqlite3.Error or StoreError."""
        former = of_store(self._conn)
        self._is_missing = True
        former.close()
        self._connection = connection = self._open()
        connection.waits_until = former.waits_until
        self._is_missing = False
