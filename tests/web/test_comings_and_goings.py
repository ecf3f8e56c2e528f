"""Browsers and Python clients that join and leave at the same time end in one epoch, and read each other."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from uuid import UUID

import pytest

from conclave.client.errors import ClientError
from tests.client.encryption.devices import Device
from tests.support import sample
from tests.web.chatter import Chatter, Chatters, FaultError
from tests.web.conftest import NewDevice
from tests.web.node import needs_node

pytestmark = [needs_node, pytest.mark.system]

TRIES, EACH_SECONDS = 6, 20.0

Step = Callable[[], Awaitable[object]]


@asynccontextmanager
async def accepting_keys(group: str, browsers: list[Chatter]) -> AsyncIterator[None]:
    """Have browsers accept changed keys, as the devices of the Python client do."""

    async def take() -> None:
        while True:
            for each in browsers:
                view = await each.view()
                members = [one for found in view["groups"] if found["groupId"] == group for one in found["members"]]
                for key, user_id in ((one["key"], one["userId"]) for one in members):
                    if key and key["trust"] == "changed":
                        with suppress(FaultError):
                            await each("acceptKey", user_id, key["fingerprint"])
            await asyncio.sleep(0.2)

    task = asyncio.create_task(take())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class PublicClub:
    """A public group whose founder stays."""

    def __init__(self, group: str, founder: Device, devices: list[Device], browsers: list[Chatter]) -> None:
        self.group, self.founder, self.devices, self.browsers = group, founder, devices, browsers
        self.said = 0

    async def leave_and_join(self, who: Device | Chatter) -> None:
        if isinstance(who, Chatter):
            await who("leave", self.group)
            await who("joinPublic", self.group)
        else:
            await who.sync.leave(UUID(self.group))
            await who.sync.membership.join(UUID(self.group))

    def steps(self) -> list[Step]:
        """Return the possible steps; several may run at once."""
        found: list[Step] = []
        for device in self.devices:
            found += [lambda it=device: self.leave_and_join(it), lambda it=device: it.renew(UUID(self.group))]  # type: ignore[misc]  # a default is no parameter
        for browser in self.browsers:
            found += [lambda it=browser: self.leave_and_join(it), lambda it=browser: it("resetKeys")]  # type: ignore[misc]  # as above
        return [*found, lambda: self.founder.renew(UUID(self.group))]

    async def talk(self) -> None:
        """Check that all members read each other, with retries for those that are still joining."""
        for _ in range(TRIES):
            if await self._talk_once():
                return
        raise AssertionError(f"they do not read each other: {[await each.view() for each in self.browsers]}")

    async def _talk_once(self) -> bool:
        texts = []
        for each in self.browsers:
            self.said += 1
            texts.append(f"{each.name} {self.said}")
            await each.group(self.group)
            await each("send", self.group, texts[-1])
            await each("open", self.group)
        for device in (self.founder, *self.devices):
            self.said += 1
            texts.append(f"{device.name} {self.said}")
            await device.comes_in(UUID(self.group))
            await device.sync.send(UUID(self.group), texts[-1])
        wanted = set(texts)
        with suppress(TimeoutError):
            async with asyncio.timeout(EACH_SECONDS):
                while not await self._have_received(wanted):
                    await asyncio.sleep(0.1)
                return True
        return False

    async def _have_received(self, wanted: set[str]) -> bool:
        for device in (self.founder, *self.devices):
            device.check()
            if not wanted <= set(device.texts_told()):
                return False
        return all([wanted <= set(await each.texts()) for each in self.browsers])


async def tolerating_refusal(step: Step) -> None:
    """Do a step that may be refused, since others run at the same time."""
    with suppress(ClientError, FaultError):
        await step()


@pytest.mark.parametrize("seed", range(sample.amount(10, 1)))
async def test_all_end_in_one_epoch(chatters: Chatters, device: NewDevice, seed: int) -> None:
    chance = sample.chance(f"comings and goings {seed}")
    founder = await device("founder")
    group = str(await founder.sync.membership.create("club", public=True))
    devices = [await device(name) for name in ("carol", "dave")]
    browsers = [await chatters.new(name) for name in ("alice", "bob", "erin")]
    for one in devices:
        await one.sync.membership.join(UUID(group))
    for each in browsers:
        await each("joinPublic", group)
    club = PublicClub(group, founder, devices, browsers)
    async with accepting_keys(group, browsers):
        await club.talk()
        for _ in range(3):
            chosen = chance.sample(club.steps(), 3)
            await asyncio.gather(*(tolerating_refusal(step) for step in chosen))
            await asyncio.sleep(chance.random() * 2)
        for one in devices:
            await rejoin(one, group)
        for browser in browsers:
            if not any(each["groupId"] == group for each in (await browser.view())["groups"]):
                with suppress(FaultError):
                    await browser("joinPublic", group)
        await club.talk()


async def rejoin(device: Device, group: str) -> None:
    """Join again if a step left the group and could not join."""
    if UUID(group) not in {each.group_id for each in await device.client.groups()}:
        with suppress(ClientError):
            await device.sync.membership.join(UUID(group))
