"""How far a page looks in the archive, and what it keeps of what comes."""

import random
from types import SimpleNamespace
from typing import Any

import pytest

from conclave.archive.layout import DAY
from conclave.archive.scan import estimate_last, max_between, parts_between, select
from conclave.archive.window import FirstRows
from conclave.retention.policy import FOREVER, KEEP, GroupPolicy
from conclave.retention.stretches import Part, Stretch
from conclave.retention.visibility import Visibility

MUCH = 10**9


def part(first: int, last: int, count: int | None = None, size: int = 10, span: int = 0, lifetime: int = KEEP) -> Part:
    count = last - first + 1 if count is None else count
    return Part(lifetime, span, first, last, span, span, count, count * size)


@pytest.mark.parametrize(
    ("parts", "after", "last", "expected"),
    [
        ([], 0, 100, 0),
        ([part(1, 30)], 0, 100, 30),
        ([part(1, 30)], 10, 20, 10),
        ([part(1, 30)], 30, 100, 0),
        ([part(11, 30), part(51, 60)], 0, 55, 25),
        ([part(1, 30), part(5, 10), part(20, 40)], 0, 100, 40),
        ([part(1, 30, count=3), part(2, 35, count=2)], 4, 32, 28),
    ],
)
def test_most_between_counts_each_number_once(parts: list[Part], after: int, last: int, expected: int) -> None:
    assert max_between(parts, after, last) == expected


@pytest.mark.parametrize(
    ("parts", "after", "wanted", "room", "expected"),
    [
        ([part(1, 1000)], 0, 100, MUCH, 100),
        ([part(1, 1000)], 250, 100, MUCH, 350),
        ([part(1, 1000)], 950, 100, MUCH, 1000),
        ([part(1, 30), part(31, 60), part(61, 90)], 20, 30, MUCH, 50),
        ([part(1, 30), part(500, 600)], 20, 30, MUCH, 519),
        ([part(1, 1000, count=100)], 0, 10, MUCH, 100),
        ([part(1, 1000)], 0, 100, 55, 6),
        ([part(1, 1000)], 0, 100, 0, 1),
        ([part(1, 30, size=100), part(31, 60)], 0, 100, 3_100, 40),
        ([], 0, 100, MUCH, 1000),
        ([part(1, 30, count=0), part(31, 60)], 0, 10, MUCH, 40),
        ([part(1, 30, count=0)], 0, 10, MUCH, 1000),
    ],
)
def test_a_page_looks_no_further_than_it_needs(
    parts: list[Part], after: int, wanted: int, room: int, expected: int
) -> None:
    assert estimate_last(parts, after, 1000, wanted, room) == expected


def test_a_search_always_gets_further_and_never_past_the_border() -> None:
    chance = random.Random(1)
    for _ in range(2_000):
        parts = []
        for _ in range(chance.randrange(6)):
            first = chance.randrange(1, 200)
            last = first + chance.randrange(80)
            parts.append(part(first, last, count=chance.randint(1, last - first + 1), size=chance.choice([1, 5_000])))
        parts.sort(key=lambda each: each.first_seq)
        border = chance.randrange(1, 300)
        after = chance.randrange(border)
        last = estimate_last(parts, after, border, chance.randrange(1, 500), chance.randrange(-10, 10_000))
        assert after < last <= border


def test_only_the_parts_in_reach_are_asked() -> None:
    parts = [part(1, 30, span=0), part(20, 60, span=0, lifetime=7 * DAY), part(61, 90, span=30 * DAY)]
    assert parts_between(parts, 30, 60) == parts[1:2]
    assert parts_between(parts, 29, 61) == parts
    stretch = Stretch(
        7, 0, 90, Visibility(0, 123, FOREVER, GroupPolicy(KEEP), 0), [b"\x01\xff"], parts, 1, 0, 0, bytes(16)
    )
    assert select(stretch, parts, 5, 61, 10) == (
        "SELECT sequence_num, sender_id, mls_message, created_at, FALSE AS is_kept, is_commit, checksum FROM archive"
        " WHERE (lifetime = -1 AND span IN (0, 2592000) OR lifetime = 604800 AND span IN (0)) AND group_key = 7"
        " AND sequence_num <= 61 AND sequence_num > 5 AND created_at >= 123"
        " AND (is_commit OR sender_id NOT IN (X'01ff')) ORDER BY sequence_num LIMIT 10"
    )


class Batch:
    """As much of a record batch as is read."""

    def __init__(self, rows: list[tuple[int, bytes]]) -> None:
        values = (
            [n for n, _ in rows],
            [b"" for _ in rows],
            [body for _, body in rows],
            [0 for _ in rows],
            [False for _ in rows],
            [False for _ in rows],
            [0 for _ in rows],
        )
        self.columns = [SimpleNamespace(to_pylist=lambda column=column: column) for column in values]

    def column(self, index: int) -> Any:
        return self.columns[index]


def test_what_is_kept_does_not_depend_on_the_order_in_which_it_comes() -> None:
    chance = random.Random(1)
    for _ in range(1_000):
        rows = [(n, bytes(chance.choice([1, 3, 50, 200]))) for n in range(chance.randrange(1, 30))]
        limit, room, least = chance.randrange(1, 20), chance.randrange(300), chance.randrange(2)
        kept: list[tuple[int, bytes]] = []
        for number, body in rows:
            if len(kept) == limit or (sum(len(each) for _, each in kept) + len(body) > room and len(kept) >= least):
                break
            kept.append((number, body))
        first = FirstRows(limit, room, least)
        chance.shuffle(rows)
        while rows:
            count = chance.randrange(8)
            first.add(Batch(rows[:count]))
            del rows[:count]
        assert [(each.message.sequence_num, each.message.mls_message) for each in first.rows] == kept
