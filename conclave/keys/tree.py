"""The tree of keys of a block of 65,536 numbers: from a node follow its children, and from a leaf nothing. Pure.

The construction is that of Goldreich, Goldwasser and Micali (How to Construct Random Functions, 1986), with BLAKE2b in
place of their generator. A node is named by its position: the root is 1, the children of ``p`` are ``2p`` and
``2p + 1``, and the leaf of the number ``n`` within the block is ``65,536 + n``.
"""

from hashlib import blake2b

HEIGHT = 16
"""A leaf is 16 steps below the root."""

BLOCK = 1 << HEIGHT
"""A block has 65,536 numbers."""

SECRET_BYTES = 32
"""A node has 32 bytes. Those of a leaf are the key of its message."""

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
    """Return the node at ``position``, which lies ``steps`` below the node with ``secret``."""
    for step in range(steps - 1, -1, -1):
        secret = children(secret)[position >> step & 1]
    return secret


def leaves(secret: bytes, steps: int) -> list[bytes]:
    """Return all nodes that lie ``steps`` below the node with ``secret``, from left to right."""
    return descend_to_some(secret, 0, 1 << steps, steps)


def descend_to_some(secret: bytes, first: int, count: int, steps: int) -> list[bytes]:
    """Return ``count`` nodes that lie next to each other, ``steps`` below the node with ``secret``.

    ``first``: the place of the first of them among all nodes there are at that depth.
    """
    found = [secret]
    for left in range(steps - 1, -1, -1):
        begin, end = first >> left, (first + count - 1) >> left
        following: list[bytes] = []
        for each in found:  # not by ``children``: calling that takes a third of the time
            both = blake2b(each, digest_size=2 * SECRET_BYTES).digest()
            following += both[:SECRET_BYTES], both[SECRET_BYTES:]
        skipped = begin - 2 * (first >> (left + 1))
        found = following[skipped : skipped + end - begin + 1]
    return found
