"""How much of a group is loaded: pages back, all that is unread, and nothing in the middle is missing."""

import sqlite3
from contextlib import closing
from pathlib import Path
from uuid import UUID

import pytest

from conclave.client import Client, History, LoginSession, PlaintextCodec
from conclave.client.chat import conversation as conversation_module, loading
from conclave.client.chat.loading import MAX_BEHIND, MAX_LOADED, PAGE
from conclave.client.chat.rooms import Room
from conclave.client.history.pages import IncomingMessage
from conclave.clock import FakeClock
from conclave.wire.results import GroupDetails
from tests.conftest import Running
from tests.support.conversing import Held, NewChat, Pair, Recorder, say

DAY = 86_400
ME, BOB = UUID(int=1), UUID(int=2)
CLUB = GroupDetails(UUID(int=9), "", (), "club", "", -1, "private")


def chat_history(count: int) -> History:
    """Return a history with messages of somebody else's."""
    history = History(clock=FakeClock())
    arrived = [IncomingMessage(number, BOB, b"text", FakeClock().now()) for number in range(1, count + 1)]
    history.store(CLUB.group_id, 0, count, arrived)
    return history


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
        await bob.client.external_join(group)
        await say(alice, group, self.MANY)
        await bob.connect()
        await bob.until(lambda: bob.room(group).unread == self.MANY)
        return alice, bob, group

    async def test_earlier_ones_are_loaded_by_the_page(self, long: Pair) -> None:
        _, bob, group = long
        bob.conversation.mark_seen(group, range(1, self.MANY + 1))
        room = bob.conversation.open_group(group)
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
            client.resume(LoginSession("http://localhost:1", ME, "me", "token"))
            conversation = conversation_module.Conversation(client, history, PlaintextCodec(), Recorder())
            conversation.rooms.all[CLUB.group_id] = room
            history.read(CLUB.group_id, read)
            assert conversation.open_group(CLUB.group_id) is room
            first = min(read, 1_000 - PAGE) + 1
            assert list(room.messages) == list(range(first, 1_001))
            assert (room.unread, room.read_before) == (1_000 - read, read if read < 1_000 else None)
            while conversation.load_earlier(room):
                pass
            assert list(room.messages) == list(range(1, 1_001))

    @pytest.mark.parametrize("read", [0, 5, 700, 1_499])
    async def test_of_too_many_unread_ones_the_first_are_loaded_and_the_others_in_their_turn(self, read: int) -> None:
        """Or those that were never loaded would count as read with what comes after them."""
        room, history = Room(CLUB), chat_history(2_500)
        history.read(CLUB.group_id, read)
        async with Client("http://localhost:1") as client:
            client.resume(LoginSession("http://localhost:1", ME, "me", "token"))
            conversation = conversation_module.Conversation(client, history, PlaintextCodec(), Recorder())
            conversation.rooms.all[CLUB.group_id] = room
            conversation.open_group(CLUB.group_id)
            first, last = max(1, read + 1 - PAGE), read + MAX_LOADED - PAGE
            assert list(room.messages) == list(range(first, last + 1))
            assert (room.has_earlier, room.has_later, room.unread_from) == (first > 1, True, read + 1)
            while room.has_later:
                before = max(room.messages)
                assert conversation.load_later(room) == (before < 2_500)
                assert max(room.messages) == min(before + PAGE, 2_500)
                assert list(room.messages) == list(range(min(room.messages), max(room.messages) + 1))
                assert len(room.messages) <= MAX_LOADED
            assert max(room.messages) == 2_500
            while conversation.load_earlier(room):
                assert list(room.messages) == list(range(min(room.messages), 2_501))
            assert min(room.messages) == 1

    async def test_what_comes_while_somebody_is_far_from_the_end_is_loaded_once_it_is_wanted(self) -> None:
        room, history = Room(CLUB), chat_history(MAX_BEHIND + 500)
        history.read(CLUB.group_id, MAX_BEHIND + 500)
        found = history.messages(CLUB.group_id, 0, MAX_BEHIND + 500)
        room.load(found[:MAX_LOADED])
        room.is_at_end = False
        for each in found[MAX_LOADED:]:
            loading.add(room, each)
        assert list(room.messages) == list(range(1, MAX_BEHIND + 1))
        loading.reload(history, room)
        assert list(room.messages) == list(range(1, MAX_BEHIND + 1))
        assert loading.load_later(history, room)[0].sequence_num == MAX_BEHIND + 1
        loading.load_last(history, room)
        assert (min(room.messages), max(room.messages)) == (MAX_BEHIND + 501 - PAGE, MAX_BEHIND + 500)
        assert (room.has_earlier, room.has_later) == (True, False)

    @pytest.mark.system
    async def test_all_that_is_loaded_stays_when_a_policy_changes(self, long: Pair, running: Running) -> None:
        alice, bob, group = long
        room = bob.conversation.open_group(group)
        assert room
        while bob.conversation.load_earlier(room):
            pass
        room.is_at_end = False
        await say(alice, group, MAX_LOADED - self.MANY + 300)
        count = MAX_LOADED + 300
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
        bob.conversation.mark_seen(group, range(1, self.MANY + 1))
        await say(alice, group, PAGE, seconds=60)
        room = bob.conversation.open_group(group)
        assert room
        await bob.until(lambda: room.fetched_up_to == self.MANY + PAGE)
        bob.conversation.open_group(group)
        assert list(room.messages) == list(range(self.MANY + 1, self.MANY + PAGE + 1))
        bob.conversation.mark_seen(group, range(1, self.MANY + PAGE + 1))
        running.clock.advance(60)
        await bob.until(lambda: list(room.messages) == list(range(self.MANY - PAGE + 1, self.MANY + 1)))

    async def test_messages_that_were_stored_and_not_told_stand_in_their_order(
        self, chat: NewChat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A chat was killed between the two. At the next start the group is opened before they are told."""
        monkeypatch.setattr(loading, "PAGE", 50)
        alice, bob = await chat("alice"), await chat("bob", tmp_path / "bob")
        group = await alice.new("club", bob)
        await say(alice, group, 100)
        await bob.until(lambda: bob.room(group).unread == 100)
        bob.conversation.mark_seen(group, range(1, 101))
        await bob.disconnect()
        with closing(sqlite3.connect(str(bob._path))) as connection, connection:
            connection.execute("UPDATE groups SET handled_up_to = 20")
        held = Held(bob.client.welcomes)  # which are asked for before messages
        bob.client.welcomes = held  # type: ignore[method-assign]
        await bob.connect()
        room = bob.conversation.open_group(group)
        assert room
        assert list(room.messages) == list(range(51, 101))
        held.may_answer.set()
        await say(alice, group, 50)
        await bob.until(lambda: len(room.messages) == 100)
        assert list(room.messages) == list(range(51, 151))
        assert bob.conversation.load_earlier(room)
        assert list(room.messages) == list(range(1, 151))
