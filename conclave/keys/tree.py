"""The key tree of a block of 65,536 messages, covers, and ranges of numbers. Pure functions.

The construction is that of Goldreich, Goldwasser and Micali (How to Construct Random Functions, 1986), with BLAKE2b as
the generator. Nodes are numbered by position: the root is 1, the children of ``p`` are ``2p`` and ``2p + 1``, and the
leaf of the number ``n`` within the block is ``65,536 + n``. A cover is the smallest set of nodes from which exactly the
keys of the living messages derive. Lists of ranges are ascending, and the ranges neither overlap nor touch.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple

HEIGHT = 16
"""A leaf is 16 steps below the root."""

BLOCK = 1 << HEIGHT
"""A block has 65,536 numbers."""

SECRET_BYTES = 32
"""The secret of a node has 32 bytes. That of a leaf is the key of its message."""

ROOT = 1


def children(secret: bytes) -> tuple[bytes, bytes]:
    """Return the left and the right child of a node."""
    both = blake2b(secret, digest_size=2 * SECRET_BYTES).digest()
    return both[:SECRET_BYTES], both[SECRET_BYTES:]


def span(position: int) -> tuple[int, int]:
    """Return the first and the last number below a node, within its block."""
    steps = HEIGHT + 1 - position.bit_length()
    return (position << steps) - BLOCK, ((position + 1) << steps) - 1 - BLOCK


def descend(secret: bytes, position: int, steps: int) -> bytes:
    """Return the secret of the node at ``position``, which is ``steps`` below the node with ``secret``."""
    for step in range(steps - 1, -1, -1):
        secret = children(secret)[position >> step & 1]
    return secret


def leaves(secret: bytes, steps: int) -> list[bytes]:
    """Return all secrets ``steps`` below the node with ``secret``, from left to right."""
    return descend_to_range(secret, 0, 1 << steps, steps)


def descend_to_range(secret: bytes, first: int, count: int, steps: int) -> list[bytes]:
    """Return the secrets of ``count`` adjacent nodes, ``steps`` below the node with ``secret``.

    ``first``: the index of the first of them among all nodes at that depth.
    """
    found = [secret]
    for left in range(steps - 1, -1, -1):
        begin, end = first >> left, (first + count - 1) >> left
        following: list[bytes] = []
        for each in found:  # ``children`` inlined: the calls would take a third of the time
            both = blake2b(each, digest_size=2 * SECRET_BYTES).digest()
            following += both[:SECRET_BYTES], both[SECRET_BYTES:]
        skipped = begin - 2 * (first >> (left + 1))
        found = following[skipped : skipped + end - begin + 1]
    return found


class Node(NamedTuple):
    """A node of a key tree."""

    position: int
    secret: bytes


class Range(NamedTuple):
    """Consecutive numbers, ``last`` inclusive."""

    first: int
    last: int


Cover = tuple[Node, ...]
"""Nodes from left to right, none of which is below another."""


def restrict_to(cover: Cover, living: Sequence[Range]) -> Cover:
    """Return the cover for exactly those keys of ``cover`` whose numbers are in ``living``."""
    firsts = [each.first for each in living]
    found: list[Node] = []
    waiting = [(position, secret, *span(position)) for position, secret in reversed(cover)]
    while waiting:
        position, secret, first, last = waiting.pop()
        index = bisect_right(firsts, last) - 1  # the last range that begins within the node, or before it
        if index < 0 or living[index][1] < first:
            continue
        if firsts[index] <= first and living[index][1] >= last:
            found.append(Node(position, secret))
            continue
        left, right = children(secret)
        middle = (first + last) // 2
        waiting += ((2 * position + 1, right, middle + 1, last), (2 * position, left, first, middle))
    return tuple(found)


def without(cover: Cover, dead: Sequence[Range]) -> Cover:
    """Return ``cover`` without the keys of ``dead``."""
    return restrict_to(cover, list(_complement(dead)))


def covering_node(cover: Cover, number: int) -> Node | None:
    """Return the node of ``cover`` from which the key of ``number`` can be derived; None if it is erased."""
    leaf = BLOCK + number
    index = bisect_right(cover, number, key=lambda node: span(node.position)[0]) - 1
    if index < 0:
        return None
    node = cover[index]
    return node if leaf >> (HEIGHT + 1 - node.position.bit_length()) == node.position else None


def _complement(dead: Sequence[Range]) -> Iterator[Range]:
    """Yield the ranges of a block that are not in ``dead``."""
    begin = 0
    for first, last in dead:
        if begin < first:
            yield Range(begin, first - 1)
        begin = last + 1
    if begin < BLOCK:
        yield Range(begin, BLOCK - 1)


def union(some: Iterable[tuple[int, int]]) -> list[Range]:
    """Return the union of ``some``: ranges in any order, which may overlap."""
    found: list[Range] = []
    for first, last in sorted(some):
        if found and first <= found[-1].last + 1:
            if last > found[-1].last:
                found[-1] = Range(found[-1].first, last)
        else:
            found.append(Range(first, last))
    return found


def from_numbers(numbers: Iterable[int]) -> list[Range]:
    """Return single numbers as ranges."""
    return union((number, number) for number in numbers)


def difference(some: Sequence[Range], others: Sequence[Range]) -> list[Range]:
    """Return the numbers of ``some`` that are not in ``others``."""
    return list(_without(some, others))


def intersection(some: Sequence[Range], others: Sequence[Range]) -> list[Range]:
    """Return the numbers that are in both."""
    return difference(some, difference(some, others))


def count(some: Iterable[Range]) -> int:
    """Return the number of numbers in ``some``."""
    return sum(last - first + 1 for first, last in some)


def _without(some: Sequence[Range], others: Sequence[Range]) -> Iterator[Range]:
    place = 0
    for first, last in some:
        begin = first
        while place < len(others) and others[place].last < begin:
            place += 1
        at = place
        while at < len(others) and others[at].first <= last:
            if begin < others[at].first:
                yield Range(begin, others[at].first - 1)
            begin = others[at].last + 1
            at += 1
        if begin <= last:
            yield Range(begin, last)
