"""Parent hashes (RFC 9420 section 7.9), which prove that each key was set by a member below its node."""

from collections.abc import Mapping

from conclave.client.mls import tree_math
from conclave.client.mls.codec import opaque
from conclave.client.mls.errors import InvalidError
from conclave.client.mls.nodes import LeafNode, Node, ParentNode
from conclave.client.mls.tree import RatchetTree, leaf_hash, parent_node_hash


def parent_hash(tree: RatchetTree, encryption_key: bytes, above: bytes, sibling_hash: bytes) -> bytes:
    """Hash ParentHashInput. ``above``: the parent hash of the next node that is not blank, empty at the root."""
    return tree.suite.hash(opaque(encryption_key) + opaque(above) + opaque(sibling_hash))


def with_path(tree: RatchetTree, leaf_index: int, public_keys: Mapping[int, bytes]) -> tuple[RatchetTree, bytes]:
    """Set new keys on the filtered direct path of a leaf, and blank the rest of its path (section 7.5).

    Return the tree, and the parent hash for the leaf.
    """
    path = tree.filtered_direct_path(leaf_index)
    changes: dict[int, Node | None] = dict.fromkeys(tree_math.direct_path(2 * leaf_index, tree.size))
    above = b""
    for x, copath in reversed(path):
        changes[x] = ParentNode(public_keys[x], above)
        above = parent_hash(tree, public_keys[x], above, tree.tree_hash(copath))
    return tree.with_nodes(changes), above


def original_tree_hash(tree: RatchetTree, x: int, added_leaves: frozenset[int]) -> bytes:
    """Return the tree hash of ``x`` before the leaves ``added_leaves`` were added (section 7.9)."""
    leaves = tree_math.subtree(x)
    added_below = frozenset(leaf_index for leaf_index in added_leaves if leaf_index in leaves)
    if not added_below:
        return tree.tree_hash(x)
    if x % 2 == 0:
        return leaf_hash(tree.suite, x // 2, None)
    node = tree.parent(x)
    if node is not None:
        unmerged = tuple(leaf_index for leaf_index in node.unmerged_leaves if leaf_index not in added_below)
        node = ParentNode(node.encryption_key, node.parent_hash, unmerged)
    hashes = (original_tree_hash(tree, child, added_below) for child in (tree_math.left(x), tree_math.right(x)))
    return parent_node_hash(tree.suite, node, *hashes)


def _parent_hash_of(node: Node | None) -> bytes | None:
    return node.parent_hash if isinstance(node, LeafNode | ParentNode) else None


def _count_matching(tree: RatchetTree, node: ParentNode, child: int, sibling: int) -> int:
    """Count the nodes below ``child`` whose parent hash is valid with respect to ``node`` (section 7.9.2)."""
    resolution = tree.resolution(child)
    leaves = tree_math.subtree(child)
    unmerged = {2 * leaf_index for leaf_index in node.unmerged_leaves if leaf_index in leaves}
    candidates = [d for d in resolution if d not in unmerged]
    if len(candidates) != 1 or len(resolution) != len(unmerged) + 1:
        return 0
    sibling_hash = original_tree_hash(tree, sibling, frozenset(node.unmerged_leaves))
    expected = parent_hash(tree, node.encryption_key, node.parent_hash, sibling_hash)
    return int(_parent_hash_of(tree.nodes[candidates[0]]) == expected)


def check_parent_hashes(tree: RatchetTree) -> None:
    """Check that every parent is parent-hash valid: exactly one node below matches (section 7.9.2)."""
    for x, node in tree.parents():
        left, right = tree_math.left(x), tree_math.right(x)
        match_count = _count_matching(tree, node, left, right) + _count_matching(tree, node, right, left)
        if match_count != 1:
            raise InvalidError("the parent hash of a node in a tree is wrong")
