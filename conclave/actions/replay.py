"""Replays the ledger on a restored copy of the database, so that the restore undoes no deletion.

Each change has a number, and a copy stores the number of its last change, so later entries have greater numbers.
Entries record states, so only the last entry of each subject is applied. Deleted groups and accounts get their
tombstones, and the first run erases their messages. Data that was created after the copy was made is not restored.
"""

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conclave.actions import accounts, groups, members
from conclave.failpoints import reach
from conclave.keys import tree
from conclave.retention import marks
from conclave.retention.policy import FOREVER
from conclave.store import bodies
from conclave.store.engine.sqlite import write_transaction
from conclave.store.ledger import book, changes
from conclave.store.ledger.book import ALIVE, READ, RESTORE, SETTINGS, LedgerContents, LedgerEntry, LedgerError
from conclave.store.ledger.changes import LedgerState
from conclave.store.resources import (
    audit,
    groups as stored_groups,
    invites,
    key_packages,
    members as memberships,
    state,
    taken_back,
)
from conclave.store.resources.taken_back import TakenBack

NUMBERS = 2**32
"""After each restore, the message numbers of all groups continue at the next multiple of 2^32.

Clients fetch messages after the last number that they have seen, so no number may be reused, and the numbers that were
assigned after the copy was made are unknown.
"""

MAX_RESTORES = bodies.LAST_NUMBER // NUMBERS
"""A number has 40 bits, so a database can be restored at most 255 times in a row."""

RESTORED_HOLD_REASON = "in force when a backup was restored; who added it and why is in the audit log of that time"


@dataclass
class ReplayResult:
    """The changes to a restored copy.

    ``counts``: how many objects of each kind were changed. ``locked``: the names of accounts whose password was changed
    after the copy was made; they cannot log in until an operator sets a new password. ``until``: the Unix second up to
    which the ledger has changes; 0 without a ledger. ``flaw``: why the ledger is incomplete since the copy; "": it is
    complete.
    """

    counts: Counter[str] = field(default_factory=Counter)
    locked: list[str] = field(default_factory=list)
    until: int = 0
    flaw: str = ""


class IncompleteError(LedgerError):
    """The ledger is incomplete, so a restored copy may undo deletions. An operator may proceed nevertheless."""


def replay(
    connection: sqlite3.Connection,
    path: Path,
    now: int,
    blocks: Iterable[tuple[bytes, int]] = (),
    *,
    accept_incomplete: bool = False,
) -> ReplayResult:
    """Apply all changes of the ledger since a restored copy was made. Idempotent.

    No server or run may use the copy at the same time. Uses the caller's transaction, or a new one. ``path``: the
    ledger. ``now``: Unix seconds. ``blocks``: the blocks of the key file, which show former restores even without a
    ledger. ``accept_incomplete``: proceed if the ledger is missing, damaged, or does not reach back to the copy; the
    restore then undoes the missing deletions. Raises LedgerError, and IncompleteError unless ``accept_incomplete``.
    """
    transaction: AbstractContextManager[None] = (
        nullcontext() if connection.in_transaction else write_transaction(connection)
    )
    with transaction:
        ledger_state = changes.ledger_state(connection)
        ledger, end, flaw = _inspect(path, ledger_state)
        if flaw and not accept_incomplete:
            raise IncompleteError(f"{path}: {flaw}")
        last_change = ledger.last_change if ledger else ledger_state.counter
        number = max(ledger_state.restored, ledger.restored if ledger else 0, _restores_in(blocks)) + 1
        if number > MAX_RESTORES:
            raise LedgerError(f"{path}: a database can be restored at most {MAX_RESTORES} times")
        # Change numbers must not collide with those of another history.
        changes.renumber(connection, max(last_change, number * NUMBERS))
        # Copies made before this restore need the missing entries.
        incomplete = {"complete_after": max(last_change, ledger_state.counter)} if flaw else {}
        entries = (each for each in book.entries(path, ledger_state.counter) if end is None or each.change <= end)
        result = _apply(connection, entries, now)
        result.until, result.flaw = ledger.until if ledger else 0, flaw
        if settings := state.stored_policy(connection):
            marks.write(connection, settings)  # the settings of admins were restored with the marks
        _drop_credentials(connection, result)
        _skip_numbers(connection, number)
        connection.execute("UPDATE ledger_state SET restored = ?, written = ?", (number, last_change))
        reach("ledger.replayed")
        details = {"number": number, "from": ledger_state.counter} | incomplete
        restore = LedgerEntry(last_change, now, RESTORE, number, details)
        book.append(path, ledger_state.ledger_id, last_change, [restore])
    return result


def _restores_in(blocks: Iterable[tuple[bytes, int]]) -> int:
    """Return the number of the last restore after which a body was stored that still has a key."""
    return max(((block << tree.HEIGHT) // NUMBERS for _, block in blocks), default=0)


def require_complete(connection: sqlite3.Connection, path: Path) -> None:
    """Raise LedgerError if ``replay`` would for this copy. Changes nothing."""
    _, _, flaw = _inspect(path, changes.ledger_state(connection))
    if flaw:
        raise IncompleteError(f"{path}: {flaw}")


def _inspect(path: Path, ledger_state: LedgerState) -> tuple[LedgerContents | None, int | None, str]:
    """Return the ledger, its last own change (see ``changes.abandoned_at``), and its flaw or "". Raises LedgerError."""
    ledger = _find_ledger(path, ledger_state)
    end = changes.abandoned_at(path, ledger_state, ledger.last_change) if ledger else None
    return ledger, end, _flaw(ledger, ledger_state, end)


def _find_ledger(path: Path, ledger_state: LedgerState) -> LedgerContents | None:
    """Return the ledger, or None. Raises LedgerError if it belongs to another database."""
    ledger = book.inspect(path)
    if ledger and ledger.ledger_id != ledger_state.ledger_id:
        raise LedgerError(
            f"{path}: is the ledger of another database; if the backup was made before this database had a ledger,"
            " move it away"
        )
    return ledger


def _flaw(ledger: LedgerContents | None, ledger_state: LedgerState, end: int | None) -> str:
    """Return in one line why the ledger is incomplete since the copy, or "". ``end``: see ``changes.abandoned_at``."""
    if ledger is None:
        return "there is no ledger, so deletions since the backup would be undone"
    if ledger.damage:
        return f"the ledger {ledger.damage}, so deletions since the backup may be undone"
    if ledger.last_change < ledger_state.written:
        return (
            "the ledger is older than this backup: it is truncated, or was replaced by an older one, so deletions since"
            " the backup may be undone"
        )
    if ledger_state.counter < ledger.complete_after:
        return "the ledger does not reach back to this backup, so deletions since the backup may be undone"
    if end is not None:
        return (
            "an older backup was restored and used since: its deletions may not apply to this backup, and the ledger"
            " does not distinguish them"
        )
    if unknown := sorted(ledger.kinds - _KINDS):
        return f"the ledger has entries of the unknown kind {unknown[0]!r}: use a newer version of Conclave"
    return ""


def _apply(connection: sqlite3.Connection, entries: Iterable[LedgerEntry], now: int) -> ReplayResult:
    """Apply the last entry of each subject, and all entries of readers."""
    last: dict[str, dict[int | str, LedgerEntry]] = {}
    read_entries: list[LedgerEntry] = []
    for entry in entries:
        if entry.kind == READ:
            read_entries.append(entry)
        else:
            last.setdefault(entry.kind, {})[entry.subject] = entry
    result = ReplayResult()
    for name, kind, step in _STEPS:
        step_entries = read_entries if kind == READ else last.get(kind, {}).values()
        result.counts[name] = sum(step(connection, entry, now, result) for entry in step_entries)
        reach("ledger.step_replayed")
    _end_missing_timers(connection, {entry.subject for entry in read_entries})
    _keep_admins(connection)
    return result


def _hold(connection: sqlite3.Connection, entry: LedgerEntry, _: int, __: ReplayResult) -> bool:
    if entry.state is None:
        return _changed(connection, "DELETE FROM holds WHERE hold_id = ?", (entry.subject,))
    group_key, subject_id, added_at = (
        entry.state["group_key"],
        bytes.fromhex(entry.state["subject_id"]),
        entry.state["added_at"],
    )
    return _changed(
        connection,
        "INSERT INTO holds (hold_id, group_key, user_id, subject_id, name, reason, added_by, added_at)"
        " SELECT ?1, ?2, iif(?2 IS NULL, ?3, NULL), ?3, ifnull((SELECT group_name FROM groups WHERE group_key = ?2),"
        " ifnull((SELECT username FROM users WHERE ?2 IS NULL AND user_id = ?3), '')), ?4, ?5, ?6"
        " WHERE NOT EXISTS (SELECT 1 FROM holds WHERE hold_id = ?1) AND (?2 IS NULL OR EXISTS (SELECT 1 FROM groups"
        " WHERE group_key = ?2) OR EXISTS (SELECT 1 FROM tombstones WHERE group_key = ?2))",
        (entry.subject, group_key, subject_id, RESTORED_HOLD_REASON, audit.SERVER, added_at),
    )


def _group_deleted(connection: sqlite3.Connection, entry: LedgerEntry, now: int, _: ReplayResult) -> bool:
    found = stored_groups.find_by_key(connection, int(entry.subject)) if entry.state is None else None
    if found:
        groups.end(connection, found, now)
    return found is not None


def _role(connection: sqlite3.Connection, entry: LedgerEntry, _: int, __: ReplayResult) -> bool:
    return entry.state is not None and _changed(
        connection,
        "UPDATE members SET role = ?1 WHERE member_id = ?2 AND role != ?1",
        (entry.state["role"], entry.subject),
    )


def _member_removed(connection: sqlite3.Connection, entry: LedgerEntry, now: int, _: ReplayResult) -> bool:
    found = memberships.find_by_key(connection, int(entry.subject)) if entry.state is None else None
    if found:
        members.end_and_withdraw(connection, found, now)
    return found is not None


def _account_deleted(connection: sqlite3.Connection, entry: LedgerEntry, now: int, _: ReplayResult) -> bool:
    found = (
        entry.state is None and connection.execute("SELECT 1 FROM users WHERE user_id = ?", (_id(entry),)).fetchone()
    )
    if found:
        accounts.end(connection, _id(entry), now)
    return bool(found)


def _disabled(connection: sqlite3.Connection, entry: LedgerEntry, _: int, __: ReplayResult) -> bool:
    return entry.state is not None and _changed(
        connection,
        "UPDATE users SET disabled = ?1 WHERE user_id = ?2 AND disabled != ?1",
        (entry.state["disabled"], _id(entry)),
    )


def _password(connection: sqlite3.Connection, entry: LedgerEntry, _: int, result: ReplayResult) -> bool:
    """Lock an account whose password was changed: the former password must not be valid again."""
    row = connection.execute(
        "UPDATE users SET password_hash = '' WHERE user_id = ? RETURNING username", (_id(entry),)
    ).fetchone()
    if row:
        result.locked.append(row[0])
    return row is not None


def _ban(connection: sqlite3.Connection, entry: LedgerEntry, _: int, __: ReplayResult) -> bool:
    if entry.state is None:
        return _changed(connection, "DELETE FROM bans WHERE ban_key = ?", (entry.subject,))
    return _changed(
        connection,
        "INSERT INTO bans (ban_key, group_key, user_id, banned_at) SELECT ?1, group_key, user_id, ?4 FROM groups, users"
        " WHERE group_key = ?2 AND user_id = ?3 AND NOT EXISTS (SELECT 1 FROM bans WHERE ban_key = ?1"
        " OR (bans.group_key = ?2 AND bans.user_id = ?3))",
        (entry.subject, entry.state["group_key"], bytes.fromhex(entry.state["user_id"]), entry.state["banned_at"]),
    )


def _invite(connection: sqlite3.Connection, entry: LedgerEntry, _: int, __: ReplayResult) -> bool:
    found = invites.dead(connection, int(entry.subject), FOREVER)
    if found:
        invites.remove(connection, [found])
    return found is not None


def _welcome(connection: sqlite3.Connection, entry: LedgerEntry, _: int, __: ReplayResult) -> bool:
    rows = connection.execute(
        "DELETE FROM welcomes WHERE welcome_key = ? RETURNING welcome_body", (entry.subject,)
    ).fetchall()
    bodies.erase(connection, [row[0] for row in rows])
    return bool(rows)


def _group(connection: sqlite3.Connection, entry: LedgerEntry, _: int, __: ReplayResult) -> bool:
    """Set the marks and the policy of a group, which together determine the hidden messages.

    ``floor_seq`` may fall, since it restarts when a group enters delete-after-fetch. ``expiry_set_by`` becomes null if
    the copy does not have that account.
    """
    return entry.state is not None and _changed(
        connection,
        "UPDATE groups SET floor_seq = :floor_seq, gone_below = max(gone_below, :gone_below),"
        " expired_before = max(expired_before, :expired_before), commits_below = max(commits_below, :commits_below),"
        " message_expiry_seconds = :message_expiry_seconds, min_lifetime_seconds = :min_lifetime_seconds,"
        " visibility = :visibility, expiry_set_by = (SELECT user_id FROM users WHERE user_id = :setter)"
        " WHERE group_key = :group_key",
        {**entry.state, "group_key": entry.subject, "setter": bytes.fromhex(entry.state["expiry_set_by"] or "")},
    )


def _read(connection: sqlite3.Connection, entry: LedgerEntry, _: int, __: ReplayResult) -> bool:
    """Restore the timers of a reader, including those that have ended.

    An entry may correct a timer of an earlier entry, or of the copy, that was set by a wrong clock.
    """
    if entry.state is None:
        return False
    connection.executemany(
        "INSERT INTO timers (group_key, sequence_num, member_id, seconds, redact_at)"
        " SELECT group_key, sequence_num, member_id, seconds, ?3 FROM members JOIN self_destructing USING (group_key)"
        " WHERE member_id = ?1 AND sequence_num = ?2"
        " ON CONFLICT (group_key, sequence_num, member_id) DO UPDATE SET redact_at = excluded.redact_at",
        [(entry.subject, *each) for each in entry.state["ends"]],
    )
    return _changed(
        connection,
        "UPDATE members SET read_up_to = ?1 WHERE member_id = ?2 AND read_up_to < ?1",
        (entry.state["read_up_to"], entry.subject),
    )


def _end_missing_timers(connection: sqlite3.Connection, readers: Iterable[int | str]) -> None:
    """End the timers that are missing in the ledger, for messages that it records as read.

    Such a message was erased with its timers while the ledger could not be written, or was too old when it was read.
    """
    connection.executemany(
        "INSERT OR IGNORE INTO timers (group_key, sequence_num, member_id, seconds, redact_at)"
        " SELECT group_key, sequence_num, member_id, seconds, 0 FROM members JOIN self_destructing USING (group_key)"
        " WHERE member_id = ? AND sequence_num > joined_after AND sequence_num <= read_up_to",
        [(member_id,) for member_id in readers],
    )


def _ended(connection: sqlite3.Connection, entry: LedgerEntry, _: int, __: ReplayResult) -> bool:
    group_key, number = map(int, str(entry.subject).split(":"))
    return _changed(
        connection,
        "UPDATE self_destructing SET ended = 1 WHERE group_key = ? AND sequence_num = ? AND NOT ended",
        (group_key, number),
    )


def _taken_back(connection: sqlite3.Connection, entry: LedgerEntry, now: int, _: ReplayResult) -> bool:
    """Take back a message of the copy. Its group's members are notified again."""
    group_key, number = map(int, str(entry.subject).split(":"))
    is_stored = stored_groups.find_by_key(connection, group_key) and taken_back.is_stored(connection, group_key, number)
    return bool(is_stored) and taken_back.add(connection, group_key, number, TakenBack(now, b""))


def _settings(connection: sqlite3.Connection, entry: LedgerEntry, _: int, __: ReplayResult) -> bool:
    """Restore the last settings, by which the next start settles marks, and the age limit of earlier settings."""
    if entry.state is None:
        return False
    too_old_before = entry.state["too_old_before"]
    marks.stop_new_timers(connection, too_old_before)
    return _changed(
        connection,
        "UPDATE server_state SET policy_settings = ?, too_old_before = max(too_old_before, ?)",
        (entry.state["policy_settings"], too_old_before),
    )


def _in_use(connection: sqlite3.Connection, entry: LedgerEntry, _: int, __: ReplayResult) -> bool:
    return entry.state is not None and _changed(
        connection,
        "UPDATE server_state SET last_alive = max(last_alive, ?1), acted_until = max(acted_until, ?1)",
        (entry.state["at"],),
    )


_Step = Callable[[sqlite3.Connection, LedgerEntry, int, ReplayResult], bool]

_STEPS: tuple[tuple[str, str, _Step], ...] = (
    ("holds", "hold", _hold),
    ("groups_deleted", "group", _group_deleted),
    ("roles", "member", _role),
    ("members_removed", "member", _member_removed),
    ("accounts_deleted", "account", _account_deleted),
    ("accounts_disabled", "account", _disabled),
    ("passwords", "password", _password),
    ("bans", "ban", _ban),
    ("invites", "invite", _invite),
    ("welcomes", "welcome", _welcome),
    # After the members: a leave raises the floor.
    ("groups", "group", _group),
    ("readers", READ, _read),
    ("messages_redacted", "ended", _ended),
    ("messages_taken_back", "taken_back", _taken_back),
    ("settings", SETTINGS, _settings),
    ("alive", ALIVE, _in_use),
)
"""The steps in order: the name of their count, the kind of entry, and the function."""

_KINDS = {RESTORE, *(kind for _, kind, _ in _STEPS)}


def _drop_credentials(connection: sqlite3.Connection, result: ReplayResult) -> None:
    """End all sessions and registration tokens, and delete all key packages.

    The ledger does not record which of them were ended or used.
    """
    result.counts["sessions"] = connection.execute("DELETE FROM sessions").rowcount
    result.counts["registration_tokens"] = connection.execute("DELETE FROM registration_tokens").rowcount
    for (user_id,) in connection.execute("SELECT DISTINCT user_id FROM key_packages").fetchall():
        key_packages.remove_all(connection, user_id)
        result.counts["key_packages"] += 1


def _keep_admins(connection: sqlite3.Connection) -> None:
    """Make a member admin in each group without one, since its admins have left, or joined after the copy was made."""
    connection.execute(
        f"UPDATE members SET role = 'admin' WHERE member_id IN (SELECT {memberships.HEIR} FROM members"
        " JOIN users USING (user_id) GROUP BY group_key HAVING max(role = 'admin') = 0)"
    )


def _skip_numbers(connection: sqlite3.Connection, restore: int) -> None:
    """Skip the numbers that may have been used, see NUMBERS. Members who have fetched all messages stay up to date."""
    begin = {"begin": restore * NUMBERS}
    connection.execute(
        "UPDATE members SET watermark = :begin WHERE watermark < :begin AND watermark ="
        " (SELECT last_seq FROM groups WHERE groups.group_key = members.group_key)",
        begin,
    )
    connection.execute("UPDATE groups SET last_seq = :begin WHERE last_seq < :begin", begin)
    connection.execute("UPDATE sqlite_sequence SET seq = :begin WHERE name = 'bodies' AND seq < :begin", begin)


def _id(entry: LedgerEntry) -> bytes:
    return bytes.fromhex(str(entry.subject))


def _changed(connection: sqlite3.Connection, sql: str, values: tuple[Any, ...] | dict[str, Any]) -> bool:
    return connection.execute(sql, values).rowcount > 0
