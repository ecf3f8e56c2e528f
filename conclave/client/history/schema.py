"""The history's file: opens it, and makes it if there is none. Nobody else may read it: its mode is 0600."""

import os
import sqlite3
from pathlib import Path

VERSION = 2

BUSY_SECONDS = 10.0
"""Another process that has the same history open is waited for up to 10 seconds."""

_SCHEMA = """
CREATE TABLE about (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    owner TEXT NOT NULL,                        -- the server's address and the user's id
    server INTEGER,                             -- the server's time when it was believed last, with the clocks of then
    wall INTEGER,
    since_boot INTEGER,
    boot_id TEXT
) STRICT;
CREATE TABLE groups (
    group_key INTEGER PRIMARY KEY AUTOINCREMENT,
    group_id BLOB NOT NULL UNIQUE,
    fetched_up_to INTEGER NOT NULL DEFAULT 0,   -- everything up to this number is here, or will never be
    handled_up_to INTEGER NOT NULL DEFAULT 0,   -- what the application has had
    read_up_to INTEGER NOT NULL DEFAULT 0,      -- what the user has seen
    told_up_to INTEGER NOT NULL DEFAULT 0,      -- what the server knows of that
    expiry INTEGER NOT NULL DEFAULT -1          -- effective: -1 keep, 0 delete-after-fetch, or seconds
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
    redact_at INTEGER,                          -- the first second at which its timer has ended; none runs: NULL
    gone_at INTEGER,                            -- the first second at which it is gone by anything; NULL: it stays
    segment INTEGER NOT NULL,                   -- where the text is: see bodies.py
    body_id INTEGER NOT NULL,
    UNIQUE (group_key, sequence_num)
) STRICT;
CREATE INDEX messages_by_end ON messages (gone_at) WHERE gone_at IS NOT NULL;
CREATE INDEX messages_by_place ON messages (segment);
CREATE TABLE segments (
    segment INTEGER PRIMARY KEY AUTOINCREMENT,
    total_bytes INTEGER NOT NULL DEFAULT 0,
    live_bytes INTEGER NOT NULL DEFAULT 0
) STRICT;
"""

_DOUBTS = """
CREATE TABLE doubt (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    answers INTEGER NOT NULL,                   -- how many have told the time that follows, with the clocks of then
    server INTEGER NOT NULL,
    wall INTEGER NOT NULL,
    since_boot INTEGER NOT NULL,
    boot_id TEXT NOT NULL
) STRICT;
-- Pages after this number came in doubt and may have left something out; NULL: none.
ALTER TABLE groups ADD COLUMN again_after INTEGER;
CREATE TABLE had (                              -- the numbers that have come with and since these: see pages.py
    group_key INTEGER NOT NULL REFERENCES groups ON DELETE CASCADE,
    sequence_num INTEGER NOT NULL,
    PRIMARY KEY (group_key, sequence_num)
) STRICT, WITHOUT ROWID;
-- It came after messages with greater numbers, and the application has not had it.
ALTER TABLE messages ADD COLUMN is_late INTEGER NOT NULL DEFAULT 0;
CREATE INDEX messages_late ON messages (group_key, sequence_num) WHERE is_late = 1;
"""
"""Of version 2: a time that the server has told and that is not believed, and what pages left out because of one."""

# With the journal of before-images, which is emptied at each commit, no log is left that has what was erased.
_PRAGMAS = """
PRAGMA secure_delete = ON;
PRAGMA journal_mode = TRUNCATE;
PRAGMA synchronous = FULL;
PRAGMA temp_store = MEMORY;
PRAGMA foreign_keys = ON;
"""


class HistoryError(Exception):
    """The history cannot be used; the text says why, in a line."""


def open_history(path: Path | None) -> sqlite3.Connection:
    """Open the file at ``path``, or a history in memory. The connection is in autocommit mode. Raises HistoryError."""
    try:
        if path:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
            path.chmod(0o600)  # SQLite gives its journal the same mode
        connection = sqlite3.connect(
            str(path) if path else ":memory:", isolation_level=None, timeout=BUSY_SECONDS, check_same_thread=False
        )
    except (OSError, sqlite3.Error) as error:
        raise HistoryError(f"{path}: cannot be opened: {getattr(error, 'strerror', None) or error}") from error
    try:
        connection.executescript(_PRAGMAS)
        _make(connection, path)
    except sqlite3.Error as error:
        connection.close()
        raise HistoryError(f"{path}: is no history of a client: {error}") from error
    except HistoryError:
        connection.close()
        raise
    return connection


def _make(connection: sqlite3.Connection, path: Path | None) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            if connection.execute("SELECT 1 FROM sqlite_schema").fetchone():
                raise HistoryError(f"{path}: is a database, but no history of a client")
            _change(connection, _SCHEMA + _DOUBTS)
        elif version == 1:
            _change(connection, _DOUBTS)
        elif version != VERSION:
            raise HistoryError(
                f"{path}: its version is {version}, this program knows {VERSION}: use the one that made it"
            )
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _change(connection: sqlite3.Connection, statements: str) -> None:
    for statement in statements.split(";\n"):
        if statement.strip():
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {VERSION}")
