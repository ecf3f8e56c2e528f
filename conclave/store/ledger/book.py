"""The ledger's file: a small SQLite database of its own, with a row for each thing that has changed.

It has a rollback journal, not a write-ahead log: what was committed is in the one file, which may be on a disk of the
network, be copied and be moved away. SQLite notices a file that has no order any more, but not a value that a disk has
altered, nor a row that is gone: so each row has a checksum, and the head says how many there are.
"""

import hashlib
import os
import sqlite3
import stat
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from conclave.failpoints import reach
from conclave.logs.setup import get_logger
from conclave.store.engine.faults import StoreError, store_error
from conclave.system.durable import sync

log = get_logger(__name__)

LOCK_WAIT_SECONDS = 30.0
"""A write fails if another process writes to the file for more than 30 seconds."""

KEPT_SECONDS = 90 * 86_400
"""An entry is kept for 90 days. Older backups are not covered by the ledger."""

RESTORE, ALIVE, SETTINGS, READ = "restore", "alive", "settings", "read"

UNUSABLE = "-unusable"
"""The suffix of a ledger in whose place another one was begun."""

JOURNAL = "-journal"
"""The suffix of the file that undoes a transaction that was cut short. SQLite does that with the next look."""

_APPLICATION = 0x436C4C67
"""Tells SQLite files of ours from others."""

_PRAGMAS = """
PRAGMA journal_mode = DELETE;
PRAGMA synchronous = EXTRA;
PRAGMA secure_delete = ON;
PRAGMA temp_store = MEMORY;
"""

_TABLES = (
    f"PRAGMA application_id = {_APPLICATION}",
    """CREATE TABLE head (
        id INTEGER PRIMARY KEY CHECK (id = 1),
        ledger_id TEXT NOT NULL,          -- whose ledger it is
        complete_after INTEGER NOT NULL,  -- it tells of every change with a greater number
        last_change INTEGER NOT NULL,     -- the greatest number that it was told
        until INTEGER NOT NULL,           -- when a database in use was last written, Unix seconds; 0: never
        entries INTEGER NOT NULL,         -- how many rows there are
        sum BLOB NOT NULL
    ) STRICT""",
    """CREATE TABLE entries (
        id INTEGER PRIMARY KEY,           -- the order in which they were written
        change INTEGER NOT NULL,
        at INTEGER NOT NULL,
        kind TEXT NOT NULL,
        subject ANY NOT NULL,
        state TEXT,                       -- JSON; NULL: it is gone
        sum BLOB NOT NULL
    ) STRICT""",
    "CREATE INDEX entries_by_subject ON entries (kind, subject)",
)

_HISTORY = "id > (SELECT ifnull(max(id), 0) FROM entries WHERE kind = 'restore')"
"""The rows of the present history: a restore begins another one, and what the former had come to is needed still."""

_OVER = "at < :before AND kind NOT IN ('restore', 'alive', 'settings')"

_READ_OUT = (
    "kind = 'read' AND at < :reads_before AND NOT EXISTS"
    " (SELECT 1 FROM json_each(entries.state, '$.ends') WHERE json_extract(value, '$[1]') > :now)"
)

_mutex = threading.RLock()
"""Held while the file is open: the locks of SQLite end when any other descriptor of the file is closed."""


class LedgerError(StoreError):
    """The ledger cannot be read or written, or is not as it should be."""


class LedgerEntry(NamedTuple):
    """What the ledger says of one thing.

    ``change``: the number of its last change, as the database counts them. ``at``: when it was written, Unix seconds.
    ``subject``: the key of its row, or an id in hexadecimal. ``state``: None if it is gone.
    """

    change: int
    at: int
    kind: str
    subject: int | str
    state: dict[str, Any] | None


@dataclass(frozen=True)
class LedgerContents:
    """What a ledger is found to be.

    ``complete_after``: it tells of every change with a greater number. ``last_change``: the greatest number in it.
    ``restored``: the number of the last restore. ``damage``: what is wrong with it, in a few words; "" if nothing.
    ``kinds``: what it tells of. ``until``: when a database in use was last written, Unix seconds.
    """

    ledger_id: str
    complete_after: int
    last_change: int
    restored: int
    damage: str
    kinds: frozenset[str]
    until: int


class _Head(NamedTuple):
    """The one row of ``head``, see there."""

    ledger_id: str
    complete_after: int
    last_change: int
    until: int
    entries: int


def append(path: Path, ledger_id: str, written: int, entries: Sequence[LedgerEntry]) -> int:
    """Add entries, in the order of their changes, durably. Makes the file if there is none.

    An entry takes the place of the former one of the same thing, but for those of readers, each of which tells of other
    messages. ``written``: the number of the last change that the file is known to have. What it has already is left
    out. Returns the greatest number that it had: if the database has not come so far, another database's changes are in
    the file, and these entries may not be. Raises LedgerError; then the file is as before.
    """
    with _as_ledger_errors(path), _mutex:
        _ready(path)
        with _opened(path) as connection, _transaction(connection):
            found = _head(path, connection)
            if found is None and written and entries[0].kind != RESTORE:
                raise LedgerError(f"{path}: the ledger is missing")  # in a new one what was told would be missing
            if found is None:
                _make_tables(connection)
            head = found or _Head(ledger_id, written, written, 0, 0)
            _require_own(path, head.ledger_id, ledger_id)
            if head.last_change < written:
                raise LedgerError(_cut(path))
            _add(connection, head, [each for each in entries if each.change > head.last_change or each.kind == RESTORE])
            reach("ledger.written")
        reach("ledger.synced")
    return found.last_change if found else 0


def tip(path: Path) -> tuple[str, int] | None:
    """Return whose ledger a file is, and the greatest number in it, without reading it all; None if there is none.

    Raises LedgerError.
    """
    with _opened_if_there(path) as connection:
        head = _head(path, connection) if connection else None
        return (head.ledger_id, head.last_change) if head else None


def tip_of_copy(path: Path) -> tuple[str, int] | None:
    """Do as ``tip`` for a copy, to which nothing is appended. No lock is taken: its disk may never answer."""
    with _as_ledger_errors(path):
        if not path.exists():
            return None
        _require_file(path)
        uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
        with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
            head = _head(path, connection)
        return (head.ledger_id, head.last_change) if head else None


def copy(path: Path, target: Path) -> None:
    """Write the ledger as it is now to ``target``, durably, unless that is so already; without a ledger, do nothing.

    Raises LedgerError, also if something else is there, or a later ledger, which may have what is missing here. Nothing
    else may copy to ``target`` meanwhile.
    """
    with _opened_if_there(path) as connection:
        head = _head(path, connection) if connection else None
        if connection is None or head is None:
            return
        connection.execute("BEGIN")
        connection.execute("SELECT 1 FROM head").fetchone()  # from here on nobody changes it
        data = connection.serialize()
    with _as_ledger_errors(target):
        there = tip_of_copy(target)
        if there and there[0] != head.ledger_id:
            raise LedgerError(f"{target}: is the ledger of another database: move it away")
        if there and there[1] > head.last_change:
            raise LedgerError(f"{target}: is newer than {path}, in whose place an older ledger was put")
        if there is None or target.read_bytes() != data:
            new = target.with_name(f"{target.name}-new")
            new.unlink(missing_ok=True)
            new.touch(mode=0o600)
            new.write_bytes(data)
            sync(new)
            new.replace(target)
            sync(target.parent, follows_links=True)


def look(path: Path) -> LedgerContents | None:
    """Read the whole file, and tell what it is; None if there is none. Raises LedgerError."""
    with _opened_if_there(path) as connection:
        if connection is None:
            return None
        connection.execute("BEGIN")  # or what another process appends meanwhile would be more than the head tells of
        head = _head(path, connection)
        return _contents(connection, head) if head else None


def entries(path: Path, after: int) -> list[LedgerEntry]:
    """Return the sound entries of changes with numbers greater than ``after``, as they were written one after another.

    Raises LedgerError.
    """
    with _opened_if_there(path) as connection:
        if connection is None or _head(path, connection) is None:
            return []
        rows = connection.execute(f"{_ROWS} WHERE change > ? ORDER BY id", (after,))
        return [_entry(row) for row in rows if _is_sound(row)]


def require_sound(path: Path, ledger_id: str, written: int) -> None:
    """Read the whole file; raise LedgerError if it is damaged, another database's, or lacks what it is known to have.

    ``written``: the greatest number that was written; 0: none was, and the next append begins the file.
    """
    found = look(path)
    if found is None and written:
        raise LedgerError(f"{path}: the ledger is missing")
    if found is None:
        return
    _require_own(path, found.ledger_id, ledger_id)
    if found.damage:
        raise LedgerError(f"{path}: {found.damage}")
    if found.last_change < written:
        raise LedgerError(_cut(path))


def stamp(path: Path) -> tuple[int, int, int] | None:
    """Return what is another once the file was changed or replaced; None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def set_aside(path: Path) -> None:
    """Move a ledger away that cannot be used, so that another one begins. Nothing is done if there is none."""
    with suppress(FileNotFoundError):
        path.rename(path.with_name(f"{path.name}{UNUSABLE}"))


def require_writable(path: Path) -> None:
    """Raise LedgerError if the file could not be written, as far as can be seen without writing."""
    folder = path.parent
    with _as_ledger_errors(path):
        if not folder.is_dir():
            raise LedgerError(f"{path}: there is no folder {folder}; is its disk mounted?")
        if path.is_symlink():
            raise LedgerError(f"{path}: is not a file")
        if path.exists():
            _require_file(path)
        for each in (path, folder) if path.exists() else (folder,):
            if not os.access(each, os.W_OK):
                raise LedgerError(f"{each}: cannot be written to; is it another user's, or its disk read-only?")


def drop_old(path: Path, before: int, reads_before: int, now: int) -> None:
    """Remove entries that are not needed any more, in one transaction.

    ``before``: older entries go, Unix seconds, exclusive; but the last restores, settings and signs of life stay.
    ``reads_before``: the same for what was read, since those messages are hidden by their age, once all of its timers
    have ended by the second ``now``: a reader sees a message until then, however old it is. Raises LedgerError, also
    for a damaged file.
    """
    values = {"before": before, "reads_before": reads_before, "now": now}
    with _opened_if_there(path) as connection:
        if connection is None or _head(path, connection) is None:
            return
        if not connection.execute(f"SELECT 1 FROM entries WHERE {_OVER} OR {_READ_OUT} LIMIT 1", values).fetchone():
            return
        with _transaction(connection):
            head = _head(path, connection)
            if head is None or _contents(connection, head).damage:
                raise LedgerError(f"{path}: is damaged, and was left as it is")
            last_over = connection.execute(f"SELECT max(change) FROM entries WHERE {_OVER}", values).fetchone()[0]
            gone = connection.execute(f"DELETE FROM entries WHERE {_OVER} OR {_READ_OUT}", values).rowcount
            complete_after = max(head.complete_after, last_over or 0)
            _set_head(connection, head._replace(complete_after=complete_after, entries=head.entries - gone))
            reach("ledger.dropped")


def _add(connection: sqlite3.Connection, head: _Head, added: Sequence[LedgerEntry]) -> None:
    gone = 0
    for entry in added:
        if entry.kind != READ:
            within = "" if entry.kind == RESTORE else f" AND {_HISTORY}"
            gone += connection.execute(
                f"DELETE FROM entries WHERE kind = ? AND subject = ?{within}", (entry.kind, entry.subject)
            ).rowcount
        state = None if entry.state is None else orjson.dumps(entry.state).decode()
        row = (entry.change, entry.at, entry.kind, entry.subject, state)
        connection.execute(
            "INSERT INTO entries (change, at, kind, subject, state, sum) VALUES (?, ?, ?, ?, ?, ?)", (*row, _sum(row))
        )
    told = [each for each in added if each.kind != RESTORE]
    # A restore by a ledger that had not all says so: backups from before it need what is not there.
    reached = [(each.state or {}).get("complete_after", 0) for each in added if each.kind == RESTORE]
    head = _Head(
        head.ledger_id,
        max(head.complete_after, *reached, 0),
        max(head.last_change, *(each.change for each in added), 0),
        told[-1].at if told else head.until,
        head.entries + len(added) - gone,
    )
    _set_head(connection, head)


def _contents(connection: sqlite3.Connection, head: _Head) -> LedgerContents:
    count, restored, damage = 0, 0, ""
    kinds = set()
    for row in connection.execute(f"{_ROWS} ORDER BY id"):
        count += 1
        if not _is_sound(row):
            damage = damage or f"is damaged in the entry of change {row[0]}"
            continue
        kinds.add(row[2])
        if row[2] == RESTORE:
            restored = max(restored, orjson.loads(row[4])["number"])
    if not damage and count != head.entries:
        damage = f"has {count} entries of {head.entries}"
    if not damage and (fault := connection.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
        damage = f"is damaged ({fault})"
    return LedgerContents(
        head.ledger_id, head.complete_after, head.last_change, restored, damage, frozenset(kinds), head.until
    )


_ROWS = "SELECT change, at, kind, subject, state, sum FROM entries"


def _entry(row: Sequence[Any]) -> LedgerEntry:
    change, at, kind, subject, state, _ = row
    return LedgerEntry(change, at, kind, subject, None if state is None else orjson.loads(state))


def _is_sound(row: Sequence[Any]) -> bool:
    try:
        return bool(_sum(row[:-1]) == row[-1])
    except TypeError:  # of another type than was written
        return False


def _sum(values: Sequence[Any]) -> bytes:
    return hashlib.sha256(orjson.dumps(list(values))).digest()[:8]


def _head(path: Path, connection: sqlite3.Connection) -> _Head | None:
    """Return the head; None if the file is empty. Raises LedgerError."""
    if connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone() is None:
        return None
    if connection.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION:
        raise LedgerError(f"{path}: is not a ledger")
    row = connection.execute("SELECT ledger_id, complete_after, last_change, until, entries, sum FROM head").fetchone()
    if row is None or not _is_sound(row):
        raise LedgerError(f"{path}: its head is damaged")
    return _Head(*row[:-1])


def _set_head(connection: sqlite3.Connection, head: _Head) -> None:
    connection.execute("INSERT OR REPLACE INTO head VALUES (1, ?, ?, ?, ?, ?, ?)", (*head, _sum(head)))


def _make_tables(connection: sqlite3.Connection) -> None:
    for statement in _TABLES:
        connection.execute(statement)


def _require_own(path: Path, found: str, ledger_id: str) -> None:
    if found != ledger_id:
        raise LedgerError(f"{path}: is the ledger of another database")


def _cut(path: Path) -> str:
    return f"{path}: lacks its end, or was replaced by an older one"


def _ready(path: Path) -> None:
    """Make the file if there is none, for its owner alone. A link is none."""
    is_new = not path.exists()
    if not is_new:
        _require_file(path)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    if is_new:
        sync(path.parent, follows_links=True)


def _require_file(path: Path) -> None:
    """Raise LedgerError for what is there and no file: to open a pipe is to wait for ever."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise LedgerError(f"{path}: is not a file")


@contextmanager
def _opened_if_there(path: Path) -> Iterator[sqlite3.Connection | None]:
    """Open the file for the block; None if there is none."""
    with _as_ledger_errors(path), _mutex:
        if not path.exists():
            yield None
            return
        _require_file(path)
        with _opened(path) as connection:
            yield connection


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    uri = f"{path.absolute().as_uri()}?mode=rw"
    with closing(sqlite3.connect(uri, uri=True, isolation_level=None, timeout=LOCK_WAIT_SECONDS)) as connection:
        if not path.stat().st_size:
            connection.execute("PRAGMA auto_vacuum = FULL")  # for good; of another file it would change the head
        connection.executescript(_PRAGMAS)
        connection.text_factory = partial(str, encoding="utf-8", errors="replace")  # a disk may have altered it
        yield connection


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


@contextmanager
def _as_ledger_errors(path: Path) -> Iterator[None]:
    """Raise what the system or SQLite says as a LedgerError of one line."""
    try:
        yield
    except OSError as error:
        raise LedgerError(f"{path}: {error.strerror or error}") from error
    except (TypeError, ValueError) as error:  # of SQLite's own tables, where a disk has altered them
        raise LedgerError(f"{path}: is damaged ({error})") from error
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_READONLY:
            # SQLite makes its journal beside the file.
            raise LedgerError(f"{path}: it or its folder cannot be written to ({error})") from error
        if code == sqlite3.SQLITE_NOTADB:
            raise LedgerError(f"{path}: is not a ledger") from error
        if code == sqlite3.SQLITE_CORRUPT:
            raise LedgerError(f"{path}: is damaged ({error})") from error
        raise LedgerError(str(store_error(path, error))) from error
