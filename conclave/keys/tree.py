"""The key tree of a block of 65,536 messages, covers, and ranges of numbers. Pure functions.

The construction is that of Goldreich, Goldwasser and Micali (How to Construct Random Functions, 1986), with BLAKE2b as
the generator. Nodes are numbered by position: the root is 1, the children of ``p`` are ``2p`` and ``2p + 1``, and the
leaf of the number ``n`` within the block is ``65,536 + n``. A cover is the smallest set of nodes from which exactly the
keys of the remaining messages derive. Lists of ranges are ascending, and the ranges neither overlap nor touch.
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
    child_secrets = blake2b(secret, digest_size=2 * SECRET_BYTES).digest()
    return child_secrets[:SECRET_BYTES], child_secrets[SECRET_BYTES:]


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

    ``first``: the index of the first node among all nodes at that depth.
    """
    secrets = [secret]
    for remaining_steps in range(steps - 1, -1, -1):
        begin, end = first >> remaining_steps, (first + count - 1) >> remaining_steps
        next_secrets: list[bytes] = []
        for each in secrets:  # ``children`` inlined: the calls would take a third of the time
            child_secrets = blake2b(each, digest_size=2 * SECRET_BYTES).digest()
            next_secrets += child_secrets[:SECRET_BYTES], child_secrets[SECRET_BYTES:]
        skipped = begin - 2 * (first >> (remaining_steps + 1))
        secrets = next_secrets[skipped : skipped + end - begin + 1]
    return secrets


class Node(NamedTuple):
    """A node of a key tree."""

    position: int
    secret: bytes


class Range(NamedTuple):
    """Consecutive numbers, ``last`` inclusive."""

    first: int
    last: int


Cover = tuple[Node, ...]
"""Nodes from left to right. No node is below another."""


def restrict_to(cover: Cover, retained: Sequence[Range]) -> Cover:
    """Return the cover for exactly those keys of ``cover`` whose numbers are in ``retained``."""
    firsts = [each.first for each in retained]
    nodes: list[Node] = []
    pending = [(position, secret, *span(position)) for position, secret in reversed(cover)]
    while pending:
        position, secret, first, last = pending.pop()
        index = bisect_right(firsts, last) - 1  # the last range that begins within the node, or before it
        if index < 0 or retained[index][1] < first:
            continue
        if firsts[index] <= first and retained[index][1] >= last:
            nodes.append(Node(position, secret))
            continue
        left, right = children(secret)
        middle = (first + last) // 2
        pending += ((2 * position + 1, right, middle + 1, last), (2 * position, left, first, middle))
    return tuple(nodes)


def without(cover: Cover, erased: Sequence[Range]) -> Cover:
    """Return ``cover`` without the keys of ``erased``."""
    return restrict_to(cover, list(_complement(erased)))


def covering_node(cover: Cover, number: int) -> Node | None:
    """Return the node of ``cover`` from which the key of ``number`` can be derived; None if it is erased."""
    leaf = BLOCK + number
    index = bisect_right(cover, number, key=lambda node: span(node.position)[0]) - 1
    if index < 0:
        return None
    node = cover[index]
    return node if leaf >> (HEIGHT + 1 - node.position.bit_length()) == node.position else None


def _complement(excluded: Sequence[Range]) -> Iterator[Range]:
    """Yield the ranges of a block that are not in ``excluded``."""
    begin = 0
    for first, last in excluded:
        if begin < first:
            yield Range(begin, first - 1)
        begin = last + 1
    if begin < BLOCK:
        yield Range(begin, BLOCK - 1)


def union(ranges: Iterable[tuple[int, int]]) -> list[Range]:
    """Return the union of ``ranges``, which may be in any order and may overlap."""
    merged: list[Range] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1].last + 1:
            if last > merged[-1].last:
                merged[-1] = Range(merged[-1].first, last)
        else:
            merged.append(Range(first, last))
    return merged


def from_numbers(numbers: Iterable[int]) -> list[Range]:
    """Return single numbers as ranges."""
    return union((number, number) for number in numbers)


def difference(ranges: Sequence[Range], others: Sequence[Range]) -> list[Range]:
    """Return the numbers of ``ranges`` that are not in ``others``."""
    return list(_without(ranges, others))


def intersection(ranges: Sequence[Range], others: Sequence[Range]) -> list[Range]:
    """Return the numbers that are in both."""
    return difference(ranges, difference(ranges, others))


def count(ranges: Iterable[Range]) -> int:
    """Return how many numbers are in ``ranges``."""
    return sum(last - first + 1 for first, last in ranges)


def _without(ranges: Sequence[Range], others: Sequence[Range]) -> Iterator[Range]:
    next_index = 0
    for first, last in ranges:
        begin = first
        while next_index < len(others) and others[next_index].last < begin:
            next_index += 1
        index = next_index
        while index < len(others) and others[index].first <= last:
            if begin < others[index].first:
                yield Range(begin, others[index].first - 1)
            begin = others[index].last + 1
            index += 1
        if begin <= last:
            yield Range(begin, last)
