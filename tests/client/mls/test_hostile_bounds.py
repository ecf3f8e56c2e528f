"""Bounds on what others send, keys that give no secret, extensions by place, and proposals that cannot be committed."""

from contextlib import suppress
from dataclasses import replace
from unittest import mock

import pytest

from conclave.client.mls import InvalidError, LimitError, MlsError, MlsGroup, Policy
from conclave.client.mls.codec import MAX_EPOCH, MAX_SHORT, ByteReader, decode, opaque, uint64, vector
from conclave.client.mls.commits import create_commit
from conclave.client.mls.credentials import DEFAULT_PROPOSALS, PLACES, Extension, check_places, read_extensions
from conclave.client.mls.errors import convert_errors
from conclave.client.mls.key_packages import KeyPackage
from conclave.client.mls.key_schedule import GroupContext, PreSharedKeyID, PSKType
from conclave.client.mls.nodes import MAX_LEAF, LeafNode
from conclave.client.mls.proposals import Add, PreSharedKey, ProposalType, ReInit, Remove
from conclave.client.mls.state import MAX_CACHED_BYTES
from conclave.client.mls.suites import SUITES, CipherSuite
from tests.client.mls import forging
from tests.client.mls.data import NOW
from tests.client.mls.forging import SUITE, cast, package, public, refused, repackaged

FOUR = cast()
BOB = FOUR.state("bob")


@pytest.mark.parametrize("suite", SUITES.values(), ids=lambda suite: suite.name)
def test_keys_of_small_order_are_those_that_give_no_secret(suite: CipherSuite) -> None:
    """The list agrees with what the curve computes, also for numbers that are not reduced."""
    kem, private = suite.kem, b"\x40" * suite.kem.size
    numbers = {n for u in kem.low_order for n in (u, u + kem.prime)} | {2, 3, 5, 9}
    for number in (n for n in numbers if n < 1 << 8 * kem.size):
        key = number.to_bytes(kem.size, "little")
        try:
            kem.exchange(private, key)
        except InvalidError:
            with pytest.raises(InvalidError, match="of small order"):
                kem.check_public(key, "it has a key")
        else:
            kem.check_public(key, "it has a key")


@pytest.mark.parametrize("change", ["encryption_key", "init_key"])
def test_a_key_package_with_a_key_that_gives_no_secret_is_not_added(change: str) -> None:
    own = package("eve")
    zero = bytes(SUITE.kem.size)
    if change == "init_key":
        bad = replace(own.key_package, init_key=zero).signed(own.signature_private)
    else:
        bad = repackaged(own, encryption_key=zero)
    with pytest.raises(InvalidError, match="of small order"):
        FOUR.group("alice").commit(NOW, add=[bad])


def test_an_epoch_has_up_to_62_bits() -> None:
    assert decode(uint64(MAX_EPOCH), ByteReader.epoch) == MAX_EPOCH < 1 << 63
    with pytest.raises(LimitError, match="later than"):
        decode(uint64(MAX_EPOCH + 1), ByteReader.epoch)


def test_ids_and_hashes_of_a_context_are_bounded() -> None:
    for field in ("group_id", "tree_hash", "confirmed_transcript_hash"):
        context = replace(BOB.context, **{field: bytes(MAX_SHORT)})  # type: ignore[arg-type]
        assert decode(context.encode(), GroupContext.decode) == context
        with pytest.raises(LimitError):
            decode(replace(context, **{field: bytes(MAX_SHORT + 1)}).encode(), GroupContext.decode)  # type: ignore[arg-type]


def test_a_leaf_and_a_list_of_extensions_are_bounded() -> None:
    leaf = replace(package("eve").key_package.leaf_node, extensions=(Extension(1, bytes(MAX_LEAF)),))
    with pytest.raises(LimitError, match="a leaf has more"):
        decode(leaf.encode(), LeafNode.decode)
    with pytest.raises(LimitError, match="extensions"):
        decode(vector([Extension(0xF00D, bytes(20_000))]), read_extensions)


@pytest.mark.parametrize("place", sorted(set(PLACES.values())))
def test_an_extension_is_taken_only_where_it_belongs(place: str) -> None:
    """RFC 9420 section 17.3."""
    for extension_type, belongs in PLACES.items():
        if belongs == place:
            check_places([Extension(extension_type, b"")], place)
        else:
            with pytest.raises(InvalidError, match="belongs elsewhere"):
                check_places([Extension(extension_type, b"")], place)
    check_places([Extension(0xF00D, b"")], place)


def test_a_leaf_with_an_extension_of_a_group_is_refused() -> None:
    bad: KeyPackage = repackaged(package("eve"), extensions=(Extension(5, opaque(b"")),))
    refused(FOUR.group("alice"), forging.commit_of(BOB, Add(bad)), "belongs elsewhere")


@pytest.mark.parametrize(
    "proposal", [ReInit(b"new", 1, 1, ()), PreSharedKey(PreSharedKeyID(PSKType.EXTERNAL, bytes(32)))]
)
def test_what_the_application_has_no_use_for_is_neither_kept_nor_committed(proposal: ReInit | PreSharedKey) -> None:
    policy = Policy(proposals=DEFAULT_PROPOSALS - {ProposalType.PSK, ProposalType.REINIT})
    alone = public(BOB, forging.authenticated(BOB, proposal))
    refused(FOUR.group("alice", policy), alone, "not allowed")
    refused(FOUR.group("alice", policy), forging.commit_of(BOB, proposal), "not allowed")


def test_the_proposals_of_one_sender_that_wait_are_bounded_by_their_bytes() -> None:
    alice = FOUR.group("alice")
    with suppress(LimitError):
        for number in range(64):
            own = package(f"eve {number}")
            extensions = (Extension(0xF00D, bytes(15_000)),)
            large = replace(own.key_package, extensions=extensions).signed(own.signature_private)
            alice.receive(public(BOB, forging.authenticated(BOB, Add(large))), NOW)
    assert 15_000 * len(alice._state.proposals) < MAX_CACHED_BYTES
    assert 10 < len(alice._state.proposals) < 20
    assert MlsGroup.from_bytes(alice.to_bytes()).to_bytes() == alice.to_bytes()


def test_a_proposal_is_sound_only_if_the_whole_commit_can_be_made() -> None:
    alice = FOUR.group("alice")
    with mock.patch("conclave.client.mls.proposal_cache.create_commit", side_effect=InvalidError("the path fails")):
        alice.receive(public(BOB, forging.authenticated(BOB, Add(package("eve").key_package))), NOW)
    assert not alice.has_proposals
    alice.encrypt(b"goes on")


def test_a_commit_that_fails_with_proposals_is_made_without_them() -> None:
    alice = FOUR.group("alice")
    alice.receive(public(BOB, forging.authenticated(BOB, Add(package("eve").key_package))), NOW)
    assert alice.has_proposals

    def fails(state: object, spec: object, inputs: object) -> object:
        if spec.references:  # type: ignore[attr-defined]
            raise InvalidError("together they fail")
        return create_commit(state, spec, inputs)  # type: ignore[arg-type]

    with mock.patch("conclave.client.mls.group.create_commit", side_effect=fails):
        made = alice.commit(NOW, remove=[BOB.own_index])
    alice.receive(made.message, NOW)
    assert BOB.own_index not in alice.members()
    alice.encrypt(b"goes on")


def test_whatever_a_message_leads_to_refuses_it() -> None:
    alice = FOUR.group("alice")
    message = public(BOB, forging.authenticated(BOB, Remove(2)))
    with mock.patch("conclave.client.mls.group.receive_public", side_effect=OverflowError("too large")):
        refused(alice, message, "cannot be processed", MlsError)

    @convert_errors
    def recurses() -> None:
        recurses()

    with pytest.raises(MlsError):
        recurses()
