"""Queries of the archive's table for commands: each opens the table, without a server or Spark."""

import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from conclave.archive import layout, scan
from conclave.archive.faults import ADVICE, UnreadableArchiveError, one_line
from conclave.archive.layout import DamagedMessageError, in_partitions
from conclave.archive.scan import batches, by_rows
from conclave.archive.snapshot import TRIES, open_known, open_table
from conclave.config.settings import Config
from conclave.keys.cipher import AlteredError
from conclave.keys.file import KeyFileError
from conclave.keys.store import KeyStore
from conclave.keys.tree import Range
from conclave.retention.fate import MessageFacts
from conclave.retention.hidden import NOTHING, ArchiveCount, MessageTotals
from conclave.retention.stretches import Stretch
from conclave.store import bodies
from conclave.store.archive import moves
from conclave.store.archive.moves import ArchiveState
from conclave.store.engine import sqlite
from conclave.store.views.explain import ArchiveReadError
from conclave.store.views.export import HeldGroup

if TYPE_CHECKING:
    from deltalake import QueryBuilder

_RANGES_QUERY = (
    "SELECT group_key, min(sequence_num), max(sequence_num) FROM (SELECT group_key, sequence_num,"
    " sequence_num - CAST(row_number() OVER (PARTITION BY group_key ORDER BY sequence_num) AS BIGINT) AS run"
    " FROM archive) GROUP BY group_key, run ORDER BY 1, 2"
)


class ExportedMessage(NamedTuple):
    """A message of the archive."""

    sequence_num: int
    created_at: int
    """Unix seconds."""
    is_commit: bool
    body: bytes


@contextmanager
def read_errors(folder: Path) -> Iterator[None]:
    """Context manager that maps errors of reading the table in ``folder`` to UnreadableArchiveError."""
    import pyarrow  # noqa: PLC0415 - loaded only if there is an archive
    from deltalake.exceptions import DeltaError  # noqa: PLC0415 - as above

    try:
        yield
    except (DeltaError, pyarrow.ArrowException, OSError, sqlite3.Error) as error:
        raise UnreadableArchiveError(f"{folder}: {one_line(error)}") from error


def count(config: Config, archive_count: ArchiveCount | None) -> MessageTotals:
    """Count the messages of ``archive_count``, and their bytes. Raises UnreadableArchiveError."""
    if archive_count is None:
        return NOTHING
    for _ in range(TRIES - 1):  # a read fails if a run replaces files
        try:
            return _count(config, archive_count)
        except UnreadableArchiveError:
            continue
    return _count(config, archive_count)


def _count(config: Config, archive_count: ArchiveCount) -> MessageTotals:
    with read_errors(config.archive_path):
        query = _open(config)
        totals, body_bytes = scan.totals(query, archive_count), 0
        if totals.messages:  # DataFusion has no function for the length of bytes
            for batch in batches(query, f"SELECT mls_message FROM archive WHERE {scan.hidden(archive_count)}"):
                body_bytes += sum(map(len, batch.column(0).to_pylist()))
    return replace(totals, body_bytes=body_bytes)


def numbers_in(folder: Path) -> dict[int, list[Range]]:
    """Return the numbers of the messages in the table ``folder`` as ascending ranges, by group key. Reads no bodies.

    Raises UnreadableArchiveError.
    """
    ranges: dict[int, list[Range]] = defaultdict(list)
    with read_errors(folder):
        for batch in batches(by_rows(open_table(folder)), _RANGES_QUERY):
            for group_key, first, last in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                ranges[group_key].append(Range(first, last))
    return dict(ranges)


def find(config: Config, group_key: int, number: int, partitions: Sequence[tuple[int, int]]) -> MessageFacts | None:
    """Return the message ``number`` of a group without its body; None if it is not in the archive.

    ``partitions``: class and span of the partitions to search. Raises ArchiveReadError.
    """
    sql = (
        f"SELECT created_at, sender_id, is_commit FROM archive WHERE {in_partitions(partitions)}"
        f" AND group_key = {group_key:d} AND sequence_num = {number:d}"
    )
    try:
        rows = list(_rows(config, sql))
    except UnreadableArchiveError as error:
        raise ArchiveReadError(str(error)) from error
    return MessageFacts(rows[0]["created_at"], rows[0]["sender_id"], rows[0]["is_commit"]) if rows else None


def messages_of_user(
    config: Config, stretch: Stretch, user_id: bytes, keys: KeyStore | None
) -> Iterator[ExportedMessage]:
    """Yield the messages of a user in ``stretch``, in any order. Raises UnreadableArchiveError.

    ``keys``: the keys of the messages; None if they are not open, so that no message can be read. No run may be active
    during the read.
    """
    for row in _rows(config, scan.of_sender(stretch, user_id)):
        if each := _decrypted(config, row, stretch.group_key, stretch.group_id, user_id, keys):
            yield each


def held_messages_of_user(
    config: Config, groups: Mapping[int, HeldGroup], user_id: bytes, keys: KeyStore | None
) -> Iterator[tuple[bytes, ExportedMessage]]:
    """Yield all messages of a user with their group ids, in any order, including hidden ones.

    Skips messages that moved back into the hot store. ``groups``: all groups by key. See also ``messages_of_user``.
    """
    for row in _rows(config, scan.of_sender_anywhere(user_id)):
        group = groups.get(row["group_key"])
        if group is None or (not group.is_deleted and row["sequence_num"] > group.archived_seq):
            continue
        if each := _decrypted(config, row, group.group_key, group.group_id, user_id, keys):
            yield group.group_id, each


def _rows(config: Config, sql: str) -> Iterator[dict[str, Any]]:
    with read_errors(config.archive_path):
        for batch in batches(_open(config), sql):
            yield from batch.to_pylist()


def _open(config: Config) -> "QueryBuilder":
    """Open the table that belongs to the database. Raises UnreadableArchiveError, and the errors of deltalake."""

    def read_state() -> ArchiveState:
        with closing(sqlite.connect(config.database, readonly=True)) as connection:
            state = moves.find_state(connection)
        if state is None:
            raise UnreadableArchiveError(f"{config.database}: the database has no archive")
        return state

    table, fault = open_known(config.archive_path, read_state)
    if fault:
        raise UnreadableArchiveError(fault)
    return by_rows(table)


def _decrypted(
    config: Config, row: dict[str, Any], group_key: int, group_id: bytes, user_id: bytes, keys: KeyStore | None
) -> ExportedMessage | None:
    """Return a decrypted message; None if it was erased. Raises UnreadableArchiveError."""
    each = ExportedMessage(row["sequence_num"], row["created_at"], row["is_commit"], row["mls_message"])
    try:
        layout.verify_checksum(
            *(group_key, each.sequence_num, user_id, each.created_at, each.body, row["checksum"]),
            is_commit=each.is_commit,
        )
        body = bodies.decrypt_archived(keys, group_id, [each.sequence_num], [each.body])[0]
    except (AlteredError, KeyFileError) as error:
        raise UnreadableArchiveError(f"{config.archive_path}: {error}") from error
    except DamagedMessageError as error:
        raise UnreadableArchiveError(f"{config.archive_path}: message {error} of a group is damaged{ADVICE}") from error
    return None if body is None else each._replace(body=body)
