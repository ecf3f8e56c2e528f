"""A hostile member: whatever it sends ends no client, affects no other group, and does not keep it in the group."""

import asyncio
from contextlib import suppress
from uuid import UUID

import pytest

from conclave.client.errors import EncryptionError, RefusedError
from tests.client.encryption.conftest import NewDevice
from tests.client.encryption.devices import Device, agree, talk
from tests.client.encryption.hostile import KINDS, Mallory, attack, series
from tests.support import sample
from tests.support.server import PATIENCE


class Scene:
    """Alice, who is the admin, and Bob, in the club with Mallory, and in another group without."""

    def __init__(self, alice: Device, bob: Device, club: UUID, other: UUID, mallory: Mallory) -> None:
        self.alice, self.bob, self.club, self.other, self.mallory = alice, bob, club, other, mallory
        self.said = 0

    async def have_read(self) -> None:
        """Wait until both have read what is there."""
        newest = max((each.sequence_num for each in await self.mallory.everything()), default=0)
        for device in (self.alice, self.bob):
            device.sync.request_fetch(self.club)
            while device.history.fetched_up_to(self.club) < newest:
                device.check()
                await asyncio.sleep(0.02)

    async def goes_on(self, group: UUID) -> None:
        """Each says something that the other reads."""
        for speaker, listener in ((self.alice, self.bob), (self.bob, self.alice)):
            self.said += 1
            text = f"{speaker.name} {self.said}"
            await speaker.sync.send(group, text)
            await listener.hears(text)

    async def holds(self) -> None:
        """Nobody's program has ended, nor does it at the next start; the other group is as it was."""
        async with asyncio.timeout(PATIENCE):
            await self.have_read()
        await self.alice.restart()
        for device in (self.alice, self.bob):
            device.check()
        await self.goes_on(self.other)

    async def ends(self) -> None:
        """Mallory is removed, and those who stay talk."""
        await self.alice.sync.membership.remove(self.club, self.mallory.client.session.user_id)
        await agree(self.club, self.alice, self.bob)
        await talk(self.club, self.alice, self.bob)


async def scene(device: NewDevice) -> Scene:
    alice, bob, mallory, accomplice = [await device(each) for each in ("alice", "bob", "mallory", "accomplice")]
    other = await alice.sync.membership.create("other", public=True)
    await bob.sync.membership.join(other)
    club = await alice.sync.membership.create("club", public=True)
    for each in (bob, mallory):
        await each.sync.membership.join(club)
    await agree(other, alice, bob)
    await agree(club, alice, bob, mallory)
    state = mallory.mls(club)._state
    for each in (mallory, accomplice):
        await each.stop()
    hostile = Mallory(mallory.client, club, state, accomplice.client, alice.user_id, bob.user_id)
    return Scene(alice, bob, club, other, hostile)


@pytest.mark.parametrize("name", sample.some(list(KINDS), 5, "hostile kinds"))
async def test_a_hostile_member_does_no_harm_by(device: NewDevice, name: str) -> None:
    there = await scene(device)
    await attack(there.mallory, name)
    if "key package" in name:
        with pytest.raises(EncryptionError):
            await there.alice.sync.membership.invite(there.club, "accomplice")
    if "trap" in name:
        await there.alice.until_groups(3)
    await there.holds()
    await there.goes_on(there.club)
    await there.ends()


async def test_a_hostile_member_does_no_harm_by_a_series(device: NewDevice) -> None:
    there = await scene(device)
    for number, name in enumerate(series(sample.chance("hostile series"), sample.amount(100, 6))):
        with suppress(RefusedError):  # the server takes so many, and then no more
            await attack(there.mallory, name)
        if number % 10 == 0:
            await there.holds()
    await there.holds()
    await there.ends()
