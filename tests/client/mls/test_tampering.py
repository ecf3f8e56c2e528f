"""A bit flipped anywhere in a message, by the server or by anybody on the way: nothing is taken, nothing changes."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from conclave.client.mls import KeyPackage, MlsError, MlsGroup, decode_message, encode_message
from conclave.client.mls.codec import decode
from conclave.client.mls.framing import PublicMessage, WireFormat
from conclave.client.mls.proposals import Commit, Remove
from tests.client.mls.data import NOW
from tests.client.mls.forging import authenticated, cast, package, private_message, public, refused
from tests.support import sample

FOUR = cast()
EVE = package("eve")
FLIPS = sample.amount(300, 30)


def flipped(message: bytes, what: str) -> list[bytes]:
    """Return the message with one bit flipped, in many ways: each byte at least once, if it is short enough."""
    chance = sample.chance(what)
    bits = [8 * byte + chance.randrange(8) for byte in range(len(message))]
    chosen = sample.some(bits, FLIPS, what) if len(bits) >= FLIPS else chance.sample(range(8 * len(message)), FLIPS)
    return [_flip(message, bit) for bit in chosen]


def _flip(message: bytes, bit: int) -> bytes:
    changed = bytearray(message)
    changed[bit // 8] ^= 1 << (bit % 8)
    return bytes(changed)


def of_alice(kind: str) -> bytes:
    alice = FOUR.group("alice")
    match kind:
        case "application":
            return alice.encrypt(b"a message", b"data")
        case "proposal":
            return alice.propose_remove(3, NOW)
        case "private proposal":
            return alice.propose_update(NOW, private=True)
        case "private commit":
            return alice.commit(NOW, private=True).message
        case "removal":
            return alice.commit(NOW, remove=[1]).message
        case "external commit":
            return MlsGroup.join_external(alice.group_info(), EVE, NOW)[1]
        case _:
            return alice.commit(NOW, add=[EVE.key_package], remove=[3]).message


@pytest.mark.parametrize(
    "kind",
    ["application", "proposal", "private proposal", "commit", "private commit", "removal", "external commit"],
)
def test_no_message_to_the_group_is_taken(kind: str) -> None:
    bob, message = FOUR.group("bob"), of_alice(kind)
    before = bob.to_bytes()
    for changed in flipped(message, kind):
        with pytest.raises(MlsError):
            bob.receive(changed, NOW)
        assert bob.to_bytes() == before
    bob.receive(message, NOW)


def _welcome() -> bytes:
    welcome = FOUR.group("alice").commit(NOW, add=[EVE.key_package]).welcome
    assert welcome is not None
    return welcome


def _add(message: bytes) -> None:
    key_package = decode_message(message)
    if not isinstance(key_package, KeyPackage):
        raise MlsError("another kind of message")
    alice = FOUR.group("alice")
    before = alice.to_bytes()
    try:
        alice.commit(NOW, add=[key_package])
    finally:
        assert alice.to_bytes() == before


@pytest.mark.parametrize(
    ("kind", "make", "use"),
    [
        ("welcome", _welcome, lambda message: MlsGroup.join(message, [EVE], NOW)),
        ("group info", FOUR.group("alice").group_info, lambda message: MlsGroup.join_external(message, EVE, NOW)),
        ("key package", lambda: encode_message(EVE.key_package), _add),
    ],
)
def test_nobody_comes_in_by_it(kind: str, make: Callable[[], bytes], use: Callable[[bytes], object]) -> None:
    for changed in flipped(make(), kind):
        with pytest.raises(MlsError):
            use(changed)


def test_not_even_a_member_can_change_a_commit_that_was_made() -> None:
    """Carol takes Alice's commit, changes it, and signs and tags it anew as her own; and so does Alice herself."""
    made = decode_message(of_alice("commit"))
    assert isinstance(made, PublicMessage)
    assert isinstance(made.content.content, Commit)
    tag = made.auth.confirmation_tag
    assert tag is not None
    bob = FOUR.group("bob")
    before = bob.to_bytes()
    for changed in flipped(made.content.content.encode(), "inside"):
        for name in ("alice", "carol"):
            state = FOUR.state(name)
            try:
                commit = decode(changed, Commit.decode)
            except MlsError:
                continue
            with pytest.raises(MlsError):
                bob.receive(public(state, authenticated(state, commit, tag=tag)), NOW)
            assert bob.to_bytes() == before


def test_a_commit_of_another_group_or_epoch_is_not_taken() -> None:
    """The server plays a message anew, later or elsewhere."""
    message, bob = of_alice("commit"), FOUR.group("bob")
    bob.receive(message, NOW)
    before = bob.to_bytes()
    for other in (message, of_alice("proposal"), cast().group("alice").commit(NOW).message):
        with pytest.raises(MlsError):
            bob.receive(other, NOW)
        assert bob.to_bytes() == before


def test_what_was_signed_to_be_sent_encrypted_is_not_taken_in_public() -> None:
    """The signature covers how a message is sent."""
    alice, bob = FOUR.state("alice"), FOUR.group("bob")
    said = authenticated(alice, Remove(3), wire_format=WireFormat.PRIVATE_MESSAGE)
    refused(bob, public(alice, replace(said, wire_format=WireFormat.PUBLIC_MESSAGE)), "signature of a message")
    said = authenticated(alice, Remove(3))
    refused(bob, private_message(alice, replace(said, wire_format=WireFormat.PRIVATE_MESSAGE)), "signature of a")
