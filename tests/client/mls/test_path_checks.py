"""What is checked of leaves and paths (RFC 9420 sections 7.3, 7.5, 7.6 and 10.1): one thing broken each."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from conclave.client.mls import (
    CipherSuite,
    CommitApplied,
    InvalidError,
    MlsGroup,
    OwnKeyPackage,
    Policy,
    create_key_package,
    suite_of,
)
from conclave.client.mls.codec import vector
from conclave.client.mls.commits import create_path
from conclave.client.mls.credentials import (
    Certificate,
    Credential,
    CredentialType,
    Extension,
    ExtensionType,
    ExternalSender,
    RequiredCapabilities,
    basic,
)
from conclave.client.mls.crypto import HPKECiphertext
from conclave.client.mls.hpke import generate_key_pair
from conclave.client.mls.key_packages import LIFETIME_SECONDS
from conclave.client.mls.nodes import LeafNodeSource, Lifetime, own_capabilities
from conclave.client.mls.parent_hash import with_path
from conclave.client.mls.proposal_lists import apply
from conclave.client.mls.proposals import (
    Add,
    GroupContextExtensions,
)
from conclave.client.mls.state import GroupState
from conclave.client.mls.suites import KeyPair
from conclave.client.mls.transition import provisional_context
from conclave.client.mls.treekem import UpdatePath, derive_path, encrypt_path
from tests.client.mls.data import NOW
from tests.client.mls.forging import (
    AROUND,
    SUITE,
    cast,
    commit_of,
    package,
    refused,
    renewal,
    repackaged,
    unchanged,
    with_leaf,
)

FOUR = cast()
ALICE = FOUR.state("alice")
X509 = Credential(CredentialType.X509, certificates=(Certificate(b"x"),))
CAN = own_capabilities()
EVE, MALLORY = package("eve"), package("mallory")


# Key packages and leaves

LEAVES: dict[str, tuple[dict[str, object], str]] = {
    "from a commit": ({"leaf_node_source": LeafNodeSource.UPDATE, "lifetime": None}, "wrong source"),
    "with a short key": ({"encryption_key": b"x"}, "encryption key of the wrong length"),
    "with a certificate": ({"credential": X509}, "an unsupported type"),
    "for too long": ({"lifetime": Lifetime(NOW, NOW + 500 * 86_400)}, "too long"),
    "never valid": ({"lifetime": Lifetime(NOW, NOW - 1)}, "or negative"),
    "of another version": ({"capabilities": replace(CAN, versions=(2,))}, "version or the cipher suite"),
    "of another suite": ({"capabilities": replace(CAN, cipher_suites=(2,))}, "version or the cipher suite"),
    "without its credential": ({"capabilities": replace(CAN, credentials=(2,))}, "its own credential"),
    "with an extension": ({"extensions": (Extension(0xF00D, b""),)}, "has an extension"),
}


@pytest.mark.parametrize(("changes", "sentence"), LEAVES.values(), ids=LEAVES)
def test_a_key_package_with_such_a_leaf_is_refused(changes: dict[str, object], sentence: str) -> None:
    key_package = repackaged(EVE, **changes)
    refused(FOUR.group("bob"), commit_of(ALICE, Add(key_package)), sentence, InvalidError)
    unchanged(FOUR.group("alice"), lambda: FOUR.group("alice").commit(NOW, add=[key_package]), "a", InvalidError)


def other_suite() -> OwnKeyPackage:
    suite: CipherSuite = suite_of(6)
    return create_key_package(suite, b"eve", suite.signature_key_pair().private, NOW)


PACKAGES = {
    "another suite": (other_suite().key_package, "another cipher suite"),
    "a leaf of somebody else": (
        replace(EVE.key_package, leaf_node=MALLORY.key_package.leaf_node),
        "signature of a key package",
    ),
    "a leaf that was changed": (
        replace(EVE.key_package, leaf_node=replace(EVE.key_package.leaf_node, credential=basic(b"bob2"))).signed(
            EVE.signature_private
        ),
        "signature of a leaf",
    ),
    "another init key": (replace(EVE.key_package, init_key=bytes(32)), "signature of a key package"),
    "one key for two": (
        replace(EVE.key_package, init_key=EVE.key_package.leaf_node.encryption_key).signed(EVE.signature_private),
        "one key for two purposes",
    ),
    "a short init key": (
        replace(EVE.key_package, init_key=b"x").signed(EVE.signature_private),
        "init key of the wrong length",
    ),
}


@pytest.mark.parametrize(("key_package", "sentence"), PACKAGES.values(), ids=PACKAGES)
def test_such_a_key_package_is_refused(key_package: object, sentence: str) -> None:
    assert isinstance(key_package, type(EVE.key_package))
    refused(FOUR.group("bob"), commit_of(ALICE, Add(key_package)), sentence, InvalidError)


@pytest.mark.parametrize(
    ("lifetime", "sentence"),
    [
        (Lifetime(NOW - LIFETIME_SECONDS, NOW - 1), "has expired"),
        (Lifetime(NOW + 86_401, NOW + LIFETIME_SECONDS), "not valid yet"),
    ],
)
def test_a_key_package_is_used_only_in_its_time(lifetime: Lifetime, sentence: str) -> None:
    alice, key_package = FOUR.group("alice"), repackaged(EVE, lifetime=lifetime)
    unchanged(alice, lambda: alice.commit(NOW, add=[key_package]), sentence, InvalidError)
    unchanged(alice, lambda: alice.propose_add(key_package, NOW), sentence, InvalidError)


def test_a_key_package_that_was_made_this_second_or_by_a_fast_clock_is_used() -> None:
    for lifetime in (Lifetime(NOW, NOW + LIFETIME_SECONDS), Lifetime(NOW + 3_600, NOW + LIFETIME_SECONDS)):
        assert FOUR.group("alice").commit(NOW, add=[repackaged(EVE, lifetime=lifetime)]).welcome


def test_a_commit_with_a_key_package_of_another_time_is_followed() -> None:
    """It was in time when it was committed: who comes back after months must be able to follow.

    So must one whose clock is behind: otherwise the group would come apart.
    """
    made = FOUR.group("alice").commit(NOW, add=[EVE.key_package])
    for days in (400, -400):
        assert isinstance(FOUR.group("bob").receive(made.message, NOW + days * 86_400), CommitApplied)


def test_the_application_decides_whose_key_it_is() -> None:
    def only_friends(credential: Credential, _key: bytes) -> bool:
        return credential.identity != b"eve"

    policy = Policy(authenticate=only_friends)
    made = FOUR.group("alice").commit(NOW, add=[EVE.key_package])
    refused(FOUR.group("bob", policy), made.message, "does not belong to its signature key", InvalidError)
    alice = FOUR.group("alice", policy)
    unchanged(alice, lambda: alice.commit(NOW, add=[EVE.key_package]), "does not belong", InvalidError)
    senders = Extension(ExtensionType.EXTERNAL_SENDERS, vector([ExternalSender(b"x", basic(b"eve"))]))
    made = FOUR.group("alice").commit(NOW, extensions=[senders])
    refused(FOUR.group("bob", policy), made.message, "does not belong to its signature key", InvalidError)


def test_every_member_understands_every_credential() -> None:
    """Who does not list a type of credential that others have is not taken in, nor the reverse."""
    lists = (replace(CAN, credentials=(2,)), replace(CAN, credentials=()))
    for capabilities in lists:
        key_package = repackaged(EVE, capabilities=capabilities)
        refused(FOUR.group("bob"), commit_of(ALICE, Add(key_package)), "credential", InvalidError)


# Paths


def _without_a_node(path: UpdatePath) -> UpdatePath:
    return replace(path, nodes=path.nodes[:-1])


def _with_ciphertexts(count: int) -> Callable[[UpdatePath], UpdatePath]:
    def changed(path: UpdatePath) -> UpdatePath:
        node = path.nodes[0]
        node = replace(node, encrypted_path_secret=node.encrypted_path_secret[:1] * count)
        return replace(path, nodes=(node, *path.nodes[1:]))

    return changed


def _with_key(key: Callable[[UpdatePath], bytes]) -> Callable[[UpdatePath], UpdatePath]:
    def changed(path: UpdatePath) -> UpdatePath:
        return replace(path, nodes=(*path.nodes[:-1], replace(path.nodes[-1], encryption_key=key(path))))

    return changed


def _leaf(**changes: object) -> Callable[[UpdatePath], UpdatePath]:
    return lambda path: with_leaf(ALICE, path, **changes)


def _parent_key(state: GroupState) -> bytes:
    return next(node.encryption_key for _, node in state.tree.parents())


PATHS: dict[str, tuple[Callable[[UpdatePath], UpdatePath], str]] = {
    "a node less": (_without_a_node, "wrong number of nodes"),
    "no ciphertext": (_with_ciphertexts(0), "wrong number of ciphertexts"),
    "a ciphertext more": (_with_ciphertexts(2), "wrong number of ciphertexts"),
    "a short key": (_with_key(lambda _: b"x"), "path has a key of the wrong length"),
    "one key twice": (_with_key(lambda path: path.nodes[0].encryption_key), "in the tree already"),
    "the leaf's key": (_with_key(lambda path: path.leaf_node.encryption_key), "in the tree already"),
    "a key of the tree": (_with_key(lambda _: _parent_key(ALICE)), "in the tree already"),
    "a key of a leaf": (_with_key(lambda _: ALICE.tree.member(2).encryption_key), "in the tree already"),
    "another key": (_with_key(lambda _: generate_key_pair(SUITE).public), "parent hash of a committer"),
    "another parent hash": (_leaf(parent_hash=bytes(32)), "parent hash of a committer"),
    "no parent hash": (_leaf(parent_hash=b""), "parent hash of a committer"),
    "an update's leaf": (_leaf(leaf_node_source=LeafNodeSource.UPDATE, parent_hash=None), "wrong source"),
    "the old leaf key": (_leaf(encryption_key=ALICE.tree.member(0).encryption_key), "old key"),
    "changes its identity": (_leaf(credential=basic(b"bob")), "changes its identity"),
    "a leaf with a certificate": (_leaf(credential=X509), "changes its identity"),
    "an unsigned leaf": (
        lambda path: replace(path, leaf_node=replace(path.leaf_node, signature=bytes(64))),
        "signature of a leaf",
    ),
    "a leaf with an extension": (_leaf(extensions=(Extension(0xF00D, b""),)), "has an extension"),
    "a leaf without the suite": (_leaf(capabilities=replace(CAN, cipher_suites=(6,))), "version or the cipher"),
    "a leaf for another place": (
        lambda path: replace(
            path,
            leaf_node=path.leaf_node.signed(SUITE, ALICE.signature_private, ALICE.context.group_id, 2),
        ),
        "signature of a leaf",
    ),
}


@pytest.mark.parametrize(("change", "sentence"), PATHS.values(), ids=PATHS)
def test_a_path_is_refused(change: Callable[[UpdatePath], UpdatePath], sentence: str) -> None:
    path = change(renewal(ALICE)[1])
    refused(FOUR.group("bob"), commit_of(ALICE, path=path), sentence, InvalidError)


def test_a_path_secret_that_gives_other_keys_is_refused() -> None:
    """Alice encrypts the secrets of another path than she signs."""
    one, other = renewal(ALICE)[1], renewal(ALICE)[1]
    nodes = tuple(
        replace(mine, encrypted_path_secret=theirs.encrypted_path_secret)
        for mine, theirs in zip(one.nodes, other.nodes, strict=True)
    )
    message = commit_of(ALICE, path=replace(one, nodes=nodes))
    for name in ("bob", "carol", "dave"):
        refused(FOUR.group(name), message, "cannot be decrypted", InvalidError)


def test_ciphertexts_of_a_path_that_are_garbage_are_refused() -> None:
    path = renewal(ALICE)[1]
    for garbage in (HPKECiphertext(b"", b""), HPKECiphertext(bytes(32), bytes(64)), HPKECiphertext(b"x" * 32, b"")):
        nodes = tuple(
            replace(node, encrypted_path_secret=tuple(garbage for _ in node.encrypted_path_secret))
            for node in path.nodes
        )
        refused(FOUR.group("bob"), commit_of(ALICE, path=replace(path, nodes=nodes)), "a", InvalidError)


def test_a_path_whose_keys_do_not_come_from_its_secrets_is_refused() -> None:
    """Alice signs the keys of one path, and encrypts the secrets of another for the same tree."""
    applied = apply(ALICE.public, (), AROUND.policy, NOW)
    path, _, _ = create_path(ALICE.public, applied, 0, ALICE.tree.member(0), ALICE.signature_private)
    filtered = [x for x, _ in ALICE.tree.filtered_direct_path(0)]
    public_keys = dict(zip(filtered, (node.encryption_key for node in path.nodes), strict=True))
    tree = with_path(ALICE.tree, 0, public_keys)[0].with_nodes({0: path.leaf_node})
    other = derive_path(SUITE, filtered, bytes(32))
    other = replace(other, keys={x: KeyPair(b"", key) for x, key in public_keys.items()})
    context = provisional_context(ALICE.public, applied, tree).encode()
    broken = replace(path, nodes=encrypt_path(tree, 0, other, (), context))
    refused(FOUR.group("bob"), commit_of(ALICE, path=broken), "does not match its secret", InvalidError)


def test_a_member_that_has_lost_its_keys_is_told_so() -> None:
    state = FOUR.state("bob")
    lost = MlsGroup(replace(state, private_keys={}), Policy())
    refused(lost, commit_of(ALICE), "not encrypted to this member", InvalidError)


def test_who_comes_in_has_what_the_group_requires() -> None:
    """The members are able to what their packages of last resort say; Eve is not."""
    needs = RequiredCapabilities((int(ExtensionType.LAST_RESORT),), (), ()).encode()
    required = Extension(ExtensionType.REQUIRED_CAPABILITIES, needs)
    group = MlsGroup.create(package("alice", last_resort=True), NOW, extensions=[required])
    bob = package("bob", last_resort=True)
    welcome = group.commit(NOW, add=[bob.key_package]).welcome
    assert welcome is not None
    joined, _ = MlsGroup.join(welcome, [bob], NOW)
    group.apply_pending(NOW)
    unchanged(group, lambda: group.commit(NOW, add=[EVE.key_package]), "that the group requires", InvalidError)
    refused(joined, commit_of(group._state, Add(EVE.key_package)), "that the group requires", InvalidError)
    with pytest.raises(InvalidError, match="that the group requires"):
        MlsGroup.join_external(group.group_info(), EVE, NOW)
    with pytest.raises(InvalidError, match="that the group requires"):
        MlsGroup.create(EVE, NOW, extensions=[required])


def test_nothing_is_required_that_only_some_members_have() -> None:
    """Alice is able to it, and Bob is not."""
    group, bob = MlsGroup.create(package("alice", last_resort=True), NOW), package("bob")
    welcome = group.commit(NOW, add=[bob.key_package]).welcome
    assert welcome is not None
    joined, _ = MlsGroup.join(welcome, [bob], NOW)
    group.apply_pending(NOW)
    needs = RequiredCapabilities((int(ExtensionType.LAST_RESORT),), (), ()).encode()
    required = Extension(ExtensionType.REQUIRED_CAPABILITIES, needs)
    unchanged(group, lambda: group.commit(NOW, extensions=[required]), "that the group requires", InvalidError)
    change = GroupContextExtensions((required,))
    refused(joined, commit_of(group._state, change), "that the group requires", InvalidError)
    made = group.commit(NOW, extensions=[required], remove=[1])
    assert made.epoch == 2
