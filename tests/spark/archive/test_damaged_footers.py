"""Damage where no checksum is: in what a file says of its pages. It lets nothing go, ends no process, and is named."""

from pathlib import Path

import pytest
from deltalake import DeltaTable

from conclave.archive.scan import batches, by_rows
from conclave.store.archive.moves import ArchiveState
from conclave.store.resources.receipts import ErasedMessages
from spark.archive import columns as a, data_files
from spark.archive.data_files import MisnamedError
from spark.archive.due_rows import NUMBERS
from spark.archive.table import Table
from spark.hot_store import ArchiveRunError
from tests.support.archive_rows import conditions, look, messages, plan
from tests.support.damage import misstate

GROUP = 0x1122334455667788


def only_file(table: Table) -> Path:
    [file] = data_files.stored(table.path)
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
    rows = messages([GROUP - 9, GROUP, GROUP + 9], 30)
    table.append(rows, "mine", 1)
    misstate(only_file(table), GROUP, GROUP - 5)
    query = by_rows(DeltaTable(str(table.path)))
    looked = batches(query, f"SELECT sequence_num FROM archive WHERE group_key = {GROUP}")
    assert sum(batch.num_rows for batch in looked) == 30
    [measured] = look(table, plan(rows, {GROUP: conditions(is_gone=True)})).values()
    assert (measured.gone, measured.left) == ([ErasedMessages("deleted_group", 30, 30, 1030)], None)


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
            except ArchiveRunError as error:
                refused += "where its footer has" in str(error)
    assert refused


def test_a_column_of_another_name_is_no_column_of_the_archive(table: Table) -> None:
    rows = messages([1])
    table.append(rows, "mine", 1)
    path = only_file(table)
    overwrite(path, b"group_key", b"group_kez")
    with pytest.raises(MisnamedError, match="are not those of the archive"):
        list(data_files.read(path))
    with pytest.raises(ArchiveRunError):
        look(table, plan(rows, {1: conditions(gone_below=3)}))


def test_a_torn_append_whose_file_has_lost_the_name_of_a_column_is_taken_back(table: Table) -> None:
    table.append(messages([1]), "mine", 1)
    table.begin_turn("mine", 1)
    version = table.version()
    before = {file.path for file in data_files.stored(table.path)}
    table.append(messages([2]), "mine", 2)
    [path] = [table.path / file.path for file in data_files.stored(table.path) if file.path not in before]
    overwrite(path, b"sender_id", bytes(9), first=True)
    done = table.repair(ArchiveState("mine", version, unerased=True, turn=1, former_turn=0), 2)
    assert done
    assert table.version() == version


def test_what_is_damaged_is_named_although_datafusion_looks_at_no_checksums(table: Table) -> None:
    """It may fail over damaged numbers, or find others."""
    rows = messages([GROUP])
    table.append(rows, "mine", 1)
    path = only_file(table)
    content = path.read_bytes()
    at = content.index(b"\x28\xb5\x2f\xfd")  # the first page, of zstd
    path.write_bytes(content[: at + 12] + bytes([content[at + 12] ^ 1]) + content[at + 13 :])
    with pytest.raises(ArchiveRunError, match=f"{path}: "):
        look(table, plan(rows, {GROUP: conditions(gone_below=3)}))
