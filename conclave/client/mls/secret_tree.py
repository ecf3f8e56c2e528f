"""The secret tree (RFC 9420 section 9): a key for each message, erased after its use.

Trees are immutable: taking a key returns it with a new tree, without the key and the secrets from which it was derived.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Self, TypeAlias

from conclave.client.mls import tree_math
from conclave.client.mls.codec import ByteReader, opaque, uint8, uint32
from conclave.client.mls.crypto import derive_tree_secret, expand_with_label
from conclave.client.mls.errors import InvalidError, LimitError, MalformedMessageError, ReplayedError
from conclave.client.mls.nodes import MAX_LEAVES
from conclave.client.mls.structs import Opaque, Struct, Uint32, vector_of
from conclave.client.mls.suites import CipherSuite

MAX_AHEAD = 1_024
"""Maximum number of missing messages of a sender before a message that is read."""
MAX_SKIPPED = 1_024
"""Maximum number of stored keys of a sender's missing messages; the oldest are dropped first."""
MAX_SKIPPED_TOGETHER = 8_192
"""Maximum number of stored keys of missing messages in an epoch; those of the sender with most are dropped first."""
MAX_GENERATION = (1 << 32) - 1


class RatchetKind(IntEnum):
    """The two ratchets of a member."""

    HANDSHAKE = 1
    APPLICATION = 2


@dataclass(frozen=True, repr=False)
class MessageKey(Struct):
    """Key and nonce of one message."""

    generation: Uint32
    key: Opaque
    nonce: Opaque


@dataclass(frozen=True, repr=False)
class Ratchet(Struct):
    """A sender's keys from ``generation`` on, and unused earlier keys (section 9.1)."""

    secret: Opaque
    generation: Uint32 = 0
    skipped: Annotated[tuple[MessageKey, ...], vector_of(MessageKey, MAX_SKIPPED)] = ()

    def next_key(self, suite: CipherSuite) -> tuple[MessageKey, "Ratchet"]:
        """Return the next key, and the ratchet after it."""
        if self.generation >= MAX_GENERATION:
            raise LimitError("a member has used all its keys of this epoch")
        key = MessageKey(
            self.generation,
            derive_tree_secret(suite, self.secret, "key", self.generation, suite.aead.key),
            derive_tree_secret(suite, self.secret, "nonce", self.generation, suite.aead.nonce),
        )
        secret = derive_tree_secret(suite, self.secret, "secret", self.generation, suite.kdf.size)
        return key, Ratchet(secret, self.generation + 1, self.skipped)

    def take(self, suite: CipherSuite, generation: int) -> tuple[MessageKey, "Ratchet"]:
        """Return the key of a generation, and the ratchet without it."""
        if generation < self.generation:
            found = next((key for key in self.skipped if key.generation == generation), None)
            if found is None:
                raise ReplayedError("a message was read before, or is too late")
            left = tuple(key for key in self.skipped if key is not found)
            return found, Ratchet(self.secret, self.generation, left)
        if generation - self.generation > MAX_AHEAD:
            raise LimitError(f"more than {MAX_AHEAD} messages are missing before this one")
        ratchet, skipped = Ratchet(self.secret, self.generation), list(self.skipped)
        while True:
            key, ratchet = ratchet.next_key(suite)
            if key.generation == generation:
                return key, Ratchet(ratchet.secret, ratchet.generation, tuple(skipped[-MAX_SKIPPED:]))
            skipped.append(key)


Ratchets: TypeAlias = Mapping[tuple[int, RatchetKind], Ratchet]


def _trim_skipped(ratchets: dict[tuple[int, RatchetKind], Ratchet]) -> None:
    """Drop the oldest skipped keys of the senders with the most keys, down to MAX_SKIPPED_TOGETHER."""
    while (excess := sum(len(ratchet.skipped) for ratchet in ratchets.values()) - MAX_SKIPPED_TOGETHER) > 0:
        largest = max(ratchets, key=lambda key: len(ratchets[key].skipped))
        ratchet = ratchets[largest]
        ratchets[largest] = Ratchet(ratchet.secret, ratchet.generation, ratchet.skipped[excess:])


@dataclass(frozen=True, repr=False)
class SecretTree:
    """The unused secrets of nodes, and the ratchets of members who have sent."""

    suite: CipherSuite
    size: int
    nodes: Mapping[int, bytes]
    ratchets: Ratchets

    @classmethod
    def create(cls, suite: CipherSuite, size: int, encryption_secret: bytes) -> Self:
        """Return the secret tree of a new epoch, for a tree with ``size`` leaves."""
        return cls(suite, size, {tree_math.root(size): encryption_secret}, {})

    def _with_ratchets(self, leaf_index: int) -> "SecretTree":
        """Derive both ratchets of a member, and drop the secrets above them."""
        if (leaf_index, RatchetKind.APPLICATION) in self.ratchets:
            return self
        x, nodes = 2 * leaf_index, dict(self.nodes)
        path = [x, *tree_math.direct_path(x, self.size)]
        node = next((above for above in path if above in nodes), None)
        if node is None:
            raise InvalidError("there are no keys of a member")
        while node != x:
            secret, left, right = nodes.pop(node), tree_math.left(node), tree_math.right(node)
            nodes[left] = expand_with_label(self.suite, secret, "tree", b"left", self.suite.kdf.size)
            nodes[right] = expand_with_label(self.suite, secret, "tree", b"right", self.suite.kdf.size)
            node = left if tree_math.is_below(leaf_index, left) else right
        secret, ratchets = nodes.pop(x), dict(self.ratchets)
        for kind in RatchetKind:
            base = expand_with_label(self.suite, secret, kind.name.lower(), b"", self.suite.kdf.size)
            ratchets[leaf_index, kind] = Ratchet(base)
        return SecretTree(self.suite, self.size, nodes, ratchets)

    def with_ratchet(self, leaf_index: int, kind: RatchetKind, ratchet: Ratchet) -> "SecretTree":
        """Return the tree with an advanced ratchet."""
        ratchets = {**self.ratchets, (leaf_index, kind): ratchet}
        if len(ratchet.skipped) > 1:
            _trim_skipped(ratchets)
        return SecretTree(self.suite, self.size, self.nodes, ratchets)

    def generation(self, leaf_index: int, kind: RatchetKind) -> int:
        """Return the generation of a member's next key."""
        ratchet = self.ratchets.get((leaf_index, kind))
        return ratchet.generation if ratchet else 0

    def next_key(self, leaf_index: int, kind: RatchetKind) -> tuple[MessageKey, "SecretTree"]:
        """Return the key for the next message to send, and the tree without it."""
        tree = self._with_ratchets(leaf_index)
        key, ratchet = tree.ratchets[leaf_index, kind].next_key(self.suite)
        return key, tree.with_ratchet(leaf_index, kind, ratchet)

    def take(self, leaf_index: int, kind: RatchetKind, generation: int) -> tuple[MessageKey, "SecretTree"]:
        """Return the key of a received message, and the tree without it."""
        if not 0 <= leaf_index < self.size:
            raise InvalidError(f"there is no member {leaf_index}")
        tree = self._with_ratchets(leaf_index)
        key, ratchet = tree.ratchets[leaf_index, kind].take(self.suite, generation)
        return key, tree.with_ratchet(leaf_index, kind, ratchet)

    def encode(self) -> bytes:
        """Return the stored format."""
        nodes = b"".join(uint32(x) + opaque(secret) for x, secret in self.nodes.items())
        ratchets = b"".join(
            uint32(leaf) + uint8(kind) + ratchet.encode() for (leaf, kind), ratchet in self.ratchets.items()
        )
        return uint32(self.size) + opaque(nodes) + opaque(ratchets)

    @classmethod
    def decode(cls, suite: CipherSuite, reader: ByteReader) -> Self:
        """Decode the stored format."""
        size = reader.uint32()
        if not 0 < size <= MAX_LEAVES or size & (size - 1):
            raise MalformedMessageError("a stored secret tree has an invalid size")
        nodes = reader.vector(lambda inner: (inner.uint32(), inner.opaque()), tree_math.node_width(size))
        ratchets = reader.vector(
            lambda inner: ((inner.uint32(), inner.enum(RatchetKind, inner.uint8())), Ratchet.decode(inner)), 2 * size
        )
        return cls(suite, size, dict(nodes), dict(ratchets))
