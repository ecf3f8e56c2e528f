"""Sets of numbers as ranges, compared with plain sets."""

import random
from itertools import pairwise

from conclave.keys import ranges
from conclave.keys.cover import Range
from conclave.keys.store import LAST_NUMBER


def plain(some: list[Range]) -> set[int]:
    assert all(one.last + 1 < other.first for one, other in pairwise(some)), "they do not meet"
    return {number for first, last in some for number in range(first, last + 1)}


def test_they_are_what_plain_sets_are() -> None:
    chance = random.Random(5)
    for _ in range(500):
        one, other = ({chance.randrange(40) for _ in range(chance.randrange(30))} for _ in range(2))
        some, others = ranges.of(one), ranges.of(other)
        assert plain(some) == one
        assert plain(ranges.without(some, others)) == one - other
        assert plain(ranges.both(some, others)) == one & other
        assert plain(ranges.joined([*some, *others])) == one | other
        assert ranges.count(some) == len(one)


def test_they_have_room_for_every_number() -> None:
    everything = [Range(0, LAST_NUMBER)]
    assert ranges.without(everything, ranges.of([5])) == [Range(0, 4), Range(6, LAST_NUMBER)]
    assert ranges.both(everything, ranges.of([5])) == [Range(5, 5)]
