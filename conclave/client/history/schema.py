"""Opens the history's file, or creates it with mode 0600."""

import sqlite3
from pathlib import Path

from conclave.client.private_file import enable_auto_vacuum, open_private, transaction

VERSION = 1

_SCHEMA = """
CREATE TABLE about (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    owner TEXT NOT NULL,                        -- the server's address and the user's id
    server INTEGER,                             -- the server's last accepted time, with the local clocks at that moment
    wall INTEGER,
    since_boot INTEGER,
    boot_id TEXT
) STRICT;
CREATE TABLE groups (
    group_key INTEGER PRIMARY KEY AUTOINCREMENT,
    group_id BLOB NOT NULL UNIQUE,
    fetched_up_to INTEGER NOT NULL DEFAULT 0,   -- everything up to this number was fetched
    handled_up_to INTEGER NOT NULL DEFAULT 0,   -- the application has handled messages up to this
    read_up_to INTEGER NOT NULL DEFAULT 0,      -- the user has read messages up to this
    told_up_to INTEGER NOT NULL DEFAULT 0,      -- the last read receipt that the server has
    expiry INTEGER NOT NULL DEFAULT -1,         -- effective: -1 keep, 0 delete-after-fetch, or seconds
    again_after INTEGER,                        -- pages after this number may lack messages: see pages.py
    muted_until INTEGER NOT NULL DEFAULT 0,     -- the first second at which it notifies again
    opened INTEGER NOT NULL DEFAULT 0           -- rises with each opening; the greatest was opened last
) STRICT;
CREATE TABLE messages (
    message_key INTEGER PRIMARY KEY,
    group_key INTEGER NOT NULL REFERENCES groups,
    sequence_num INTEGER NOT NULL,
    sender_id BLOB NOT NULL,
    is_readable INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    arrived_at INTEGER NOT NULL,
    self_destruct_seconds INTEGER NOT NULL,
    redact_at INTEGER,                          -- the second at which its timer ends; NULL: not running
    gone_at INTEGER,                            -- the second at which it expires by any rule; NULL: never
    segment INTEGER NOT NULL,                   -- location of the text: see bodies.py
    body_id INTEGER NOT NULL,
    is_late INTEGER NOT NULL DEFAULT 0,         -- arrived after greater numbers, and is not handled
    is_seen INTEGER NOT NULL DEFAULT 0,         -- was shown, or marked; always up to read_up_to
    lifetime INTEGER,                           -- under the policy before delete-after-fetch; NULL: none
    UNIQUE (group_key, sequence_num)
) STRICT;
CREATE INDEX messages_by_end ON messages (gone_at) WHERE gone_at IS NOT NULL;
CREATE INDEX messages_by_place ON messages (segment);
CREATE INDEX messages_late ON messages (group_key, sequence_num) WHERE is_late = 1;
CREATE TABLE segments (
    segment INTEGER PRIMARY KEY AUTOINCREMENT,
    total_bytes INTEGER NOT NULL DEFAULT 0,
    live_bytes INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE doubt (                            -- a time from the server that is not confirmed
    id INTEGER PRIMARY KEY CHECK (id = 1),
    answers INTEGER NOT NULL,                   -- answers with this time, and the local clocks
    server INTEGER NOT NULL,
    wall INTEGER NOT NULL,
    since_boot INTEGER NOT NULL,
    boot_id TEXT NOT NULL
) STRICT;
CREATE TABLE had (                              -- numbers received since `again_after`: see pages.py
    group_key INTEGER NOT NULL REFERENCES groups ON DELETE CASCADE,
    sequence_num INTEGER NOT NULL,
    PRIMARY KEY (group_key, sequence_num)
) STRICT, WITHOUT ROWID;
"""


class HistoryError(Exception):
    """The history cannot be used; the text says why, in one line."""


def open_history(path: Path | None) -> sqlite3.Connection:
    """Open the file at ``path``, or in memory if None. The connection is in autocommit mode. Raises HistoryError."""
    try:
        connection = open_private(path)
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError):
            raise HistoryError(f"{path}: cannot be opened: {error}") from error
        raise HistoryError(f"{path}: is not a history of a client: {error}") from error
    except OSError as error:
        raise HistoryError(f"{path}: cannot be opened: {error.strerror}") from error
    try:
        _prepare(connection, path)
        enable_auto_vacuum(connection)
    except sqlite3.Error as error:
        connection.close()
        raise HistoryError(f"{path}: is not a history of a client: {error}") from error
    except HistoryError:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path | None) -> None:
    with transaction(connection):
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == 0 and connection.execute("SELECT 1 FROM sqlite_schema").fetchone():
            raise HistoryError(f"{path}: is a database, but not a history of a client")
        if version not in (0, VERSION):
            raise HistoryError(
                f"{path}: its version is {version}, this program knows {VERSION}: use the one that made it"
            )
        if version == 0:
            for statement in _SCHEMA.split(";\n"):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {VERSION}")
