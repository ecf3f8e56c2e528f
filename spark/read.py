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

from conclave.retention.jobs import Scope
from conclave.retention.policy import FOREVER, GroupPolicy
from conclave.retention.resolve import PolicySettings
from conclave.store import policies, visibility
from spark import columns as c

_GROUPS = """
WITH bounded AS (
    SELECT *, {commits_above} AS commits_above, {fetched} AS fetched FROM groups
)
SELECT group_id, group_key, message_expiry_seconds, min_lifetime_seconds, floor_seq, gone_below, expired_before,
    commits_above, {oldest_seq} AS oldest_seq, {oldest_created} AS oldest_created_at,
    {oldest_marked} AS oldest_marked_at, {oldest_fetched} AS oldest_fetched_at
FROM bounded
"""

_SELF_DESTRUCTING = f"""
SELECT group_key, sequence_num, created_at, ended, sender_id
FROM {visibility.TIMED} WHERE {policies.UNHELD}
"""

# Written so, SQLite looks only at the members of groups that have such messages.
_READERS = """
SELECT group_key, member_id, read_up_to, user_id
FROM (SELECT DISTINCT group_key FROM self_destructing) CROSS JOIN members USING (group_key)
"""

_LEAST_WATERMARK = "ifnull((SELECT min(watermark) FROM members WHERE members.group_key = groups.group_key), 0)"

_ARROW_TYPES: dict[DataType, pyarrow.DataType] = {LongType(): pyarrow.int64(), BinaryType(): pyarrow.binary()}


@dataclass(frozen=True)
class HotTables:
    """The tables from which the plan is made.

    ``sessions`` and ``invites`` are None if they have no rows, as in most runs: Spark would start a job even for an
    empty table. Likewise ``timed``, the self-destructing messages with their readers and the timers that have not
    ended. The tombstones go into the plan as they are.
    """

    groups: DataFrame
    members: DataFrame
    sessions: DataFrame | None
    invites: DataFrame | None
    tombstones: list[int]
    user_tombstones: list[bytes]
    timed: tuple[DataFrame, DataFrame, DataFrame] | None


def read_hot(spark: SparkSession, database: Path, settings: PolicySettings, now: int, scope: Scope) -> HotTables:
    """Read one snapshot of the store.

    ``now``: Unix seconds; of sessions and invites only those are read that can be dead by then.
    """
    queries: dict[str, tuple[str, StructType]] = {
        "held": ("SELECT group_key FROM holds WHERE group_key IS NOT NULL", c.HELD_GROUPS),
        "members": ("SELECT group_key, watermark FROM members", c.MEMBERS),
        "sessions": (f"SELECT session_id, expires_at FROM sessions WHERE expires_at <= {now:d}", c.SESSIONS),
        "invites": (f"SELECT invite_key, created_at FROM invites WHERE created_at <= {now:d}", c.INVITES),
        "tombstones": ("SELECT group_key FROM tombstones", c.TOMBSTONES),
        "user_tombstones": ("SELECT user_id FROM user_tombstones", c.USER_TOMBSTONES),
        "self_destructing": (_SELF_DESTRUCTING, c.SELF_DESTRUCTING),
        "readers": (_READERS, c.READERS),
        "timers": (
            f"SELECT group_key, sequence_num, member_id FROM timers WHERE NOT told AND redact_at > {now:d}",
            c.TIMERS,
        ),
    }
    tables = _snapshot(database, queries, settings)

    def frame(name: str) -> DataFrame:
        return spark.createDataFrame(tables[name], queries[name][1])

    return HotTables(
        groups=spark.createDataFrame(_with_policies(tables, settings, now, scope), c.GROUPS),
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
    )


def _snapshot(
    database: Path, queries: Mapping[str, tuple[str, StructType]], settings: PolicySettings
) -> dict[str, pyarrow.Table]:
    with (
        closing(adbc_driver_sqlite.dbapi.connect(f"{database.as_uri()}?mode=ro")) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("PRAGMA temp_store = MEMORY")
        tables = {}
        for name, (query, schema) in {**queries, "groups": (_groups(cursor, settings), c.STORED_GROUPS)}.items():
            cursor.execute(query)
            tables[name] = _typed(cursor.fetch_arrow_table(), schema)
        return tables


def _groups(cursor: adbc_driver_sqlite.dbapi.Cursor, settings: PolicySettings) -> str:
    """Return the query for the groups. What nothing needs is left out: it would cost each of them."""
    cursor.execute("SELECT DISTINCT message_expiry_seconds, min_lifetime_seconds FROM groups")
    occurring = list(cursor.fetchall())
    cursor.execute("SELECT 1 FROM holds WHERE user_id IS NOT NULL LIMIT 1")
    unheld = f" AND {policies.UNHELD}" if cursor.fetchone() else ""
    of_age = f"{unheld} AND NOT (is_commit AND sequence_num > commits_above)" if settings.retain_commits else unheld
    waiting = [own for own in occurring if _waits_for_age(settings.of_setting(*own))]
    fetched = f"max(gone_below, floor_seq, {_LEAST_WATERMARK})"

    def oldest(what: str, conditions: str) -> str:
        return f"(SELECT min({what}) FROM messages WHERE messages.group_key = bounded.group_key{conditions})"

    chosen = ", ".join(f"({expiry:d}, {least:d})" for expiry, least in waiting)
    is_waiting = f"(message_expiry_seconds, min_lifetime_seconds) IN (VALUES {chosen})" if waiting else "FALSE"
    return _GROUPS.format(
        commits_above=f"max(commits_below, {_LEAST_WATERMARK})" if settings.retain_commits else FOREVER,
        fetched=f"iif({is_waiting}, {fetched}, 0)",
        oldest_seq=oldest("sequence_num", unheld),
        oldest_created=oldest("created_at", of_age),
        oldest_marked=f"iif(gone_below > 0, {oldest('created_at', f' AND sequence_num <= gone_below{unheld}')}, NULL)",
        oldest_fetched=f"iif(fetched > 0, {oldest('created_at', f' AND sequence_num <= fetched{unheld}')}, NULL)",
    )


def _waits_for_age(policy: GroupPolicy) -> bool:
    """Tell whether messages that everybody has fetched have to reach an age before they are erased."""
    return policy.is_after_fetch and policy.min_lifetime > 0


def _typed(table: pyarrow.Table, schema: StructType) -> pyarrow.Table:
    """Give the columns the types of ``schema``.

    ADBC's driver guesses the types from the first rows. If these are null, or if there are no rows, it says integers,
    which cannot be cast to binary.
    """
    types = _arrow_schema(schema)
    return table.cast(types) if table.num_rows else types.empty_table()


def _arrow_schema(schema: StructType) -> pyarrow.Schema:
    return pyarrow.schema([(field.name, _ARROW_TYPES[field.dataType]) for field in schema])


def _with_policies(
    tables: Mapping[str, pyarrow.Table], settings: PolicySettings, now: int, scope: Scope
) -> pyarrow.Table:
    """Add to each group its policy at the Unix second ``now``."""
    groups = tables["groups"]
    held = set(tables["held"][c.GROUP_KEY].to_pylist())
    places: dict[GroupPolicy, int] = {}
    chosen = [
        places.setdefault(settings.of_group(*own), len(places))
        for own in zip(*(groups[name].to_pylist() for name in (c.GROUP_ID, c.EXPIRY, c.MIN_LIFETIME)), strict=True)
    ]
    columns = {
        c.LIFETIME: [policy.lifetime for policy in places],
        c.EXPIRES_BEFORE: [policy.expires_before(now) for policy in places],
        c.ERASABLE_BEFORE: [policy.erasable_before(now) for policy in places],
        c.COVERED: [int(scope.covers(policy)) for policy in places],
    }
    for name, values in columns.items():
        column = [values[place] for place in chosen]
        if name == c.ERASABLE_BEFORE and held:
            keys = groups[c.GROUP_KEY].to_pylist()
            column = [0 if key in held else value for key, value in zip(keys, column, strict=True)]
        groups = groups.append_column(name, pyarrow.array(column, pyarrow.int64()))
    return groups
