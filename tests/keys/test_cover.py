"""Covers, compared with a plain set of the numbers that live."""

import random
from collections.abc import Iterable

import pytest
from hypothesis import given, settings, strategies as st

from conclave.keys import tree
from conclave.keys.tree import Cover, Node, Range

ROOT = Node(tree.ROOT, bytes(range(32)))
KEYS = tree.leaves(ROOT.secret, tree.HEIGHT)
ALL = Range(0, tree.BLOCK - 1)

edges = st.integers(0, 16).map(lambda height: 1 << height)
numbers = st.one_of(st.integers(0, tree.BLOCK - 1), st.integers(0, 40), edges.map(lambda edge: min(edge, ALL.last)))


def merged(chosen: Iterable[int]) -> list[Range]:
    """Return numbers as ranges that do not meet."""
    found: list[Range] = []
    for number in sorted(chosen):
        if found and found[-1].last + 1 == number:
            found[-1] = Range(found[-1].first, number)
        else:
            found.append(Range(number, number))
    return found


def derivable(nodes: Cover) -> dict[int, bytes]:
    """Return every key that follows from any node, by its number."""
    found: dict[int, bytes] = {}
    for node in nodes:
        first, last = tree.span(node.position)
        below = tree.leaves(node.secret, tree.HEIGHT + 1 - node.position.bit_length())
        found.update(zip(range(first, last + 1), below, strict=True))
    return found


def fewest(living: set[int]) -> set[int]:
    """Return the positions of the least cover: nodes below which all lives, whose parents are none."""
    full = {tree.BLOCK + number for number in living}
    found = set()
    while full:
        parents = {each // 2 for each in full if each ^ 1 in full}
        found |= {each for each in full if each // 2 not in parents}
        full = parents
    return found


@st.composite
def erasures(draw: st.DrawFn) -> list[list[Range]]:
    """Draw the ranges that each of some steps erases."""
    steps = []
    for _ in range(draw(st.integers(1, 6))):
        chosen: set[int] = set()
        for first in draw(st.lists(numbers, min_size=1, max_size=6)):
            chosen.update(range(first, min(tree.BLOCK, first + draw(st.sampled_from((1, 1, 2, 16, 700, 40_000))))))
        steps.append(merged(chosen))
    return steps


@pytest.mark.system
@settings(max_examples=25)
@given(erasures())
def test_a_cover_derives_exactly_what_lives_by_the_fewest_nodes(steps: list[list[Range]]) -> None:
    nodes: Cover = (ROOT,)
    living = set(range(tree.BLOCK))
    for dead in steps:
        for first, last in dead:
            living.difference_update(range(first, last + 1))
        nodes = tree.without(nodes, dead)
    assert derivable(nodes) == {number: KEYS[number] for number in living}
    assert {node.position for node in nodes} == fewest(living)
    assert list(nodes) == sorted(nodes, key=lambda node: tree.span(node.position))


@settings(max_examples=25)
@given(erasures(), st.randoms(use_true_random=False))
def test_the_order_in_which_messages_go_makes_no_difference(steps: list[list[Range]], shuffled: random.Random) -> None:
    def after(order: list[list[Range]]) -> Cover:
        nodes: Cover = (ROOT,)
        for dead in order:
            nodes = tree.without(nodes, dead)
        return nodes

    other = steps.copy()
    shuffled.shuffle(other)
    assert after(steps) == after(other)


@pytest.mark.system
@settings(max_examples=25)
@given(erasures(), st.lists(numbers, min_size=1, max_size=20))
def test_a_key_is_found_if_and_only_if_its_number_lives(steps: list[list[Range]], asked: list[int]) -> None:
    nodes: Cover = (ROOT,)
    for dead in steps:
        nodes = tree.without(nodes, dead)
    keys = derivable(nodes)
    for number in asked:
        node = tree.covering_node(nodes, number)
        found = None
        if node:
            steps_below = tree.HEIGHT + 1 - node.position.bit_length()
            found = tree.descend(node.secret, tree.BLOCK + number, steps_below)
        assert found == keys.get(number)


@pytest.mark.parametrize("gone", [1, 2, 255, 256, 21_845, 43_690, 65_535])
def test_what_goes_from_the_left_leaves_at_most_a_node_for_each_level(gone: int) -> None:
    nodes = tree.without((ROOT,), [Range(0, gone - 1)])
    assert len(nodes) <= tree.HEIGHT
    assert [each.last for each in map(Range._make, (tree.span(node.position) for node in nodes))][-1] == ALL.last


def test_a_block_that_lives_whole_has_one_node_and_one_that_is_gone_none() -> None:
    assert tree.without((ROOT,), []) == (ROOT,)
    assert tree.restrict_to((ROOT,), [ALL]) == (ROOT,)
    assert tree.without((ROOT,), [ALL]) == ()
    assert tree.restrict_to((ROOT,), []) == ()


def test_a_single_message_costs_at_most_sixteen_nodes_and_a_neighbour_that_goes_too_takes_one_back() -> None:
    one = tree.without((ROOT,), [Range(4, 4)])
    assert len(one) == tree.HEIGHT
    assert len(tree.without(one, [Range(5, 5)])) == tree.HEIGHT - 1


def test_what_is_lost_does_not_come_back_by_asking_for_it() -> None:
    nodes = tree.without((ROOT,), [Range(10, 20)])
    assert tree.restrict_to(nodes, [Range(0, 15)]) == tree.restrict_to((ROOT,), [Range(0, 9)])
