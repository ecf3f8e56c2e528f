"""How the chat calls: what is written to the terminal, when, and that no text gets into it unless that is asked for."""

import re
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from aiohttp import ClientSession
from hypothesis import given, strategies as st

from conclave.client import History, LoginSession
from conclave.client.chat.notifications import SELF_DESTRUCTING, NotificationMode, Notifier, sequence
from conclave.client.chat.rooms import Room
from conclave.client.chat.unread import UnreadCounter
from conclave.client.events import Message
from conclave.clock import FakeClock
from conclave.wire.results import GroupDetails
from tests.support.chatting import Chat, chatting, new_group, signed_up, until
from tests.support.client import Client
from tests.support.conversing import NewChat, Pair, Recorder
from tests.support.server import ServerProcess

HOUR, DAY = 3_600, 86_400


@pytest.mark.parametrize(
    ("mode", "environment", "told"),
    [
        (NotificationMode.BELL, {"TERM": "xterm"}, "\a"),
        (NotificationMode.DESKTOP, {"TERM": "xterm"}, "\x1b]9;conclave: new message\x1b\\\a"),
        (NotificationMode.TEXT, {}, "\x1b]9;conclave: bob: hi\x1b\\\a"),
        (NotificationMode.TEXT, {"TERM": "rxvt-unicode"}, "\x1b]777;notify;conclave;bob: hi\x1b\\\a"),
        (NotificationMode.TEXT, {"TERM": "foot"}, "\x1b]777;notify;conclave;bob: hi\x1b\\\a"),
        (NotificationMode.TEXT, {"TERM": "xterm", "VTE_VERSION": "1"}, "\x1b]777;notify;conclave;bob: hi\x1b\\\a"),
        (NotificationMode.TEXT, {"TMUX": "/tmp"}, "\x1bPtmux;\x1b\x1b]9;conclave: bob: hi\x1b\x1b\\\x1b\\\a"),
    ],
)
def test_what_a_terminal_is_told(mode: NotificationMode, environment: Mapping[str, str], told: str) -> None:
    assert sequence(mode, "bob: hi", environment) == told


@given(st.text(alphabet=st.one_of(st.characters(), st.sampled_from("\a\x1b\\\x9c\x9d\n;\u202e")), max_size=300))
def test_no_text_gets_out_of_the_notification(text: str) -> None:
    told = sequence(NotificationMode.TEXT, text, {})
    inside = told.removeprefix("\x1b]9;conclave: ").removesuffix("\x1b\\\a")
    assert not re.search("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", inside)
    assert len(inside) <= 100


@given(st.text(min_size=1))
def test_without_being_asked_no_text_is_told(text: str) -> None:
    for calls in (NotificationMode.BELL, NotificationMode.DESKTOP):
        assert sequence(calls, text, {}) == sequence(calls, "", {})


def test_it_calls_once_in_a_while_and_not_at_all_if_it_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    for calls, times in ((NotificationMode.OFF, [0, 0, 0]), (NotificationMode.BELL, [1, 1, 2])):
        written, now = list[str](), 0.0
        caller = Notifier(calls, written.append)
        for at, heard in zip((0.0, 4.9, 5.0), times, strict=True):
            now = at
            caller.notify("bob", "den", said("hi"))
            assert len(written) == heard


def said(text: str | None, self_destruct_seconds: int = 0) -> Message:
    return Message(uuid4(), 1, uuid4(), text, 0, self_destruct_seconds, None)


def test_what_a_self_destructing_message_says_is_not_told() -> None:
    """A desktop may keep what it was told."""
    for message, told in ((said("hi"), "hi"), (said(None), ""), (said("hi", 30), SELF_DESTRUCTING)):
        written = list[str]()
        Notifier(NotificationMode.TEXT, written.append, {}).notify("bob", "den", message)
        assert written == [f"\x1b]9;conclave: bob in den: {told}\x1b\\\a"]


class TestWhoCalls:
    async def test_a_direct_group_calls_and_a_larger_one_only_who_is_meant(self, pair: Pair, chat: NewChat) -> None:
        alice, bob, group = pair
        carol = await chat("carol")
        alice.send(group, "just us")
        await bob.shows(group, "just us")
        assert bob.told.calls == ["club: just us"]
        assert alice.told.calls == [], "one's own does not"
        await carol.client.join(group)
        await carol.client.external_join(group)
        for each in (alice, bob, carol):
            await each.refresh()
        alice.send(group, "anybody?", "well, @bob?", "or @Carol?")
        await bob.shows(group, "just us", "anybody?", "well, @bob?", "or @Carol?")
        assert bob.told.calls == ["club: just us", "club: well, @bob?"]
        await carol.until(lambda: carol.told.calls == ["club: or @Carol?"])

    async def test_mentions_are_counted_apart_until_they_are_seen(
        self, pair: Pair, chat: NewChat, tmp_path: Path
    ) -> None:
        alice, bob, group = pair
        dora = await chat("dora", tmp_path / "dora")
        await dora.client.join(group)
        await dora.client.external_join(group)
        for each in (alice, bob, dora):
            await each.refresh()
        alice.send(group, "one", "two, @dora", "three")
        await dora.until(lambda: (dora.room(group).unread, dora.room(group).mentions) == (3, {2}))
        await dora.disconnect()
        await dora.connect()
        await dora.until(lambda: dora.room(group).mentions == {2})  # also at the next start
        dora.conversation.open_group(group)
        dora.conversation.mark_seen(group, [2])
        assert (dora.room(group).unread, dora.room(group).mentions) == (2, set())

    async def test_a_muted_group_does_not_call_until_its_time_is_over(
        self, chat: NewChat, tmp_path: Path, running: Any
    ) -> None:
        alice, bob = await chat("alice"), await chat("bob", tmp_path / "bob")
        group = await alice.new("club", bob)
        bob.conversation.mute(bob.room(group), HOUR)
        alice.send(group, "psst @bob")
        await bob.until(lambda: bob.room(group).unread == 1)
        assert (bob.told.calls, bob.room(group).mentions) == ([], {1})
        await bob.disconnect()
        await bob.connect()
        await bob.until(lambda: bob.room(group).is_muted(running.clock.now()))
        running.clock.advance(HOUR)
        alice.send(group, "now")
        await bob.until(lambda: bob.told.calls == ["club: now"])
        bob.conversation.mute(bob.room(group), None)
        assert bob.room(group).is_muted(running.clock.now() + 1_000 * 365 * 24 * HOUR)
        bob.conversation.mute(bob.room(group), 0)
        assert not bob.room(group).is_muted(0), "whatever time it turns out to be"


def test_a_group_is_muted_for_no_longer_by_a_clock_that_is_ahead() -> None:
    clock, told = FakeClock(), Recorder()
    session = LoginSession("http://127.0.0.1", uuid4(), "bob", "5c" * 32)
    group = GroupDetails(uuid4(), "", (), "club", "", -1, "public")
    with History(clock=clock) as history:
        history.record_server_time(clock.now())
        room, attention = Room(group), UnreadCounter(history, session, told)
        clock.set_wrong(DAY)
        attention.mute(room, HOUR)
        message = replace(said("psst @bob"), group_id=group.group_id)
        attention.count(room)
        attention.handle_message(room, message)
        assert told.calls == []
        clock.set_wrong(-DAY)
        clock.advance(HOUR)
        attention.handle_message(room, message)
        assert told.calls == ["club: psst @bob"]


def hears(chat: Chat) -> list[str]:
    """Keep what the terminal is told that calls; return the list."""
    driver: Any = chat.app._driver
    assert driver, "the chat writes to the terminal by this private name"
    written, write = list[str](), driver.write

    def keep(told: str) -> None:
        if "\a" in told:
            written.append(told)
        write(told)

    driver.write = keep
    return written


@pytest.mark.system
async def test_it_calls_for_what_is_not_before_the_users_eyes_and_marks_who_is_meant(
    server: ServerProcess, http: ClientSession, tmp_path: Path
) -> None:
    session = await signed_up(tmp_path, server.url, "callee")
    group = await new_group(session, "call_den")
    await new_group(session, "call_other")
    caller, third = [await Client.register(http, server.url, name) for name in ("caller_one", "caller_two")]
    for each in (caller, third):
        await each.join(str(group))
    async with chatting(tmp_path, notifications=NotificationMode.TEXT) as chat:
        written = hears(chat)
        await chat.open("call_den")
        await caller.send(str(group), b"look, @callee")
        await chat.shows("look, @callee")
        assert not written, "it is on the screen"
        await chat.open("call_other")
        await caller.send(str(group), b"not for anybody")
        await chat.shows(" ∞ 1")
        assert not written
        await caller.send(str(group), b"come back, @callee \x07\x1b]0;x")
        await chat.shows("@1 2")
        await until(lambda: written)
        [told] = written
        assert "caller_one in call_den: come back, @callee" in told
        assert told.count("\x1b") == 2 or "Ptmux" in told
        await chat.do("/mute call_den 2h")
        await chat.said("call_den is muted for 2 hours")
        await chat.shows("⊘ @1 2")
        await chat.do("/unmute call_den")
        await chat.hides("⊘")
        await chat.do("/mute call_den 3s")
        await chat.said("call_den is muted for 3 seconds")
        await chat.hides("⊘")


async def test_tab_completes_a_name_and_the_line_above_shows_who_it_could_be(
    server: ServerProcess, http: ClientSession, tmp_path: Path
) -> None:
    session = await signed_up(tmp_path, server.url, "tabber")
    group = await new_group(session, "tab_den")
    for name in ("mabel_one", "mabel_two", "zoe_tab"):
        await (await Client.register(http, server.url, name)).join(str(group))
    async with chatting(tmp_path) as chat:
        await chat.open("tab_den")
        await until(lambda: len(chat.room.group.members) == 4)
        chat.type("hello @ma")
        await chat.shows("@mabel_one  @mabel_two")
        chat.press("tab")
        await until(lambda: chat.composer.text == "hello @mabel_", lambda: chat.composer.text)
        chat.type("t", "tab")
        await until(lambda: chat.composer.text == "hello @mabel_two ", lambda: chat.composer.text)
        chat.type("and @Z", "tab")
        await until(lambda: chat.composer.text == "hello @mabel_two and @zoe_tab ", lambda: chat.composer.text)
        await chat.hides("@mabel_one")
