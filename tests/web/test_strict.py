"""The browser's client rejects the same invalid messages as the Python client."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from conclave.client.mls import MlsGroup
from conclave.client.mls.codec import vector
from conclave.client.mls.credentials import Extension, ExtensionType, ExternalSender, basic
from conclave.client.mls.errors import MlsError
from conclave.client.mls.framing import Sender, SenderType
from conclave.client.mls.proposals import Commit, GroupContextExtensions, ProposalOrRef, Remove
from conclave.client.mls.state import GroupState
from tests.client.mls.actors import TAKES, Here, Peer, PeerProcess
from tests.client.mls.data import NOW
from tests.client.mls.forging import authenticated, commit_of, public, renewal
from tests.web.node import NODE, needs_node

pytestmark = needs_node


@pytest.fixture
def peer(programs: Path) -> Iterator[Peer]:
    process = PeerProcess(NODE or "node", programs / "peer.mjs")
    yield Peer(process)
    process.close()


def requires(data: bytes) -> GroupContextExtensions:
    return GroupContextExtensions((Extension(ExtensionType.REQUIRED_CAPABILITIES, data),))


def without_path(state: GroupState) -> bytes:
    return public(state, authenticated(state, Commit((ProposalOrRef(requires(bytes(3))),), None)))


def with_an_extra_ciphertext(state: GroupState) -> bytes:
    path = renewal(state)[1]
    first = path.nodes[0]
    more = (*first.encrypted_path_secret, first.encrypted_path_secret[0])
    return commit_of(state, path=replace(path, nodes=(replace(first, encrypted_path_secret=more), *path.nodes[1:])))


def with_trailing_bytes(state: GroupState) -> bytes:
    return commit_of(state, requires(bytes(4)))


def with_an_unknown_type(state: GroupState) -> bytes:
    return commit_of(state, requires(b"\2\0\0\0\0"))


@pytest.mark.parametrize(
    ("forge", "sentence"),
    [
        (without_path, "lacks its path"),
        (with_an_extra_ciphertext, "encrypted to the wrong recipients"),
        (with_trailing_bytes, "required capabilities are malformed"),
        (with_an_unknown_type, "lacks required capabilities"),
    ],
)
def test_both_reject_a_commit(peer: Peer, forge: Callable[[GroupState], bytes], sentence: str) -> None:
    first, second = Here(), Here()
    first.create()
    add_all(first, peer, second)
    forged = forge(first.held._state)
    with pytest.raises(AssertionError, match=sentence):
        peer.receive(forged)
    with pytest.raises(MlsError):
        second.receive(forged)
    renewed, _ = first.commit([], [], private=True)
    for member in (first, peer, second):
        member.receive(renewed)
    assert peer.sight() == second.sight()


def test_both_accept_a_proposal_of_an_external_sender(peer: Peer) -> None:
    first, second = Here(), Here()
    outside = first.suite.signature_key_pair()
    sender = ExternalSender(outside.public, basic(bytes(16)))
    senders = Extension(ExtensionType.EXTERNAL_SENDERS, vector([sender]))
    first.group = MlsGroup.create(first.own(), NOW, group_id=bytes(16), policy=TAKES, extensions=[senders])
    add_all(first, peer, second)
    state = first.held._state
    said = authenticated(state, Remove(second.index()), sender=Sender(SenderType.EXTERNAL, 0), private=outside.private)
    proposal = public(state, said)
    for each in (first, peer):
        each.receive(proposal)
    removed, _ = first.commit([], [], private=True)
    for each in (first, peer):
        each.receive(removed)
    assert peer.sight() == first.sight()
    assert len(first.sight()[3]) == 2


def add_all(first: Here, peer: Peer, second: Here) -> None:
    """The first client, which is in a group, adds the others."""
    for newcomer in (peer, second):
        commit, welcome = first.commit([newcomer.key_package()], [], private=False)
        assert welcome is not None
        first.receive(commit)
        if newcomer is second:
            peer.receive(commit)
        newcomer.join(welcome)
