"""Damage where no checksum is: in what a file says of its pages. It lets nothing go, ends no process, and is named."""

from pathlib import Path

import pytest
from deltalake import DeltaTable

from conclave.archive.scan import batches, by_rows
from conclave.store.archive.moves import ArchiveState
from conclave.store.resources.receipts import Erased
from spark.archive import columns as a, data_files, table_files
from spark.archive.arrow_eraser import ArrowEraser
from spark.archive.data_files import MisnamedError
from spark.archive.due_rows import NUMBERS, DueRows
from spark.archive.eraser import Measured
from spark.archive.table import Table
from spark.hot_store import ArchiveError
from tests.spark.archive.test_arrow_eraser import conditions, messages, plan
from tests.support.damage import misstate

GROUP = 0x1122334455667788


def only_file(table: Table) -> Path:
    [file] = table_files.stored(table.path)
    return table.path / file.path


def overwrite(path: Path, what: bytes, other: bytes, *, first: bool = False) -> None:
    """Replace bytes wherever they are in a file, or where they are first."""
    content = path.read_bytes()
    assert content.count(what)
    path.write_bytes(content.replace(what, other, 1 if first else -1))


def test_groups_are_found_by_rows_and_not_by_what_a_footer_says_of_them(table: Table) -> None:
    """Python cannot catch what reading some damaged statistics throws."""
    table.append(messages([GROUP]), "mine", 1)
    path = only_file(table)
    content, name = path.read_bytes(), GROUP.to_bytes(8, "little")
    footer = content.rindex(name, 0, content.rindex(name))
    damaged = content[:footer] + content[footer:].replace(name, (GROUP - 5).to_bytes(8, "little"))
    path.write_bytes(damaged)
    assert damaged != content
    assert sum(rows.num_rows for rows in data_files.read(path, NUMBERS, [GROUP])) == 10
    assert not list(data_files.read(path, NUMBERS, [GROUP - 5]))


def test_no_message_stays_by_what_a_footer_says_of_groups(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "ROW_GROUP_BYTES", 1000)
    table.append(messages([GROUP - 9, GROUP, GROUP + 9], 30), "mine", 1)
    misstate(only_file(table), GROUP, GROUP - 5)
    query = by_rows(DeltaTable(str(table.path)))
    looked = batches(query, f"SELECT sequence_num FROM archive WHERE group_key = {GROUP}")
    assert sum(batch.num_rows for batch in looked) == 30
    eraser, wanted = ArrowEraser(table), plan({GROUP: conditions(is_gone=True)})
    [measured] = eraser.measure(wanted).values()
    assert measured == Measured([Erased("deleted_group", 30, 30, 1030)], None)
    assert eraser.delete(wanted) == 30


def test_a_file_that_says_it_has_fewer_rows_of_one_column_is_refused(table: Table) -> None:
    """What is asked for by that column would be missed: what lives would lose its keys, what is due would stay."""
    rows = 45
    table.append(messages([GROUP], rows), "mine", 1)
    path = only_file(table)
    content = path.read_bytes()
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    sums = [at for at in range(footer, len(content) - 8) if content[at] == 2 * rows]  # as Thrift writes the number
    assert len(sums) >= 1 + len(a.STORED.names)
    refused = 0
    for at in sums:
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        for columns, groups in (([a.GROUP_KEY], None), (NUMBERS, [GROUP])):
            try:
                assert sum(found.num_rows for found in data_files.read(path, columns, groups)) == rows
            except ArchiveError as error:
                refused += "where its footer has" in str(error)
    assert refused


def test_a_column_of_another_name_is_no_column_of_the_archive(table: Table) -> None:
    table.append(messages([1]), "mine", 1)
    path, version = only_file(table), table.version()
    overwrite(path, b"group_key", b"group_kez")
    with pytest.raises(MisnamedError, match="are not those of the archive"):
        list(data_files.read(path))
    for work in (ArrowEraser(table).measure, ArrowEraser(table).delete):
        with pytest.raises(ArchiveError):
            work(plan({1: conditions(gone_below=3)}))
    assert table.version() == version


def test_a_torn_append_whose_file_has_lost_the_name_of_a_column_is_taken_back(table: Table) -> None:
    table.append(messages([1]), "mine", 1)
    table.begin_turn("mine", 1)
    version = table.version()
    before = {file.path for file in table_files.stored(table.path)}
    table.append(messages([2]), "mine", 2)
    [path] = [table.path / file.path for file in table_files.stored(table.path) if file.path not in before]
    overwrite(path, b"sender_id", bytes(9), first=True)
    done = table.repair(ArchiveState("mine", version, unerased=True, turn=1, former_turn=0), 2)
    assert done
    assert table.version() == version


def test_what_is_damaged_is_named_although_datafusion_looks_at_no_checksums(table: Table) -> None:
    """It may fail over damaged numbers, or find others."""
    table.append(messages([GROUP]), "mine", 1)
    path, version = only_file(table), table.version()
    content = path.read_bytes()
    at = content.index(b"\x28\xb5\x2f\xfd")  # the first page, of zstd
    path.write_bytes(content[: at + 12] + bytes([content[at + 12] ^ 1]) + content[at + 13 :])
    for work in (ArrowEraser(table).measure, ArrowEraser(table).delete):
        with pytest.raises(ArchiveError, match=f"{path}: "):
            work(plan({GROUP: conditions(gone_below=3)}))
    assert table.version() == version


def test_what_goes_is_sought_only_among_the_numbers_of_the_rows(table: Table) -> None:
    """Or a group of a million messages, all due, would be gone through for each few thousand of them."""
    rows = messages([1, 2], 1000)
    due = DueRows(rows.select(NUMBERS).append_column("created_at", rows["created_at"]))
    some = rows.slice(990, 20).take([*range(19, -1, -1)])
    near = due._near(some)
    assert near is not None
    assert near.num_rows == 20
    assert due.without(some).num_rows == 0
    assert due._near(messages([3])) is None


def test_files_that_are_gone_from_the_table_are_not_replaced_a_second_time(table: Table) -> None:
    table.append(messages([1]), "mine", 1)
    files = table_files.stored(table.path)
    table.replace(files, [])
    with pytest.raises(ArchiveError, match="was changed meanwhile"):
        table.replace(files, [])
