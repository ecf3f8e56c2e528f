"""The archive's state for operators, from the database's index and the table's log, without Spark.

Nothing is locked: while a run is under way, index and log may be some commits apart.
"""

import sqlite3
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime

from conclave.archive.faults import one_line
from conclave.archive.snapshot import open_known
from conclave.config.settings import Config
from conclave.store.archive import moves as archive_moves, reclaiming, status
from conclave.store.archive.moves import ArchiveState
from conclave.store.archive.reclaiming import DeadSpace
from conclave.store.archive.status import ArchivedAmount, ArchiveOverdue, Move
from conclave.store.engine import schema, sqlite

LAST_MOVES = 5
"""The last 5 batches are shown."""


class StatusError(Exception):
    """The state cannot be told. The message is one line for the operator."""


@dataclass(frozen=True)
class ClassMonth:
    """What is archived of one class and month.

    ``files`` and ``disk_bytes``: those of the table's newest version.
    """

    lifetime: int
    month: str
    groups: int
    messages: int
    body_bytes: int
    files: int
    disk_bytes: int


@dataclass(frozen=True)
class Status:
    """The archive at one moment."""

    path: str
    needed_version: int
    """Readers need this version of the table or a later one."""
    table_version: int | None
    unerased: bool
    """Replaced files may still be on disk."""
    shares: list[ClassMonth]
    overdue: ArchiveOverdue
    moves: list[Move]
    fault: str
    """Why the table cannot be read, "" if it can; then it has no version and no files here."""
    dead: DeadSpace
    """What was erased, and takes space in the files until that is given back."""

    @property
    def is_none(self) -> bool:
        """Whether there is no archive: nothing has ever moved."""
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
            known = archive_moves.find_state(connection)
            if known is None:
                return _none(config)
            amounts = status.amounts(connection)
            overdue = status.overdue(connection, now)
            moves = status.last_moves(connection, LAST_MOVES)
            dead = reclaiming.dead(connection)
    except sqlite3.Error as error:
        raise StatusError(str(error)) from error
    files = _read_files(config, known, is_expected=bool(amounts))
    return Status(
        str(config.archive_path),
        known.version,
        files.version,
        known.unerased,
        _join(amounts, files),
        overdue,
        moves,
        files.fault,
        dead,
    )


def _none(config: Config) -> Status:
    """Return the state of an archive that nothing has ever moved to."""
    overdue = ArchiveOverdue(0, 0, 0, 0, 0, 0, 0, 0)
    none = DeadSpace(0, None)
    return Status(str(config.archive_path), 0, None, False, [], overdue, [], "", none)  # noqa: FBT003 - in their order


def _read_files(config: Config, known: ArchiveState, *, is_expected: bool) -> _Files:
    """Read the log of the table. An error is returned in ``fault``."""
    import pyarrow  # noqa: PLC0415 - other commands do not pay for it
    from deltalake import DeltaTable  # noqa: PLC0415 - as above
    from deltalake.exceptions import DeltaError  # noqa: PLC0415 - as above

    def read_state() -> ArchiveState:
        with closing(sqlite.connect(config.database, readonly=True)) as connection:
            return archive_moves.find_state(connection) or known

    path = config.archive_path
    counts: Counter[tuple[int, str]] = Counter()
    disk_bytes: Counter[tuple[int, str]] = Counter()
    try:
        if not is_expected and not known.version and not DeltaTable.is_deltatable(str(path)):
            return _Files(None, counts, disk_bytes)
        table, fault = open_known(path, read_state)
        if fault:
            return _Files(None, counts, disk_bytes, fault)
        actions = pyarrow.table(table.get_add_actions(flatten=True))
        columns = ("partition.lifetime", "partition.span", "size_bytes")
        for lifetime, span, size in zip(*(actions[name].to_pylist() for name in columns), strict=True):
            counts[lifetime, _month(span)] += 1
            disk_bytes[lifetime, _month(span)] += size
        return _Files(table.version(), counts, disk_bytes)
    except (DeltaError, pyarrow.ArrowException, OSError, sqlite3.Error) as error:
        return _Files(None, counts, disk_bytes, f"{path}: {one_line(error)}")


def _join(amounts: Iterable[ArchivedAmount], files: _Files) -> list[ClassMonth]:
    """Join both by class and month; if one of them lacks an entry, its numbers are zero."""
    indexed = {(each.lifetime, each.month): each for each in amounts}
    shares = []
    for key in sorted(indexed.keys() | files.counts.keys()):
        each = indexed.get(key, ArchivedAmount(*key, 0, 0, 0))
        shares.append(
            ClassMonth(*key, each.groups, each.messages, each.body_bytes, files.counts[key], files.disk_bytes[key])
        )
    return shares


def _month(span: int) -> str:
    return f"{datetime.fromtimestamp(span, UTC):%Y-%m}"
