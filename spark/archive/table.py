"""The archive's Delta table: made, opened, appended to, kept healthy; and its files removed from disk.

There is one writer, the run that holds the run lock. Heavy work is Spark's. What concerns the log alone is done by
delta-rs, without it: reading it, and dropping whole parts.
"""

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError
from pyspark.sql import Column, DataFrame, SparkSession, functions as F

from conclave.archive.age import open_known, turn_app, turn_of
from conclave.archive.faults import one_line
from conclave.archive.layout import ID_PROPERTY
from conclave.failpoints import reach
from conclave.store.archive.moves import ArchiveState
from spark.archive import columns as a
from spark.archive.repair import POINTER, Repair, Repaired, entry_file, read_entry
from spark.hot import ArchiveError

_PROPERTIES = {
    # The others would put pieces of bodies and senders into the log.
    "delta.dataSkippingStatsColumns": "group_key,sequence_num,created_at",
    "delta.enableDeletionVectors": "false",
    "delta.checkpointInterval": "10",
    "delta.deletedFileRetentionDuration": "interval 1 hours",
    "delta.enableExpiredLogCleanup": "false",  # clean_log does it
}

LOG_SECONDS = 3600
"""How long the log is kept behind its newest checkpoint, at least."""

FILE_BYTES = 64 * 1024 * 1024
"""What a file holds at most, about, after compaction."""

SMALL_BYTES = 16 * 1024 * 1024
FEW_FILES, MANY_FILES = 8, 64
"""So many small files are left in a part, as long as they are less than a quarter of it; and so many at most."""

_UNFINISHED = "_commit_"
"""How files begin that delta-rs leaves if it is killed before its commit."""

_DATA_FILES = "lifetime=*/span=*/*"


@dataclass(frozen=True)
class PartFiles:
    """The files of one part (retention class and time span): how many are small, and bytes."""

    lifetime: int
    span: int
    small: int
    small_bytes: int
    total_bytes: int

    @property
    def wants_compaction(self) -> bool:
        """Tell whether rewriting the part is worth what it costs: its cost stays in proportion to what was added."""
        crowded = self.small > FEW_FILES and self.small_bytes * 4 >= self.total_bytes
        return crowded or self.small > MANY_FILES


class NotDurableError(ArchiveError):
    """What the table says it has may not be on disk."""


class Table:
    """The table at one path."""

    def __init__(self, spark: SparkSession, path: Path) -> None:
        """Take where it lies, or will; nothing is opened yet."""
        self._spark = spark
        self.path = path
        self.name = f"delta.`{str(path).replace('`', '``')}`"
        self._log = path / "_delta_log"

    def prepare(self, read_state: Callable[[], ArchiveState], *, is_new: bool) -> None:
        """Require that the table is there and the store's; make it if ``is_new`` and there is none.

        ``read_state`` asks the hot store what it knows of the table. Raises ArchiveError. A table that is missing is
        not replaced: its folder may only not be mounted.
        """
        if DeltaTable.is_deltatable(str(self.path)):
            try:
                _, fault = open_known(self.path, read_state)
            except (DeltaError, pyarrow.ArrowException, OSError) as error:
                raise ArchiveError(f"{self.path}: cannot be read: {one_line(error)}") from error
            if fault:
                raise ArchiveError(fault)
            return
        if not is_new:
            raise ArchiveError(f"{self.path}: there is no archive, although messages were moved to it; is it mounted?")
        if self.path.exists() and any(self.path.iterdir()):
            raise ArchiveError(f"{self.path}: is to become the archive, but holds something else")
        columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in a.ARCHIVE)
        properties = ", ".join(
            f"'{name}' = '{value}'" for name, value in {**_PROPERTIES, ID_PROPERTY: read_state().archive_id}.items()
        )
        self._spark.sql(
            f"CREATE TABLE {self.name} ({columns}) USING delta PARTITIONED BY ({a.LIFETIME}, {a.SPAN})"
            f" TBLPROPERTIES ({properties})"
        )

    def remove_unmade(self) -> None:
        """Remove the log of a table that a crash, or a full disk, kept from being made: it has no whole version yet."""
        if not self._log.is_dir() or list(self.path.iterdir()) != [self._log]:
            return
        visible = {path.name for path in self._log.iterdir() if path.is_file() and not path.name.startswith(".")}
        if not visible or (visible == {self._log_file(0).name} and read_entry(self._log, 0) is None):
            shutil.rmtree(self._log)

    def repair(self, state: ArchiveState, begun: int) -> Repaired:
        """Take back what a power failure left half on disk, see ``archive_repair``. Raises ArchiveError."""
        done = Repair(self.path, state, begun, self._are_sound).apply()
        if done:
            _sync(self._log)
            # Or Spark would go on from what it knows of the versions that are gone.
            self._spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]  # noqa: SLF001 - the only way to it
        return done

    def _are_sound(self, files: Collection[Path]) -> bool:
        """Tell whether messages have the checksums with which they were archived."""
        altered = self._read_files(files).where(~F.col(a.CHECKSUM).eqNullSafe(checksum()))
        return not altered.limit(1).collect()

    def version(self) -> int:
        """Return the newest version."""
        return DeltaTable(str(self.path)).version()

    def turn(self, archive_id: str) -> int:
        """Return the number of the last turn that began in the table; 0 if none did."""
        return turn_of(DeltaTable(str(self.path)), archive_id)

    def begin_turn(self, archive_id: str, turn: int) -> None:
        """Have the table, and the disk, know of a turn: by a commit of its own. Raises NotDurableError."""
        table = DeltaTable(str(self.path))
        known = CommitProperties(app_transactions=[Transaction(turn_app(archive_id), turn)])
        parts = [a.LIFETIME, a.SPAN]
        table.create_write_transaction([], "append", table.schema(), parts, commit_properties=known)
        self.make_durable(self.version())

    def read(self) -> DataFrame:
        """Return all rows."""
        return self._spark.read.format("delta").load(str(self.path))

    def has_batch(self, archive_id: str, batch: int) -> bool:
        """Tell whether the messages of a move are in the table."""
        return self.last_batch(archive_id) >= batch

    def last_batch(self, archive_id: str) -> int:
        """Return the number of the last move that came into the table; 0 if none did."""
        return DeltaTable(str(self.path)).transaction_version(archive_id) or 0

    def append(self, rows: DataFrame, archive_id: str, batch: int) -> None:
        """Add the messages of a move that is not in the table yet, see ``has_batch``."""
        writer = rows.write.format("delta").mode("append")
        writer.option("txnAppId", archive_id).option("txnVersion", str(batch)).save(str(self.path))

    def version_of_batch(self, archive_id: str, batch: int) -> int:
        """Return the version that added the messages of a move. Raises ArchiveError if there is no trace of it."""
        for version in range(self.version(), -1, -1):
            if {"appId": archive_id, "version": batch}.items() <= _only(self._actions(version), "txn").items():
                return version
        raise ArchiveError(f"{self.path}: move {batch} is not in the log")

    def read_added(self, version: int) -> DataFrame:
        """Return what ``version`` has added, read from its own files alone."""
        return self._read_files([self.path / each["add"]["path"] for each in self._actions(version) if "add" in each])

    def _read_files(self, files: Collection[Path]) -> DataFrame:
        reader = self._spark.read.schema(a.ARCHIVE).option("basePath", str(self.path))
        return reader.parquet(*map(str, files))

    def make_durable(self, first: int) -> None:
        """Have the disk keep what the versions from ``first`` on have added: Spark leaves that to chance.

        Raises NotDurableError: what they replaced must not be removed then.
        """
        try:
            folders = {self.path, self._log}
            for version in range(first, self.version() + 1):
                for action in self._actions(version):
                    if "add" in action:
                        added = self.path / action["add"]["path"]
                        _sync(added)
                        folders |= {added.parent, added.parent.parent}
                _sync(self._log_file(version))
            for folder in folders:
                _sync(folder)
        except OSError as error:
            raise NotDurableError(f"{self.path}: the disk does not keep what was written: {error}") from error

    def drop_parts(self, parts: Collection[tuple[int, int]]) -> None:
        """Delete whole parts, by lifetime and span: as both are partition columns, the log alone changes."""
        DeltaTable(str(self.path)).delete(in_parts(parts))

    def crowded_parts(self) -> list[PartFiles]:
        """Return the parts that want compaction."""
        actions = pyarrow.table(DeltaTable(str(self.path)).get_add_actions(flatten=True))
        found: dict[tuple[int, int], list[int]] = {}
        for row in actions.select(["partition.lifetime", "partition.span", "size_bytes"]).to_pylist():
            found.setdefault((row["partition.lifetime"], row["partition.span"]), []).append(row["size_bytes"])
        parts = []
        for (lifetime, span), sizes in sorted(found.items()):
            small = [size for size in sizes if size < SMALL_BYTES]
            parts.append(PartFiles(lifetime, span, len(small), sum(small), sum(sizes)))
        return [part for part in parts if part.wants_compaction]

    def compact(self, part: PartFiles) -> None:
        """Rewrite a part into few files, in the order in which groups are read."""
        where = in_parts([(part.lifetime, part.span)])
        files = max(1, -(-part.total_bytes // FILE_BYTES))
        rows = self.read().where(where)
        ordered = rows.repartitionByRange(files, a.GROUP_KEY, a.SEQUENCE_NUM) if files > 1 else rows.coalesce(1)
        writer = ordered.sortWithinPartitions(a.GROUP_KEY, a.SEQUENCE_NUM).write.format("delta").mode("overwrite")
        writer.option("replaceWhere", where).option("dataChange", "false").save(str(self.path))

    def sweep(self, delay: int) -> bool:
        """Remove from disk the files that are no longer part of the table; tell whether all of them are gone.

        Those replaced less than ``delay`` seconds ago stay. What a crash left was never part of it and goes at once.
        """
        uris = pyarrow.table(DeltaTable(str(self.path)).get_add_actions())
        alive = set(uris["path"].to_pylist())
        removed = self._removal_times() if delay else {}
        left = False
        for path in self.path.glob(_DATA_FILES):
            name = path.relative_to(self.path).as_posix()
            if name in alive:
                continue
            if time.time() - removed.get(name, 0) < delay:
                left = True
                continue
            path.unlink()
            reach("archive.file_removed")
        for folder in [*self.path.glob("lifetime=*/span=*"), *self.path.glob("lifetime=*")]:
            if not any(folder.iterdir()):
                folder.rmdir()
        return not left

    def clean_log(self, delay: int) -> None:
        """Remove what the newest checkpoint makes superfluous and is older than LOG_SECONDS, or ``delay``."""
        pointer = self._log / POINTER
        try:
            checkpoint = json.loads(pointer.read_text(encoding="utf-8"))["version"]
        except (FileNotFoundError, ValueError):  # none, or half of it after a crash: the next one will do
            return
        superfluous = []
        for path in self._log.iterdir():
            version = re.match(r"\.?(\d{20})\.", path.name)
            is_behind = int(version[1]) < checkpoint if version else path.name.startswith(_UNFINISHED)
            if is_behind and time.time() - path.stat().st_mtime > max(LOG_SECONDS, delay):
                superfluous.append(path)
        if superfluous:
            for path in [*self._log.glob(f"{checkpoint:020d}.checkpoint*"), pointer, self._log]:
                _sync(path)  # nobody did before
        for path in superfluous:
            path.unlink()

    def _removal_times(self) -> dict[str, float]:
        """Return when files were replaced, Unix seconds; of those that the log still knows of."""
        return {
            action["remove"]["path"]: action["remove"]["deletionTimestamp"] / 1000
            for path in self._log.glob("*.json")
            for action in _lines(path)
            if "remove" in action
        }

    def _actions(self, version: int) -> list[dict[str, Any]]:
        path = self._log_file(version)
        return list(_lines(path)) if path.exists() else []

    def _log_file(self, version: int) -> Path:
        return entry_file(self._log, version)


def in_parts(parts: Collection[tuple[int, int]], prefix: str = "") -> str:
    """Return the SQL condition for rows in any of ``parts``: lifetime, span. Literals let Delta skip the others."""
    spans: dict[int, list[int]] = {}
    for lifetime, span in sorted(parts):
        spans.setdefault(lifetime, []).append(span)
    return (
        "("
        + " OR ".join(
            f"({prefix}{a.LIFETIME} = {lifetime} AND {prefix}{a.SPAN} IN ({', '.join(map(str, each))}))"
            for lifetime, each in spans.items()
        )
        + ")"
    )


def part_columns(sum_of: Column) -> list[Column]:
    """Return what the index says of the rows of a part, in the order of PartRow; ``sum_of``: a row's checksum."""
    number, created = F.col(a.SEQUENCE_NUM), F.col(a.CREATED_AT)
    return [
        F.min(number),
        F.max(number),
        F.min(created),
        F.max(created),
        F.count(number),
        F.sum(F.octet_length(a.BODY)),
        F.bit_xor(sum_of),
    ]


def checksum() -> Column:
    """Return the checksum of a message, computed from what is there."""
    return F.xxhash64(*a.CHECKED)


def _only(actions: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    return next((action[kind] for action in actions if kind in action), {})


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
