"""The cover of a block: the fewest nodes from which exactly the keys of what lives can be derived. Pure.

What is no longer below a node of the cover is lost: nothing leads from a child to its parent, nor to its sibling. So a
cover only shrinks. Numbers are those within the block (0 to 65,535).
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from conclave.keys import tree


class Node(NamedTuple):
    """A node of a tree of keys, see ``conclave.keys.tree``."""

    position: int
    secret: bytes


class Range(NamedTuple):
    """Numbers that follow one another, ``last`` included."""

    first: int
    last: int


Cover = tuple[Node, ...]
"""Nodes from left to right. None lies below another."""


def kept(cover: Cover, living: Sequence[Range]) -> Cover:
    """Return what derives of ``cover`` the keys of ``living`` alone: ranges in ascending order that do not meet."""
    firsts = [each.first for each in living]
    found: list[Node] = []
    waiting = [(position, secret, *tree.span(position)) for position, secret in reversed(cover)]
    while waiting:
        position, secret, first, last = waiting.pop()
        index = bisect_right(firsts, last) - 1  # the last range that begins within the node, or before it
        if index < 0 or living[index][1] < first:
            continue
        if firsts[index] <= first and living[index][1] >= last:
            found.append(Node(position, secret))
            continue
        left, right = tree.children(secret)
        middle = (first + last) // 2
        waiting += ((2 * position + 1, right, middle + 1, last), (2 * position, left, first, middle))
    return tuple(found)


def without(cover: Cover, dead: Sequence[Range]) -> Cover:
    """Return ``cover`` without the keys of ``dead``: ranges in ascending order that do not meet."""
    return kept(cover, list(_between(dead)))


def node_above(cover: Cover, number: int) -> Node | None:
    """Return the node of ``cover`` from which the key of ``number`` can be derived; None if it is lost."""
    leaf = tree.BLOCK + number
    index = bisect_right(cover, number, key=lambda node: tree.span(node.position)[0]) - 1
    if index < 0:
        return None
    node = cover[index]
    return node if leaf >> (tree.HEIGHT + 1 - node.position.bit_length()) == node.position else None


def _between(dead: Sequence[Range]) -> Iterator[Range]:
    """Yield the ranges of a block that lie between those of ``dead``."""
    begin = 0
    for first, last in dead:
        if begin < first:
            yield Range(begin, first - 1)
        begin = last + 1
    if begin < tree.BLOCK:
        yield Range(begin, tree.BLOCK - 1)
