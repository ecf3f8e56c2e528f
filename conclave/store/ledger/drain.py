"""Writes what has changed from the database to the ledger's file, in a process that has no server's writer."""

from contextlib import closing
from functools import partial
from pathlib import Path

from conclave.failpoints import reach
from conclave.store.engine import sqlite
from conclave.store.engine.group_commit import snapshot
from conclave.store.ledger import book, changes


def drain(database: Path, ledger: Path, now: int) -> None:
    """Write everything that waits. ``now``: Unix seconds. Raises LedgerError, and sqlite3.Error.

    It is safe to stop anywhere, and several processes may do it at a time. Nothing is forgotten before it is synced.
    """
    with closing(sqlite.connect(database)) as connection:
        while changes.are_waiting(connection):
            with sqlite.write_transaction(connection):
                standing = changes.claim(connection)
            reach("ledger.claimed")
            entries = snapshot(connection, partial(changes.waiting, connection, standing.claimed, now))
            if not entries:
                break  # another process has written them
            last = book.append(ledger, standing.ledger_id, standing.written, entries)
            changes.require_own(changes.standing(connection), ledger, last)
            with sqlite.write_transaction(connection):
                changes.were_written(connection, entries)
            reach("ledger.forgotten")
