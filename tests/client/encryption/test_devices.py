"""Two devices of one account, an old copy of the keys put back, and a member who leads others astray."""

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from conclave.client import MessageArrived, ReplacedError
from conclave.client.encryption.headers import GroupInfoHeader, read_group_info
from conclave.client.encryption.view import EncryptionStatus
from conclave.client.errors import KeyInDoubtError
from conclave.client.events import EncryptionNotice, KeyChanged
from conclave.client.mls import MlsGroup
from conclave.client.sync import READY_TIMEOUT
from conclave.wire.results import RetentionInfo
from tests.client.encryption.conftest import NewDevice
from tests.client.encryption.devices import Device, agree
from tests.conftest import Running
from tests.support.server import PATIENCE


async def club(device: NewDevice, *names: str) -> tuple[UUID, list[Device]]:
    """Let people come into a group."""
    first, *others = [await device(name) for name in names]
    group = await first.sync.membership.create("club", public=True)
    for count, each in enumerate(others, 2):
        await each.sync.membership.join(group)
        await agree(group, first, *others[: count - 1])
        await each.until(lambda each=each: not each.codec._agenda.group(group).is_new)  # type: ignore[misc]
    return group, [first, *others]


def notices(device: Device, kind: str) -> list[EncryptionNotice]:
    return [each for each in device.all_told(EncryptionNotice) if each.kind == kind]


async def other_device(device: NewDevice, name: str, folder: Path) -> Device:
    folder.mkdir(exist_ok=True)
    return await device(name, register=False, folder=folder)


async def notes_that_it_is_replaced(one: Device, other: Device, group: UUID) -> None:
    """Wait until a device has read that the other one is in: no event tells it, so it is fetched."""
    await other.comes_in(group)
    one.sync.request_fetch(group)
    await one.until(lambda: notices(one, "replaced"))


class TestTwoDevices:
    async def test_the_one_that_was_replaced_says_so_and_stays_out(self, device: NewDevice, tmp_path: Path) -> None:
        group, [alice, bob] = await club(device, "alice", "bob")
        phone = await other_device(device, "bob", tmp_path / "phone")
        await notes_that_it_is_replaced(bob, phone, group)
        await agree(group, alice, phone)
        assert bob.codec.view(group).status is EncryptionStatus.REPLACED
        with pytest.raises(ReplacedError, match="another device of yours"):
            await bob.sync.send(group, "which cannot be said")
        epoch = alice.mls(group).epoch
        for number in range(3):
            bob.codec.schedule_check(group)
            bob.sync.request_fetch(group)
            await phone.sync.send(group, f"from the phone {number}")
            await alice.hears(f"from the phone {number}")
        await bob.restart()
        await alice.sync.send(group, "to the phone")
        await phone.hears("to the phone")
        assert alice.mls(group).epoch == epoch
        assert bob.codec.view(group).status is EncryptionStatus.REPLACED
        assert len(notices(bob, "replaced")) == 1

    async def test_new_keys_bring_it_back(self, device: NewDevice, tmp_path: Path) -> None:
        group, [alice, bob] = await club(device, "alice", "bob")
        phone = await other_device(device, "bob", tmp_path / "phone")
        await notes_that_it_is_replaced(bob, phone, group)
        await agree(group, alice, phone)
        await bob.sync.reset()
        await agree(group, alice, bob)
        await notes_that_it_is_replaced(phone, bob, group)
        await alice.sync.send(group, "back")
        await bob.hears("back")
        assert [each.user_id for each in alice.all_told(KeyChanged)] == [bob.user_id] * 2

    @pytest.mark.system
    async def test_it_stays_out_if_the_change_has_gone_before_it_was_read(
        self, device: NewDevice, tmp_path: Path
    ) -> None:
        """Then only the group info tells."""
        group, [alice, bob] = await club(device, "alice", "bob")
        await bob.stop()
        phone = await other_device(device, "bob", tmp_path / "phone")
        await agree(group, alice, phone)
        fetch = bob.client.fetch

        async def without_changes(*args: object, **options: object) -> object:
            page = await fetch(*args, **options)  # type: ignore[arg-type]
            return tuple(each for each in page if each.mls_message[2:4] != b"\x00\x01")

        bob.client.fetch = without_changes  # type: ignore[method-assign,assignment]
        await phone.sync.send(group, "from the phone")
        await bob.connect()
        await bob.until(lambda: notices(bob, "replaced"))
        epoch = alice.mls(group).epoch
        bob.codec.schedule_check(group)
        await alice.sync.send(group, "goes on")
        await phone.hears("goes on")
        assert alice.mls(group).epoch == epoch


class TestAnOldCopy:
    @pytest.mark.parametrize("said_since", ["text", "change"])
    @pytest.mark.parametrize("with_history", [True, False])
    async def test_it_is_not_used_and_the_device_comes_in_again(
        self, device: NewDevice, tmp_path: Path, said_since: str, *, with_history: bool
    ) -> None:
        group, [alice, bob] = await club(device, "alice", "bob")
        await bob.sync.send(group, "before")
        await alice.hears("before")
        await bob.hears("before")
        copied = ["bob.keys", "bob.history"] if with_history else ["bob.keys"]
        await bob.stop()
        for each in copied:
            shutil.copy(tmp_path / each, tmp_path / f"{each}.old")
        await bob.connect()
        await bob.comes_in(group)
        if said_since == "text":
            number = await bob.sync.send(group, "since")
            await bob.until(lambda: bob.history.fetched_up_to(group) >= number)
        else:
            epoch = bob.mls(group).epoch
            change = bob.codec.commit(group)
            await bob.client.commit(group, commit_message=change.commit, group_info=change.group_info)
            await alice.until(lambda: alice.mls(group).epoch > epoch)
            await bob.until(lambda: change_epoch(bob, group) > epoch)
        bob.sync.request_fetch(group)
        last = bob.mls(group).epoch
        await bob.until(lambda: bob.history.fetched_up_to(group) == alice.history.fetched_up_to(group))
        await bob.stop()
        for each in copied:
            shutil.move(tmp_path / f"{each}.old", tmp_path / each)
        bob.told.clear()
        await bob.connect()
        await bob.sync.send(group, "after")
        await alice.hears("after")
        await agree(group, alice, bob)
        assert bob.mls(group).epoch > last
        assert len(notices(bob, "restored")) == 1
        assert not notices(alice, "refused")

    @pytest.mark.parametrize("server_tells", [True, False])
    async def test_it_is_not_used_where_all_that_it_does_not_know_of_is_gone(
        self, device: NewDevice, tmp_path: Path, *, server_tells: bool
    ) -> None:
        """If the server tells no last number, the first texts are sent with keys that were used, and sent again."""
        group, [alice, bob] = await club(device, "alice", "bob")
        await alice.sync.send(group, "before")
        await bob.hears("before")
        await bob.stop()
        for each in ("bob.keys", "bob.history"):
            shutil.copy(tmp_path / each, tmp_path / f"{each}.old")
        await bob.connect()
        numbers = [await bob.sync.send(group, f"since {number}") for number in range(3)]
        await alice.hears("since 2")
        await bob.hears("since 2")
        epoch = bob.mls(group).epoch
        for number in numbers:
            await bob.sync.take_back(group, number)
        await bob.stop()
        for each in ("bob.keys", "bob.history"):
            shutil.move(tmp_path / f"{each}.old", tmp_path / each)
        bob.told.clear()
        if not server_tells:
            asks = bob.client.retention

            async def without(group_id: UUID) -> RetentionInfo:
                return replace(await asks(group_id), last_sequence_num=0)

            bob.client.retention = without  # type: ignore[method-assign,assignment]
        await bob.connect()
        for number in range(4):
            await bob.sync.send(group, f"after {number}")
        for number in range(4):
            await alice.hears(f"after {number}")
        await agree(group, alice, bob)
        assert alice.mls(group).epoch > epoch
        assert bool(notices(alice, "refused")) is not server_tells
        assert [text for text in alice.texts_told() if text and text.startswith("after")].count("after 0") == 1

    async def test_who_was_away_while_messages_went_changes_the_keys_once_and_reads_on(self, device: NewDevice) -> None:
        group, [alice, bob] = await club(device, "alice", "bob")
        await alice.sync.send(group, "before")
        await bob.hears("before")
        await bob.stop()
        gone = await alice.sync.send(group, "which is gone")
        await alice.sync.take_back(group, gone)
        await alice.sync.send(group, "which is there")
        epoch = alice.mls(group).epoch
        await bob.connect()
        await bob.hears("which is there")
        for text in ("one", "two"):
            await bob.sync.send(group, text)
            await alice.hears(text)
        await agree(group, alice, bob)
        assert alice.mls(group).epoch == epoch + 1

    async def test_nothing_is_encrypted_before_all_was_read(self, device: NewDevice) -> None:
        group, [alice, bob] = await club(device, "alice", "bob")
        await bob.stop()
        bob.told.clear()
        payloads = []
        fetch = bob.client.fetch

        async def watched(*args: object, **options: object) -> object:
            with pytest.raises(Exception, match="still being read"):
                payloads.append(bob.codec.encode(group, "too early"))
            bob.client.fetch = fetch  # type: ignore[method-assign]
            return await fetch(*args, **options)  # type: ignore[arg-type]

        bob.client.fetch = watched  # type: ignore[method-assign,assignment]
        await bob.connect()
        await bob.sync.send(group, "in time")
        await alice.hears("in time")
        assert payloads == []

    async def test_who_answers_while_it_catches_up_is_not_kept_waiting(self, device: NewDevice) -> None:
        """An application sends from within its loop over the news, and nothing more is read meanwhile."""
        group, [alice, bob] = await club(device, "alice", "bob")
        await bob.stop()
        await alice.sync.send(group, "ping")
        bob.open()
        async with bob.sync, asyncio.timeout(READY_TIMEOUT / 2):
            bob.client.transport.on_time = lambda _: None
            async for news in bob.sync:
                if isinstance(news, MessageArrived):
                    await bob.sync.send(group, "pong")
                    break
        await alice.hears("pong")
        bob.history.close()
        bob.codec.close()


def change_epoch(device: Device, group: UUID) -> int:
    device.sync.request_fetch(group)
    return device.mls(group).epoch


class TestAnOldGroupInfo:
    async def test_who_comes_back_waits_for_a_newer_one(self, device: NewDevice) -> None:
        """A commit by it is void for the others, and its maker would be alone in a group of the same epoch."""
        alice, bob = await device("alice"), await device("bob")
        group = await alice.sync.membership.create("club", public=True)
        old = await alice.client.group_info(group)
        await bob.sync.membership.join(group)
        await agree(group, alice, bob)
        async with asyncio.timeout(PATIENCE):
            while read_group_info(await alice.client.group_info(group)) != header_of(alice, group):
                await asyncio.sleep(0.05)
        await alice.until(lambda: not any(looks_soon(each, group) for each in (alice, bob)))
        await alice.client.commit(group, group_info=old)
        await bob.sync.reset()
        await bob.until(lambda: bob.codec._agenda.group(group).attempts)
        alice.codec._agenda.group(group).check_info_soon(is_own=True)
        alice.codec.schedule_check(group)
        await agree(group, alice, bob)
        await bob.sync.send(group, "together")
        await alice.hears("together")


def looks_soon(device: Device, group: UUID) -> bool:
    """Tell whether a device is about to compare the server's group info."""
    agenda = device.codec._agenda.group(group)
    return agenda.info_at is None or agenda.info_at < agenda.clock() + 1.0


def header_of(device: Device, group: UUID) -> GroupInfoHeader:
    mls = device.mls(group)
    return GroupInfoHeader(mls.group_id, mls.epoch, mls.confirmation_tag)


async def test_the_keys_of_a_group_that_was_left_elsewhere_go_at_the_next_start(
    device: NewDevice, tmp_path: Path
) -> None:
    """Also where the history, which is in memory only, does not know the group any more."""
    group, [_, bob] = await club(device, "alice", "bob")
    await bob.stop()
    await bob.client.leave(group)
    for each in tmp_path.glob("bob.history*"):
        each.unlink()
    await bob.connect()
    await bob.until(lambda: not bob.codec.groups())


async def test_what_is_kept_of_an_own_text_goes_with_its_message(
    device: NewDevice, running: Running, tmp_path: Path
) -> None:
    """Also where that went while no program ran, and the history, which is in memory only, never knew it."""
    group, [alice, bob] = await club(device, "alice", "bob")
    await alice.client.update_group(group, expiry=3_600)
    numbers = [await bob.sync.send(group, text) for text in ("is taken back", "expires")]
    await bob.hears("expires")
    assert bob.codec.kept_numbers(group) == numbers, "nobody has answered yet"
    await bob.sync.take_back(group, numbers[0])
    assert bob.codec.kept_numbers(group) == numbers[1:]
    await bob.stop()
    running.clock.advance(3_602)
    for each in tmp_path.glob("bob.history*"):
        each.unlink()
    await bob.connect()
    await bob.until(lambda: not bob.codec.kept_numbers(group))


class TestAChangedKey:
    async def test_nothing_is_sent_before_it_was_judged(self, device: NewDevice) -> None:
        alice = await device("alice", accept_changed_keys=False)
        bob = await device("bob")
        group = await alice.sync.membership.create("club", public=True)
        await bob.sync.membership.join(group)
        await agree(group, alice, bob)
        await bob.sync.reset()
        await alice.until(lambda: alice.all_told(KeyChanged))
        await agree(group, alice, bob)
        with pytest.raises(KeyInDoubtError, match="verify or accept it"):
            await alice.sync.send(group, "too early")
        [key] = alice.codec.view(group).changed
        assert alice.codec.accept(bob.user_id, key.fingerprint)
        await alice.sync.send(group, "in time")
        await bob.hears("in time")
        assert bob.shown(group) == ["in time"]


class TestAFalseGroupInfo:
    async def test_it_is_replaced_and_told_and_nobody_leaves_by_it(self, device: NewDevice) -> None:
        group, [alice, bob, carol] = await club(device, "alice", "bob", "carol")
        mine = MlsGroup.from_bytes(carol.mls(group).to_bytes())
        for _ in range(3):
            mine.commit(0)
            mine.apply_pending(0)
        epoch = alice.mls(group).epoch
        await carol.stop()
        async with asyncio.timeout(PATIENCE):
            while not (notices(alice, "refused") or notices(bob, "refused")):
                await carol.client.commit(group, group_info=mine.group_info())  # what others had just sent replaces it
                for each in (alice, bob):
                    each.codec._agenda.group(group).check_info_soon(is_own=True)
                    each.codec.schedule_check(group)
                await asyncio.sleep(0.5)
        await carol.connect()
        await agree(group, alice, bob, carol)
        assert alice.mls(group).epoch == epoch
        [notice] = [*notices(alice, "refused"), *notices(bob, "refused")][:1]
        assert "changes that no member has made" in notice.sentence
        await bob.sync.send(group, "all as it was")
        await alice.hears("all as it was")
