"""Counts messages of the archive for a command, without a server or Spark."""

import sqlite3
from contextlib import closing
from dataclasses import replace

from conclave.archive import scan
from conclave.archive.faults import UnreadableArchiveError, one_line
from conclave.archive.snapshot import TRIES, open_known
from conclave.config.settings import Config
from conclave.retention.hidden import NOTHING, ArchiveCount, MessageTotals
from conclave.store.archive import moves
from conclave.store.archive.moves import ArchiveState
from conclave.store.engine import sqlite


def count(config: Config, archive_count: ArchiveCount | None) -> MessageTotals:
    """Count the messages of ``archive_count``, and their bytes. Raises UnreadableArchiveError."""
    if archive_count is None:
        return NOTHING
    import pyarrow  # noqa: PLC0415 - loaded only by commands that read the archive
    from deltalake.exceptions import DeltaError  # noqa: PLC0415 - as above

    reason = ""
    for _ in range(TRIES):  # a read fails if a run replaces files
        try:
            return _count(config, archive_count)
        except (DeltaError, pyarrow.ArrowException, OSError, sqlite3.Error) as error:
            reason = one_line(error)
    raise UnreadableArchiveError(f"{config.archive_path}: {reason}")


def _count(config: Config, archive_count: ArchiveCount) -> MessageTotals:
    table, fault = open_known(config.archive_path, lambda: _read_state(config))
    if fault:
        raise UnreadableArchiveError(fault)
    builder = scan.by_rows(table)
    totals, body_bytes = scan.totals(builder, archive_count), 0
    if totals.messages:  # DataFusion has no function for the length of bytes
        for batch in scan.batches(builder, f"SELECT mls_message FROM archive WHERE {scan.hidden(archive_count)}"):
            body_bytes += sum(map(len, batch.column(0).to_pylist()))
    return replace(totals, body_bytes=body_bytes)


def _read_state(config: Config) -> ArchiveState:
    with closing(sqlite.connect(config.database, readonly=True)) as connection:
        state = moves.find_state(connection)
    if state is None:
        raise UnreadableArchiveError(f"{config.database}: the database has no archive")
    return state
