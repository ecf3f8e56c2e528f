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


def count(config: Config, sought: ArchiveCount | None) -> MessageTotals:
    """Count the messages of ``sought``, and their bytes. Raises UnreadableArchiveError."""
    if sought is None:
        return NOTHING
    import pyarrow  # noqa: PLC0415 - loaded only by commands that read the archive
    from deltalake.exceptions import DeltaError  # noqa: PLC0415 - as above

    reason = ""
    for _ in range(TRIES):  # a run that replaces files makes a read fail
        try:
            return _count(config, sought)
        except (DeltaError, pyarrow.ArrowException, OSError, sqlite3.Error) as error:
            reason = one_line(error)
    raise UnreadableArchiveError(f"{config.archive_path}: {reason}")


def _count(config: Config, sought: ArchiveCount) -> MessageTotals:
    table, fault = open_known(config.archive_path, lambda: _known(config))
    if fault:
        raise UnreadableArchiveError(fault)
    builder = scan.by_rows(table)
    found, size = scan.totals(builder, sought), 0
    if found.messages:  # DataFusion has no function for the length of bytes
        for batch in scan.batches(builder, f"SELECT mls_message FROM archive WHERE {scan.hidden(sought)}"):
            size += sum(map(len, batch.column(0).to_pylist()))
    return replace(found, body_bytes=size)


def _known(config: Config) -> ArchiveState:
    with closing(sqlite.connect(config.database, readonly=True)) as connection:
        state = moves.find_state(connection)
    if state is None:
        raise UnreadableArchiveError(f"{config.database}: the database has no archive")
    return state
