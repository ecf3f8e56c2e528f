"""Manages the archive's Delta table: creates it, appends to it, rewrites it, and removes its old files.

Only the holder of the run lock writes. Spark is used only to rewrite partitions: appended files are written by
``data_files.py``, and changes of the table's log by delta-rs.
"""

import json
import re
import shutil
import struct
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction
from pyspark.sql import DataFrame, SparkSession

from conclave.archive.faults import one_line
from conclave.archive.files import DATA_FILES, LOG, actions_of, is_recent, is_unfinished
from conclave.archive.layout import FILE_BYTES, ID_PROPERTY, in_partitions
from conclave.archive.snapshot import open_known, turn_app, turn_of
from conclave.failpoints import reach
from conclave.store.archive.moves import ArchiveState
from conclave.system.durable import sync
from spark.archive import columns as a, data_files
from spark.archive.data_files import MisnamedError, Partition
from spark.archive.repair import ACTIONS, POINTER, Repair, Repaired, entry_file, read_entry
from spark.hot_store import ArchiveRunError

_PROPERTIES = {
    # Statistics of other columns would put pieces of bodies and senders into the log.
    "delta.dataSkippingStatsColumns": "group_key,sequence_num,created_at",
    "delta.enableDeletionVectors": "false",
    "delta.checkpointInterval": "10",
    "delta.deletedFileRetentionDuration": "interval 1 hours",
    "delta.enableExpiredLogCleanup": "false",  # clean_log does it
}

LOG_SECONDS = 3600
"""The minimum time for which log entries before the newest checkpoint are kept."""

SMALL_BYTES = 16 * 1024 * 1024
"""The size below which a file is small."""

FEW_FILES = 8
"""A partition may have 8 small files, and more while they have less than a quarter of its bytes."""

MANY_FILES = 64
"""A partition with more than 64 small files is always compacted."""

_PARTITION = [a.LIFETIME, a.SPAN]

_UNUSABLE = re.compile(r"[][{}*\\]|%[0-9A-Fa-f]{2}")
"""Parts of a path that Spark interprets as a pattern, or that delta-rs decodes."""


class NotDurableError(ArchiveRunError):
    """The table could not be synced to the disk."""


class Table:
    """Manages the table of one archive."""

    def __init__(self, session: Callable[[], SparkSession], path: Path) -> None:
        """Store the parameters; nothing is opened yet. ``path``: the folder of the table, which may not exist.

        ``session``: returns the Spark session, and starts Spark if necessary.
        """
        self._session = session
        self.path = path
        self.name = f"delta.`{str(path).replace('`', '``')}`"
        self._log = path / LOG

    def prepare(self, read_state: Callable[[], ArchiveState], *, is_new: bool) -> None:
        """Check that the table exists and belongs to the store. Raises ArchiveRunError.

        ``read_state``: reads the state of the table from the hot store. ``is_new``: create the table if it does not
        exist. Otherwise a missing table is an error: its folder may not be mounted.
        """
        if match := _UNUSABLE.search(str(self.path)):
            raise ArchiveRunError(
                f"{self.path}: no archive can be read if its path has {match[0]!r} in it: set [archive] path to another"
            )
        if DeltaTable.is_deltatable(str(self.path)):
            try:
                _, fault = open_known(self.path, read_state)
            except (DeltaError, pyarrow.ArrowException, OSError) as error:
                raise ArchiveRunError(f"{self.path}: cannot be read: {one_line(error)}") from error
            if fault:
                raise ArchiveRunError(fault)
            return
        if not is_new:
            raise ArchiveRunError(
                f"{self.path}: there is no archive, although messages were moved to it; is it mounted?"
            )
        if self.path.exists() and any(self.path.iterdir()):
            raise ArchiveRunError(f"{self.path}: cannot become the archive, since it has other files")
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        DeltaTable.create(
            str(self.path),
            a.ARCHIVE,
            partition_by=_PARTITION,
            configuration={**_PROPERTIES, ID_PROPERTY: read_state().archive_id},
            raise_if_key_not_exists=False,  # set above
        )

    def remove_unmade(self) -> None:
        """Remove the log of a table that has no complete version, after an interrupted creation."""
        if not self._log.is_dir() or list(self.path.iterdir()) != [self._log]:
            return
        names = (path.name for path in self._log.iterdir() if path.is_file())
        visible = {name for name in names if not (name.startswith(".") or is_unfinished(name))}
        if not visible or (visible == {self._log_file(0).name} and read_entry(self._log, 0) is None):
            shutil.rmtree(self._log)

    def repair(self, state: ArchiveState, begun: int) -> Repaired:
        """Roll back incomplete versions after a power failure, see ``repair``. Raises ArchiveRunError.

        If it changes anything, clear Spark's cache of tables.
        """
        repaired = Repair(self.path, state, begun, self._are_sound).apply()
        if repaired:
            sync(self._log)
        return repaired

    def _are_sound(self, files: Collection[Path]) -> bool:
        """Return whether the messages of readable ``files`` have correct checksums."""
        tables = (rows for path in files for rows in data_files.read(path))
        try:
            return all(a.checksums_of(rows).equals(rows[a.CHECKSUM].combine_chunks()) for rows in tables)
        except (KeyError, TypeError, struct.error, MisnamedError):
            return False  # damaged bytes may decode to missing columns and values

    def can_be_opened(self) -> bool:
        """Return whether the table can be opened, or does not exist."""
        try:
            if DeltaTable.is_deltatable(str(self.path)):
                DeltaTable(str(self.path))
        except (DeltaError, pyarrow.ArrowException, OSError):
            return False
        return True

    def version(self) -> int:
        """Return the table's newest version."""
        return DeltaTable(str(self.path)).version()

    def turn(self, archive_id: str) -> int:
        """Return the number of the table's last turn; 0 without turns."""
        return turn_of(DeltaTable(str(self.path)), archive_id)

    def begin_turn(self, archive_id: str, turn: int) -> None:
        """Write a turn to the table in a separate commit, and sync it. Raises NotDurableError."""
        self._commit([], Transaction(turn_app(archive_id), turn))
        self.make_durable(self.version())

    def _commit(self, actions: Sequence[AddAction | RemoveAction], *transactions: Transaction) -> None:
        """Add a version to the table. Its entry has the number of its actions, to detect truncation."""
        table = DeltaTable(str(self.path))
        count = len(actions) + len(transactions)
        properties = CommitProperties({ACTIONS: str(count)}, app_transactions=[*transactions])
        table.create_write_transaction([*actions], "append", table.schema(), _PARTITION, commit_properties=properties)

    def read(self) -> DataFrame:
        """Return all rows of the table."""
        return self._session().read.format("delta").load(str(self.path))

    def last_batch(self, archive_id: str) -> int:
        """Return the number of the last batch that was appended to the table; 0 without batches."""
        return DeltaTable(str(self.path)).transaction_version(archive_id) or 0

    def append(self, rows: pyarrow.Table, archive_id: str, batch: int) -> None:
        """Append the messages of a batch that is not in the table yet, see ``last_batch``.

        ``rows`` have the columns and the order of the table.
        """
        added = data_files.write(self.path, rows)
        reach("archive.written")
        self._commit(added, Transaction(archive_id, batch))

    def version_of_batch(self, archive_id: str, batch: int) -> int:
        """Return the version that added the messages of a batch. Raises ArchiveRunError if it is not in the log."""
        for version in range(self.version(), -1, -1):
            if {"appId": archive_id, "version": batch}.items() <= _find_action(self._actions(version), "txn").items():
                return version
        raise ArchiveRunError(f"{self.path}: move {batch} is not in the log")

    def read_added(self, version: int) -> Iterator[tuple[Partition, pyarrow.Table]]:
        """Yield the messages in the files that ``version`` added, in several tables for each partition.

        Raises ArchiveRunError.
        """
        for action in self._actions(version):
            if added := action.get("add"):
                values = added["partitionValues"]
                for rows in data_files.read(self.path / added["path"]):
                    yield (int(values[a.LIFETIME]), int(values[a.SPAN])), rows

    def make_durable(self, first: int) -> None:
        """Sync the files and checkpoints of the versions from ``first`` on. The libraries do not sync them.

        Raises NotDurableError; then do not remove the files that these versions replaced.
        """
        try:
            folders = {self.path, self._log}
            for version in range(first, self.version() + 1):
                for action in self._actions(version):
                    if "add" in action:
                        added = self.path / action["add"]["path"]
                        sync(added)
                        folders |= {added.parent, added.parent.parent}
                for path in [self._log_file(version), *self._log.glob(f"{version:020d}.checkpoint*.parquet")]:
                    sync(path)
            if (pointer := self._log / POINTER).exists():
                sync(pointer)
            for folder in folders:
                sync(folder, follows_links=True)  # the archive itself may be a link
        except OSError as error:
            raise NotDurableError(f"{self.path}: the written files could not be synced: {error}") from error

    def drop_partitions(self, partitions: Collection[tuple[int, int]]) -> None:
        """Delete whole partitions, given as (lifetime, span).

        Only the log changes, since both are partition columns.
        """
        DeltaTable(str(self.path)).delete(in_partitions(partitions))

    def crowded_partitions(self) -> set[Partition]:
        """Return the partitions with many small files."""
        sizes: dict[Partition, list[int]] = {}
        for file in data_files.stored(self.path):
            sizes.setdefault(file.partition, []).append(file.size)
        return {partition for partition, each in sizes.items() if _is_crowded(each)}

    def rewrite(self, partition: Partition, rows: DataFrame) -> None:
        """Replace the rows of a partition with ``rows``, in few files, ordered by group and number."""
        size = sum(file.size for file in data_files.stored(self.path) if file.partition == partition)
        files = max(1, -(-size // FILE_BYTES))
        ordered = rows.repartitionByRange(files, a.GROUP_KEY, a.SEQUENCE_NUM) if files > 1 else rows.coalesce(1)
        writer = ordered.sortWithinPartitions(a.GROUP_KEY, a.SEQUENCE_NUM).write.format("delta").mode("overwrite")
        writer.option("replaceWhere", in_partitions([partition])).save(str(self.path))

    def sweep(self) -> None:
        """Remove files that do not belong to the table: replaced ones, and those left by a crash."""
        uris = pyarrow.table(DeltaTable(str(self.path)).get_add_actions())
        table_paths = set(uris["path"].to_pylist())
        changed_folders = set[Path]()
        for path in self.path.glob(DATA_FILES):
            if path.relative_to(self.path).as_posix() not in table_paths:
                path.unlink()
                changed_folders.add(path.parent)
                reach("archive.file_removed")
        for folder in [*self.path.glob("lifetime=*/span=*"), *self.path.glob("lifetime=*")]:
            if not any(folder.iterdir()):
                folder.rmdir()
                changed_folders.discard(folder)
                changed_folders.add(folder.parent)
        for folder in changed_folders:  # otherwise a power failure could restore files that were recorded as removed
            sync(folder, follows_links=True)

    def clean_log(self) -> None:
        """Remove log entries before the newest checkpoint, and unfinished files, unless younger than LOG_SECONDS."""
        pointer = self._log / POINTER
        try:
            checkpoint = json.loads(pointer.read_text(encoding="utf-8"))["version"]
        except (FileNotFoundError, ValueError):  # no pointer, or an incomplete one after a crash: wait for the next one
            checkpoint = -1
        old_entries, unfinished = [], []
        for path in self._log.iterdir():
            if is_recent(path.stat().st_mtime, time.time(), LOG_SECONDS):
                continue
            if is_unfinished(path.name):
                unfinished.append(path)
            elif (version := re.match(r"\.?(\d{20})\.", path.name)) and int(version[1]) < checkpoint:
                old_entries.append(path)
        if old_entries:
            for path in [*self._log.glob(f"{checkpoint:020d}.checkpoint*.parquet"), pointer, self._log]:
                sync(path)  # after this, nothing else has the contents of the old entries
        for path in [*old_entries, *unfinished]:
            path.unlink()

    def _actions(self, version: int) -> list[dict[str, Any]]:
        path = self._log_file(version)
        return list(actions_of(path)) if path.exists() else []

    def _log_file(self, version: int) -> Path:
        return entry_file(self._log, version)


def _is_crowded(sizes: Collection[int]) -> bool:
    """Return whether to compact files of these sizes. The total cost is proportional to the added data."""
    small = [size for size in sizes if size < SMALL_BYTES]
    return (len(small) > FEW_FILES and sum(small) * 4 >= sum(sizes)) or len(small) > MANY_FILES


def _find_action(actions: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    return next((action[kind] for action in actions if kind in action), {})
