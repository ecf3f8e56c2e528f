"""Changes that are not yet in the ledger: recorded by triggers, read with their current state, removed once written.

``drain`` writes them to the ledger in a process without the server's writer. ``resume_history`` and the functions
around it determine whether a database descends from a restore, or was abandoned for one. A restore begins a new history
from a copy, and its entry has the last change of that copy. A database with later changes that does not know of the
restore was abandoned, or is a backup of an abandoned one: then deletions since the restore may only mean that the copy
had less data.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from conclave.failpoints import reach
from conclave.retention.policy import FOREVER
from conclave.store.engine import sqlite
from conclave.store.engine.group_commit import snapshot
from conclave.store.ledger import book
from conclave.store.ledger.book import ALIVE, READ, RESTORE, SETTINGS, LedgerEntry, LedgerError

CHANGES_PER_BATCH = 1_000
"""At most 1,000 changes are written at a time."""

TIMERS_PER_ENTRY = 1_000
"""An entry has at most 1,000 timers of a reader."""


class LedgerState(NamedTuple):
    """The database's state of its ledger.

    ``counter``: the number of the last change. ``claimed``: changes up to this one may be written. ``written``: changes
    up to this one are written. ``restored``: the number of the last restore.
    """

    ledger_id: str
    counter: int
    claimed: int
    written: int
    restored: int


def ledger_state(connection: sqlite3.Connection) -> LedgerState:
    """Return the database's state of its ledger."""
    ledger_id, *numbers = connection.execute(
        "SELECT ledger_id, ifnull((SELECT seq FROM sqlite_sequence WHERE name = 'ledger_changes'), 0),"
        " claimed, written, restored FROM ledger_state"
    ).fetchone()
    return LedgerState(ledger_id.hex(), *numbers)


def has_pending(connection: sqlite3.Connection) -> bool:
    """Return whether there are changes to write."""
    return connection.execute("SELECT 1 FROM ledger_changes LIMIT 1").fetchone() is not None


def claim(connection: sqlite3.Connection, *, is_alive: bool = False) -> LedgerState:
    """Allow all changes so far to be written: they must be durable first, and cleanup's transactions are not synced.

    Call it in a transaction that is synced. ``is_alive``: add an entry that the store is in use.
    """
    if is_alive:
        connection.execute("DELETE FROM ledger_changes WHERE kind = ?", (ALIVE,))
        connection.execute("INSERT INTO ledger_changes (kind, subject) VALUES (?, 0)", (ALIVE,))
    connection.execute("UPDATE ledger_state SET claimed = ?", (ledger_state(connection).counter,))
    return ledger_state(connection)


def pending_entries(connection: sqlite3.Connection, up_to: int, now: int) -> list[LedgerEntry]:
    """Return the entries of the first pending changes, up to the number ``up_to``, with their current state.

    Call it in a read transaction.
    """
    rows = connection.execute(
        "SELECT change, kind, subject, since FROM ledger_changes WHERE change <= ? ORDER BY change LIMIT ?",
        (up_to, CHANGES_PER_BATCH),
    ).fetchall()
    return [entry for row in rows for entry in _entries(connection, row, now)]


def require_own(state: LedgerState, path: Path, last: int) -> None:
    """Raise LedgerError if ``last``, the last change in the file at ``path``, is later than the database's.

    Then the entry is of another database with the same past, and entries of this one may have been skipped.
    """
    if last > state.counter:
        raise LedgerError(
            f"{path}: has later changes than this database: another server writes to it too, or this database"
            " is an older copy that was served without it"
        )


def forget_written(connection: sqlite3.Connection, entries: Sequence[LedgerEntry]) -> None:
    """Remove the changes that are written. Objects that have changed since stay pending."""
    connection.execute("DELETE FROM ledger_changes WHERE change <= ?", (entries[-1].change,))
    connection.execute("UPDATE ledger_state SET written = max(written, ?)", (entries[-1].change,))


def note_restored(connection: sqlite3.Connection, number: int) -> None:
    """Record the number of the last restore."""
    connection.execute("UPDATE ledger_state SET restored = ?", (number,))


def renumber(connection: sqlite3.Connection, after: int) -> None:
    """Renumber the pending changes, and the counter, to be greater than ``after``, in a restored copy."""
    counter = ledger_state(connection).counter
    first = connection.execute("SELECT min(change) FROM ledger_changes").fetchone()[0]
    if first is not None and first <= after:
        offset = after + 1 - first
        # In two steps, so that the numbers stay unique.
        connection.execute("UPDATE ledger_changes SET change = -change")
        connection.execute("UPDATE ledger_changes SET change = ? - change", (offset,))
        counter += offset
    connection.execute("DELETE FROM sqlite_sequence WHERE name = 'ledger_changes'")
    connection.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('ledger_changes', ?)", (max(counter, after),))


_STATES = {
    "group": "SELECT floor_seq, gone_below, expired_before, commits_below, message_expiry_seconds,"
    " min_lifetime_seconds, visibility, expiry_set_by FROM groups WHERE group_key = ?",
    "member": "SELECT role FROM members WHERE member_id = ?",
    "ban": "SELECT group_key, user_id, banned_at FROM bans WHERE ban_key = ?",
    "account": "SELECT disabled FROM users WHERE user_id = ?",
    "hold": "SELECT group_key, subject_id, added_at FROM holds WHERE hold_id = ?",
    SETTINGS: "SELECT policy_settings, too_old_before FROM server_state WHERE id > ?",
    ALIVE: "SELECT max(last_alive, acted_until) AS at FROM server_state WHERE id > ?",
}
"""The recorded state of an existing object. For other kinds only deletion is recorded."""


def _entries(connection: sqlite3.Connection, row: sqlite3.Row, now: int) -> Iterator[LedgerEntry]:
    change, kind, key, since = row
    subject = _plain(key)
    if kind == READ:
        for state in _read(connection, key, since):
            yield LedgerEntry(change, now, kind, subject, state)
        return
    query = _STATES.get(kind)
    values = connection.execute(query, (key,)).fetchone() if query else None
    state = {name: _plain(values[name]) for name in values.keys()} if values else None  # noqa: SIM118 - a sqlite3.Row
    yield LedgerEntry(change, now, kind, subject, state)


def _read(connection: sqlite3.Connection, member_id: int, since: int) -> Iterator[dict[str, Any] | None]:
    """Yield the last number that a member has read, and the timers of messages above the number ``since``."""
    member = connection.execute(
        "SELECT group_key, read_up_to FROM members WHERE member_id = ?", (member_id,)
    ).fetchone()
    if member is None:
        yield None
        return
    timers = connection.execute(
        "SELECT sequence_num, redact_at FROM timers WHERE group_key = ? AND sequence_num > ? AND sequence_num <= ?"
        " AND member_id = ? ORDER BY sequence_num",
        (member["group_key"], since, member["read_up_to"], member_id),
    ).fetchall()
    for begin in range(0, max(1, len(timers)), TIMERS_PER_ENTRY):
        ends = [tuple(each) for each in timers[begin : begin + TIMERS_PER_ENTRY]]
        yield {"read_up_to": member["read_up_to"], "ends": ends}


def _plain(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else value


def drain(database: Path, ledger: Path, now: int) -> None:
    """Write all pending changes. ``now``: Unix seconds. Raises LedgerError and sqlite3.Error.

    It may be interrupted anywhere, and several processes may call it at the same time: changes are removed only after
    they are synced.
    """
    with closing(sqlite.connect(database)) as connection:
        while has_pending(connection):
            with sqlite.write_transaction(connection):
                state = claim(connection)
            reach("ledger.claimed")
            entries = snapshot(connection, partial(pending_entries, connection, state.claimed, now))
            if not entries:
                break  # another process has written them
            last = book.append(ledger, state.ledger_id, state.written, entries)
            require_own(ledger_state(connection), ledger, last)
            with sqlite.write_transaction(connection):
                forget_written(connection, entries)
            reach("ledger.forgotten")


def is_older(state: LedgerState, tip: tuple[str, int] | None) -> bool:
    """Return whether the database is an older copy of the one that wrote the ledger.

    ``tip``: see ``book.tip``. Read it before ``state``: other processes may write to the ledger at any time, but only
    changes that are already in the database.
    """
    return tip is not None and tip[0] == state.ledger_id and tip[1] > state.counter


def older_copy_fault(connection: sqlite3.Connection, database: Path, path: Path) -> str:
    """Return the reason why a database must not be changed: it is an older copy that was not served yet. Otherwise "".

    Its changes would get the numbers of changes in the ledger that it lacks. Faults of the ledger are ignored here, and
    reported when it is written.
    """
    try:
        tip = book.tip(path)
    except LedgerError:
        return ""
    if not is_older(ledger_state(connection), tip):
        return ""
    return (
        f"{database}: is a restored copy, to which the deletions in {path} have not been applied yet: start"
        " `conclave serve` on it first"
    )


def abandoned_at(path: Path, state: LedgerState, last_change: int) -> int | None:
    """Return the last change before the database was abandoned for a restored one; None if it was not abandoned.

    A restore whose database was never used does not count. ``last_change``: the greatest number in the ledger.
    """
    end, last_before = last_change, None
    for restore in reversed(_restores(path)):
        has_less = restore.state.get("from", FOREVER) < state.counter
        if restore.state["number"] > state.restored and has_less and restore.change < end:
            last_before = restore.change
        end = restore.change
    return last_before


def resume_history(state: LedgerState, path: Path, now: int) -> int:
    """Record that the database continues, if a copy of it was restored but never used.

    Call it before anything else is written, and only if the database is not an older copy. Returns the number of the
    last restore. Raises LedgerError.
    """
    contents = book.inspect(path)
    if contents is None or contents.restored <= state.restored:
        return state.restored
    restore_entries = [
        LedgerEntry(contents.last_change, now, RESTORE, each.subject, each.state | {"from": state.counter})
        for each in _restores(path)
        if each.state["number"] > state.restored
    ]
    book.append(path, state.ledger_id, state.written, restore_entries)
    return contents.restored


class _Restore(NamedTuple):
    """The entry of a restore. ``state``: its number, and the change after which its history begins."""

    change: int
    subject: int | str
    state: dict[str, int]


def _restores(path: Path) -> list[_Restore]:
    """Return the last entry of each restore, in the order of the entries."""
    restores: dict[int, _Restore] = {}
    for entry in book.entries(path, -1):
        if entry.kind == RESTORE and entry.state:
            number = entry.state["number"]
            restores.pop(number, None)
            restores[number] = _Restore(entry.change, entry.subject, entry.state)
    return list(restores.values())
