"""Where nodes lie in a tree that is an array (RFC 9420 appendix C). Pure arithmetic, on trees with 2^d leaves."""


def level(x: int) -> int:
    """Return how high a node is; leaves are at 0."""
    return (~x & (x + 1)).bit_length() - 1


def node_width(n: int) -> int:
    """Return how many nodes a tree with ``n`` leaves has."""
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
    """Return the other child of the parent."""
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
    """Return the leaves under a node, by their leaf indexes; a leaf's own if it is one."""
    half = (1 << level(x)) - 1
    return range((x - half) // 2, (x + half) // 2 + 1)


def is_below(leaf: int, x: int) -> bool:
    """Tell whether the leaf with that leaf index is under ``x``, or is ``x``."""
    return leaf in subtree(x)


def common_ancestor(one: int, other: int) -> int:
    """Return the lowest node above two leaves, given by leaf indexes that differ."""
    k = (one ^ other).bit_length()
    return ((one >> k) << (k + 1)) + (1 << k) - 1
