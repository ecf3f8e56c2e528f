"""Nodes of a ratchet tree (RFC 9420 sections 7.1 and 7.2), and the signatures of leaves."""

from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from typing import Annotated, Self, TypeAlias

from conclave.client.mls.codec import ByteReader, opaque, uint8, uint32, vector
from conclave.client.mls.credentials import Credential, CredentialType, Extension, ExtensionType, read_extensions
from conclave.client.mls.crypto import sign_with_label, verify_with_label
from conclave.client.mls.errors import LimitError
from conclave.client.mls.structs import Opaque, Struct, Uint16s, Uint64, numbers
from conclave.client.mls.suites import CipherSuite

MLS10 = 1
MAX_LEAVES = 4_096
"""Maximum number of leaves of a tree, including blank ones."""
MAX_LEAF = 2_048
"""Maximum size of a leaf, in bytes: a group info has all leaves, and must fit into a request."""


class LeafNodeSource(IntEnum):
    """The origin of a leaf in the tree."""

    KEY_PACKAGE = 1
    UPDATE = 2
    COMMIT = 3


class NodeType(IntEnum):
    """Whether a node is a leaf or a parent (section 7.8)."""

    LEAF = 1
    PARENT = 2


@dataclass(frozen=True)
class Lifetime(Struct):
    """The validity of a key package, in Unix seconds."""

    not_before: Uint64
    not_after: Uint64


@dataclass(frozen=True)
class Capabilities(Struct):
    """The capabilities of a client. Unknown values are ignored (section 13.5)."""

    versions: Uint16s
    cipher_suites: Uint16s
    extensions: Uint16s
    proposals: Uint16s
    credentials: Uint16s


def own_capabilities(*, last_resort: bool = False) -> Capabilities:
    """Return the capabilities of own leaves.

    They equal those of existing clients, including seven suites, so that a leaf does not reveal the client.
    """
    extensions = (int(ExtensionType.LAST_RESORT),) if last_resort else ()
    return Capabilities((MLS10,), tuple(range(1, 8)), extensions, (), (int(CredentialType.BASIC),))


@dataclass(frozen=True)
class LeafNode:
    """A leaf: a client in a group (section 7.2).

    ``lifetime`` is set if the source is a key package, ``parent_hash`` if it is a commit.
    """

    encryption_key: bytes
    signature_key: bytes
    credential: Credential
    capabilities: Capabilities
    leaf_node_source: LeafNodeSource
    lifetime: Lifetime | None = None
    parent_hash: bytes | None = None
    extensions: tuple[Extension, ...] = ()
    signature: bytes = b""

    @cached_property
    def encoded(self) -> bytes:
        """The encoded leaf."""
        return self._encode_unsigned() + opaque(self.signature)

    def encode(self) -> bytes:
        """Encode."""
        return self.encoded

    def _encode_unsigned(self) -> bytes:
        source = uint8(self.leaf_node_source)
        if self.lifetime is not None:
            source += self.lifetime.encode()
        if self.parent_hash is not None:
            source += opaque(self.parent_hash)
        identity = opaque(self.encryption_key) + opaque(self.signature_key) + self.credential.encode()
        return identity + self.capabilities.encode() + source + vector(self.extensions)

    @classmethod
    def decode(cls, reader: ByteReader) -> Self:
        """Decode a leaf of up to MAX_LEAF bytes."""
        start = reader.position
        keys = reader.opaque(), reader.opaque()
        identity = Credential.decode(reader), Capabilities.decode(reader)
        source = reader.enum(LeafNodeSource, reader.uint8())
        lifetime = Lifetime.decode(reader) if source == LeafNodeSource.KEY_PACKAGE else None
        parent_hash = reader.opaque() if source == LeafNodeSource.COMMIT else None
        leaf = cls(*keys, *identity, source, lifetime, parent_hash, read_extensions(reader), reader.opaque())
        if reader.position - start > MAX_LEAF:
            raise LimitError(f"a leaf has more than {MAX_LEAF} bytes")
        return leaf

    def to_be_signed(self, group_id: bytes, leaf_index: int) -> bytes:
        """Return LeafNodeTBS, which includes the group and the leaf index, except in a key package."""
        tbs = self._encode_unsigned()
        if self.leaf_node_source == LeafNodeSource.KEY_PACKAGE:
            return tbs
        return tbs + opaque(group_id) + uint32(leaf_index)

    def signed(self, suite: CipherSuite, private: bytes, group_id: bytes = b"", leaf_index: int = 0) -> "LeafNode":
        """Return the leaf with its signature."""
        tbs = self.to_be_signed(group_id, leaf_index)
        return replace(self, signature=sign_with_label(suite, private, "LeafNodeTBS", tbs))

    def is_signed(self, suite: CipherSuite, group_id: bytes, leaf_index: int) -> bool:
        """Return whether the leaf has a valid signature of its own key."""
        tbs = self.to_be_signed(group_id, leaf_index)
        return verify_with_label(suite, self.signature_key, "LeafNodeTBS", tbs, self.signature)


@dataclass(frozen=True)
class ParentNode(Struct):
    """A parent: the key of a subtree (section 7.1). Unmerged leaves do not have its private key."""

    encryption_key: Opaque
    parent_hash: Opaque
    unmerged_leaves: Annotated[tuple[int, ...], numbers(MAX_LEAVES)] = ()


Node: TypeAlias = LeafNode | ParentNode


def encode_node(node: Node) -> bytes:
    """Encode a node with its type (section 12.4.3.3)."""
    return uint8(NodeType.LEAF if isinstance(node, LeafNode) else NodeType.PARENT) + node.encode()


def decode_node(reader: ByteReader) -> Node:
    """Decode a node with its type."""
    kind = reader.enum(NodeType, reader.uint8())
    return LeafNode.decode(reader) if kind == NodeType.LEAF else ParentNode.decode(reader)
