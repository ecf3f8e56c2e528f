"""One group with existing clients: the live peer speaks MLS as they do, and talks to the server as they do."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from uuid import UUID

import pytest

from conclave.client import Client
from conclave.client.encryption.headers import GroupInfoHeader, read_group_info
from conclave.client.mls import MlsGroup
from conclave.wire.results import FetchedMessage
from tests.client.encryption.conftest import NewDevice
from tests.client.encryption.devices import QUICK, Device
from tests.client.mls.actors import Peer as MlsPeer, PeerProcess
from tests.conftest import Running
from tests.support.client import PASSWORD
from tests.support.server import PATIENCE

PEER = os.environ.get("CONCLAVE_MLS_PEER")
"""The program of the live peer."""


class Existing:
    """An existing client of a user's."""

    def __init__(self, client: Client, process: PeerProcess) -> None:
        self.client = client
        self.mls = MlsPeer(process, client.session.user_id)
        self.read: list[str] = []
        self._up_to = 0

    async def upload(self) -> None:
        packages = [self.mls.key_package() for _ in range(5)]
        last_resort = bytes.fromhex(self.mls.ask("key_package", last_resort=True)["key_package"])
        await self.client.reset_account()
        await self.client.upload_key_packages(packages, last_resort)

    async def creates(self, name: str) -> UUID:
        group = await self.client.create_group(name)
        self.mls.create()
        mls_id = self.mls.ask("info")["group_id"]
        await self.client.commit(group, group_info=self.mls.group_info(), mls_group_id=mls_id)
        return group

    async def invites(self, group: UUID, user_id: UUID) -> None:
        [taken] = await self.client.key_packages_for(group, [user_id])
        answer = self.mls.ask("commit", add=[taken.key_package_data.hex()], single_welcome=True)
        commit, welcome, info = (bytes.fromhex(answer[each]) for each in ("commit", "welcome", "group_info"))
        await self.client.deposit_invite(group, user_id, commit, welcome, info)

    async def accepts(self) -> None:
        [invite] = await self.client.invites()
        await self.client.accept_invite(invite.invite_id)
        [welcome] = await self.client.welcomes()
        self.mls.join(welcome.welcome_message)
        await self.client.accept_welcome(welcome.welcome_id)

    async def joins_again(self, group: UUID) -> None:
        """Come in by itself: the invite has led into an epoch that nobody else is in."""
        commit = self.mls.external(await self.client.group_info(group), resync=False)
        self._up_to = (await self.everything(group))[-1].sequence_num
        await self.client.external_join(group, commit)

    async def commits(self, group: UUID) -> None:
        """Renew its keys."""
        answer = self.mls.ask("commit")
        commit, info = (bytes.fromhex(answer[each]) for each in ("commit", "group_info"))
        await self.client.commit(group, commit_message=commit, group_info=info)
        await self.fetches(group)

    async def everything(self, group: UUID) -> tuple[FetchedMessage, ...]:
        return await self.client.fetch(group, self._up_to)

    async def fetches(self, group: UUID) -> None:
        """Take what came; what cannot be taken is passed over, as existing clients do."""
        for message in await self.everything(group):
            self._up_to = message.sequence_num
            try:
                answer = self.mls.ask("process", message=message.mls_message.hex())
            except AssertionError:
                continue
            if answer["kind"] == "application":
                self.read.append(bytes.fromhex(answer["plaintext"]).decode())

    async def says(self, group: UUID, text: str) -> None:
        await self.fetches(group)
        await self.client.send(group, self.mls.encrypt(text.encode()))

    async def hears(self, group: UUID, text: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while text not in self.read:
                await self.fetches(group)
                await asyncio.sleep(0.05)


@asynccontextmanager
async def existing_client(url: str, name: str, process: PeerProcess) -> AsyncIterator[Existing]:
    """Have an existing client of a new user's while the block lasts."""
    async with Client(url, backoff=QUICK) as client:
        await client.register(name, PASSWORD)
        await client.login(name, PASSWORD)
        made = Existing(client, process)
        await made.upload()
        yield made


NewExisting = Callable[[str], Awaitable[Existing]]


@pytest.fixture
async def existing(running: Running) -> AsyncIterator[NewExisting]:
    if PEER is None:
        pytest.skip("CONCLAVE_MLS_PEER names no live peer")
    async with AsyncExitStack() as stack:
        process = stack.enter_context(closing(PeerProcess(Path(PEER))))
        yield lambda name: stack.enter_async_context(existing_client(running.url, name, process))


async def talk(group: UUID, ours: Device, theirs: Existing) -> None:
    await theirs.says(group, f"from {theirs.mls.name}")
    await ours.hears(f"from {theirs.mls.name}")
    await ours.sync.send(group, f"from {ours.name}")
    await theirs.fetches(group)
    assert f"from {ours.name}" in theirs.read
    assert ours.mls(group).epoch_authenticator.hex() == theirs.mls.ask("info")["epoch_authenticator"]


async def test_an_existing_client_takes_our_invite(device: NewDevice, existing: NewExisting) -> None:
    alice, eve = await device("alice"), await existing("eve")
    group = await alice.sync.membership.create("club")
    await alice.sync.membership.invite(group, "eve")
    await eve.accepts()
    await alice.until(lambda: len(alice.mls(group).members()) == 2)
    await talk(group, alice, eve)


async def test_an_existing_client_invites_us(device: NewDevice, existing: NewExisting) -> None:
    bob, eve = await device("bob"), await existing("eve")
    group = await eve.creates("club")
    await eve.invites(group, bob.user_id)
    await bob.until_groups(1)
    await bob.comes_in(group)
    await talk(group, bob, eve)


async def test_an_invite_during_which_an_epoch_passes_ends_with_both_in_one(
    device: NewDevice, existing: NewExisting
) -> None:
    """Invited by us, the existing client has to ask in again; invited by it, ours does so by itself."""
    alice, eve = await device("alice"), await existing("eve")
    group = await alice.sync.membership.create("club")
    await alice.sync.membership.invite(group, "eve")
    await alice.renew(group)
    await alice.until(lambda: alice.mls(group).epoch == 1)
    await eve.accepts()
    async with asyncio.timeout(PATIENCE):
        while not _is_of(read_group_info(await eve.client.group_info(group)), alice.mls(group)):
            await asyncio.sleep(0.05)
    await eve.joins_again(group)
    await alice.until(lambda: len(alice.mls(group).members()) == 2)
    await talk(group, alice, eve)


def _is_of(info: GroupInfoHeader | None, group: MlsGroup) -> bool:
    return info is not None and info.tag == group.confirmation_tag


async def test_our_invite_by_an_existing_client_that_went_stale_heals_by_itself(
    device: NewDevice, existing: NewExisting
) -> None:
    bob, eve = await device("bob"), await existing("eve")
    group = await eve.creates("club")
    bob.takes_invites = False
    await eve.invites(group, bob.user_id)
    eve.mls.ask("clear_pending")
    await eve.commits(group)
    [invite] = await bob.client.invites()
    await bob.client.accept_invite(invite.invite_id)
    await eve.client.commit(group, group_info=eve.mls.group_info())
    await bob.comes_in(group)
    await eve.fetches(group)
    await talk(group, bob, eve)
