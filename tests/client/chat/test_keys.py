"""Keys in a conversation at a real server: changed keys are announced, and hold back messages."""

import asyncio
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from conclave.client import events as n
from conclave.client.chat.command_context import CommandError
from conclave.client.chat.key_handlers import CLOSE, COMPARE, LATER, SAME, SEND, USE, review_changed_keys
from conclave.client.chat.rooms import Notice
from conclave.client.codec import PendingResend
from conclave.client.encryption.comparison import comparison_code
from conclave.client.encryption.view import Trust
from conclave.client.errors import NotReadyError, ReplacedError, error_for
from conclave.client.resending import REFUSAL_RETRY_SECONDS
from tests.conftest import Running
from tests.support.conversing import Chat, Held, NewChat, RecordingDesk
from tests.support.keyring import OWN, Keyring, key

OTHER = "12" * 32


class Both:
    """Alice, whose keys a test decides on, and Bob, in a group that is open at both."""

    def __init__(self, alice: Chat, bob: Chat, codec: Keyring, group: UUID) -> None:
        self.alice, self.bob, self.codec, self.group = alice, bob, codec, group
        self.context = RecordingDesk(alice)

    def change(self, fingerprint: str = OTHER) -> None:
        """Bob has another key."""
        former = self.codec.known_key(self.bob.user_id)
        self.codec.holds(key(self.bob.user_id, Trust.CHANGED, fingerprint))
        was_verified = former is not None and former.trust is Trust.VERIFIED
        news = n.KeyChanged(self.group, self.bob.user_id, "ef" * 32, fingerprint, was_verified)
        self.alice.conversation.keys.handle(news)

    async def said(self, text: str) -> int:
        """Have Alice say something; return its number once Bob has it too."""
        self.alice.send(self.group, text)

        def heard_by(chat: Chat) -> list[int]:
            return [number for number, each in chat.room(self.group).messages.items() if each.text == text]

        for each in (self.alice, self.bob):
            await each.until(partial(heard_by, each))
        [number] = heard_by(self.alice)
        return number

    @property
    def trusted(self) -> Trust:
        found = self.codec.known_key(self.bob.user_id)
        assert found
        return found.trust


@pytest.fixture
async def both(chat: NewChat) -> Both:
    codec = Keyring()
    alice, bob = await chat("alice", codec=codec), await chat("bob")
    group = await alice.new("club", bob)
    codec.holds(key(bob.user_id))
    for each in (alice, bob):
        each.conversation.open_group(group)
    return Both(alice, bob, codec, group)


class TestNews:
    async def test_a_changed_key_is_told_in_the_group_and_loudly(self, both: Both) -> None:
        both.change()
        text = "bob's key has changed: /verify bob before you trust it"
        assert [(each.text, each.is_error) for each in both.alice.items(both.group) if isinstance(each, Notice)][
            -1
        ] == (
            text,
            True,
        )
        assert both.alice.told.bad == [text]

    async def test_once_for_all_groups(self, both: Both) -> None:
        both.change()
        both.change()
        assert len(both.alice.told.bad) == 1
        both.change("34" * 32)
        assert len(both.alice.told.bad) == 2

    async def test_of_a_verified_key_more_is_said(self, both: Both) -> None:
        both.codec.verify(both.bob.user_id, "cd" * 32)
        both.change()
        assert "verified key" in both.alice.told.bad[0]

    @pytest.mark.parametrize(
        ("kind", "is_error"),
        [("joined", False), ("lost", False), ("refused", True), ("replaced", True), ("restored", True)],
    )
    async def test_a_notice_stands_in_its_group(self, both: Both, kind: str, is_error: bool) -> None:
        who = both.bob.user_id if kind == "refused" else None
        both.alice.conversation.keys.handle(n.EncryptionNotice(both.group, kind, "something was so", who))
        last = both.alice.items(both.group)[-1]
        assert isinstance(last, Notice)
        assert (last.text, last.is_error) == ("bob: something was so" if who else "something was so", is_error)

    async def test_who_has_removed_whom_is_named(self, both: Both) -> None:
        who, whom = both.bob.user_id, both.alice.user_id
        both.alice.conversation.keys.handle(n.EncryptionNotice(both.group, "removed", "keys are gone", who, whom))
        last = both.alice.items(both.group)[-1]
        assert isinstance(last, Notice)
        assert last.text.startswith("bob: keys are gone (")


class TestSending:
    async def test_nothing_is_sent_until_a_changed_key_is_judged(self, both: Both) -> None:
        both.change()
        both.alice.send(both.group, "one", "two")
        await both.alice.until(lambda: both.alice.told.holds)
        drafts = both.alice.room(both.group).pending
        assert [(each.is_held, each.waits) for each in drafts] == [(True, False)] * 2
        assert both.alice.conversation.rooms.unsent_count() == 2
        both.context.answers = [SEND]
        await review_changed_keys(both.context, both.alice.room(both.group))
        await both.bob.shows(both.group, "one", "two")
        assert both.trusted is Trust.UNKNOWN, "it is used, and not compared"
        [(title, text, _)] = both.context.asked
        assert title == "bob's key has changed"
        assert "has not been sent" in text

    async def test_comparing_it_sends_it_too(self, both: Both) -> None:
        both.change()
        both.alice.send(both.group, "one")
        await both.alice.until(lambda: both.alice.told.holds)
        both.context.answers = [COMPARE, SAME]
        await review_changed_keys(both.context, both.alice.room(both.group))
        await both.bob.shows(both.group, "one")
        assert both.trusted is Trust.VERIFIED

    async def test_who_decides_later_finds_it_where_it_was(self, both: Both) -> None:
        both.change()
        both.alice.send(both.group, "one")
        await both.alice.until(lambda: both.alice.told.holds)
        await review_changed_keys(both.context, both.alice.room(both.group))
        assert both.trusted is Trust.CHANGED
        assert both.alice.conversation.send_queue.send_again(both.alice.room(both.group)) == 1
        await both.alice.until(lambda: len(both.alice.told.holds) == 2)
        assert both.bob.texts(both.group) == []
        assert both.alice.conversation.send_queue.discard(both.alice.room(both.group)) == 1
        assert both.alice.conversation.rooms.unsent_count() == 0

    async def test_what_waits_goes_once_the_key_is_the_old_one_again(self, both: Both) -> None:
        """Or once its owner is not in the group any more."""
        both.change()
        both.alice.send(both.group, "one")
        await both.alice.until(lambda: both.alice.told.holds)
        both.codec.holds(key(both.bob.user_id))
        both.alice.conversation.keys.handle(n.EncryptionChanged(both.group))
        await both.bob.shows(both.group, "one")

    async def test_a_key_that_changes_while_the_groups_keys_are_awaited_is_asked_about(self, both: Both) -> None:
        def encode(group_id: UUID, text: str, *, send_id: UUID | None = None) -> bytes:
            del both.codec.encode  # the next time it can
            both.change()
            raise NotReadyError("a moment")

        both.codec.encode = encode  # type: ignore[method-assign]
        both.alice.send(both.group, "one")
        await both.alice.until(lambda: both.alice.told.holds)
        assert [each.is_held for each in both.alice.room(both.group).pending] == [True]
        assert both.bob.texts(both.group) == []

    async def test_what_another_device_of_the_user_keeps_from_being_sent_says_so_and_can_be_sent_again(
        self, both: Both
    ) -> None:
        tries = []

        def encode(group_id: UUID, text: str, *, send_id: UUID | None = None) -> bytes:
            tries.append(text)
            raise ReplacedError("another device of yours has replaced this one")

        both.codec.encode = encode  # type: ignore[method-assign]
        both.alice.send(both.group, "one")
        await both.alice.until(lambda: both.alice.room(both.group).pending[0].refused)
        assert both.alice.room(both.group).pending[0].refused.startswith("another device of yours")
        assert tries == ["one"]
        del both.codec.encode
        both.alice.conversation.send_queue.send_again(both.alice.room(both.group))
        await both.bob.shows(both.group, "one")

    async def test_what_the_codec_sends_anew_waits_too(self, both: Both) -> None:
        """Or a server could have a text sent anew to a key of its own, by letting it cross with that key's coming."""
        number = await both.said("crossed")
        both.change()
        both.codec.again = [PendingResend(1, both.group, "crossed", 0, number)]
        both.alice.conversation.sync.request_fetch(both.group)
        both.bob.send(both.group, "meanwhile")
        await both.alice.shows(both.group, "crossed", "meanwhile")
        assert len(both.codec.again) == 1
        key_of_bob = both.codec.known_key(both.bob.user_id)
        assert key_of_bob
        assert both.alice.conversation.keys.record_decision(key_of_bob, is_compared=False)
        await both.bob.shows(both.group, "crossed", "meanwhile", "crossed")
        assert both.codec.again == []

    @pytest.mark.parametrize("way", ["expires", "is taken back elsewhere", "is gone at the start"])
    async def test_what_is_gone_is_not_sent_anew(self, both: Both, running: Running, way: str) -> None:
        alice, group = both.alice, both.group
        number = await both.said("crossed")
        both.change()
        again = [PendingResend(1, group, "crossed", 0, number)]
        both.codec.again = [] if way == "is gone at the start" else list(again)
        if way == "expires":
            await alice.client.update_group(group, expiry=3_600)
            running.clock.advance(3_700)
        else:
            await alice.client.take_back(group, number)
        await alice.until(lambda: number not in alice.room(group).messages)
        if way == "is gone at the start":
            both.codec.again = list(again)
            alice.conversation.sync.request_fetch(group)
            await alice.until(lambda: not both.codec.again)
        assert both.codec.again == [], "it is not kept until the key is reviewed either"
        key_of_bob = both.codec.known_key(both.bob.user_id)
        assert key_of_bob
        assert alice.conversation.keys.record_decision(key_of_bob, is_compared=False)
        both.bob.send(group, "later")
        await alice.shows(group, "later")
        await both.bob.shows(group, "later")

    async def test_what_has_half_its_time_behind_it_is_not_sent_anew(self, both: Both, running: Running) -> None:
        """It would live once more, for as long as the group says."""
        alice, group = both.alice, both.group
        await alice.client.update_group(group, expiry=3_600)
        old = await both.said("old")
        running.clock.advance(1_900)
        number = await both.said("young")
        both.codec.again = [PendingResend(1, group, "old", 0, old), PendingResend(2, group, "young", 0, number)]
        alice.conversation.sync.request_fetch(group)
        await both.bob.shows(group, "old", "young", "young")
        assert both.codec.again == []
        assert old in alice.room(group).messages

    async def test_what_is_taken_back_while_it_is_sent_anew_goes_from_everywhere(self, both: Both) -> None:
        alice, group = both.alice, both.group
        numbers = [await both.said(text) for text in ("one", "two")]
        send = Held(alice.client.send)
        alice.client.send = send  # type: ignore[method-assign]
        both.codec.again = [PendingResend(key, group, text, 0, numbers[key]) for key, text in enumerate(("one", "two"))]
        alice.conversation.sync.request_fetch(group)
        await alice.until(lambda: send.answered == 1)
        for number in numbers:
            await alice.conversation.sync.take_back(group, number)
        send.may_answer.set()
        await alice.until(lambda: not both.codec.again)
        both.bob.send(group, "later")
        for each in (alice, both.bob):
            await each.shows(group, "later")
        assert send.answered == 1, "the second one was not sent"

    async def test_what_the_server_cannot_take_is_encrypted_once(self, both: Both) -> None:
        """Each text of a try stays with the keys until it comes back, and others pass over so many keys at most."""
        alice, group = both.alice, both.group
        number = await both.said("one")
        now, tries, made = [0.0], list[bytes](), list[PendingResend]()
        send = alice.client.send

        async def refusing(group_id: UUID, payload: bytes, **options: Any) -> int:
            tries.append(payload)
            if len(tries) < 3:
                raise error_for(500, 0, "it cannot now", None, None)
            return await send(group_id, payload, **options)

        def encode_resend(resend: PendingResend) -> bytes:
            made.append(resend)
            return resend.text.encode()

        alice.conversation.sync._resender._clock = lambda: now[0]
        both.codec.encode_resend = encode_resend  # type: ignore[method-assign]
        alice.client.send = refusing  # type: ignore[method-assign]
        both.codec.again = [PendingResend(1, group, "one", 0, number)]
        for count in range(1, 4):
            alice.conversation.sync.request_fetch(group)
            await alice.until(partial(lambda count: len(tries) == count, count))
            now[0] += REFUSAL_RETRY_SECONDS
        await alice.until(lambda: not both.codec.again)
        assert len(made) == 1

    async def test_what_is_being_taken_back_when_it_was_sent_anew_goes_too(self, both: Both) -> None:
        """The answer to the second message comes before that to the taking back of the first."""
        alice, group = both.alice, both.group
        number = await both.said("one")
        send, take_back, is_noted = Held(alice.client.send), alice.client.take_back, asyncio.Event()
        drop_resend = both.codec.drop_resend

        async def taken_back(group_id: UUID, which: int, **options: Any) -> None:
            await take_back(group_id, which, **options)
            if which == number:
                send.may_answer.set()
                await is_noted.wait()

        def noted(key: int) -> None:
            drop_resend(key)
            is_noted.set()

        alice.client.send, alice.client.take_back = send, taken_back  # type: ignore[method-assign,assignment]
        both.codec.drop_resend = noted  # type: ignore[method-assign]
        both.codec.again = [PendingResend(1, group, "one", 0, number)]
        alice.conversation.sync.request_fetch(group)
        await alice.until(lambda: send.answered == 1)
        await alice.conversation.sync.take_back(group, number)
        both.bob.send(group, "later")
        for each in (alice, both.bob):
            await each.shows(group, "later")

    async def test_what_new_keys_send_anew_is_not_taken_for_what_the_former_ones_did(self, both: Both) -> None:
        """A new file counts its texts from 1 again, and a server answers a repeated send for a day."""
        waiting = [PendingResend(1, both.group, text, 0, await both.said(text)) for text in ("one", "two")]

        def drop_resend(_key: int) -> None:
            both.codec.again = [waiting.pop(0)] if waiting else []

        both.codec.drop_resend = drop_resend  # type: ignore[method-assign,assignment]
        drop_resend(0)
        both.alice.conversation.sync.request_fetch(both.group)
        await both.bob.shows(both.group, "one", "two", "one", "two")

    @pytest.mark.parametrize("why", ["it cannot now", "it never will"])
    async def test_what_the_server_refuses_is_not_sent_anew_at_each_turn(self, both: Both, why: str) -> None:
        """And holds up nothing else if it is refused for good: then no text stays with the keys for it."""
        alice, group = both.alice, both.group
        refusal = error_for(500, 0, why, None, None) if why == "it cannot now" else error_for(403, 302, why, None, None)
        numbers = [await both.said(text) for text in ("one", "two")]
        now, tries, withdrawn = [0.0], list[bytes](), list[bytes]()
        repeating, send = alice.conversation.sync._resender, alice.client.send

        async def refusing(group_id: UUID, payload: bytes, **options: Any) -> int:
            tries.append(payload)
            if payload == b"one":
                raise refusal
            return await send(group_id, payload, **options)

        def withdraw(group_id: UUID, payload: bytes, **_: Any) -> None:
            withdrawn.append(payload)

        repeating._clock = lambda: now[0]
        both.codec.discard_payload = withdraw  # type: ignore[method-assign]
        alice.client.send = refusing  # type: ignore[method-assign]
        both.codec.again = [PendingResend(key, group, text, 0, numbers[key]) for key, text in enumerate(("one", "two"))]
        for number in range(3):
            both.bob.send(group, f"turn {number}")
            await alice.until(partial(lambda text: text in alice.texts(group), f"turn {number}"))
            alice.conversation.sync.request_fetch(group)
        if why == "it cannot now":
            assert (tries, withdrawn) == ([b"one"], [])
        else:
            await both.bob.until(lambda: both.bob.texts(group).count("two") == 2)
            assert (tries, withdrawn) == ([b"one", b"two"], [b"one"])
        now[0] += REFUSAL_RETRY_SECONDS
        del alice.client.send
        if why == "it never will":  # with the next thing that happens; a server that could not is asked by itself
            alice.conversation.sync.request_fetch(group)
        await both.bob.until(lambda: both.bob.texts(group).count("one") == both.bob.texts(group).count("two") == 2)
        assert both.codec.again == []


class TestVerify:
    async def test_the_code_is_shown_and_the_key_marked(self, both: Both) -> None:
        both.context.answers = [SAME]
        assert await both.context.does("/verify bob") == ["bob is verified"]
        [(title, text, _)] = both.context.asked
        assert title == "Compare keys with bob"
        assert " ".join(comparison_code(OWN, "cd" * 32).words[:4]) in " ".join(text.split())
        assert both.trusted is Trust.VERIFIED

    async def test_nothing_is_marked_unless_it_is_said(self, both: Both) -> None:
        assert both.context.answers == []
        assert await both.context.does("/verify bob") == []
        assert both.trusted is Trust.UNKNOWN

    async def test_a_verified_one_can_be_looked_at(self, both: Both) -> None:
        both.codec.verify(both.bob.user_id, "cd" * 32)
        assert await both.context.does("/verify bob") == []
        assert both.context.asked[0][2] == CLOSE
        assert both.trusted is Trust.VERIFIED

    @pytest.mark.parametrize(
        ("answer", "trusted"), [(SAME, Trust.VERIFIED), (USE, Trust.UNKNOWN), (LATER, Trust.CHANGED)]
    )
    async def test_a_changed_one_is_compared_or_used_or_left(self, both: Both, answer: str, trusted: Trust) -> None:
        both.change()
        both.context.answers = [answer]
        await both.context.does("/verify bob")
        assert both.trusted is trusted

    async def test_one_that_changes_meanwhile_is_not_marked_but_shown_anew(self, both: Both) -> None:
        judge, changes = both.codec.verify, [OTHER]

        def verify(user_id: UUID, fingerprint: str) -> bool:
            if changes:
                both.codec.holds(key(user_id, Trust.CHANGED, changes.pop()))
            return judge(user_id, fingerprint)

        both.codec.verify = verify  # type: ignore[method-assign]
        both.context.answers = [SAME, LATER]
        await both.context.does("/verify bob")
        assert len(both.context.asked) == 2
        assert both.trusted is Trust.CHANGED

    async def test_what_cannot_be_compared_is_said(self, both: Both, chat: NewChat) -> None:
        await chat("carol", connects=False)
        with pytest.raises(CommandError, match="there is no key of carol yet"):
            await both.context.does("/verify carol")
        with pytest.raises(CommandError, match="yourself"):
            await both.context.does("/verify alice")
        with pytest.raises(CommandError, match="messages are not encrypted here"):
            await RecordingDesk(both.bob).does("/verify alice")


class TestReset:
    async def test_it_tells_what_it_costs_and_asks_first(self, both: Both) -> None:
        both.context.agrees = False
        assert await both.context.does("/reset") == []
        [(title, text, _)] = both.context.asked
        assert title == "Create new keys?"
        assert "become unreadable" in text
        assert both.bob.notices(both.group) == []

    async def test_the_server_is_told(self, both: Both) -> None:
        reset = Held(both.alice.client.reset_account)
        reset.may_answer.set()
        both.alice.client.reset_account = reset  # type: ignore[method-assign]
        assert await both.context.does("/reset") == ["You have new keys. Others can compare them with /verify"]
        assert reset.answered == 1

    async def test_where_nothing_is_encrypted_there_is_nothing_to_renew(self, both: Both) -> None:
        with pytest.raises(CommandError, match="messages are not encrypted here"):
            await RecordingDesk(both.bob).does("/reset")
