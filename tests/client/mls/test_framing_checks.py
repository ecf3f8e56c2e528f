"""What is checked of every message (RFC 9420 section 6): each test breaks exactly one thing."""

from dataclasses import replace

import pytest

from conclave.client.mls import (
    ApplicationMessage,
    CommitApplied,
    InvalidError,
    LimitError,
    MalformedMessageError,
    MlsGroup,
    OutdatedStateError,
    OwnMessageError,
    Policy,
    ProposalArrived,
    ReplayedError,
    StaleError,
    StateError,
    WrongRecipientError,
    decode_message,
    encode_message,
)
from conclave.client.mls.codec import vector
from conclave.client.mls.credentials import Extension, ExtensionType, ExternalSender, basic
from conclave.client.mls.framing import (
    PublicMessage,
    Sender,
    SenderType,
    WireFormat,
    encode_content,
    member,
)
from conclave.client.mls.proposals import Add, Commit, GroupContextExtensions, Proposal, Remove, Update
from conclave.client.mls.protection import SenderData, padding_for, protect_private, sender_data_key
from conclave.client.mls.secret_tree import RatchetKind
from conclave.client.mls.state import MAX_CACHED_OF_ONE
from tests.client.mls.data import NOW
from tests.client.mls.forging import (
    SUITE,
    Cast,
    authenticated,
    cast,
    package,
    private_message,
    public,
    refused,
    renewal,
)

OUTSIDER = SUITE.signature_key_pair()


@pytest.fixture(scope="module")
def four() -> Cast:
    return cast()


@pytest.fixture(scope="module")
def watched() -> Cast:
    senders = vector([ExternalSender(OUTSIDER.public, basic(b"outsider"))])
    return cast([Extension(ExtensionType.EXTERNAL_SENDERS, senders)])


def test_a_proper_commit_is_taken(four: Cast) -> None:
    bob, alice = four.group("bob"), four.group("alice")
    made = alice.commit(NOW)
    assert isinstance(bob.receive(made.message, NOW), CommitApplied)
    assert bob.epoch_authenticator == made.epoch_authenticator


def test_a_message_signed_by_another_member_is_refused(four: Cast) -> None:
    alice, carol = four.state("alice"), four.state("carol")
    said = authenticated(alice, Remove(3), private=carol.signature_private)
    refused(four.group("bob"), public(alice, said), "signature of a message", InvalidError)


def test_a_signature_does_not_hold_in_another_group_or_epoch(four: Cast) -> None:
    alice = four.state("alice")
    for context in (replace(alice.context, tree_hash=b"x"), replace(alice.context, confirmed_transcript_hash=b"x")):
        said = authenticated(alice, Remove(3), context=context)
        refused(four.group("bob"), public(alice, said), "signature of a message", InvalidError)


def test_a_wrong_membership_tag_is_refused(four: Cast) -> None:
    alice = four.state("alice")
    said = authenticated(alice, Remove(3))
    message = PublicMessage(said.content, said.auth, b"x" * 32)
    refused(four.group("bob"), encode_message(message), "membership tag", InvalidError)


def test_a_wrong_confirmation_tag_is_refused(four: Cast) -> None:
    alice = four.state("alice")
    said, _ = renewal(alice)
    said = replace(said, auth=replace(said.auth, confirmation_tag=b"x" * 32))
    refused(four.group("bob"), public(alice, said), "confirmation tag", InvalidError)


def test_messages_of_other_groups_and_epochs_are_refused(four: Cast) -> None:
    alice, bob = four.state("alice"), four.group("bob")
    for change, kind in (
        ({"group_id": b"other"}, WrongRecipientError),
        ({"epoch": 9}, StaleError),
        ({"epoch": 0}, StaleError),
    ):
        context = replace(alice.context, **change)
        refused(bob, public(alice, authenticated(alice, Remove(3), context=context)), "a", kind)
        secret = authenticated(alice, b"hi", context=context, wire_format=WireFormat.PRIVATE_MESSAGE)
        refused(bob, private_message(alice, secret), "a", kind)


def test_a_change_of_a_past_epoch_is_refused_also_if_encrypted(four: Cast) -> None:
    alice, bob = four.group("alice"), four.group("bob")
    late = alice.propose_remove(3, NOW, private=True)
    old = alice._state
    bob.receive(four.group("carol").commit(NOW).message, NOW)
    refused(bob, late, "of past epoch", StaleError)
    refused(bob, public(old, authenticated(old, Remove(3))), "proposal or commit is of", StaleError)


def test_application_data_must_be_encrypted(four: Cast) -> None:
    alice = four.state("alice")
    said = authenticated(alice, b"hi")
    message = encode_message(PublicMessage(said.content, said.auth, b"x" * 32))
    refused(four.group("bob"), message, "application data is not encrypted", InvalidError)


def private(four: Cast, plain_end: bytes = b"", index: int = 0, guard: bytes = b"1234") -> bytes:
    """Encrypt "hi" of Alice by hand: with other bytes at its end, or another sender."""
    alice = four.state("alice")
    said = authenticated(alice, b"hi", wire_format=WireFormat.PRIVATE_MESSAGE)
    key, _ = alice.secret_tree.take(0, RatchetKind.APPLICATION, 0)
    sealed, _ = protect_private(SUITE, said, alice.secret_tree, alice.secrets.sender_data_secret)
    nonce = bytes(a ^ b for a, b in zip(key.nonce, guard.ljust(12, b"\0"), strict=True))
    plain = encode_content(b"hi") + said.auth.encode() + plain_end
    ciphertext = SUITE.aead.seal(key.key, nonce, sealed.content_aad(), plain)
    data = SenderData(index, 0, guard).encode()
    keys = sender_data_key(SUITE, alice.secrets.sender_data_secret, ciphertext)
    encrypted = SUITE.aead.seal(*keys, sealed.sender_data_aad(), data)
    return encode_message(replace(sealed, ciphertext=ciphertext, encrypted_sender_data=encrypted))


def test_padding_is_all_zeros(four: Cast) -> None:
    for end in (b"", bytes(40)):
        got = four.group("bob").receive(private(four, end), NOW)
        assert isinstance(got, ApplicationMessage)
        assert got.data == b"hi"
    for end in (b"\1", bytes(10) + b"\1", b"\1" + bytes(10)):
        refused(four.group("bob"), private(four, end), "padding", MalformedMessageError)


def test_padding_comes_in_steps() -> None:
    assert {n + padding_for(n) for n in range(1_500)} == {
        *range(32, 257, 32),
        *range(320, 513, 64),
        *range(640, 1_025, 128),
        *range(1_280, 1_537, 256),
    }


def test_a_sender_must_be_in_the_group(four: Cast) -> None:
    for index in (9, 1 << 31):
        refused(four.group("bob"), private(four, index=index), "who is not in the group", InvalidError)


def test_a_member_cannot_speak_for_another(four: Cast) -> None:
    bob, carol = four.group("bob"), four.state("carol")
    said = authenticated(carol, b"i am alice", sender=member(0), wire_format=WireFormat.PRIVATE_MESSAGE)
    refused(bob, private_message(carol, said), "signature of a message", InvalidError)
    assert isinstance(bob.receive(four.group("alice").encrypt(b"hi"), NOW), ApplicationMessage)


def test_a_message_is_read_once(four: Cast) -> None:
    alice, bob = four.group("alice"), four.group("bob")
    messages = [alice.encrypt(b"%d" % n) for n in range(4)]
    for n in (2, 0, 3, 1):
        got = bob.receive(messages[n], NOW)
        assert isinstance(got, ApplicationMessage)
        assert got.data == b"%d" % n
        refused(bob, messages[n], "read before", ReplayedError)
    bob.receive(four.group("carol").commit(NOW).message, NOW)
    refused(bob, messages[0], "read before", ReplayedError)


def test_a_message_may_be_1024_ahead_but_not_more(four: Cast) -> None:
    alice, bob = four.group("alice"), four.group("bob")
    first = alice.encrypt(b"first")
    state = alice._state
    for _ in range(1_023):
        _, tree = state.secret_tree.next_key(0, RatchetKind.APPLICATION)
        state = replace(state, secret_tree=tree)
    alice = MlsGroup(state, Policy())
    last, after = alice.encrypt(b"last"), alice.encrypt(b"after")
    refused(bob, after, "missing before", LimitError)
    assert isinstance(bob.receive(last, NOW), ApplicationMessage)
    assert isinstance(bob.receive(first, NOW), ApplicationMessage)
    assert len(bob._state.secret_tree.ratchets[0, RatchetKind.APPLICATION].skipped) == 1_023


def test_late_messages_are_read_for_three_epochs(four: Cast) -> None:
    alice, bob, carol = four.group("alice"), four.group("bob"), four.group("carol")
    late = [alice.encrypt(b"%d" % n) for n in range(4)]
    for n in range(3):
        bob.receive(message := carol.commit(NOW).message, NOW)
        carol.receive(message, NOW)
        got = bob.receive(late[n], NOW)
        assert isinstance(got, ApplicationMessage)
        assert (got.data, got.epoch, got.sender.credential) == (b"%d" % n, alice.epoch, basic(b"alice"))
    bob.receive(carol.commit(NOW).message, NOW)
    refused(bob, late[3], "no keys", StaleError)


def test_a_late_message_is_signed_by_its_sender_too(four: Cast) -> None:
    bob, carol = four.group("bob"), four.state("carol")
    said = authenticated(carol, b"i am alice", sender=member(0), wire_format=WireFormat.PRIVATE_MESSAGE)
    forged, real = private_message(carol, said), four.group("alice").encrypt(b"hi")
    bob.receive(four.group("carol").commit(NOW).message, NOW)
    refused(bob, forged, "signature of a message", InvalidError)
    assert isinstance(bob.receive(real, NOW), ApplicationMessage)


def test_a_message_of_an_epoch_to_come_is_told_from_one_that_is_over(four: Cast) -> None:
    alice, bob = four.group("alice"), four.group("bob")
    made = alice.commit(NOW)
    alice.receive(made.message, NOW)
    message = alice.encrypt(b"hi")
    refused(bob, message, "which the group has not reached", StaleError)
    bob.receive(made.message, NOW)
    assert isinstance(bob.receive(message, NOW), ApplicationMessage)


def test_own_messages_are_not_decrypted(four: Cast) -> None:
    alice = four.group("alice")
    refused(alice, alice.encrypt(b"hi"), "own", OwnMessageError)
    refused(alice, alice.propose_update(NOW), "own", OwnMessageError)


def test_what_the_own_key_signed_elsewhere_tells_that_the_state_is_an_old_one(four: Cast) -> None:
    for since in range(3):
        old, new = four.group("alice"), four.group("alice")
        for _ in range(since):
            old.encrypt(b"the same in both")
            new.encrypt(b"the same in both")
        refused(old, new.encrypt(b"hi"), "not made from this state", OutdatedStateError)
        refused(old, new.commit(NOW).message, "not made from this state", OutdatedStateError)


def test_a_member_cannot_pretend_that_a_state_is_an_old_one(four: Cast) -> None:
    alice, carol = four.group("alice"), four.state("carol")
    said = authenticated(carol, b"i am alice", sender=member(0), wire_format=WireFormat.PRIVATE_MESSAGE)
    refused(alice, private_message(carol, said), "signature of a message", InvalidError)
    commit = renewal(carol)[0].content.content
    refused(alice, public(carol, authenticated(carol, commit, sender=member(0))), "signature of a message")


def joining(group: MlsGroup) -> bytes:
    return MlsGroup.join_external(group.group_info(), package("eve"), NOW)[1]


def test_a_change_that_lost_is_told_from_one_that_was_moved_to_a_past_epoch(four: Cast) -> None:
    alice, bob, carol = (four.group(each) for each in ("alice", "bob", "carol"))
    lost, join = carol.commit(NOW).message, joining(carol)
    first = alice.commit(NOW).message
    bob.receive(first, NOW)
    for each in (lost, join):
        refused(bob, each, "is of epoch", StaleError)
    carol.receive(first, NOW)
    for each in (carol.commit(NOW).message, joining(carol)):
        moved = bytearray(each)
        place = moved.index(carol.epoch.to_bytes(8, "big"))
        moved[place + 7] -= 1
        refused(bob, bytes(moved), "signature of a message", InvalidError)


def test_what_is_sent_to_nobody_in_a_group_is_refused_there(four: Cast) -> None:
    for message in (encode_message(package("eve").key_package), four.group("bob").group_info()):
        refused(four.group("alice"), message, "not sent to groups", MalformedMessageError)


# Senders outside the group


def external(four: Cast, proposal: Proposal, index: int = 0, key: bytes = OUTSIDER.private) -> bytes:
    sender = Sender(SenderType.EXTERNAL, index)
    return public(alice := four.state("alice"), authenticated(alice, proposal, sender=sender, private=key))


def test_an_external_sender_may_propose(watched: Cast) -> None:
    bob = watched.group("bob")
    assert isinstance(bob.receive(external(watched, Remove(3)), NOW), ProposalArrived)
    with pytest.raises(StateError, match="a commit is needed"):
        bob.encrypt(b"hi")
    carol = watched.group("carol")
    carol.receive(external(watched, Remove(3)), NOW)
    carol.receive(bob.commit(NOW).message, NOW)
    assert sorted(carol.members()) == [0, 1, 2]


def test_an_external_sender_must_be_in_the_list_and_sign(watched: Cast, four: Cast) -> None:
    refused(four.group("bob"), external(four, Remove(3)), "not in the group's list", InvalidError)
    refused(watched.group("bob"), external(watched, Remove(3), index=1), "not in the group's list", InvalidError)
    key = SUITE.signature_key_pair().private
    refused(watched.group("bob"), external(watched, Remove(3), key=key), "signature of a message", InvalidError)


def test_an_external_sender_may_not_update_or_commit(watched: Cast) -> None:
    leaf = watched.state("alice").tree.member(0)
    refused(watched.group("bob"), external(watched, Update(leaf)), "only members", InvalidError)
    said = authenticated(
        alice := watched.state("alice"), Commit((), None), sender=Sender(SenderType.EXTERNAL), private=OUTSIDER.private
    )
    refused(watched.group("bob"), public(alice, said), "only members", InvalidError)


def test_whoever_is_outside_may_only_ask_to_be_added(four: Cast) -> None:
    alice, eve = four.state("alice"), package("eve")
    sender = Sender(SenderType.NEW_MEMBER_PROPOSAL)
    said = authenticated(alice, Remove(3), sender=sender, private=eve.signature_private)
    refused(four.group("bob"), public(alice, said), "other than its Add", InvalidError)
    said = authenticated(alice, Add(eve.key_package), sender=sender, private=OUTSIDER.private)
    refused(four.group("bob"), public(alice, said), "signature of a message", InvalidError)


@pytest.mark.parametrize("admit", [False, True])
def test_who_asks_to_be_added_is_added_only_where_that_is_wanted(four: Cast, admit: bool) -> None:
    bob, eve = four.group("bob", Policy(admit_new_members=admit)), package("eve")
    sender = Sender(SenderType.NEW_MEMBER_PROPOSAL)
    said = authenticated(
        alice := four.state("alice"), Add(eve.key_package), sender=sender, private=eve.signature_private
    )
    message = public(alice, said)
    assert isinstance(bob.receive(message, NOW), ProposalArrived)
    if not admit:
        bob.encrypt(b"hi")
    made = bob.commit(NOW)
    carol = four.group("carol")
    carol.receive(message, NOW)
    carol.receive(made.message, NOW)
    assert (carol.find(b"eve") is not None) == admit
    assert (made.welcome is not None) == admit


def test_a_new_member_must_commit_with_its_keys(four: Cast) -> None:
    alice = four.state("alice")
    sender = Sender(SenderType.NEW_MEMBER_COMMIT)
    for content in (Remove(3), Commit((), None)):
        said = authenticated(alice, content, sender=sender)
        refused(four.group("bob"), public(alice, said), "commit with a path", InvalidError)


def test_a_new_members_commit_is_signed_by_its_new_leaf(four: Cast) -> None:
    _, message = MlsGroup.join_external(four.group("alice").group_info(), package("eve"), NOW)
    body = decode_message(message)
    assert isinstance(body, PublicMessage)
    broken = replace(body, auth=replace(body.auth, signature=bytes(64)))
    refused(four.group("bob"), encode_message(broken), "signature of a message", InvalidError)


# Bounds


def test_a_member_cannot_fill_the_memory_with_proposals(four: Cast) -> None:
    alice, bob = four.state("alice"), four.group("bob")
    for n in range(MAX_CACHED_OF_ONE):
        extensions = (Extension(ExtensionType.APPLICATION_ID, b"%d" % n),)
        bob.receive(public(alice, authenticated(alice, GroupContextExtensions(extensions))), NOW)
    refused(bob, public(alice, authenticated(alice, Remove(3))), "too many proposals", LimitError)
    assert isinstance(bob.receive(four.group("carol").propose_remove(3, NOW), NOW), ProposalArrived)


def test_a_proposal_that_comes_twice_counts_once(four: Cast) -> None:
    bob, message = four.group("bob"), four.group("carol").propose_remove(3, NOW)
    bob.receive(message, NOW)
    before = bob.to_bytes()
    bob.receive(message, NOW)
    assert bob.to_bytes() == before


def test_nothing_is_read_after_the_own_removal(four: Cast) -> None:
    alice, dave = four.group("alice"), four.group("dave")
    made = alice.commit(NOW, remove=[3])
    late = four.group("carol").encrypt(b"late")
    received = dave.receive(made.message, NOW)
    assert isinstance(received, CommitApplied)
    assert received.effect is not None
    assert received.effect.removed_self
    assert not dave.is_member
    for call in (lambda: dave.receive(late, NOW), lambda: dave.encrypt(b"x"), dave.to_bytes, dave.members):
        with pytest.raises(StateError, match="no member"):
            call()


def test_a_removal_is_believed_only_if_it_is_signed(four: Cast) -> None:
    alice = four.state("alice")
    said = authenticated(alice, Commit((), renewal(alice)[1]), private=four.state("carol").signature_private)
    refused(four.group("dave"), public(alice, said), "signature of a message", InvalidError)
