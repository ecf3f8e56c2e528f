"""Two clients over a link that drops half of all connections: each message arrives exactly once, and in order."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

import pytest

from conclave.client import Backoff, Client, Format, History, Message, MessageArrived, PlaintextCodec, Sync
from tests.support import sample
from tests.support.client import PASSWORD
from tests.support.cutting import bad_link
from tests.support.server import ServerProcess

MESSAGES = sample.amount(2_000, 200)
EAGER = Backoff(first=0.002, most=0.02, tries=200)
PATIENCE = 900


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    (tmp_path / "server").mkdir()
    with ServerProcess(tmp_path / "server", '[cleanup]\nengine = "sql"\ndisk_reserve = "0"\n') as running:
        yield running


@asynccontextmanager
async def logged_in(straight: str, through: str, name: str, written_in: Format) -> AsyncIterator[Client]:
    """Begin a session over a good link, and go on over the bad one."""
    async with Client(straight, written_in=written_in) as client:
        await client.register(name, PASSWORD)
        session = await client.login(name, PASSWORD)
    async with Client(through, written_in=written_in, backoff=EAGER, chance=random.Random(1).random) as client:
        client.resume(type(session)(through, session.user_id, session.username, session.token, written_in))
        yield client


async def hear(sync: Sync, count: int, heard: list[Message]) -> None:
    async for news in sync:
        if isinstance(news, MessageArrived):
            heard.append(news.message)
            if len(heard) == count:
                return


@pytest.mark.system
@pytest.mark.parametrize("keeps", sample.some([True, False], 1, "where a history is"))
async def test_each_message_arrives_exactly_once_and_in_order(
    server: ServerProcess, tmp_path: Path, keeps: bool
) -> None:
    chance = sample.chance("bad link")
    async with (
        bad_link(server.url, chance) as (url, link),
        logged_in(server.url, url, "alice", Format.JSON) as alice,
        logged_in(server.url, url, "bob", Format.PROTOBUF) as bob,
    ):
        async with Client(server.url) as straight:
            straight.resume(type(alice.session)(server.url, *session_of(alice)))
            group = await straight.create_group("group")
            await straight.commit(group, group_info=b"info")
            await straight.update_group(group, visibility="public")
            straight.resume(type(bob.session)(server.url, *session_of(bob)))
            await straight.join(group)
        heard: dict[str, list[Message]] = {"alice": [], "bob": []}
        paths = [tmp_path / "alice.db", tmp_path / "bob.db"] if keeps else [None, None]
        with History(paths[0]) as one, History(paths[1]) as other:
            async with (
                Sync(alice, one, PlaintextCodec(), backoff=EAGER) as first,
                Sync(bob, other, PlaintextCodec(), backoff=EAGER) as second,
                asyncio.timeout(PATIENCE),
            ):
                await asyncio.gather(
                    hear(first, MESSAGES, heard["alice"]),
                    hear(second, MESSAGES, heard["bob"]),
                    talk(first, group, "alice"),
                    talk(second, group, "bob"),
                )
            stored = [[each.sequence_num for each in kept.messages(group, limit=3_000)] for kept in (one, other)]
    said = {f"{name} {turn}" for name in heard for turn in range(MESSAGES // 2)}
    for messages in heard.values():
        assert [each.sequence_num for each in messages] == list(range(1, MESSAGES + 1)), "once each, and in order"
        assert {each.text for each in messages} == said
        for name in heard:
            own = [each.text for each in messages if str(each.text).startswith(name)]
            assert own == [f"{name} {turn}" for turn in range(MESSAGES // 2)], "as they were sent"
    assert stored == [list(range(1, MESSAGES + 1))] * 2
    assert link.cut_early > 20, "the link was bad enough"


def session_of(client: Client) -> tuple[UUID, str, str, Format]:
    session = client.session
    return session.user_id, session.username, session.token, session.written_in


async def talk(sync: Sync, group: UUID, name: str) -> None:
    for turn in range(MESSAGES // 2):
        await sync.send(group, f"{name} {turn}")
