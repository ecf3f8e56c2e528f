"""The ledger file: a small SQLite database with a row for each changed object.

It has a rollback journal, not a write-ahead log: so all committed data is in one file, which may be on a network file
system, and be copied or moved. SQLite detects a damaged structure, but neither altered values nor missing rows: so each
row has a checksum, and the head has the number of rows.
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
from conclave.system.locks import open_to_lock

log = get_logger(__name__)

LOCK_WAIT_SECONDS = 30.0
"""A write fails if another process locks the file for more than 30 seconds."""

KEPT_SECONDS = 90 * 86_400
"""Entries are kept for 90 days. The ledger does not cover older backups."""

RESTORE, ALIVE, SETTINGS, READ = "restore", "alive", "settings", "read"

UNUSABLE = "-unusable"
"""The suffix of an unusable ledger that was replaced by a new one."""

_APPLICATION = 0x436C4C67
"""The SQLite application_id of ledgers."""

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
        ledger_id TEXT NOT NULL,          -- identifies the database
        complete_after INTEGER NOT NULL,  -- all changes with greater numbers are here
        last_change INTEGER NOT NULL,     -- the greatest number of a change
        until INTEGER NOT NULL,           -- the last time a database in use wrote, Unix seconds; 0: never
        entries INTEGER NOT NULL,         -- the number of rows in entries
        sum BLOB NOT NULL
    ) STRICT""",
    """CREATE TABLE entries (
        id INTEGER PRIMARY KEY,           -- the order in which they were written
        change INTEGER NOT NULL,
        at INTEGER NOT NULL,
        kind TEXT NOT NULL,
        subject ANY NOT NULL,
        state TEXT,                       -- JSON; NULL: deleted
        sum BLOB NOT NULL
    ) STRICT""",
    "CREATE INDEX entries_by_subject ON entries (kind, subject)",
)

_IN_CURRENT_HISTORY = "id > (SELECT ifnull(max(id), 0) FROM entries WHERE kind = 'restore')"
"""The rows of the current history. A restore begins a new history; rows of earlier histories are still needed."""

_EXPIRED = "at < :before AND kind NOT IN ('restore', 'alive', 'settings')"

_EXPIRED_READS = (
    "kind = 'read' AND at < :reads_before AND NOT EXISTS"
    " (SELECT 1 FROM json_each(entries.state, '$.ends') WHERE json_extract(value, '$[1]') > :now)"
)

_mutex = threading.RLock()
"""Held while the file is open: closing any other descriptor of the file would release SQLite's locks."""


class LedgerError(StoreError):
    """The ledger cannot be read or written, or is damaged."""


class LedgerEntry(NamedTuple):
    """The state of one object.

    ``change``: the number of its last change in the database. ``at``: when it was written, Unix seconds. ``subject``:
    the key of its row, or an id in hexadecimal. ``state``: None if the object is deleted.
    """

    change: int
    at: int
    kind: str
    subject: int | str
    state: dict[str, Any] | None


@dataclass(frozen=True)
class LedgerContents:
    """A summary of a ledger.

    ``complete_after``: it has all changes with greater numbers. ``last_change``: the greatest number in it.
    ``restored``: the number of the last restore. ``damage``: a short description, "" if it is undamaged. ``kinds``: the
    kinds of its entries. ``until``: the last time a database in use wrote, Unix seconds.
    """

    ledger_id: str
    complete_after: int
    last_change: int
    restored: int
    damage: str
    kinds: frozenset[str]
    until: int


class _Head(NamedTuple):
    """The row of the table ``head``."""

    ledger_id: str
    complete_after: int
    last_change: int
    until: int
    entries: int


def append(path: Path, ledger_id: str, last_written: int, entries: Sequence[LedgerEntry]) -> int:
    """Append entries, in the order of their changes, durably. Creates the file if it is missing.

    An entry replaces the previous one of the same object, except for READ entries, which cover different
    messages. ``last_written``: the number of the last change that the file must have. Entries that it has already are
    skipped. Returns the greatest number before the call: if it exceeds the database's last change, another database has
    written to the file, and these entries may have been skipped. Raises LedgerError, without changing the file.
    """
    with _as_ledger_errors(path), _mutex:
        _create_if_missing(path)
        with _open_connection(path) as connection, _transaction(connection):
            old_head = _head(path, connection)
            if old_head is None and last_written and entries[0].kind != RESTORE:
                raise LedgerError(f"{path}: the ledger is missing")  # a new one would be incomplete
            if old_head is None:
                _make_tables(connection)
            head = old_head or _Head(ledger_id, last_written, last_written, 0, 0)
            _require_own(path, head.ledger_id, ledger_id)
            if head.last_change < last_written:
                raise LedgerError(_truncation_text(path))
            _add(connection, head, [each for each in entries if each.change > head.last_change or each.kind == RESTORE])
            reach("ledger.written")
        reach("ledger.synced")
    return old_head.last_change if old_head else 0


def tip(path: Path) -> tuple[str, int] | None:
    """Return the ledger's id and its greatest number, without reading all entries; None if it is missing.

    Raises LedgerError.
    """
    with _open_if_exists(path) as connection:
        head = _head(path, connection) if connection else None
        return (head.ledger_id, head.last_change) if head else None


def tip_of_copy(path: Path) -> tuple[str, int] | None:
    """Return the ``tip`` of a copy, to which nothing is appended. Takes no lock, since its disk may hang."""
    with _as_ledger_errors(path):
        if not path.exists():
            return None
        _require_file(path)
        uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
        with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
            head = _head(path, connection)
        return (head.ledger_id, head.last_change) if head else None


def copy(path: Path, target: Path) -> None:
    """Copy the ledger to ``target``, durably, unless ``target`` is identical. Does nothing without a ledger.

    Raises LedgerError, for example if ``target`` is not a ledger, or a newer one, which may have entries that are
    missing here. The caller excludes other processes that copy to ``target``.
    """
    with _open_if_exists(path) as connection:
        head = _head(path, connection) if connection else None
        if connection is None or head is None:
            return
        connection.execute("BEGIN")
        connection.execute("SELECT 1 FROM head").fetchone()  # locks it against changes
        data = connection.serialize()
    with _as_ledger_errors(target):
        target_tip = tip_of_copy(target)
        if target_tip and target_tip[0] != head.ledger_id:
            raise LedgerError(f"{target}: is the ledger of another database: move it away")
        if target_tip and target_tip[1] > head.last_change:
            raise LedgerError(f"{target}: is newer than {path}, which was replaced by an older ledger")
        if target_tip is None or target.read_bytes() != data:
            new = target.with_name(f"{target.name}-new")
            new.unlink(missing_ok=True)
            with open_to_lock(new, os.O_CREAT):  # the server has to replace it, even if root makes it
                new.write_bytes(data)
            sync(new)
            new.replace(target)
            sync(target.parent, follows_links=True)


def inspect(path: Path) -> LedgerContents | None:
    """Read the whole file and return its summary; None if it is missing. Raises LedgerError."""
    with _open_if_exists(path) as connection:
        if connection is None:
            return None
        connection.execute("BEGIN")  # a snapshot, since another process may append
        head = _head(path, connection)
        return _contents(connection, head) if head else None


def entries(path: Path, after: int) -> list[LedgerEntry]:
    """Return the undamaged entries of changes greater than ``after``, in the order in which they were written.

    Raises LedgerError.
    """
    with _open_if_exists(path) as connection:
        if connection is None or _head(path, connection) is None:
            return []
        rows = connection.execute(f"{_ROWS} WHERE change > ? ORDER BY id", (after,))
        return [_entry(row) for row in rows if _is_intact(row)]


def require_sound(path: Path, ledger_id: str, last_written: int) -> None:
    """Read the whole file; raise LedgerError if it is damaged, another database's, or lacks written changes.

    ``last_written``: the greatest number that was written; 0: none yet, so the file may be missing.
    """
    contents = inspect(path)
    if contents is None and last_written:
        raise LedgerError(f"{path}: the ledger is missing")
    if contents is None:
        return
    _require_own(path, contents.ledger_id, ledger_id)
    if contents.damage:
        raise LedgerError(f"{path}: {contents.damage}")
    if contents.last_change < last_written:
        raise LedgerError(_truncation_text(path))


def file_stamp(path: Path) -> tuple[int, int, int] | None:
    """Return a value that differs once the file was changed or replaced; None if the file is missing."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def rename_unusable(path: Path) -> None:
    """Rename an unusable ledger, so that a new one is created. Does nothing if it is missing."""
    with suppress(FileNotFoundError):
        path.rename(path.with_name(f"{path.name}{UNUSABLE}"))


def require_writable(path: Path) -> None:
    """Raise LedgerError if the file is not writable, as far as can be checked without writing."""
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
    """Remove entries that are no longer needed, in one transaction.

    ``before``: remove entries older than this Unix second, exclusive, except RESTORE, SETTINGS and ALIVE.
    ``reads_before``: remove READ entries older than this, whose messages are hidden by their age, but only if all their
    timers have ended by the second ``now``: until then the reader sees the message, whatever its age. Raises
    LedgerError, for example for a damaged file.
    """
    values = {"before": before, "reads_before": reads_before, "now": now}
    with _open_if_exists(path) as connection:
        if connection is None or _head(path, connection) is None:
            return
        if not connection.execute(
            f"SELECT 1 FROM entries WHERE {_EXPIRED} OR {_EXPIRED_READS} LIMIT 1", values
        ).fetchone():
            return
        with _transaction(connection):
            head = _head(path, connection)
            if head is None or _contents(connection, head).damage:
                raise LedgerError(f"{path}: is damaged, and was not changed")
            last_expired = connection.execute(f"SELECT max(change) FROM entries WHERE {_EXPIRED}", values).fetchone()[0]
            deleted_count = connection.execute(
                f"DELETE FROM entries WHERE {_EXPIRED} OR {_EXPIRED_READS}", values
            ).rowcount
            complete_after = max(head.complete_after, last_expired or 0)
            _set_head(connection, head._replace(complete_after=complete_after, entries=head.entries - deleted_count))
            reach("ledger.dropped")


def _add(connection: sqlite3.Connection, head: _Head, new_entries: Sequence[LedgerEntry]) -> None:
    replaced_count = 0
    for entry in new_entries:
        if entry.kind != READ:
            history_condition = "" if entry.kind == RESTORE else f" AND {_IN_CURRENT_HISTORY}"
            replaced_count += connection.execute(
                f"DELETE FROM entries WHERE kind = ? AND subject = ?{history_condition}", (entry.kind, entry.subject)
            ).rowcount
        state = None if entry.state is None else orjson.dumps(entry.state).decode()
        row = (entry.change, entry.at, entry.kind, entry.subject, state)
        connection.execute(
            "INSERT INTO entries (change, at, kind, subject, state, sum) VALUES (?, ?, ?, ?, ?, ?)", (*row, _sum(row))
        )
    changes = [each for each in new_entries if each.kind != RESTORE]
    # A restore from an incomplete ledger records this: earlier backups need the missing entries.
    restore_bounds = [(each.state or {}).get("complete_after", 0) for each in new_entries if each.kind == RESTORE]
    head = _Head(
        head.ledger_id,
        max(head.complete_after, *restore_bounds, 0),
        max(head.last_change, *(each.change for each in new_entries), 0),
        changes[-1].at if changes else head.until,
        head.entries + len(new_entries) - replaced_count,
    )
    _set_head(connection, head)


def _contents(connection: sqlite3.Connection, head: _Head) -> LedgerContents:
    count, restored, damage = 0, 0, ""
    kinds = set()
    for row in connection.execute(f"{_ROWS} ORDER BY id"):
        count += 1
        if not _is_intact(row):
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


def _is_intact(row: Sequence[Any]) -> bool:
    try:
        return bool(_sum(row[:-1]) == row[-1])
    except TypeError:  # the type of a value has changed
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
    if row is None or not _is_intact(row):
        raise LedgerError(f"{path}: its head is damaged")
    return _Head(*row[:-1])


def _set_head(connection: sqlite3.Connection, head: _Head) -> None:
    connection.execute("INSERT OR REPLACE INTO head VALUES (1, ?, ?, ?, ?, ?, ?)", (*head, _sum(head)))


def _make_tables(connection: sqlite3.Connection) -> None:
    for statement in _TABLES:
        connection.execute(statement)


def _require_own(path: Path, found_id: str, ledger_id: str) -> None:
    if found_id != ledger_id:
        raise LedgerError(f"{path}: is the ledger of another database")


def _truncation_text(path: Path) -> str:
    return f"{path}: is truncated, or was replaced by an older one"


def _create_if_missing(path: Path) -> None:
    """Create the file if it is missing, with the mode 0600. Raises OSError for a symbolic link."""
    is_new = not path.exists()
    if not is_new:
        _require_file(path)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    if is_new:
        sync(path.parent, follows_links=True)


def _require_file(path: Path) -> None:
    """Raise LedgerError unless ``path`` is a regular file: opening a pipe would block."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise LedgerError(f"{path}: is not a file")


@contextmanager
def _open_if_exists(path: Path) -> Iterator[sqlite3.Connection | None]:
    """Open the file for the block; yields None if it is missing."""
    with _as_ledger_errors(path), _mutex:
        if not path.exists():
            yield None
            return
        _require_file(path)
        with _open_connection(path) as connection:
            yield connection


@contextmanager
def _open_connection(path: Path) -> Iterator[sqlite3.Connection]:
    uri = f"{path.absolute().as_uri()}?mode=rw"
    with closing(sqlite3.connect(uri, uri=True, isolation_level=None, timeout=LOCK_WAIT_SECONDS)) as connection:
        if not path.stat().st_size:
            connection.execute("PRAGMA auto_vacuum = FULL")  # only for a new file
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
    """Convert errors of the system and of SQLite to a LedgerError of one line."""
    try:
        yield
    except OSError as error:
        raise LedgerError(f"{path}: {error.strerror or error}") from error
    except (TypeError, ValueError) as error:  # damaged tables of SQLite itself
        raise LedgerError(f"{path}: is damaged ({error})") from error
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_READONLY:
            # SQLite creates its journal beside the file.
            raise LedgerError(f"{path}: it or its folder cannot be written to ({error})") from error
        if code == sqlite3.SQLITE_NOTADB:
            raise LedgerError(f"{path}: is not a ledger") from error
        if code == sqlite3.SQLITE_CORRUPT:
            raise LedgerError(f"{path}: is damaged ({error})") from error
        raise LedgerError(str(store_error(path, error))) from error
