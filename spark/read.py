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
import pyarrow.compute
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, DataType, LongType, StructType

from conclave.retention.resolve import PolicySettings
from conclave.store import policies
from spark import columns as c

_GROUPS = """
SELECT group_key, message_expiry_seconds, floor_seq, gone_below, expired_before,
    (SELECT min(sequence_num) FROM messages WHERE messages.group_key = groups.group_key) AS oldest_seq,
    (SELECT min(created_at) FROM messages WHERE messages.group_key = groups.group_key) AS oldest_created_at
FROM groups
"""

_ARROW_TYPES: dict[DataType, pyarrow.DataType] = {LongType(): pyarrow.int64(), BinaryType(): pyarrow.binary()}


@dataclass(frozen=True)
class HotTables:
    """The tables from which the plan is made.

    ``sessions`` and ``invites`` are None if they have no rows, as in most runs: Spark would start a job even for an
    empty table. The tombstones go into the plan as they are.
    """

    groups: DataFrame
    members: DataFrame
    sessions: DataFrame | None
    invites: DataFrame | None
    tombstones: list[int]
    user_tombstones: list[bytes]


def read_hot(spark: SparkSession, database: Path, settings: PolicySettings, now: int) -> HotTables:
    """Read one snapshot of the store.

    ``now``: Unix seconds; of sessions and invites only those are read that can be dead by then.
    """
    queries: dict[str, tuple[str, StructType]] = {
        "groups": (_GROUPS, c.STORED_GROUPS),
        "members": ("SELECT group_key, watermark FROM members", c.MEMBERS),
        "sessions": (f"SELECT session_id, expires_at FROM sessions WHERE expires_at <= {now:d}", c.SESSIONS),
        "invites": (f"SELECT invite_key, created_at FROM invites WHERE created_at <= {now:d}", c.INVITES),
        "tombstones": ("SELECT group_key FROM tombstones", c.TOMBSTONES),
        "user_tombstones": ("SELECT user_id FROM user_tombstones", c.USER_TOMBSTONES),
    }
    tables = _snapshot(database, queries)

    def frame(name: str) -> DataFrame:
        return spark.createDataFrame(tables[name], queries[name][1])

    return HotTables(
        groups=spark.createDataFrame(_with_policies(tables["groups"], settings, now), c.GROUPS),
        members=frame("members"),
        sessions=frame("sessions") if tables["sessions"].num_rows else None,
        invites=frame("invites") if tables["invites"].num_rows else None,
        tombstones=sorted(tables["tombstones"][c.GROUP_KEY].to_pylist()),
        user_tombstones=sorted(tables["user_tombstones"][c.USER_ID].to_pylist()),
    )


def _snapshot(database: Path, queries: Mapping[str, tuple[str, StructType]]) -> dict[str, pyarrow.Table]:
    with (
        closing(adbc_driver_sqlite.dbapi.connect(f"{database.as_uri()}?mode=ro")) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("PRAGMA temp_store = MEMORY")
        tables = {}
        for name, (query, schema) in queries.items():
            cursor.execute(query)
            tables[name] = _typed(cursor.fetch_arrow_table(), schema)
        return tables


def _typed(table: pyarrow.Table, schema: StructType) -> pyarrow.Table:
    """Give the columns the types of ``schema``.

    ADBC's driver guesses the types from the first rows. If these are null, or if there are no rows, it says integers,
    which cannot be cast to binary.
    """
    types = _arrow_schema(schema)
    return table.cast(types) if table.num_rows else types.empty_table()


def _arrow_schema(schema: StructType) -> pyarrow.Schema:
    return pyarrow.schema([(field.name, _ARROW_TYPES[field.dataType]) for field in schema])


def _with_policies(groups: pyarrow.Table, settings: PolicySettings, now: int) -> pyarrow.Table:
    """Add to each group its policy at the Unix second ``now``."""
    occurring = pyarrow.compute.unique(groups[c.EXPIRY])
    found = policies.by_setting(settings, occurring.to_pylist()).values()
    places = pyarrow.compute.index_in(groups[c.EXPIRY], occurring)
    lifetimes = pyarrow.array([each.lifetime for each in found], pyarrow.int64())
    expires_before = pyarrow.array([each.expires_before(now) for each in found], pyarrow.int64())
    with_lifetimes = groups.append_column(c.LIFETIME, lifetimes.take(places.combine_chunks()))
    return with_lifetimes.append_column(c.EXPIRES_BEFORE, expires_before.take(places.combine_chunks()))
