"""Reads the hot store into DataFrames.

The driver reads it, by ADBC and Arrow: the executors of a cluster could not open a SQLite file. ADBC brings its own
SQLite library. If a process has one file open through two SQLite libraries, it loses its locks when either closes the
file. So no ``sqlite3`` connection to the store may be open in this process at the same time.

Defines the columns of the tables and of the plan: 64-bit integers, except user ids, which are 16 bytes.
"""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import adbc_driver_sqlite.dbapi
import pyarrow
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, DataType, LongType, StructField, StructType

from conclave.retention import rules
from conclave.retention.holds import HELD_GROUPS, HELD_SENDERS, UNHELD
from conclave.retention.rules import RULES, TAKEN_BACK, TIMED, is_kept

GROUP_KEY = "group_key"
LIFETIME = "effective_expiry"
"""The effective expiry of a group: -1 for keep, 0 for delete-after-fetch, or seconds."""

LEAST_LIFETIME = "least_lifetime"
HOLD_LIMIT = "hold_limit"
ERASES = "erases"
"""0 if no message may be erased, otherwise 1."""

HELD = "held"
"""1 if a legal hold covers the group, otherwise 0."""

EXPIRES_BEFORE = "expires_before"
"""The Unix second before which messages have expired by age (exclusive) when the run starts; 0: no message has."""

ERASABLE_BEFORE = "erasable_before"
"""The Unix second before which messages are old enough to be erased (exclusive); 0: no message is."""

COVERED = "covered"
"""1 if the group belongs to the run by its lifetime, otherwise 0."""

COMMITS_ABOVE = "commits_above"
"""Commits with greater numbers do not expire by age."""

FLOOR = "floor_seq"
GONE_BELOW = "gone_below"
EXPIRED_BEFORE = "expired_before"
OLDEST_SEQ = "oldest_seq"
OLDEST_CREATED = "oldest_created_at"
OLDEST_MARKED = "oldest_marked_at"
OLDEST_FETCHED = "oldest_fetched_at"
WATERMARK = "watermark"
READ_UP_TO = "read_up_to"
MEMBER_ID = "member_id"
SEQUENCE_NUM = "sequence_num"
SENDER_ID = "sender_id"
ENDED = "ended"
"""1 if no timer of a self-destructing message can start any more, otherwise 0."""

REDACTS = "redacts"
"""1 if the group has due messages that are redacted for everyone, otherwise 0."""

LEAST_WATERMARK = "least_watermark"
SESSION_ID = "session_id"
EXPIRES_AT = "expires_at"
INVITE_KEY = "invite_key"
CREATED_AT = "created_at"
USER_ID = "user_id"

_INTEGER = LongType()


def _table(*names: str, of: DataType = _INTEGER) -> StructType:
    return StructType([StructField(name, of) for name in names])


GROUPS = _table(
    *(GROUP_KEY, LIFETIME, LEAST_LIFETIME, HOLD_LIMIT, ERASES, HELD, FLOOR, GONE_BELOW, EXPIRED_BEFORE, COMMITS_ABOVE),
    *(OLDEST_SEQ, OLDEST_CREATED, OLDEST_MARKED, OLDEST_FETCHED),
)
"""One row for each group: its policy and marks, and minima over its messages under no legal hold, or null.

OLDEST_SEQ: the least number. OLDEST_CREATED: the least time of messages that can expire by age. OLDEST_MARKED: of
messages under the mark GONE_BELOW. OLDEST_FETCHED: of messages that all members have fetched, only for groups in
delete-after-fetch with a minimum lifetime.
"""

MEMBERS = _table(GROUP_KEY, WATERMARK)
SELF_DESTRUCTING = StructType(
    [*_table(GROUP_KEY, SEQUENCE_NUM, CREATED_AT, ENDED), StructField(SENDER_ID, BinaryType())]
)
"""Self-destructing messages whose sender is under no legal hold."""

READERS = StructType([*_table(GROUP_KEY, MEMBER_ID, READ_UP_TO), StructField(USER_ID, BinaryType())])
"""The members of groups that have self-destructing messages, and how far each has read."""

REDACTED = _table(GROUP_KEY, CREATED_AT)
"""Messages that are redacted for everyone, and whose sender is under no legal hold."""

TIMERS = _table(GROUP_KEY, SEQUENCE_NUM, MEMBER_ID)
"""The timers that have not ended."""

SESSIONS = _table(SESSION_ID, EXPIRES_AT)
INVITES = _table(INVITE_KEY, CREATED_AT)
TOMBSTONES = _table(GROUP_KEY)
USER_TOMBSTONES = _table(USER_ID, of=BinaryType())


_GROUPS = """
WITH bounded AS (
    SELECT *, {commits_above} AS commits_above,
        iif(effective_expiry = 0 AND least_lifetime > 0, max(gone_below, floor_seq, {least}), 0) AS fetched FROM groups
)
SELECT group_key, effective_expiry, least_lifetime, hold_limit, erases,
    group_key IN ({held}) AS held, floor_seq, gone_below,
    expired_before, commits_above, {oldest_seq} AS oldest_seq, {oldest_created} AS oldest_created_at,
    {oldest_marked} AS oldest_marked_at, {oldest_fetched} AS oldest_fetched_at
FROM bounded
"""

_SELF_DESTRUCTING = f"""
SELECT group_key, sequence_num, created_at, ended, sender_id
FROM {TIMED} WHERE {UNHELD}
"""

_TAKEN_BACK = f"SELECT group_key, created_at FROM {RULES[TAKEN_BACK].tables} WHERE {UNHELD}"

# This form makes SQLite scan only the members of groups with such messages.
_READERS = """
SELECT group_key, member_id, read_up_to, user_id
FROM (SELECT DISTINCT group_key FROM self_destructing) CROSS JOIN members USING (group_key)
"""

_ARROW_TYPES: dict[DataType, pyarrow.DataType] = {LongType(): pyarrow.int64(), BinaryType(): pyarrow.binary()}


@dataclass(frozen=True)
class HotTables:
    """The tables for a plan. Tables that are empty in most runs are None, since Spark would start a job for each.

    ``timed``: the self-destructing messages, their readers, and running timers. ``taken_back``: taken back messages.
    """

    groups: DataFrame
    members: DataFrame
    sessions: DataFrame | None
    invites: DataFrame | None
    tombstones: list[int]
    user_tombstones: list[bytes]
    timed: tuple[DataFrame, DataFrame, DataFrame] | None
    taken_back: DataFrame | None


def read_hot(spark: SparkSession, database: Path, now: int) -> HotTables:
    """Read one snapshot of the store at the Unix second ``now``. Skips sessions and invites that are valid."""
    queries: dict[str, tuple[str, StructType]] = {
        "groups": ("", GROUPS),
        "members": ("SELECT group_key, watermark FROM members", MEMBERS),
        "sessions": (f"SELECT session_id, expires_at FROM sessions WHERE expires_at <= {now:d}", SESSIONS),
        "invites": (f"SELECT invite_key, created_at FROM invites WHERE created_at <= {now:d}", INVITES),
        "tombstones": ("SELECT group_key FROM tombstones", TOMBSTONES),
        "user_tombstones": ("SELECT user_id FROM user_tombstones", USER_TOMBSTONES),
        "self_destructing": (_SELF_DESTRUCTING, SELF_DESTRUCTING),
        "taken_back": (_TAKEN_BACK, REDACTED),
        "readers": (_READERS, READERS),
        "timers": (
            f"SELECT group_key, sequence_num, member_id FROM timers WHERE NOT told AND redact_at > {now:d}",
            TIMERS,
        ),
    }
    tables = _snapshot(database, queries)

    def frame(name: str) -> DataFrame:
        return spark.createDataFrame(tables[name], queries[name][1])

    return HotTables(
        groups=frame("groups"),
        members=frame("members"),
        sessions=frame("sessions") if tables["sessions"].num_rows else None,
        invites=frame("invites") if tables["invites"].num_rows else None,
        tombstones=sorted(tables["tombstones"][GROUP_KEY].to_pylist()),
        user_tombstones=sorted(tables["user_tombstones"][USER_ID].to_pylist()),
        timed=(
            (frame("self_destructing"), frame("readers"), frame("timers"))
            if tables["self_destructing"].num_rows
            else None
        ),
        taken_back=frame("taken_back") if tables["taken_back"].num_rows else None,
    )


def _snapshot(database: Path, queries: Mapping[str, tuple[str, StructType]]) -> dict[str, pyarrow.Table]:
    with (
        closing(adbc_driver_sqlite.dbapi.connect(f"{database.as_uri()}?mode=ro")) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("PRAGMA temp_store = MEMORY")
        tables = {}
        for name, (query, schema) in queries.items():
            cursor.execute(query or _groups(cursor))
            tables[name] = _typed(cursor.fetch_arrow_table(), schema)
        return tables


def _groups(cursor: adbc_driver_sqlite.dbapi.Cursor) -> str:
    """Return the query for the groups, without conditions that have no effect now: each costs time for every group."""
    cursor.execute(f"{HELD_SENDERS} LIMIT 1")
    unheld = f" AND {UNHELD}" if cursor.fetchone() else ""
    cursor.execute("SELECT 1 FROM groups WHERE keeps_commits LIMIT 1")
    can_expire = f"{unheld} AND NOT {is_kept()}" if cursor.fetchone() else unheld

    def oldest(column: str, conditions: str) -> str:
        return f"(SELECT min({column}) FROM messages WHERE messages.group_key = bounded.group_key{conditions})"

    return _GROUPS.format(
        least=rules.LEAST_WATERMARK,
        held=HELD_GROUPS,
        commits_above=rules.COMMITS_ABOVE,
        oldest_seq=oldest("sequence_num", unheld),
        oldest_created=oldest("created_at", can_expire),
        oldest_marked=f"iif(gone_below > 0, {oldest('created_at', f' AND sequence_num <= gone_below{unheld}')}, NULL)",
        oldest_fetched=f"iif(fetched > 0, {oldest('created_at', f' AND sequence_num <= fetched{unheld}')}, NULL)",
    )


def _typed(table: pyarrow.Table, schema: StructType) -> pyarrow.Table:
    """Cast the columns to the types of ``schema``.

    ADBC's driver infers types from the first rows. If these are null or missing, it infers integers, which cannot be
    cast to binary.
    """
    types = pyarrow.schema([(field.name, _ARROW_TYPES[field.dataType]) for field in schema])
    return table.cast(types) if table.num_rows else types.empty_table()
