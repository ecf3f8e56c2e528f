"""Reports the archive's state to operators, from the database's index and the table's log, without Spark.

Takes no lock: during a run, index and log may differ by some commits.
"""

import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime

from conclave.archive.faults import UnreadableArchiveError
from conclave.archive.files import file_values
from conclave.archive.queries import read_errors
from conclave.archive.snapshot import open_known
from conclave.config.settings import Config
from conclave.store.archive import moves as archive_moves, reclaiming, status
from conclave.store.archive.moves import ArchiveState
from conclave.store.archive.reclaiming import DeadSpace
from conclave.store.archive.status import ArchivedAmount, ArchiveOverdue, Move
from conclave.store.engine import schema, sqlite

LAST_MOVES = 5
"""The number of batches to show."""


class StatusError(Exception):
    """The state cannot be read. The message is one line for the operator."""


@dataclass(frozen=True)
class ClassMonth(ArchivedAmount):
    """The archived messages of one class and month. ``files`` and ``disk_bytes``: of the table's newest version."""

    files: int = 0
    disk_bytes: int = 0


@dataclass(frozen=True)
class Status:
    """The archive at one moment."""

    path: str
    needed_version: int = 0
    """The least version of the table that readers need."""
    table_version: int | None = None
    unerased: bool = False
    """Replaced files may still be on disk."""
    shares: Sequence[ClassMonth] = ()
    overdue: ArchiveOverdue = field(default_factory=ArchiveOverdue)
    moves: Sequence[Move] = ()
    fault: str = ""
    """Why the table, its version and its files cannot be read; "": it was read."""
    dead: DeadSpace = field(default_factory=DeadSpace)
    """Erased messages that take space in files until it is reclaimed."""

    @property
    def is_absent(self) -> bool:
        """Whether there is no archive: no message was ever moved."""
        return not (self.shares or self.moves or self.fault) and self.table_version is None


@dataclass(frozen=True)
class _Files:
    """The files of the table, by class and month."""

    version: int | None
    counts: Counter[tuple[int, str]]
    disk_bytes: Counter[tuple[int, str]]
    fault: str = ""


def read_status(config: Config, now: int) -> Status:
    """Return the state of the archive at the second ``now``. Raises StatusError and StoreError."""
    schema.require_current(config.database)
    try:
        with closing(sqlite.connect(config.database, readonly=True)) as connection:
            connection.execute("BEGIN")
            state = archive_moves.find_state(connection)
            if state is None:
                return Status(str(config.archive_path))
            amounts = status.amounts(connection)
            overdue = status.overdue(connection, now)
            moves = status.last_moves(connection, LAST_MOVES)
            dead_space = reclaiming.dead(connection)
    except sqlite3.Error as error:
        raise StatusError(str(error)) from error
    files = _read_files(config, state, is_expected=bool(amounts))
    return Status(
        str(config.archive_path),
        state.version,
        files.version,
        state.unerased,
        _join(amounts, files),
        overdue,
        moves,
        files.fault,
        dead_space,
    )


def _read_files(config: Config, state: ArchiveState, *, is_expected: bool) -> _Files:
    """Read the log of the table. An error is returned in ``fault``."""
    from deltalake import DeltaTable  # noqa: PLC0415 - loaded only by commands that read the archive

    def read_state() -> ArchiveState:
        with closing(sqlite.connect(config.database, readonly=True)) as connection:
            return archive_moves.find_state(connection) or state

    path = config.archive_path
    counts: Counter[tuple[int, str]] = Counter()
    disk_bytes: Counter[tuple[int, str]] = Counter()
    try:
        with read_errors(path):
            if not is_expected and not state.version and not DeltaTable.is_deltatable(str(path)):
                return _Files(None, counts, disk_bytes)
            table, fault = open_known(path, read_state)
            if fault:
                return _Files(None, counts, disk_bytes, fault)
            columns = ("partition.lifetime", "partition.span", "size_bytes")
            for lifetime, span, size in file_values(table.get_add_actions(flatten=True), columns):
                counts[lifetime, _month(span)] += 1
                disk_bytes[lifetime, _month(span)] += size
            return _Files(table.version(), counts, disk_bytes)
    except UnreadableArchiveError as error:
        return _Files(None, counts, disk_bytes, str(error))


def _join(amounts: Iterable[ArchivedAmount], files: _Files) -> list[ClassMonth]:
    """Join amounts and files by class and month. Missing entries count as zero."""
    indexed = {(each.lifetime, each.month): each for each in amounts}
    return [
        ClassMonth(
            **vars(indexed.get(key, ArchivedAmount(*key))), files=files.counts[key], disk_bytes=files.disk_bytes[key]
        )
        for key in sorted(indexed.keys() | files.counts.keys())
    ]


def _month(span: int) -> str:
    return f"{datetime.fromtimestamp(span, UTC):%Y-%m}"
