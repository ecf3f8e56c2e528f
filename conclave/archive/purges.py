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
    partitions = " OR ".join(f"(lifetime = {lifetime} AND span = {span})" for lifetime, span in sought.parts)
    found = (
        QueryBuilder()
        .register("archive", table)
        .execute(
            f"SELECT {sought.sums}, sum(octet_length(mls_message)) FROM archive WHERE ({partitions})"
            f" AND {sought.condition} AND sequence_num <= {sought.border}"
        )
    )
    columns = pyarrow.table(found.read_all()).columns
    messages, oldest, newest, held, young, body_bytes = (column[0].as_py() for column in columns)
    return Amount(messages, body_bytes, oldest, newest, held, young) if messages else Amount()


def _known(config: Config) -> ArchiveState:
    with closing(sqlite.connect(config.database, readonly=True)) as connection:
        state = moves.find_state(connection)
    if state is None:
        raise UnreadableError(f"{config.database}: knows of no archive")
    return state
