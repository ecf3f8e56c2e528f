"""What the database has still to tell the ledger: noted by triggers, read as it is now, forgotten once written.

``drain`` writes them to the ledger's file in a process without the server's writer. ``take_up`` and the functions after
it tell whether a database has come after a restore, or was given up for it. A restore begins another history, from a
copy. Its line says with which change that copy ended. So a database that has come further, and knows nothing of the
restore, was given up, or is a backup of one that was: what has ended since may have ended only because the copy had
less.
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

AT_ONCE = 1_000
"""At most 1,000 changes are told at a time."""

TIMERS_A_LINE = 1_000
"""An entry has at most 1,000 timers of a reader."""


class LedgerState(NamedTuple):
    """What the database knows of its ledger.

    ``counter``: the number of its last change. ``claimed``: changes up to this one may be written. ``written``: changes
    up to this one are. ``restored``: the number of the last restore.
    """

    ledger_id: str
    counter: int
    claimed: int
    written: int
    restored: int


def standing(connection: sqlite3.Connection) -> LedgerState:
    """Return what the database knows of its ledger."""
    ledger_id, *numbers = connection.execute(
        "SELECT ledger_id, ifnull((SELECT seq FROM sqlite_sequence WHERE name = 'ledger_changes'), 0),"
        " claimed, written, restored FROM ledger_state"
    ).fetchone()
    return LedgerState(ledger_id.hex(), *numbers)


def are_waiting(connection: sqlite3.Connection) -> bool:
    """Tell whether there is anything to write."""
    return connection.execute("SELECT 1 FROM ledger_changes LIMIT 1").fetchone() is not None


def claim(connection: sqlite3.Connection, *, is_alive: bool = False) -> LedgerState:
    """Note up to which change the ledger may tell: what it tells must be durable, and runs do not wait for that.

    Call it in a transaction that is synced. ``is_alive``: that the store is in use is to be told, too.
    """
    if is_alive:
        connection.execute("DELETE FROM ledger_changes WHERE kind = ?", (ALIVE,))
        connection.execute("INSERT INTO ledger_changes (kind, subject) VALUES (?, 0)", (ALIVE,))
    connection.execute("UPDATE ledger_state SET claimed = ?", (standing(connection).counter,))
    return standing(connection)


def waiting(connection: sqlite3.Connection, claimed: int, now: int) -> list[LedgerEntry]:
    """Return the entries of the first changes that wait, up to the number ``claimed``, as things are now.

    Call it in a read transaction.
    """
    rows = connection.execute(
        "SELECT change, kind, subject, since FROM ledger_changes WHERE change <= ? ORDER BY change LIMIT ?",
        (claimed, AT_ONCE),
    ).fetchall()
    return [entry for row in rows for entry in _entries(connection, row, now)]


def require_own(standing: LedgerState, path: Path, last: int) -> None:
    """Raise LedgerError if the file at ``path`` has had the number ``last``, and the database has not come so far.

    Such a line is of another database with the same past. So the file may not have taken what this one had to tell.
    """
    if last > standing.counter:
        raise LedgerError(
            f"{path}: tells of later changes than this database has: another server writes to it too, or this database"
            " is an older copy that was served without it"
        )


def were_written(connection: sqlite3.Connection, entries: Sequence[LedgerEntry]) -> None:
    """Forget the changes that are in the file. What has changed since waits still."""
    connection.execute("DELETE FROM ledger_changes WHERE change <= ?", (entries[-1].change,))
    connection.execute("UPDATE ledger_state SET written = max(written, ?)", (entries[-1].change,))


def know_restored(connection: sqlite3.Connection, number: int) -> None:
    """Note the number of the last restore."""
    connection.execute("UPDATE ledger_state SET restored = ?", (number,))


def number_anew(connection: sqlite3.Connection, after: int) -> None:
    """Have all changes that wait, and those to come, get numbers greater than ``after``, as in a restored copy."""
    counter = standing(connection).counter
    first = connection.execute("SELECT min(change) FROM ledger_changes").fetchone()[0]
    if first is not None and first <= after:
        further = after + 1 - first
        # None of them gets a number that another one still has.
        connection.execute("UPDATE ledger_changes SET change = -change")
        connection.execute("UPDATE ledger_changes SET change = ? - change", (further,))
        counter += further
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
"""What is told of a thing that is still there. Of other kinds only the end is told."""


def _entries(connection: sqlite3.Connection, row: sqlite3.Row, now: int) -> Iterator[LedgerEntry]:
    change, kind, key, since = row
    subject = _plain(key)
    if kind == READ:
        for state in _read(connection, key, since):
            yield LedgerEntry(change, now, kind, subject, state)
        return
    query = _STATES.get(kind)
    found = connection.execute(query, (key,)).fetchone() if query else None
    state = {name: _plain(found[name]) for name in found.keys()} if found else None  # noqa: SIM118 - a sqlite3.Row
    yield LedgerEntry(change, now, kind, subject, state)


def _read(connection: sqlite3.Connection, member_id: int, since: int) -> Iterator[dict[str, Any] | None]:
    """Yield how far a member has read, and which timers that started above the number ``since``."""
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
    for begin in range(0, max(1, len(timers)), TIMERS_A_LINE):
        ends = [tuple(each) for each in timers[begin : begin + TIMERS_A_LINE]]
        yield {"read_up_to": member["read_up_to"], "ends": ends}


def _plain(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else value


def drain(database: Path, ledger: Path, now: int) -> None:
    """Write everything that waits. ``now``: Unix seconds. Raises LedgerError, and sqlite3.Error.

    It is safe to stop anywhere, and several processes may do it at a time. Nothing is forgotten before it is synced.
    """
    with closing(sqlite.connect(database)) as connection:
        while are_waiting(connection):
            with sqlite.write_transaction(connection):
                claimed = claim(connection)
            reach("ledger.claimed")
            entries = snapshot(connection, partial(waiting, connection, claimed.claimed, now))
            if not entries:
                break  # another process has written them
            last = book.append(ledger, claimed.ledger_id, claimed.written, entries)
            require_own(standing(connection), ledger, last)
            with sqlite.write_transaction(connection):
                were_written(connection, entries)
            reach("ledger.forgotten")


def is_older(standing: LedgerState, tip: tuple[str, int] | None) -> bool:
    """Tell whether the database is an older copy of the one that its ledger speaks of.

    ``tip``: see ``book.tip``. It is read before ``standing``: other processes may tell the ledger of changes at any
    time, and what it tells is in the database by then.
    """
    return tip is not None and tip[0] == standing.ledger_id and tip[1] > standing.counter


def fault_of_copy(connection: sqlite3.Connection, database: Path, path: Path) -> str:
    """Say why a database must not be changed: it is an older copy, and has yet to be served. "" if it is none.

    What is changed in it would count as what it has to learn. What is wrong with the ledger is told when it is written.
    """
    try:
        tip = book.tip(path)
    except LedgerError:
        return ""
    if not is_older(standing(connection), tip):
        return ""
    return (
        f"{database}: is a restored copy, and has yet to learn from {path} what it must not bring back: start"
        " `conclave serve` on it first"
    )


def own_end(path: Path, standing: LedgerState, last_change: int) -> int | None:
    """Return the last change in the ledger of the history of a database that was given up; None if it was not.

    A restore whose database was never used does not count. ``last_change``: the greatest number in the ledger.
    """
    end, found = last_change, None
    for restore in reversed(_restores(path)):
        has_less = restore.state.get("from", FOREVER) < standing.counter
        if restore.state["number"] > standing.restored and has_less and restore.change < end:
            found = restore.change
        end = restore.change
    return found


def take_up(standing: LedgerState, path: Path, now: int) -> int:
    """Note that the database goes on, if a copy of it was restored and never used.

    Call it before anything else is written, and only if the database is no older copy. Returns the number of the last
    restore. Raises LedgerError.
    """
    found = book.look(path)
    if found is None or found.restored <= standing.restored:
        return standing.restored
    lines = [
        LedgerEntry(found.last_change, now, RESTORE, each.subject, each.state | {"from": standing.counter})
        for each in _restores(path)
        if each.state["number"] > standing.restored
    ]
    book.append(path, standing.ledger_id, standing.written, lines)
    return found.restored


class _Restore(NamedTuple):
    """The line of a restore. ``state``: its number, and from which change on it began another history."""

    change: int
    subject: int | str
    state: dict[str, int]


def _restores(path: Path) -> list[_Restore]:
    """Return the last line of each restore, in the order of the lines."""
    found: dict[int, _Restore] = {}
    for entry in book.entries(path, -1):
        if entry.kind == RESTORE and entry.state:
            number = entry.state["number"]
            found.pop(number, None)
            found[number] = _Restore(entry.change, entry.subject, entry.state)
    return list(found.values())
