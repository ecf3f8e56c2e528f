"""What is checked by whoever comes into a group (RFC 9420 sections 7.9 and 12.4.3): one thing broken each."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from conclave.client.mls import (
    CommitApplied,
    InvalidError,
    LimitError,
    MalformedMessageError,
    MlsError,
    MlsGroup,
    OwnKeyPackage,
    Policy,
    StateError,
    WrongRecipientError,
    create_key_package,
    decode_message,
    encode_message,
    suite_of,
)
from conclave.client.mls.codec import MAX_EPOCH, opaque
from conclave.client.mls.commits import CommitSpec, CreatedCommit, create_commit, group_info
from conclave.client.mls.credentials import Certificate, Credential, CredentialType, Extension, ExtensionType
from conclave.client.mls.crypto import encrypt_with_label, random_secret
from conclave.client.mls.hpke import generate_key_pair
from conclave.client.mls.key_schedule import (
    PreSharedKeyID,
    PSKType,
    ResumptionPSKUsage,
    derive_epoch,
    derive_psk_secret,
    derive_welcome_secret,
)
from conclave.client.mls.nodes import LeafNode, LeafNodeSource, Lifetime, Node, ParentNode, own_capabilities
from conclave.client.mls.proposals import Add
from conclave.client.mls.state import GroupState
from conclave.client.mls.tree import RatchetTree
from conclave.client.mls.validation import LeafRules, check_tree
from conclave.client.mls.welcome import (
    EncryptedGroupSecrets,
    GroupInfo,
    GroupSecrets,
    Welcome,
    _welcome_key,
    create_welcome,
)
from tests.client.mls.data import NOW
from tests.client.mls.forging import AROUND, SUITE, cast, package, unchanged

FOUR = cast()
ALICE = FOUR.state("alice")
EVE = package("eve")
X509 = Credential(CredentialType.X509, certificates=(Certificate(b"x"),))


def invitation() -> CreatedCommit:
    """Return a proper commit that adds Eve."""
    return create_commit(ALICE, CommitSpec(proposals=(Add(EVE.key_package),)), AROUND)


AFTER = invitation().after


def info_of(state: GroupState, tree: RatchetTree | None = None, **changes: object) -> GroupInfo:
    """Return a group info that Alice signs, with another tree or context than hers."""
    tree = tree or state.tree
    context = replace(state.context, tree_hash=tree.tree_hash())
    info = group_info(state, external_pub=True)
    extensions = (Extension(ExtensionType.RATCHET_TREE, tree.encode()), *info.extensions[1:])
    info = replace(info, group_context=context, extensions=extensions)
    return replace(info, **changes).signed(SUITE, state.signature_private)  # type: ignore[arg-type]


def refused(info: GroupInfo, sentence: str, own: OwnKeyPackage = EVE, kind: type[MlsError] = InvalidError) -> None:
    """Check that whoever wants to join by that group info refuses it."""
    with pytest.raises(kind, match=sentence):
        MlsGroup.join_external(encode_message(info), own, NOW)


def welcome(info: GroupInfo, own: OwnKeyPackage = EVE, path_secret: bytes | None = None) -> bytes:
    """Return a Welcome whose secrets fit the group info, whatever that says; the tag is made to fit too."""
    joiner, zero = random_secret(SUITE), bytes(SUITE.kdf.size)
    schedule = derive_epoch(SUITE, joiner, zero, info.group_context.encode())
    tag = SUITE.mac(schedule.secrets.confirmation_key, info.group_context.confirmed_transcript_hash)
    info = replace(info, confirmation_tag=tag).signed(SUITE, ALICE.signature_private)
    made = create_welcome(info, schedule.welcome_secret, joiner, (), {own.key_package: path_secret})
    return encode_message(made)


def join(message: bytes, own: OwnKeyPackage = EVE, policy: Policy | None = None) -> MlsGroup:
    return MlsGroup.join(message, [own], NOW, policy=policy)[0]


# Group infos


def test_a_proper_welcome_and_a_proper_group_info_are_taken() -> None:
    made = invitation()
    assert made.welcome is not None
    group = join(encode_message(made.welcome))
    assert group.epoch_authenticator == made.after.secrets.epoch_authenticator
    assert join(welcome(info_of(AFTER))).members() == group.members()
    MlsGroup.join_external(encode_message(info_of(ALICE)), EVE, NOW)


def test_a_group_info_is_signed_by_the_member_that_it_names() -> None:
    for signer, sentence in ((1, "signature of a group info"), (9, "is not a member")):
        refused(info_of(ALICE, signer=signer), sentence)
    broken = replace(info_of(ALICE), confirmation_tag=b"x")
    refused(broken, "signature of a group info")
    with pytest.raises(InvalidError, match="is not a member"):
        join(welcome(replace(info_of(AFTER), signer=9)))


def test_a_tree_has_the_hash_of_its_group() -> None:
    context = replace(ALICE.context, tree_hash=bytes(32))
    refused(info_of(ALICE, group_context=context), "the hash of a tree differs")
    with pytest.raises(InvalidError, match="the hash of a tree differs"):
        MlsGroup.join_external(encode_message(info_of(ALICE)), EVE, NOW, tree=AFTER.tree.encode())
    without = info_of(ALICE, extensions=info_of(ALICE).extensions[1:])
    refused(without, "has no tree")
    MlsGroup.join_external(encode_message(without), EVE, NOW, tree=ALICE.tree.encode())


def test_a_group_that_nobody_may_join_by_itself_is_not_joined() -> None:
    refused(info_of(ALICE, extensions=info_of(ALICE).extensions[:1]), "does not allow external commits")


def test_a_group_with_an_extension_that_is_not_supported_is_not_joined() -> None:
    context = replace(ALICE.context, extensions=(Extension(0xF00D, b""),))
    refused(info_of(ALICE, group_context=context), "an extension that this package does not support")


def test_an_unknown_extension_of_a_group_info_is_ignored() -> None:
    extensions = (*info_of(ALICE).extensions, Extension(0xF00D, b"x"))
    MlsGroup.join_external(encode_message(info_of(ALICE, extensions=extensions)), EVE, NOW)


def test_an_external_pub_that_is_no_key_is_refused() -> None:
    tree = info_of(ALICE).extensions[0]
    for key in (opaque(b"x"), opaque(bytes(32)), b"\x05x", b""):
        extensions = (tree, Extension(ExtensionType.EXTERNAL_PUB, key))
        refused(info_of(ALICE, extensions=extensions), "a", kind=MlsError)


def test_nobody_joins_twice_but_may_come_back() -> None:
    bob = create_key_package(SUITE, b"bob", SUITE.signature_key_pair().private, NOW)
    refused(info_of(ALICE), "two members have one identity", bob)
    same_key = create_key_package(SUITE, b"bobby", FOUR.state("bob").signature_private, NOW)
    refused(info_of(ALICE), "two members have one signature key", same_key)
    group, message = MlsGroup.join_external(encode_message(info_of(ALICE)), bob, NOW, resync=True)
    alice, carol = FOUR.group("alice"), FOUR.group("carol")
    assert isinstance(alice.receive(message, NOW), CommitApplied)
    carol.receive(message, NOW)
    assert alice.epoch_authenticator == carol.epoch_authenticator == group.epoch_authenticator
    assert [one.credential.identity for one in group.members().values()].count(b"bob") == 1
    received = group.receive(message, NOW)
    assert isinstance(received, CommitApplied)
    assert received.own
    received = FOUR.group("bob").receive(message, NOW)
    assert isinstance(received, CommitApplied)
    assert received.effect is not None
    assert received.effect.removed_self


def test_another_suite_is_not_joined() -> None:
    suite = suite_of(6)
    other = create_key_package(suite, b"eve", suite.signature_key_pair().private, NOW)
    refused(info_of(ALICE), "another cipher suite", other)
    made = invitation()
    assert made.welcome is not None
    with pytest.raises(WrongRecipientError):
        join(encode_message(made.welcome), other)


def test_a_group_in_its_last_epoch_is_not_joined() -> None:
    context = replace(ALICE.context, epoch=MAX_EPOCH)
    refused(info_of(ALICE, group_context=context), "last epoch", kind=LimitError)


@pytest.mark.parametrize("epoch", [MAX_EPOCH + 1, 1 << 63, (1 << 64) - 1])
def test_an_epoch_that_cannot_be_stored_is_not_read(epoch: int) -> None:
    context = replace(ALICE.context, epoch=epoch)
    refused(info_of(ALICE, group_context=context), "later than", kind=LimitError)


# Trees


def leaf(index: int, **changes: object) -> LeafNode:
    """Return a leaf of the tree with other contents, signed by its member."""
    state = (FOUR.state("alice"), FOUR.state("bob"), FOUR.state("carol"), FOUR.state("dave"))[index]
    changed: LeafNode = replace(state.tree.member(index), **changes)  # type: ignore[arg-type]
    return changed.signed(SUITE, state.signature_private, state.context.group_id, index)


def parent(x: int, **changes: object) -> ParentNode:
    node = ALICE.tree.parent(x)
    assert node is not None
    return replace(node, **changes)  # type: ignore[arg-type]


KEY = generate_key_pair(SUITE).public
CAN = own_capabilities()
TREES: dict[str, tuple[Callable[[], dict[int, Node | None]], str]] = {
    "another key in a parent": (lambda: {3: parent(3, encryption_key=KEY)}, "the parent hash of a node"),
    "another parent hash in a parent": (lambda: {1: parent(1, parent_hash=bytes(32))}, "the parent hash of a node"),
    "another parent hash in a leaf": (lambda: {2: leaf(1, parent_hash=bytes(32))}, "the parent hash of a node"),
    "a parent more": (lambda: {5: ParentNode(KEY, b"")}, "the parent hash of a node"),
    "a parent less": (lambda: {1: None}, "the parent hash of a node"),
    "a leaf less": (lambda: {4: None}, "the parent hash of a node"),
    "a short key in a parent": (lambda: {3: parent(3, encryption_key=b"x")}, "wrong length"),
    "unmerged leaves out of order": (lambda: {3: parent(3, unmerged_leaves=(3, 2))}, "not in order"),
    "an unmerged leaf twice": (lambda: {3: parent(3, unmerged_leaves=(2, 2))}, "not in order"),
    "an unmerged leaf that is blank": (lambda: {4: None, 3: parent(3, unmerged_leaves=(2,))}, "is blank"),
    "an unmerged leaf elsewhere": (lambda: {1: parent(1, unmerged_leaves=(3,))}, "not below its node"),
    "an unmerged leaf beyond": (lambda: {3: parent(3, unmerged_leaves=(9,))}, "is blank"),
    "an unmerged leaf above only": (lambda: {3: parent(3, unmerged_leaves=(0,))}, "unmerged at a node"),
    "an unmerged leaf that is merged": (lambda: {3: parent(3, unmerged_leaves=(2,))}, "the parent hash of a node"),
    "a leaf that is not signed": (lambda: {4: replace(leaf(2), signature=bytes(64))}, "signature of a leaf"),
    "a leaf for another place": (
        lambda: {2: replace(leaf(1), signature=FOUR.state("bob").tree.member(0).signature)},
        "signature of a leaf",
    ),
    "one signature key twice": (
        lambda: {4: leaf(2, signature_key=ALICE.tree.member(0).signature_key)},
        "one signature key",
    ),
    "one identity twice": (lambda: {4: leaf(2, credential=ALICE.tree.member(0).credential)}, "one identity"),
    "one key twice": (lambda: {4: leaf(2, encryption_key=leaf(3).encryption_key)}, "one encryption key"),
    "a parent's key in a leaf": (lambda: {4: leaf(2, encryption_key=parent(3).encryption_key)}, "one encryption key"),
    "a certificate": (
        lambda: {4: leaf(2, credential=X509, capabilities=replace(CAN, credentials=(1, 2)))},
        "does not support a credential type",
    ),
    "a leaf without its credential": (
        lambda: {4: leaf(2, capabilities=replace(CAN, credentials=()))},
        "does not support a credential type",
    ),
    "a leaf that is valid for too long": (lambda: {4: leaf(2, lifetime=Lifetime(0, NOW))}, "too long"),
    "a leaf with an extension": (lambda: {4: leaf(2, extensions=(Extension(0xF00D, b""),))}, "has an extension"),
}


@pytest.mark.parametrize(("changes", "sentence"), TREES.values(), ids=TREES)
def test_a_tree_is_refused(changes: Callable[[], dict[int, Node | None]], sentence: str) -> None:
    refused(info_of(ALICE, ALICE.tree.with_nodes(changes())), sentence)


@pytest.mark.parametrize(("changes", "sentence"), TREES.values(), ids=TREES)
def test_a_tree_is_refused_in_a_welcome(changes: Callable[[], dict[int, Node | None]], sentence: str) -> None:
    with pytest.raises(InvalidError, match=sentence):
        join(welcome(info_of(AFTER, _as_after(changes()))))


def _as_after(changes: dict[int, Node | None], own: OwnKeyPackage = EVE) -> RatchetTree:
    """Make the tree with Eve in it as after a commit without a path: nothing else is changed by that."""
    return ALICE.tree.with_nodes(changes).with_room(4).with_nodes({8: own.key_package.leaf_node})


def test_a_tree_ends_with_a_node_and_has_each_kind_in_its_place() -> None:
    nodes = [b"\x01" + bytes([1]) + ALICE.tree.member(0).encode(), b"\x00", b"\x00"]
    parents = [b"\x01" + bytes([2]) + parent(3).encode()]
    for data in (b"".join(nodes), b"", parents[0], nodes[0] * 2):
        tree = Extension(ExtensionType.RATCHET_TREE, opaque(data))
        extensions = (tree, *info_of(ALICE).extensions[1:])
        refused(info_of(ALICE, extensions=extensions), "a tree", kind=MalformedMessageError)


def test_leaves_of_all_three_sources_are_checked() -> None:
    sources = {one.leaf_node_source for _, one in AFTER.tree.leaves()}
    assert {LeafNodeSource.KEY_PACKAGE, LeafNodeSource.COMMIT} <= sources
    context = AFTER.context
    rules = LeafRules(SUITE, context.group_id, (), Policy(authenticate=lambda one, _: one.identity != b"carol"), NOW)
    with pytest.raises(InvalidError, match="does not belong to its signature key"):
        check_tree(AFTER.tree, rules)


# Welcomes


def test_a_welcome_for_others_is_not_taken() -> None:
    made = invitation()
    assert made.welcome is not None
    with pytest.raises(WrongRecipientError, match="none of this client's key packages"):
        join(encode_message(made.welcome), package("eve"))
    with pytest.raises(MalformedMessageError, match="not a Welcome"):
        join(encode_message(EVE.key_package))


def test_a_welcome_leads_to_the_own_leaf() -> None:
    with pytest.raises(InvalidError, match="was not added"):
        join(welcome(info_of(ALICE)))
    assert join(welcome(info_of(AFTER, _as_after({})))).own_index == 4
    with pytest.raises(InvalidError, match="was not added"):
        join(welcome(info_of(AFTER, _as_after({}, package("eve")))))


def test_a_welcome_leads_to_a_group_of_its_own_suite() -> None:
    info = info_of(AFTER)
    info = replace(info, group_context=replace(info.group_context, cipher_suite=6))
    joiner = random_secret(SUITE)
    key = _welcome_key(SUITE, derive_welcome_secret(SUITE, joiner, bytes(SUITE.kdf.size)))
    encrypted = SUITE.aead.seal(*key, b"", info.encode())
    secrets = GroupSecrets(joiner, None, ()).encode()
    sealed = encrypt_with_label(SUITE, EVE.key_package.init_key, "Welcome", encrypted, secrets)
    message = Welcome(1, (EncryptedGroupSecrets(EVE.key_package.ref(), sealed),), encrypted)
    with pytest.raises(InvalidError, match="another cipher suite than the key package"):
        join(encode_message(message))


def test_a_group_of_another_version_is_not_joined() -> None:
    message = bytearray(encode_message(info_of(ALICE)))
    message[5] = 2
    with pytest.raises(MalformedMessageError, match="version"):
        MlsGroup.join_external(bytes(message), EVE, NOW)


def test_a_welcome_into_a_group_that_is_known_is_refused() -> None:
    made = invitation()
    assert made.welcome is not None
    message = encode_message(made.welcome)
    with pytest.raises(InvalidError, match="already in"):
        MlsGroup.join(message, [EVE], NOW, known_groups={ALICE.context.group_id})


def test_a_path_secret_gives_the_keys_of_the_tree() -> None:
    with pytest.raises(InvalidError, match="differs from the one in the tree"):
        join(welcome(info_of(AFTER), path_secret=random_secret(SUITE)))


def test_a_wrong_confirmation_tag_in_a_welcome_is_refused() -> None:
    info = info_of(AFTER, confirmation_tag=bytes(32))
    joiner, zero = random_secret(SUITE), bytes(SUITE.kdf.size)
    schedule = derive_epoch(SUITE, joiner, zero, info.group_context.encode())
    made = create_welcome(info, schedule.welcome_secret, joiner, (), {EVE.key_package: None})
    with pytest.raises(InvalidError, match="confirmation tag of a group info"):
        join(encode_message(made))


def test_a_changed_group_info_or_secret_in_a_welcome_is_refused() -> None:
    made = invitation()
    body = made.welcome
    assert isinstance(body, Welcome)
    broken = replace(body, encrypted_group_info=body.encrypted_group_info[:-1] + b"x")
    with pytest.raises(InvalidError, match="cannot be decrypted"):
        join(encode_message(broken))
    entry = body.secrets[0]
    secrets = replace(entry.encrypted_group_secrets, ciphertext=bytes(80))
    broken = replace(body, secrets=(replace(entry, encrypted_group_secrets=secrets),))
    with pytest.raises(InvalidError, match="cannot be decrypted"):
        join(encode_message(broken))


def test_pre_shared_keys_of_a_welcome_must_be_there() -> None:
    nonce = bytes(SUITE.kdf.size)
    external = PreSharedKeyID(PSKType.EXTERNAL, nonce, b"id")
    branch = PreSharedKeyID(PSKType.RESUMPTION, nonce, usage=ResumptionPSKUsage.BRANCH, psk_group_id=b"x")
    for psk, kind in ((external, StateError), (branch, InvalidError)):
        secret = derive_psk_secret(SUITE, [(psk, b"key")])
        joiner, info = random_secret(SUITE), info_of(AFTER)
        schedule = derive_epoch(SUITE, joiner, secret, info.group_context.encode())
        made = create_welcome(info, schedule.welcome_secret, joiner, (psk,), {EVE.key_package: None})
        with pytest.raises(kind):
            join(encode_message(made))


def test_who_joins_with_a_pre_shared_key_is_in_the_same_epoch() -> None:
    alice = FOUR.group("alice")
    made = alice.commit(NOW, add=[EVE.key_package], psks={b"id": b"key"})
    assert made.welcome is not None
    group, _ = MlsGroup.join(made.welcome, [EVE], NOW, psks={b"id": b"key"})
    alice.apply_pending(NOW, psks={b"id": b"key"})
    assert group.epoch_authenticator == alice.epoch_authenticator


def test_a_group_info_is_of_no_use_as_a_welcome_nor_the_reverse() -> None:
    with pytest.raises(MalformedMessageError, match="not a group info"):
        MlsGroup.join_external(welcome(info_of(AFTER)), EVE, NOW)
    assert isinstance(decode_message(encode_message(info_of(AFTER))), GroupInfo)
    unchanged(FOUR.group("bob"), lambda: join(encode_message(info_of(AFTER))), "not a Welcome", MalformedMessageError)
