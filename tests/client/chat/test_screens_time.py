"""Messages that go: at their second, by a changed policy, so long after they were really read."""

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import ClientSession
from textual import events

from tests.support.chatting import SETTINGS, Chat, chatting, new_group, signed_up, until
from tests.support.client import Client
from tests.support.server import ServerProcess

pytestmark = pytest.mark.system

STALLED_SECONDS = 0.5
"""Between two looks there are about 0.1 seconds, unless this process has no turn."""


async def test_expire_shows_first_what_it_would_hide_and_then_hides_it_for_everybody(
    server: ServerProcess, tmp_path: Path
) -> None:
    host = await signed_up(tmp_path / "host", server.url, "expirer")
    await signed_up(tmp_path / "guest", server.url, "expired_for")
    await new_group(host, "expiring")
    async with chatting(tmp_path / "host") as admin, chatting(tmp_path / "guest") as member:
        await admin.open("expiring")
        await member.do("/join expiring")
        await until(lambda: member.chat_screen.room)
        for number in range(3):
            admin.type(f"old words {number}", "enter")
        await member.shows("old words 0", "old words 1", "old words 2")
        written = [each.created_at for each in admin.room.messages.values()]
        await until(lambda: time.time() > written[-1] + 3)  # so that all three are older than the new policy allows
        group_id, client = admin.room.group.group_id, admin.conversation.client
        number = (await client.update_group(group_id, expiry=2, dry_run=True)).messages_expiring
        assert number >= 3
        await admin.do("/expire 2s")
        await admin.asked("Change expiry?", "deleted after 2 seconds", f"{number} messages, the oldest from")
        assert "old words 0" in member.screen
        admin.press("enter")  # on Cancel, where the focus is
        await admin.hides("Change expiry?")
        assert "old words 2" in member.screen
        assert (await client.retention(group_id)).group_expiry_seconds == -1
        await admin.do("/expire 2s")
        await admin.asked(f"{number} messages, the oldest from")
        await admin.click(admin.button("Change"))
        for each in (admin, member):
            await each.hides("old words")
            await each.shows("changed the expiry")
            assert "old words" not in each.timeline.text
            assert not each.room.messages


async def test_a_message_counts_down_and_is_gone_at_its_second(server: ServerProcess, tmp_path: Path) -> None:
    host = await signed_up(tmp_path / "host", server.url, "counter")
    await signed_up(tmp_path / "guest", server.url, "counted")
    await new_group(host, "counting", expiry=6)
    async with chatting(tmp_path / "host") as sender, chatting(tmp_path / "guest") as reader:
        await sender.open("counting")
        await reader.do("/join counting")
        await until(lambda: reader.chat_screen.room)
        await reader.shows("deleted after 6 seconds")
        await said_and_gone("short lived", sender, reader)


async def said_and_gone(text: str, sender: Chat, reader: Chat) -> None:
    """Say something where it lives for 6 seconds; watch on both screens that it counts down, and goes in time."""
    sender.type(text, "enter")
    await until(lambda: any(each.text == text for each in reader.room.messages.values()), lambda: reader.screen)
    [message] = [each for each in reader.room.messages.values() if each.text == text]
    ends = message.created_at + 6 + 1  # from then on the server does not serve it
    assert message.gone_at == ends
    await reader.shows(text)
    left = set()
    async for _ in while_shown(text, ends, sender, reader):
        left |= {line.split()[-3] for line in reader.timeline.text.splitlines() if text in line}
    assert len(left & {"1", "2", "3", "4", "5", "6"}) >= 2, f"it countdowns continue: {left}"


async def while_shown(text: str, ends: int, *chats: Chat) -> AsyncIterator[None]:
    """Come round while somebody is shown a text; never once the server would not serve it.

    Where this process had no turn for a while, nothing could be taken off the screen: then it is looked once more.
    """
    looked = time.time()
    while any(text in each.screen or text in each.timeline.text for each in chats):
        now = time.time()
        assert now < ends or now - looked > STALLED_SECONDS, "never shown once the server would not serve it"
        looked = now
        yield
        await chats[0].pilot.pause(0.05)


async def test_what_is_here_goes_in_time_while_the_server_is_away(tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    with ServerProcess(tmp_path / "server", SETTINGS) as server:
        host = await signed_up(tmp_path, server.url, "cut_off")
        await new_group(host, "cut", expiry=15)
        async with chatting(tmp_path) as chat:
            await chat.open("cut")
            chat.type("goes without news", "enter")
            await until(lambda: chat.room.messages and not chat.room.pending)
            [message] = chat.room.messages.values()
            server.process.kill()
            await chat.shows("no connection", "goes without news")
            async for _ in while_shown("goes without news", message.created_at + 16, chat):
                pass
            assert not chat.conversation.history.messages(chat.room.group.group_id)


async def test_a_self_destructing_message_lives_until_it_was_really_on_the_screen(
    server: ServerProcess, http: ClientSession, tmp_path: Path
) -> None:
    session = await signed_up(tmp_path, server.url, "watcher")
    group = str(await new_group(session, "burning"))
    await new_group(session, "elsewhere")
    friend = await Client.register(http, server.url, "burner")
    await friend.join(group)
    async with chatting(tmp_path) as chat:
        room = await chat.open("burning")
        await chat.open("elsewhere")

        async def sent(text: str) -> int:
            number = await friend.send(group, text.encode(), 3)
            await until(lambda: chat.conversation.history.fetched_up_to(room.group.group_id) >= number)
            return number

        def is_waiting(number: int) -> bool:
            """Whether its timer has not begun."""
            found = chat.conversation.history.messages(room.group.group_id, number - 1, 1)
            return bool(found) and found[0].sequence_num == number and found[0].gone_at is None

        first = await sent("while another group is open")
        await chat.pilot.pause(0.5)
        assert is_waiting(first)
        await chat.open("burning")
        await until(lambda: not is_waiting(first))
        await chat.hides("while another group is open")

        chat.press("f1")
        await chat.asked("Keys and commands")
        second = await sent("below a dialog")
        await chat.pilot.pause(0.5)
        assert is_waiting(second)
        chat.press("escape")
        await until(lambda: not is_waiting(second))
        await chat.hides("below a dialog")

        chat.app.post_message(events.AppBlur())
        await until(lambda: not chat.app.app_focus)
        third = await sent("nobody looks at the terminal")
        await chat.pilot.pause(0.5)
        assert is_waiting(third)
        chat.app.post_message(events.AppFocus())
        await until(lambda: not is_waiting(third), lambda: chat.screen)
        await chat.hides("nobody looks at the terminal")

        for number in range(60):
            await friend.send(group, f"filler {number}".encode())
        await chat.page_to("filler 59")
        chat.press("pageup", "pageup")
        await until(lambda: not chat.timeline.is_at_end())
        fourth = await sent("out of view")
        await chat.pilot.pause(0.5)
        assert is_waiting(fourth)
        assert "out of view" not in chat.screen
        chat.press("pagedown", "pagedown", "pagedown")
        await until(lambda: not is_waiting(fourth))
        await chat.hides("out of view")
        assert "out of view" not in chat.timeline.text


async def test_burn_sends_what_goes_and_the_head_says_so(server: ServerProcess, tmp_path: Path) -> None:
    host = await signed_up(tmp_path / "host", server.url, "igniter")
    await signed_up(tmp_path / "guest", server.url, "ignited")
    await new_group(host, "ignition")
    async with chatting(tmp_path / "host") as sender, chatting(tmp_path / "guest") as reader:
        await sender.open("ignition")
        await reader.do("/join ignition")
        await until(lambda: reader.chat_screen.room)
        sender.type("/burn 4s read and forget", "enter")
        await reader.shows("read and forget", "✶")
        await reader.hides("read and forget")
        await sender.do("/burn 4s")
        await sender.shows("✶ yours", "4 s after reading")
        sender.type("another", "enter")
        await reader.shows("another")
        await reader.hides("another")
        await sender.do("/burn off")
        await sender.hides("✶ yours self-destruct")
        sender.type("this stays", "enter")
        await reader.shows("this stays")
        await until(lambda: len(reader.room.messages) == 1)  # what is over is off the screen before
        [kept] = reader.room.messages.values()
        assert kept.self_destruct_seconds == 0


async def test_on_a_wide_screen_the_countdown_stands_near_its_text_and_help_tells_of_one_command(
    server: ServerProcess, tmp_path: Path
) -> None:
    session = await signed_up(tmp_path, server.url, "wide")
    await new_group(session, "wide_den", expiry=3_600)
    async with chatting(tmp_path, size=(200, 60)) as chat:
        await chat.open("wide_den")
        chat.type("hello", "enter")
        row = await until(
            lambda: next((each for each in chat.screen.splitlines() if "hello" in each and "●" in each), "")
        )
        assert len(row) <= 22 + 1 + 100
        await chat.do("/help mute")
        await chat.said("/mute [GROUP] [TIME]: mute a group")
        await chat.do("/help nonsense")
        await chat.said("nonsense is not a command")


async def test_the_start_opens_the_group_that_was_open_last_and_begins_no_timer(
    server: ServerProcess, http: ClientSession, tmp_path: Path
) -> None:
    session = await signed_up(tmp_path, server.url, "starter")
    first, last = [await new_group(session, name) for name in ("a_first", "z_last")]
    friend = await Client.register(http, server.url, "starter_friend")
    for each in (first, last):
        await friend.join(str(each))
    async with chatting(tmp_path) as chat:
        await chat.open("a_first")
        await chat.open("z_last")
    async with chatting(tmp_path) as chat:
        await until(lambda: chat.chat_screen.room and chat.room.name == "z_last", lambda: chat.screen)
        await friend.send(str(last), b"burns", seconds=30)
        await chat.shows("burns", "30 s \u2736")
        await chat.said("self-destructs. Its timer starts once you choose")
        await chat.pilot.pause(1)
        assert [each.gone_at for each in chat.conversation.history.messages(last)] == [None]
    async with chatting(tmp_path) as chat:
        await chat.shows("No group is open.")
        assert "burns" not in chat.screen
        await chat.pilot.pause(1)
        assert [each.gone_at for each in chat.conversation.history.messages(last)] == [None]
        await chat.open("z_last")
        await until(lambda: chat.conversation.history.messages(last)[0].gone_at, lambda: chat.screen)
