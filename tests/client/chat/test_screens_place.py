"""Where one is in a group: scrolling, pages, sizes of the terminal, plain mode, floods."""

import time
from pathlib import Path

import pytest
from aiohttp import ClientSession

from tests.support.chatting import Chat, chatting, new_group, screen_strips, signed_up, until
from tests.support.client import Client
from tests.support.protobuf import ProtobufClient
from tests.support.server import ServerProcess

pytestmark = pytest.mark.system


def top(chat: Chat) -> str:
    """The first row of the messages that is on the screen."""
    return chat.timeline.text.splitlines()[chat.timeline.scroll_offset.y].strip()


async def test_600_unread_messages_open_at_the_first_and_nothing_counts_as_read_that_was_not_shown(
    server: ServerProcess, http: ClientSession, tmp_path: Path
) -> None:
    session = await signed_up(tmp_path, server.url, "scroller")
    group_id = await new_group(session, "scrolled")
    friend = await Client.register(http, server.url, "writer")
    await friend.join(str(group_id))
    await new_group(session, "another")
    async with chatting(tmp_path) as chat:
        await chat.open("scrolled")
        await friend.send(str(group_id), b"read before")
        await chat.shows("read before")
        await chat.open("another")
        burning = await friend.send(str(group_id), b"number 0 burns", 8)
        for number in range(1, 600):
            await friend.send(str(group_id), f"number {number}".encode())
        history = chat.conversation.history
        await until(lambda: len(history.unread(group_id, chat.conversation.user_id)) == 600)
        assert history.messages(group_id, burning - 1, 1)[0].gone_at is None, "nobody has seen it"
        await chat.open("scrolled")
        await chat.shows(" new ", "number 0 burns", "number 5")
        await until(lambda: len(history.unread(group_id, chat.conversation.user_id)) < 600)
        assert len(history.unread(group_id, chat.conversation.user_id)) > 500
        assert "number 599" not in chat.screen
        await chat.hides("number 0 burns")
        await until(lambda: top(chat) != "")
        for _ in range(1_000):  # a key that comes while a page is loaded may be lost
            chat.press("pagedown")
            await chat.pilot.pause()
            if not history.unread(group_id, chat.conversation.user_id):
                break
        assert "number 599" in chat.screen
        await until(lambda: not history.unread(group_id, chat.conversation.user_id))
        shown = [line.strip() for line in chat.timeline.text.splitlines() if "number " in line]
        assert shown == [f"number {number}" for number in range(1, 600)]


async def test_earlier_pages_come_at_the_top_and_the_place_is_kept(
    server: ServerProcess, http: ClientSession, tmp_path: Path
) -> None:
    session = await signed_up(tmp_path, server.url, "reader_back")
    group_id = await new_group(session, "long_ago")
    sender = Client(http, server.url, session.token, str(session.user_id))
    for number in range(600):
        await sender.send(str(group_id), f"line {number};".encode())
    async with chatting(tmp_path) as chat:
        await until(lambda: chat.conversation.history.fetched_up_to(group_id) == 600)
    async with chatting(tmp_path) as chat:
        await chat.open("long_ago")
        await chat.shows("line 599;")
        assert "line 0;" not in chat.timeline.text, "pages are loaded when they are wanted"
        await chat.page_to("line 0;", "pageup")
        shown = [line.strip() for line in chat.timeline.text.splitlines() if "line " in line]
        assert shown == [f"line {number};" for number in range(600)]
        chat.type("to the end", "enter")
        await chat.shows("to the end")


async def test_it_stays_in_place_while_messages_come_and_go_and_follows_at_the_end(
    server: ServerProcess, http: ClientSession, tmp_path: Path
) -> None:
    session = await signed_up(tmp_path, server.url, "stayer")
    group_id = await new_group(session, "staying")
    group = str(group_id)
    friend = await Client.register(http, server.url, "passer_by")
    await friend.join(group)
    for number in range(20):
        await friend.send(group, f"going {number};".encode(), 15)
    for number in range(60):
        await friend.send(group, f"stays {number};".encode())
    async with chatting(tmp_path) as chat:
        await chat.open("staying")
        await chat.page_to("stays 59;")
        await friend.send(group, b"follows;")
        await chat.shows("follows;")
        chat.press("pageup")
        await until(lambda: not chat.timeline.is_at_end())
        place = top(chat)
        assert place.startswith("stays")
        assert "going" in chat.timeline.text
        for number in range(10):
            await friend.send(group, f"below {number};".encode())
        await until(lambda: "below 9;" in chat.timeline.text)
        assert top(chat) == place
        assert "below" not in chat.screen
        await until(lambda: "going" not in chat.timeline.text)
        assert top(chat) == place
        for size in ((60, 20), (40, 12), (100, 30), (80, 24)):
            await chat.pilot.resize_terminal(*size)
            await chat.pilot.pause()
        await chat.shows(place)
        await chat.page_to("below 9;")
        chat.type("and on", "alt+enter", "alt+enter", "alt+enter", "x")
        await until(lambda: chat.composer.text == "and on\n\n\nx")
        await chat.shows("below 9;")


@pytest.mark.parametrize("size", [(80, 24), (40, 12), (200, 60)])
async def test_everything_can_be_reached_at_every_size(
    server: ServerProcess, tmp_path: Path, size: tuple[int, int]
) -> None:
    name = f"sized_{size[0]}"
    session = await signed_up(tmp_path, server.url, name)
    await new_group(session, f"in_{name}")
    async with chatting(tmp_path, size=size) as chat:
        await chat.open(f"in_{name}")
        await chat.shows("kept forever")
        chat.type("hello everybody", "enter")
        await chat.shows("hello everybody")
        assert chat.sidebar.display == (size[0] >= 60), "no list where there is no room for it"
        written = max(await until(lambda: [each.created_at for each in chat.room.messages.values()]))
        await until(lambda: time.time() > written + 3)  # so that it would be hidden
        await chat.do("/expire 1s")
        await chat.asked("Change expiry", "Change", "Cancel")
        chat.press("escape")
        await chat.said("Cancelled")
        await chat.do("/info")
        await chat.asked("everyone can find and join")
        chat.press("escape")
        chat.press("f1")
        await chat.asked("Keys and commands")
        chat.press("escape")
        await chat.do("/password")
        await chat.asked("Change password")
        chat.press("shift+tab", "shift+tab")
        await chat.shows("Change")
        chat.press("escape")
        await chat.hides("Change password")
        for row in chat.screen.splitlines():
            assert len(row) <= size[0]


@pytest.mark.parametrize("size", [(80, 24), (40, 12)])
async def test_the_login_fits_or_scrolls(tmp_path: Path, size: tuple[int, int]) -> None:
    async with chatting(tmp_path, "http://127.0.0.1:9", online=False, size=size) as chat:
        await chat.shows("Name")
        chat.press("enter")
        await chat.shows("Password")
        chat.press("tab", "tab")
        await chat.shows("Create account")
        chat.press("shift+tab", "shift+tab", "shift+tab", "shift+tab")
        await chat.shows("Server", "http://127.0.0.1:9")


async def test_plain_mode_has_words_in_place_of_marks_and_nothing_that_moves(
    server: ServerProcess, http: ClientSession, tmp_path: Path
) -> None:
    session = await signed_up(tmp_path, server.url, "observer")
    group_id = await new_group(session, "spoken", expiry=60)
    friend = await Client.register(http, server.url, "speaker")
    await friend.join(str(group_id))
    async with chatting(tmp_path, is_plain=True) as chat:
        await chat.open("spoken")
        await friend.send(str(group_id), b"hear me")
        chat.type("I hear you", "enter")
        await chat.shows("speaker, ", ": hear me (expires at ", "you, ", ": I hear you (expires at ")
        await until(lambda: not chat.room.pending)
        await chat.stays(lambda: chat.screen)
        seen = set()
        for _ in range(25):
            seen.add(chat.screen)
            await chat.pilot.pause(0.1)
        assert len(seen) == 1, "nothing countdowns continue"
        assert not [each for each in chat.screen if each in "●◕◑◔○✶∞·✉" or "\u2500" <= each <= "\u259f"], chat.screen
        chat.press("f1")
        await chat.asked("Keys and commands")
        assert not [each for each in chat.screen if "\u2500" <= each <= "\u259f"], chat.screen
        assert "hear" not in chat.screen, "nothing is beside a dialog that is read row after row"


async def test_without_colours_nothing_has_one(
    server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    session = await signed_up(tmp_path, server.url, "colourless")
    await new_group(session, "grey", expiry=60)
    async with chatting(tmp_path) as chat:
        await chat.open("grey")
        chat.type("no colours", "enter")
        await chat.shows("no colours")
        colours = {
            colour
            for strip in screen_strips(chat.app)
            for segment in strip
            if segment.style
            for colour in (segment.style.color, segment.style.bgcolor)
            if colour and not colour.is_default
        }
        assert not colours


async def test_300_messages_and_one_of_nearly_1_mib_do_not_stop_it(
    server: ServerProcess, http: ClientSession, tmp_path: Path
) -> None:
    session = await signed_up(tmp_path, server.url, "flooded")
    group_id = await new_group(session, "flood")
    friend = await ProtobufClient.register(http, server.url, "flooder")
    await friend.join(str(group_id))
    async with chatting(tmp_path) as chat:
        await chat.open("flood")
        number = await friend.send(str(group_id), b"big " * 261_000)
        for each in range(300):
            await friend.send(str(group_id), f"small {each}".encode())
        await until(lambda: chat.conversation.history.fetched_up_to(group_id) == number + 300)
        chat.type("I can still type", "enter")
        await chat.shows("I can still type", "small 299")
        assert "more characters not shown" in chat.timeline.text
        chat.paste("pasted " * 100_000)
        await until(lambda: len(chat.composer.text) == 700_000)
        chat.press("enter")
        await until(lambda: not chat.room.pending and not chat.composer.text)
        await chat.shows("more characters not shown")


async def test_a_timer_that_fires_while_the_chat_ends_does_nothing(server: ServerProcess, tmp_path: Path) -> None:
    """On a slow machine seconds pass between the end of what is on the screen and that of the screen."""
    session = await signed_up(tmp_path, server.url, "leaver")
    await new_group(session, "left")
    async with chatting(tmp_path) as chat:
        await chat.open("left")
        screen = chat.chat_screen
        await screen.remove_children()
        screen.rooms_changed()
        began = time.time()
        await until(lambda: time.time() > began + 2)  # fails if one of the timers has
