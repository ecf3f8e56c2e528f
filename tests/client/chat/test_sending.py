"""What is typed arrives once, in its order, whatever becomes of connections and answers."""

import asyncio
import random
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conclave import app_keys
from conclave.client import Backoff, Client, NoAnswerError, RefusedError
from conclave.client.chat.rooms import PendingMessage
from conclave.client.chat.send_queue import UNKNOWN_OUTCOME
from conclave.client.errors import BusyError, ServerError
from conclave.wire.exchange import MAX_BODY_BYTES
from tests.conftest import Running
from tests.support import sample
from tests.support.client import PASSWORD
from tests.support.conversing import Chat, Held, NewChat, Pair, go_offline
from tests.support.cutting import bad_link
from tests.support.server import PATIENCE, ServerProcess

DAY = 86_400


class TestSending:
    async def test_what_is_typed_comes_in_its_order(self, pair: Pair) -> None:
        alice, bob, group = pair
        said = [f"text {number}" for number in range(20)]
        alice.send(group, *said)
        assert alice.texts(group) == said, "at once, as drafts"
        await bob.shows(group, *said)
        await alice.shows(group, *said)
        await alice.until(lambda: not alice.room(group).pending)  # the last may have come before its answer

    async def test_groups_do_not_wait_for_each_other(self, pair: Pair) -> None:
        alice, _, group = pair
        other = await alice.new("other")
        alice.conversation.open_group(other)
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
        await alice.until(lambda: all(each.refused for each in alice.room(group).pending))
        refused = [each for each in alice.items(group) if isinstance(each, PendingMessage)]
        assert [each.text[:12] for each in refused] == ["\x00begins with"[:12], "for too long", "x" * 12]
        assert all(each.refused for each in refused)
        assert "must not be empty or begin with NUL" in refused[0].refused
        assert alice.conversation.rooms.unsent_count() == 3
        assert (alice.told.bad, alice.told.ends) == ([], [])

    async def test_what_was_refused_is_tried_again_or_dropped(self, pair: Pair) -> None:
        alice, bob, group = pair
        room, send_queue = alice.room(group), alice.conversation.send_queue
        assert (send_queue.send_again(room), send_queue.discard(room)) == (0, 0)
        alice.send(group, "one", "two", self_destruct_seconds=DAY * 1_000)
        await alice.until(lambda: all(each.refused for each in room.pending))
        room.pending[0].self_destruct_seconds = 60
        assert send_queue.send_again(room) == 2
        await bob.shows(group, "one")
        await alice.until(lambda: [bool(each.refused) for each in room.pending] == [True])
        alice.told.shown.clear()
        assert send_queue.discard(room) == 1
        assert group in alice.told.shown
        await alice.shows(group, "one")
        assert alice.conversation.rooms.unsent_count() == 0

    async def test_while_no_connection_is_shown_nothing_is_tried(self, pair: Pair) -> None:
        """The stream may notice later than a request that has no answer: what is typed between both is a draft."""
        alice, bob, group = pair
        room, report = alice.room(group), alice.client.transport.on_trouble
        report(NoAnswerError("no answer"))
        assert alice.conversation.offline == "no answer"
        alice.send(group, "one")
        await asyncio.sleep(0.2)
        [pending] = room.pending
        assert not pending.may_be_stored
        report(None)
        await bob.shows(group, "one")

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
        await alice.until(lambda: not alice.room(group).pending)
        assert held.answered == 3

    async def test_what_was_typed_without_a_connection_goes_out_with_it(self, pair: Pair, running: Running) -> None:
        alice, bob, group = pair
        come_back = await go_offline(running, alice)
        alice.send(group, "one", "two")
        await asyncio.sleep(0.3)
        assert [each.waits for each in alice.room(group).pending] == [True, True]
        assert alice.conversation.rooms.unsent_count() == 2
        assert bob.texts(group) == []
        come_back()
        await bob.shows(group, "one", "two")
        await alice.shows(group, "one", "two")
        assert alice.told.bad == [], "the bar says that there was no connection"

    async def test_what_waits_can_be_called_back(self, pair: Pair, running: Running) -> None:
        alice, bob, group = pair
        room, queue = alice.room(group), alice.conversation.send_queue
        come_back = await go_offline(running, alice)
        alice.send(group, "one", "two", "three")
        assert queue.cancel_last(room).text == "three"  # type: ignore[union-attr]  # it is there
        alice.send(group, "four")
        await asyncio.sleep(0.1)
        assert queue.cancel_last(room).text == "four"  # type: ignore[union-attr]  # it is there
        assert alice.conversation.rooms.unsent_count() == 2
        come_back()
        await bob.shows(group, "one", "two")
        await alice.until(lambda: not room.pending)
        assert queue.cancel_last(room) is None
        await alice.until(lambda: running.app[app_keys.EVENTS]._streams.get(alice.user_id.bytes))
        come_back = await go_offline(running, alice)
        alice.send(group, "five", "six")
        assert queue.discard(room) == 2
        alice.send(group, "seven")
        come_back()
        await bob.shows(group, "one", "two", "seven")

    @pytest.mark.parametrize("came", [True, False])
    async def test_what_the_server_may_have_is_not_sent_again_and_taken_back(self, pair: Pair, *, came: bool) -> None:
        alice, bob, group = pair
        room, send, tries = alice.room(group), alice.client.send, []

        async def hangs(*args: Any, **options: Any) -> int:
            tries.append(args)
            if came:
                await send(*args, **options)
            await asyncio.Event().wait()
            raise AssertionError

        alice.client.send = hangs  # type: ignore[method-assign]
        alice.send(group, "secret")
        await alice.until(lambda: tries)
        if came:
            await bob.shows(group, "secret")
        pending = alice.conversation.send_queue.cancel_last(room)
        if pending is None:
            assert came, "it is here already, and is taken back as any other"
            return
        assert pending.is_cancelled
        assert alice.texts(group) == []
        alice.client.send = send  # type: ignore[method-assign]
        alice.send(group, "after")
        for each in (alice, bob):
            each.conversation.sync.request_fetch(group)
            await each.shows(group, "after")
        assert len(tries) == 1

    async def test_a_message_that_comes_before_its_answer_is_shown_once(self, pair: Pair) -> None:
        """Somebody else's, which comes with an event, brings it along."""
        alice, bob, group = pair
        held = Held(alice.client.send)
        alice.client.send = held  # type: ignore[method-assign]
        alice.send(group, "ok", "ok")
        await alice.until(lambda: held.answered)
        bob.send(group, "hello")
        await alice.until(lambda: len(alice.room(group).messages) == 2)
        assert held.answered == 1
        assert alice.texts(group) == ["ok", "hello", "ok"], "the last is a pending"
        assert alice.conversation.rooms.unsent_count() == 1
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
        await alice.until(lambda: not alice.room(group).pending)
        await alice.shows(group, "once", "hello")
        await bob.shows(group, "once", "hello")
        assert held.answered == 2

    @pytest.mark.parametrize("came", [True, False])
    async def test_one_whose_answer_was_lost_is_not_sent_once_more_after_a_day(self, pair: Pair, *, came: bool) -> None:
        """A server knows a send again for a day: then it would store it twice."""
        alice, bob, group = pair
        room, queue, send = alice.room(group), alice.conversation.send_queue, alice.client.send
        now, tries = [0.0], []

        async def asleep(*args: Any, **options: Any) -> int:
            tries.append(args)
            if came:
                await send(*args, **options)
            now[0] += DAY
            raise NoAnswerError("lost")

        queue._clock = lambda: now[0]
        alice.client.send = asleep  # type: ignore[method-assign]
        alice.send(group, "once")
        await alice.until(lambda: not room.pending or room.pending[0].is_unknown)
        alice.conversation.sync.request_fetch(group)
        if came:
            await alice.until(lambda: room.messages and not room.pending)
        else:
            assert alice.items(group)[-1].refused == UNKNOWN_OUTCOME  # type: ignore[union-attr]
            assert alice.conversation.rooms.unsent_count() == 1
        assert len(tries) == 1
        del alice.client.send
        assert queue.send_again(room) == (0 if came else 1)
        await bob.shows(group, "once")
        alice.send(group, "later")
        await bob.shows(group, "once", "later")

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
        await alice.until(alice.conversation.rooms.unsent_count)
        assert isinstance(alice.items(group)[-1], PendingMessage)

    async def test_what_was_typed_for_a_group_goes_with_it(self, pair: Pair, running: Running) -> None:
        alice, bob, group = pair
        come_back = await go_offline(running, bob)
        bob.send(group, "too late")
        await alice.client.remove(group, bob.user_id)
        come_back()
        await bob.until(lambda: group not in bob.conversation.rooms.all)
        assert bob.conversation.rooms.unsent_count() == 0
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
        assert bob.conversation.open_group_id is None
        await bob.until(lambda: bob.told.said)
        assert bob.told.said == ["You are no longer in club. Its local messages were erased"]


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
                async with asyncio.timeout(2 * PATIENCE):
                    while len(alice.conversation.rooms.all) < 2:
                        await asyncio.sleep(0.01)
                    for group in groups:
                        alice.conversation.open_group(group)
                        alice.send(group, *said)
                    # Those of a page are told one by one, and no drafts any more with the first of them.
                    while any(alice.room(each).pending or len(alice.texts(each)) < len(said) for each in groups):
                        assert alice.told.ends == []
                        await asyncio.sleep(0.05)
                for group in groups:
                    assert alice.texts(group) == said
                    assert list(alice.room(group).messages) == list(range(1, len(said) + 1))
                    stored = await straight.fetch(group, 0, 1_000)
                    assert [each.mls_message.decode() for each in stored] == said
                assert link.cut_early > 5, "the link was bad enough"
                assert alice.told.bad == []
