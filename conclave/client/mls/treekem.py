"""TreeKEM (RFC 9420 sections 7.4 to 7.6): renews the keys on a member's path, and encrypts them to the others."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated

from conclave.client.mls import hpke, tree_math
from conclave.client.mls.crypto import (
    HPKECiphertext,
    check_equal,
    decrypt_with_label,
    derive_secret,
    encrypt_with_label,
)
from conclave.client.mls.errors import InvalidError
from conclave.client.mls.nodes import MAX_LEAVES, LeafNode
from conclave.client.mls.structs import Opaque, Struct, vector_of
from conclave.client.mls.suites import CipherSuite, KeyPair
from conclave.client.mls.tree import RatchetTree

MAX_DEPTH = 32


@dataclass(frozen=True)
class UpdatePathNode(Struct):
    """A new key, and its path secret, encrypted to each node of the copath child's resolution."""

    encryption_key: Opaque
    encrypted_path_secret: Annotated[tuple[HPKECiphertext, ...], vector_of(HPKECiphertext, MAX_LEAVES)]


@dataclass(frozen=True)
class UpdatePath(Struct):
    """A new leaf, and new keys for its filtered direct path, in order (section 7.6)."""

    leaf_node: LeafNode
    nodes: Annotated[tuple[UpdatePathNode, ...], vector_of(UpdatePathNode, MAX_DEPTH)]


@dataclass(frozen=True, repr=False)
class PathSecrets:
    """Values derived from a path secret: secrets and keys by node index, and the commit secret."""

    secrets: Mapping[int, bytes]
    keys: Mapping[int, KeyPair]
    commit_secret: bytes

    @property
    def public_keys(self) -> dict[int, bytes]:
        """The public keys."""
        return {x: pair.public for x, pair in self.keys.items()}


def node_key(suite: CipherSuite, path_secret: bytes) -> KeyPair:
    """Derive the key pair of a node from its path secret (section 7.4)."""
    return hpke.derive_key_pair(suite, derive_secret(suite, path_secret, "node"))


def derive_path(suite: CipherSuite, nodes: Collection[int], path_secret: bytes) -> PathSecrets:
    """Derive secrets and keys of nodes, from the lowest upwards, and the commit secret (section 7.4)."""
    secrets, keys = {}, {}
    for x in nodes:
        secrets[x], keys[x] = path_secret, node_key(suite, path_secret)
        path_secret = derive_secret(suite, path_secret, "path")
    return PathSecrets(secrets, keys, path_secret)


def copath_resolution(tree: RatchetTree, copath: int, added: Collection[int]) -> list[int]:
    """Return the nodes to which a path secret is encrypted, without members added by the same commit."""
    new_nodes = {2 * leaf_index for leaf_index in added}
    return [x for x in tree.resolution(copath) if x not in new_nodes]


def encrypt_path(
    tree: RatchetTree, committer: int, path: PathSecrets, added: Collection[int], group_context: bytes
) -> tuple[UpdatePathNode, ...]:
    """Encrypt path secrets to the group (section 7.5). ``tree``: has the new keys. The context is provisional."""
    nodes = []
    for x, copath in tree.filtered_direct_path(committer):
        encrypted = tuple(
            encrypt_with_label(tree.suite, _encryption_key(tree, to), "UpdatePathNode", group_context, path.secrets[x])
            for to in copath_resolution(tree, copath, added)
        )
        nodes.append(UpdatePathNode(path.keys[x].public, encrypted))
    return tuple(nodes)


def _encryption_key(tree: RatchetTree, x: int) -> bytes:
    node = tree.nodes[x]
    if node is None:
        raise InvalidError("a tree has a blank node where a key is needed")
    return node.encryption_key


def check_path(tree: RatchetTree, committer: int, path: UpdatePath, added: Collection[int]) -> None:
    """Check the structure of a path (section 7.6), and that its keys are new (section 12.4.2).

    ``tree``: the tree after the proposals, with room for the committer's leaf, but without the path.
    """
    filtered = tree.filtered_direct_path(committer)
    if len(filtered) != len(path.nodes):
        raise InvalidError("a path has the wrong number of nodes")
    for (_, copath), node in zip(filtered, path.nodes, strict=True):
        if len(node.encrypted_path_secret) != len(copath_resolution(tree, copath, added)):
            raise InvalidError("a path has the wrong number of ciphertexts")
        tree.suite.kem.check_public(node.encryption_key, "a path has a key")
    new_keys = [path.leaf_node.encryption_key, *(node.encryption_key for node in path.nodes)]
    existing = {node.encryption_key for node in tree.nodes if node is not None}
    if len(set(new_keys)) != len(new_keys) or not existing.isdisjoint(new_keys):
        raise InvalidError("a path has a key that is in the tree already")


def decrypt_path(
    tree: RatchetTree,
    committer: int,
    path: UpdatePath,
    added: Collection[int],
    own_index: int,
    private_keys: Mapping[int, bytes],
    group_context: bytes,
) -> PathSecrets:
    """Decrypt the path secret of the lowest common ancestor, and derive the rest (section 7.5).

    ``private_keys``: the reader's keys in ``tree``, by node.
    """
    filtered = tree.filtered_direct_path(committer)
    matches = (i for i, (_, copath) in enumerate(filtered) if tree_math.is_below(own_index, copath))
    position = next(matches, None)
    resolution = [] if position is None else copath_resolution(tree, filtered[position][1], added)
    entry = next((i for i, x in enumerate(resolution) if x in private_keys), None)
    if position is None or entry is None:
        raise InvalidError("a path is not encrypted to this member")
    x = resolution[entry]
    own = KeyPair(private_keys[x], _encryption_key(tree, x))
    encrypted = path.nodes[position].encrypted_path_secret[entry]
    secret = decrypt_with_label(tree.suite, own, "UpdatePathNode", group_context, encrypted)
    secrets = derive_path(tree.suite, [x for x, _ in filtered[position:]], secret)
    for node, pair in zip(path.nodes[position:], secrets.keys.values(), strict=True):
        check_equal(node.encryption_key, pair.public, "a path has a key that does not match its secret")
    return secrets
