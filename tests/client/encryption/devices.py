"""Devices that encrypt, at a real server: what each has said and heard, and its keys in a file."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from uuid import UUID

from conclave.client import Backoff, Client, History, MessageArrived, News, Online, Sync
from conclave.client.encryption.codec import MlsCodec
from conclave.client.encryption.view import EncryptionStatus
from conclave.client.mls import MlsGroup
from conclave.clock import Clock
from conclave.wire.events import InviteReceived
from conclave.wire.results import GroupDetails
from tests.client.encryption.failpoints import Failpoints
from tests.support.client import PASSWORD
from tests.support.server import PATIENCE

QUICK = Backoff(first=0.01, most=0.05, max_wait=1.0)
N = TypeVar("N")


class Device:
    """A user's client with its history and its keys. It takes every invite, and sends on if a key has changed."""

    def __init__(self, url: str, name: str, folder: Path, clock: Clock) -> None:
        self.client = Client(url, backoff=QUICK)
        self.name, self.folder, self.clock = name, folder, clock
        self.told: list[News] = []
        self.takes_invites = self.accept_changed_keys = True
        self.hears_time = False
        """Whether it goes by the server's time, which stands still in most tests."""
        self.ahead = 0.0
        """So many seconds its clocks are ahead: a test lets days pass for its keys."""
        self._listening: asyncio.Task[None] | None = None

    async def begin(self, *, register: bool = True) -> None:
        """Open an account, and log in."""
        await self.client.__aenter__()
        if register:
            await self.client.register(self.name, PASSWORD)
        await self.client.login(self.name, PASSWORD)

    @property
    def user_id(self) -> UUID:
        return self.client.session.user_id

    @property
    def keys_path(self) -> Path:
        return self.folder / f"{self.name}.keys"

    @property
    def is_running(self) -> bool:
        return self._listening is not None

    def open(self, points: Failpoints | None = None) -> None:
        """Open the files; nothing is read yet."""
        self.history = History(self.folder / f"{self.name}.history", clock=self.clock)
        self.codec = MlsCodec(self.keys_path, self.user_id, clock=lambda: time.monotonic() + self.ahead)
        self.sync = Sync(
            self.client, self.history, self.codec, backoff=QUICK, accept_changed_keys=self.accept_changed_keys
        )
        if not self.hears_time:
            self.codec.use_time(lambda: int(time.time() + self.ahead))
        if points:
            points.arm(self.client, self.codec, self.history)

    async def connect(self, points: Failpoints | None = None) -> None:
        """Start, as a program does; perhaps one that dies."""
        self.open(points)
        self._listening = asyncio.create_task(self._listen())
        await self.until(lambda: any(isinstance(each, Online) for each in self.told))
        await self.until(lambda: self.sync._key_package_stock._has_begun)

    async def _listen(self) -> None:
        async with self.sync:
            if not self.hears_time:
                self.client.transport.on_time = lambda _: None
            async for news in self.sync:
                self.told.append(news)
                if isinstance(news, InviteReceived) and self.takes_invites:
                    await self.client.accept_invite(news.invite_id)

    async def stop(self) -> None:
        """Stop at once, wherever it is."""
        if self._listening:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
            self._listening = None
            self.history.close()
            self.codec.close()

    async def restart(self) -> None:
        await self.stop()
        await self.connect()

    async def end(self) -> None:
        await self.stop()
        await self.client.__aexit__(None, None, None)

    async def until(self, condition: Callable[[], N]) -> N:
        """Wait until something is so."""
        async with asyncio.timeout(PATIENCE):
            while not (found := condition()):
                self.check()
                await asyncio.sleep(0.02)
            return found

    def check(self) -> None:
        """Raise what has ended the program."""
        if self._listening and self._listening.done():
            self._listening.result()

    def all_told(self, kind: type[N]) -> list[N]:
        return [each for each in self.told if isinstance(each, kind)]

    async def hears(self, text: str, *, times: int = 1) -> None:
        """Wait for a message."""
        await self.until(lambda: self.texts_told().count(text) >= times)

    def texts_told(self) -> list[str | None]:
        return [each.message.text for each in self.all_told(MessageArrived)]

    def shown(self, group: UUID) -> list[str | None]:
        return [each.text for each in self.history.messages(group)]

    def is_in(self, group: UUID) -> bool:
        return self.codec.view(group).status is EncryptionStatus.ENCRYPTED

    def mls(self, group: UUID) -> MlsGroup:
        """The state of a group."""
        record = self.codec.record(group)
        assert record is not None
        assert record.group is not None
        return record.group

    async def until_groups(self, count: int) -> tuple[GroupDetails, ...]:
        """Wait until the user is in so many groups, and return them."""
        async with asyncio.timeout(PATIENCE):
            while len(found := await self.client.groups()) != count:
                await asyncio.sleep(0.05)
        return found

    async def renew(self, group: UUID) -> None:
        """Commit new own keys, as a client does from time to time."""
        change = self.codec.commit(group)
        await self.client.commit(group, commit_message=change.commit, group_info=change.group_info)
        self.sync.request_fetch(group)

    async def comes_in(self, group: UUID) -> None:
        await self.until(lambda: self.is_in(group))


def compared(*codecs: MlsCodec) -> None:
    """Have codecs go on that have no server to compare their keys with once they have come in."""
    for codec in codecs:
        for group in codec.groups():
            codec._agenda.group(group).is_new = False


async def agree(group: UUID, *devices: Device) -> None:
    """Wait until all are in one epoch of one group, with all of them in it and nobody else."""

    def sights() -> set[tuple[int, bytes, frozenset[bytes]]]:
        return {
            (
                mls.epoch,
                mls.epoch_authenticator,
                frozenset(each.credential.identity for each in mls.members().values()),
            )
            for mls in (each.mls(group) for each in devices)
        }

    wanted = frozenset(each.user_id.bytes for each in devices)

    def is_one() -> bool:
        if not all(each.is_in(group) for each in devices):
            return False
        found = sights()
        return len(found) == 1 and next(iter(found))[2] == wanted

    try:
        await devices[0].until(is_one)
    except TimeoutError:
        views = {each.name: (each.codec.view(group), each.codec.record(group)) for each in devices}
        raise AssertionError(f"they do not agree: {views}") from None


async def crossing(alice: Device, bob: Device, carol: Device) -> tuple[UUID, bytes]:
    """Have Alice and Bob in a group, and then Carol; return it, and a text of Alice's from before Carol came in."""
    group = await alice.sync.membership.create("club", public=True)
    await bob.sync.membership.join(group)
    await agree(group, alice, bob)
    late = alice.codec.encode(group, "crossed")
    await carol.sync.membership.join(group)
    await agree(group, alice, bob, carol)
    return group, late


async def talk(group: UUID, *devices: Device) -> None:
    """Everybody says something that everybody reads."""
    for each in devices:
        text = f"{each.name} at epoch {each.mls(group).epoch}"
        await each.sync.send(group, text)
        for other in devices:
            await other.hears(text)
