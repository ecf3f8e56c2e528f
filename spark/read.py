"""The hot store as DataFrames.

Read on the driver, by ADBC and Arrow: executors could not open a SQLite file. ADBC brings a SQLite
library of its own, and a process that has one file open through two of them loses its locks when either
closes it: no ``sqlite3`` connection to the store may be open in this process meanwhile.
"""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import adbc_driver_sqlite.dbapi
import pyarrow
import pyarrow.compute
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from conclave.policy import PolicySettings
from spark import columns as c

_GROUPS = """
SELECT group_key, message_expiry_seconds, floor_seq, gone_below, expired_before,
    (SELECT min(sequence_num) FROM messages WHERE messages.group_key = groups.group_key) AS oldest_seq,
    (SELECT min(created_at) FROM messages WHERE messages.group_key = groups.group_key) AS oldest_created_at
FROM groups
"""


@dataclass(frozen=True)
class HotTables:
    """What the plan is made from."""

    groups: DataFrame
    members: DataFrame
    sessions: DataFrame
    invites: DataFrame
    tombstones: DataFrame
    effective: DataFrame


def read_hot(spark: SparkSession, database: Path, settings: PolicySettings, now: int) -> HotTables:
    """Read one snapshot of the store; sessions and invites only as far as they can be dead at ``now``."""
    queries: dict[str, tuple[str, StructType]] = {
        "groups": (_GROUPS, c.GROUPS),
        "members": ("SELECT group_key, watermark FROM members", c.MEMBERS),
        "sessions": (f"SELECT session_id, expires_at FROM sessions WHERE expires_at <= {now:d}", c.SESSIONS),
        "invites": (f"SELECT invite_key, created_at FROM invites WHERE created_at <= {now:d}", c.INVITES),
        "tombstones": ("SELECT group_key FROM tombstones", c.TOMBSTONES),
    }
    tables = _snapshot(database, queries)
    effective = _effective_policies(tables["groups"], settings)
    frames = {name: spark.createDataFrame(table, queries[name][1]) for name, table in tables.items()}
    return HotTables(effective=spark.createDataFrame(effective, c.EFFECTIVE_POLICIES), **frames)


def _snapshot(database: Path, queries: Mapping[str, tuple[str, StructType]]) -> dict[str, pyarrow.Table]:
    with (
        closing(adbc_driver_sqlite.dbapi.connect(f"{database.as_uri()}?mode=ro")) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("PRAGMA temp_store = MEMORY")
        tables = {}
        for name, (query, schema) in queries.items():
            cursor.execute(query)
            types = pyarrow.schema([(field, pyarrow.int64()) for field in schema.names])
            # The driver guesses types from the first rows, and cannot where these are null or there are none.
            tables[name] = cursor.fetch_arrow_table().cast(types)
        return tables


def _effective_policies(groups: pyarrow.Table, settings: PolicySettings) -> pyarrow.Table:
    occurring = pyarrow.compute.unique(groups[c.EXPIRY]).to_pylist()
    return pyarrow.table(
        {c.EXPIRY: occurring, c.EFFECTIVE: [settings.effective(each) for each in occurring]},
        schema=pyarrow.schema([(name, pyarrow.int64()) for name in c.EFFECTIVE_POLICIES.names]),
    )
