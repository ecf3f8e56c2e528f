"""Builds an archive of some size directly, without moving anything."""

import json
import os
from array import array
from contextlib import closing
from functools import reduce
from itertools import accumulate
from operator import xor
from pathlib import Path

import pyarrow
from deltalake import ColumnProperties, DeltaTable, WriterProperties, write_deltalake

from bench.stores import Store
from conclave.archive.layout import DAY, FILE_BYTES, ID_PROPERTY, ROW_GROUP_BYTES, checksum, span_width
from conclave.retention.policy import KEEP
from conclave.store.engine import sqlite
from tests.support.archive import span_of

DAYS = 400
"""How long ago the oldest message was sent."""

BODY_BYTES = 300
_PLAIN = ColumnProperties(dictionary_enabled=False, statistics_enabled="NONE")
WRITER = WriterProperties(
    compression="ZSTD",
    max_row_group_size=ROW_GROUP_BYTES // (BODY_BYTES + 40),
    column_properties={"mls_message": _PLAIN, "checksum": _PLAIN},
)
SETTINGS = {
    "delta.dataSkippingStatsColumns": "group_key,sequence_num,created_at",
    "delta.enableDeletionVectors": "false",
    "delta.checkpointInterval": "10",
}


class Archive:
    """The archive of a store: ``counts[n]`` messages of group n, from ``days`` ago until ``now`` at equal distances.

    All are in the retention class ``lifetime``, seconds or KEEP.
    """

    def __init__(self, store: Store, counts: list[int], now: int, lifetime: int = KEEP, days: int = DAYS) -> None:
        self.path = store.config.archive_path
        self._database = store.config.database
        self._groups = [(creator.group.group_key, creator.user_id) for creator in store.creators]
        self._counts = counts
        self._now = now
        self._lifetime = lifetime
        self._days = days

    def build(self) -> None:
        """Write the table, a span at a time, and have the store know of it."""
        oldest = self._now - self._days * DAY
        for span in range(span_of(self._lifetime, oldest), self._now, span_width(self._lifetime)):
            self._write(span, oldest)
            if self._version() == 0:
                self._name()  # before a checkpoint repeats what the first entry of the log says
        with closing(sqlite.connect(self._database)) as connection, sqlite.write_transaction(connection):
            connection.execute("INSERT INTO archive_state (id, archive_id) VALUES (1, 'bench')")
            connection.executemany(
                "UPDATE groups SET last_seq = ?1, archived_seq = ?1 WHERE group_key = ?2",
                [(count, key) for (key, _), count in zip(self._groups, self._counts, strict=True)],
            )
        self.tell_version()

    def _name(self) -> None:
        """Have the table be the store's; delta-rs knows no such property when it makes one."""
        first = self.path / "_delta_log" / f"{0:020d}.json"
        actions = [json.loads(line) for line in first.read_text().splitlines()]
        for action in actions:
            if "metaData" in action:
                action["metaData"]["configuration"][ID_PROPERTY] = "bench"
        first.write_text("\n".join(map(json.dumps, actions)))

    def purge(self, predicate: str) -> None:
        """Delete rows and what they were in, as a run does."""
        with closing(sqlite.connect(self._database)) as connection, sqlite.write_transaction(connection):
            connection.execute("UPDATE archive_state SET unerased = 1")
        table = DeltaTable(str(self.path))
        table.delete(predicate, writer_properties=WRITER)
        table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
        self.tell_version()

    def thin(self, group: int, each: int) -> None:
        """Delete each message of group ``group`` whose number is a multiple of ``each``, from table and index."""
        key = self._groups[group][0]
        self.purge(f"group_key = {key} AND sequence_num % {each} = 0")
        gone = f"(last_seq / {each} - (first_seq - 1) / {each})"
        with closing(sqlite.connect(self._database)) as connection, sqlite.write_transaction(connection):
            connection.execute(
                f"UPDATE archive_parts SET message_count = message_count - {gone},"
                f" body_bytes = body_bytes - {BODY_BYTES} * {gone} WHERE group_key = ?",
                (key,),
            )

    def tell_version(self) -> None:
        version = self._version()
        with closing(sqlite.connect(self._database)) as connection, sqlite.write_transaction(connection):
            connection.execute("UPDATE archive_state SET version = ?", (version,))

    def _version(self) -> int:
        return DeltaTable(str(self.path)).version()

    def first_of(self, group: int, day: int) -> int:
        """The number of the first message of group ``group`` that is at least ``day`` days younger than the oldest."""
        return -(-day * self._counts[group] // self._days) + 1

    def _write(self, span: int, oldest: int) -> None:
        keys, numbers, times, senders, parts = array("q"), array("q"), array("q"), [], []
        places = []
        width = span_width(self._lifetime)
        for (key, sender), count in zip(self._groups, self._counts, strict=True):
            step = self._days * DAY / count
            first = max(0, -int(-(span - oldest) // step))
            end = min(count, max(0, -int(-(span + width - oldest) // step)))
            if first < end:
                keys.extend([key] * (end - first))
                numbers.extend(range(first + 1, end + 1))
                times.extend(int(oldest + n * step) for n in range(first, end))
                senders += [sender] * (end - first)
                parts.append((key, self._lifetime, span, first + 1, end, times[first - end], times[-1], end - first))
                places.append(slice(len(keys) - end + first, len(keys)))
        sums = self._append(span, keys, numbers, times, senders)
        rows = [(*part, reduce(xor, sums[place])) for part, place in zip(parts, places, strict=True)]
        with closing(sqlite.connect(self._database)) as connection, sqlite.write_transaction(connection):
            connection.executemany(
                f"INSERT INTO archive_parts VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?8 * {BODY_BYTES}, ?9)", rows
            )

    def _append(
        self, span: int, keys: "array[int]", numbers: "array[int]", times: "array[int]", senders: list[bytes]
    ) -> "array[int]":
        """Write rows, and return their checksums."""
        count = len(keys)

        def integers(values: "array[int] | bytes") -> pyarrow.Array:
            return pyarrow.Array.from_buffers(pyarrow.int64(), count, [None, pyarrow.py_buffer(values)])

        offsets = array("i", accumulate([BODY_BYTES] * count, initial=0))
        content = os.urandom(BODY_BYTES * count)
        bodies = [None, pyarrow.py_buffer(offsets), pyarrow.py_buffer(content)]
        sums = array(
            "q",
            (
                checksum(*values, content[at * BODY_BYTES : (at + 1) * BODY_BYTES], is_commit=False)
                for at, values in enumerate(zip(keys, numbers, senders, times, strict=True))
            ),
        )
        columns = {
            "lifetime": pyarrow.repeat(self._lifetime, count),
            "span": pyarrow.repeat(span, count),
            "group_key": integers(keys),
            "sequence_num": integers(numbers),
            "sender_id": pyarrow.array(senders, pyarrow.binary()),
            "is_commit": pyarrow.repeat(False, count),  # noqa: FBT003 - a value
            "created_at": integers(times),
            "checksum": integers(sums),
            "size": pyarrow.repeat(BODY_BYTES, count),
            "mls_message": pyarrow.Array.from_buffers(pyarrow.binary(), count, bodies),
        }
        write_deltalake(
            str(self.path),
            pyarrow.table(columns),
            partition_by=["lifetime", "span"],
            mode="append",
            configuration=SETTINGS,
            target_file_size=FILE_BYTES,
            writer_properties=WRITER,
        )
        return sums


def size_mb(folder: Path) -> float:
    return sum(each.stat().st_size for each in folder.rglob("*.parquet")) / 1e6
