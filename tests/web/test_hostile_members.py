"""A hostile member cannot crash an engine, affect other groups, or prevent its removal."""

import asyncio
import time
from contextlib import suppress
from uuid import UUID

import pytest

from conclave.client.errors import RefusedError
from tests.client.encryption.devices import Device
from tests.client.encryption.hostile import KINDS, Mallory, attack, series
from tests.support import sample
from tests.support.server import PATIENCE
from tests.web.chatter import Chatter, Chatters, FaultError
from tests.web.conftest import NewDevice
from tests.web.node import needs_node

pytestmark = [needs_node, pytest.mark.system]


class Scene:
    """Alice (admin, with a browser) and Bob are in the club with Mallory, and in another group without Mallory."""

    def __init__(self, alice: Chatter, bob: Device, club: str, other: str, mallory: Mallory) -> None:
        self.alice, self.bob, self.club, self.other, self.mallory = alice, bob, club, other, mallory
        self.said = 0

    async def check_group(self, group: str) -> None:
        """Check that Alice and Bob read each other's messages."""
        await self.alice("open", group)
        self.said += 1
        await self.alice("send", group, f"alice {self.said}")
        await self.bob_receives(group, f"alice {self.said}")
        await self.bob.sync.send(UUID(group), f"bob {self.said}")
        await self.alice.receives(f"bob {self.said}")

    async def bob_receives(self, group: str, text: str) -> None:
        """Wait until Bob has a message. Alice accepts changed keys, as Bob's device does by itself."""
        async with asyncio.timeout(PATIENCE):
            while text not in self.bob.texts_told():
                self.bob.check()
                view = await self.alice.view()
                for found in (each for each in view["groups"] if each["groupId"] == group):
                    for member in found["members"]:
                        if member["key"] and member["key"]["trust"] == "changed":
                            await self.alice("acceptKey", member["userId"], member["key"]["fingerprint"])
                await asyncio.sleep(0.1)

    async def check_engine(self) -> None:
        """Check that the engine works, also after a restart, and that the other group is not affected."""
        await self.check_group(self.other)
        await self.alice.restart()
        await self.check_group(self.other)

    async def check_removal(self) -> None:
        """Remove Mallory, and check that the others still read each other."""
        await self.alice("removeMember", self.club, str(self.mallory.client.session.user_id))
        await self.check_group(self.club)


async def scene(chatters: Chatters, device: NewDevice) -> Scene:
    alice = await chatters.new("alice")
    bob, mallory, accomplice = [await device(each) for each in ("bob", "mallory", "accomplice")]
    groups = {}
    for name, others in (("other", [bob]), ("club", [bob, mallory])):
        groups[name] = group = await alice("createGroup", name)
        await alice("changeGroup", group, {"visibility": "public"})
        await alice("open", group)
        for each in others:
            await each.sync.membership.join(UUID(group))
            await each.comes_in(UUID(group))
            await each.sync.send(UUID(group), f"{each.name} is here")
            await alice.receives(f"{each.name} is here")
    club = UUID(groups["club"])
    await alice("send", groups["club"], "all are here")
    for each in (bob, mallory):
        await each.hears("all are here")
    state = mallory.mls(club)._state
    for each in (mallory, accomplice):
        await each.stop()
    victim = UUID((await alice.view())["account"]["userId"])
    hostile = Mallory(mallory.client, club, state, accomplice.client, victim, bob.user_id)
    newest = (await mallory.client.fetch(club))[-1].sequence_num
    hostile._up_to = newest
    return Scene(alice, bob, groups["club"], groups["other"], hostile)


@pytest.mark.parametrize("name", sample.some(list(KINDS), 4, "hostile kinds for browsers"))
async def test_a_hostile_member_does_no_harm_by(chatters: Chatters, device: NewDevice, name: str) -> None:
    there = await scene(chatters, device)
    await attack(there.mallory, name)
    if "key package" in name:
        with pytest.raises(FaultError):
            await there.alice("invite", there.club, "accomplice")
    if "trap" in name:
        [invite] = await there.alice.until(lambda view: view["invites"])
        await there.alice("accept", invite["inviteId"])
        await there.alice.until(lambda view: len(view["groups"]) == 3)
    began = time.monotonic()
    await there.check_engine()
    assert time.monotonic() - began < PATIENCE / 3
    await there.check_group(there.club)
    await there.check_removal()


async def test_a_hostile_member_does_no_harm_by_a_series(chatters: Chatters, device: NewDevice) -> None:
    there = await scene(chatters, device)
    for name in series(sample.chance("hostile series for browsers"), sample.amount(60, 6)):
        with suppress(RefusedError):  # the server limits them
            await attack(there.mallory, name)
    await there.check_engine()
    await there.check_removal()
