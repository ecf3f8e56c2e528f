"""With ``retain_commits`` a commit does not expire while a member has not fetched it: as clients see it."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from conclave.cache.groups import GroupCache
from conclave.config.cleanup import CleanupConfig
from conclave.config.retention import RetentionConfig
from conclave.config.settings import Config
from conclave.retention.policy import KEEP
from tests.conftest import Cleanup, Running, StartServer
from tests.support.archive import Mover
from tests.support.client import Client, encode
from tests.support.forensics import StoreSearch
from tests.support.protobuf import ProtobufClient

HOUR, DAY = 3600, 86_400

both_formats = pytest.mark.parametrize("kind", [Client, ProtobufClient])
both_tiers = pytest.mark.parametrize("archived", [False, True], ids=["hot", "archived"])


@pytest.fixture
def config(config: Config) -> Config:
    return replace(config, retention=RetentionConfig(retain_commits=True), cleanup=CleanupConfig(engine="sql"))


@pytest.fixture
async def running(config: Config, start_server: StartServer) -> AsyncIterator[Running]:
    async with start_server(config) as server:
        yield server


class Talk:
    """Alice, bob and a group whose messages live for an hour: a message, a commit, a message, a commit; none fetched.

    Alice has sent them all.
    """

    def __init__(self, running: Running, kind: type[Client]) -> None:
        self.running = running
        self.kind = kind

    async def begin(self, *, archived: bool, expiry: int = HOUR) -> "Talk":
        self.alice, self.bob = await self.somebody("alice"), await self.somebody("bob")
        self.group = await self.alice.create_group("friends", expiry=expiry)
        await self.bob.join(self.group)
        for _ in range(2):
            await self.alice.send(self.group)
            await self.commit()
        self.sent_at = self.running.clock.now()
        if archived:
            Mover(self.running.config).move(self.group, 4)
        return self

    async def somebody(self, name: str) -> Client:
        return await self.kind.register(self.running.http, self.running.url, name)

    async def commit(self, body: bytes = b"a commit") -> None:
        await self.alice.post(f"/groups/{self.group}/commit", commit_message=encode(body))

    async def seen(self, by: Client, after: int = 0, limit: int = 100) -> list[int]:
        """What somebody fetches. The watermark has moved then."""
        numbers = [each.sequence_num for each in await by.fetch(self.group, after, limit)]
        await self.running.settle()
        return numbers

    async def expiries(self, by: Client, limit: int = 100) -> dict[int, int]:
        page = await by.get(f"/groups/{self.group}/messages", limit=limit)
        await self.running.settle()
        return {each["sequence_num"]: each["expires_at"] for each in page["messages"]}


@both_formats
@both_tiers
async def test_a_commit_past_its_time_is_served_until_all_have_it(
    running: Running, kind: type[Client], archived: bool
) -> None:
    talk = await Talk(running, kind).begin(archived=archived)
    ends = talk.sent_at + HOUR + 1
    assert await talk.expiries(talk.alice) == {1: ends, 2: 0, 3: ends, 4: 0}, "bob has none of them"
    running.clock.advance(HOUR + 1)
    for _ in range(2):
        assert await talk.seen(talk.alice) == [2, 4]
    assert await talk.expiries(talk.bob, limit=1) == {2: 0}
    assert await talk.seen(talk.alice) == [4], "both have the first"
    assert await talk.seen(talk.bob) == [4]
    for each in (talk.alice, talk.bob):
        assert await talk.seen(each) == []


@both_formats
@both_tiers
async def test_a_commit_that_all_have_in_time_has_an_end_like_others(
    running: Running, kind: type[Client], archived: bool
) -> None:
    talk = await Talk(running, kind).begin(archived=archived)
    ends = talk.sent_at + HOUR + 1
    await talk.seen(talk.bob)
    assert await talk.expiries(talk.bob) == dict.fromkeys((1, 2, 3, 4), ends)
    running.clock.advance(HOUR)
    assert await talk.seen(talk.bob) == [1, 2, 3, 4]
    running.clock.advance(1)
    assert await talk.seen(talk.bob) == []


@both_formats
@both_tiers
async def test_a_joiner_brings_no_commit_back_and_holds_back_those_that_are_kept(
    running: Running, kind: type[Client], archived: bool
) -> None:
    talk = await Talk(running, kind).begin(archived=archived)
    await talk.seen(talk.bob, limit=2)
    running.clock.advance(HOUR + 1)
    assert await talk.seen(talk.alice) == [4]
    carol = await talk.somebody("carol")
    await carol.join(talk.group)
    for each in (carol, talk.alice, talk.bob):
        assert await talk.seen(each) == [4]
    assert await talk.seen(carol) == []
    dora = await talk.somebody("dora")
    await dora.join(talk.group)
    assert await talk.seen(dora) == []


@both_tiers
async def test_who_leaves_holds_no_commit_back(running: Running, archived: bool) -> None:
    talk = await Talk(running, Client).begin(archived=archived)
    running.clock.advance(HOUR + 1)
    assert await talk.seen(talk.alice) == [2, 4]
    await talk.bob.leave(talk.group)
    assert await talk.seen(talk.alice) == []
    await talk.bob.join(talk.group)
    for each in (talk.alice, talk.bob):
        assert await talk.seen(each) == []


@both_formats
@both_tiers
async def test_a_policy_change_neither_loses_nor_revives_a_commit(
    running: Running, kind: type[Client], archived: bool
) -> None:
    talk = await Talk(running, kind).begin(archived=archived)
    await talk.seen(talk.bob, limit=2)
    running.clock.advance(HOUR + 1)
    for expiry in (DAY, 1, KEEP, HOUR):
        await talk.alice.set_expiry(talk.group, expiry)
        assert await talk.seen(talk.alice) == [4], expiry
    assert await talk.seen(talk.bob) == [4]
    for expiry in (DAY, KEEP):
        await talk.alice.set_expiry(talk.group, expiry)
        for each in (talk.alice, talk.bob):
            assert await talk.seen(each) == [], "it is over, whatever comes"


@both_tiers
async def test_through_delete_after_fetch_a_commit_is_held_like_any_message(running: Running, archived: bool) -> None:
    talk = await Talk(running, Client).begin(archived=archived)
    await talk.seen(talk.bob, limit=2)
    running.clock.advance(HOUR + 1)
    await talk.alice.set_expiry(talk.group, 0)
    assert await talk.seen(talk.alice) == [4]
    await talk.alice.set_expiry(talk.group, HOUR)
    assert await talk.seen(talk.alice) == [4], "bob still has not got it"
    assert await talk.seen(talk.bob) == [4]
    assert await talk.seen(talk.alice) == []


@both_tiers
async def test_setting_it_revives_no_commit_and_unsetting_it_lets_go(
    config: Config, start_server: StartServer, archived: bool
) -> None:
    plain = replace(config, retention=RetentionConfig())
    async with start_server(plain) as running:
        talk = await Talk(running, Client).begin(archived=archived)
        running.clock.advance(HOUR + 1)
        await talk.commit()
        assert await talk.seen(talk.alice) == [5]
    async with start_server(config) as running:
        alice = Client(running.http, running.url, talk.alice.token)
        assert await alice.numbers(talk.group) == [5]
        running.clock.advance(HOUR + 1)
        assert await alice.numbers(talk.group) == [5], "it is kept"
    async with start_server(plain, accepts_change=True) as running:
        alice = Client(running.http, running.url, talk.alice.token)
        assert await alice.numbers(talk.group) == []


@pytest.mark.parametrize("remembers", [True, False])
async def test_what_is_remembered_of_a_group_is_no_other_answer(
    running: Running, monkeypatch: pytest.MonkeyPatch, remembers: bool
) -> None:
    """Which commits are kept, changes with each fetch, which touches nothing that a server remembers."""
    if not remembers:
        monkeypatch.setattr(GroupCache, "page", lambda *_: None)
    talk = await Talk(running, Client).begin(archived=False)
    for _ in range(2):
        assert await talk.seen(talk.alice) == [1, 2, 3, 4]
    running.clock.advance(HOUR + 1)
    for _ in range(2):
        assert await talk.seen(talk.alice) == [2, 4]
    await talk.commit()
    assert await talk.seen(talk.alice) == [2, 4, 5]
    assert await talk.seen(talk.bob) == [2, 4, 5]
    assert await talk.seen(talk.alice) == [5]


async def test_a_kept_commit_outlives_runs_and_then_its_bytes_go(
    config: Config, start_server: StartServer, cleanup: Cleanup
) -> None:
    """Hidden at once, gone from the files after a run; what should stay has stayed.

    The files are read while no server of this process has them open: closing them would let go of its locks.
    """
    search, folder = StoreSearch(), config.database.parent
    async with start_server(config) as running:
        talk = Talk(running, Client)
        talk.alice, talk.bob = await talk.somebody("alice"), await talk.somebody("bob")
        talk.group = await talk.alice.create_group("friends", expiry=HOUR)
        await talk.bob.join(talk.group)
        await talk.alice.send(talk.group, search.body(1, 300))
        for number in (2, 3):
            await talk.commit(search.body(number, 300))
        running.clock.advance(HOUR + 1)
        await cleanup(running)
        assert await talk.seen(talk.alice) == [2, 3]
    assert search.numbers_in(folder) == {2, 3}
    async with start_server(config) as running:
        alice, bob = (Client(running.http, running.url, each.token) for each in (talk.alice, talk.bob))
        assert [each.sequence_num for each in await bob.fetch(talk.group, limit=1)] == [2]
        await running.settle()
        assert await alice.numbers(talk.group) == [3]
        await cleanup(running)
        assert await alice.numbers(talk.group) == [3]
    assert search.numbers_in(folder) == {3}
