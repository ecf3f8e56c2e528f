"""What counts as read on the screen: what was really on it, and nothing before that was not."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from aiohttp import ClientSession
from textual import events

from conclave.client.chat import loading, shown_messages
from tests.support.chatting import Chat, chatting, new_group, signed_up, until
from tests.support.client import Client
from tests.support.server import ServerProcess

pytestmark = pytest.mark.system

LookAway = Callable[[Chat], Awaitable[Callable[[], object]]]
"""Has nobody look at the messages any more; returns what has somebody look again."""


class Reader:
    """Somebody whose chat has a group open, and somebody else who writes there."""

    def __init__(self, chat: Chat, group_id: UUID, writer: Client) -> None:
        self.chat, self.group_id, self.writer = chat, group_id, writer

    async def hears(self, count: int, seconds: int = 0) -> list[int]:
        """The other one writes; return the numbers of the messages."""
        group = str(self.group_id)
        return [await self.writer.send(group, f"word {each};".encode(), seconds) for each in range(count)]

    async def has_fetched(self, number: int) -> None:
        await until(lambda: number in self.chat.room.messages or self.chat.room.has_later)
        await self.chat.pilot.pause(0.1)

    @property
    def unread(self) -> int:
        return len(self.chat.conversation.history.unread(self.group_id, self.chat.conversation.user_id))

    def runs(self, number: int) -> bool:
        """Whether the timer of a message runs, or it is gone by it."""
        found = self.chat.conversation.history.messages(self.group_id, number - 1, 1)
        return not found or found[0].sequence_num != number or found[0].gone_at is not None

    async def _page_down(self) -> None:
        timeline, before = self.chat.timeline, self.chat.timeline.scroll_offset.y
        self.chat.press("pagedown")
        await until(lambda: timeline.scroll_offset.y != before or timeline.is_at_end())
        await self.chat.pilot.pause()

    async def read_all(self) -> list[str]:
        """Go on page by page to the end; return all that was on the screen, in its order."""
        seen = dict.fromkeys(words(self.chat))
        for _ in range(200):
            if not self.unread and not self.chat.room.has_later and self.chat.timeline.is_at_end():
                await self.chat.stays(lambda: self.chat.screen)  # what was loaded last may not be laid out yet
                if self.chat.timeline.is_at_end():
                    return list(seen)
            await self._page_down()
            seen |= dict.fromkeys(words(self.chat))
        raise AssertionError(f"{self.unread} unread in\n{self.chat.screen}")


def words(chat: Chat) -> list[str]:
    """The messages of the other one that are on the screen."""
    return [f"word {line.partition('word ')[2].partition(';')[0]}" for line in chat.screen.splitlines() if ";" in line]


async def reader(server: ServerProcess, http: ClientSession, chat: Chat, name: str) -> Reader:
    """Open a group in which somebody else writes, and see a first message there."""
    group_id = (await chat.open(f"of_{name}")).group.group_id
    writer = await Client.register(http, server.url, f"to_{name}")
    await writer.join(str(group_id))
    await writer.send(str(group_id), b"the first")
    await chat.shows("the first")
    found = Reader(chat, group_id, writer)
    await until(lambda: not found.unread)
    return found


async def home_of(server: ServerProcess, home: Path, name: str) -> None:
    session = await signed_up(home, server.url, name)
    await new_group(session, f"of_{name}")
    await new_group(session, f"other_{name}")


async def blur(chat: Chat) -> Callable[[], object]:
    """Look at another window; return what looks at this one again."""
    chat.app.post_message(events.AppBlur())
    await until(lambda: not chat.app.app_focus)
    return lambda: chat.app.post_message(events.AppFocus())


async def cover(chat: Chat) -> Callable[[], object]:
    """Have a dialog over the messages; return what puts it away."""
    chat.press("f1")
    await chat.asked("Keys and commands")
    return lambda: chat.press("escape")


@pytest.mark.parametrize(("how", "name"), [(blur, "blurred"), (cover, "covered")])
async def test_what_comes_while_nobody_looks_is_there_from_its_first_on(
    server: ServerProcess,
    http: ClientSession,
    tmp_path: Path,
    how: Callable[[Chat], Awaitable[Callable[[], object]]],
    name: str,
) -> None:
    await home_of(server, tmp_path, name)
    async with chatting(tmp_path) as chat:
        one = await reader(server, http, chat, name)
        look_again = await how(chat)
        numbers = await one.hears(60, seconds=600)
        await one.has_fetched(numbers[-1])
        assert one.unread == 60
        look_again()
        await chat.shows(" new ", "word 0;")
        await until(lambda: one.unread < 60)
        assert one.unread > 30, "and those that are further down are not read"
        assert "word 59;" not in chat.screen
        assert [one.runs(numbers[0]), one.runs(numbers[-1])] == [True, False]
        assert await one.read_all() == [f"word {each}" for each in range(60)], "each was on the screen"
        await one.hears(1)
        await until(lambda: words(chat)[-1:] == ["word 0"] and not one.unread, lambda: chat.screen)


async def test_however_fast_somebody_pages_each_page_is_on_the_screen(
    server: ServerProcess, http: ClientSession, tmp_path: Path
) -> None:
    """Or what lies between would stay unread, although it was gone through."""
    await home_of(server, tmp_path, "pager")
    async with chatting(tmp_path) as chat:
        one = await reader(server, http, chat, "pager")
        await chat.open("other_pager")
        await one.hears(200)
        await until(lambda: one.unread == 200)
        await chat.open("of_pager")
        await chat.shows(" new ", "word 0;")
        chat.press(*["pagedown"] * 40)
        await chat.shows("word 199;")
        await until(lambda: not one.unread, lambda: chat.screen)
        chat.press(*["pageup"] * 40)
        await chat.shows("word 0;")
        chat.timeline.focus()
        await until(lambda: chat.timeline.has_focus)
        chat.press(*["pagedown"] * 40)
        await chat.shows("word 199;")


async def test_nothing_is_wrong_with_a_group_that_is_left_before_it_was_laid_out(
    server: ServerProcess, http: ClientSession, tmp_path: Path
) -> None:
    await home_of(server, tmp_path, "leaver")
    async with chatting(tmp_path) as chat:
        one = await reader(server, http, chat, "leaver")
        await one.hears(30)
        other = next(each for each in chat.conversation.rooms.all if each != one.group_id)
        await until(lambda: one.unread < 30)
        await one.read_all()

        def is_hidden() -> bool:
            chat.timeline.styles.display = "none"  # each time: what is still to be told shows it again
            return not chat.timeline.size.height

        await until(is_hidden)
        for _ in range(3):
            chat.chat_screen.open_group(other)
            chat.chat_screen.open_group(one.group_id)
        chat.chat_screen.open_group(other)
        chat.type("to nobody", "enter")
        await chat.shows("to nobody")


async def test_of_more_than_a_screen_at_once_the_first_is_shown(
    server: ServerProcess, http: ClientSession, tmp_path: Path
) -> None:
    await home_of(server, tmp_path, "flooded_now")
    async with chatting(tmp_path) as chat:
        one = await reader(server, http, chat, "flooded_now")
        fetch, all_are_there = chat.conversation.client.fetch, asyncio.Event()

        async def fetch_later(*values: Any, **named: Any) -> Any:
            await all_are_there.wait()  # or the first few would be a page of their own, and seen for long enough
            return await fetch(*values, **named)

        chat.conversation.client.fetch = fetch_later  # type: ignore[method-assign]
        numbers = await one.hears(100)
        all_are_there.set()
        await one.has_fetched(numbers[-1])
        await until(lambda: 0 < one.unread < 100)
        await chat.shows(" new ")
        assert "word 99;" not in chat.screen
        assert await one.read_all() == [f"word {each}" for each in range(100)]


async def test_what_was_on_the_screen_for_a_moment_only_is_not_scrolled_away(
    server: ServerProcess, http: ClientSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await home_of(server, tmp_path, "hurried")
    async with chatting(tmp_path) as chat:
        one = await reader(server, http, chat, "hurried")
        monkeypatch.setattr(shown_messages, "SHOWN_SECONDS", 3_600.0)
        numbers = await one.hears(40)
        await one.has_fetched(numbers[-1])
        await until(lambda: words(chat), lambda: chat.screen)
        assert words(chat)[0] == "word 0", "however slowly they came"
        monkeypatch.setattr(shown_messages, "SHOWN_SECONDS", 0.0)
        await one.read_all()
        for _ in range(40):
            await one.hears(1)
            await until(lambda: not one.unread)
        assert chat.timeline.is_at_end(), "one after the other they are followed"


async def test_a_timed_message_that_somebody_skips_stays_unread_and_can_be_gone_back_to(
    server: ServerProcess, http: ClientSession, tmp_path: Path
) -> None:
    await home_of(server, tmp_path, "skipper")
    async with chatting(tmp_path) as chat:
        one = await reader(server, http, chat, "skipper")
        await chat.open("other_skipper")
        numbers = await one.hears(100, seconds=600)
        await until(lambda: one.unread == 100)
        await chat.open("of_skipper")
        await chat.shows(" new ", "word 0;")
        await until(lambda: one.unread < 100)
        left = await chat.stays(lambda: one.unread)
        chat.type("what did I miss?", "enter")
        await chat.shows("what did I miss?", "word 99;")
        await until(lambda: not chat.room.pending)
        assert await chat.stays(lambda: one.unread) in range(left - 24, left), "what stands there now was seen"
        assert [one.runs(each) for each in (numbers[0], numbers[50], numbers[-1])] == [True, False, False]
        await one.hears(1)
        await until(lambda: words(chat)[-1] == "word 0", lambda: chat.screen)
        chat.press("ctrl+g")
        await until(lambda: words(chat)[:1] == [f"word {100 - left}"], lambda: chat.screen)
        await chat.shows(" new ")
        await one.read_all()
        assert all(one.runs(each) for each in numbers)
        await until(lambda: one.unread == 0)
        chat.press("ctrl+g")
        await chat.said("No more unread messages")


async def test_the_number_beside_a_group_falls_with_what_is_on_the_screen_wherever_that_is(
    server: ServerProcess, http: ClientSession, tmp_path: Path
) -> None:
    await home_of(server, tmp_path, "jumper")
    async with chatting(tmp_path) as chat:
        one = await reader(server, http, chat, "jumper")
        await chat.open("other_jumper")
        await one.hears(179)
        await chat.shows("∞ 179")
        await chat.open("of_jumper")
        await chat.shows(" new ", "word 0;")
        await until(lambda: one.unread < 179)
        first = await chat.stays(lambda: one.unread)
        chat.timeline.go_to_end()
        await chat.shows("word 178;")
        await until(lambda: one.unread < first)
        end = await chat.stays(lambda: one.unread)
        assert end >= 179 - 2 * 24, "but nothing between was on the screen"
        await chat.shows(f"∞ {end}")
        chat.type("enough", "enter")
        await until(lambda: not one.unread)
        await chat.hides("∞ 1")


async def test_escape_in_the_empty_field_and_a_command_put_unread_ones_aside(
    server: ServerProcess, http: ClientSession, tmp_path: Path
) -> None:
    await home_of(server, tmp_path, "putter")
    async with chatting(tmp_path) as chat:
        one = await reader(server, http, chat, "putter")
        await chat.open("other_putter")
        await one.hears(179)
        await chat.shows("∞ 179")
        await chat.open("of_putter")
        await until(lambda: one.unread < 179)
        await chat.stays(lambda: one.unread)
        chat.type("x", "escape")
        await until(lambda: chat.composer.text == "x")
        await chat.pilot.pause()
        assert one.unread, "whoever types goes on typing"
        chat.press("backspace", "escape")
        await until(lambda: not one.unread)
        await chat.hides(" new ")
        await chat.open("other_putter")
        await one.hears(50)
        await one.hears(1, seconds=600)
        await until(lambda: one.unread == 51)
        await chat.do("/read all")
        await chat.said("1 self-destructing message left unread")
        assert one.unread == 1
        await chat.do("/read some")
        await chat.said("usage: /read or /read all")


async def test_of_more_unread_ones_than_can_be_loaded_each_is_shown_before_it_counts_as_read(
    server: ServerProcess, http: ClientSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "MAX_LOADED", 90)
    monkeypatch.setattr(loading, "PAGE", 30)
    await home_of(server, tmp_path, "returned")
    async with chatting(tmp_path) as chat:
        one = await reader(server, http, chat, "returned")
        await chat.open("other_returned")
        numbers = await one.hears(300, seconds=600)
        await until(lambda: one.unread == 300)
        await chat.open("of_returned")
        await chat.shows(" new ", "word 0;")
        await until(lambda: one.unread < 300)
        assert one.unread > 270
        assert not one.runs(numbers[-1])
        chat.type("I am back", "enter")
        await chat.shows("I am back", "word 299;")
        await until(lambda: not chat.room.pending)
        assert one.unread > 240
        chat.press("ctrl+g")
        await chat.shows(" new ")
        shown = await one.read_all()
        assert shown == [f"word {each}" for each in range(int(shown[0].split()[1]), 300)]
        assert int(shown[0].split()[1]) < 30
        assert all(one.runs(each) for each in numbers)
        await chat.shows("I am back")


async def test_of_a_long_message_that_comes_its_beginning_is_shown(
    server: ServerProcess, http: ClientSession, tmp_path: Path
) -> None:
    await home_of(server, tmp_path, "long_reader")
    async with chatting(tmp_path) as chat:
        one = await reader(server, http, chat, "long_reader")
        text = "\n".join(f"line {each};" for each in range(60))
        number = await one.writer.send(str(one.group_id), text.encode(), 600)
        await chat.shows("line 0;")
        await one.has_fetched(number)
        assert "line 59;" not in chat.screen
        assert not one.runs(number), "its end was not on the screen yet"
        await chat.page_to("line 59;")
        await until(lambda: one.runs(number))
