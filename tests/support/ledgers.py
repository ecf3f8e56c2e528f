"""Harm done to the purge ledger, and ledgers as former versions wrote them."""

import hashlib
import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from conclave.store.ledger.book import Entry

SUM = b',"sum":"'


def execute(ledger: Path, sql: str) -> int:
    """Change the file as no program of ours does, and return how many rows that has changed."""
    with closing(sqlite3.connect(ledger)) as connection, connection:
        return connection.execute(sql).rowcount


def alter_last(ledger: Path, kind: str) -> None:
    """Have a disk alter the last entry of a kind."""
    assert execute(
        ledger, f"UPDATE entries SET at = at + 1 WHERE id = (SELECT max(id) FROM entries WHERE kind = '{kind}')"
    )


def former(ledger_id: str, entries: Sequence[Entry], complete_after: int = 0) -> bytes:
    """Return a ledger of the former form: lines of JSON, each with a checksum over itself and the line before."""
    data, before = b"", b""
    for each in ({"ledger": ledger_id, "complete_after": complete_after}, *(each._asdict() for each in entries)):
        text = json.dumps(each, separators=(",", ":")).encode()
        before = hashlib.sha256(before + text).hexdigest()[:16].encode()
        data += text[:-1] + SUM + before + b'"}\n'
    return data
