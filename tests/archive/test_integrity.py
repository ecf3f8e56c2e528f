"""The archive's table compared with the database's index, both of which may be too large for memory."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow
import pytest
from deltalake import write_deltalake

from conclave.archive import integrity
from conclave.archive.integrity import Key
from conclave.store.archive.moves import PartRow

MONTH = 2_592_000


def messages() -> list[dict[str, int]]:
    chance = random.Random(1)
    return [
        {
            "group_key": group,
            "lifetime": lifetime,
            "span": span,
            "sequence_num": number,
            "created_at": span + number,
            "checksum": chance.getrandbits(63) - 2**62,
        }
        for group in (3, 1, 20)
        for span in (0, MONTH, 10 * MONTH)
        for lifetime in (86_400, -1)
        for number in (7, 8)
    ]


def index_of(rows: list[dict[str, int]]) -> list[PartRow]:
    """Return what the index says of messages, in the order in which the database tells it."""
    parts: dict[Key, PartRow] = {}
    for row in rows:
        key = row["group_key"], row["lifetime"], row["span"]
        first = PartRow(*key, 7, 8, row["span"] + 7, row["span"] + 8, 2, 0, 0)
        parts[key] = replace(first, checksum=parts.get(key, first).checksum ^ row["checksum"])
    return sorted(parts.values(), key=lambda part: (part.group_key, part.span, part.lifetime))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    write_deltalake(tmp_path / "table", pyarrow.Table.from_pylist(messages()), partition_by=["lifetime", "span"])
    return tmp_path / "table"


def test_a_table_that_is_as_its_index_says_has_no_faults(table: Path) -> None:
    assert integrity.index_faults(table, index_of(messages()), {}) == {}


def test_messages_that_were_erased_or_moved_back_are_no_faults_until_their_space_is_reclaimed(table: Path) -> None:
    rows = messages()
    partition = -1, MONTH
    gone = [each for each in rows if (each["lifetime"], each["span"]) == partition][:3]  # one row, and half of another
    index = index_of([each for each in rows if each not in gone])
    half = next(each for each in index if each.key == (gone[2]["group_key"], *partition))
    index[index.index(half)] = replace(half, message_count=1)
    assert integrity.index_faults(table, index, {partition: 3}) == {}
    for known in (2, 4):
        [(key, [told])] = integrity.index_faults(table, index, {partition: known}).items()
        assert key[1:] == partition
        assert told == f"the partition has 3 messages that are not in the index, but {known} were erased or moved back"
    assert {key[1:] for key in integrity.index_faults(table, index, {(-1, 0): 3})} == {partition}


def test_each_difference_is_told_of_its_row(table: Path) -> None:
    index = index_of(messages())
    foreign, altered, fewer = index[0], index[7], index[-1]
    index[7] = replace(altered, checksum=altered.checksum ^ 1)
    index[-1] = replace(fewer, message_count=3)
    missing = PartRow(4, -1, MONTH, 1, 1, 1, 1, 1, 1, 1)

    def told() -> Iterator[PartRow]:
        yield from sorted([*index[1:], missing], key=lambda part: (part.group_key, part.span, part.lifetime))

    def key(part: PartRow) -> Key:
        return part.group_key, part.lifetime, part.span

    assert integrity.index_faults(table, told(), {}) == {
        key(foreign): ["2 messages are not in the index"],
        key(altered): ["the messages are not those that were archived: the total checksum differs"],
        key(missing): ["all 1 messages are missing"],
        key(fewer): ["2 messages, but the index has 3"],
    }
