"""Harm done to the purge ledger."""

import sqlite3
from contextlib import closing
from pathlib import Path


def execute(ledger: Path, sql: str) -> int:
    """Change the file as no program of ours does, and return how many rows that has changed."""
    with closing(sqlite3.connect(ledger)) as connection, connection:
        return connection.execute(sql).rowcount


def alter_last(ledger: Path, kind: str) -> None:
    """Have a disk alter the last entry of a kind."""
    assert execute(
        ledger, f"UPDATE entries SET at = at + 1 WHERE id = (SELECT max(id) FROM entries WHERE kind = '{kind}')"
    )
