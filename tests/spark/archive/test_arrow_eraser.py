"""What goes from files of the archive without Spark, by every rule; and that a fault of a file lets nothing go."""

import json
import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from conclave import failpoints
from conclave.archive.layout import ROW_GROUP_BYTES
from conclave.keys.cover import Range
from conclave.store.archive.erasures import Key
from conclave.store.archive.moves import ArchiveState, PartRow
from conclave.store.resources.receipts import Erased
from spark.archive import arrow_eraser, columns as a, data_files, due_rows, table_files
from spark.archive.arrow_eraser import ArrowEraser
from spark.archive.eraser import Measured
from spark.archive.expiry_plan import ArchivePlan
from spark.archive.repair import Repair, read_entry
from spark.archive.table import Table
from spark.hot_store import ArchiveError

FOREVER = 2**63 - 1
USERS = [bytes([number]) * 16 for number in range(1, 5)]
SPAN, OTHER = 0, 86_400


def messages(group_keys: Iterable[int], count: int = 10, *, span: int = SPAN, size: int = 100) -> pyarrow.Table:
    """Number n was sent at the second 1000 + n by user n % 4; every fifth is a commit."""
    names = [(key, number) for key in group_keys for number in range(1, count + 1)]
    rows = pyarrow.table(
        {
            a.LIFETIME: [-1] * len(names),
            a.SPAN: [span] * len(names),
            a.GROUP_KEY: [key for key, _ in names],
            a.SEQUENCE_NUM: [number for _, number in names],
            a.SENDER_ID: [USERS[number % 4] for _, number in names],
            a.IS_COMMIT: [number % 5 == 0 for _, number in names],
            a.CREATED_AT: [1000 + number for _, number in names],
            a.CHECKSUM: [0] * len(names),
            a.BODY: [os.urandom(size) for _ in names],
        },
        a.ARCHIVE,
    )
    return rows.set_column(rows.column_names.index(a.CHECKSUM), a.CHECKSUM, a.checksums_of(rows))


def conditions(**given: Any) -> tuple[Any, ...]:
    """The conditions of a group of which nothing goes but by those that are given."""
    usual: dict[str, Any] = dict.fromkeys((a.IS_GONE, a.IS_RESTORED), False)
    usual |= {a.GONE_BELOW: 0, a.CUTOFF: 0, a.COMMITS_ABOVE: FOREVER, a.ERASABLE_BEFORE: FOREVER, a.DEAD_UP_TO: 0}
    usual |= {a.SENDERS: [], a.TAKEN_BACK: []}
    return tuple((usual | given)[name] for name in a.DUE.names[1:-1])


def plan(of_groups: dict[int, tuple[Any, ...]], spans: Iterable[int] = (SPAN,)) -> ArchivePlan:
    made = ArchivePlan(groups=of_groups, partial=[(key, -1, span) for key in of_groups for span in spans])
    made.taken_back = {key: each[-1] for key, each in of_groups.items() if each[-1]}
    return made


def stored(table: Table) -> pyarrow.Table:
    """What the table has, in the order of its files."""
    files = table_files.stored(table.path)
    found = [rows for file in files for rows in data_files.read(table.path / file.path)]
    return pyarrow.concat_tables(found) if found else a.STORED.empty_table()


def names(rows: pyarrow.Table, group_key: int) -> list[int]:
    return [number for key, number in a.values_of(rows, due_rows.NUMBERS) if key == group_key]


def test_each_rule_takes_what_it_names_and_no_other_message(table: Table) -> None:
    """Rules of one group each, whose 10 messages lie in one file with those of a group of which nothing is due."""
    rules: dict[int, tuple[tuple[Any, ...], dict[str, Sequence[int]]]] = {
        1: (conditions(is_gone=True), {"deleted_group": range(1, 11)}),
        2: (conditions(is_restored=True, erasable_before=0), {"restored": range(1, 11)}),
        3: (conditions(gone_below=4), {"fetched": range(1, 5)}),
        4: (conditions(cutoff=1007), {"expired": range(1, 7)}),
        5: (conditions(cutoff=1007, commits_above=0), {"expired": (1, 2, 3, 4, 6)}),
        6: (conditions(cutoff=1007, commits_above=5), {"expired": range(1, 7)}),
        7: (conditions(taken_back=[2, 5, 99]), {"taken_back": (2, 5)}),
        8: (conditions(senders=[USERS[1]]), {"deleted_account": (1, 9)}),
        9: (conditions(cutoff=1007, erasable_before=1003), {"expired": (1, 2)}),
        10: (conditions(gone_below=2, cutoff=1004, taken_back=[4, 8]), {"fetched": (1, 2), "expired": (3,)}),
        11: (conditions(cutoff=1007, dead_up_to=3), {"overwritten": (1, 2, 3), "expired": (4, 5, 6)}),
        12: (conditions(taken_back=[1, 9], erasable_before=1009), {"taken_back": (1,)}),
        13: (conditions(is_gone=True, erasable_before=1005), {"deleted_group": range(1, 5)}),
    }
    rules[10][1]["taken_back"] = (4, 8)
    rows = messages(range(1, 15))
    table.append(rows, "mine", 1)
    wanted = plan({key: given for key, (given, _) in rules.items()})
    eraser = ArrowEraser(table)
    measured = eraser.measure(wanted)
    assert set(measured) == set(wanted.partial)
    for key, (_, expected) in rules.items():
        gone = {number for numbers in expected.values() for number in numbers}
        found = measured[key, -1, SPAN]
        told = {each.rule: (each.messages, each.last_seq, each.newest) for each in found.gone}
        assert told == {rule: (len(of), max(of), 1000 + max(of)) for rule, of in expected.items()}, key
        assert found.left == part(rows, (key, -1, SPAN), gone), key
        assert set(found.taken_back) == set(wanted.taken_back.get(key, ())) & set(range(1, 11)) - gone
    assert eraser.delete(wanted) == sum(len(of) for _, expected in rules.values() for of in expected.values())
    left = stored(table)
    for key in range(1, 15):
        expected = rules[key][1] if key in rules else {}
        assert names(left, key) == sorted(set(range(1, 11)) - {n for of in expected.values() for n in of}), key
    assert left.equals(without(rows, rules)), "as they were, in their order"


def without(rows: pyarrow.Table, rules: dict[int, Any]) -> pyarrow.Table:
    gone = {(key, number) for key, (_, by) in rules.items() for of in by.values() for number in of}
    places = [at for at, name in enumerate(a.values_of(rows, due_rows.NUMBERS)) if name not in gone]
    return rows.select(a.STORED.names).take(places)


def part(rows: pyarrow.Table, key: Key, gone: set[int]) -> PartRow | None:
    """The row of the index for what is left."""
    of_group = [row for row in rows.to_pylist() if row[a.GROUP_KEY] == key[0] and row[a.SEQUENCE_NUM] not in gone]
    if not of_group:
        return None
    numbers, times = [row[a.SEQUENCE_NUM] for row in of_group], [row[a.CREATED_AT] for row in of_group]
    checksum = 0
    for row in of_group:
        checksum ^= row[a.CHECKSUM]
    size = sum(len(row[a.BODY]) for row in of_group)
    return PartRow(*key, min(numbers), max(numbers), min(times), max(times), len(of_group), size, checksum)


def test_what_users_under_a_legal_hold_have_sent_stays(table: Table) -> None:
    """All but what the hot store has again."""
    table.append(messages([1, 2, 3]), "mine", 1)
    wanted = plan(
        {
            1: conditions(is_gone=True),
            2: conditions(senders=[USERS[0], USERS[1]]),
            3: conditions(is_restored=True),
        }
    )
    wanted.held = [USERS[0], USERS[2], USERS[0]]
    eraser = ArrowEraser(table)
    assert [each.gone for _, each in sorted(eraser.measure(wanted).items())] == [
        [Erased("deleted_group", 5, 9, 1009)],
        [Erased("deleted_account", 2, 9, 1009)],
        [Erased("restored", 10, 10, 1010)],
    ]
    assert eraser.delete(wanted) == 17
    assert (names(stored(table), 1), names(stored(table), 2)) == ([2, 4, 6, 8, 10], [2, 3, 4, 5, 6, 7, 8, 10])
    assert names(stored(table), 3) == []


def test_a_plan_of_which_nothing_goes_changes_nothing(table: Table) -> None:
    rows = messages([1])
    table.append(rows, "mine", 1)
    eraser, wanted = ArrowEraser(table), plan({1: conditions()}, spans=[SPAN, OTHER])
    assert eraser.measure(wanted) == {(1, -1, SPAN): Measured([], part(rows, (1, -1, SPAN), set()))}
    version = table.version()
    assert (eraser.delete(wanted), table.version()) == (0, version)
    assert (eraser.measure(ArchivePlan()), eraser.delete(ArchivePlan())) == ({}, 0)


def test_many_groups_are_asked_for_a_part_at_a_time(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(due_rows, "ENTRIES_AT_ONCE", 3)
    table.append(messages(range(1, 12)), "mine", 1)
    wanted = plan({key: conditions(taken_back=[key, 10], gone_below=1) for key in range(1, 11)})
    eraser = ArrowEraser(table)
    expected = {key: 1 + len({key, 10} - {1}) for key in range(1, 11)}
    assert {key[0]: sum(each.messages for each in of.gone) for key, of in eraser.measure(wanted).items()} == expected
    assert eraser.delete(wanted) == sum(expected.values())
    assert names(stored(table), 11) == list(range(1, 11))


def test_a_file_of_which_the_log_says_nothing_is_not_passed_over(table: Table) -> None:
    """Another program has written it."""
    for batch, keys in enumerate(([1, 2], [3]), 1):
        [added] = data_files.write(table.path, messages(keys))
        added.stats = ""
        table.replace([], [added])
        assert sum(each.messages for each in table_files.stored(table.path)) == [20, 30][batch - 1]
    table.append(messages([4]), "mine", 1)
    wanted = plan({key: conditions(gone_below=3) for key in (1, 3, 4)})
    assert ArrowEraser(table).delete(wanted) == 9
    assert [names(stored(table), key)[0] for key in (1, 2, 3, 4)] == [4, 1, 4, 4]


def paths(table: Table) -> set[str]:
    return {each.path for each in table_files.stored(table.path)}


def test_only_files_with_what_goes_are_written_anew_and_all_in_one_version(table: Table) -> None:
    """Of three files of a partition one has nothing that goes, one loses some, and one has nothing left."""
    added = [messages([1, 2]), messages([4]), messages([1, 9], span=OTHER)]
    for batch, rows in enumerate(added, 1):
        table.append(rows, "mine", batch)
    table.append(messages([3]), "mine", 4)
    before, version = paths(table), table.version()
    wanted = plan({1: conditions(gone_below=3), 4: conditions(is_gone=True)}, spans=[SPAN, OTHER])
    assert ArrowEraser(table).delete(wanted) == 3 + 10 + 3
    assert table.version() == version + 1
    entry = read_entry(table.path / "_delta_log", table.version())
    assert entry is not None
    kinds = [kind for action in entry for kind in action]
    assert sorted(kinds) == ["add", "add", "commitInfo", "remove", "remove", "remove"]
    assert all(action[kind]["dataChange"] for action in entry for kind in action if kind in ("add", "remove"))
    assert len(before & paths(table)) == 1
    assert names(stored(table), 3) == names(stored(table), 9) == list(range(1, 11))
    for path in paths(table) - before:
        assert stat.S_IMODE((table.path / path).stat().st_mode) == 0o600
    assert table.sweep(0), "what was replaced is no longer there"
    assert {path.relative_to(table.path).as_posix() for path in table.path.glob("lifetime=*/*/*")} == paths(table)


def test_the_log_has_nothing_of_bodies_or_senders_of_what_is_left(table: Table) -> None:
    table.append(messages([1]), "mine", 1)
    ArrowEraser(table).delete(plan({1: conditions(gone_below=3)}))
    [added] = [action["add"] for action in read_entry(table.path / "_delta_log", 2) or () if "add" in action]
    told = json.loads(added["stats"])
    assert (told["numRecords"], set(told["minValues"])) == (7, {a.GROUP_KEY, a.SEQUENCE_NUM, a.CREATED_AT})


def test_a_file_stays_one_file_with_row_groups_as_large_as_before(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = messages(range(1, 5), 4, size=ROW_GROUP_BYTES // 4)
    table.append(rows, "mine", 1)
    assert len(paths(table)) == 1
    monkeypatch.setattr(data_files, "FILE_BYTES", ROW_GROUP_BYTES)
    wanted = plan({key: conditions(taken_back=[2]) for key in range(1, 5)})
    assert ArrowEraser(table).delete(wanted) == 4
    [path] = paths(table)
    file = parquet.ParquetFile(table.path / path).metadata
    assert [file.row_group(at).num_rows for at in range(file.num_row_groups)] == [3, 3, 3, 3]


def test_numbers_that_stay_are_told_as_ranges(table: Table) -> None:
    table.append(messages([1, 2, 5]), "mine", 1)
    ArrowEraser(table).delete(plan({1: conditions(taken_back=[4, 5]), 2: conditions(gone_below=9)}))
    table.append(messages([1], span=OTHER), "mine", 2)
    living = ArrowEraser(table).living
    assert living({1, 2, 7}, [(-1, SPAN)]) == {1: [Range(1, 3), Range(6, 10)], 2: [Range(10, 10)]}
    assert living({1}, [(-1, SPAN), (-1, OTHER)]) == {1: [Range(1, 10)]}


def damage(table: Table, body: bytes) -> Path:
    """Have one bit of a body be another one, in whatever file it lies."""
    [path] = [table.path / each for each in paths(table) if body in (table.path / each).read_bytes()]
    content = bytearray(path.read_bytes())
    content[content.index(body) + 50] ^= 1
    path.write_bytes(content)
    return path


def test_a_damaged_page_lets_nothing_go(table: Table) -> None:
    rows = messages([1, 2])
    table.append(rows, "mine", 1)
    table.append(messages([1], span=OTHER), "mine", 2)
    path = damage(table, rows[a.BODY][15].as_py())
    wanted = plan({1: conditions(gone_below=3)}, spans=[OTHER, SPAN])
    before, version = path.read_bytes(), table.version()
    for work in (ArrowEraser(table).measure, ArrowEraser(table).delete):
        with pytest.raises(ArchiveError, match=f"{path}: .*page integrity.*a-damaged-file"):
            work(wanted)
    assert (table.version(), path.read_bytes()) == (version, before)
    table.sweep(0)
    assert {each.relative_to(table.path).as_posix() for each in table.path.glob("lifetime=*/*/*")} == paths(table)


def test_a_message_that_is_not_read_is_not_taken_for_gone(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if bodies could not all be read, although numbers could."""
    table.append(messages([1]), "mine", 1)
    read, version = data_files.read, table.version()

    def lose(path: Path, columns: Sequence[str] = a.STORED.names, groups: Sequence[int] | None = None) -> Any:
        for rows in read(path, columns, groups):
            yield rows.slice(0, 9) if a.BODY in columns else rows

    monkeypatch.setattr(data_files, "read", lose)
    with pytest.raises(ArchiveError, match=r"part-.*parquet: of 7 messages that stay it has 6"):
        ArrowEraser(table).delete(plan({1: conditions(gone_below=3)}))
    assert table.version() == version


def test_a_number_that_is_there_twice_and_stays_once_lets_nothing_go(table: Table) -> None:
    """By its number alone it cannot be told which of the two goes."""
    rows = messages([1])
    at = rows.column_names.index(a.CREATED_AT)
    table.append(rows, "mine", 1)
    table.append(rows.set_column(at, a.CREATED_AT, pyarrow.array([5000] * 10)), "mine", 2)
    wanted, version = plan({1: conditions(cutoff=1004)}), table.version()
    for work in (ArrowEraser(table).measure, ArrowEraser(table).delete):
        with pytest.raises(ArchiveError, match="3 messages are due where files have 6 of them"):
            work(wanted)
    assert table.version() == version


def test_what_was_written_before_a_death_belongs_to_no_version_and_is_swept(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.append(messages([1]), "mine", 1)
    before = paths(table)

    def die(point: str) -> None:
        assert point == "archive.rewritten"
        raise KeyboardInterrupt

    monkeypatch.setattr(arrow_eraser, "reach", die)
    with pytest.raises(KeyboardInterrupt):
        ArrowEraser(table).delete(plan({1: conditions(gone_below=3)}))
    assert len(list(table.path.glob("lifetime=*/*/*"))) == 2
    assert paths(table) == before
    assert table.sweep(0)
    assert {each.relative_to(table.path).as_posix() for each in table.path.glob("lifetime=*/*/*")} == before
    assert "archive.rewritten" in failpoints.ARCHIVE_POINTS


def test_a_torn_entry_and_a_torn_file_are_taken_back(table: Table) -> None:
    rows = messages([1, 2])
    table.append(rows, "mine", 1)
    table.begin_turn("mine", 1)
    version = table.version()
    ArrowEraser(table).delete(plan({1: conditions(gone_below=3), 2: conditions(taken_back=[1])}))
    log, state = table.path / "_delta_log", ArchiveState("mine", version, unerased=True, turn=1, former_turn=0)
    entry, [path] = log / f"{version + 1:020d}.json", [table.path / each for each in paths(table)]
    whole, content = entry.read_bytes(), path.read_bytes()
    lines = whole.splitlines(keepends=True)
    assert not table.repair(state, 1)
    for end in range(1, len(lines)):
        entry.write_bytes(b"".join(lines[:end]))
        assert table.repair(state, 1).first == version + 1
        assert stored(table).equals(rows.select(a.STORED.names)), "all of it is there, to be erased by the next run"
        entry.write_bytes(whole)
    path.write_bytes(content[:-100] + bytes(100))
    assert Repair(table.path, state, 1, lambda _: True).apply().first == version + 1
    assert stored(table).equals(rows.select(a.STORED.names))


def test_it_is_for_what_is_little(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    table.append(messages([1]), "mine", 1)
    table.append(messages([5], span=OTHER), "mine", 2)
    eraser = ArrowEraser(table)
    mine, nothing, others = plan({1: conditions()}), ArchivePlan(), plan({4: conditions(), 9: conditions()}, [OTHER])
    assert all(map(eraser.suits, (mine, nothing, others)))
    monkeypatch.setattr(arrow_eraser, "MOST_BYTES", 0)
    assert [eraser.suits(each) for each in (mine, nothing, others)] == [False, True, True]
    monkeypatch.setattr(arrow_eraser, "MOST_BYTES", 10**9)
    monkeypatch.setattr(arrow_eraser, "MOST_MESSAGES", 9)
    assert [eraser.suits(each) for each in (mine, nothing, others)] == [False, True, True]
