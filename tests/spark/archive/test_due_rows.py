"""What goes of parts of the archive, by every rule, found without Spark; and that a fault of a file lets nothing go."""

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow
import pytest

from conclave.keys import tree
from conclave.keys.tree import Range
from conclave.store.archive.moves import Key, PartRow
from conclave.store.resources.receipts import ErasedMessages
from spark.archive import due_rows
from spark.archive.due_rows import Measured
from spark.archive.table import Table
from spark.hot_store import ArchiveRunError
from tests.support.archive_rows import SPAN, USERS, Alive, conditions, look, messages, plan

OTHER = SPAN + 86_400


def left_of(rows: pyarrow.Table, key: Key, gone: Iterable[int]) -> PartRow | None:
    """The row of the index for what is left."""
    names = set(gone)
    stays = [row for row in rows.to_pylist() if row["group_key"] == key[0] and row["sequence_num"] not in names]
    if not stays:
        return None
    numbers, times = [row["sequence_num"] for row in stays], [row["created_at"] for row in stays]
    checksum = 0
    for row in stays:
        checksum ^= row["checksum"]
    size = sum(len(row["mls_message"]) for row in stays)
    return PartRow(*key, min(numbers), max(numbers), min(times), max(times), len(stays), size, checksum)


def test_each_rule_takes_what_it_names_and_no_other_message(table: Table) -> None:
    """Rules of one group each, whose 10 messages lie in one file with those of a group of which nothing is due."""
    rules: dict[int, tuple[tuple[Any, ...], dict[str, Sequence[int]]]] = {
        1: (conditions(is_gone=True), {"deleted_group": range(1, 11)}),
        3: (conditions(gone_below=4), {"fetched": range(1, 5)}),
        4: (conditions(cutoff=1007), {"expired": range(1, 7)}),
        5: (conditions(cutoff=1007, commits_above=0), {"expired": (1, 2, 3, 4, 6)}),
        6: (conditions(cutoff=1007, commits_above=5), {"expired": range(1, 7)}),
        7: (conditions(taken_back=[2, 5, 99]), {"taken_back": (2, 5)}),
        8: (conditions(senders=[USERS[1]]), {"deleted_account": (1, 9)}),
        9: (conditions(cutoff=1007, erasable_before=1003), {"expired": (1, 2)}),
        10: (conditions(gone_below=2, cutoff=1004, taken_back=[4, 8]), {"fetched": (1, 2), "expired": (3,)}),
        12: (conditions(taken_back=[1, 9], erasable_before=1009), {"taken_back": (1,)}),
        13: (conditions(is_gone=True, erasable_before=1005), {"deleted_group": range(1, 5)}),
    }
    rules[10][1]["taken_back"] = (4, 8)
    rows = messages(range(1, 15))
    table.append(rows, "mine", 1)
    measured = look(table, plan(rows, {key: given for key, (given, _) in rules.items()}))
    assert set(measured) == {(key, -1, SPAN) for key in rules}
    for key, (_, expected) in rules.items():
        gone = sorted(number for numbers in expected.values() for number in numbers)
        found = measured[key, -1, SPAN]
        told = {each.rule: (each.messages, each.last_seq, each.newest) for each in found.gone}
        assert told == {rule: (len(of), max(of), 1000 + max(of)) for rule, of in expected.items()}, key
        assert found.numbers == tree.from_numbers(gone), key
        assert found.left == left_of(rows, (key, -1, SPAN), gone), key


def test_a_group_of_which_nothing_goes_is_left_out(table: Table) -> None:
    rows = messages([1, 2])
    table.append(rows, "mine", 1)
    assert look(table, plan(rows, {1: conditions(), 2: conditions(cutoff=1000)})) == {}


def test_what_users_under_a_legal_hold_have_sent_stays(table: Table) -> None:
    rows = messages([1, 2])
    table.append(rows, "mine", 1)
    wanted = plan(rows, {1: conditions(is_gone=True), 2: conditions(senders=[USERS[0], USERS[1]])})
    wanted.held = [USERS[0], USERS[2], USERS[0]]
    assert [each.gone for _, each in sorted(look(table, wanted).items())] == [
        [ErasedMessages("deleted_group", 5, 9, 1009)],
        [ErasedMessages("deleted_account", 2, 9, 1009)],
    ]


def test_what_was_erased_before_goes_by_no_rule_and_is_not_left(table: Table) -> None:
    """By the index, which begins after it, or by its keys, within the part."""
    rows = messages([1, 2])
    table.append(rows, "mine", 1)
    wanted = plan(rows, {1: conditions(cutoff=1007), 2: conditions(taken_back=[6])}, first=3, missing={4, 5})
    alive = Alive({1: [Range(3, 3), Range(6, 10)], 2: [Range(3, 3), Range(6, 10)]})
    found = look(table, wanted, alive)
    assert found[1, -1, SPAN].gone == [ErasedMessages("expired", 2, 6, 1006)]
    assert found[1, -1, SPAN].numbers == [Range(3, 3), Range(6, 6)]
    assert found[2, -1, SPAN].numbers == [Range(6, 6)]
    for key, gone in ((1, {3, 6}), (2, {6})):
        assert found[key, -1, SPAN].left is not None
        stays = {3, 6, 7, 8, 9, 10} - gone
        left = found[key, -1, SPAN].left
        assert left
        assert (left.first_seq, left.last_seq, left.message_count) == (min(stays), 10, len(stays))


def test_what_the_index_does_not_count_lets_nothing_of_its_partition_go_but_that_of_others(table: Table) -> None:
    rows, others = messages([1, 2]), messages([1], span=OTHER)
    table.append(pyarrow.concat_tables([rows, others]), "mine", 1)
    wanted = plan(rows, {1: conditions(cutoff=1007), 2: conditions(cutoff=1007)})
    wanted.parts[0] = PartRow(*(*wanted.parts[0].key, 1, 10, 1001, 1010, 11, 1000, 0))
    wanted.parts += plan(others, {1: conditions(cutoff=1007)}, span=OTHER).parts
    found: list[Measured] = []
    with pytest.raises(ArchiveRunError, match="where the index has 21"):
        look(table, wanted, into=found)
    assert [each.part.span for each in found] == [OTHER]


def test_parts_are_asked_of_some_at_a_time(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = messages(range(1, 8))
    table.append(rows, "mine", 1)
    monkeypatch.setattr(due_rows, "MESSAGES_AT_ONCE", 25)
    monkeypatch.setattr(due_rows, "ENTRIES_AT_ONCE", 3)
    found = look(table, plan(rows, {key: conditions(taken_back=[key]) for key in range(1, 8)}))
    assert {key: each.numbers for key, each in found.items()} == {
        (key, -1, SPAN): [Range(key, key)] for key in range(1, 8)
    }
