"""Keys for connections of the tests' own, which no server has opened."""

import secrets
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from conclave.config.settings import KEYS
from conclave.keys import file, records
from conclave.keys.store import KeyStore
from conclave.store import bodies, message_keys
from conclave.store.engine.connection import of_store

open_keys: Callable[[sqlite3.Connection], KeyStore] = bodies.open_keys


class OpenKeys:
    """Opens the key files of databases where a connection has none, and makes those of new databases."""

    def __init__(self) -> None:
        self._opened: dict[Path, KeyStore] = {}

    def of(self, connection: sqlite3.Connection) -> KeyStore:
        if of_store(connection).keys is not None:
            return open_keys(connection)
        database = Path(connection.execute("PRAGMA database_list").fetchone()[2])
        path = database.with_suffix(".vault") / KEYS
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            file.create(path, secrets.token_bytes(records.ID_BYTES))
        if path not in self._opened:
            self._opened[path] = KeyStore(path)
        if message_keys.state(connection) is None:
            message_keys.adopt(connection, self._opened[path].keys_id)
        return self._opened[path]

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Close at the end what is opened in the block."""
        before = set(self._opened)
        try:
            yield
        finally:
            for path in self._opened.keys() - before:
                self._opened.pop(path).close()
