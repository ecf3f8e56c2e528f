"""What is checked of the proposals in a commit (RFC 9420 sections 12.1, 12.2 and 12.4.2): one thing broken each."""

from dataclasses import replace

import pytest

from conclave.client.mls import (
    CommitApplied,
    InvalidError,
    MlsError,
    MlsGroup,
    OwnKeyPackage,
    Policy,
    StaleError,
    StateError,
    WrongRecipientError,
    create_key_package,
)
from conclave.client.mls.commits import CommitSpec, create_commit
from conclave.client.mls.credentials import (
    Extension,
    ExtensionType,
    RequiredCapabilities,
    basic,
)
from conclave.client.mls.framing import Sender, SenderType, member
from conclave.client.mls.hpke import generate_key_pair
from conclave.client.mls.key_schedule import PreSharedKeyID, PSKType, ResumptionPSKUsage
from conclave.client.mls.nodes import LeafNode, LeafNodeSource, own_capabilities
from conclave.client.mls.proposal_lists import CommittedProposal
from conclave.client.mls.proposals import (
    Add,
    Commit,
    ExternalInit,
    GroupContextExtensions,
    PreSharedKey,
    Proposal,
    ProposalOrRef,
    ReInit,
    Remove,
    Update,
)
from tests.client.mls.data import NOW
from tests.client.mls.forging import (
    AROUND,
    SUITE,
    authenticated,
    cast,
    commit_of,
    package,
    path_after,
    public,
    refused,
    renewal,
    repackaged,
    unchanged,
)

FOUR = cast()
ALICE = FOUR.state("alice")
NONCE = bytes(SUITE.kdf.size)
CAN = own_capabilities()


def update_of(name: str, **changes: object) -> Update:
    """Return an Update of a member, signed by it, with other contents."""
    state = FOUR.state(name)
    fields = {
        "encryption_key": generate_key_pair(SUITE).public,
        "leaf_node_source": LeafNodeSource.UPDATE,
        "lifetime": None,
        "parent_hash": None,
        **changes,
    }
    leaf: LeafNode = replace(state.tree.member(state.own_index), **fields)  # type: ignore[arg-type]
    return Update(leaf.signed(SUITE, state.signature_private, state.context.group_id, state.own_index))


def psk(usage: ResumptionPSKUsage | None = None, nonce: bytes = NONCE, psk_id: bytes = b"") -> PreSharedKey:
    psktype = PSKType.EXTERNAL if usage is None else PSKType.RESUMPTION
    where = {} if usage is None else {"psk_group_id": ALICE.context.group_id, "psk_epoch": 1}
    return PreSharedKey(PreSharedKeyID(psktype, nonce, psk_id, usage, **where))  # type: ignore[arg-type]


def required(*credentials: int, extensions: tuple[int, ...] = (), proposals: tuple[int, ...] = ()) -> Extension:
    data = RequiredCapabilities(extensions, proposals, credentials).encode()
    return Extension(ExtensionType.REQUIRED_CAPABILITIES, data)


EVE = package("eve")
ALIKE = create_key_package(SUITE, b"eve", SUITE.signature_key_pair().private, NOW)
SAME_KEY = create_key_package(SUITE, b"other", EVE.signature_private, NOW)
LISTS: dict[str, tuple[list[Proposal | bytes], str]] = {
    "an Update of the committer": ([update_of("alice")], "Update of the committer"),
    "the committer's own removal": ([Remove(0)], "removes itself"),
    "one removal twice": ([Remove(2), Remove(2)], "one member twice"),
    "one pre-shared key twice": ([psk(), psk()], "pre-shared key twice"),
    "a key for a branch": ([psk(ResumptionPSKUsage.BRANCH)], "usage"),
    "a key for a new beginning": ([psk(ResumptionPSKUsage.REINIT)], "usage"),
    "a nonce that is too short": ([psk(nonce=b"x")], "nonce of the wrong length"),
    "extensions twice": ([GroupContextExtensions(()), GroupContextExtensions(())], "extensions of the group twice"),
    "an end and more": ([ReInit(b"", 1, 1, ()), Remove(2)], "ReInit and other proposals"),
    "an end in an older version": ([ReInit(b"", 0, 1, ())], "older version"),
    "a beginning": ([ExternalInit(b"x")], "ExternalInit"),
    "an unknown reference": ([b"x" * 32], "unknown proposal"),
    "the removal of nobody": ([Remove(9)], "there is no member 9"),
    "an extension that nobody knows": ([GroupContextExtensions((Extension(0xF00D, b""),))], "extension of the group"),
    "a required extension": ([GroupContextExtensions((required(extensions=(0xF00D,)),))], "capabilities that"),
    "a required proposal": ([GroupContextExtensions((required(proposals=(0xF00D,)),))], "capabilities that"),
    "a required credential": ([GroupContextExtensions((required(2),))], "capabilities that"),
    "a required credential and an add": (
        [GroupContextExtensions((required(1),)), Add(repackaged(EVE, capabilities=replace(CAN, credentials=())))],
        "does not support its own credential",
    ),
}


@pytest.mark.parametrize(("proposals", "sentence"), LISTS.values(), ids=LISTS)
def test_a_list_of_proposals_is_refused(proposals: list[Proposal | bytes], sentence: str) -> None:
    refused(FOUR.group("bob"), commit_of(ALICE, *proposals), sentence, InvalidError)


@pytest.mark.parametrize(
    ("packages", "sentence"),
    [
        ([EVE, ALIKE], "two members have one identity"),
        ([EVE, SAME_KEY], "two members have one signature key"),
        ([package("bob")], "two members have one identity"),
        ([EVE, EVE], "two members have one signature key"),
    ],
)
def test_nobody_is_in_a_group_twice(packages: list[OwnKeyPackage], sentence: str) -> None:
    adds = [Add(own.key_package) for own in packages]
    path = path_after(ALICE, *(CommittedProposal(member(0), add) for add in adds))
    refused(FOUR.group("bob"), commit_of(ALICE, *adds, path=path), sentence, InvalidError)
    alice = FOUR.group("alice")
    unchanged(alice, lambda: alice.commit(NOW, add=[own.key_package for own in packages]), sentence, InvalidError)


def test_no_key_is_in_a_tree_twice() -> None:
    update = update_of("carol", encryption_key=ALICE.tree.member(3).encryption_key)
    bob, carol = FOUR.group("bob"), FOUR.state("carol")
    bob.receive(public(carol, authenticated(carol, update)), NOW)
    path = path_after(ALICE, CommittedProposal(member(2), update))
    commit = commit_of(ALICE, bob._state.proposals[0].reference, path=path)
    refused(bob, commit, "one encryption key", InvalidError)


def test_a_member_is_replaced_in_one_commit() -> None:
    made = FOUR.group("alice").commit(NOW, add=[package("carol").key_package], remove=[2])
    assert isinstance(FOUR.group("bob").receive(made.message, NOW), CommitApplied)


def by_reference(*proposed: tuple[str, Proposal]) -> tuple[str, list[bytes]]:
    """Let members propose, to Bob alone; return his state and what Alice can refer to."""
    bob = FOUR.group("bob")
    for name, proposal in proposed:
        state = FOUR.state(name)
        bob.receive(public(state, authenticated(state, proposal)), NOW)
    return bob.to_bytes().hex(), [cached.reference for cached in bob._state.proposals]


@pytest.mark.parametrize(
    ("proposed", "sentence"),
    [
        ([("carol", update_of("carol")), ("dave", Remove(2))], "one member twice"),
        ([("carol", update_of("carol")), ("carol", update_of("carol"))], "one member twice"),
        ([("alice", update_of("alice"))], "Update of the committer"),
        ([("carol", Remove(0))], "removes itself"),
        ([("carol", update_of("carol", encryption_key=FOUR.state("carol").tree.member(2).encryption_key))], "old key"),
        ([("carol", update_of("carol", credential=basic(b"dave")))], "changes its identity"),
        ([("carol", update_of("carol", leaf_node_source=LeafNodeSource.COMMIT, parent_hash=b""))], "wrong source"),
        ([("carol", update_of("dave"))], "signature of a leaf"),
        ([("carol", update_of("carol", signature_key=ALICE.tree.member(0).signature_key))], "signature of a leaf"),
    ],
)
def test_proposals_by_reference_are_checked_in_the_commit(proposed: list[tuple[str, Proposal]], sentence: str) -> None:
    stored, references = by_reference(*proposed)
    bob = FOUR.group("bob").from_bytes(bytes.fromhex(stored))
    refused(bob, commit_of(ALICE, *references), sentence, InvalidError)


def test_an_update_of_ours_that_we_never_sent_is_refused() -> None:
    """Somebody who has Bob's signature key proposes in his name: his leaf would have a key that he does not know."""
    alice, bob = FOUR.group("alice"), FOUR.group("bob")
    state = FOUR.state("bob")
    message = public(state, authenticated(state, update_of("bob")))
    alice.receive(message, NOW)
    refused(bob, message, "own", MlsError)
    refused(bob, alice.commit(NOW).message, "unknown proposal", InvalidError)


def test_a_commit_that_changes_members_needs_new_keys() -> None:
    for proposals in ((), (Remove(2),), (GroupContextExtensions(()),)):
        commit = Commit(tuple(map(ProposalOrRef, proposals)), None)
        refused(FOUR.group("bob"), public(ALICE, authenticated(ALICE, commit)), "lacks a required path", InvalidError)


# External commits


def external_commit(*proposals: Proposal, references: tuple[bytes, ...] = ()) -> bytes:
    """Commit as a new member to whatever is given, with the path of somebody else: lists are checked first."""
    path = renewal(ALICE)[1]
    entries = [ProposalOrRef(one) for one in (*proposals, *references)]
    sender = Sender(SenderType.NEW_MEMBER_COMMIT)
    return public(ALICE, authenticated(ALICE, Commit(tuple(entries), path), sender=sender))


@pytest.mark.parametrize(
    ("proposals", "sentence"),
    [
        ([], "exactly one ExternalInit"),
        ([ExternalInit(b"x"), ExternalInit(b"y")], "exactly one ExternalInit"),
        ([ExternalInit(b"x"), Remove(1), Remove(2)], "more than one leaf"),
        ([ExternalInit(b"x"), Add(EVE.key_package)], "only members may"),
        ([ExternalInit(b"x"), GroupContextExtensions(())], "only members may"),
        ([ExternalInit(b"x"), update_of("carol")], "only members may"),
        ([ExternalInit(b"x"), Remove(2)], "changes its identity"),
        ([ExternalInit(b"x"), Remove(7)], "there is no member 7"),
        ([ExternalInit(b"x"), psk(), psk()], "pre-shared key twice"),
    ],
)
def test_a_commit_of_a_new_member_is_refused(proposals: list[Proposal], sentence: str) -> None:
    refused(FOUR.group("bob"), external_commit(*proposals), sentence, InvalidError)


def test_a_new_member_may_not_refer_to_proposals() -> None:
    stored, references = by_reference(("carol", Remove(3)))
    bob = FOUR.group("bob").from_bytes(bytes.fromhex(stored))
    message = external_commit(ExternalInit(b"x"), references=tuple(references))
    refused(bob, message, "proposal of another sender", InvalidError)


# Pre-shared keys, and the end of a group


def test_a_pre_shared_key_is_needed_where_it_flows_in() -> None:
    alice, bob = FOUR.group("alice"), FOUR.group("bob")
    made = alice.commit(NOW, psks={b"id": b"key"})
    unchanged(bob, lambda: bob.receive(made.message, NOW), "is missing", StateError)
    unchanged(bob, lambda: bob.receive(made.message, NOW, {b"id": b"wrong"}), "confirmation tag", InvalidError)
    bob.receive(made.message, NOW, {b"id": b"key"})
    assert bob.epoch_authenticator == made.epoch_authenticator


def test_a_key_of_an_earlier_epoch_is_of_this_group_and_known() -> None:
    usage = ResumptionPSKUsage.APPLICATION
    for change, kind in (({"psk_group_id": b"other"}, WrongRecipientError), ({"psk_epoch": 77}, StaleError)):
        which = replace(psk(usage).psk, **change)
        refused(FOUR.group("bob"), commit_of(ALICE, PreSharedKey(which)), "a", kind)


def test_a_group_that_was_ended_is_not_used_any_more() -> None:
    alice, bob = FOUR.state("alice"), FOUR.group("bob")
    made = create_commit(alice, CommitSpec(proposals=(ReInit(b"new", 1, 6, ()),)), AROUND)
    bob.receive(public(alice, made.authenticated), NOW)
    for call in (lambda: bob.encrypt(b"x"), lambda: bob.commit(NOW), lambda: bob.propose_update(NOW)):
        unchanged(bob, call, "has ended", StateError)


def test_an_own_update_whose_key_is_lost_is_not_followed() -> None:
    bob, alice = FOUR.group("bob"), FOUR.group("alice")
    alice.receive(bob.propose_update(NOW), NOW)
    lost = MlsGroup(replace(bob._state, updates={}), Policy())
    refused(lost, alice.commit(NOW).message, "that it never sent", InvalidError)
