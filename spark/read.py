"""Reads the hot store into DataFrames.

The driver reads it, by ADBC and Arrow: the executors of a cluster could not open a SQLite file. ADBC brings its own
SQLite library. If a process has one file open through two SQLite libraries, it loses its locks when either closes the
file. So no ``sqlite3`` connection to the store may be open in this process meanwhile.
"""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import adbc_driver_sqlite.dbapi
import pyarrow
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, DataType, LongType, StructType

from conclave.retention.holds import HELD_GROUPS, HELD_SENDERS, UNHELD
from conclave.retention.rules import COMMITS_ABOVE, LEAST_WATERMARK, RULES, TAKEN_BACK, TIMED, is_kept
from spark import columns as c

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

# Written so, SQLite looks only at the members of groups that have such messages.
_READERS = """
SELECT group_key, member_id, read_up_to, user_id
FROM (SELECT DISTINCT group_key FROM self_destructing) CROSS JOIN members USING (group_key)
"""

_ARROW_TYPES: dict[DataType, pyarrow.DataType] = {LongType(): pyarrow.int64(), BinaryType(): pyarrow.binary()}


@dataclass(frozen=True)
class HotTables:
    """The tables from which the plan is made.

    ``sessions`` and ``invites`` are None if they have no rows, as in most runs: Spark would start a job even for an
    empty table. Likewise ``timed``, the self-destructing messages with their readers and the timers that have not
    ended; and ``taken_back``, the messages that were. The tombstones go into the plan as they are.
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
    """Read one snapshot of the store.

    ``now``: Unix seconds; of sessions and invites only those are read that can be dead by then.
    """
    queries: dict[str, tuple[str, StructType]] = {
        "groups": ("", c.GROUPS),
        "members": ("SELECT group_key, watermark FROM members", c.MEMBERS),
        "sessions": (f"SELECT session_id, expires_at FROM sessions WHERE expires_at <= {now:d}", c.SESSIONS),
        "invites": (f"SELECT invite_key, created_at FROM invites WHERE created_at <= {now:d}", c.INVITES),
        "tombstones": ("SELECT group_key FROM tombstones", c.TOMBSTONES),
        "user_tombstones": ("SELECT user_id FROM user_tombstones", c.USER_TOMBSTONES),
        "self_destructing": (_SELF_DESTRUCTING, c.SELF_DESTRUCTING),
        "taken_back": (_TAKEN_BACK, c.REDACTED),
        "readers": (_READERS, c.READERS),
        "timers": (
            f"SELECT group_key, sequence_num, member_id FROM timers WHERE NOT told AND redact_at > {now:d}",
            c.TIMERS,
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
        tombstones=sorted(tables["tombstones"][c.GROUP_KEY].to_pylist()),
        user_tombstones=sorted(tables["user_tombstones"][c.USER_ID].to_pylist()),
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
    """Return the query for the groups. What nothing needs is left out: it would cost each of them."""
    cursor.execute(f"{HELD_SENDERS} LIMIT 1")
    unheld = f" AND {UNHELD}" if cursor.fetchone() else ""
    cursor.execute("SELECT 1 FROM groups WHERE keeps_commits LIMIT 1")
    of_age = f"{unheld} AND NOT {is_kept()}" if cursor.fetchone() else unheld

    def oldest(what: str, conditions: str) -> str:
        return f"(SELECT min({what}) FROM messages WHERE messages.group_key = bounded.group_key{conditions})"

    return _GROUPS.format(
        least=LEAST_WATERMARK,
        held=HELD_GROUPS,
        commits_above=COMMITS_ABOVE,
        oldest_seq=oldest("sequence_num", unheld),
        oldest_created=oldest("created_at", of_age),
        oldest_marked=f"iif(gone_below > 0, {oldest('created_at', f' AND sequence_num <= gone_below{unheld}')}, NULL)",
        oldest_fetched=f"iif(fetched > 0, {oldest('created_at', f' AND sequence_num <= fetched{unheld}')}, NULL)",
    )


def _typed(table: pyarrow.Table, schema: StructType) -> pyarrow.Table:
    """Give the columns the types of ``schema``.

    ADBC's driver guesses the types from the first rows. If these are null, or if there are no rows, it says integers,
    which cannot be cast to binary.
    """
    types = _arrow_schema(schema)
    return table.cast(types) if table.num_rows else types.empty_table()


def _arrow_schema(schema: StructType) -> pyarrow.Schema:
    return pyarrow.schema([(field.name, _ARROW_TYPES[field.dataType]) for field in schema])
