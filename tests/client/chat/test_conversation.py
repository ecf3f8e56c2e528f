"""What goes on between the server and the screen, told to a listener that only records."""

import asyncio
import random
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from conclave import keys
from conclave.client import (
    Backoff,
    Client,
    GroupError,
    History,
    NoAnswerError,
    PlaintextCodec,
    RefusedError,
    Session,
    SessionOverError,
    sync as sync_module,
)
from conclave.client.chat import conversation as conversation_module
from conclave.client.chat.conversation import MOST_LOADED, PAGE
from conclave.client.chat.rooms import Draft, Room
from conclave.client.errors import BusyError, ServerError
from conclave.client.history.store import Arrived
from conclave.client.news import Lagged, Message
from conclave.client.results import Group
from conclave.clock import FakeClock
from conclave.config.settings import Config
from conclave.wire.exchange import MAX_BODY_BYTES
from conclave.wire.listener import Listener as Connection
from tests.conftest import Running, StartServer
from tests.support import sample
from tests.support.client import PASSWORD
from tests.support.conversing import Chat, NewChat, Recorder
from tests.support.cutting import bad_link
from tests.support.server import ServerProcess

HOUR, DAY = 3_600, 86_400
ME, BOB = UUID(int=1), UUID(int=2)
CLUB = Group(UUID(int=9), "", (), "club", "", -1, "private")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_module, "ENFORCED_EVERY", 0.02)
    monkeypatch.setattr(conversation_module, "RENEWED_AFTER", 0.01)
    monkeypatch.setattr(conversation_module, "HOLDING_READ_EVERY", 0.05)
    monkeypatch.setattr(conversation_module, "EVENT_FOLLOWS_WITHIN", 0.2)


@pytest.fixture
async def chat(running: Running) -> AsyncIterator[NewChat]:
    async with AsyncExitStack() as stack:

        async def make(name: str, path: Path | None = None, *, connects: bool = True, register: bool = True) -> Chat:
            made = Chat(running.url, name, running.clock, path)
            stack.push_async_callback(made.end)
            await made.begin(register=register)
            if connects:
                await made.connect()
            return made

        yield make


@pytest.fixture
async def pair(chat: NewChat) -> tuple[Chat, Chat, UUID]:
    """Alice, who is admin, and Bob in a group that is open at both."""
    alice, bob = await chat("alice"), await chat("bob")
    group = await alice.new("club", bob)
    for each in (alice, bob):
        each.conversation.enter(group)
    await bob.until(lambda: bob.room(group).retention)
    return alice, bob, group


Pair = tuple[Chat, Chat, UUID]


def break_streams(running: Running, chat: Chat) -> None:
    for stream in list(running.app[keys.EVENTS]._streams[chat.user_id.bytes]):
        assert isinstance(stream, Connection)
        if stream._transport:
            stream._transport.abort()


async def go_offline(running: Running, chat: Chat) -> Callable[[], None]:
    """Cut a chat off from the server; return what brings it back."""
    transport, port = chat.client.transport, chat.client.transport.url.port
    transport.url = transport.url.with_port(1)
    break_streams(running, chat)
    await chat.until(lambda: chat.conversation.offline)

    def come_back() -> None:
        transport.url = transport.url.with_port(port)

    return come_back


async def say(chat: Chat, group: UUID, count: int, seconds: int = 0) -> None:
    """Send many messages."""
    for _ in range(0, count, 50):
        await asyncio.gather(*(chat.client.send(group, b"text", self_destruct_seconds=seconds) for _ in range(50)))


def chat_history(count: int) -> History:
    """Return a history with messages of somebody else's."""
    history = History(clock=FakeClock())
    arrived = [Arrived(number, BOB, b"text", FakeClock().now()) for number in range(1, count + 1)]
    history.store(CLUB.group_id, 0, count, arrived)
    return history


class Held:
    """Stands before a call, and holds its answers back: they are there, and nobody has them yet."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self.may_answer = asyncio.Event()
        self.answered = 0
        self.fails_with: Exception | None = None

    async def __call__(self, *values: Any, **named: Any) -> Any:
        answer = await self._call(*values, **named)
        self.answered += 1
        await self.may_answer.wait()
        if error := self.fails_with:
            self.fails_with = None
            raise error
        return answer


class TestSending:
    async def test_what_is_typed_comes_in_its_order(self, pair: Pair) -> None:
        alice, bob, group = pair
        said = [f"text {number}" for number in range(20)]
        alice.send(group, *said)
        assert alice.texts(group) == said, "at once, as drafts"
        await bob.shows(group, *said)
        await alice.shows(group, *said)
        assert alice.room(group).drafts == []

    async def test_groups_do_not_wait_for_each_other(self, pair: Pair) -> None:
        alice, _, group = pair
        other = await alice.new("other")
        alice.conversation.enter(other)
        held = Held(alice.client.send)
        alice.client.send = held  # type: ignore[method-assign]
        alice.send(group, "one")
        await alice.until(lambda: held.answered)
        del alice.client.send
        alice.send(other, "two")
        await alice.shows(other, "two")
        held.may_answer.set()

    @pytest.mark.filterwarnings("ignore:Sending a large body")
    async def test_one_that_is_refused_does_not_stop_the_others(self, pair: Pair) -> None:
        alice, bob, group = pair
        alice.send(group, "one", "\x00begins with NUL", "two")
        alice.send(group, "for too long", self_destruct_seconds=DAY * 1_000)
        alice.send(group, "x" * (MAX_BODY_BYTES + 1), "three")
        await bob.shows(group, "one", "two", "three")
        refused = [each for each in alice.items(group) if isinstance(each, Draft)]
        assert [each.text[:12] for each in refused] == ["\x00begins with"[:12], "for too long", "x" * 12]
        assert all(each.refused for each in refused)
        assert "must not be empty, nor begin with NUL" in refused[0].refused
        assert alice.conversation.rooms.unsent() == 3
        assert (alice.told.bad, alice.told.ends) == ([], [])

    async def test_what_was_refused_is_tried_again_or_dropped(self, pair: Pair) -> None:
        alice, bob, group = pair
        room, outbox = alice.room(group), alice.conversation.outbox
        assert (outbox.send_again(room), outbox.discard(room)) == (0, 0)
        alice.send(group, "one", "two", self_destruct_seconds=DAY * 1_000)
        await alice.until(lambda: all(each.refused for each in room.drafts))
        room.drafts[0].self_destruct_seconds = 60
        assert outbox.send_again(room) == 2
        await bob.shows(group, "one")
        await alice.until(lambda: [bool(each.refused) for each in room.drafts] == [True])
        alice.told.shown.clear()
        assert outbox.discard(room) == 1
        assert group in alice.told.shown
        await alice.shows(group, "one")
        assert alice.conversation.rooms.unsent() == 0

    @pytest.mark.parametrize(
        "error", [NoAnswerError("x"), ServerError(500, 0, "x"), BusyError(429, 0, "x"), BusyError(503, 0, "x")]
    )
    async def test_what_only_the_connection_or_the_server_is_to_blame_for_is_tried_again(
        self, pair: Pair, error: Exception
    ) -> None:
        """The answer is lost, or none came: the server stores a text once."""
        alice, bob, group = pair
        held = Held(alice.client.send)
        held.fails_with = error
        held.may_answer.set()
        alice.client.send = held  # type: ignore[method-assign]
        alice.send(group, "one", "two")
        await bob.shows(group, "one", "two")
        await alice.shows(group, "one", "two")
        assert held.answered == 3

    async def test_what_was_typed_without_a_connection_goes_out_with_it(self, pair: Pair, running: Running) -> None:
        alice, bob, group = pair
        come_back = await go_offline(running, alice)
        alice.send(group, "one", "two")
        await asyncio.sleep(0.3)
        assert [each.waits for each in alice.room(group).drafts] == [True, True]
        assert alice.conversation.rooms.unsent() == 2
        assert bob.texts(group) == []
        come_back()
        await bob.shows(group, "one", "two")
        await alice.shows(group, "one", "two")
        assert alice.told.bad == [], "the bar says that there was no connection"

    async def test_a_message_that_comes_before_its_answer_is_shown_once(self, pair: Pair) -> None:
        """Somebody else's, which comes with an event, brings it along."""
        alice, bob, group = pair
        held = Held(alice.client.send)
        alice.client.send = held  # type: ignore[method-assign]
        alice.send(group, "ok", "ok")
        await alice.until(lambda: held.answered)
        bob.send(group, "hello")
        await alice.until(lambda: alice.room(group).messages)
        assert held.answered == 1
        assert alice.texts(group) == ["ok", "hello", "ok"], "the last is a draft"
        assert alice.conversation.rooms.unsent() == 1
        held.may_answer.set()
        await alice.shows(group, "ok", "hello", "ok")

    async def test_also_if_the_answer_is_lost(self, pair: Pair) -> None:
        alice, bob, group = pair
        held = Held(alice.client.send)
        held.fails_with = NoAnswerError("lost")
        alice.client.send = held  # type: ignore[method-assign]
        alice.send(group, "once")
        await alice.until(lambda: held.answered)
        bob.send(group, "hello")
        await alice.until(lambda: alice.room(group).messages)
        held.may_answer.set()
        await alice.until(lambda: not alice.room(group).drafts)
        await alice.shows(group, "once", "hello")
        await bob.shows(group, "once", "hello")
        assert held.answered == 2

    async def test_the_same_text_from_another_device_hides_no_draft_that_is_refused(
        self, pair: Pair, chat: NewChat
    ) -> None:
        alice, bob, group = pair
        phone = await chat("alice", register=False)
        held = Held(alice.client.send)
        held.fails_with = RefusedError(400, 100, "no")
        alice.client.send = held  # type: ignore[method-assign]
        alice.send(group, "ok")
        await alice.until(lambda: held.answered)
        phone.send(group, "ok")
        bob.send(group, "hello")  # no event tells of what one sends oneself
        await alice.until(lambda: len(alice.room(group).messages) == 3)
        held.may_answer.set()
        await alice.until(alice.conversation.rooms.unsent)
        assert isinstance(alice.items(group)[-1], Draft)

    async def test_what_was_typed_for_a_group_goes_with_it(self, pair: Pair, running: Running) -> None:
        alice, bob, group = pair
        come_back = await go_offline(running, bob)
        bob.send(group, "too late")
        await alice.client.remove(group, bob.user_id)
        come_back()
        await bob.until(lambda: group not in bob.conversation.rooms.all)
        assert bob.conversation.rooms.unsent() == 0
        alice.send(group, "end")
        await alice.shows(group, "end")

    async def test_a_group_that_one_has_left_on_another_device_goes_when_something_is_sent(
        self, pair: Pair, chat: NewChat
    ) -> None:
        alice, bob, group = pair
        alice.send(group, "hello")
        await bob.shows(group, "hello")
        phone = await chat("bob", register=False)
        await phone.conversation.leave(group)
        bob.send(group, "anybody here?")
        await bob.until(lambda: group not in bob.conversation.rooms.all)
        assert bob.history.groups() == {}
        assert bob.conversation.open_room is None
        await bob.until(lambda: bob.told.said)
        assert bob.told.said == ["You are not in club any more; what was here of it is erased"]


class TestBadLink:
    TEXTS = sample.amount(200, 30)
    EAGER = Backoff(first=0.002, most=0.02, tries=200)

    async def test_each_text_arrives_exactly_once_and_in_order_though_connections_break(self, tmp_path: Path) -> None:
        with ServerProcess(tmp_path, '[cleanup]\nengine = "sql"\ndisk_reserve = "0"\n') as server:
            async with (
                bad_link(server.url, sample.chance("chat over a bad link")) as (url, link),
                Client(server.url) as straight,
                AsyncExitStack() as stack,
            ):
                await straight.register("alice", PASSWORD)
                session = await straight.login("alice", PASSWORD)
                groups = [await straight.create_group(name) for name in ("one", "two")]
                alice = Chat(url, "alice", backoff=self.EAGER, session=replace(session, url=url))
                alice.client.transport._chance = random.Random(1).random
                stack.push_async_callback(alice.end)
                await alice.begin()
                await alice.connect(waits=False)
                said = [f"text {number}" for number in range(self.TEXTS)]
                async with asyncio.timeout(120):
                    while len(alice.conversation.rooms.all) < 2:
                        await asyncio.sleep(0.01)
                    for group in groups:
                        alice.conversation.enter(group)
                        alice.send(group, *said)
                    while any(alice.room(each).drafts for each in groups):
                        assert alice.told.ends == []
                        await asyncio.sleep(0.05)
                for group in groups:
                    assert alice.texts(group) == said
                    assert list(alice.room(group).messages) == list(range(1, len(said) + 1))
                    stored = await straight.fetch(group, 0, 1_000)
                    assert [each.mls_message.decode() for each in stored] == said
                assert link.cut_early > 5, "the link was bad enough"
                assert alice.told.bad == []


class TestUnread:
    async def test_what_others_have_said_is_unread_until_it_was_on_the_screen(self, pair: Pair, chat: NewChat) -> None:
        alice, bob, group = pair
        alice.send(group, "one", "two", "three")
        await bob.shows(group, "one", "two", "three")
        assert (alice.room(group).unread, bob.room(group).unread) == (0, 3)
        room = bob.conversation.enter(group)
        assert room
        assert (room.unread, room.read_before) == (3, 0), "the line stands before the first"
        bob.told.shown.clear()
        bob.conversation.seen(group, 2)
        assert (room.unread, room.read_before) == (1, 0), "it stays while one reads"
        assert bob.told.shown == {None, group}
        bob.told.shown.clear()
        bob.conversation.seen(group, 1)
        assert (room.unread, bob.told.shown) == (1, set()), "what was seen stays seen"
        assert bob.conversation.enter(group) is room
        assert room.read_before == 2
        bob.conversation.seen(group, 3)
        bob.conversation.enter(group)
        assert [room.unread, room.read_before] == [0, None]
        await bob.until(lambda: not bob.history.untold())

    async def test_who_writes_has_read(self, pair: Pair) -> None:
        alice, bob, group = pair
        alice.send(group, "one")
        await bob.shows(group, "one")
        bob.conversation.enter(group)
        bob.send(group, "two")
        assert bob.room(group).read_before is None
        await bob.shows(group, "one", "two")
        assert bob.room(group).unread == 1, "but what was not on the screen is not seen"

    async def test_what_comes_to_a_group_that_was_never_opened_is_counted(self, pair: Pair) -> None:
        alice, bob, _ = pair
        other = await alice.new("other", bob)
        alice.conversation.enter(other)
        alice.send(other, "one", "two")
        await bob.until(lambda: bob.room(other).unread == 2)
        assert bob.texts(other) == []
        bob.conversation.enter(other)
        assert bob.texts(other) == ["one", "two"]

    async def test_what_another_device_has_sent_is_not_unread(self, pair: Pair, chat: NewChat) -> None:
        alice, bob, group = pair
        phone = await chat("bob", register=False)
        phone.send(group, "from the phone")
        await alice.shows(group, "from the phone")
        alice.send(group, "hello")  # no event tells of what one sends oneself
        await bob.shows(group, "from the phone", "hello")
        assert bob.room(group).unread == 1

    async def test_what_was_read_is_known_at_the_next_start(self, chat: NewChat, tmp_path: Path) -> None:
        alice, bob = await chat("alice"), await chat("bob", tmp_path / "bob")
        group = await alice.new("club", bob)
        alice.send(group, "one", "two")
        await bob.until(lambda: bob.room(group).unread == 2)
        bob.conversation.enter(group)
        bob.conversation.seen(group, 1)
        await bob.disconnect()
        await bob.connect()
        assert bob.room(group).unread == 1
        room = bob.conversation.enter(group)
        assert room
        assert room.read_before == 1

    async def test_of_a_group_that_is_not_there_nothing_is_seen(self, pair: Pair) -> None:
        _, bob, _ = pair
        bob.conversation.seen(UUID(int=5), 3)
        assert bob.conversation.enter(UUID(int=5)) is None
        assert bob.conversation.open_room is None


class TestPolicies:
    async def test_a_policy_hides_at_once_what_it_forbids_and_is_told_once(self, pair: Pair, running: Running) -> None:
        alice, bob, group = pair
        alice.send(group, "old")
        await bob.shows(group, "old")
        running.clock.advance(HOUR)
        alice.send(group, "young")
        await bob.shows(group, "old", "young")
        await alice.conversation.change_expiry(group, 60, dry_run=False)
        for each in (alice, bob):
            await each.shows(group, "young")
            await each.until(partial(self.has_expiry, each, group, 60))
            await each.renew()
            assert self.told(each, group) == ["messages are gone after 1 minute from now on"]
        running.clock.advance(61)
        assert bob.texts(group) == [], "before anybody says so"
        await bob.until(lambda: not bob.room(group).messages)
        await alice.conversation.change_expiry(group, -1, dry_run=False)
        await bob.until(lambda: self.told(bob, group)[1:] == ["messages are kept for good from now on"])

    @staticmethod
    def has_expiry(chat: Chat, group: UUID, expiry: int) -> bool:
        return chat.room(group).expiry == expiry

    @staticmethod
    def told(chat: Chat, group: UUID) -> list[str]:
        return [each for each in chat.notices(group) if each.startswith("messages")]

    async def test_what_it_would_hide_is_only_asked(self, pair: Pair, running: Running) -> None:
        alice, _, group = pair
        alice.send(group, "old")
        await alice.shows(group, "old")
        since = running.clock.now()
        running.clock.advance(HOUR)
        would = await alice.conversation.change_expiry(group, 60, dry_run=True)
        assert (would.messages_expiring, would.oldest_expiring) == (1, since)
        assert alice.texts(group) == ["old"]
        assert alice.room(group).expiry == -1

    @pytest.mark.parametrize(
        ("server", "group_has", "comes_to"),
        [
            (-1, -1, -1),
            (-1, 60, 60),
            (-1, 0, 0),
            (HOUR, -1, HOUR),
            (HOUR, 60, 60),
            (HOUR, 0, 0),
            (0, -1, 0),
        ],
    )
    async def test_what_a_setting_comes_to(
        self, config: Config, start_server: StartServer, clock: FakeClock, server: int, group_has: int, comes_to: int
    ) -> None:
        config = replace(config, message_retention=server)
        async with start_server(config) as running:
            alice = Chat(running.url, "alice", clock)
            await alice.begin()
            await alice.connect()
            group = await alice.new()
            assert await alice.conversation.effective(group, group_has) == comes_to
            await alice.conversation.change_expiry(group, group_has, dry_run=False)
            assert alice.room(group).expiry == comes_to, "as the server has it"
            await alice.end()

    async def test_a_self_destructing_message_goes_after_it_was_seen(self, pair: Pair, running: Running) -> None:
        alice, bob, group = pair
        alice.send(group, "secret", self_destruct_seconds=60)
        alice.send(group, "plain")
        await bob.shows(group, "secret", "plain")
        running.clock.advance(DAY)
        assert bob.texts(group) == ["secret", "plain"], "fetched is not seen"
        bob.conversation.seen(group, 2)
        [secret, _] = bob.room(group).messages.values()
        assert secret.gone_at == running.clock.now() + 60, "the countdown begins at once"
        running.clock.advance(60)
        assert bob.texts(group) == ["plain"]
        await bob.until(lambda: list(bob.room(group).messages) == [2])
        assert alice.texts(group) == ["plain"], "its own ran from sending on"

    async def test_who_holds_a_group_back_is_told_to_admins_only(self, pair: Pair, chat: NewChat) -> None:
        alice, bob, group = pair
        carol = await chat("carol", connects=False)
        await carol.client.join(group)
        await alice.conversation.change_expiry(group, 0, dry_run=False)
        alice.send(group, "for all")
        await bob.shows(group, "for all")
        await alice.until(lambda: alice.room(group).retention.held_by == (carol.user_id,))  # type: ignore[union-attr]
        retention = bob.room(group).retention
        assert retention
        assert retention.held_by == ()
        await carol.client.fetch(group)
        await carol.client.fetch(group, 1)
        alice.told.shown.clear()
        await alice.until(lambda: alice.room(group).retention.held_by == ())  # type: ignore[union-attr]
        assert group in alice.told.shown


class TestMembership:
    @staticmethod
    def is_told(chat: Chat, group: UUID, text: str) -> bool:
        return text in chat.notices(group)

    async def test_what_happens_in_a_group_is_told_in_it(self, pair: Pair, chat: NewChat) -> None:
        alice, bob, group = pair
        carol = await chat("carol")
        await carol.conversation.sync.membership.join(group)
        await bob.until(lambda: "carol came in" in bob.notices(group))
        await alice.client.promote(group, bob.user_id)
        await bob.until(lambda: bob.room(group).is_admin(bob.user_id))
        await alice.client.update_group(group, group_name="den", alias="The Den", visibility="private")
        await carol.conversation.leave(group)
        told = ["you are an admin now", "the group is called den now", "carol is not a member any more"]
        await bob.until(lambda: set(told) <= set(bob.notices(group)))
        assert bob.room(group).name == "den"
        assert bob.conversation.rooms.by_name("club") is None

    async def test_one_who_is_removed_loses_the_group_and_hears_why(self, pair: Pair) -> None:
        alice, bob, group = pair
        alice.send(group, "secret")
        await bob.shows(group, "secret")
        await alice.conversation.sync.membership.remove(group, bob.user_id)
        await bob.until(lambda: group not in bob.conversation.rooms.all and bob.told.bad)
        assert bob.told.bad == ["You were removed from club; what was here of it is erased"]
        assert bob.conversation.open_room is None
        assert bob.history.groups() == {}
        await asyncio.sleep(0.3)
        assert bob.told.said == [], "it is told once"

    async def test_one_who_was_removed_while_away_hears_it_too(self, pair: Pair, running: Running) -> None:
        alice, bob, group = pair
        come_back = await go_offline(running, bob)
        await alice.client.remove(group, bob.user_id)
        come_back()
        await bob.until(lambda: group not in bob.conversation.rooms.all and bob.told.said)
        assert bob.told.said == ["You are not in club any more; what was here of it is erased"]

    async def test_a_ban_is_told_to_admins(self, pair: Pair, chat: NewChat) -> None:
        alice, bob, group = pair
        carol, dave = await chat("carol"), await chat("dave")
        for each in (carol, dave):
            await each.conversation.sync.membership.join(group)
            await each.renew()
            each.conversation.enter(group)
        await alice.client.promote(group, dave.user_id)
        await dave.until(lambda: dave.room(group).is_admin(dave.user_id))
        await alice.conversation.sync.membership.remove(group, bob.user_id, ban=True)
        await carol.until(lambda: "bob is not a member any more" in carol.notices(group))
        for each in (alice, dave):
            await each.until(partial(self.is_told, each, group, "bob is banned from the group"))
        await bob.until(lambda: bob.told.bad)
        await carol.renew()
        assert "bob is banned from the group" not in carol.notices(group)
        await alice.conversation.sync.membership.remove(group, carol.user_id)
        await dave.until(lambda: "carol is not a member any more" in dave.notices(group))
        await dave.renew()
        assert "carol is banned from the group" not in dave.notices(group)

    async def test_a_group_that_is_deleted_is_gone_for_all(self, pair: Pair) -> None:
        alice, bob, group = pair
        bob.send(group, "one")
        await bob.shows(group, "one")
        await alice.client.delete_group(group)
        for each in (alice, bob):
            await each.until(partial(bool, each.told.said))
            assert group not in each.conversation.rooms.all
            assert each.told.said == ["club was deleted, with all its messages"]
            assert each.history.groups() == {}

    async def test_a_group_that_one_leaves_is_gone_at_once(self, pair: Pair) -> None:
        _, bob, group = pair
        bob.send(group, "one")
        await bob.shows(group, "one")
        await bob.conversation.leave(group)
        assert group not in bob.conversation.rooms.all
        assert bob.history.groups() == {}
        await bob.until(lambda: bob.told.said)
        assert bob.told.said == ["You are not in club any more; what was here of it is erased"]
        assert bob.told.bad == []

    async def test_names_of_those_who_are_gone_are_found(self, pair: Pair, chat: NewChat) -> None:
        alice, bob, group = pair
        carol, dave = await chat("carol", connects=False), await chat("dave", connects=False)
        for each in (carol, dave):
            await each.client.join(group)
            for _ in range(20):
                await each.client.send(group, b"text")
        await bob.disconnect()
        await carol.client.leave(group)
        await dave.client.delete_account(PASSWORD)
        bob.told.shown.clear()
        await bob.connect()
        asked: list[UUID] = []
        user_by_id = bob.client.user_by_id

        async def ask(user_id: UUID) -> Any:
            asked.append(user_id)
            return await user_by_id(user_id)

        bob.client.user_by_id = ask  # type: ignore[method-assign]
        await bob.until(lambda: bob.room(group).fetched_up_to >= 20)
        bob.conversation.enter(group)
        await bob.until(lambda: bob.conversation.rooms.person(carol.user_id))
        assert bob.conversation.rooms.called(carol.user_id) == "carol"
        assert await bob.conversation.name(dave.user_id) == "deleted account"
        assert await bob.conversation.name(alice.user_id) == "alice"
        assert asked.count(carol.user_id) <= 1, "not once for each of the 20 messages"

    async def test_a_group_that_is_missed_when_groups_are_read_goes_with_what_was_typed_for_it(
        self, pair: Pair
    ) -> None:
        """The news of it are still on their way."""
        alice, bob, group = pair
        held = Held(bob.client.send)
        bob.client.send = held  # type: ignore[method-assign]
        bob.send(group, "one", "two")
        await bob.until(lambda: held.answered)
        never = asyncio.Event()

        async def wait(news: object) -> None:
            await never.wait()

        bob.conversation._on = wait  # type: ignore[method-assign]
        await alice.client.remove(group, bob.user_id)
        await bob.renew()
        assert bob.conversation.rooms.all == {}
        assert bob.conversation.open_room is None
        held.may_answer.set()
        await bob.until(lambda: bob.told.said)
        assert bob.told.said == ["You are not in club any more; what was here of it is erased"]
        assert held.answered == 1, "the second is not sent"


class TestInvites:
    async def test_one_comes_and_is_accepted(self, chat: NewChat) -> None:
        alice, bob = await chat("alice"), await chat("bob")
        group = await alice.new("club", public=False)
        await alice.conversation.sync.membership.invite(group, "bob")
        await bob.until(lambda: bob.conversation.rooms.invites)
        assert bob.told.said == ["You are invited to club"]
        [invite] = bob.conversation.rooms.invites
        assert (invite.group_name, invite.inviter_username) == ("club", "alice")
        await bob.conversation.answer(invite.invite_id, accept=True)
        assert bob.conversation.rooms.invites == ()
        assert bob.room(group).name == "club"
        alice.conversation.enter(group)
        await alice.until(lambda: "bob came in" in alice.notices(group))
        alice.send(group, "welcome")
        bob.conversation.enter(group)
        await bob.shows(group, "welcome")

    async def test_one_from_somebody_who_is_known_says_by_whom(self, pair: Pair) -> None:
        alice, bob, _ = pair
        other = await alice.new("other", public=False)
        await alice.conversation.sync.membership.invite(other, "bob")
        await bob.until(lambda: bob.told.said)
        assert bob.told.said == ["You are invited to other by alice"]

    async def test_one_is_declined_and_the_inviter_hears_it(self, chat: NewChat) -> None:
        alice, bob = await chat("alice"), await chat("bob")
        group = await alice.new("club", public=False)
        await alice.conversation.sync.membership.invite(group, "bob")
        await bob.until(lambda: bob.conversation.rooms.invites)
        await bob.conversation.answer(bob.conversation.rooms.invites[0].invite_id, accept=False)
        assert bob.conversation.rooms.invites == ()
        await alice.until(lambda: alice.told.said)
        assert alice.told.said == [
            "bob has not taken the invite to club: it was declined or withdrawn, or it has expired"
        ]

    async def test_one_is_withdrawn(self, chat: NewChat) -> None:
        alice, bob = await chat("alice"), await chat("bob")
        group = await alice.new("club", public=False)
        await alice.conversation.sync.membership.invite(group, "bob")
        await bob.until(lambda: bob.conversation.rooms.invites)
        await alice.client.cancel_invite(group, bob.user_id)
        await bob.until(lambda: not bob.conversation.rooms.invites)
        assert bob.told.said[1:] == ["An invite was withdrawn, or it has expired"]

    async def test_one_that_has_expired_is_not_listed(self, chat: NewChat, running: Running) -> None:
        alice, bob = await chat("alice"), await chat("bob")
        group = await alice.new("club", public=False)
        await alice.conversation.sync.membership.invite(group, "bob")
        await bob.until(lambda: bob.conversation.rooms.invites)
        [invite] = bob.conversation.rooms.invites
        running.clock.advance(running.config.invite_ttl_seconds + 1)
        with pytest.raises(RefusedError):
            await bob.conversation.answer(invite.invite_id, accept=True)
        await bob.renew()
        assert bob.conversation.rooms.invites == ()
        assert bob.conversation.rooms.all == {}

    async def test_one_that_came_while_away_is_told_at_the_start(self, chat: NewChat) -> None:
        alice, bob = await chat("alice"), await chat("bob")
        await bob.disconnect()
        group = await alice.new("club", public=False)
        await alice.conversation.sync.membership.invite(group, "bob")
        await bob.connect()
        await bob.until(lambda: bob.told.said)
        assert bob.told.said == ["You are invited to club"]
        assert len(bob.conversation.rooms.invites) == 1


class TestRenewal:
    async def test_an_answer_that_comes_late_does_not_undo_a_later_one(self, pair: Pair) -> None:
        """A group that was made meanwhile would be gone again."""
        alice, _, group = pair
        held = Held(alice.client.groups)
        alice.client.groups = held  # type: ignore[method-assign]
        early = asyncio.create_task(alice.renew())
        await alice.until(lambda: held.answered)
        del alice.client.groups
        other = await alice.conversation.sync.membership.create("other")
        late = asyncio.create_task(alice.renew())
        await asyncio.sleep(0.05)
        held.may_answer.set()
        await asyncio.gather(early, late)
        assert set(alice.conversation.rooms.all) == {group, other}

    async def test_one_that_fails_is_done_again(self, pair: Pair) -> None:
        """While the connection holds nothing else would bring it about."""
        alice, bob, group = pair
        held = Held(bob.client.groups)
        held.may_answer.set()
        held.fails_with = ServerError(500, 0, "the server has failed")
        bob.client.groups = held  # type: ignore[method-assign]
        await alice.client.update_group(group, alias="The Club")
        await bob.until(lambda: bob.room(group).group.alias == "The Club")
        assert bob.notices(group) == ["the title is The Club now"]

    async def test_a_group_without_a_change_tells_nothing(self, pair: Pair) -> None:
        alice, _, group = pair
        told = alice.notices(group)
        for _ in range(3):
            await alice.renew()
        assert alice.notices(group) == told
        assert set(told) <= {"bob came in"}

    async def test_lost_events_are_told_and_all_is_read_again(self, pair: Pair) -> None:
        alice, bob, group = pair
        await alice.client.update_group(group, alias="The Club")
        await bob.conversation._on(Lagged(3))
        assert bob.told.said == ["3 events lost on a slow connection; all was read again"]
        await bob.until(lambda: bob.room(group).group.alias == "The Club")


class TestLoading:
    MANY = 1_000

    @pytest.fixture
    async def long(self, chat: NewChat) -> Pair:
        """A group with 1,000 messages of Alice's, which Bob has fetched and not seen."""
        alice, bob = await chat("alice", connects=False), await chat("bob", connects=False)
        group = await alice.client.create_group("club")
        await alice.client.commit(group, group_info=b"info")
        await alice.client.update_group(group, visibility="public")
        await bob.client.join(group)
        await say(alice, group, self.MANY)
        await bob.connect()
        await bob.until(lambda: bob.room(group).unread == self.MANY)
        return alice, bob, group

    async def test_earlier_ones_are_loaded_by_the_page(self, long: Pair) -> None:
        _, bob, group = long
        bob.conversation.seen(group, self.MANY)
        room = bob.conversation.enter(group)
        assert room
        assert [room.has_earlier] == [True]
        loaded = [list(room.messages)]
        while bob.conversation.load_earlier(room):
            loaded.append(list(room.messages))
        assert loaded == [list(range(first + 1, self.MANY + 1)) for first in range(self.MANY - PAGE, -1, -PAGE)]
        assert not room.has_earlier
        assert len(bob.texts(group)) == self.MANY

    @pytest.mark.parametrize("read", [0, 1, 300, 799, 800, 801, 999, 1_000])
    async def test_all_unread_ones_are_loaded_at_once(self, read: int) -> None:
        """Or what is not loaded would count as read with what comes after it."""
        room, history = Room(CLUB), chat_history(1_000)
        async with Client("http://localhost:1") as client:
            client.resume(Session("http://localhost:1", ME, "me", "token"))
            conversation = conversation_module.Conversation(client, history, PlaintextCodec(), Recorder())
            conversation.rooms.all[CLUB.group_id] = room
            history.read(CLUB.group_id, read)
            assert conversation.enter(CLUB.group_id) is room
            first = min(read, 1_000 - PAGE) + 1
            assert list(room.messages) == list(range(first, 1_001))
            assert (room.unread, room.read_before) == (1_000 - read, read if read < 1_000 else None)
            while conversation.load_earlier(room):
                pass
            assert list(room.messages) == list(range(1, 1_001))

    async def test_of_too_many_unread_ones_the_last_are_loaded_without_a_hole(self) -> None:
        room, history = Room(CLUB), chat_history(2_500)
        async with Client("http://localhost:1") as client:
            client.resume(Session("http://localhost:1", ME, "me", "token"))
            conversation = conversation_module.Conversation(client, history, PlaintextCodec(), Recorder())
            conversation.rooms.all[CLUB.group_id] = room
            conversation.enter(CLUB.group_id)
            assert list(room.messages) == list(range(2_501 - MOST_LOADED, 2_501))
            while conversation.load_earlier(room):
                assert list(room.messages) == list(range(min(room.messages), 2_501))
            assert min(room.messages) == 1

    async def test_all_that_is_loaded_stays_when_a_policy_changes(self, long: Pair, running: Running) -> None:
        alice, bob, group = long
        room = bob.conversation.enter(group)
        assert room
        while bob.conversation.load_earlier(room):
            pass
        room.is_at_end = False
        await say(alice, group, MOST_LOADED - self.MANY + 300)
        count = MOST_LOADED + 300
        await bob.until(lambda: len(room.messages) == count)
        await alice.client.update_group(group, expiry=DAY)
        await bob.until(lambda: room.expiry == DAY)
        assert list(room.messages) == list(range(1, count + 1)), "none in the middle is missing, nor at the end"
        assert all(each.gone_at for each in room.messages.values())
        room.is_at_end = True
        await alice.client.send(group, b"last")
        await bob.until(lambda: len(room.messages) == PAGE)
        assert list(room.messages) == list(range(count + 2 - PAGE, count + 2))
        assert room.has_earlier
        assert bob.conversation.load_earlier(room)

    async def test_when_all_that_is_loaded_is_gone_what_came_before_is_shown(
        self, long: Pair, running: Running
    ) -> None:
        alice, bob, group = long
        bob.conversation.seen(group, self.MANY)
        await say(alice, group, PAGE, seconds=60)
        room = bob.conversation.enter(group)
        assert room
        await bob.until(lambda: room.fetched_up_to == self.MANY + PAGE)
        bob.conversation.enter(group)
        assert list(room.messages) == list(range(self.MANY + 1, self.MANY + PAGE + 1))
        bob.conversation.seen(group, self.MANY + PAGE)
        running.clock.advance(60)
        await bob.until(lambda: list(room.messages) == list(range(self.MANY - PAGE + 1, self.MANY + 1)))

    async def test_messages_that_were_stored_and_not_told_stand_in_their_order(
        self, chat: NewChat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A chat was killed between the two. At the next start the group is opened before they are told."""
        monkeypatch.setattr(conversation_module, "PAGE", 50)
        alice, bob = await chat("alice"), await chat("bob", tmp_path / "bob")
        group = await alice.new("club", bob)
        await say(alice, group, 100)
        await bob.until(lambda: bob.room(group).unread == 100)
        bob.conversation.seen(group, 100)
        await bob.disconnect()
        with closing(sqlite3.connect(str(bob._path))) as connection, connection:
            connection.execute("UPDATE groups SET handled_up_to = 20")
        held = Held(bob.client.welcomes)  # which are asked for before messages
        bob.client.welcomes = held  # type: ignore[method-assign]
        await bob.connect()
        room = bob.conversation.enter(group)
        assert room
        assert list(room.messages) == list(range(51, 101))
        held.may_answer.set()
        await say(alice, group, 50)
        await bob.until(lambda: len(room.messages) == 100)
        assert list(room.messages) == list(range(51, 151))
        assert bob.conversation.load_earlier(room)
        assert list(room.messages) == list(range(1, 151))


class TestEnds:
    async def test_the_end_of_the_session_is_told_once(self, pair: Pair) -> None:
        _, bob, group = pair
        held = Held(bob.client.send)
        held.fails_with = SessionOverError(401, 202, "the token is not known")
        bob.client.send = held  # type: ignore[method-assign]
        bob.send(group, "too late")
        await bob.until(lambda: held.answered)
        await bob.client.change_password(PASSWORD, "battery staple")
        held.may_answer.set()
        with pytest.raises(SessionOverError):
            await bob.until(lambda: False)
        await asyncio.sleep(0.1)
        assert len(bob.told.ends) == 1
        assert bob.told.bad == []

    @pytest.mark.parametrize("goes_on", ["a message", "a policy", "time"])
    async def test_a_disk_that_fails_ends_it(
        self, chat: NewChat, tmp_path: Path, running: Running, goes_on: str
    ) -> None:
        alice, bob = await chat("alice"), await chat("bob", tmp_path / "bob")
        group = await alice.new("club", bob)
        await alice.conversation.change_expiry(group, HOUR, dry_run=False)
        alice.send(group, "one")
        bob.conversation.enter(group)
        await bob.shows(group, "one")
        await bob.until(lambda: bob.room(group).expiry == HOUR)
        bob.history._connection.execute("PRAGMA query_only = ON")  # as a file that can only be read
        if goes_on == "a message":
            alice.send(group, "two")
        elif goes_on == "a policy":
            await alice.conversation.change_expiry(group, 60, dry_run=False)
        else:
            running.clock.advance(HOUR + 1)
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            await bob.until(lambda: False)
        assert len(bob.told.ends) == 1

    async def test_a_bug_in_the_background_is_not_silent(self, pair: Pair) -> None:
        alice, bob, group = pair

        async def fail(*_: object) -> Any:
            raise ZeroDivisionError("a bug")

        bob.client.groups = fail  # type: ignore[method-assign]
        await alice.client.update_group(group, alias="x")
        with pytest.raises(ZeroDivisionError):
            await bob.until(lambda: False)
        assert len(bob.told.ends) == 1

    async def test_nor_one_in_what_follows_the_news(self, pair: Pair) -> None:
        alice, bob, group = pair

        def fail(message: Message) -> None:
            raise ZeroDivisionError("a bug")

        bob.conversation._arrived = fail  # type: ignore[method-assign]
        alice.send(group, "one")
        with pytest.raises(ZeroDivisionError):
            await bob.until(lambda: False)

    async def test_what_the_server_refuses_in_the_background_is_said(self, pair: Pair) -> None:
        alice, _, _ = pair

        async def fail(error: Exception) -> None:
            raise error

        for error in (GroupError(403, 401, "no admin"), NoAnswerError("no answer"), ServerError(500, 0, "failed")):
            await alice.conversation._start(fail(error))
        assert alice.told.bad == ["no admin", "failed"], "that there is no connection stands in the bar"
        assert alice.told.ends == []

    async def test_nothing_goes_on_after_the_end(self, pair: Pair, running: Running) -> None:
        alice, bob, group = pair
        come_back = await go_offline(running, bob)
        bob.send(group, "never sent")
        of_bob = set(bob.conversation._tasks)
        assert len(of_bob) >= 4, "news, groups, who holds a group back, a text that is to be sent"
        await bob.disconnect()
        come_back()
        assert all(each.done() for each in of_bob)
        assert (bob.told.bad, bob.told.ends) == ([], [])
        assert alice.texts(group) == []


def test_the_recorder_is_a_listener() -> None:
    listener: conversation_module.Listener = Recorder()
    assert listener
