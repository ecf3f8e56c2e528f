"""The archive's table on a disk that fails: no Spark is needed to look after the log."""

import errno
import os
from pathlib import Path
from typing import cast

import pyarrow
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from conclave.store.archive.moves import ArchiveState
from spark.archive.table import NotDurableError, Table
from spark.hot_store import ArchiveRunError


@pytest.fixture
def table(tmp_path: Path) -> Table:
    rows = pyarrow.table({"lifetime": [1, 1, 2], "span": [10, 20, 10], "number": [1, 2, 3]})
    for _ in range(3):
        write_deltalake(tmp_path / "archive", rows, partition_by=["lifetime", "span"], mode="append")
    return Table(lambda: cast("SparkSession", None), tmp_path / "archive")


def test_a_log_that_cannot_be_read_is_told_in_one_line(table: Table) -> None:
    (table.path / "_delta_log" / f"{1:020d}.json").write_bytes(bytes(100))
    with pytest.raises(ArchiveRunError, match="cannot be read: ") as told:
        table.prepare(lambda: ArchiveState("mine", 2, unerased=False, turn=0, former_turn=0), is_new=False)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("name", ["a%20b", "a[b]c", "{a,b}", "a*", "a\\b"])
def test_no_archive_is_made_where_it_could_not_be_read(tmp_path: Path, name: str) -> None:
    table = Table(lambda: cast("SparkSession", None), tmp_path / name)
    with pytest.raises(ArchiveRunError, match=r"if its path has .*: set \[archive\] path to another"):
        table.prepare(lambda: ArchiveState("mine", 0, unerased=False, turn=0, former_turn=0), is_new=True)
    assert not table.path.exists()


def age_log(table: Table) -> Path:
    log = table.path / "_delta_log"
    for path in log.iterdir():
        if path.is_file():
            os.utime(path, (0, 0))
    return log


def test_whole_parts_are_dropped_and_no_file_is_rewritten(table: Table) -> None:
    before = set(DeltaTable(table.path).file_uris())
    table.drop_partitions([(1, 10), (2, 10)])
    after = set(DeltaTable(table.path).file_uris())
    assert len(before) == 9
    assert after == {uri for uri in before if "lifetime=1/span=20" in uri}


DAY = 86_400


def test_a_replaced_file_goes_and_the_tables_own_stay(table: Table) -> None:
    replaced = set(table.path.glob("lifetime=2/*/*.parquet"))
    table.drop_partitions([(2, 10)])
    table.sweep()
    assert not {path for path in replaced if path.exists()}
    assert len(list(table.path.glob("lifetime=1/*/*.parquet"))) == 6


def test_folders_are_on_the_disk_without_what_was_removed(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a power failure could bring erased files back after it was noted that they are gone."""
    table.drop_partitions([(1, 10), (2, 10)])
    synced: set[Path] = set()
    monkeypatch.setattr("spark.archive.table.sync", lambda path, **_: synced.add(path))
    table.sweep()
    assert not (table.path / "lifetime=2").exists()
    assert synced == {table.path, table.path / "lifetime=1"}


def test_a_disk_that_does_not_sync_is_told_of(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    table.make_durable(0)

    def fail(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(NotDurableError, match="Input/output error"):
        table.make_durable(0)


def test_a_checkpoint_is_on_the_disk_with_its_version(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a power failure could leave half of it after a run that ended well, and no version would be read any more."""
    of_checkpoint = {f"{2:020d}.checkpoint.parquet", "_last_checkpoint"}
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(Path(f"/proc/self/fd/{file}").readlink().name))
    table.make_durable(2)
    assert not of_checkpoint.intersection(synced)
    DeltaTable(table.path).create_checkpoint()
    synced.clear()
    table.make_durable(2)
    assert of_checkpoint <= set(synced)
    assert max(map(synced.index, of_checkpoint)) < synced.index("_delta_log"), "and then their names"


def test_the_log_goes_behind_a_checkpoint_that_was_synced(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    DeltaTable(table.path).create_checkpoint()
    log = age_log(table)
    synced: list[str] = []
    sync = os.fsync

    def note(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        assert (log / f"{0:020d}.json").exists(), "nothing has gone yet"
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    table.clean_log()
    assert synced == [f"{2:020d}.checkpoint.parquet", "_last_checkpoint", "_delta_log"]
    left = {path.name for path in log.iterdir() if path.is_file()}
    assert left == {f"{2:020d}.json", f"{2:020d}.checkpoint.parquet", "_last_checkpoint"}
    assert DeltaTable(table.path).version() == 2


UNFINISHED = ("_commit_0.json.tmp", "_last_checkpoint#1", f"{2:020d}.checkpoint.parquet#1", f"{9:020d}.json#1")


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_what_delta_rs_left_unfinished_goes_after_an_hour(table: Table, has_checkpoint: bool) -> None:
    if has_checkpoint:
        DeltaTable(table.path).create_checkpoint()
    log = table.path / "_delta_log"
    before = set(log.iterdir())
    for name in UNFINISHED:
        (log / name).write_bytes(b"{}")
    table.clean_log()
    assert set(log.iterdir()) == before | {log / name for name in UNFINISHED}
    for name in UNFINISHED:
        os.utime(log / name, (0, 0))
    table.clean_log()
    assert set(log.iterdir()) == before


def test_young_log_stays_and_so_does_all_of_it_without_a_whole_pointer(table: Table) -> None:
    DeltaTable(table.path).create_checkpoint()
    log = table.path / "_delta_log"
    everything = set(log.iterdir())
    table.clean_log()
    assert set(log.iterdir()) == everything
    age_log(table)
    (log / "_last_checkpoint").write_text('{"ver')
    table.clean_log()
    assert set(log.iterdir()) == everything
