"""Validates leaves, key packages and trees (RFC 9420 sections 7.3, 10.1, 11.1 and 12.4.3.1)."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from conclave.client.mls import tree_math
from conclave.client.mls.codec import decode
from conclave.client.mls.credentials import (
    DEFAULT_EXTENSIONS,
    DEFAULT_PROPOSALS,
    GROUP_CONTEXT,
    KEY_PACKAGE,
    LEAF,
    Credential,
    CredentialType,
    Extension,
    ExtensionType,
    RequiredCapabilities,
    check_places,
    find_extension,
    read_external_senders,
)
from conclave.client.mls.errors import InvalidError
from conclave.client.mls.key_packages import KeyPackage
from conclave.client.mls.nodes import MLS10, LeafNode, LeafNodeSource, Lifetime
from conclave.client.mls.parent_hash import check_parent_hashes
from conclave.client.mls.suites import CipherSuite
from conclave.client.mls.tree import RatchetTree

DAY = 86_400
SUPPORTED_EXTENSIONS = DEFAULT_EXTENSIONS
"""Extensions of a group that this package supports."""


def accept_any_credential(_credential: Credential, _signature_key: bytes) -> bool:
    """Accept every credential, for applications that check members later."""
    return True


@dataclass(frozen=True)
class Policy:
    """The application's rules.

    ``authenticate``: returns whether a credential belongs to a signature key (Authentication Service, section 5.3.1).
    ``max_lifetime``: maximum validity of a key package, in seconds. ``skew``: accepted difference of clocks, in
    seconds. ``admit_new_members``: own commits include proposals of new members to be added. ``proposals``: the allowed
    types (section 17.4).
    """

    authenticate: Callable[[Credential, bytes], bool] = accept_any_credential
    max_lifetime: int = 400 * DAY
    skew: int = DAY
    admit_new_members: bool = False
    proposals: frozenset[int] = DEFAULT_PROPOSALS


@dataclass(frozen=True)
class LeafRules:
    """The context in which leaves are validated: the group, the policy, and the time (Unix seconds)."""

    suite: CipherSuite
    group_id: bytes
    extensions: tuple[Extension, ...]
    policy: Policy
    now: int


def check_credential(credential: Credential, signature_key: bytes, policy: Policy) -> None:
    """Check a credential with the Authentication Service (section 5.3.1)."""
    if credential.credential_type != CredentialType.BASIC:
        raise InvalidError("a member has a credential of an unsupported type")
    if not policy.authenticate(credential, signature_key):
        raise InvalidError("a member's credential does not belong to its signature key")


def check_leaf(leaf: LeafNode, source: LeafNodeSource, leaf_index: int, rules: LeafRules) -> None:
    """Check a received leaf, without the rest of the tree (section 7.3)."""
    if leaf.leaf_node_source != source:
        raise InvalidError("a leaf has the wrong source for its place")
    rules.suite.kem.check_public(leaf.encryption_key, "a leaf has an encryption key")
    check_places(leaf.extensions, LEAF)
    if not leaf.is_signed(rules.suite, rules.group_id, leaf_index):
        raise InvalidError("the signature of a leaf is wrong")
    check_credential(leaf.credential, leaf.signature_key, rules.policy)
    if leaf.lifetime is not None:
        _check_lifetime(leaf.lifetime, rules)
    _check_capabilities(leaf, rules)


def _check_lifetime(lifetime: Lifetime, rules: LeafRules) -> None:
    """Check the length of a lifetime. Only the sender of an Add compares it with the clock (section 7.3).

    Otherwise members with different clocks would not all accept the same commits.
    """
    if not 0 <= lifetime.not_after - lifetime.not_before <= rules.policy.max_lifetime:
        raise InvalidError("the lifetime of a leaf is too long, or negative")


def _check_capabilities(leaf: LeafNode, rules: LeafRules) -> None:
    capabilities = leaf.capabilities
    if MLS10 not in capabilities.versions or rules.suite.number not in capabilities.cipher_suites:
        raise InvalidError("a leaf does not support the version or the cipher suite of the group")
    if leaf.credential.credential_type not in capabilities.credentials:
        raise InvalidError("a leaf does not support its own credential")
    extension_types = {extension.extension_type for extension in leaf.extensions}
    if not extension_types - DEFAULT_EXTENSIONS <= set(capabilities.extensions):
        raise InvalidError("a leaf has an extension that it does not support")
    check_supports(leaf, rules.extensions)


def check_supports(leaf: LeafNode, extensions: tuple[Extension, ...]) -> None:
    """Check that a member has the capabilities that the group requires (sections 7.3, 11.1 and 13.4)."""
    capabilities = leaf.capabilities
    used_types = {extension.extension_type for extension in extensions}
    if not used_types - DEFAULT_EXTENSIONS <= set(capabilities.extensions):
        raise InvalidError("a member does not support an extension of the group")
    data = find_extension(extensions, ExtensionType.REQUIRED_CAPABILITIES)
    if data is None:
        return
    required = decode(data, RequiredCapabilities.decode)
    if not (
        set(required.extension_types) - DEFAULT_EXTENSIONS <= set(capabilities.extensions)
        and set(required.proposal_types) - DEFAULT_PROPOSALS <= set(capabilities.proposals)
        and set(required.credential_types) <= set(capabilities.credentials)
    ):
        raise InvalidError("a member does not have the capabilities that the group requires")


def check_key_package(key_package: KeyPackage, rules: LeafRules) -> None:
    """Check a key package of a received Add (section 10.1)."""
    if key_package.cipher_suite != rules.suite.number:
        raise InvalidError("a key package is for another cipher suite than the group's")
    check_leaf(key_package.leaf_node, LeafNodeSource.KEY_PACKAGE, 0, rules)
    if not key_package.is_signed():
        raise InvalidError("the signature of a key package is wrong")
    if key_package.init_key == key_package.leaf_node.encryption_key:
        raise InvalidError("a key package uses one key for two purposes")
    rules.suite.kem.check_public(key_package.init_key, "a key package has an init key")
    check_places(key_package.extensions, KEY_PACKAGE)


def check_usable_now(key_package: KeyPackage, rules: LeafRules) -> None:
    """Check that a key package is valid now, before sending an Add (section 7.3)."""
    lifetime = key_package.leaf_node.lifetime
    if lifetime is None or not lifetime.not_before <= rules.now + rules.policy.skew:
        raise InvalidError("a key package is not valid yet")
    if rules.now > lifetime.not_after:
        raise InvalidError("a key package has expired")


def check_members(tree: RatchetTree) -> None:
    """Check all leaves (section 7.3): keys and identities are unique, and all members support all credentials."""
    leaves = [leaf for _, leaf in tree.leaves()]
    _check_differ((leaf.signature_key for leaf in leaves), "two members have one signature key")
    _check_differ((leaf.credential.encode() for leaf in leaves), "two members have one identity")
    keys = [leaf.encryption_key for leaf in leaves] + [node.encryption_key for _, node in tree.parents()]
    _check_differ(keys, "two nodes of a tree have one encryption key")
    used_types = {int(leaf.credential.credential_type) for leaf in leaves}
    if not all(used_types <= set(leaf.capabilities.credentials) for leaf in leaves):
        raise InvalidError("a member does not support a credential type in use")


def _check_differ(values: Iterable[bytes], sentence: str) -> None:
    value_list = list(values)
    if len(set(value_list)) != len(value_list):
        raise InvalidError(sentence)


def check_extensions(extensions: tuple[Extension, ...], tree: RatchetTree, policy: Policy) -> None:
    """Check the extensions of a group against its members and the Authentication Service (sections 5.3.1, 12.1.7)."""
    check_places(extensions, GROUP_CONTEXT)
    for _, leaf in tree.leaves():
        check_supports(leaf, extensions)
    data = find_extension(extensions, ExtensionType.EXTERNAL_SENDERS)
    if data is not None:
        for sender in decode(data, read_external_senders):
            check_credential(sender.credential, sender.signature_key, policy)


def check_tree(tree: RatchetTree, rules: LeafRules) -> None:
    """Check a received tree when joining (section 12.4.3.1)."""
    if not {extension.extension_type for extension in rules.extensions} <= SUPPORTED_EXTENSIONS:
        raise InvalidError("the group uses an extension that this package does not support")
    check_unmerged_leaves(tree)
    check_members(tree)
    for leaf_index, leaf in tree.leaves():
        check_leaf(leaf, leaf.leaf_node_source, leaf_index, rules)
    check_parent_hashes(tree)
    check_extensions(rules.extensions, tree, rules.policy)


def check_unmerged_leaves(tree: RatchetTree) -> None:
    """Check the lists of unmerged leaves (sections 7.1 and 12.4.3.1)."""
    for x, node in tree.parents():
        leaves = list(node.unmerged_leaves)
        if leaves != sorted(set(leaves)):
            raise InvalidError("a list of unmerged leaves is not in order")
        for leaf_index in leaves:
            if not tree_math.is_below(leaf_index, x) or tree.leaf(leaf_index) is None:
                raise InvalidError("an unmerged leaf is blank, or not below its node")
            _check_unmerged_between(tree, leaf_index, x)


def _check_unmerged_between(tree: RatchetTree, leaf_index: int, x: int) -> None:
    ancestor = tree_math.parent(2 * leaf_index)
    while ancestor != x:
        node = tree.parent(ancestor)
        if node is not None and leaf_index not in node.unmerged_leaves:
            raise InvalidError("a leaf is unmerged at a node, but not at one below it")
        ancestor = tree_math.parent(ancestor)
