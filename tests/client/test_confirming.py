"""The library says that it has a page once it has stored it, and then at once: nothing else counts as fetched."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from uuid import UUID

import pytest

from conclave.client import Client, Format, GroupGone, History, MessageArrived, Online, PlaintextCodec, Sync
from conclave.client.codec import Readable
from conclave.client.history.store import History as Store
from conclave.wire.results import FetchedMessage
from tests.conftest import Running
from tests.support.client import PASSWORD
from tests.support.server import PATIENCE, until


class Two:
    """Alice and Bob in a group that deletes what both have fetched. Alice sends, Bob's history is in a file."""

    def __init__(self, running: Running, alice: Client, bob: Client, group: UUID, path: Path) -> None:
        self.running, self.alice, self.bob, self.group = running, alice, bob, group
        self._path = path

    def history(self) -> History:
        return History(self._path, clock=self.running.clock)

    def sync(self, history: History) -> Sync:
        return Sync(self.bob, history, PlaintextCodec())

    async def send(self, count: int) -> None:
        for number in range(count):
            await self.alice.send(self.group, b"text %d" % number)

    async def watermark(self) -> int:
        sql = "SELECT watermark FROM members JOIN users USING (user_id) WHERE username = 'bob'"
        return int((await self.running.query(sql))[0][0])

    async def counts(self, number: int) -> None:
        """Wait until Bob counts as having everything up to a number."""
        async with asyncio.timeout(PATIENCE):
            while await self.watermark() != number:
                await asyncio.sleep(0.01)


@pytest.fixture(params=Format, ids=lambda each: each.name.lower())
async def two(running: Running, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Two]:
    async with Client(running.url) as alice, Client(running.url, written_in=request.param) as bob:
        for name, each in (("alice", alice), ("bob", bob)):
            await each.register(name, PASSWORD)
            await each.login(name, PASSWORD)
        with History() as history:
            group = await Sync(alice, history, PlaintextCodec()).membership.create("club", public=True)
        await alice.update_group(group, expiry=0)
        await bob.join(group)
        yield Two(running, alice, bob, group, tmp_path / "bob.db")


async def test_what_a_call_returns_counts_once_the_next_one_says_so(two: Two) -> None:
    await two.send(3)
    assert len(await two.bob.fetch(two.group, limit=2)) == 2
    await two.running.settle()
    assert await two.watermark() == 0
    assert len(await two.bob.fetch(two.group, 2)) == 1
    await two.counts(2)


async def test_a_page_is_confirmed_while_the_application_is_busy_with_it(two: Two) -> None:
    with two.history() as history:
        async with two.sync(history) as sync:
            async for news in sync:
                if isinstance(news, Online):
                    await two.send(1)
                if isinstance(news, MessageArrived):
                    await two.counts(1)  # nothing more comes, and nothing more is asked of the library
                    break


async def test_a_page_is_confirmed_though_the_application_ends_with_it(two: Two) -> None:
    with two.history() as history:
        await two.send(1)
        async with two.sync(history) as sync:
            async for news in sync:
                if isinstance(news, MessageArrived):
                    await two.send(1)
                    if news.message.sequence_num == 2:
                        break
        assert history.fetched_up_to(two.group) == 2
        await two.counts(2)


async def test_a_page_that_cannot_be_stored_is_not_confirmed(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    await two.send(2)

    def fail(*_: object, **__: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    with two.history() as history:
        monkeypatch.setattr(Store, "store", fail)
        async with two.sync(history) as sync:
            with pytest.raises(sqlite3.OperationalError):
                _ = [news async for news in sync]
    await two.running.settle()
    assert await two.watermark() == 0


class Leaving(PlaintextCodec):
    """It notes what it has to decode of a group that it has forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self.forgotten = set[UUID]()
        self.decoded = list[int]()

    def forget(self, group_id: UUID) -> None:
        self.forgotten.add(group_id)
        super().forget(group_id)

    def decode(self, group_id: UUID, messages: Sequence[FetchedMessage]) -> list[Readable]:
        if group_id in self.forgotten:
            self.decoded += [each.sequence_num for each in messages]
        return super().decode(group_id, messages)


async def test_what_was_asked_for_before_the_user_left_is_neither_decoded_nor_stored(two: Two) -> None:
    codec = Leaving()
    with two.history() as history:
        await two.send(1)
        async with Sync(two.bob, history, codec) as sync:
            sync._mirror._page_size = 1
            async for news in sync:
                match news:
                    case MessageArrived(message) if message.sequence_num == 1:
                        await two.send(2)
                    case MessageArrived():
                        await until(lambda: not sync._mirror._page_requests)  # the next page is there
                        await sync.leave(two.group)
                    case GroupGone():
                        break
            assert two.group not in history.groups()
            assert history.messages(two.group) == []
            assert codec.decoded == []
