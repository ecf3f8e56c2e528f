"""Brings a restored copy of the database to where it undoes nothing that the ledger tells of.

Each change has a number, and a copy knows its last one: entries with greater numbers are news to it. They tell how
things were when the ledger was last written, so the last entry of each thing is carried out. What was deleted gets the
tombstone that its deletion would write, and the first run erases it. What came after the copy is not brought back.
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
"""After each restore the numbers of a group's messages begin again at the next multiple of 2^32.

Numbers that were given after the copy was made are unknown. Clients ask for what comes after the last one that they
have seen, so no number may be used again.
"""

MOST_RESTORES = bodies.LAST_NUMBER // NUMBERS
"""A number has 40 bits, so a database can be restored 255 times, each from a copy that was made after the last time."""

HELD_AGAIN = "in force when a backup was restored; who added it and why is in the audit log of that time"


@dataclass
class Replayed:
    """What was done to a restored copy.

    ``counts``: how many things of each kind were changed. ``locked``: the names of accounts whose password was changed
    after the copy was made: its user cannot log in until an operator sets a new one. ``until``: up to when the ledger
    told of changes, Unix seconds; 0 if there was none. ``flaw``: why it does not tell of everything since the copy; ""
    if it does.
    """

    counts: Counter[str] = field(default_factory=Counter)
    locked: list[str] = field(default_factory=list)
    until: int = 0
    flaw: str = ""


class IncompleteError(LedgerError):
    """The ledger does not tell all that a restored copy must not bring back. An operator may go on nevertheless."""


def replay(
    connection: sqlite3.Connection,
    path: Path,
    now: int,
    blocks: Iterable[tuple[bytes, int]] = (),
    *,
    despite: bool = False,
) -> Replayed:
    """Have a restored copy bring back nothing that was hidden, ended or taken away since it was made.

    No server or run may use it meanwhile. All is done in one transaction, in that of the caller if there is one. It may
    be repeated. ``path``: of the ledger. ``now``: Unix seconds. ``blocks``: those of the key file, which tell of
    restores that a lost ledger cannot tell of. ``despite``: go on although the ledger is missing, damaged, or does not
    reach back to the copy; what it lacks comes back. Raises IncompleteError unless ``despite``, and LedgerError.
    """
    transaction: AbstractContextManager[None] = (
        nullcontext() if connection.in_transaction else write_transaction(connection)
    )
    with transaction:
        standing = changes.standing(connection)
        found, end, flaw = _looked_at(path, standing)
        if flaw and not despite:
            raise IncompleteError(f"{path}: {flaw}")
        known = found.last_change if found else standing.counter
        number = max(standing.restored, found.restored if found else 0, _restores_in(blocks)) + 1
        if number > MOST_RESTORES:
            raise LedgerError(f"{path}: a database can be restored {MOST_RESTORES} times, and this one was")
        # Nor has any change of another history the number of one of this one.
        changes.number_anew(connection, max(known, number * NUMBERS))
        # Copies from before this restore need what the ledger lacks.
        lacks = {"complete_after": max(known, standing.counter)} if flaw else {}
        told = (each for each in book.entries(path, standing.counter) if end is None or each.change <= end)
        done = _carry_out(connection, told, now)
        done.until, done.flaw = found.until if found else 0, flaw
        if settings := state.stored_policy(connection):
            marks.write(connection, settings)  # what admins had set came back with the marks
        _take_back(connection, done)
        _leave_numbers(connection, number)
        connection.execute("UPDATE ledger_state SET restored = ?, written = ?", (number, known))
        reach("ledger.replayed")
        restore = LedgerEntry(known, now, RESTORE, number, {"number": number, "from": standing.counter} | lacks)
        book.append(path, standing.ledger_id, known, [restore])
    return done


def _restores_in(blocks: Iterable[tuple[bytes, int]]) -> int:
    """Return the number of the last restore after which bodies were stored that live."""
    return max(((block << tree.HEIGHT) // NUMBERS for _, block in blocks), default=0)


def require_complete(connection: sqlite3.Connection, path: Path) -> None:
    """Raise LedgerError if ``replay`` would for this copy. Nothing is changed."""
    _, _, flaw = _looked_at(path, changes.standing(connection))
    if flaw:
        raise IncompleteError(f"{path}: {flaw}")


def _looked_at(path: Path, standing: LedgerState) -> tuple[LedgerContents | None, int | None, str]:
    """Return what the ledger is, see ``branches.own_end``, and what it lacks, "" for nothing. Raises LedgerError."""
    found = _found(path, standing)
    end = changes.own_end(path, standing, found.last_change) if found else None
    return found, end, _flaw(found, standing, end)


def _found(path: Path, standing: LedgerState) -> LedgerContents | None:
    """Return what the ledger is. Raises LedgerError if it is not that of the copy."""
    found = book.look(path)
    if found and found.ledger_id != standing.ledger_id:
        raise LedgerError(
            f"{path}: is the ledger of another database; if the backup was made before this database had a ledger, move"
            " it away"
        )
    return found


def _flaw(found: LedgerContents | None, standing: LedgerState, end: int | None) -> str:
    """Return in one line why the ledger does not tell of everything since the copy; "" if it does.

    ``end``: see ``branches.own_end``.
    """
    if found is None:
        return "there is no ledger, so what was deleted since the backup would come back"
    if found.damage:
        return f"the ledger {found.damage}, so something that was deleted since the backup may come back"
    if found.last_change < standing.written:
        return (
            "the ledger knows less than this backup: it lacks its end, or was replaced by an older one, so something"
            " that was deleted since may come back"
        )
    if standing.counter < found.complete_after:
        return "the ledger does not reach back to this backup, so something that was deleted since may come back"
    if end is not None:
        return (
            "an older backup was restored since, and used: what has ended on that one need not have ended here, and the"
            " ledger cannot tell what does"
        )
    if strange := sorted(found.kinds - _KINDS):
        return f"the ledger tells of {strange[0]!r}, which this program does not know: use a newer Conclave"
    return ""


def _carry_out(connection: sqlite3.Connection, entries: Iterable[LedgerEntry], now: int) -> Replayed:
    """Carry out the last entry of each thing; of a reader all."""
    last: dict[str, dict[int | str, LedgerEntry]] = {}
    read: list[LedgerEntry] = []
    for entry in entries:
        if entry.kind == READ:
            read.append(entry)
        else:
            last.setdefault(entry.kind, {})[entry.subject] = entry
    done = Replayed()
    for name, kind, step in _STEPS:
        chosen = read if kind == READ else last.get(kind, {}).values()
        done.counts[name] = sum(step(connection, entry, now, done) for entry in chosen)
        reach("ledger.step_replayed")
    _end_untold(connection, {entry.subject for entry in read})
    _keep_admins(connection)
    return done


def _hold(connection: sqlite3.Connection, entry: LedgerEntry, _: int, __: Replayed) -> bool:
    if entry.state is None:
        return _changed(connection, "DELETE FROM holds WHERE hold_id = ?", (entry.subject,))
    group_key, subject_id, at = (
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
        (entry.subject, group_key, subject_id, HELD_AGAIN, audit.SERVER, at),
    )


def _group_gone(connection: sqlite3.Connection, entry: LedgerEntry, now: int, _: Replayed) -> bool:
    found = stored_groups.by_key(connection, int(entry.subject)) if entry.state is None else None
    if found:
        groups.end(connection, found, now)
    return found is not None


def _role(connection: sqlite3.Connection, entry: LedgerEntry, _: int, __: Replayed) -> bool:
    return entry.state is not None and _changed(
        connection,
        "UPDATE members SET role = ?1 WHERE member_id = ?2 AND role != ?1",
        (entry.state["role"], entry.subject),
    )


def _member_gone(connection: sqlite3.Connection, entry: LedgerEntry, now: int, _: Replayed) -> bool:
    found = memberships.by_key(connection, int(entry.subject)) if entry.state is None else None
    if found:
        members.end_and_withdraw(connection, found, now)
    return found is not None


def _account_gone(connection: sqlite3.Connection, entry: LedgerEntry, now: int, _: Replayed) -> bool:
    found = (
        entry.state is None and connection.execute("SELECT 1 FROM users WHERE user_id = ?", (_id(entry),)).fetchone()
    )
    if found:
        accounts.end(connection, _id(entry), now)
    return bool(found)


def _disabled(connection: sqlite3.Connection, entry: LedgerEntry, _: int, __: Replayed) -> bool:
    return entry.state is not None and _changed(
        connection,
        "UPDATE users SET disabled = ?1 WHERE user_id = ?2 AND disabled != ?1",
        (entry.state["disabled"], _id(entry)),
    )


def _password(connection: sqlite3.Connection, entry: LedgerEntry, _: int, done: Replayed) -> bool:
    """Lock an account: with the former password its user must not get in."""
    row = connection.execute(
        "UPDATE users SET password_hash = '' WHERE user_id = ? RETURNING username", (_id(entry),)
    ).fetchone()
    if row:
        done.locked.append(row[0])
    return row is not None


def _ban(connection: sqlite3.Connection, entry: LedgerEntry, _: int, __: Replayed) -> bool:
    if entry.state is None:
        return _changed(connection, "DELETE FROM bans WHERE ban_key = ?", (entry.subject,))
    return _changed(
        connection,
        "INSERT INTO bans (ban_key, group_key, user_id, banned_at) SELECT ?1, group_key, user_id, ?4 FROM groups, users"
        " WHERE group_key = ?2 AND user_id = ?3 AND NOT EXISTS (SELECT 1 FROM bans WHERE ban_key = ?1"
        " OR (bans.group_key = ?2 AND bans.user_id = ?3))",
        (entry.subject, entry.state["group_key"], bytes.fromhex(entry.state["user_id"]), entry.state["banned_at"]),
    )


def _invite(connection: sqlite3.Connection, entry: LedgerEntry, _: int, __: Replayed) -> bool:
    found = invites.dead(connection, int(entry.subject), FOREVER)
    if found:
        invites.remove(connection, [found])
    return found is not None


def _welcome(connection: sqlite3.Connection, entry: LedgerEntry, _: int, __: Replayed) -> bool:
    rows = connection.execute(
        "DELETE FROM welcomes WHERE welcome_key = ? RETURNING welcome_body", (entry.subject,)
    ).fetchall()
    bodies.erase(connection, [row[0] for row in rows])
    return bool(rows)


def _group(connection: sqlite3.Connection, entry: LedgerEntry, _: int, __: Replayed) -> bool:
    """Set the marks and the policy of a group: together they decide what is hidden.

    ``floor_seq`` may go down: it starts again where a group enters delete-after-fetch. Who has set the expiry is not
    known if that account is not there.
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


def _read(connection: sqlite3.Connection, entry: LedgerEntry, _: int, __: Replayed) -> bool:
    """Start the timers of a reader again, as they were: what had ended for the reader has ended.

    An entry may tell again of one that an earlier entry, or the copy, has by a clock that was wrong.
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


def _end_untold(connection: sqlite3.Connection, readers: Iterable[int | str]) -> None:
    """End the timers of readers that the ledger does not know, although it knows that they have read the messages.

    While it could not be written, such a message was erased, and its timers went with it. Or it was too old when it was
    read, and is hidden in any case.
    """
    connection.executemany(
        "INSERT OR IGNORE INTO timers (group_key, sequence_num, member_id, seconds, redact_at)"
        " SELECT group_key, sequence_num, member_id, seconds, 0 FROM members JOIN self_destructing USING (group_key)"
        " WHERE member_id = ? AND sequence_num > joined_after AND sequence_num <= read_up_to",
        [(member_id,) for member_id in readers],
    )


def _ended(connection: sqlite3.Connection, entry: LedgerEntry, _: int, __: Replayed) -> bool:
    group_key, number = map(int, str(entry.subject).split(":"))
    return _changed(
        connection,
        "UPDATE self_destructing SET ended = 1 WHERE group_key = ? AND sequence_num = ? AND NOT ended",
        (group_key, number),
    )


def _taken_back(connection: sqlite3.Connection, entry: LedgerEntry, now: int, _: Replayed) -> bool:
    """Take a message back that the copy has. Its group's members are told once more."""
    group_key, number = map(int, str(entry.subject).split(":"))
    is_there = stored_groups.by_key(connection, group_key) and taken_back.is_stored(connection, group_key, number)
    return bool(is_there) and taken_back.add(connection, group_key, number, TakenBack(now, b""))


def _settings(connection: sqlite3.Connection, entry: LedgerEntry, _: int, __: Replayed) -> bool:
    """Have the next start settle what the last settings have hidden, not what those of the copy would have.

    What earlier settings had called too old is so at once.
    """
    if entry.state is None:
        return False
    too_old_before = entry.state["too_old_before"]
    marks.stop_new_timers(connection, too_old_before)
    return _changed(
        connection,
        "UPDATE server_state SET policy_settings = ?, too_old_before = max(too_old_before, ?)",
        (entry.state["policy_settings"], too_old_before),
    )


def _alive(connection: sqlite3.Connection, entry: LedgerEntry, _: int, __: Replayed) -> bool:
    return entry.state is not None and _changed(
        connection,
        "UPDATE server_state SET last_alive = max(last_alive, ?1), acted_until = max(acted_until, ?1)",
        (entry.state["at"],),
    )


_Step = Callable[[sqlite3.Connection, LedgerEntry, int, Replayed], bool]

_STEPS: tuple[tuple[str, str, _Step], ...] = (
    ("holds", "hold", _hold),
    ("groups_deleted", "group", _group_gone),
    ("roles", "member", _role),
    ("members_removed", "member", _member_gone),
    ("accounts_deleted", "account", _account_gone),
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
    ("alive", ALIVE, _alive),
)
"""What is done with the entries of each kind, in this order, and how it is counted."""

_KINDS = {RESTORE, *(kind for _, kind, _ in _STEPS)}


def _take_back(connection: sqlite3.Connection, done: Replayed) -> None:
    """End all sessions and registration tokens, and drop all key packages.

    Which of them ended, were used or were handed out is told nowhere.
    """
    done.counts["sessions"] = connection.execute("DELETE FROM sessions").rowcount
    done.counts["registration_tokens"] = connection.execute("DELETE FROM registration_tokens").rowcount
    for (user_id,) in connection.execute("SELECT DISTINCT user_id FROM key_packages").fetchall():
        key_packages.remove_all(connection, user_id)
        done.counts["key_packages"] += 1


def _keep_admins(connection: sqlite3.Connection) -> None:
    """Make a member admin where all admins are gone, or have joined after the copy was made: see HEIR of members."""
    connection.execute(
        f"UPDATE members SET role = 'admin' WHERE member_id IN (SELECT {memberships.HEIR} FROM members"
        " JOIN users USING (user_id) GROUP BY group_key HAVING max(role = 'admin') = 0)"
    )


def _leave_numbers(connection: sqlite3.Connection, restore: int) -> None:
    """Have messages from here on get numbers that no message had: see NUMBERS. Who had fetched all still has."""
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
