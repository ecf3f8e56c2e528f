"""Key packages, and coming into a group and back into it."""

from dataclasses import replace

import pytest

from conclave.client.mls import (
    ApplicationMessage,
    Extension,
    InvalidError,
    KeyPackage,
    MalformedMessageError,
    MlsGroup,
    OwnKeyPackage,
    Policy,
    StaleError,
    create_key_package,
    decode_message,
    encode_message,
    fingerprint,
    suite_of,
)
from conclave.client.mls.codec import opaque, vector
from conclave.client.mls.credentials import ExtensionType, ExternalSender, basic
from conclave.client.mls.key_packages import BACKDATE_SECONDS, LIFETIME_SECONDS
from conclave.client.mls.nodes import LeafNodeSource, own_capabilities
from conclave.client.mls.suites import SUITES
from tests.client.mls.data import NOW
from tests.client.mls.forging import SUITE, cast, package

FOUR = cast()


def four() -> list[MlsGroup]:
    return [FOUR.group(name) for name in ("alice", "bob", "carol", "dave")]


def agree(*groups: MlsGroup) -> None:
    assert len({(group.epoch, group.epoch_authenticator, group.tree_hash) for group in groups}) == 1


@pytest.mark.parametrize("number", SUITES)
@pytest.mark.parametrize("last_resort", [False, True])
def test_key_packages_are_as_those_of_existing_clients(number: int, last_resort: bool) -> None:
    suite = suite_of(number)
    own = create_key_package(suite, b"x" * 16, suite.signature_key_pair().private, NOW, last_resort=last_resort)
    leaf = own.key_package.leaf_node
    can = leaf.capabilities
    assert (can.versions, can.cipher_suites, can.proposals, can.credentials) == ((1,), (1, 2, 3, 4, 5, 6, 7), (), (1,))
    assert can.extensions == ((10,) if last_resort else ())
    assert own.key_package.is_last_resort == last_resort
    assert leaf.lifetime is not None
    assert (leaf.lifetime.not_before, leaf.lifetime.not_after) == (NOW - BACKDATE_SECONDS, NOW + LIFETIME_SECONDS)
    assert leaf.leaf_node_source == LeafNodeSource.KEY_PACKAGE
    message = encode_message(own.key_package)
    assert decode_message(message) == own.key_package
    assert message[:4] == bytes.fromhex("00010005")
    assert OwnKeyPackage.from_bytes(own.to_bytes()) == own
    assert len({own.init_private, own.encryption_private, own.signature_private}) == 3


def test_a_package_of_last_resort_is_used_again_after_its_owner_has_left() -> None:
    alice, bob, _, _ = four()
    eve = package("eve", last_resort=True)
    for _ in range(2):
        made = alice.commit(NOW, add=[eve.key_package])
        assert made.welcome is not None
        joined, _ = MlsGroup.join(made.welcome, [eve], NOW)
        for group in (alice, bob):
            group.receive(made.message, NOW)
        agree(alice, bob, joined)
        gone = alice.commit(NOW, remove=[joined.own_index])
        for group in (alice, bob):
            group.receive(gone.message, NOW)


def test_a_group_is_created_with_an_id_or_without() -> None:
    own = package("eve")
    one, other = MlsGroup.create(own, NOW, group_id=b"id"), MlsGroup.create(own, NOW)
    assert (one.group_id, one.epoch, list(one.members())) == (b"id", 0, [0])
    assert len(other.group_id) == SUITE.kdf.size
    assert own.key_package.leaf_node.capabilities == own_capabilities()
    with pytest.raises(InvalidError, match="does not support an extension"):
        MlsGroup.create(own, NOW, extensions=[Extension(0xF00D, b"")])
    senders = Extension(ExtensionType.EXTERNAL_SENDERS, opaque(b""))
    assert MlsGroup.create(own, NOW, extensions=[senders]).extensions == (senders,)


def test_a_group_is_not_created_against_the_rules_of_the_application() -> None:
    """Nor with a leaf that nobody would take."""
    policy = Policy(authenticate=lambda credential, _: credential.identity != b"eve")
    own = package("eve")
    with pytest.raises(InvalidError, match="does not belong to its signature key"):
        MlsGroup.create(own, NOW, policy=policy)
    senders = Extension(ExtensionType.EXTERNAL_SENDERS, vector([ExternalSender(b"x", basic(b"eve"))]))
    with pytest.raises(InvalidError, match="does not belong to its signature key"):
        MlsGroup.create(package("alice"), NOW, policy=policy, extensions=[senders])
    leaf = replace(own.key_package.leaf_node, signature=bytes(64))
    with pytest.raises(InvalidError, match="signature of a leaf"):
        MlsGroup.create(replace(own, key_package=replace(own.key_package, leaf_node=leaf)), NOW)


def test_a_signature_key_is_changed_by_coming_back() -> None:
    alice, bob, carol, _ = four()
    old = bob.fingerprint
    again = create_key_package(SUITE, b"bob", SUITE.signature_key_pair().private, NOW)
    back, message = MlsGroup.join_external(alice.group_info(), again, NOW, resync=True)
    for group in (alice, carol):
        group.receive(message, NOW)
    agree(alice, carol, back)
    assert back.fingerprint != old
    found = alice.find(b"bob")
    assert found is not None
    assert fingerprint(found.signature_key) == back.fingerprint
    assert isinstance(alice.receive(back.encrypt(b"x"), NOW), ApplicationMessage)


def test_an_external_commit_that_loses_is_made_anew() -> None:
    alice, bob, _, _ = four()
    eve = package("eve")
    stale, message = MlsGroup.join_external(alice.group_info(), eve, NOW)
    made = bob.commit(NOW)
    for group in (alice, bob):
        group.receive(made.message, NOW)
        with pytest.raises(StaleError):
            group.receive(message, NOW)
    assert stale.epoch_authenticator != alice.epoch_authenticator
    joined, message = MlsGroup.join_external(made.group_info, eve, NOW)
    for group in (alice, bob):
        group.receive(message, NOW)
    agree(alice, bob, joined)


def test_a_key_package_of_another_version_is_refused() -> None:
    message = bytearray(encode_message(package("eve").key_package))
    message[5] = 2
    with pytest.raises(MalformedMessageError, match="version"):
        decode_message(bytes(message))
    key_package = decode_message(encode_message(package("eve").key_package))
    assert isinstance(key_package, KeyPackage)
    with pytest.raises(MalformedMessageError, match="is not supported"):
        replace(key_package, cipher_suite=2).ref()
