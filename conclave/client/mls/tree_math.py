"""Indexes of nodes in a tree stored as an array (RFC 9420 appendix C), for trees with 2^d leaves. Pure."""


def level(x: int) -> int:
    """Return the level of a node; leaves are at 0."""
    return (~x & (x + 1)).bit_length() - 1


def node_width(n: int) -> int:
    """Return the number of nodes of a tree with ``n`` leaves."""
    return 2 * n - 1


def root(n: int) -> int:
    """Return the root of a tree with ``n`` leaves."""
    return (1 << (node_width(n).bit_length() - 1)) - 1


def left(x: int) -> int:
    """Return the left child of a parent."""
    return x ^ (1 << (level(x) - 1))


def right(x: int) -> int:
    """Return the right child of a parent."""
    return x ^ (3 << (level(x) - 1))


def parent(x: int) -> int:
    """Return the parent of a node that is not the root."""
    k = level(x)
    return (x | (1 << k)) & ~(1 << (k + 1))


def sibling(x: int) -> int:
    """Return the other child of a node's parent."""
    p = parent(x)
    return right(p) if x < p else left(p)


def direct_path(x: int, n: int) -> list[int]:
    """Return the nodes above ``x`` in a tree with ``n`` leaves, up to the root."""
    top, path = root(n), []
    while x != top:
        x = parent(x)
        path.append(x)
    return path


def subtree(x: int) -> range:
    """Return the indexes of the leaves below a node; for a leaf, its own."""
    half = (1 << level(x)) - 1
    return range((x - half) // 2, (x + half) // 2 + 1)


def is_below(leaf: int, x: int) -> bool:
    """Return whether a leaf index is below ``x``, or is ``x``."""
    return leaf in subtree(x)


def common_ancestor(one: int, other: int) -> int:
    """Return the lowest common ancestor of two different leaves, given by leaf indexes."""
    k = (one ^ other).bit_length()
    return ((one >> k) << (k + 1)) + (1 << k) - 1
