"""Carries a plan out in the hot store: short transactions, each safe to stop after, none repeated in vain.

What the plan names is checked once more where it is deleted, since marks may have risen meanwhile: a
message goes only if the store, as it is now, says so too.
"""

import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from conclave.policy import AFTER_FETCH, PolicySettings, expiry_cutoff
from conclave.store import bodies
from conclave.store.database import truncate_wal, write_transaction
from spark.steps import GroupStep, Plan

Step = Callable[[], bool]
"""A short piece of work inside a write transaction; it returns whether it has to be called again."""

LOCK_BUDGET_SECONDS = 0.010
CHUNK = 16
"""Messages deleted between two looks at the clock."""

VACUUM_PAGES = 32
WAL_ATTEMPTS = 100
WAL_PAUSE_SECONDS = 0.05

EXPIRED = "expired"
FETCHED = "fetched"
DELETED_GROUP = "deleted_group"
SESSIONS = "sessions"
INVITES = "invites"
RULES = (EXPIRED, FETCHED, DELETED_GROUP, SESSIONS, INVITES)


class WalBusyError(Exception):
    """The WAL could not be emptied: somebody kept reading it. What was deleted may still be in it."""


def apply_plan(connection: sqlite3.Connection, plan: Plan, settings: PolicySettings) -> Counter[str]:
    """Delete what ``plan`` names; return how many rows went by each of RULES."""
    counts: Counter[str] = Counter()
    run_paced(connection, _steps(connection, plan, settings, counts))
    return counts


def erase_freed(connection: sqlite3.Connection, database: Path) -> int:
    """Leave nothing of what was deleted in any file; return by how many bytes the database file shrank.

    Raises WalBusyError.
    """
    before = database.stat().st_size
    run_paced(connection, bodies.compact(connection))
    run_paced(connection, iter([partial(_free_pages, connection)]))
    for _ in range(WAL_ATTEMPTS):
        if truncate_wal(connection):
            return max(0, before - database.stat().st_size)
        time.sleep(WAL_PAUSE_SECONDS)
    raise WalBusyError("the write-ahead log could not be emptied: a long read kept it open")


def run_paced(connection: sqlite3.Connection, steps: Iterator[Step]) -> None:
    """Run ``steps`` in transactions of about LOCK_BUDGET_SECONDS, resting after each as long as it took.

    Others who want the write lock get it in between.
    """
    step = next(steps, None)
    while step is not None:
        began = time.monotonic()
        with write_transaction(connection):
            locked = time.monotonic()
            while step is not None and (time.monotonic() - locked < LOCK_BUDGET_SECONDS):
                if not step():
                    step = next(steps, None)
        time.sleep(time.monotonic() - began)


def _steps(
    connection: sqlite3.Connection, plan: Plan, settings: PolicySettings, counts: Counter[str]
) -> Iterator[Step]:
    for group in plan.groups:
        yield partial(_raise_marks, connection, group, settings)
        yield partial(_delete_fetched, connection, group, counts)
        yield partial(_delete_expired, connection, group, plan.now, settings, counts)
    for group_key in plan.tombstones:
        yield partial(_delete_group, connection, group_key, counts)
    for session_id in plan.sessions:
        yield partial(_delete_session, connection, session_id, settings.sessions_dead_before(plan.now), counts)
    for invite_key in plan.invites:
        yield partial(_delete_invite, connection, invite_key, settings.invites_dead_before(plan.now), counts)


def _raise_marks(connection: sqlite3.Connection, step: GroupStep, settings: PolicySettings) -> bool:
    """Move the marks before anything is erased: what a mark covers is never served again."""
    row = connection.execute(
        "SELECT message_expiry_seconds FROM groups WHERE group_key = ?", (step.group_key,)
    ).fetchone()
    if row and settings.effective(row["message_expiry_seconds"]) == AFTER_FETCH:
        connection.execute(
            "UPDATE groups SET floor_seq = max(floor_seq, ?), gone_below = max(gone_below, ?) WHERE group_key = ?",
            (step.floor_seq, step.gone_below, step.group_key),
        )
    return False


def _delete_fetched(connection: sqlite3.Connection, step: GroupStep, counts: Counter[str]) -> bool:
    return _delete_messages(
        connection,
        "SELECT message_id FROM messages JOIN groups USING (group_key)"
        " WHERE group_key = ? AND sequence_num <= min(?, gone_below) ORDER BY sequence_num LIMIT ?",
        (step.group_key, step.gone_below),
        counts,
        FETCHED,
    )


def _delete_expired(
    connection: sqlite3.Connection, step: GroupStep, now: int, settings: PolicySettings, counts: Counter[str]
) -> bool:
    row = connection.execute(
        "SELECT message_expiry_seconds, expired_before FROM groups WHERE group_key = ?", (step.group_key,)
    ).fetchone()
    if row is None:
        return False
    in_force = expiry_cutoff(now, settings.effective(row["message_expiry_seconds"]))
    return _delete_messages(
        connection,
        "SELECT message_id FROM messages WHERE group_key = ? AND created_at < ? ORDER BY created_at LIMIT ?",
        (step.group_key, min(step.expired_before, max(in_force, row["expired_before"]))),
        counts,
        EXPIRED,
    )


def _delete_group(connection: sqlite3.Connection, group_key: int, counts: Counter[str]) -> bool:
    more = _delete_messages(
        connection,
        "SELECT message_id FROM messages WHERE group_key = ? LIMIT ?",
        (group_key,),
        counts,
        DELETED_GROUP,
    )
    if not more:
        connection.execute("DELETE FROM tombstones WHERE group_key = ?", (group_key,))
    return more


def _delete_messages(
    connection: sqlite3.Connection, query: str, bounds: tuple[int, ...], counts: Counter[str], rule: str
) -> bool:
    rows = connection.execute(query, (*bounds, CHUNK)).fetchall()
    connection.executemany("DELETE FROM messages WHERE message_id = ?", rows)
    bodies.erase(connection, [row["message_id"] for row in rows])
    counts[rule] += len(rows)
    return len(rows) == CHUNK


def _delete_session(connection: sqlite3.Connection, session_id: int, dead_before: int, counts: Counter[str]) -> bool:
    counts[SESSIONS] += connection.execute(
        "DELETE FROM sessions WHERE session_id = ? AND expires_at < ?", (session_id, dead_before)
    ).rowcount
    return False


def _delete_invite(connection: sqlite3.Connection, invite_key: int, dead_before: int, counts: Counter[str]) -> bool:
    carried = connection.execute(
        "DELETE FROM invites WHERE invite_key = ? AND created_at < ?"
        " RETURNING commit_body, welcome_body, group_info_body",
        (invite_key, dead_before),
    ).fetchall()
    bodies.erase(connection, [body_id for row in carried for body_id in row])
    counts[INVITES] += len(carried)
    return False


def _free_pages(connection: sqlite3.Connection) -> bool:
    """Return some free pages to the file system; the pragma frees one a row, so it is read to its end."""
    free: int = connection.execute("PRAGMA freelist_count").fetchone()[0]
    connection.execute(f"PRAGMA incremental_vacuum({VACUUM_PAGES})").fetchall()
    left: int = connection.execute("PRAGMA freelist_count").fetchone()[0]
    return 0 < left < free
