"""People come into groups, talk, and leave: at a real server, which cannot read it."""

import pytest

from conclave.client.events import EncryptionNotice, KeyChanged
from conclave.client.mls import StaleError
from tests.client.encryption.conftest import NewDevice
from tests.client.encryption.devices import agree


async def test_two_who_meet_by_an_invite_read_each_other(device: NewDevice) -> None:
    alice, bob = await device("alice"), await device("bob")
    group = await alice.sync.membership.create("club")
    await alice.sync.membership.invite(group, "bob")
    await agree(group, alice, bob)
    await alice.sync.send(group, "hello Bob")
    await bob.hears("hello Bob")
    await bob.sync.send(group, "hello Alice")
    for each in (alice, bob):
        await each.hears("hello Alice")
    assert alice.shown(group) == bob.shown(group) == ["hello Bob", "hello Alice"]
    payloads = [each.mls_message for each in await alice.client.fetch(group)]
    assert not any(b"hello" in each for each in payloads)


async def test_who_comes_in_by_itself_reads_what_follows_and_one_notice_of_what_was(device: NewDevice) -> None:
    alice, bob = await device("alice"), await device("bob")
    group = await alice.sync.membership.create("club", public=True)
    for number in range(3):
        await alice.sync.send(group, f"before {number}")
    await bob.sync.membership.join(group)
    await agree(group, alice, bob)
    await alice.sync.send(group, "after")
    await bob.hears("after")
    assert bob.shown(group) == ["after"]
    [notice] = bob.all_told(EncryptionNotice)
    assert (notice.kind, notice.sentence) == ("joined", "You have joined: 3 messages from before cannot be read.")


async def test_who_was_kicked_has_no_keys_of_what_follows(device: NewDevice) -> None:
    alice, bob, carol = await device("alice"), await device("bob"), await device("carol")
    group = await alice.sync.membership.create("club", public=True)
    await bob.sync.membership.join(group)
    await agree(group, alice, bob)
    await carol.sync.membership.join(group)
    await agree(group, alice, bob, carol)
    former = bob.mls(group).copy()
    await alice.sync.membership.remove(group, bob.user_id)
    await agree(group, alice, carol)
    await bob.until(lambda: bob.codec.record(group) is None)
    payload = alice.codec.encode(group, "without Bob")
    assert former.find(bob.user_id.bytes) is not None
    assert former.epoch < alice.mls(group).epoch
    with pytest.raises(StaleError):
        former.receive(payload, 0)


async def test_who_leaves_is_removed_by_an_admin(device: NewDevice) -> None:
    alice, bob, carol = await device("alice"), await device("bob"), await device("carol")
    group = await alice.sync.membership.create("club", public=True)
    for each in (bob, carol):
        await each.sync.membership.join(group)
        await each.comes_in(group)
    await agree(group, alice, bob, carol)
    await bob.sync.leave(group)
    await agree(group, alice, carol)


async def test_who_has_lost_the_keys_comes_back_by_itself(device: NewDevice) -> None:
    alice, bob = await device("alice"), await device("bob")
    group = await alice.sync.membership.create("club")
    await alice.sync.membership.invite(group, "bob")
    await agree(group, alice, bob)
    old = bob.codec.fingerprint
    await bob.stop()
    bob.keys_path.unlink()
    await alice.sync.send(group, "lost")
    await bob.connect()
    await agree(group, alice, bob)
    await alice.sync.send(group, "found")
    await bob.hears("found")
    assert bob.shown(group) == ["found"]
    [changed] = alice.all_told(KeyChanged)
    assert (changed.user_id, changed.former, changed.fingerprint) == (bob.user_id, old, bob.codec.fingerprint)


async def test_new_keys_are_told_to_others(device: NewDevice) -> None:
    alice, bob = await device("alice"), await device("bob")
    group = await alice.sync.membership.create("club")
    await alice.sync.membership.invite(group, "bob")
    await agree(group, alice, bob)
    old = bob.codec.fingerprint
    assert alice.codec.verify(bob.user_id, old)
    await bob.sync.reset()
    await alice.until(lambda: alice.all_told(KeyChanged))
    await agree(group, alice, bob)
    [changed] = alice.all_told(KeyChanged)
    assert changed.was_verified
    [key] = alice.codec.view(group).changed
    assert key.fingerprint == bob.codec.fingerprint != old
    assert alice.codec.accept(bob.user_id, key.fingerprint)
    assert not alice.codec.view(group).changed
    await bob.sync.send(group, "it is me")
    await alice.hears("it is me")
