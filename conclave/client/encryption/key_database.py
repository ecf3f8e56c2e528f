"""The file with an account's keys: opens it, and writes what must be there before anything that depends on it is sent.

Keys, states and texts lie in segments, as those of the history do: what is replaced is overwritten where it lies. One
process uses the file; another one would go on with keys that are used up.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from conclave.client.errors import DiskError
from conclave.client.history import bodies
from conclave.client.private_file import enable_auto_vacuum, open_private, transaction

VERSION = 1

BUSY_SECONDS = 1.0
"""A program that has just ended may still hold the file for a moment."""

_SCHEMA = """
CREATE TABLE about (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    user_id BLOB NOT NULL,
    segment INTEGER NOT NULL,                   -- the private signature key
    body_id INTEGER NOT NULL,
    uploaded_at INTEGER NOT NULL DEFAULT 0,     -- when key packages were uploaded last; 0: never with this key
    former TEXT NOT NULL DEFAULT ''             -- fingerprints of the keys before, the newest first
) STRICT;
CREATE TABLE groups (
    group_key INTEGER PRIMARY KEY AUTOINCREMENT,
    group_id BLOB NOT NULL UNIQUE,
    stage TEXT NOT NULL,                        -- see groups.py
    segment INTEGER NOT NULL DEFAULT 0,         -- the state; nowhere: there is none
    body_id INTEGER NOT NULL DEFAULT 0,
    awaited_epoch INTEGER NOT NULL DEFAULT 0,
    awaited_tag BLOB NOT NULL DEFAULT x'',
    first_epoch INTEGER NOT NULL DEFAULT 0,
    entered_epoch INTEGER NOT NULL DEFAULT 0,
    up_to INTEGER NOT NULL DEFAULT 0,
    missed INTEGER NOT NULL DEFAULT 0,
    had_keys INTEGER NOT NULL DEFAULT 0,
    renewed_at INTEGER NOT NULL DEFAULT 0,
    welcome BLOB NOT NULL DEFAULT x'',
    base_tag BLOB NOT NULL DEFAULT x'',
    entered_at INTEGER NOT NULL DEFAULT 0,
    in_since INTEGER NOT NULL DEFAULT 0,
    confirmed_by BLOB NOT NULL DEFAULT x'',
    is_doubtful INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE comers (                           -- who came in, and by which message last
    group_key INTEGER NOT NULL REFERENCES groups ON DELETE CASCADE,
    user_id BLOB NOT NULL,
    sequence_num INTEGER NOT NULL,              -- 0: was there before this device
    was_removed INTEGER NOT NULL DEFAULT 0,     -- since then
    is_claimed INTEGER NOT NULL DEFAULT 0,      -- by one that was not taken, so it may be that nobody has come in
    PRIMARY KEY (group_key, user_id)
) STRICT, WITHOUT ROWID;
CREATE TABLE commits (                          -- those that the state went through, or that came without one
    group_key INTEGER NOT NULL REFERENCES groups ON DELETE CASCADE,
    sequence_num INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    tag BLOB NOT NULL,
    PRIMARY KEY (group_key, sequence_num)
) STRICT, WITHOUT ROWID;
CREATE TABLE requests (                         -- own commits by which the user asked in
    request_key INTEGER PRIMARY KEY AUTOINCREMENT,
    group_key INTEGER NOT NULL REFERENCES groups ON DELETE CASCADE,
    tag BLOB NOT NULL
) STRICT;
CREATE TABLE key_packages (
    package_key INTEGER PRIMARY KEY AUTOINCREMENT,
    is_last_resort INTEGER NOT NULL,
    made_at INTEGER NOT NULL,
    segment INTEGER NOT NULL,
    body_id INTEGER NOT NULL
) STRICT;
CREATE TABLE own_texts (                        -- what was sent, until it comes back: nobody decrypts what is their own
    text_key INTEGER PRIMARY KEY AUTOINCREMENT,
    group_key INTEGER NOT NULL REFERENCES groups ON DELETE CASCADE,
    payload_hash BLOB NOT NULL,
    epoch INTEGER NOT NULL,
    made_at INTEGER NOT NULL,
    original INTEGER NOT NULL DEFAULT 0,        -- it is sent again: the number under which it came first
    again INTEGER,                              -- not everybody could read it, and it is to be sent again: its timer
    kept INTEGER,                               -- it came back in time, but others may have no keys of it: its timer
    is_unwanted INTEGER NOT NULL DEFAULT 0,     -- the first was taken back: so is this once it comes
    send_id BLOB NOT NULL DEFAULT x'',          -- the same for each try to send a text, of which one is stored
    segment INTEGER NOT NULL,
    body_id INTEGER NOT NULL
) STRICT;
CREATE INDEX own_texts_by_hash ON own_texts (group_key, payload_hash);
CREATE TABLE read_texts (                       -- what was decrypted, until the history has it: the key is used up
    group_key INTEGER NOT NULL REFERENCES groups ON DELETE CASCADE,
    sequence_num INTEGER NOT NULL,
    is_readable INTEGER NOT NULL,
    segment INTEGER NOT NULL,
    body_id INTEGER NOT NULL,
    PRIMARY KEY (group_key, sequence_num)
) STRICT, WITHOUT ROWID;
CREATE TABLE heard (                            -- texts of others that were read: sent again, they say their number
    group_key INTEGER NOT NULL REFERENCES groups ON DELETE CASCADE,
    sequence_num INTEGER NOT NULL,
    sender_id BLOB NOT NULL,
    PRIMARY KEY (group_key, sequence_num, sender_id)
) STRICT, WITHOUT ROWID;
CREATE TABLE repeats (                          -- messages that were sent anew, and are here already
    group_key INTEGER NOT NULL REFERENCES groups ON DELETE CASCADE,
    sequence_num INTEGER NOT NULL,
    original INTEGER NOT NULL,                  -- the number under which the text came first
    is_own INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (group_key, sequence_num)
) STRICT, WITHOUT ROWID;
CREATE TABLE unwanted (                         -- own messages that were sent anew, whose first was taken back
    group_key INTEGER NOT NULL REFERENCES groups ON DELETE CASCADE,
    sequence_num INTEGER NOT NULL,
    PRIMARY KEY (group_key, sequence_num)
) STRICT, WITHOUT ROWID;
CREATE TABLE unsent (                           -- what was typed and is not sent, encrypted
    id INTEGER PRIMARY KEY CHECK (id = 1),
    segment INTEGER NOT NULL,
    body_id INTEGER NOT NULL
) STRICT;
CREATE TABLE people (
    user_id BLOB PRIMARY KEY,
    fingerprint TEXT NOT NULL,
    trust TEXT NOT NULL,
    former TEXT NOT NULL DEFAULT '',
    was_verified INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
CREATE TABLE segments (
    segment INTEGER PRIMARY KEY AUTOINCREMENT,
    total_bytes INTEGER NOT NULL DEFAULT 0,
    live_bytes INTEGER NOT NULL DEFAULT 0
) STRICT
"""

_BODY_TABLES = {
    "about": "id",
    "groups": "group_key",
    "key_packages": "package_key",
    "own_texts": "text_key",
    "read_texts": "group_key, sequence_num",
    "unsent": "id",
}
"""The tables whose rows have something in a segment, with their keys."""


class KeyStoreError(Exception):
    """The file with the keys cannot be used; the text says why, in a line."""


def _unusable(path: Path | None, error: Exception) -> KeyStoreError:
    if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_BUSY:
        return KeyStoreError(f"{path}: another program uses these keys")
    if isinstance(error, OSError):
        return KeyStoreError(f"{path}: cannot be opened: {error.strerror}")
    if isinstance(error, DiskError):
        return KeyStoreError(f"{path}: cannot be used: {error}")
    return KeyStoreError(f"{path}: has no keys of a client: {error}")


class BodyLocation(NamedTuple):
    """Where something lies."""

    segment: int
    body_id: int


NOWHERE = BodyLocation(*bodies.NOWHERE)


class KeyDatabase:
    """The file. Everything is changed within ``transaction``, which is on the disk when it ends."""

    def __init__(self, path: Path | None, user_id: UUID) -> None:
        """Open the file of ``user_id``'s keys, or make it; None: in memory only. Raises KeyStoreError."""
        try:
            self.connection = open_private(path, BUSY_SECONDS)
        except (OSError, sqlite3.Error) as error:
            raise _unusable(path, error) from error
        try:
            self._make(path, user_id)
            enable_auto_vacuum(self.connection)
        except sqlite3.Error as error:
            self.connection.close()
            raise _unusable(path, error) from error
        except KeyStoreError:
            self.connection.close()
            raise

    def _make(self, path: Path | None, user_id: UUID) -> None:
        self.connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        with self.transaction():
            version = self.connection.execute("PRAGMA user_version").fetchone()[0]
            if version == 0 and self.connection.execute("SELECT 1 FROM sqlite_schema").fetchone():
                raise KeyStoreError(f"{path}: is a database, but has no keys of a client")
            if version not in (0, VERSION):
                raise KeyStoreError(
                    f"{path}: its version is {version}, this program knows {VERSION}: use the one that made it"
                )
            if version == 0:
                for statement in _SCHEMA.split(";\n"):
                    self.connection.execute(statement)
                self.connection.execute(f"PRAGMA user_version = {VERSION}")
            row = self.connection.execute("SELECT user_id FROM about").fetchone()
            if row and row[0] != user_id.bytes:
                raise KeyStoreError(f"{path}: has the keys of another account")

    def close(self) -> None:
        """Close the file."""
        self.connection.close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Change the file, all or nothing."""
        with transaction(self.connection):
            yield self.connection
            self._compact()

    def put(self, data: bytes) -> BodyLocation:
        """Store something."""
        return BodyLocation(*bodies.put(self.connection, data))

    def get(self, place: tuple[int, int]) -> bytes:
        """Return what lies somewhere."""
        return bodies.get(self.connection, *place)

    def erase(self, *places: tuple[int, int]) -> None:
        """Overwrite what lies there."""
        bodies.erase(self.connection, places)

    def erase_rows(self, table: str, condition: str, *values: object) -> None:
        """Remove rows, and what they have in segments."""
        rows = self.connection.execute(
            f"DELETE FROM {table} WHERE {condition} RETURNING segment, body_id", values
        ).fetchall()
        self.erase(*rows)

    def _compact(self) -> None:
        """Give up a segment of which little is left: what is there is copied to the newest one."""
        if (segment := bodies.sparse(self.connection)) is None:
            return
        for table, key in _BODY_TABLES.items():
            columns = key.split(", ")
            rows = self.connection.execute(
                f"SELECT body_id, {key} FROM {table} WHERE segment = ? AND body_id > 0", (segment,)
            ).fetchall()
            matches = " AND ".join(f"{column} = ?" for column in columns)
            for body_id, *values in rows:
                place = self.put(self.get((segment, body_id)))
                self.connection.execute(
                    f"UPDATE {table} SET segment = ?, body_id = ? WHERE {matches}", (*place, *values)
                )
        bodies.drop(self.connection, segment)
