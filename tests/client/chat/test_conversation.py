"""What goes on between the server and the screen, told to a observer that only records."""

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from conclave.client import GroupError, NoAnswerError, RefusedError, SessionOverError
from conclave.client.chat import conversation as conversation_module, unread as attention_module
from conclave.client.chat.observer import ConversationObserver
from conclave.client.errors import ServerError
from conclave.client.events import Lagged, Message
from conclave.client.history import store as store_module
from conclave.clock import FakeClock
from conclave.config.settings import Config
from tests.conftest import Running, StartServer
from tests.support.client import PASSWORD
from tests.support.conversing import Chat, Held, NewChat, Pair, Recorder, go_offline

HOUR, DAY = 3_600, 86_400


async def renewal_under_way(chat: Chat) -> "tuple[Held, asyncio.Task[None]]":
    """Have groups and invites read again. The answer about the groups is there, and nobody has it yet."""
    held = Held(chat.client.groups)
    chat.client.groups = held  # type: ignore[method-assign]
    renewing = asyncio.create_task(chat.refresh())
    await chat.until(lambda: held.answered)
    return held, renewing


class TestFromAnotherDevice:
    """No event tells the one who sends."""

    async def test_it_comes_to_the_open_group_after_a_while(
        self, chat: NewChat, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(conversation_module, "FETCH_POLL_SECONDS", 0.05)
        alice = await chat("alice")
        group, other = await alice.new("club"), await alice.new("other")
        alice.conversation.open_group(group)
        # News come in their order: once she has heard of the invite, none of the groups is read for former ones.
        bob = await chat("bob")
        await bob.conversation.sync.membership.invite(await bob.new("den", public=False), "alice")
        await alice.until(lambda: alice.told.said)
        phone = await chat("alice", register=False)
        await phone.client.send(other, b"elsewhere")
        await phone.client.send(group, b"from my phone")
        await alice.shows(group, "from my phone")
        assert alice.room(other).fetched_up_to == 0, "others are not looked at all the time"

    async def test_it_comes_when_the_group_is_opened(self, chat: NewChat) -> None:
        alice = await chat("alice")
        group = await alice.new("club")
        phone = await chat("alice", register=False)
        await phone.client.send(group, b"from my phone")
        alice.conversation.open_group(group)
        await alice.shows(group, "from my phone")


class TestUnread:
    async def test_what_others_have_said_is_unread_until_it_was_on_the_screen(self, pair: Pair, chat: NewChat) -> None:
        alice, bob, group = pair
        alice.send(group, "one", "two", "three")
        await bob.shows(group, "one", "two", "three")
        assert (alice.room(group).unread, bob.room(group).unread) == (0, 3)
        room = bob.conversation.open_group(group)
        assert room
        assert (room.unread, room.read_before) == (3, 0), "the line stands before the first"
        bob.told.shown.clear()
        bob.conversation.mark_seen(group, range(1, 3))
        assert (room.unread, room.read_before) == (1, 0), "it stays while one reads"
        assert bob.told.shown == {None, group}
        bob.told.shown.clear()
        bob.conversation.mark_seen(group, range(1, 2))
        assert (room.unread, bob.told.shown) == (1, set()), "what was seen stays seen"
        assert bob.conversation.open_group(group) is room
        assert room.read_before == 2
        bob.conversation.mark_seen(group, range(1, 4))
        bob.conversation.open_group(group)
        assert [room.unread, room.read_before] == [0, None]
        await bob.until(lambda: not bob.history.unreported_reads())

    async def test_who_writes_has_read(self, pair: Pair) -> None:
        alice, bob, group = pair
        alice.send(group, "one")
        await bob.shows(group, "one")
        bob.conversation.open_group(group)
        bob.send(group, "two")
        assert bob.room(group).read_before is None
        await bob.shows(group, "one", "two")
        assert bob.room(group).unread == 0

    async def test_who_writes_has_not_seen_what_destroys_itself(self, pair: Pair) -> None:
        alice, bob, group = pair
        alice.send(group, "one")
        alice.send(group, "secret", self_destruct_seconds=60)
        alice.send(group, "two")
        await bob.shows(group, "one", "secret", "two")
        bob.send(group, "three")
        assert (bob.room(group).unread, bob.room(group).unread_from) == (1, 2)
        assert bob.history.read_up_to(group) == 1
        bob.conversation.mark_seen(group, [2])
        assert bob.history.read_up_to(group) >= 3, "nothing is left before it"

    async def test_what_comes_to_a_group_that_was_never_opened_is_counted(self, pair: Pair) -> None:
        alice, bob, _ = pair
        other = await alice.new("other", bob)
        alice.conversation.open_group(other)
        alice.send(other, "one", "two")
        await bob.until(lambda: bob.room(other).unread == 2)
        assert bob.texts(other) == []
        bob.conversation.open_group(other)
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
        bob.conversation.open_group(group)
        bob.conversation.mark_seen(group, range(1, 2))
        await bob.disconnect()
        await bob.connect()
        assert bob.room(group).unread == 1
        room = bob.conversation.open_group(group)
        assert room
        assert room.read_before == 1

    async def test_of_a_group_that_is_not_there_nothing_is_seen(self, pair: Pair) -> None:
        _, bob, _ = pair
        bob.conversation.mark_seen(UUID(int=5), range(1, 4))
        assert bob.conversation.open_group(UUID(int=5)) is None
        assert bob.conversation.open_group_id is None


class TestPolicies:
    async def test_a_policy_hides_at_once_what_it_forbids_and_is_told_once(self, pair: Pair, running: Running) -> None:
        alice, bob, group = pair
        alice.send(group, "old")
        await bob.shows(group, "old")
        running.clock.advance(HOUR)
        alice.send(group, "young")
        await bob.shows(group, "old", "young")
        await alice.conversation.retention.change(group, 60, dry_run=False)
        for each in (alice, bob):
            await each.shows(group, "young")
            await each.until(partial(self.has_expiry, each, group, 60))
            await each.refresh()
            who = "you" if each is alice else "alice"
            await each.until(partial(self.told, each, group))
            assert self.told(each, group) == [
                f"{who} changed the expiry: messages are deleted after 1 minute; 1 message expired"
            ]
        running.clock.advance(61)
        assert bob.texts(group) == [], "before anybody says so"
        await bob.until(lambda: not bob.room(group).messages)
        await alice.conversation.retention.change(group, -1, dry_run=False)
        await bob.until(lambda: self.told(bob, group)[1:] == ["alice changed the expiry: messages are kept forever"])

    async def test_a_change_is_told_with_the_one_of_several_admins_who_made_it(self, pair: Pair) -> None:
        alice, bob, group = pair
        await alice.client.promote(group, bob.user_id)
        for each in (alice, bob):
            await each.refresh()
        await bob.client.update_group(group, expiry=HOUR)
        await alice.client.update_group(group, alias="of two admins")
        for each, who in ((alice, "bob"), (bob, "you")):
            await each.until(partial(self.told, each, group))
            assert self.told(each, group) == [f"{who} changed the expiry: messages are deleted after 1 hour"]

    @staticmethod
    def has_expiry(chat: Chat, group: UUID, expiry: int) -> bool:
        return chat.room(group).expiry == expiry

    @staticmethod
    def told(chat: Chat, group: UUID) -> list[str]:
        return [each for each in chat.notices(group) if "changed the expiry" in each]

    async def test_what_a_wrong_time_has_hidden_is_there_again_once_it_is_right(
        self, pair: Pair, running: Running
    ) -> None:
        alice, bob, group = pair
        await alice.conversation.retention.change(group, HOUR, dry_run=False)
        bob.send(group, "first", "second")
        await alice.shows(group, "first", "second")
        now = running.clock.now()
        for time in (now, now + DAY):
            alice.history.record_server_time(time)
        assert alice.texts(group) == []
        alice.conversation.open_group(group)  # what is loaded now is nothing
        assert not alice.room(group).messages
        assert alice.room(group).unread == 0
        alice.history.record_server_time(now)
        await alice.shows(group, "first", "second")
        assert alice.room(group).unread == 2

    async def test_what_it_would_hide_is_only_asked(self, pair: Pair, running: Running) -> None:
        alice, _, group = pair
        alice.send(group, "old")
        await alice.shows(group, "old")
        since = running.clock.now()
        running.clock.advance(HOUR)
        would = await alice.conversation.retention.change(group, 60, dry_run=True)
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
            assert await alice.conversation.retention.effective(group, group_has) == comes_to
            await alice.conversation.retention.change(group, group_has, dry_run=False)
            assert alice.room(group).expiry == comes_to, "as the server has it"
            await alice.end()

    async def test_a_self_destructing_message_goes_after_it_was_seen(self, pair: Pair, running: Running) -> None:
        alice, bob, group = pair
        alice.send(group, "secret", self_destruct_seconds=60)
        alice.send(group, "plain")
        await bob.shows(group, "secret", "plain")
        running.clock.advance(DAY)
        assert bob.texts(group) == ["secret", "plain"], "fetched is not seen"
        bob.conversation.mark_seen(group, range(1, 3))
        [secret, _] = bob.room(group).messages.values()
        assert secret.gone_at == running.clock.now() + 60, "the countdown begins at once"
        running.clock.advance(60)
        assert bob.texts(group) == ["plain"]
        await bob.until(lambda: list(bob.room(group).messages) == [2])
        await alice.until(lambda: alice.texts(group) == ["plain"])  # its own ran from sending on

    async def test_who_holds_a_group_back_is_told_to_admins_only(self, pair: Pair, chat: NewChat) -> None:
        alice, bob, group = pair
        carol = await chat("carol", connects=False)
        await carol.client.join(group)
        await carol.client.external_join(group)
        await alice.conversation.retention.change(group, 0, dry_run=False)
        alice.send(group, "for all")
        await bob.shows(group, "for all")
        await alice.until(lambda: alice.room(group).retention.held_by == (carol.user_id,))  # type: ignore[union-attr]
        retention = bob.room(group).retention
        assert retention
        assert retention.held_by == ()
        await carol.client.fetch(group)
        alice.told.shown.clear()
        await carol.client.fetch(group, 1)
        await alice.until(lambda: alice.room(group).retention.held_by == ())  # type: ignore[union-attr]
        assert group in alice.told.shown

    async def test_an_answer_that_comes_late_does_not_undo_a_later_one(self, pair: Pair) -> None:
        alice, bob, group = pair
        # News come in their order: once he has heard of the invite, no policy is read for former ones.
        await alice.conversation.sync.membership.invite(await alice.new("den", public=False), "bob")
        await bob.until(lambda: bob.told.said)
        held = Held(bob.client.retention)
        bob.client.retention = held  # type: ignore[method-assign]
        bob.conversation.open_group(group)
        await bob.until(lambda: held.answered)
        del bob.client.retention
        await alice.client.update_group(group, expiry=HOUR)
        await bob.until(partial(self.has_expiry, bob, group, HOUR))
        held.may_answer.set()
        await asyncio.sleep(0.1)
        assert bob.room(group).expiry == HOUR
        assert self.told(bob, group) == ["alice changed the expiry: messages are deleted after 1 hour"]


class TestMembership:
    @staticmethod
    def is_told(chat: Chat, group: UUID, text: str) -> bool:
        return text in chat.notices(group)

    async def test_what_happens_in_a_group_is_told_in_it(self, pair: Pair, chat: NewChat) -> None:
        alice, bob, group = pair
        carol = await chat("carol")
        await carol.conversation.sync.membership.join(group)
        await bob.until(lambda: "carol joined" in bob.notices(group))
        await alice.client.promote(group, bob.user_id)
        await bob.until(lambda: bob.room(group).is_admin(bob.user_id))
        await alice.client.update_group(group, group_name="den", alias="The Den", visibility="private")
        await carol.conversation.leave(group)
        told = ["you are now an admin", "the group was renamed to den", "carol is no longer a member"]
        await bob.until(lambda: set(told) <= set(bob.notices(group)))
        assert bob.room(group).name == "den"
        assert bob.conversation.rooms.by_name("club") is None

    async def test_one_who_is_removed_loses_the_group_and_hears_why(
        self, pair: Pair, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(conversation_module, "EVENT_WAIT_SECONDS", 1.0)
        alice, bob, group = pair
        alice.send(group, "secret")
        await bob.shows(group, "secret")
        await alice.conversation.sync.membership.remove(group, bob.user_id)
        await bob.until(lambda: group not in bob.conversation.rooms.all and bob.told.bad)
        assert bob.told.bad == ["You were removed from club. Its local messages were erased"]
        assert bob.conversation.open_group_id is None
        assert bob.history.groups() == {}
        await asyncio.sleep(1.2)
        assert bob.told.said == [], "it is told once"

    async def test_one_who_was_removed_while_away_hears_it_too(self, pair: Pair, running: Running) -> None:
        alice, bob, group = pair
        come_back = await go_offline(running, bob)
        await alice.client.remove(group, bob.user_id)
        come_back()
        await bob.until(lambda: group not in bob.conversation.rooms.all and bob.told.said)
        assert bob.told.said == ["You are no longer in club. Its local messages were erased"]

    async def test_a_ban_is_told_to_admins(self, pair: Pair, chat: NewChat) -> None:
        alice, bob, group = pair
        carol, dave = await chat("carol"), await chat("dave")
        for each in (carol, dave):
            await each.conversation.sync.membership.join(group)
            await each.refresh()
            each.conversation.open_group(group)
        await alice.client.promote(group, dave.user_id)
        await dave.until(lambda: dave.room(group).is_admin(dave.user_id))
        await alice.conversation.sync.membership.remove(group, bob.user_id, ban=True)
        await carol.until(lambda: "bob is no longer a member" in carol.notices(group))
        for each in (alice, dave):
            await each.until(partial(self.is_told, each, group, "bob was banned"))
        await bob.until(lambda: bob.told.bad)
        await carol.refresh()
        assert "bob was banned" not in carol.notices(group)
        await alice.conversation.sync.membership.remove(group, carol.user_id)
        await dave.until(lambda: "carol is no longer a member" in dave.notices(group))
        await dave.refresh()
        assert "carol was banned" not in dave.notices(group)

    async def test_a_group_that_is_deleted_is_gone_for_all(self, pair: Pair) -> None:
        alice, bob, group = pair
        bob.send(group, "one")
        await bob.shows(group, "one")
        await alice.client.delete_group(group)
        for each in (alice, bob):
            await each.until(partial(bool, each.told.said))
            assert group not in each.conversation.rooms.all
            assert each.told.said == ["club was deleted"]
            assert each.history.groups() == {}

    async def test_groups_that_were_read_before_one_went_do_not_bring_it_back(self, pair: Pair) -> None:
        alice, bob, group = pair
        held, renewing = await renewal_under_way(bob)
        await alice.client.delete_group(group)
        await bob.until(lambda: bob.told.said)
        held.may_answer.set()
        await renewing
        assert group not in bob.conversation.rooms.all
        await asyncio.sleep(0.5)
        assert bob.told.said == ["club was deleted"], "it is told once"

    async def test_a_group_that_one_leaves_is_gone_at_once(self, pair: Pair) -> None:
        _, bob, group = pair
        bob.send(group, "one")
        await bob.shows(group, "one")
        await bob.conversation.leave(group)
        assert group not in bob.conversation.rooms.all
        assert bob.history.groups() == {}
        await bob.until(lambda: bob.told.said)
        assert bob.told.said == ["You are no longer in club. Its local messages were erased"]
        assert bob.told.bad == []

    async def test_names_of_those_who_are_gone_are_found(self, pair: Pair, chat: NewChat) -> None:
        alice, bob, group = pair
        carol, dave = await chat("carol", connects=False), await chat("dave", connects=False)
        for each in (carol, dave):
            await each.client.join(group)
            await each.client.external_join(group)
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
        bob.conversation.open_group(group)
        await bob.until(lambda: bob.conversation.rooms.known_name(carol.user_id))
        assert bob.conversation.rooms.display_name(carol.user_id) == "carol"
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

        bob.conversation._handle_news = wait  # type: ignore[method-assign]
        await alice.client.remove(group, bob.user_id)
        await bob.refresh()
        assert bob.conversation.rooms.all == {}
        assert bob.conversation.open_group_id is None
        held.may_answer.set()
        await bob.until(lambda: bob.told.said)
        assert bob.told.said == ["You are no longer in club. Its local messages were erased"]
        assert held.answered == 1, "the second is not sent"


class TestInvites:
    async def test_one_comes_and_is_accepted(self, chat: NewChat) -> None:
        alice, bob = await chat("alice"), await chat("bob")
        group = await alice.new("club", public=False)
        await alice.conversation.sync.membership.invite(group, "bob")
        await bob.until(lambda: bob.conversation.rooms.invites and bob.told.said)
        assert bob.told.said == ["You are invited to club"]
        [invite] = bob.conversation.rooms.invites
        assert (invite.group_name, invite.inviter_username) == ("club", "alice")
        await bob.conversation.answer_invite(invite.invite_id, accept=True)
        assert bob.conversation.rooms.invites == ()
        assert bob.room(group).name == "club"
        alice.conversation.open_group(group)
        await alice.until(lambda: "bob joined" in alice.notices(group))
        alice.send(group, "welcome")
        bob.conversation.open_group(group)
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
        await bob.conversation.answer_invite(bob.conversation.rooms.invites[0].invite_id, accept=False)
        assert bob.conversation.rooms.invites == ()
        await alice.until(lambda: alice.told.said)
        assert alice.told.said == ["The invite of bob to club was declined or withdrawn, or has expired"]

    async def test_one_is_withdrawn(self, chat: NewChat) -> None:
        alice, bob = await chat("alice"), await chat("bob")
        group = await alice.new("club", public=False)
        await alice.conversation.sync.membership.invite(group, "bob")
        await bob.until(lambda: bob.conversation.rooms.invites)
        await alice.conversation.withdraw_invite(group, bob.user_id)
        await bob.until(lambda: not bob.conversation.rooms.invites and len(bob.told.said) > 1)
        assert bob.told.said[1:] == ["An invite was withdrawn or has expired"]
        await alice.until(lambda: not alice.conversation._withdrawn)
        assert alice.told.said == [], "who withdraws it knows"

    async def test_one_that_has_expired_is_not_listed(self, chat: NewChat, running: Running) -> None:
        alice, bob = await chat("alice"), await chat("bob")
        group = await alice.new("club", public=False)
        await alice.conversation.sync.membership.invite(group, "bob")
        await bob.until(lambda: bob.conversation.rooms.invites)
        [invite] = bob.conversation.rooms.invites
        running.clock.advance(running.config.invite_ttl_seconds + 1)
        with pytest.raises(RefusedError):
            await bob.conversation.answer_invite(invite.invite_id, accept=True)
        await bob.refresh()
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

    async def test_one_that_comes_while_all_is_read_is_told_once(self, chat: NewChat) -> None:
        alice, bob = await chat("alice"), await chat("bob", connects=False)
        group = await alice.new("club", public=False)
        held = Held(bob.client.welcomes)  # which are asked for before invites
        bob.client.welcomes = held  # type: ignore[method-assign]
        await bob.connect()
        await bob.until(lambda: held.answered)
        await alice.conversation.sync.membership.invite(group, "bob")
        held.may_answer.set()
        await bob.until(lambda: bob.told.said)
        await alice.client.cancel_invite(group, bob.user_id)
        await bob.until(lambda: bob.told.said[-1] == "An invite was withdrawn or has expired")
        assert bob.told.said[:-1] == ["You are invited to club"]


class TestRenewal:
    async def test_an_answer_that_comes_late_does_not_undo_a_later_one(self, pair: Pair) -> None:
        """A group that was made meanwhile would be gone again."""
        alice, _, group = pair
        held, early = await renewal_under_way(alice)
        del alice.client.groups
        other = await alice.conversation.sync.membership.create("other")
        late = asyncio.create_task(alice.refresh())
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
        assert bob.notices(group) == ["the title is now The Club"]

    async def test_a_group_without_a_change_tells_nothing(self, pair: Pair) -> None:
        alice, _, group = pair
        told = alice.notices(group)
        for _ in range(3):
            await alice.refresh()
        assert alice.notices(group) == told
        assert set(told) <= {"bob joined"}

    async def test_lost_events_are_told_and_all_is_read_again(self, pair: Pair) -> None:
        alice, bob, group = pair
        await alice.client.update_group(group, alias="The Club")
        await bob.conversation._handle_news(Lagged(3))
        assert bob.told.said == ["3 events lost on a slow connection; reloading"]
        await bob.until(lambda: bob.room(group).group.alias == "The Club")


class TestMentions:
    async def test_beyond_the_unread_ones_that_are_counted_mentions_are_marked_too(
        self, pair: Pair, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for module in (attention_module, store_module):
            monkeypatch.setattr(module, "MAX_UNREAD", 3)
        alice, bob, group = pair
        alice.conversation.open_group_id = None
        bob.send(group, "one", "@alice two", "three", "four", "@alice five", "six", "@alice seven")
        await alice.shows(group, "one", "@alice two", "three", "four", "@alice five", "six", "@alice seven")
        room = alice.room(group)
        numbers = sorted(each for each, message in room.messages.items() if "@alice" in (message.text or ""))
        assert room.mentions == {*numbers}
        room.mentions = None  # as at the next start
        alice.conversation._count(room)
        assert alice.room(group).mentions == {*numbers}
        alice.conversation.mark_seen(group, [min(room.messages), *numbers[:1]])
        assert alice.room(group).mentions == {*numbers[1:]}


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
    async def test_a_disk_that_fails_is_told_and_ends_nothing(
        self, chat: NewChat, tmp_path: Path, running: Running, goes_on: str
    ) -> None:
        alice, bob = await chat("alice"), await chat("bob", tmp_path / "bob")
        group = await alice.new("club", bob)
        await alice.conversation.retention.change(group, HOUR, dry_run=False)
        alice.send(group, "one")
        bob.conversation.open_group(group)
        await bob.shows(group, "one")
        await bob.until(lambda: bob.room(group).expiry == HOUR)
        bob.history._connection.execute("PRAGMA query_only = ON")  # as a file that can only be read
        if goes_on == "a message":
            alice.send(group, "two")
        elif goes_on == "a policy":
            await alice.conversation.retention.change(group, 60, dry_run=False)
        else:
            running.clock.advance(HOUR + 1)
        await bob.until(lambda: bob.conversation.is_disk_full)
        assert "readonly" in (bob.conversation.offline or "")
        bob.send(group, "three")
        bob.history._connection.execute("PRAGMA query_only = OFF")
        if goes_on != "a message":
            alice.send(group, "two")
        await bob.shows(group, *(["one"] if goes_on != "time" else []), "two", "three")
        assert not bob.told.ends

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

        bob.conversation._add_message = fail  # type: ignore[method-assign]
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
        of_bob = set(bob.conversation._background._tasks)
        assert len(of_bob) >= 4, "news, groups, who holds a group back, a text that is to be sent"
        await bob.disconnect()
        come_back()
        assert all(each.done() for each in of_bob)
        assert (bob.told.bad, bob.told.ends) == ([], [])
        assert alice.texts(group) == []


def test_the_recorder_is_a_listener() -> None:
    observer: ConversationObserver = Recorder()
    assert observer
