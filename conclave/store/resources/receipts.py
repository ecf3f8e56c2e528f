"""Receipts: how many messages each cleanup run has erased, by group and rule. They contain no content and no names.

Each receipt has a hash of itself and of the previous receipt's hash. So a change or removal alters all later hashes,
and is detected by a later hash that was kept elsewhere. Erasures are recorded in their own transactions, and become
receipts at the end of the run, or of the next one.

Messages in both tiers are counted once. There is one exception: if a run is killed after it has appended a batch to the
archive and before it has verified it, messages of the batch that are erased before the next verification are counted
twice.
"""

import hashlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, replace

import orjson

from conclave.store.engine.sqlite import values

_COLUMNS = "receipt_id, at, job, group_id, rule, messages, last_seq, newest, hash"

CHUNK = 256
"""A step writes or removes at most 256 receipts."""


@dataclass(frozen=True)
class ErasedMessages:
    """Messages of a group that a rule has erased.

    ``last_seq``: their greatest number. ``newest``: when the newest was stored, Unix seconds.
    """

    rule: str
    messages: int
    last_seq: int
    newest: int


@dataclass(frozen=True)
class Receipt:
    """Messages of a group that a run has erased by a rule. ``at``: Unix seconds. See ErasedMessages for the rest."""

    receipt_id: int
    at: int
    job: str
    group_id: bytes
    rule: str
    messages: int
    last_seq: int
    newest: int
    hash: bytes


def note(connection: sqlite3.Connection, group_key: int, erasure: ErasedMessages) -> None:
    """Record the messages erased in this transaction. The group, or its tombstone, must still exist."""
    connection.execute(
        "INSERT INTO erasures (group_key, rule, messages, last_seq, newest, group_id)"
        " SELECT ?1, ?2, ?3, ?4, ?5, ifnull((SELECT group_id FROM groups WHERE group_key = ?1),"
        " ifnull((SELECT group_id FROM tombstones WHERE group_key = ?1), x''))"
        # Without WHERE, SQLite parses ON as part of a join.
        " WHERE TRUE ON CONFLICT (group_key, rule) DO UPDATE SET messages = messages + excluded.messages,"
        " last_seq = max(last_seq, excluded.last_seq), newest = max(newest, excluded.newest)",
        (group_key, *values(erasure)),
    )


def seal(connection: sqlite3.Connection, at: int, job: str) -> bool:
    """Turn at most CHUNK recorded erasures into receipts; return whether there are more. Destroy the keys first."""
    rows = connection.execute(
        "SELECT group_key, rule, group_id, messages, last_seq, newest FROM erasures LIMIT ?",
        (CHUNK,),
    ).fetchall()
    receipt_id, former = _last(connection)
    for group_key, rule, group_id, messages, last_seq, newest in rows:
        receipt_id += 1
        receipt = Receipt(receipt_id, at, job, group_id, rule, messages, last_seq, newest, b"")
        former = _hash(former, receipt)
        connection.execute(
            f"INSERT INTO receipts ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            values(replace(receipt, hash=former)),
        )
        connection.execute("DELETE FROM erasures WHERE group_key = ? AND rule = ?", (group_key, rule))
    return len(rows) == CHUNK


def prune(connection: sqlite3.Connection, before: int) -> bool:
    """Remove at most CHUNK of the oldest receipts that were made before the Unix second ``before``.

    Returns whether there may be more. The chain continues from the hash of the last one removed.
    """
    oldest = connection.execute(
        "SELECT receipt_id, at, hash FROM receipts ORDER BY receipt_id LIMIT ?", (CHUNK,)
    ).fetchall()
    removed_receipts = []
    for receipt_id, at, digest in oldest:
        if at >= before:
            break
        removed_receipts.append((receipt_id, digest))
    if removed_receipts:
        connection.execute("UPDATE receipts_anchor SET receipt_id = ?, hash = ?", removed_receipts[-1])
        connection.execute("DELETE FROM receipts WHERE receipt_id <= ?", (removed_receipts[-1][0],))
    return len(removed_receipts) == CHUNK


@dataclass(frozen=True)
class Chain:
    """The state of the chain of receipts.

    ``count`` and ``last_id``: of the stored receipts. ``head``: the hash of the last one, which covers all previous
    ones. ``broken_at``: the number of the first receipt that does not match its predecessor, or None.
    """

    count: int
    last_id: int
    head: bytes
    broken_at: int | None


def verify(connection: sqlite3.Connection) -> Chain:
    """Verify the whole chain, and return its state."""
    last_id, former = connection.execute("SELECT receipt_id, hash FROM receipts_anchor").fetchone()
    count, broken_at = 0, None
    for receipt in _all(connection, "ORDER BY receipt_id"):
        follows = receipt.receipt_id == last_id + 1 and receipt.hash == _hash(former, receipt)
        if not follows and broken_at is None:
            broken_at = receipt.receipt_id
        count, last_id, former = count + 1, receipt.receipt_id, receipt.hash
    return Chain(count, last_id, former, broken_at)


def is_known(connection: sqlite3.Connection, receipt_id: int, digest: bytes) -> bool:
    """Return whether the receipt of that number has this hash, or is older than the oldest stored one."""
    row = connection.execute(
        "SELECT hash FROM receipts WHERE receipt_id = ?1"
        " UNION ALL SELECT hash FROM receipts_anchor WHERE receipt_id = ?1",
        (receipt_id,),
    ).fetchone()
    if row:
        return bool(row[0] == digest)
    oldest = connection.execute("SELECT receipt_id FROM receipts_anchor").fetchone()[0]
    return receipt_id < int(oldest)


def of_group(connection: sqlite3.Connection, group_id: bytes, limit: int) -> list[Receipt]:
    """Return the last ``limit`` receipts of a group, newest first."""
    return list(_all(connection, "WHERE group_id = ? ORDER BY receipt_id DESC LIMIT ?", group_id, limit))


def may_include(connection: sqlite3.Connection, group_id: bytes, sequence_num: int, limit: int) -> list[Receipt]:
    """Return the first ``limit`` receipts of a group, oldest first, that may include a message.

    A receipt has only the greatest erased number, so each with this number or a greater one may include the message.
    """
    clause = "WHERE group_id = ? AND last_seq >= ? ORDER BY receipt_id LIMIT ?"
    return list(_all(connection, clause, group_id, sequence_num, limit))


def last(connection: sqlite3.Connection, limit: int) -> list[Receipt]:
    """Return the last ``limit`` receipts of all groups, newest first."""
    return list(_all(connection, "ORDER BY receipt_id DESC LIMIT ?", limit))


def _all(connection: sqlite3.Connection, clause: str, *parameters: bytes | int) -> Iterator[Receipt]:
    for row in connection.execute(f"SELECT {_COLUMNS} FROM receipts {clause}", parameters):
        yield Receipt(*row)


def _last(connection: sqlite3.Connection) -> tuple[int, bytes]:
    row = connection.execute("SELECT receipt_id, hash FROM receipts ORDER BY receipt_id DESC LIMIT 1").fetchone()
    row = row or connection.execute("SELECT receipt_id, hash FROM receipts_anchor").fetchone()
    return row[0], row[1]


def _hash(former: bytes, receipt: Receipt) -> bytes:
    """Return the SHA-256 of the previous hash and of the receipt's values as a JSON list."""
    *hashed_values, _ = values(receipt)
    content = [each.hex() if isinstance(each, bytes) else each for each in hashed_values]
    return hashlib.sha256(former + orjson.dumps(content)).digest()
