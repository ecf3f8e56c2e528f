"""The tree of keys: from a node follow the keys below it, each by one way only."""

import random

import pytest

from conclave.keys import tree

SECRET = bytes(range(32))


def test_the_root_spans_the_block_and_a_leaf_one_number() -> None:
    assert tree.span(tree.ROOT) == (0, tree.BLOCK - 1)
    assert tree.span(tree.BLOCK) == (0, 0)
    assert tree.span(2 * tree.BLOCK - 1) == (tree.BLOCK - 1, tree.BLOCK - 1)


@pytest.mark.parametrize("position", [1, 2, 3, 300, 65_535])
def test_the_children_of_a_node_span_its_halves(position: int) -> None:
    first, last = tree.span(position)
    middle = (first + last) // 2
    assert tree.span(2 * position) == (first, middle)
    assert tree.span(2 * position + 1) == (middle + 1, last)


def test_all_keys_of_a_block_differ_and_are_the_same_by_either_way() -> None:
    keys = tree.leaves(SECRET, tree.HEIGHT)
    assert len(set(keys)) == tree.BLOCK
    for number in random.Random(1).sample(range(tree.BLOCK), 100):
        assert tree.descend(SECRET, tree.BLOCK + number, tree.HEIGHT) == keys[number]
        assert len(keys[number]) == tree.SECRET_BYTES


def test_another_root_has_other_keys() -> None:
    assert not set(tree.leaves(SECRET, 8)) & set(tree.leaves(bytes(32), 8))


def test_the_keys_of_stored_messages_stay_the_same_with_another_version() -> None:
    """The digest is part of the format: with another one all that is stored could not be read any more."""
    assert tree.descend(SECRET, tree.BLOCK + 12_345, tree.HEIGHT).hex() == (
        "3a1e2914d3480dc001dcecb3d0def5cc2e7de28ee1f1e33ea44fad126903114b"
    )


def test_nodes_beside_each_other_are_those_that_each_way_down_leads_to() -> None:
    secret = b"s" * tree.SECRET_BYTES
    for steps in range(6):
        every = [tree.descend(secret, (1 << steps) + place, steps) for place in range(1 << steps)]
        for first in range(1 << steps):
            for count in range(1, (1 << steps) - first + 1):
                assert tree.descend_to_range(secret, first, count, steps) == every[first : first + count]
