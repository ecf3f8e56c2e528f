"""Sets of numbers as ranges, compared with plain sets."""

import random
from itertools import pairwise

from conclave.keys import tree
from conclave.keys.store import LAST_NUMBER
from conclave.keys.tree import Range


def plain(some: list[Range]) -> set[int]:
    assert all(one.last + 1 < other.first for one, other in pairwise(some)), "they do not meet"
    return {number for first, last in some for number in range(first, last + 1)}


def test_they_are_what_plain_sets_are() -> None:
    chance = random.Random(5)
    for _ in range(500):
        one, other = ({chance.randrange(40) for _ in range(chance.randrange(30))} for _ in range(2))
        some, others = tree.from_numbers(one), tree.from_numbers(other)
        assert plain(some) == one
        assert plain(tree.difference(some, others)) == one - other
        assert plain(tree.intersection(some, others)) == one & other
        assert plain(tree.union([*some, *others])) == one | other
        assert tree.count(some) == len(one)


def test_they_have_room_for_every_number() -> None:
    everything = [Range(0, LAST_NUMBER)]
    assert tree.difference(everything, tree.from_numbers([5])) == [Range(0, 4), Range(6, LAST_NUMBER)]
    assert tree.intersection(everything, tree.from_numbers([5])) == [Range(5, 5)]
