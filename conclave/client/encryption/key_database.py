"""The file with an account's keys. Changes are written to the disk before messages that depend on them are sent.

Keys, states and texts are stored in segments, as in the history: replaced data is overwritten in place. The process
locks the file, since a second one would use message keys twice.
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
"""How long to wait for a lock: a program that has just ended may still hold it."""

_SCHEMA = """
CREATE TABLE about (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    user_id BLOB NOT NULL,
    segment INTEGER NOT NULL,                   -- the private signature key
    body_id INTEGER NOT NULL,
    uploaded_at INTEGER NOT NULL DEFAULT 0,     -- last upload of key packages; 0: never with this key
    former TEXT NOT NULL DEFAULT ''             -- fingerprints of former keys, newest first
) STRICT;
CREATE TABLE groups (
    group_key INTEGER PRIMARY KEY AUTOINCREMENT,
    group_id BLOB NOT NULL UNIQUE,
    stage TEXT NOT NULL,                        -- see groups.py
    segment INTEGER NOT NULL DEFAULT 0,         -- location of the MLS state; 0: no state
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
CREATE TABLE comers (                           -- users who joined, with the message of the last join
    group_key INTEGER NOT NULL REFERENCES groups ON DELETE CASCADE,
    user_id BLOB NOT NULL,
    sequence_num INTEGER NOT NULL,              -- 0: a member before this device
    was_removed INTEGER NOT NULL DEFAULT 0,     -- removed since
    is_claimed INTEGER NOT NULL DEFAULT 0,      -- by a message that was not accepted
    PRIMARY KEY (group_key, user_id)
) STRICT, WITHOUT ROWID;
CREATE TABLE commits (                          -- commits that were applied, or arrived without a state
    group_key INTEGER NOT NULL REFERENCES groups ON DELETE CASCADE,
    sequence_num INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    tag BLOB NOT NULL,
    PRIMARY KEY (group_key, sequence_num)
) STRICT, WITHOUT ROWID;
CREATE TABLE requests (                         -- own external commits
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
CREATE TABLE own_texts (                        -- sent texts, until they come back: senders cannot decrypt their own
    text_key INTEGER PRIMARY KEY AUTOINCREMENT,
    group_key INTEGER NOT NULL REFERENCES groups ON DELETE CASCADE,
    payload_hash BLOB NOT NULL,
    epoch INTEGER NOT NULL,
    made_at INTEGER NOT NULL,
    original INTEGER NOT NULL DEFAULT 0,        -- of a resent text: the number of its first message
    again INTEGER,                              -- to be resent, with this timer: not all could decrypt it
    kept INTEGER,                               -- kept with this timer: others may lack its keys
    is_unwanted INTEGER NOT NULL DEFAULT 0,     -- the original was taken back: take this back too
    send_id BLOB NOT NULL DEFAULT x'',          -- the same for all attempts to send a text
    segment INTEGER NOT NULL,
    body_id INTEGER NOT NULL
) STRICT;
CREATE INDEX own_texts_by_hash ON own_texts (group_key, payload_hash);
CREATE TABLE read_texts (                       -- decrypted texts, until the history has them: keys are used once
    group_key INTEGER NOT NULL REFERENCES groups ON DELETE CASCADE,
    sequence_num INTEGER NOT NULL,
    is_readable INTEGER NOT NULL,
    segment INTEGER NOT NULL,
    body_id INTEGER NOT NULL,
    PRIMARY KEY (group_key, sequence_num)
) STRICT, WITHOUT ROWID;
CREATE TABLE heard (                            -- texts of others that were read, to drop resent copies
    group_key INTEGER NOT NULL REFERENCES groups ON DELETE CASCADE,
    sequence_num INTEGER NOT NULL,
    sender_id BLOB NOT NULL,
    PRIMARY KEY (group_key, sequence_num, sender_id)
) STRICT, WITHOUT ROWID;
CREATE TABLE repeats (                          -- resent copies that have arrived
    group_key INTEGER NOT NULL REFERENCES groups ON DELETE CASCADE,
    sequence_num INTEGER NOT NULL,
    original INTEGER NOT NULL,                  -- the number of the first message with the text
    is_own INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (group_key, sequence_num)
) STRICT, WITHOUT ROWID;
CREATE TABLE unwanted (                         -- own resent copies to take back
    group_key INTEGER NOT NULL REFERENCES groups ON DELETE CASCADE,
    sequence_num INTEGER NOT NULL,
    PRIMARY KEY (group_key, sequence_num)
) STRICT, WITHOUT ROWID;
CREATE TABLE unsent (                           -- unsent input, encrypted
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
"""The tables whose rows refer to segments, with their keys."""


class KeyStoreError(Exception):
    """The file with the keys cannot be used; the text says why, in one line."""


def _unusable(path: Path | None, error: Exception) -> KeyStoreError:
    if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_BUSY:
        return KeyStoreError(f"{path}: another program uses these keys")
    if isinstance(error, OSError):
        return KeyStoreError(f"{path}: cannot be opened: {error.strerror}")
    if isinstance(error, DiskError):
        return KeyStoreError(f"{path}: cannot be used: {error}")
    return KeyStoreError(f"{path}: is not a key file of a client: {error}")


class BodyLocation(NamedTuple):
    """The location of data in a segment."""

    segment: int
    body_id: int


NOWHERE = BodyLocation(*bodies.NOWHERE)


class KeyDatabase:
    """The key file. All changes are made within ``transaction``, which writes them to the disk."""

    def __init__(self, path: Path | None, user_id: UUID) -> None:
        """Open or create the key file of ``user_id``. ``path``: None: in memory. Raises KeyStoreError."""
        try:
            self.connection = open_private(path, BUSY_SECONDS)
        except (OSError, sqlite3.Error) as error:
            raise _unusable(path, error) from error
        try:
            self._prepare(path, user_id)
            enable_auto_vacuum(self.connection)
        except sqlite3.Error as error:
            self.connection.close()
            raise _unusable(path, error) from error
        except KeyStoreError:
            self.connection.close()
            raise

    def _prepare(self, path: Path | None, user_id: UUID) -> None:
        self.connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        with self.transaction():
            version = self.connection.execute("PRAGMA user_version").fetchone()[0]
            if version == 0 and self.connection.execute("SELECT 1 FROM sqlite_schema").fetchone():
                raise KeyStoreError(f"{path}: is a database, but not a key file of a client")
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
        """Run the block in a transaction."""
        with transaction(self.connection):
            yield self.connection
            self._compact()

    def put(self, data: bytes) -> BodyLocation:
        """Store data; return its location."""
        return BodyLocation(*bodies.put(self.connection, data))

    def get(self, location: tuple[int, int]) -> bytes:
        """Return the data at a location."""
        return bodies.get(self.connection, *location)

    def erase(self, *locations: tuple[int, int]) -> None:
        """Overwrite the data at locations."""
        bodies.erase(self.connection, locations)

    def erase_rows(self, table: str, condition: str, *values: object) -> None:
        """Delete rows, with their data in segments."""
        rows = self.connection.execute(
            f"DELETE FROM {table} WHERE {condition} RETURNING segment, body_id", values
        ).fetchall()
        self.erase(*rows)

    def _compact(self) -> None:
        """Copy the remaining data of a sparse segment to the newest one, and drop it."""
        if (segment := bodies.sparse(self.connection)) is None:
            return
        for table, key in _BODY_TABLES.items():
            columns = key.split(", ")
            rows = self.connection.execute(
                f"SELECT body_id, {key} FROM {table} WHERE segment = ? AND body_id > 0", (segment,)
            ).fetchall()
            matches = " AND ".join(f"{column} = ?" for column in columns)
            for body_id, *values in rows:
                location = self.put(self.get((segment, body_id)))
                self.connection.execute(
                    f"UPDATE {table} SET segment = ?, body_id = ? WHERE {matches}", (*location, *values)
                )
        bodies.drop(self.connection, segment)
