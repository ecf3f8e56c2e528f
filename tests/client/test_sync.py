"""A history in step with the server: what is told, what is forgotten, what is caught up with."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import pytest

from conclave import app_keys
from conclave.actions import purges
from conclave.actions.command_runner import CommandRunner
from conclave.client import (
    Backoff,
    Client,
    Format,
    GroupError,
    GroupGone,
    History,
    InputError,
    MessageArrived,
    MessagesGone,
    News,
    NoAnswerError,
    Offline,
    Online,
    PlaintextCodec,
    PolicyChanged,
    SessionOverError,
    Sync,
    key_package_stock,
    sync as sync_module,
)
from conclave.client.events import Lagged
from conclave.clock import Clock
from conclave.config.settings import Config
from conclave.store.resources import taken_back
from conclave.wire.events import InviteReceived, MemberRemoved
from conclave.wire.stream_connection import StreamConnection as Connection
from tests.conftest import Running
from tests.support.cleaner import Cleaner
from tests.support.client import PASSWORD
from tests.support.server import PATIENCE, until

HOUR, DAY = 3_600, 86_400
QUICK = Backoff(first=0.01, most=0.05)
T = TypeVar("T")


class Device:
    """A user's client with its history. What it tells is kept; ``hear`` waits for more."""

    def __init__(self, running: Running, name: str, written_in: Format, clock: Clock, path: Path | None = None) -> None:
        self.client = Client(running.url, written_in=written_in, backoff=QUICK)
        self.name = name
        self.told: list[News] = []
        self.history = History(path, clock=clock)
        self._clock, self._path = clock, path
        self._more = asyncio.Event()
        self._listening: asyncio.Task[None] | None = None

    async def begin(self, *, register: bool = True) -> None:
        await self.client.__aenter__()
        if register:
            await self.client.register(self.name, PASSWORD)
        await self.client.login(self.name, PASSWORD)
        self.history.close()

    async def connect(self) -> None:
        self.history = History(self._path, clock=self._clock)
        self.sync = Sync(self.client, self.history, PlaintextCodec(), backoff=QUICK)
        self._listening = asyncio.create_task(self._listen())
        await self.hear(lambda news: isinstance(news, Online))
        await until(lambda: self.sync._key_package_stock._has_begun)  # from then on others can invite this user

    async def _listen(self) -> None:
        async with self.sync:
            # The server's clock stands still in these tests, and its answers have the real date.
            self.client.transport.on_time = lambda _: None
            async for news in self.sync:
                self.told.append(news)
                self._more.set()

    async def hear(self, condition: Callable[[News], object]) -> News:
        """Wait for news, and take them with all that came before."""
        async with asyncio.timeout(PATIENCE):
            while True:
                for place, news in enumerate(self.told):
                    if condition(news):
                        del self.told[: place + 1]
                        return news
                self._more.clear()
                assert self._listening
                waiting = asyncio.create_task(self._more.wait())
                await asyncio.wait({waiting, self._listening}, return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
                if self._listening.done():
                    self._listening.result()

    async def hear_a(self, kind: type[T]) -> T:
        news = await self.hear(lambda each: isinstance(each, kind))
        assert isinstance(news, kind)
        return news

    async def hear_text(self, text: str) -> int:
        news = await self.hear(lambda each: isinstance(each, MessageArrived) and each.message.text == text)
        assert isinstance(news, MessageArrived)
        return news.message.sequence_num

    async def disconnect(self) -> None:
        """Stop, as at the end of a program."""
        if self._listening:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
            self._listening = None
            self.history.close()
            self.told.clear()

    async def end(self) -> None:
        await self.disconnect()
        await self.client.__aexit__(None, None, None)

    def shown(self, group: UUID) -> list[str | None]:
        return [each.text for each in self.history.messages(group)]


NewDevice = Callable[..., Awaitable[Device]]


@pytest.fixture(params=Format, ids=lambda each: each.name.lower())
async def device(running: Running, request: pytest.FixtureRequest) -> AsyncIterator[NewDevice]:
    async with AsyncExitStack() as stack:

        async def make(name: str, path: Path | None = None, **options: Any) -> Device:
            made = Device(running, name, request.param, running.clock, path)
            await made.begin(**options)
            stack.push_async_callback(made.end)
            return made

        yield make


@pytest.fixture
async def pair(device: NewDevice, tmp_path: Path) -> tuple[Device, Device, UUID]:
    """Alice and Bob in a group, both connected, each with a history on a file."""
    alice, bob = await device("alice", tmp_path / "alice.db"), await device("bob", tmp_path / "bob.db")
    await alice.connect()
    group = await alice.sync.membership.create("club", public=True)
    await bob.client.join(group)
    await bob.client.external_join(group)
    await bob.connect()
    return alice, bob, group


async def test_what_is_sent_while_an_empty_page_is_on_its_way_is_fetched_all_the_same(
    pair: tuple[Device, Device, UUID],
) -> None:
    """No event tells the sender of it, and the page was read before it was stored."""
    alice, _, group = pair
    fetch, sent = alice.client.fetch, list[int]()

    async def slow_fetch(*values: Any, **named: Any) -> Any:
        page = await fetch(*values, **named)
        if not page and not sent:
            sent.append(0)
            sent.append(await alice.sync.send(group, "meanwhile"))
        return page

    alice.client.fetch = slow_fetch  # type: ignore[method-assign]
    await alice.sync.send(group, "before")
    assert await alice.hear_text("before") == 1
    assert await alice.hear_text("meanwhile") == sent[1]


async def test_other_tasks_go_on_while_a_page_of_messages_is_told(pair: tuple[Device, Device, UUID]) -> None:
    alice, bob, group = pair
    await bob.disconnect()
    for number in range(50):
        await alice.client.send(group, f"{number}".encode())
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    history = History(bob._path, clock=bob._clock)
    sync = Sync(bob.client, history, PlaintextCodec())
    bob.client.transport.on_time = lambda _: None
    turning = asyncio.create_task(turn())
    at = [turns async for each in sync._mirror.fetch(group) if isinstance(each, MessageArrived)]
    turning.cancel()
    history.close()
    assert len(set(at)) == 50


async def test_what_the_user_sends_from_elsewhere_comes_when_it_is_looked_for(
    pair: tuple[Device, Device, UUID], device: NewDevice
) -> None:
    alice, _, group = pair
    phone = await device("alice", register=False)
    await phone.client.send(group, b"from my phone")
    alice.sync.request_fetch(group)
    await alice.hear_text("from my phone")


async def test_both_hear_what_either_sends(pair: tuple[Device, Device, UUID]) -> None:
    alice, bob, group = pair
    assert await alice.sync.send(group, "hello") == 1
    assert await bob.sync.send(group, "hello too") == 2
    for each in pair[:2]:
        assert [await each.hear_text("hello"), await each.hear_text("hello too")] == [1, 2]
        assert each.shown(group) == ["hello", "hello too"]


async def test_what_was_missed_comes_first_and_nothing_twice(pair: tuple[Device, Device, UUID]) -> None:
    alice, bob, group = pair
    await alice.sync.send(group, "one")
    await bob.hear_text("one")
    await bob.disconnect()
    for text in ("two", "three"):
        await alice.sync.send(group, text)
    await bob.connect()
    await alice.sync.send(group, "four")
    arrived = [(await bob.hear_a(MessageArrived)).message.text for _ in range(3)]
    assert arrived == ["two", "three", "four"]
    assert bob.shown(group) == ["one", "two", "three", "four"]


async def test_a_message_that_the_application_had_not_finished_with_comes_again(
    pair: tuple[Device, Device, UUID],
) -> None:
    alice, bob, group = pair
    await bob.disconnect()
    await alice.sync.send(group, "one")
    with History(bob._path, clock=bob._clock) as history:
        async with Sync(bob.client, history, PlaintextCodec()) as sync:
            bob.client.transport.on_time = lambda _: None
            async for news in sync:
                if isinstance(news, MessageArrived):
                    break
    await bob.connect()
    await bob.hear_text("one")


async def test_a_connection_that_breaks_is_opened_again(pair: tuple[Device, Device, UUID], running: Running) -> None:
    alice, bob, group = pair
    break_streams(running, bob)
    await bob.hear_a(Offline)
    await alice.sync.send(group, "while away, perhaps")
    await bob.hear_a(Online)
    await bob.hear_text("while away, perhaps")


def break_streams(running: Running, device: Device) -> None:
    for stream in list(running.app[app_keys.EVENTS]._streams[device.client.session.user_id.bytes]):
        assert isinstance(stream, Connection)
        assert stream._transport
        stream._transport.abort()


async def test_a_stream_that_lags_reads_everything_again(pair: tuple[Device, Device, UUID]) -> None:
    alice, bob, _ = pair
    other = await alice.sync.membership.create("other", public=True)
    await bob.client.join(other)
    await bob.client.external_join(other)
    await alice.client.send(other, b"unheard")
    events = bob.sync._handle(Lagged(3))
    told = [each async for each in events]
    assert Lagged(3) in told
    assert "unheard" in [each.message.text for each in told if isinstance(each, MessageArrived)] + bob.shown(other)


async def test_an_expiry_is_enforced_and_holds_for_what_is_here_already(
    pair: tuple[Device, Device, UUID], running: Running
) -> None:
    alice, bob, group = pair
    await alice.sync.send(group, "old")
    await bob.hear_text("old")
    running.clock.advance(HOUR)
    await alice.sync.send(group, "young")
    await bob.hear_text("young")
    await alice.client.update_group(group, expiry=60)
    assert await bob.hear_a(PolicyChanged) == PolicyChanged(group, 60)
    assert await bob.hear_a(MessagesGone) == MessagesGone(group, (1,))
    assert bob.shown(group) == ["young"]
    running.clock.advance(61)
    assert bob.shown(group) == []
    assert await bob.hear_a(MessagesGone) == MessagesGone(group, (2,)), "by a timer, without an event"


async def test_a_longer_policy_that_nobody_has_told_of_yet_loses_no_message(
    pair: tuple[Device, Device, UUID], running: Running
) -> None:
    alice, bob, group = pair
    await alice.client.update_group(group, expiry=60)
    await bob.hear_a(PolicyChanged)
    await bob.disconnect()
    await alice.client.update_group(group, expiry=-1)
    await alice.sync.send(group, "kept")
    running.clock.advance(HOUR)
    bob.history = History(bob._path, clock=bob._clock)
    sync = Sync(bob.client, bob.history, PlaintextCodec())
    bob.client.transport.on_time = lambda _: None
    told = [each async for each in sync._mirror.fetch(group)]
    assert PolicyChanged(group, -1) in told
    assert bob.shown(group) == ["kept"]
    bob.history.close()


async def test_expiry_is_enforced_without_a_connection(pair: tuple[Device, Device, UUID], running: Running) -> None:
    alice, bob, group = pair
    await alice.client.update_group(group, expiry=60)
    await bob.hear_a(PolicyChanged)
    await alice.sync.send(group, "short")
    await bob.hear_text("short")
    bob.client.transport.url = bob.client.transport.url.with_port(1)
    break_streams(running, bob)
    await bob.hear_a(Offline)
    running.clock.advance(61)
    assert await bob.hear_a(MessagesGone) == MessagesGone(group, (1,))


@pytest.mark.parametrize(("steady", "longer"), [(3_600.0, [1, 2, 4, 8, 8, 8]), (0.0, [1] * 6)])
async def test_a_stream_that_never_lasts_is_not_opened_again_at_once(
    pair: tuple[Device, Device, UUID],
    running: Running,
    monkeypatch: pytest.MonkeyPatch,
    steady: float,
    longer: list[int],
) -> None:
    """All is read again each time: behind a proxy that cuts streams off the server would do nothing else."""
    monkeypatch.setattr(sync_module, "STABLE_SECONDS", steady)
    alice, bob, group = pair
    bob.sync._backoff, bob.sync._chance = Backoff(first=0.01, most=10), lambda: 1.0
    waits = []
    for number in range(6):
        await alice.sync.send(group, f"{number}")
        await bob.hear_text(f"{number}")
        break_streams(running, bob)
        waits.append((await bob.hear_a(Offline)).retry_in)
        await bob.hear_a(Online)
    assert waits == [pytest.approx(0.01 * each) for each in longer]


async def test_who_stops_without_a_connection_is_heard_whatever_happens_at_that_moment(
    pair: tuple[Device, Device, UUID], running: Running
) -> None:
    _, bob, group = pair
    bob.sync._backoff = Backoff(first=60, most=60)
    bob.client.transport.url = bob.client.transport.url.with_port(1)
    break_streams(running, bob)
    await bob.hear_a(Offline)
    await asyncio.sleep(0.05)
    assert bob._listening
    bob.sync.request_fetch(group)
    bob._listening.cancel()
    done, _ = await asyncio.wait({bob._listening}, timeout=10)
    if not done:
        bob._listening.cancel()  # or the test would not end either
    assert done


async def test_a_self_destructing_message_goes_after_it_was_really_shown(
    pair: tuple[Device, Device, UUID], running: Running
) -> None:
    alice, bob, group = pair
    await alice.sync.send(group, "secret", self_destruct_seconds=60)
    number = await bob.hear_text("secret")
    running.clock.advance(DAY)
    assert bob.shown(group) == ["secret"], "fetched is not shown"
    bob.sync.read(group, number)
    await until(lambda: not bob.history.unreported_reads())
    running.clock.advance(60)
    assert bob.shown(group) == []
    assert await bob.hear_a(MessagesGone) == MessagesGone(group, (number,))
    assert await bob.client.fetch(group) == (), "the server's timer has run too"


async def test_what_another_device_has_read_goes_here_too(
    pair: tuple[Device, Device, UUID], device: NewDevice, running: Running
) -> None:
    alice, bob, group = pair
    await alice.sync.send(group, "secret", self_destruct_seconds=60)
    await alice.sync.send(group, "plain")
    await bob.hear_text("plain")
    await bob.disconnect()
    phone = await device("bob", register=False)
    await phone.connect()
    phone.sync.read(group, await phone.hear_text("secret"))
    await until(lambda: not phone.history.unreported_reads())
    running.clock.advance(60)
    await phone.hear_a(MessagesGone)
    for pending in ("timers WHERE NOT told", "missed_redactions"):
        while await running.query(f"SELECT 1 FROM {pending}"):
            await asyncio.sleep(0.05)
    await bob.connect()
    await until(lambda: bob.shown(group) == ["plain"])


async def test_what_is_taken_back_goes_here_and_with_everybody(pair: tuple[Device, Device, UUID]) -> None:
    alice, bob, group = pair
    number = await alice.sync.send(group, "slip")
    await alice.sync.send(group, "meant")
    for each in (alice, bob):
        await each.hear_text("meant")
    await alice.sync.take_back(group, number)
    for each in (alice, bob):
        assert await each.hear_a(MessagesGone) == MessagesGone(group, (number,))
        assert each.shown(group) == ["meant"]
    await alice.sync.take_back(group, number)
    with pytest.raises(GroupError, match="not yours"):
        await bob.sync.take_back(group, number + 1)
    assert bob.shown(group) == ["meant"]


async def test_what_was_taken_back_and_erased_goes_from_each_device_that_was_away(
    pair: tuple[Device, Device, UUID], device: NewDevice, running: Running, cleaner: Cleaner, tmp_path: Path
) -> None:
    """Events tell the first device of a user that comes back; the others read of it in the policy."""
    alice, bob, group = pair
    phone = await device("bob", tmp_path / "phone.db", register=False)
    await phone.connect()
    number = await alice.sync.send(group, "slip")
    for each in (bob, phone):
        await each.hear_text("slip")
        await each.disconnect()
    await alice.sync.take_back(group, number)
    await running.settle()
    sql = replace(running.config, cleanup=replace(running.config.cleanup, engine="sql"))
    report = await asyncio.to_thread(cleaner.run, sql, running.clock.now(), running.clock.set_by)
    assert report["deleted"]["taken_back"] == 1
    for each in (bob, phone):
        await each.connect()
        assert await each.hear_a(MessagesGone) == MessagesGone(group, (number,))
        assert each.shown(group) == []


async def test_a_device_that_was_away_reads_of_all_that_was_taken_back(
    pair: tuple[Device, Device, UUID], device: NewDevice, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also of more than an answer lists."""
    monkeypatch.setattr(taken_back, "MAX_LISTED", 2)
    alice, bob, group = pair
    phone = await device("bob", tmp_path / "phone.db", register=False)
    await phone.connect()
    slips = [await alice.sync.send(group, f"slip {number}") for number in range(5)]
    await alice.sync.send(group, "meant")
    for each in (bob, phone):
        await each.hear_text("meant")
        await each.disconnect()
    for number in slips:
        await alice.sync.take_back(group, number)
    await bob.connect()
    await until(lambda: bob.shown(group) == ["meant"])
    await phone.connect()
    await until(lambda: phone.shown(group) == ["meant"])


async def test_a_group_that_is_over_leaves_nothing(pair: tuple[Device, Device, UUID]) -> None:
    alice, bob, group = pair
    other = await alice.sync.membership.create("other", public=True)
    third = await alice.sync.membership.create("third", public=True)
    for each in (other, third):
        await bob.client.join(each)
        await bob.client.external_join(each)
        await alice.sync.send(each, "hello")
        await bob.hear_text("hello")
    await alice.client.remove(group, bob.client.session.user_id)
    assert isinstance(await bob.hear_a(MemberRemoved), MemberRemoved)
    await alice.client.delete_group(other)
    assert await bob.hear_a(GroupGone) == GroupGone(other)
    await bob.disconnect()
    await alice.client.remove(third, bob.client.session.user_id)
    await bob.connect()
    assert await bob.hear_a(GroupGone) == GroupGone(third), "also if it happened while away"
    assert bob.history.groups() == {}
    assert b"hello" not in Path(str(bob._path)).read_bytes()


async def test_who_is_back_before_the_removal_is_heard_of_keeps_what_came_since(
    pair: tuple[Device, Device, UUID],
) -> None:
    alice, bob, group = pair
    await alice.sync.send(group, "before")
    await bob.hear_text("before")
    await bob.disconnect()
    told: list[News] = []
    with History(bob._path, clock=bob._clock) as history:
        async with Sync(bob.client, history, PlaintextCodec(), backoff=QUICK) as sync:
            bob.client.transport.on_time = lambda _: None
            coming = aiter(sync)
            await alice.sync.send(group, "once more")
            async for news in coming:
                if isinstance(news, MessageArrived):
                    break  # the stream is open; from here on nothing is asked for
            await alice.client.remove(group, bob.client.session.user_id)
            await bob.client.join(group)
            await bob.client.external_join(group)
            await alice.sync.send(group, "welcome back")
            async for news in coming:
                told.append(news)
                if isinstance(news, MessageArrived) and news.message.text == "welcome back":
                    break
            await alice.sync.send(group, "last")
            async for news in coming:
                told.append(news)
                if isinstance(news, MessageArrived) and news.message.text == "last":
                    break
            shown = [each.text for each in history.messages(group)]
    assert shown == ["before", "once more", "welcome back", "last"]
    assert not [news for news in told if isinstance(news, (GroupGone, MemberRemoved))]


def purge(running: Running, config: Config, group: UUID, before: int) -> None:
    """As an operator does, in a process of the operator's own."""
    outside = CommandRunner(config, running.clock)
    outside.write(purges.purge, outside.context(), "operator", group.bytes, before)


async def test_what_an_operator_purges_goes_here_too(
    pair: tuple[Device, Device, UUID], running: Running, config: Config
) -> None:
    alice, bob, group = pair
    texts = [f"message {number} of several" for number in range(4)]
    for text in texts:
        running.clock.advance(HOUR)
        await alice.sync.send(group, text)
        await bob.hear_text(text)
    running.clock.advance(HOUR)
    now = running.clock.now()
    await asyncio.to_thread(purge, running, config, group, now - 4 * HOUR + 1)
    assert (await bob.hear_a(MessagesGone)).sequence_nums == (1,)
    assert bob.shown(group) == texts[1:]
    await bob.disconnect()
    await asyncio.to_thread(purge, running, config, group, now - 2 * HOUR)
    await bob.connect()
    assert (await bob.hear_a(MessagesGone)).sequence_nums == (2,), "also if it happened while away"
    assert bob.shown(group) == texts[2:]
    kept = Path(str(bob._path)).read_bytes()
    assert [text.encode() in kept for text in texts] == [False, False, True, True]


async def test_what_a_former_policy_has_hidden_goes_although_it_was_over_when_the_client_came_back(
    pair: tuple[Device, Device, UUID], running: Running
) -> None:
    alice, bob, group = pair
    await alice.sync.send(group, "of yesterday")
    await bob.hear_text("of yesterday")
    await bob.disconnect()
    running.clock.advance(DAY)
    await alice.client.update_group(group, expiry=HOUR)
    await alice.client.update_group(group, expiry=-1)
    await bob.connect()
    assert (await bob.hear_a(MessagesGone)).sequence_nums == (1,)
    assert bob.shown(group) == []
    assert b"of yesterday" not in Path(str(bob._path)).read_bytes()


async def test_what_a_deleted_account_has_sent_goes_and_what_somebody_who_left_has_sent_stays(
    pair: tuple[Device, Device, UUID], device: NewDevice
) -> None:
    _, bob, group = pair
    others = [await device(name) for name in ("carol", "dave", "eve")]
    for each in others:
        await each.connect()
        await each.client.join(group)
        await each.client.external_join(group)
        await each.sync.send(group, f"{each.name} was here")
        await bob.hear_text(f"{each.name} was here")
    carol, dave, eve = others
    await eve.client.leave(group)
    await carol.client.delete_account(PASSWORD)
    gone = await bob.hear_a(MessagesGone)
    assert bob.shown(group) == ["dave was here", "eve was here"]
    assert gone.group_id == group
    await bob.disconnect()
    await dave.client.delete_account(PASSWORD)
    await bob.connect()
    await bob.hear_a(MessagesGone)
    assert bob.shown(group) == ["eve was here"], "also if it happened while away"
    kept = Path(str(bob._path)).read_bytes()
    assert [f"{each.name} was here".encode() in kept for each in others] == [False, False, True]


async def test_a_group_that_one_leaves_is_erased_at_once_and_told(pair: tuple[Device, Device, UUID]) -> None:
    alice, bob, group = pair
    other = await alice.sync.membership.create("other", public=True)
    await bob.client.join(other)
    await bob.client.external_join(other)
    for each in (group, other):
        await alice.sync.send(each, "hello")
        await bob.hear_text("hello")
    await bob.sync.leave(group)
    assert set(bob.history.groups()) == {other}, "before it is told"
    assert await bob.hear_a(GroupGone) == GroupGone(group)
    assert (bob.shown(group), bob.shown(other)) == ([], ["hello"])
    assert [each.group_id for each in await bob.client.groups()] == [other]
    with pytest.raises(GroupError):
        await bob.sync.leave(group)
    await alice.sync.send(other, "and on")
    await bob.hear_text("and on")
    assert not [each for each in bob.told if isinstance(each, GroupGone)], "once"


async def test_a_group_is_not_erased_when_leaving_it_fails(pair: tuple[Device, Device, UUID]) -> None:
    alice, bob, group = pair
    await alice.sync.send(group, "hello")
    await bob.hear_text("hello")
    bob.client.transport.url = bob.client.transport.url.with_port(1)
    with pytest.raises(NoAnswerError):
        await bob.sync.leave(group)
    assert bob.shown(group) == ["hello"]


@pytest.mark.parametrize("error", [NoAnswerError("lost"), asyncio.CancelledError()], ids=["lost", "cancelled"])
async def test_a_group_that_was_left_without_an_answer_is_erased(
    pair: tuple[Device, Device, UUID], error: BaseException
) -> None:
    """No event tells of it, and who tries again hears only that there is no such group."""
    alice, bob, group = pair
    await alice.sync.send(group, "hello")
    await bob.hear_text("hello")
    leave = bob.client.leave

    async def lose(group_id: UUID) -> None:
        await leave(group_id)
        raise error

    bob.client.leave = lose  # type: ignore[assignment,method-assign]
    with pytest.raises(type(error)):
        await bob.sync.leave(group)
    assert await bob.hear_a(GroupGone) == GroupGone(group)
    assert bob.history.groups() == {}


async def test_a_group_that_was_left_on_another_device_is_gone_with_the_next_text(
    pair: tuple[Device, Device, UUID], device: NewDevice
) -> None:
    """No event tells of it, and nothing that is sent would."""
    alice, bob, group = pair
    await alice.sync.send(group, "hello")
    await bob.hear_text("hello")
    phone = await device("bob", register=False)
    await phone.connect()
    await phone.sync.leave(group)
    assert bob.shown(group) == ["hello"]
    with pytest.raises(GroupError):
        await bob.sync.send(group, "anybody here?")
    assert await bob.hear_a(GroupGone) == GroupGone(group)
    assert bob.history.groups() == {}


async def test_a_text_that_is_refused_for_another_reason_leaves_the_group(pair: tuple[Device, Device, UUID]) -> None:
    alice, bob, group = pair
    await alice.sync.send(group, "hello")
    await bob.hear_text("hello")
    with pytest.raises(InputError):
        await bob.sync.send(group, "x", self_destruct_seconds=10**9)
    await alice.sync.send(group, "still here")
    await bob.hear_text("still here")


async def test_invites_are_told_once_and_a_welcome_brings_the_group(
    device: NewDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, bob = await device("alice"), await device("bob")
    await bob.connect()
    await alice.connect()
    group = await alice.sync.membership.create("club")
    await alice.sync.send(group, "before")
    await alice.sync.membership.invite(group, "bob")
    invite = await bob.hear_a(InviteReceived)
    await bob.client.accept_invite(invite.invite_id)
    await alice.hear(lambda news: getattr(news, "update_type", "") == "commit")
    await alice.sync.send(group, "after")
    await bob.hear_text("after")
    assert await bob.client.welcomes() == ()
    assert not [each for each in bob.told if isinstance(each, InviteReceived)]


async def test_key_packages_are_kept_at_the_server(device: NewDevice) -> None:
    alice, bob = await device("alice"), await device("bob")
    await bob.connect()
    await alice.connect()
    taken = {await alice.client.take_key_package(bob.client.session.user_id) for _ in range(key_package_stock.REGULAR)}
    assert len(taken) == key_package_stock.REGULAR
    last = await alice.client.take_key_package(bob.client.session.user_id)
    assert last not in taken
    assert await alice.client.take_key_package(bob.client.session.user_id) == last, "the last resort stays"


async def test_a_payload_that_is_no_text_is_told_without_a_text(pair: tuple[Device, Device, UUID]) -> None:
    alice, bob, group = pair
    await alice.client.send(group, b"\x00\x01\x00\x02 of MLS")
    await alice.client.send(group, b"\xff\xfe")
    assert [(await bob.hear_a(MessageArrived)).message.text for _ in range(2)] == [None, None]
    await alice.sync.membership.remove(group, bob.client.session.user_id)
    await alice.hear_a(MemberRemoved)
    assert alice.shown(group) == [None, None], "what stands for a commit is no message"
    assert alice.history.fetched_up_to(group) == 3


async def test_the_end_of_the_session_is_the_end(pair: tuple[Device, Device, UUID]) -> None:
    _, bob, _ = pair
    await bob.client.change_password(PASSWORD, "battery staple")
    with pytest.raises(SessionOverError):
        await bob.hear(lambda _: False)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_module, "ENFORCE_INTERVAL", 0.02)
