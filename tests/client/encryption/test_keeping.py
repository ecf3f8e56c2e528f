"""What members' clients do by themselves, so that keys stay young and belong to members alone."""

from uuid import UUID

import pytest

from conclave.client import History
from conclave.client.encryption.maintenance import RENEWAL_SECONDS, STRANGER_REPORT_SECONDS
from conclave.client.encryption.packages import KEEP_SECONDS
from conclave.client.events import EncryptionNotice
from conclave.client.mls import KeyPackage, StaleError, decode_message, fingerprint
from conclave.client.mls.nodes import LeafNode
from tests.client.encryption.conftest import NewDevice
from tests.client.encryption.devices import Device, agree, compared, talk

DAY = 86_400


def leaf(of: Device, as_seen_by: Device, group: UUID) -> LeafNode:
    """The one leaf of a user in the tree of another."""
    [found] = [
        each for _, each in as_seen_by.mls(group)._state.tree.leaves() if each.credential.identity == of.user_id.bytes
    ]
    return found


async def together(group: UUID, *devices: Device) -> None:
    """Have the others join the first one's group."""
    for count, each in enumerate(devices[1:], 2):
        await each.sync.membership.join(group)
        await agree(group, *devices[:count])


def notices(device: Device, kind: str) -> list[UUID | None]:
    return [each.user_id for each in device.all_told(EncryptionNotice) if each.kind == kind]


@pytest.mark.parametrize("runs", [True, False], ids=["while it runs", "at its start"])
async def test_a_leaf_is_renewed_within_a_week(device: NewDevice, runs: bool) -> None:
    assert RENEWAL_SECONDS < 7 * DAY
    alice, bob = await device("alice"), await device("bob")
    group = await alice.sync.membership.create("club", public=True)
    await together(group, alice, bob)
    first, other = leaf(bob, alice, group).encryption_key, leaf(alice, bob, group).encryption_key
    if not runs:
        await bob.stop()
    bob.ahead += RENEWAL_SECONDS
    if not runs:
        await bob.connect()
    await alice.until(lambda: leaf(bob, alice, group).encryption_key != first)
    await agree(group, alice, bob)
    assert leaf(alice, bob, group).encryption_key == other, "only what is old is renewed"
    await talk(group, alice, bob)
    assert leaf(bob, alice, group).signature_key == leaf(bob, bob, group).signature_key


async def test_who_left_is_removed_by_a_commit_with_new_keys(device: NewDevice) -> None:
    alice, bob, carol = await device("alice"), await device("bob"), await device("carol")
    group = await alice.sync.membership.create("club", public=True)
    await together(group, alice, bob, carol)
    former, old = carol.mls(group).copy(), leaf(alice, bob, group).encryption_key
    await carol.sync.leave(group)
    await agree(group, alice, bob)
    assert leaf(alice, bob, group).encryption_key != old
    compared(bob.codec)
    with pytest.raises(StaleError):
        former.receive(bob.codec.encode(group, "without Carol"), 0)


async def test_a_signature_key_is_renewed_by_coming_in_anew(device: NewDevice) -> None:
    alice, bob, carol = await device("alice"), await device("bob"), await device("carol")
    group = await alice.sync.membership.create("club", public=True)
    await together(group, alice, bob)
    old = leaf(bob, alice, group)
    await bob.sync.reset()
    await alice.until(lambda: bob.is_in(group) and leaf(bob, alice, group).signature_key != old.signature_key)
    await agree(group, alice, bob)
    new = leaf(bob, alice, group)
    assert new.encryption_key != old.encryption_key
    assert fingerprint(new.signature_key) == bob.codec.fingerprint
    await talk(group, alice, bob)
    other = await carol.sync.membership.create("other")
    await carol.sync.membership.invite(other, "bob")
    await agree(other, carol, bob)
    assert leaf(bob, carol, other).signature_key == new.signature_key, "what others invite by is of the new key too"


async def test_whatever_the_server_hands_out_in_half_a_year_can_still_be_used(device: NewDevice) -> None:
    alice, bob = await device("alice"), await device("bob")
    group = await alice.sync.membership.create("club")
    given = 0
    for _ in range(6):
        bob.ahead += 29 * DAY  # a day before they are due
        [taken] = await alice.client.key_packages_for(group, [bob.user_id])
        package = decode_message(taken.key_package_data)
        assert isinstance(package, KeyPackage)
        assert any(each.key_package == package for each in bob.codec._own_keys.stored_packages()), (
            "its private keys are there"
        )
        assert package.leaf_node.lifetime
        assert package.leaf_node.lifetime.not_after > bob.codec._now() + 90 * DAY - KEEP_SECONDS - DAY
        given += 1
        bob.ahead += DAY
        assert bob.codec.needs_key_packages
        await bob.restart()
        assert not bob.codec.needs_key_packages
    assert given == 6


async def test_new_key_packages_are_uploaded_while_the_program_runs(device: NewDevice) -> None:
    alice, bob = await device("alice"), await device("bob")
    await alice.sync.membership.create("club")
    group = await bob.sync.membership.create("own")
    bob.ahead += 30 * DAY
    assert bob.codec.needs_key_packages
    await bob.until(lambda: not bob.codec.needs_key_packages)
    assert bob.is_in(group)


async def test_who_left_while_no_admin_was_there_is_shown_until_one_is(device: NewDevice) -> None:
    alice, bob, carol = await device("alice"), await device("bob"), await device("carol")
    group = await alice.sync.membership.create("club", public=True)
    await together(group, alice, bob, carol)
    await alice.stop()
    await carol.sync.leave(group)
    await bob.until(lambda: bob.codec._agenda.group(group).stranger_since is not None)
    assert notices(bob, "stranger") == [], "who has just left has the keys for a moment"
    bob.ahead += int(STRANGER_REPORT_SECONDS) + 1
    await bob.until(lambda: notices(bob, "stranger"))
    assert notices(bob, "stranger") == [carol.user_id]
    assert bob.codec.view(group).strangers == (carol.user_id,)
    await alice.connect()
    await agree(group, alice, bob)
    await bob.until(lambda: notices(bob, "mended"))
    assert bob.codec.view(group).strangers == ()
    await talk(group, alice, bob)


async def test_a_removal_that_came_without_a_commit_is_made_up_for(device: NewDevice) -> None:
    """As one of an admin whose device has no keys, or of the operator."""
    alice, bob, carol = await device("alice"), await device("bob"), await device("carol")
    group = await alice.sync.membership.create("club", public=True)
    await together(group, alice, bob, carol)
    former = carol.mls(group).copy()
    await alice.client.remove(group, carol.user_id, b"", b"")
    alice.sync.request_fetch(group)
    await bob.until(lambda: bob.mls(group).find(carol.user_id.bytes) is None)
    await agree(group, alice, bob)
    compared(bob.codec)
    with pytest.raises(StaleError):
        former.receive(bob.codec.encode(group, "without Carol"), 0)


async def test_a_member_without_keys_is_shown_until_its_device_comes_in(device: NewDevice) -> None:
    alice, bob = await device("alice"), await device("bob")
    group = await alice.sync.membership.create("club", public=True)
    await bob.stop()
    await bob.client.join(group)
    await alice.until(lambda: alice.codec.view(group).keyless)
    assert alice.codec.view(group).keyless == (bob.user_id,)
    await alice.restart()
    await alice.until(lambda: alice.codec.view(group).keyless == (bob.user_id,))
    await bob.connect()
    await agree(group, alice, bob)
    await alice.until(lambda: not alice.codec.view(group).keyless)
    await talk(group, alice, bob)


async def test_at_a_start_without_a_server_what_the_history_has_erased_goes_from_the_keys(device: NewDevice) -> None:
    alice, bob = await device("alice"), await device("bob")
    group = await alice.sync.membership.create("club", public=True)
    await together(group, alice, bob)
    await alice.client.update_group(group, expiry=60)
    await bob.until(lambda: bob.history.groups().get(group) == 60)
    await bob.sync.send(group, "kept for a while")
    await bob.hears("kept for a while")
    await bob.until(lambda: bob.codec.kept_numbers(group))
    assert b"kept for a while" in bob.keys_path.read_bytes()
    await bob.stop()
    bob.clock.advance(62)  # type: ignore[attr-defined]  # it stands still
    History(bob.folder / "bob.history", clock=bob.clock).close()  # a program that dies once this has erased
    bob.open()
    async with bob.sync:
        assert b"kept for a while" not in bob.keys_path.read_bytes()
    bob.history.close()
    bob.codec.close()
