"""Databases as new servers have them, copied from one that was made once: that takes a tenth of the time."""

import contextlib
import functools
import os
import sqlite3
import tempfile
from pathlib import Path

from conclave.store import bodies
from conclave.store.engine import schema, sqlite
from conclave.store.message_keys import OTHERS
from conclave.store.resources.messages import COLUMNS

ID_BYTES = 16

MESSAGE = f"({COLUMNS})"
"""Of a message, in SQL; its id follows from them."""


def prepare(path: Path) -> None:
    """Do what ``schema.prepare`` does, and make the folder of its vault. Each database has a ledger's id of its own."""
    if not path.exists():
        before, after = template()
        path.touch(mode=0o600)
        path.write_bytes(before + os.urandom(ID_BYTES) + after)
    schema.prepare(path)
    path.with_suffix(".vault").mkdir(mode=0o700, exist_ok=True)


@functools.cache
def template() -> tuple[bytes, bytes]:
    """Return a new database without its ledger's id: what is before it, and what comes after it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "template.db")
        schema.prepare(path)
        connection = sqlite.connect(path)
        (ledger,) = connection.execute("SELECT ledger_id FROM ledger_state").fetchone()
        connection.close()  # the last connection moves the write-ahead log into the file
        before, found, after = path.read_bytes().partition(ledger)
        assert len(found) == ID_BYTES
        assert ledger not in after
    return before, after


def make_due(path: Path) -> None:
    """Give the next run something to delete, an expired session: without that, it starts no Java."""
    user_id, token = os.urandom(ID_BYTES), os.urandom(32)
    with contextlib.closing(sqlite.connect(path)) as connection, sqlite.write_transaction(connection):
        connection.execute(
            "INSERT INTO users (user_id, username, password_hash, alias, created_at) VALUES (?, ?, '', '', 1)",
            (user_id, f"due-{user_id.hex()}"),
        )
        connection.execute(
            "INSERT INTO sessions (token_hash, user_id, created_at, last_used_at, expires_at) VALUES (?, ?, 1, 1, 2)",
            (token, user_id),
        )


def add_message(
    connection: sqlite3.Connection,
    group_key: int,
    number: int,
    sender_id: bytes,
    created_at: int,
    *,
    is_commit: bool = False,
    body: bytes = b"body",
) -> int:
    """Store a message as of any time, past its group's counter; return its id."""
    row = connection.execute("SELECT group_id FROM groups WHERE group_key = ?", (group_key,)).fetchone()
    (stored,) = bodies.encrypt(connection, [(row[0] if row else OTHERS, number)], [body])
    message_id = bodies.message_id(group_key, number)
    bodies.put_messages(connection, [(message_id, stored)])
    connection.execute(
        f"INSERT INTO messages {MESSAGE} VALUES (?, ?, ?, ?, ?, ?)",
        (group_key, number, sender_id, is_commit, created_at, len(body)),
    )
    return message_id
