"""What a power failure leaves half on disk of the newest versions is taken back, and nothing else: without Spark."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pyarrow
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyspark.sql import SparkSession

from conclave.archive.layout import ID_PROPERTY
from conclave.archive.snapshot import turn_app
from conclave.store.archive.moves import ArchiveState
from spark.archive.repair import Repair, Repaired
from spark.archive.table import Table
from spark.hot_store import ArchiveRunError

ID = "mine"
KNOWN = ArchiveState(ID, version=3, unerased=True, turn=7, former_turn=6)


class Stored:
    """A table of which the hot store names version 3: a row each, in parts of their own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = path / "_delta_log"
        self.append(0)
        actions = [json.loads(line) for line in self.entry(0).read_text().splitlines()]
        for action in actions:
            if "metaData" in action:
                action["metaData"]["configuration"][ID_PROPERTY] = ID
        self.entry(0).write_text("\n".join(map(json.dumps, actions)))
        self.append(1)
        self.begin_turn(6)
        self.append(2)
        self.begin_turn(7)
        self.append(3)
        DeltaTable(str(path)).delete("span = 1")
        self.append(4)

    def append(self, number: int) -> None:
        rows = pyarrow.table({"lifetime": [1], "span": [number], "body": [bytes([number]) * 5000]})
        write_deltalake(str(self.path), rows, partition_by=["lifetime", "span"], mode="append")

    def begin_turn(self, turn: int) -> None:
        table, known = DeltaTable(str(self.path)), CommitProperties(app_transactions=[Transaction(turn_app(ID), turn)])
        table.create_write_transaction([], "append", table.schema(), ["lifetime", "span"], commit_properties=known)

    def entry(self, version: int) -> Path:
        return self.log / f"{version:020d}.json"

    def data(self, number: int) -> Path:
        [path] = (self.path / "lifetime=1" / f"span={number}").iterdir()
        return path

    def repair(self, state: ArchiveState = KNOWN) -> Repaired:
        return Repair(self.path, state, 0, lambda _: True).apply()

    def spans(self) -> list[int]:
        return sorted(DeltaTable(str(self.path)).to_pyarrow_table()["span"].to_pylist())

    def content(self) -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in self.path.rglob("*") if path.is_file()}


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    return Stored(tmp_path / "archive")


def missing(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def no_end(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-100] + bytes(100))


def whole_lines(path: Path) -> None:
    """All that is left ends where a line does."""
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))


DAMAGES = (missing, empty, zeros, half, no_end)


def test_what_is_whole_is_left_as_it_is(stored: Stored) -> None:
    before = stored.content()
    assert not stored.repair()
    assert stored.content() == before


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda each: each.__name__)
@pytest.mark.parametrize(("version", "left"), [(5, [0, 1, 2]), (6, [0, 1, 2, 3]), (7, [0, 2, 3])])
def test_the_log_is_cut_before_the_first_entry_that_is_not_whole(
    stored: Stored, damage: Callable[[Path], None], version: int, left: list[int]
) -> None:
    damage(stored.entry(version))
    newest = 6 if (version, damage) == (7, missing) else 7
    expected = Repaired(version, newest) if newest >= version else Repaired()
    assert stored.repair() == expected
    assert stored.spans() == left
    assert not stored.repair()


def test_an_entry_that_ends_with_a_line_but_lacks_others_is_not_whole(stored: Stored) -> None:
    whole_lines(stored.entry(6))
    assert stored.repair() == Repaired(6, 7)
    assert stored.spans() == [0, 1, 2, 3]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda each: each.__name__)
def test_the_log_is_cut_before_an_entry_whose_files_are_not_whole(
    stored: Stored, damage: Callable[[Path], None]
) -> None:
    damage(stored.data(3))
    assert stored.repair() == Repaired(5, 7)
    assert stored.spans() == [0, 1, 2]


def test_messages_that_are_not_as_they_were_archived_count_as_damaged(stored: Stored) -> None:
    asked: list[Path] = []

    def are_sound(files: object) -> bool:
        asked.extend(cast("list[Path]", files))
        return stored.data(4) not in asked

    assert Repair(stored.path, KNOWN, 0, are_sound).apply() == Repaired(7, 7)
    assert asked == [stored.data(3), stored.data(4)]
    assert stored.spans() == [0, 2, 3]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda each: each.__name__)
@pytest.mark.parametrize("name", ["_last_checkpoint", f"{5:020d}.checkpoint.parquet"])
def test_a_damaged_checkpoint_goes_and_its_log_stays(stored: Stored, damage: Callable[[Path], None], name: str) -> None:
    DeltaTable(str(stored.path), version=5).create_checkpoint()
    damage(stored.log / name)
    assert stored.repair().first == -1
    assert stored.spans() == [0, 2, 3, 4]
    assert not stored.repair()


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda each: each.__name__)
def test_after_a_run_that_ended_well_only_checkpoints_go(stored: Stored, damage: Callable[[Path], None]) -> None:
    DeltaTable(str(stored.path)).create_checkpoint()
    table = Table(lambda: cast("SparkSession", None), stored.path)
    assert table.can_be_opened()
    damage(stored.log / f"{7:020d}.checkpoint.parquet")
    damage(stored.data(4))
    assert not table.can_be_opened()
    assert stored.repair(replace(KNOWN, version=7, unerased=False)).first == -1
    assert table.can_be_opened()
    assert stored.repair(replace(KNOWN, unerased=False)) == Repaired(), "no version, not even later ones"
    assert table.version() == 7


def test_a_table_that_is_not_there_needs_no_repair(tmp_path: Path) -> None:
    assert Table(lambda: cast("SparkSession", None), tmp_path / "archive").can_be_opened()
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_of_what_is_taken_back_goes_too(stored: Stored) -> None:
    DeltaTable(str(stored.path)).create_checkpoint()
    zeros(stored.data(4))
    assert stored.repair() == Repaired(7, 7, [7])
    assert stored.spans() == [0, 2, 3]


def unharmed(stored: Stored, state: ArchiveState, told: str) -> None:
    before = stored.content()
    with pytest.raises(ArchiveRunError, match=told):
        stored.repair(state)
    assert stored.content() == before


def test_nothing_is_taken_back_that_the_hot_store_names(stored: Stored) -> None:
    zeros(stored.data(1))
    assert not stored.repair()
    zeros(stored.entry(2))
    assert not stored.repair(), "whoever opens the table tells of it"
    zeros(stored.data(4))
    with pytest.raises(ArchiveRunError, match="cannot be read"):
        stored.repair()
    assert stored.entry(7).exists()


def test_nothing_is_taken_back_if_what_would_be_left_is_not_whole(stored: Stored) -> None:
    zeros(stored.entry(6))
    stored.data(0).unlink()
    unharmed(stored, KNOWN, "is damaged: 1 files of version 5 are missing")


def test_nothing_is_taken_back_of_a_log_that_is_not_all_there(stored: Stored) -> None:
    DeltaTable(str(stored.path), version=5).create_checkpoint()
    for version in range(4):
        stored.entry(version).unlink()
    assert not stored.repair()
    zeros(stored.log / f"{5:020d}.checkpoint.parquet")
    unharmed(stored, KNOWN, "is damaged: its log lacks version 0")


def test_nothing_is_taken_back_of_runs_that_the_database_does_not_know(stored: Stored) -> None:
    stored.begin_turn(8)
    zeros(stored.data(4))
    unharmed(stored, KNOWN, "is newer than the database")


def test_nothing_is_taken_back_of_another_databases_archive(stored: Stored) -> None:
    zeros(stored.data(4))
    unharmed(stored, replace(KNOWN, archive_id="other"), "belongs to another database")


def test_nothing_is_taken_back_when_the_disk_fails(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Path.read_bytes

    def fail(path: Path) -> bytes:
        if path == victim:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", fail)
    for victim in (stored.data(4), stored.entry(6)):  # noqa: B007 - fail looks at it
        with pytest.raises(ArchiveRunError, match=r"cannot be read: .*Input/output error"):
            stored.repair()
    assert stored.spans() == [0, 2, 3, 4]


def test_a_folder_that_is_not_mounted_is_left_alone(stored: Stored) -> None:
    shutil.rmtree(stored.path)
    assert not stored.repair()
    stored.path.mkdir()
    assert not stored.repair()
    assert list(stored.path.iterdir()) == []


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda each: each.__name__)
def test_a_table_that_was_just_made_and_is_not_whole_is_made_anew(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    path = tmp_path / "archive"
    DeltaTable.create(str(path), pyarrow.schema([("lifetime", pyarrow.int64())]))
    table = Table(lambda: cast("SparkSession", None), path)
    table.remove_unmade()
    assert DeltaTable(str(path)).version() == 0
    damage(path / "_delta_log" / f"{0:020d}.json")
    other = path / "something else"
    other.touch()
    table.remove_unmade()
    assert (path / "_delta_log").exists()
    other.unlink()
    table.remove_unmade()
    assert list(path.iterdir()) == []
