"""The ratchet tree (RFC 9420 sections 4, 7.7, 7.8 and 12.4.3.3), as an immutable value."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import count
from typing import Self

from conclave.client.mls import tree_math
from conclave.client.mls.codec import ByteReader, opaque, optional, uint8, uint32
from conclave.client.mls.errors import InvalidError, LimitError, MalformedMessageError
from conclave.client.mls.nodes import MAX_LEAVES, LeafNode, Node, NodeType, ParentNode, decode_node, encode_node
from conclave.client.mls.suites import CipherSuite


class RatchetTree:
    """The public tree of a group. Changes return a new tree, which keeps the cached hashes that are still valid."""

    __slots__ = ("_hashes", "nodes", "suite")

    def __init__(
        self, suite: CipherSuite, nodes: tuple[Node | None, ...], hashes: dict[int, bytes] | None = None
    ) -> None:
        self.suite = suite
        self.nodes = nodes
        self._hashes = {} if hashes is None else hashes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RatchetTree) and (self.suite, self.nodes) == (other.suite, other.nodes)

    def __hash__(self) -> int:
        return hash((self.suite, self.nodes))

    @property
    def size(self) -> int:
        """Number of leaves, including blank ones: a power of two."""
        return (len(self.nodes) + 1) // 2

    @property
    def root(self) -> int:
        """The index of the root."""
        return tree_math.root(self.size)

    def leaf(self, leaf_index: int) -> LeafNode | None:
        """Return a leaf; None if it is blank, or outside the tree."""
        node = self.nodes[2 * leaf_index] if 0 <= leaf_index < self.size else None
        return node if isinstance(node, LeafNode) else None

    def member(self, leaf_index: int) -> LeafNode:
        """Return the leaf of a member. Raises InvalidError if it is blank."""
        leaf = self.leaf(leaf_index)
        if leaf is None:
            raise InvalidError(f"there is no member {leaf_index}")
        return leaf

    def parent(self, x: int) -> ParentNode | None:
        """Return a parent; None if it is blank."""
        node = self.nodes[x]
        return node if isinstance(node, ParentNode) else None

    def leaves(self) -> Iterator[tuple[int, LeafNode]]:
        """Iterate over the leaves that are not blank, with their indexes."""
        for position in range(0, len(self.nodes), 2):
            node = self.nodes[position]
            if isinstance(node, LeafNode):
                yield position // 2, node

    def parents(self) -> Iterator[tuple[int, ParentNode]]:
        """Iterate over the parents that are not blank, with their indexes."""
        for x in range(1, len(self.nodes), 2):
            node = self.nodes[x]
            if isinstance(node, ParentNode):
                yield x, node

    def first_blank(self) -> int:
        """Return the index of the leftmost blank leaf; if there is none, the index after the last leaf."""
        return next((i for i in range(self.size) if self.nodes[2 * i] is None), self.size)

    def resolution(self, x: int) -> list[int]:
        """Return the resolution of ``x``: the nodes that cover all members below it (section 4.1.1)."""
        node = self.nodes[x]
        if isinstance(node, ParentNode):
            return [x, *(2 * leaf for leaf in node.unmerged_leaves)]
        if node is not None:
            return [x]
        if x % 2 == 0:
            return []
        return self.resolution(tree_math.left(x)) + self.resolution(tree_math.right(x))

    def has_members(self, x: int) -> bool:
        """Return whether the resolution of ``x`` is not empty."""
        if self.nodes[x] is not None:
            return True
        return x % 2 == 1 and (self.has_members(tree_math.left(x)) or self.has_members(tree_math.right(x)))

    def filtered_direct_path(self, leaf_index: int) -> list[tuple[int, int]]:
        """Return the nodes of the filtered direct path, each with its child on the copath (section 4.1.2)."""
        path, x = [], 2 * leaf_index
        while x != self.root:
            copath = tree_math.sibling(x)
            x = tree_math.parent(x)
            if self.has_members(copath):
                path.append((x, copath))
        return path

    # Changes

    def with_nodes(self, changes: Mapping[int, Node | None]) -> "RatchetTree":
        """Return the tree with some nodes replaced."""
        nodes, hashes = list(self.nodes), dict(self._hashes)
        for x, node in changes.items():
            nodes[x] = node
            hashes.pop(x, None)
            for above in tree_math.direct_path(x, self.size):
                hashes.pop(above, None)
        return RatchetTree(self.suite, tuple(nodes), hashes)

    def extended(self) -> "RatchetTree":
        """Return the tree with twice as many leaves (section 7.7)."""
        if self.size >= MAX_LEAVES:
            raise LimitError(f"a group has room for {MAX_LEAVES} members")
        return RatchetTree(self.suite, self.nodes + (None,) * (len(self.nodes) + 1), dict(self._hashes))

    def truncated(self) -> "RatchetTree":
        """Return the tree without empty right halves (section 7.7)."""
        last = max((leaf_index for leaf_index, _ in self.leaves()), default=0)
        size = 1 << last.bit_length()
        nodes = self.nodes[: tree_math.node_width(size)]
        return RatchetTree(
            self.suite, nodes, {x: cached_hash for x, cached_hash in self._hashes.items() if x < len(nodes)}
        )

    def with_room(self, leaf_index: int) -> "RatchetTree":
        """Return the tree, extended as needed for a leaf index."""
        tree = self
        while leaf_index >= tree.size:
            tree = tree.extended()
        return tree

    def added(self, leaf: LeafNode) -> tuple["RatchetTree", int]:
        """Apply an Add (section 12.1.1); return the tree, and the leaf's index."""
        leaf_index = self.first_blank()
        tree = self.with_room(leaf_index)
        changes: dict[int, Node | None] = {2 * leaf_index: leaf}
        for x in tree_math.direct_path(2 * leaf_index, tree.size):
            node = tree.parent(x)
            if node is not None:
                unmerged = tuple(sorted({*node.unmerged_leaves, leaf_index}))
                changes[x] = replace(node, unmerged_leaves=unmerged)
        return tree.with_nodes(changes), leaf_index

    def updated(self, leaf_index: int, leaf: LeafNode) -> "RatchetTree":
        """Apply an Update (section 12.1.2)."""
        return self._with_blank_path(leaf_index, leaf)

    def removed(self, leaf_index: int) -> "RatchetTree":
        """Apply a Remove (section 12.1.3), without truncation."""
        return self._with_blank_path(leaf_index, None)

    def _with_blank_path(self, leaf_index: int, leaf: LeafNode | None) -> "RatchetTree":
        path = tree_math.direct_path(2 * leaf_index, self.size)
        return self.with_nodes({**dict.fromkeys(path), 2 * leaf_index: leaf})

    # Hashes and encoding

    def tree_hash(self, x: int | None = None) -> bytes:
        """Return the tree hash of a node (section 7.8). ``x``: None: the root."""
        if x is None:
            x = self.root
        cached_hash = self._hashes.get(x)
        if cached_hash is None:
            if x % 2 == 0:
                cached_hash = leaf_hash(self.suite, x // 2, self.leaf(x // 2))
            else:
                below = self.tree_hash(tree_math.left(x)), self.tree_hash(tree_math.right(x))
                cached_hash = parent_node_hash(self.suite, self.parent(x), *below)
            self._hashes[x] = cached_hash
        return cached_hash

    def encode(self) -> bytes:
        """Encode ``optional<Node> ratchet_tree<V>`` (section 12.4.3.3), without trailing blank nodes."""
        length = max(x for x, node in enumerate(self.nodes) if node is not None) + 1
        nodes = self.nodes[:length]
        return opaque(b"".join(b"\x00" if node is None else b"\x01" + encode_node(node) for node in nodes))

    @classmethod
    def decode(cls, suite: CipherSuite, reader: ByteReader) -> Self:
        """Decode. Rejects trailing blank nodes, leaves in the place of parents, and parents in the place of leaves.

        The length of each key is checked while decoding, which bounds the number of nodes in a message.
        """
        positions = count()

        def read(inner: ByteReader) -> Node | None:
            node, is_leaf = inner.optional(decode_node), next(positions) % 2 == 0
            if node is not None and isinstance(node, LeafNode) != is_leaf:
                raise MalformedMessageError("a tree has a leaf in the place of a parent, or the reverse")
            if node is not None:
                suite.kem.check_public(node.encryption_key, "a tree has a key")
            return node

        nodes = reader.vector(read, tree_math.node_width(MAX_LEAVES))
        if not nodes or nodes[-1] is None:
            raise MalformedMessageError("a tree is empty, or ends with a blank node")
        width = tree_math.node_width(1 << (len(nodes) // 2).bit_length())
        return cls(suite, nodes + (None,) * (width - len(nodes)))


def leaf_hash(suite: CipherSuite, leaf_index: int, leaf: LeafNode | None) -> bytes:
    """Hash LeafNodeHashInput."""
    return suite.hash(uint8(NodeType.LEAF) + uint32(leaf_index) + optional(leaf))


def parent_node_hash(suite: CipherSuite, node: ParentNode | None, left: bytes, right: bytes) -> bytes:
    """Hash ParentNodeHashInput."""
    return suite.hash(uint8(NodeType.PARENT) + optional(node) + opaque(left) + opaque(right))
