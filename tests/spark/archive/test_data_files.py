"""The archive's data files, written and read without Spark."""

import json
import os
import stat
from pathlib import Path
from typing import Any, cast

import pyarrow
import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession

from conclave.archive.layout import PAGE_ROWS, ROW_GROUP_BYTES
from conclave.store.archive.moves import ArchiveState
from spark.archive import columns as a, data_files
from spark.archive.repair import read_entry
from spark.archive.table import Table
from spark.hot_store import ArchiveRunError

SENDER = bytes(range(16))
STATE = ArchiveState("mine", 0, unerased=True, turn=0, former_turn=0)


def messages(count: int, *, span: int = 0, size: int = 10) -> pyarrow.Table:
    rows = pyarrow.table(
        {
            a.LIFETIME: [-1] * count,
            a.SPAN: [span] * count,
            a.GROUP_KEY: [7] * count,
            a.SEQUENCE_NUM: range(1, count + 1),
            a.SENDER_ID: [SENDER] * count,
            a.IS_COMMIT: [number % 2 == 0 for number in range(count)],
            a.CREATED_AT: range(1000, 1000 + count),
            a.CHECKSUM: [0] * count,
            a.SIZE: [size] * count,
            a.BODY: [os.urandom(size) for _ in range(count)],
        },
        a.ARCHIVE,
    )
    return rows.set_column(rows.column_names.index(a.CHECKSUM), a.CHECKSUM, a.checksums_of(rows))


def write(folder: Path, rows: pyarrow.Table) -> list[Path]:
    return [folder / each.path for each in data_files.write(folder, rows)]


def test_what_is_written_is_read_by_partitions_and_nobody_else_may_read_it(tmp_path: Path) -> None:
    first, second = messages(5), messages(3, span=86_400)
    added = data_files.write(tmp_path, pyarrow.concat_tables([first, second]))
    assert [each.partition_values for each in added] == [
        {"lifetime": "-1", "span": "0"},
        {"lifetime": "-1", "span": "86400"},
    ]
    for each, rows in zip(added, (first, second), strict=True):
        path = tmp_path / each.path
        assert pyarrow.concat_tables(data_files.read(path)).equals(rows.select(a.STORED.names))
        assert path.stat().st_size == each.size
        assert path.parent.relative_to(tmp_path).as_posix() == f"lifetime=-1/span={rows[a.SPAN][0]}"
    for path in tmp_path.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_neither_the_log_nor_a_footer_has_pieces_of_bodies_or_senders(tmp_path: Path) -> None:
    rows = messages(3)
    [added] = data_files.write(tmp_path, rows)
    bounds = {"group_key": 7, "sequence_num": 1, "created_at": 1000}
    told = json.loads(added.stats)
    assert (told["numRecords"], told["minValues"]) == (3, bounds)
    assert told["maxValues"] == {"group_key": 7, "sequence_num": 3, "created_at": 1002}
    row_group = parquet.ParquetFile(tmp_path / added.path).metadata.row_group(0)
    columns = [row_group.column(number) for number in range(row_group.num_columns)]
    assert {each.path_in_schema for each in columns if each.statistics or each.has_column_index} == set(bounds)
    assert all(each.has_offset_index for each in columns), "a reader of one group leaves out pages of others"
    content = (tmp_path / added.path).read_bytes()
    assert all(content.count(body) == 1 for body in rows[a.BODY].to_pylist())


@pytest.mark.parametrize(("count", "size", "row_groups"), [(2 * PAGE_ROWS, 10, 1), (6, ROW_GROUP_BYTES // 2, 6)])
def test_row_groups_are_as_large_as_one_group_s_readers_want_them(
    tmp_path: Path, count: int, size: int, row_groups: int
) -> None:
    [path] = write(tmp_path, messages(count, size=size))
    assert parquet.ParquetFile(path).num_row_groups == row_groups


def test_files_have_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "FILE_BYTES", ROW_GROUP_BYTES)
    rows = messages(6, size=ROW_GROUP_BYTES // 2)
    paths = write(tmp_path, rows)
    assert len({path.name for path in paths}) == 3
    read = pyarrow.concat_tables([each for path in paths for each in data_files.read(path)])
    assert read.equals(rows.select(a.STORED.names))


def test_a_bit_that_is_another_one_is_told_with_the_file(tmp_path: Path) -> None:
    rows = messages(3, size=300)
    [path] = write(tmp_path, rows)
    content = bytearray(path.read_bytes())
    content[content.index(rows[a.BODY][1].as_py()) + 150] ^= 1
    path.write_bytes(content)
    with pytest.raises(ArchiveRunError, match=f"{path}: .*page integrity.*a-damaged-file"):
        list(data_files.read(path))


def test_a_message_that_lacks_its_checksum_is_not_sound(table: Table) -> None:
    """As if it had been altered before its page was written."""
    rows = messages(3)
    table.append(rows, "mine", 1)
    at = rows.column_names.index(a.BODY)
    table.append(rows.set_column(at, a.BODY, rows[a.BODY].take([1, 0, 2])), "mine", 2)
    files = [
        [table.path / each["add"]["path"] for each in actions_of(table, number) if "add" in each] for number in (1, 2)
    ]
    assert [table._are_sound(each) for each in files] == [True, False]


def actions_of(table: Table, version: int) -> list[dict[str, Any]]:
    return cast("list[dict[str, Any]]", read_entry(table.path / "_delta_log", version))


def test_a_batch_is_appended_once_and_read_back_from_what_its_entry_names(table: Table) -> None:
    rows = messages(4)
    table.append(rows, "mine", 1)
    table.append(messages(0), "mine", 2)
    assert (table.last_batch("mine"), table.version_of_batch("mine", 1)) == (2, 1)
    [(partition, read)] = table.read_added(1)
    assert partition == (-1, 0)
    assert read.equals(rows.select(a.STORED.names))
    assert list(table.read_added(2)) == []


def test_an_entry_that_lacks_a_line_at_its_end_is_not_taken_for_whole(table: Table) -> None:
    """Without its last line it would add the messages, and not say that the batch is there."""
    table.append(messages(4), "mine", 1)
    log = table.path / "_delta_log"
    entry = log / f"{1:020d}.json"
    assert {"add", "txn"} <= {kind for action in actions_of(table, 1) for kind in action}
    lines = entry.read_text().splitlines()
    for end in range(1, len(lines)):
        entry.write_text("\n".join(lines[:end]))
        assert read_entry(log, 1) is None


@pytest.mark.parametrize("name", ["_commit_0.json.tmp", f"{0:020d}.json#1", f".{0:020d}.json.0.tmp", f"{0:020d}.json"])
def test_what_a_crash_left_of_a_table_that_was_being_made_goes(tmp_path: Path, name: str) -> None:
    table = Table(lambda: cast("SparkSession", None), tmp_path)
    left = tmp_path / "_delta_log" / name
    left.parent.mkdir()
    left.touch()
    table.remove_unmade()
    assert not left.parent.exists()
    table.prepare(lambda: STATE, is_new=True)
    assert table.version() == 0
