"""A group as an application uses it: pending commits, what is stored, what is erased."""

from dataclasses import replace

import pytest

from conclave.client.mls import (
    ApplicationMessage,
    CommitApplied,
    InvalidError,
    LimitError,
    MalformedMessageError,
    MlsGroup,
    OwnKeyPackage,
    OwnMessageError,
    ProposalArrived,
    StaleError,
    StateError,
    fingerprint,
)
from conclave.client.mls.codec import MAX_MESSAGE
from conclave.client.mls.proposals import Commit
from conclave.client.mls.secret_tree import RatchetKind
from conclave.client.mls.state import MAX_PENDING
from conclave.client.mls.stored import VERSION, encode_state
from tests.client.mls.data import NOW
from tests.client.mls.forging import cast, package, unchanged

FOUR = cast()


def four() -> list[MlsGroup]:
    return [FOUR.group(name) for name in ("alice", "bob", "carol", "dave")]


def agree(*groups: MlsGroup) -> None:
    assert len({(group.epoch, group.epoch_authenticator, group.tree_hash) for group in groups}) == 1


def private_parts(group: MlsGroup) -> set[bytes]:
    """Return every secret of the current epoch."""
    state = group._state
    secrets = {value for value in vars(state.secrets).values() if isinstance(value, bytes)}
    ratchets = {ratchet.secret for ratchet in state.secret_tree.ratchets.values()}
    return {*secrets, *state.private_keys.values(), *state.secret_tree.nodes.values(), *ratchets}


# Commits


def test_of_two_commits_the_first_that_comes_back_counts() -> None:
    alice, bob, carol, dave = four()
    hers, his = alice.commit(NOW, remove=[3]), bob.commit(NOW)
    for group in (alice, bob, carol):
        received = group.receive(his.message, NOW)
        assert isinstance(received, CommitApplied)
        assert received.own == (group is bob)
        assert list(group.pending) == []
        with pytest.raises(StaleError):
            group.receive(hers.message, NOW)
    dave.receive(his.message, NOW)
    agree(alice, bob, carol, dave)
    assert bob.epoch_authenticator == his.epoch_authenticator


def test_any_of_several_own_commits_can_be_the_one_that_counts() -> None:
    alice, bob, _, _ = four()
    eve, mallory = package("eve"), package("mallory")
    invites = [alice.commit(NOW, add=[own.key_package]) for own in (eve, mallory)]
    renewal = alice.commit(NOW)
    assert alice.pending == tuple(one.message for one in (*invites, renewal))
    assert invites[1].welcome is not None
    alice = MlsGroup.from_bytes(alice.to_bytes())
    for group in (alice, bob):
        group.receive(invites[1].message, NOW)
    joined, used = MlsGroup.join(invites[1].welcome, [eve, mallory], NOW)
    assert used is mallory
    agree(alice, bob, joined)
    assert list(alice.pending) == []


def test_an_own_commit_is_applied_by_hand_or_forgotten() -> None:
    alice, bob, _, _ = four()
    made, other = alice.commit(NOW), alice.commit(NOW, private=True)
    unchanged(alice, lambda: alice.apply_pending(NOW), "no such own commit", StateError)
    alice.drop_pending(made.message)
    assert list(alice.pending) == [other.message]
    alice.apply_pending(NOW)
    bob.receive(other.message, NOW)
    agree(alice, bob)
    alice.commit(NOW)
    alice.drop_pending()
    assert list(alice.pending) == []
    unchanged(alice, lambda: alice.apply_pending(NOW), "no such own commit", StateError)


def test_own_commits_that_never_come_back_do_not_fill_the_memory() -> None:
    alice = FOUR.group("alice")
    for _ in range(MAX_PENDING):
        alice.commit(NOW)
    unchanged(alice, lambda: alice.commit(NOW), "are pending", LimitError)


def test_every_commit_has_a_path() -> None:
    alice = FOUR.group("alice")
    for options in ({}, {"add": [package("eve").key_package]}, {"psks": {b"id": b"key"}}):
        alice.commit(NOW, **options)
        commit = alice._state.pending[-1].authenticated.content.content
        assert isinstance(commit, Commit)
        assert commit.path is not None


def test_a_commit_that_cannot_be_made_changes_nothing() -> None:
    alice = FOUR.group("alice")
    for remove, sentence in (([0], "removes itself"), ([9], "no member 9"), ([2, 2], "one member twice")):
        unchanged(alice, lambda remove=remove: alice.commit(NOW, remove=remove), sentence, InvalidError)  # type: ignore[misc]


def test_what_was_proposed_is_taken_along() -> None:
    alice, bob, carol, dave = four()
    messages = [
        bob.propose_update(NOW),
        carol.propose_remove(3, NOW),
        carol.propose_add(package("eve").key_package, NOW),
    ]
    for message in messages:
        for group in (alice, bob, carol, dave):
            try:
                assert isinstance(group.receive(message, NOW), ProposalArrived)
            except OwnMessageError:
                assert group in (bob, carol)
    for group in (alice, bob):
        unchanged(group, lambda group=group: group.encrypt(b"x"), "a commit is needed", StateError)  # type: ignore[misc]
    made = alice.commit(NOW)
    for group in (alice, bob, carol):
        group.receive(made.message, NOW)
        group.encrypt(b"x")
    agree(alice, bob, carol)
    assert carol.find(b"dave") is None
    assert carol.find(b"eve") is not None


def test_a_committer_prefers_a_removal_and_the_newest_update() -> None:
    alice, bob, carol, _ = four()
    messages = [bob.propose_update(NOW), bob.propose_update(NOW), bob.propose_update(NOW), carol.propose_remove(1, NOW)]
    for message in messages:
        alice.receive(message, NOW)
    assert len(alice._state.proposals) == 4
    alice.commit(NOW)
    commit = alice._state.pending[0].authenticated.content.content
    assert isinstance(commit, Commit)
    assert [entry.value for entry in commit.proposals] == [alice._state.proposals[3].reference]
    alice = FOUR.group("alice")
    for message in messages[:3]:
        alice.receive(message, NOW)
        carol.receive(message, NOW)
    made = alice.commit(NOW)
    for group in (alice, carol, bob):
        group.receive(made.message, NOW)
    agree(alice, bob, carol)


def test_what_was_proposed_but_cannot_be_committed_is_left_out() -> None:
    alice, bob, _, _ = four()
    alice.receive(bob.propose_remove(0, NOW), NOW)
    alice.encrypt(b"not blocked: only others can commit the own removal")
    assert alice.commit(NOW).epoch == alice.epoch + 1


# Messages


def test_what_is_encrypted_depends_on_nothing_that_is_pending() -> None:
    alice, bob, _, _ = four()
    made = alice.commit(NOW)
    message = alice.encrypt(b"before")
    got = bob.receive(message, NOW)
    assert isinstance(got, ApplicationMessage)
    bob.receive(made.message, NOW)
    alice.receive(made.message, NOW)
    assert isinstance(bob.receive(alice.encrypt(b"after"), NOW), ApplicationMessage)


def test_a_message_is_not_larger_than_what_is_read() -> None:
    alice = FOUR.group("alice")
    unchanged(alice, lambda: alice.encrypt(bytes(MAX_MESSAGE)), "more than", LimitError)


def test_authenticated_data_and_sender_are_told() -> None:
    alice, bob, _, _ = four()
    got = bob.receive(alice.encrypt(b"text", b"seen by all"), NOW)
    assert isinstance(got, ApplicationMessage)
    assert (got.data, got.authenticated_data, got.epoch) == (b"text", b"seen by all", alice.epoch)
    assert got.sender == alice.members()[0]
    assert fingerprint(got.sender.signature_key) == alice.fingerprint
    made = alice.commit(NOW, authenticated_data=b"why")
    received = bob.receive(made.message, NOW)
    assert isinstance(received, CommitApplied)
    assert received.authenticated_data == b"why"


def test_who_joins_reads_nothing_of_before_and_who_is_removed_nothing_of_after() -> None:
    alice, bob, _, dave = four()
    before, eve = alice.encrypt(b"before"), package("eve")
    made = alice.commit(NOW, add=[eve.key_package], remove=[3])
    assert made.welcome is not None
    joined, _ = MlsGroup.join(made.welcome, [eve], NOW)
    with pytest.raises(StaleError):
        joined.receive(before, NOW)
    alice.receive(made.message, NOW)
    bob.receive(made.message, NOW)
    after = alice.encrypt(b"after")
    with pytest.raises(StaleError):
        dave.receive(after, NOW)
    assert isinstance(joined.receive(after, NOW), ApplicationMessage)


def test_an_exported_secret_is_the_same_for_all_of_an_epoch() -> None:
    alice, bob, _, _ = four()
    one = alice.export_secret("label", b"context", 48)
    assert one == bob.export_secret("label", b"context", 48)
    assert len(one) == 48
    others = alice.export_secret("other", b"context", 48), alice.export_secret("label", b"other", 48)
    alice.commit(NOW)
    alice.apply_pending(NOW)
    assert len({one, *others, alice.export_secret("label", b"context", 48)}) == 4
    unchanged(alice, lambda: alice.export_secret("label", b"", 1 << 20), "0 or too great", LimitError)


# What is stored, and what is erased


def test_a_group_goes_on_from_what_was_stored_at_any_moment() -> None:
    alice, bob, carol, _ = four()
    late = [carol.encrypt(b"%d" % n) for n in range(3)]
    bob.receive(late[2], NOW)
    message = bob.propose_update(NOW)
    alice.receive(message, NOW)
    carol.receive(message, NOW)
    bob = MlsGroup.from_bytes(bob.to_bytes())
    made = alice.commit(NOW)
    alice = MlsGroup.from_bytes(alice.to_bytes())
    for group in (alice, bob, carol):
        group.receive(made.message, NOW)
    bob = MlsGroup.from_bytes(bob.to_bytes())
    for n in (0, 1):
        got = bob.receive(late[n], NOW)
        assert isinstance(got, ApplicationMessage)
    agree(alice, bob, carol)


def test_another_version_of_the_stored_form_is_refused() -> None:
    stored = FOUR.stored["alice"]
    own = package("eve").to_bytes()
    with pytest.raises(MalformedMessageError, match="another version"):
        MlsGroup.from_bytes(bytes([VERSION + 1]) + stored[1:])
    with pytest.raises(MalformedMessageError, match="another version"):
        OwnKeyPackage.from_bytes(b"\x09" + own[1:])
    with pytest.raises(MalformedMessageError):
        MlsGroup.from_bytes(stored + b"x")
    state = FOUR.state("alice")
    with pytest.raises(MalformedMessageError, match="outside its tree"):
        MlsGroup.from_bytes(encode_state(replace(state, private_keys={99: b"x"})))


def test_used_message_keys_are_not_stored() -> None:
    alice, bob, _, _ = four()
    message = alice.encrypt(b"text")
    key, _ = bob._state.secret_tree.take(0, RatchetKind.APPLICATION, 0)
    roots = set(bob._state.secret_tree.nodes.values())
    bob.receive(message, NOW)
    stored, sent = bob.to_bytes(), alice.to_bytes()
    assert key.key not in stored
    assert key.key not in sent
    assert not roots & set(bob._state.secret_tree.nodes.values())
    assert not any(secret in stored for secret in roots)


def test_secrets_of_an_epoch_go_with_it() -> None:
    """But for what reads late messages, and that goes after three more."""
    alice, bob, _, _ = four()
    old = private_parts(bob) - {bob._state.private_keys.get(-1)}
    kept_for_late = {bob._state.secrets.sender_data_secret, bob._state.secrets.resumption_psk}
    kept_for_late |= set(bob._state.secret_tree.nodes.values())
    for epoch in range(5):
        made = bob.commit(NOW)
        for group in (alice, bob):
            group.receive(made.message, NOW)
        stored = bob.to_bytes()
        still = {secret for secret in old if secret in stored}
        assert still <= kept_for_late
        assert bool(still) == (epoch < 3)


def test_what_is_kept_of_pending_commits_goes_with_the_epoch() -> None:
    alice, bob, _, _ = four()
    made = alice.commit(NOW)
    pending = alice._state.pending[0]
    alice.receive(bob.commit(NOW).message, NOW)
    stored = alice.to_bytes()
    for secret in (pending.leaf_private, pending.path_secret, made.message):
        assert secret not in stored


def test_joining_leaves_no_init_key_in_the_group() -> None:
    eve = package("eve")
    made = FOUR.group("alice").commit(NOW, add=[eve.key_package])
    assert made.welcome is not None
    group, _ = MlsGroup.join(made.welcome, [eve], NOW)
    assert eve.init_private not in group.to_bytes()
    assert eve.encryption_private in group.to_bytes()
    group.commit(NOW)
    group.apply_pending(NOW)
    assert eve.encryption_private not in group.to_bytes()
