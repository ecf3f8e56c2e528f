"""Talking in the chat: typing, sending, commands, invites, with the keyboard and with the mouse."""

import asyncio
from pathlib import Path
from uuid import UUID

import pytest
from aiohttp import ClientSession

from conclave.client import NoAnswerError
from conclave.client.chat.rooms import PendingMessage
from tests.support.chatting import chatting, new_group, signed_up, until
from tests.support.client import Client
from tests.support.server import ServerProcess

pytestmark = pytest.mark.system

HOUR = 3_600


async def test_groups_stand_in_the_list_with_their_policies_and_what_is_unread(
    server: ServerProcess, http: ClientSession, tmp_path: Path
) -> None:
    session = await signed_up(tmp_path, server.url, "lister")
    await new_group(session, "list_hour", expiry=HOUR)
    await new_group(session, "list_kept")
    noisy = await new_group(session, "list_read", expiry=0)
    other = await Client.register(http, server.url, "lister_friend")
    await other.join(str(noisy))
    async with chatting(tmp_path) as chat:
        await chat.open("list_hour")
        await chat.shows("deleted after 1 hour", "you are an admin", "1 member")
        for _ in range(3):
            await other.send(str(noisy), b"are you there")

        def listed() -> list[str]:
            return [line[:22].strip() for line in chat.screen.splitlines()]

        await until(lambda: "list_read  fetched 3" in listed(), lambda: chat.screen)
        for name, policy in (("list_hour", "1h"), ("list_kept", "∞")):  # they are read one after the other
            listing = [name, policy]
            await until(lambda: listing in [line.split() for line in listed()], lambda: chat.screen)  # noqa: B023 - it is over before the next
        assert "are you there" not in chat.screen
        chat.press("ctrl+g")
        await chat.shows("are you there", "deleted once all have fetched them")
        await until(lambda: not any(line.endswith(" 3") for line in listed()), lambda: chat.screen)


async def test_fast_typing_with_enter_loses_and_reorders_nothing(server: ServerProcess, tmp_path: Path) -> None:
    session = await signed_up(tmp_path, server.url, "typist")
    await new_group(session, "typed_fast")
    texts = [f"line {number} of what was typed" for number in range(20)]
    async with chatting(tmp_path) as chat:
        await chat.open("typed_fast")
        for text in texts:
            chat.type(text, "enter")
        chat.type("half a li")
        await until(lambda: len(chat.room.messages) == 20 and not chat.room.pending, lambda: chat.screen)
        assert [each.text for each in chat.room.messages.values()] == texts
        await until(lambda: chat.composer.text == "half a li", lambda: chat.composer.text)
        await until(lambda: texts[-1] in chat.timeline.text and "sending" not in chat.timeline.text)
        assert [line.strip() for line in chat.timeline.text.splitlines() if "line" in line] == texts


async def test_whoever_changes_the_group_while_typing_sends_nothing_to_the_wrong_one(
    server: ServerProcess, tmp_path: Path
) -> None:
    session = await signed_up(tmp_path, server.url, "hasty")
    for name in ("hasty_a", "hasty_b"):
        await new_group(session, name)
    async with chatting(tmp_path) as chat:
        first = await chat.open("hasty_a")
        second = await until(lambda: chat.conversation.rooms.by_name("hasty_b"))
        assert second
        places = [each.group.group_id for each in (first, second)]
        for key in ("alt+down", "ctrl+down"):
            chat.type("for a only", "enter")
            chat.type("not finished", key)
            chat.type("for b only", "enter", "alt+up")
            chat.type(" yet")
            await until(lambda: chat.composer.text == "not finished yet", lambda: chat.composer.text)
            assert chat.room is first
            chat.press(*["backspace"] * len("not finished yet"))
            await until(lambda: not chat.composer.text)
        history = chat.conversation.history
        await until(lambda: [len(history.messages(each)) for each in places] == [2, 2])
        for place, text in zip(places, ("for a only", "for b only"), strict=True):
            assert [each.text for each in history.messages(place)] == [text, text]


async def test_several_lines_are_one_message(server: ServerProcess, tmp_path: Path) -> None:
    session = await signed_up(tmp_path, server.url, "liner")
    await new_group(session, "several_lines")
    async with chatting(tmp_path) as chat:
        await chat.open("several_lines")
        chat.type("one", "alt+enter")
        chat.type("two", "ctrl+j")
        chat.type("three", "enter")
        await until(lambda: [each.text for each in chat.room.messages.values()] == ["one\ntwo\nthree"])
        chat.paste("four\nfive")
        await until(lambda: chat.composer.text == "four\nfive")
        assert len(chat.room.messages) == 1
        assert not chat.room.pending
        await chat.shows("one\n", "two", "three")


async def test_commands_come_back_and_messages_never(server: ServerProcess, tmp_path: Path) -> None:
    session = await signed_up(tmp_path, server.url, "recaller")
    await new_group(session, "recalled")
    async with chatting(tmp_path) as chat:
        await chat.open("recalled")
        chat.type("a message of mine", "enter")
        chat.type("//slashed message", "enter")
        chat.type("/burn 1d burning message", "enter")
        chat.type("/alias Recaller", "enter")
        await until(lambda: len(chat.room.messages) == 3)
        recalled = set()
        for _ in range(6):
            before = chat.composer.text
            chat.press("up")
            if not before:
                await until(lambda: chat.composer.text)
            await chat.pilot.pause()
            recalled.add(chat.composer.text)
        assert "/alias Recaller" in recalled
        assert not [each for each in recalled if "message" in each]
        chat.press("down", "down", "down", "down", "down", "down", "down")
        await until(lambda: not chat.composer.text)
        for key in ("ctrl+z", "ctrl+y", "ctrl+z"):
            chat.press(key)
            await chat.pilot.pause()
            assert "message" not in chat.composer.text


async def test_tab_completes_commands_and_shows_what_they_take(server: ServerProcess, tmp_path: Path) -> None:
    session = await signed_up(tmp_path, server.url, "completer")
    await new_group(session, "completed")
    async with chatting(tmp_path) as chat:
        await chat.open("completed")
        chat.type("last message", "enter")
        await chat.shows("last message")
        chat.type("/e")
        await chat.shows("/expire TIME | fetched | off")
        assert "last message" in chat.screen, "the hint does not stand before the end"
        chat.press("tab")
        await until(lambda: chat.composer.text == "/expire ")
        await chat.do("/nonsense")
        await chat.said("/nonsense is not a command")
        await until(lambda: chat.composer.text == "/nonsense", lambda: "the line is there to be corrected")


async def test_what_is_typed_after_a_line_that_was_refused_takes_its_place(
    server: ServerProcess, tmp_path: Path
) -> None:
    await signed_up(tmp_path, server.url, "corrector")
    async with chatting(tmp_path) as chat:
        await chat.is_online()
        for line, why in (
            ("hello", "No group is open. Create one"),
            ("/expire 1h", "/expire needs a group"),
            ("/new \u6771", "must be 1 to 64 letters, digits or _"),
        ):
            chat.type(line, "enter")
            await chat.shows(why)
            assert chat.composer.text == line
            rows = chat.screen.splitlines()
            wrong, typed = (max(at for at, row in enumerate(rows) if each in row) for each in (why, line))
            assert 0 < typed - wrong <= 2, "it stands by the field"
        chat.type("/new corrected", "enter")
        await until(lambda: chat.chat_screen.room)
        assert not chat.wrong
        await chat.hides("must be 1 to 64")


async def test_readmes_three_lines_take_no_other_key(server: ServerProcess, tmp_path: Path) -> None:
    await signed_up(tmp_path, server.url, "newcomer")
    async with chatting(tmp_path) as chat:
        await chat.is_online()
        await chat.do("/new three_lines")
        await until(lambda: chat.chat_screen.room)
        chat.type("hello", "enter")
        await chat.shows("hello")
        await chat.do("/expire 1h")
        await chat.shows("you changed the expiry", "deleted after 1 hour")
        await chat.do("/expire 1h")
        await chat.said("Messages in three_lines are still deleted after 1 hour.")


@pytest.mark.parametrize(("typed", "left"), [("/invite so", "/invite so"), ("half a reply", "")])
async def test_a_command_that_is_typed_while_the_first_group_opens_stays(
    server: ServerProcess, tmp_path: Path, typed: str, left: str
) -> None:
    name = f"first_{len(left)}"
    session = await signed_up(tmp_path, server.url, name)
    async with chatting(tmp_path) as chat:
        chat.type(typed)
        await until(lambda: chat.composer.text == typed)
        await new_group(session, name)
        await until(lambda: chat.chat_screen.room)
        assert chat.composer.text == left, "no message goes to a group that opened by itself"


async def test_a_correction_is_made_before_what_is_typed_after_it(server: ServerProcess, tmp_path: Path) -> None:
    session = await signed_up(tmp_path, server.url, "mender")
    await new_group(session, "mended")
    async with chatting(tmp_path) as chat:
        await chat.open("mended")
        chat.type("abcd", "backspace", "backspace", "x", "left", "left", "y", "enter")
        await until(lambda: [each.text for each in chat.room.messages.values()] == ["aybx"], lambda: chat.screen)


async def test_lines_that_are_typed_at_once_after_a_new_group_go_to_it_in_order(
    server: ServerProcess, tmp_path: Path
) -> None:
    await signed_up(tmp_path, server.url, "speedy")
    async with chatting(tmp_path) as chat:
        await chat.shows("You have no groups yet.")
        for name in ("hasty_first", "hasty_second"):  # none is open, and then another one
            for line in (f"/new {name}", "hello", "/expire 1h"):
                chat.type(line, "enter")
            chat.type("half a li")
            await until(lambda: chat.chat_screen.room and chat.room.name == name, lambda: chat.screen)  # noqa: B023 - it is over before the next
            await chat.shows("hello", "you changed the expiry")
            await until(lambda: not chat.room.pending)
            assert [each.text for each in chat.room.messages.values()] == ["hello"]
            await until(lambda: chat.composer.text == "half a li", lambda: chat.composer.text)
            chat.press(*["backspace"] * len("half a li"))
            await until(lambda: not chat.composer.text, lambda: chat.composer.text)  # keys find no screen at the end
        await until(lambda: all(not each.typed for each in chat.conversation.rooms.all.values()))


async def test_what_is_typed_after_a_new_group_that_is_refused_is_sent_nowhere_and_kept(
    server: ServerProcess, tmp_path: Path
) -> None:
    session = await signed_up(tmp_path, server.url, "refused_new")
    await new_group(session, "taken_name")
    async with chatting(tmp_path) as chat:
        await chat.open("taken_name")
        for line in ("/new taken_name", "not for this one", "nor this"):
            chat.type(line, "enter")
        await chat.shows("/new taken_name:", "were not sent")
        await until(lambda: chat.composer.text == "not for this one\nnor this", lambda: chat.composer.text)
        assert not chat.room.messages
        assert not chat.room.pending


async def test_a_line_typed_in_a_group_to_which_one_went_meanwhile_is_for_that_group(
    server: ServerProcess, tmp_path: Path
) -> None:
    session = await signed_up(tmp_path, server.url, "wanderer")
    for name in ("wander_a", "wander_b"):
        await new_group(session, name)
    async with chatting(tmp_path) as chat:
        await chat.open("wander_a")
        chat.type("/new wander_c", "enter")
        chat.press("alt+down")
        chat.type("for b", "enter")
        await until(lambda: chat.room.name == "wander_c", lambda: chat.screen)
        other = chat.conversation.rooms.by_name("wander_b")
        assert other
        await until(lambda: [each.text for each in other.messages.values()] == ["for b"], lambda: chat.screen)
        assert not chat.room.messages


@pytest.mark.parametrize("way", ["in another group", "in a dialog"])
async def test_what_waits_for_a_group_is_not_sent_to_one_that_another_command_opens(
    server: ServerProcess, http: ClientSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    name = f"ahead_{len(way)}"
    session = await signed_up(tmp_path, server.url, name)
    for each in ("home", "other"):
        await new_group(session, f"{name}_{each}")
    host = await Client.register(http, server.url, f"{name}_host")
    await host.create_group(f"{name}_slow", public=True)
    invited = await host.create_group(f"{name}_club", public=False)
    await host.invite(invited, Client(http, server.url, user_id=str(session.user_id)))
    fails = asyncio.Event()

    async def join(group_id: UUID) -> None:
        await fails.wait()
        raise NoAnswerError("no answer")

    async with chatting(tmp_path) as chat:
        await chat.open(f"{name}_home")
        await chat.shows(f"✉ {name}_club")
        monkeypatch.setattr(chat.conversation.sync.membership, "join", join)
        chat.type(f"/join {name}_slow", "enter")
        chat.type("a secret", "enter")
        await chat.shows("1 line waiting for")
        if way == "in a dialog":
            await chat.click("#sidebar", (3, row_of(chat.screen, f"✉ {name}_club") - 1))
            await chat.asked(f"Join {name}_club?")
            await chat.click(chat.button("Accept"))
        else:
            chat.press("alt+down")
            chat.type(f"/accept {name}_club", "enter")
        await until(lambda: chat.room.name == f"{name}_club", lambda: chat.screen)
        fails.set()
        await chat.shows("were not sent")
        await until(lambda: chat.composer.text == "a secret", lambda: chat.screen)
        for room in chat.conversation.rooms.all.values():
            assert "a secret" not in [each.text for each in room.messages.values()]
            assert not room.pending


async def test_an_invite_is_taken_and_answered_at_once(server: ServerProcess, tmp_path: Path) -> None:
    host = await signed_up(tmp_path / "host", server.url, "quick_host")
    await signed_up(tmp_path / "guest", server.url, "quick_guest")
    await new_group(host, "quick_club", public=False)
    async with chatting(tmp_path / "host") as inviting, chatting(tmp_path / "guest") as invited:
        await inviting.open("quick_club")
        await inviting.do("/invite quick_guest")
        await invited.shows("✉ quick_club")
        invited.type("/accept", "enter")
        invited.type("hi there", "enter")
        await inviting.shows("quick_guest joined", "hi there")


async def test_invite_and_accept_with_the_keyboard_alone(server: ServerProcess, tmp_path: Path) -> None:
    host = await signed_up(tmp_path / "host", server.url, "host")
    await signed_up(tmp_path / "guest", server.url, "guest")
    await new_group(host, "hosted", public=False)
    async with chatting(tmp_path / "host") as inviting, chatting(tmp_path / "guest") as invited:
        await inviting.open("hosted")
        inviting.type("/invite guest", "enter")
        await inviting.said("Invited guest to hosted")
        await invited.said("You are invited to hosted")
        await invited.shows("✉ hosted")
        invited.press("shift+tab")
        await until(lambda: not invited.composer.has_focus)
        invited.press("escape")
        invited.type("/acc", "tab", "enter")
        await until(lambda: invited.chat_screen.room, lambda: invited.screen)
        await invited.hides("✉ hosted")
        invited.type("thank you", "enter")
        await inviting.shows("guest joined", "thank you", "2 members")


async def test_invite_and_accept_with_the_mouse_alone(
    server: ServerProcess, http: ClientSession, tmp_path: Path
) -> None:
    await signed_up(tmp_path, server.url, "clicker")
    host = await Client.register(http, server.url, "click_host")
    async with chatting(tmp_path) as chat:
        clicker = Client(http, server.url, user_id=str(chat.conversation.user_id))
        for name in ("clicked", "declined"):
            group = await host.create_group(name, public=False)
            await host.invite(group, clicker)
        await chat.shows("✉ clicked", "✉ declined")
        await chat.click("#sidebar", (3, row_of(chat.screen, "✉ declined") - 1))
        await chat.asked("Join declined?", "click_host invited you to declined")
        await chat.click(chat.button("Decline"))
        await chat.hides("✉ declined", "Join declined?")
        await chat.click("#sidebar", (3, row_of(chat.screen, "✉ clicked") - 1))
        await chat.asked("Join clicked?")
        await chat.click(chat.button("Later"))
        await chat.hides("Join clicked?")
        await chat.shows("✉ clicked")
        await chat.click("#sidebar", (3, row_of(chat.screen, "✉ clicked") - 1))
        await chat.asked("Join clicked?")
        await chat.click(chat.button("Accept"))
        await until(lambda: chat.chat_screen.room and chat.room.name == "clicked", lambda: chat.screen)
        assert await host.roles(str(chat.room.group.group_id)) == {"click_host": "admin", "clicker": "member"}


def row_of(screen: str, text: str) -> int:
    return next(index for index, line in enumerate(screen.splitlines()) if text in line)


async def test_a_group_is_made_joined_and_left_by_commands(server: ServerProcess, tmp_path: Path) -> None:
    await signed_up(tmp_path / "maker", server.url, "maker")
    await signed_up(tmp_path / "joiner", server.url, "joiner")
    async with chatting(tmp_path / "maker") as maker, chatting(tmp_path / "joiner") as joiner:
        await maker.shows("You have no groups yet.")
        maker.press("ctrl+n")
        await until(lambda: maker.composer.text == "/new ")
        maker.type("made_here public", "enter")
        await until(lambda: maker.chat_screen.room)
        await joiner.do("/find made")
        await joiner.asked("made_here", "1 member")
        joiner.press("escape")
        await joiner.do("/join made_here")
        await until(lambda: joiner.chat_screen.room)
        await maker.shows("joiner joined")
        await joiner.do("/leave")
        await joiner.asked("Leave made_here?")
        joiner.press("left", "enter")
        await joiner.shows("You have no groups yet.")
        await maker.shows("joiner is no longer a member")


@pytest.mark.filterwarnings("ignore:Sending a large body")  # aiohttp's advice about what is refused
async def test_what_the_server_refuses_stays_to_be_discarded_or_sent_again(
    server: ServerProcess, http: ClientSession, tmp_path: Path
) -> None:
    session = await signed_up(tmp_path, server.url, "refused")
    await new_group(session, "refusing")
    async with chatting(tmp_path) as chat:
        room = await chat.open("refusing")
        chat.conversation.send_queue.send(room, "x" * (1 << 20))
        chat.type("what follows it", "enter")
        await until(lambda: len(room.messages) == 1, lambda: chat.screen)
        [pending] = [each for each in room.items(chat.conversation.now()) if isinstance(each, PendingMessage)]
        assert pending.refused
        await chat.shows("not sent: ")
        await chat.do("/discard")
        await chat.hides("not sent: ")
        assert chat.conversation.rooms.unsent_count() == 0


async def test_what_is_typed_while_a_dialog_rises_does_not_go_to_the_dialog(
    server: ServerProcess, tmp_path: Path
) -> None:
    session = await signed_up(tmp_path, server.url, "hasty_typist")
    await new_group(session, "hasty_group")
    async with chatting(tmp_path) as chat:
        await chat.open("hasty_group")
        chat.type("/leave", "enter")
        for word in ("still ", "typing ", "this"):
            chat.type(word)
            await chat.pilot.pause(0.2)
        await chat.asked("Leave hasty_group?")
        assert chat.composer.text == "still typing this"
        chat.press("escape")
