"""Counts what a purge would take from the archive, without Spark."""

import sqlite3
from contextlib import closing

from conclave.archive.age import TRIES, open_known
from conclave.archive.faults import one_line
from conclave.config.settings import Config
from conclave.store import sqlite
from conclave.store.archive import moves
from conclave.store.archive.moves import ArchiveState
from conclave.store.purges import Amount, Sought


class UnreadableError(Exception):
    """The archive cannot be read. The message is one line for the operator."""


def count(config: Config, sought: Sought) -> Amount:
    """Count what is in the archive. Reads the parts that ``sought`` names. Raises UnreadableError."""
    if not sought.parts:
        return Amount()
    import pyarrow  # noqa: PLC0415 - other commands do not pay for it
    from deltalake.exceptions import DeltaError  # noqa: PLC0415 - as above

    reason = ""
    for _ in range(TRIES):  # a run that replaces files makes a read fail
        try:
            return _count(config, sought)
        except (DeltaError, pyarrow.ArrowException, OSError, sqlite3.Error) as error:
            reason = one_line(error)
    raise UnreadableError(f"{config.archive_path}: {reason}")


def _count(config: Config, sought: Sought) -> Amount:
    import pyarrow  # noqa: PLC0415 - as above
    from deltalake import QueryBuilder  # noqa: PLC0415 - as above

    table, fault = open_known(config.archive_path, lambda: _known(config))
    if fault:
        raise UnreadableError(fault)
    query = QueryBuilder().register("archive", table)
    partitions = " OR ".join(f"(lifetime = {lifetime} AND span = {span})" for lifetime, span in sought.parts)
    where = f"FROM archive WHERE ({partitions}) AND {sought.condition} AND sequence_num <= {sought.border}"
    sums = pyarrow.table(query.execute(f"SELECT {sought.sums} {where}").read_all())
    messages, *others = (column[0].as_py() for column in sums.columns)
    if not messages:
        return Amount()
    body_bytes = 0  # the query language has no length of bytes
    with pyarrow.RecordBatchReader.from_stream(query.execute(f"SELECT mls_message {where}")) as batches:
        for batch in batches:
            body_bytes += sum(map(len, batch.column(0).to_pylist()))
    return Amount(messages, body_bytes, *others)


def _known(config: Config) -> ArchiveState:
    with closing(sqlite.connect(config.database, readonly=True)) as connection:
        state = moves.find_state(connection)
    if state is None:
        raise UnreadableError(f"{config.database}: knows of no archive")
    return state
