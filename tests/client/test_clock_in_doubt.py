"""What the server's clock hides while it is in doubt comes once it is right, by itself and once."""

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from conclave.client import Client, History, MessageArrived, PlaintextCodec, Readable
from conclave.client.history.pages import IncomingMessage
from conclave.client.history.server_clock import ANSWER_INTERVAL_SECONDS
from conclave.client.membership import MembershipManager
from conclave.client.mirror import Mirror
from conclave.clock import FakeClock
from conclave.config.cleanup import CleanupConfig
from conclave.config.retention import RetentionConfig
from conclave.config.settings import Config
from conclave.wire.results import FetchedMessage
from tests.api.test_clock_in_doubt import JUMP, WEEK, run, set_right, watermarks
from tests.client.test_history import ALICE, HOUR, Kept
from tests.client.test_server_clock import Dated
from tests.client.test_sync import QUICK
from tests.conftest import Running, StartServer
from tests.support.archive import Mover
from tests.support.client import PASSWORD
from tests.support.dating import dating_link
from tests.support.server import until


@pytest.fixture(params=["response"])
def confirmation(request: pytest.FixtureRequest) -> str:
    """What says that a member has a page."""
    return str(request.param)


@pytest.fixture
def config(config: Config, confirmation: str) -> Config:
    settings = RetentionConfig(fetch_hold_limit=WEEK, fetch_confirmation=confirmation)
    return replace(config, retention=settings, cleanup=CleanupConfig(engine="sql", disk_reserve=0))


@pytest.fixture
async def running(config: Config, start_server: StartServer) -> AsyncIterator[Running]:
    async with start_server(config) as server:
        yield server


@pytest.fixture(autouse=True)
def decoded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[bytes]]:
    """Count how often each payload is decoded: by MLS it could be only once."""
    counts, decode = Counter[bytes](), PlaintextCodec.decode

    def count(codec: PlaintextCodec, group_id: UUID, messages: Sequence[FetchedMessage]) -> list[Readable]:
        counts.update(each.mls_message for each in messages)
        return decode(codec, group_id, messages)

    monkeypatch.setattr(PlaintextCodec, "decode", count)
    yield counts
    assert {*counts.values()} <= {1}


class Pair:
    """Alice, and a device of Bob's with a clock of its own, in a group that deletes what both have fetched."""

    def __init__(self, running: Running, alice: Client, bob: Dated, group: UUID) -> None:
        self.running, self.alice, self.bob, self.group = running, alice, bob, group
        self.arrived: list[int] = []

    async def send(self, count: int, seconds: int = 0) -> None:
        for _ in range(count):
            await self.alice.send(self.group, uuid4().hex.encode(), self_destruct_seconds=seconds)

    async def hear(self, *numbers: int) -> None:
        """Have Bob told these messages, in this order, and no others between them."""
        for number in numbers:
            news = await self.bob.hear_a(MessageArrived)
            assert news.message.sequence_num == number

    def let_pass(self, seconds: int) -> None:
        self.running.clock.advance(seconds)
        self.bob_clock.advance(seconds)

    @property
    def bob_clock(self) -> FakeClock:
        assert isinstance(self.bob._clock, FakeClock)
        return self.bob._clock

    async def restart(self) -> None:
        await self.bob.disconnect()
        await self.bob.connect()


@pytest.fixture
async def pair(running: Running, tmp_path: Path) -> AsyncIterator[Pair]:
    async with dating_link(running.url, running.clock.now) as (url, _), AsyncExitStack() as stack:
        alice = await stack.enter_async_context(Client(running.url))
        await alice.register("alice", PASSWORD)
        await alice.login("alice", PASSWORD)
        group = await MembershipManager(alice, PlaintextCodec()).create("club")
        await alice.update_group(group, expiry=0, visibility="public")
        bob = Dated(running, "bob", alice.transport.written_in, FakeClock(running.clock.now()), tmp_path / "bob.db")
        bob.client = Client(url, backoff=QUICK)
        stack.push_async_callback(bob.end)
        await bob.begin()
        await bob.client.join(group)
        await bob.client.external_join(group)
        await bob.connect()
        await bob.disconnect()
        yield Pair(running, alice, bob, group)


def archive(pair: Pair, up_to: int) -> None:
    mover = Mover(pair.running.config)
    mover.move(str(pair.group), up_to)
    mover.drop_copies(str(pair.group))


@pytest.mark.parametrize("place", ["hot", "archived"])
@pytest.mark.parametrize("restarts", [False, True], ids=["", "restart"])
@pytest.mark.parametrize("confirmation", ["response", "next_fetch"], indirect=True)
async def test_a_client_comes_back_for_what_only_the_clock_has_hidden(
    pair: Pair, place: str, *, restarts: bool
) -> None:
    await pair.send(5)
    if place == "archived":
        archive(pair, 5)
    pair.running.clock.set_wrong(JUMP)
    await pair.send(1)
    await pair.bob.connect()
    await pair.hear(6)
    assert (await watermarks(pair.running))["bob"] == 0
    if restarts:
        await pair.bob.disconnect()
        await pair.bob.connect()
        await pair.bob.disconnect()
    await set_right(pair.running)
    if restarts:
        await pair.bob.connect()
    else:
        pair.let_pass(ANSWER_INTERVAL_SECONDS)
    await pair.hear(1, 2, 3, 4, 5)
    await until(lambda: pair.bob.history.refetch_after(pair.group) is None)
    await pair.send(1)
    await pair.hear(7)
    assert not [each for each in pair.bob.told if isinstance(each, MessageArrived)]
    assert [each.sequence_num for each in pair.bob.history.messages(pair.group)] == [1, 2, 3, 4, 5, 6, 7]
    await pair.restart()  # the last page is confirmed by then
    assert (await watermarks(pair.running))["bob"] == 7
    await pair.alice.fetch(pair.group)
    await pair.alice.fetch(pair.group, 7)
    if place == "hot":
        await run(pair.running)
        assert await pair.running.query("SELECT sequence_num FROM messages") == []


async def test_what_comes_late_is_told_once_however_often_the_client_is_killed(pair: Pair) -> None:
    """It is killed at each piece of news: the one that it had not handled yet comes again, as ever."""
    await pair.send(5)
    pair.running.clock.set_wrong(JUMP)
    await pair.send(2)
    told = list[int]()
    for doubted in (True, False):
        for _ in range(20):
            told += await killed_at_the_second(pair)
        if doubted:
            assert told == [6, 7, 7]
            await set_right(pair.running)
    assert told == [6, 7, 7, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert [each.sequence_num for each in pair.bob.history.messages(pair.group)] == [1, 2, 3, 4, 5, 6, 7]
    assert (await watermarks(pair.running))["bob"] == 7


async def killed_at_the_second(pair: Pair) -> list[int]:
    """Fetch until two messages are told, then stop; return which."""
    bob, told = pair.bob, list[int]()
    bob.history.close()
    bob.history = History(bob._path, clock=bob._clock)
    bob.client.transport.on_time = bob.history.record_server_time
    news = Mirror(bob.client, bob.history, PlaintextCodec()).fetch(pair.group)
    async for each in news:
        if isinstance(each, MessageArrived):
            told.append(each.message.sequence_num)
        if len(told) == 2:
            break
    await news.aclose()  # type: ignore[attr-defined]  # it is a generator
    return told


async def test_an_empty_page_in_doubt_is_asked_for_again(pair: Pair) -> None:
    await pair.send(2)
    pair.running.clock.set_wrong(JUMP)
    await pair.bob.connect()
    await pair.bob.client.me()
    await set_right(pair.running)
    pair.let_pass(ANSWER_INTERVAL_SECONDS)
    await pair.hear(1, 2)


async def test_what_has_expired_meanwhile_does_not_come_and_is_not_waited_for(pair: Pair) -> None:
    await pair.send(5)
    pair.running.clock.set_wrong(JUMP)
    await pair.send(1)
    await pair.bob.connect()
    await pair.hear(6)
    await pair.bob.disconnect()
    await set_right(pair.running)
    pair.let_pass(WEEK + 1)
    await pair.send(1)
    await pair.bob.connect()
    await pair.hear(7)
    await pair.restart()
    assert pair.bob.history.refetch_after(pair.group) is None
    assert [each.sequence_num for each in pair.bob.history.messages(pair.group)] == [6, 7]
    assert (await watermarks(pair.running))["bob"] == 7


def late(kept: Kept, *numbers: int, after: int = 0, seconds: int = 0, in_doubt: bool = False) -> list[int]:
    """Store a page; return what was new of it."""
    group = next(iter(kept.history.groups()))
    new = kept.history.not_fetched(group, numbers)
    arrived = [IncomingMessage(each, ALICE, b"text", kept.clock.now(), seconds) for each in numbers if each in new]
    assert kept.history.store(group, after, numbers[-1], arrived, numbers=numbers, in_doubt=in_doubt)
    return sorted(new)


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    kept = Kept(tmp_path)
    kept.history.set_expiry(uuid4(), -1)
    return kept


def unhandled(kept: Kept) -> list[int]:
    group = next(iter(kept.history.groups()))
    found = [each.sequence_num for each in kept.history.unhandled(group)]
    for each in found:
        kept.history.mark_handled(group, each)
    return found


def test_what_was_here_and_is_gone_does_not_come_back(kept: Kept) -> None:
    group = next(iter(kept.history.groups()))
    assert late(kept, 1, 2, in_doubt=True) == [1, 2]
    assert kept.history.refetch_after(group) is None, "nothing was left out"
    assert late(kept, 4, 6, 7, after=2, in_doubt=True) == [4, 6, 7]
    kept.history.forget(group, [4])
    kept.history.read(group, 7)
    assert unhandled(kept) == [1, 2, 6, 7]
    kept.history.close()
    kept.open()
    assert late(kept, 9, after=7, in_doubt=True) == [9]
    assert late(kept, 4, 5, 6, after=2) == [5]
    assert (kept.history.refetch_after(group), unhandled(kept)) == (6, [5])
    assert unhandled(kept) == [9]
    assert late(kept, 8, 9, 10, after=6) == [8, 10], "what had not come at all may come with it"
    assert (kept.history.refetch_after(group), kept.history.fetched_up_to(group)) == (None, 10)
    assert (unhandled(kept), unhandled(kept)) == ([8], [10])
    assert late(kept, 11, after=10) == [11]
    assert kept.history._connection.execute("SELECT count(*) FROM had").fetchone() == (0,)


def test_a_late_page_that_is_in_doubt_itself_is_stored_and_asked_for_again(kept: Kept) -> None:
    group = next(iter(kept.history.groups()))
    assert late(kept, 6, in_doubt=True) == [6]
    assert late(kept, 3, 6, in_doubt=True) == [3]
    assert kept.history.refetch_after(group) == 0
    assert late(kept, 1, 2, 3, 4, 5, 6) == [1, 2, 4, 5]
    assert kept.history.refetch_after(group) is None
    assert not kept.history.store(group, 0, 6, [], numbers=[6]), "another process was faster"


def test_the_timer_of_what_comes_late_and_counts_as_read_begins_when_it_comes(kept: Kept) -> None:
    group = next(iter(kept.history.groups()))
    late(kept, 2, in_doubt=True)
    kept.history.read(group, 2)
    kept.clock.advance(HOUR)
    late(kept, 1, 2, seconds=60)
    assert kept.shown(group) == [1, 2]
    kept.clock.advance(62)
    assert kept.shown(group) == [2]


def test_what_was_read_is_told_again_once_what_was_left_out_is_here(kept: Kept) -> None:
    """A receipt does not count beyond what its reader has missed."""
    group = next(iter(kept.history.groups()))
    late(kept, 4, 5, in_doubt=True)
    kept.history.read(group, 5)
    kept.history.mark_reported(group, 5)
    assert kept.history.unreported_reads() == {}
    late(kept, 1, 2, 4)
    assert kept.history.unreported_reads() == {group: 5}
    kept.history.mark_reported(group, 5)
    late(kept, 5, after=4)
    assert kept.history.unreported_reads() == {group: 5}
    kept.history.mark_reported(group, 5)
    assert kept.history.unreported_reads() == {}


def test_a_group_that_is_left_leaves_no_numbers(kept: Kept) -> None:
    group = next(iter(kept.history.groups()))
    late(kept, 6, in_doubt=True)
    assert kept.history.forget_group(group)
    assert kept.history._connection.execute("SELECT count(*) FROM had").fetchone() == (0,)
