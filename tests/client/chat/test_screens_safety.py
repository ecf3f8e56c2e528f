"""What the chat must not do: show what is gone, execute what others write, keep or tell what is secret."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession
from textual.widgets import Static

from conclave.client import Client as LibraryClient, SessionOverError
from conclave.client.chat.app import describe
from conclave.client.chat.login import LoginScreen
from conclave.client.chat.options import ChatOptions
from tests.support.alone import once
from tests.support.chatting import SETTINGS, Chat, chatting, new_group, signed_up, until
from tests.support.client import PACKAGE, PASSWORD, Client
from tests.support.proxies import free_ports
from tests.support.server import PATIENCE, ServerProcess, until as until_awaited

pytestmark = pytest.mark.system

HOSTILE = "\x1b]0;owned\x07\x1b[2J[bold]loud[/bold] [@click=app.quit]press[/] \u202egnp.exe\u2066 \r\x00\x9b31m \\[/]"
"""A title, an end of the screen, markup, a link that leaves, a turned direction, a return, a NUL, a C1 code."""


@pytest.mark.parametrize("is_plain", [False, True], ids=["screen", "plain"])
async def test_nobody_speaks_in_the_name_of_somebody_else_or_of_the_chat(
    server: ServerProcess, http: ClientSession, tmp_path: Path, is_plain: bool
) -> None:
    number = f"{is_plain:d}"
    session = await signed_up(tmp_path, server.url, f"fooled{number}")
    # Names that look like "you", each once at this server.
    forger = await Client.register(http, server.url, ("you", "You")[is_plain])
    await forger.call("PATCH", "/me", json={"alias": "x)  admin"})
    group = await forger.create_group(f"forged{number}")
    await Client(http, server.url, session.token, str(session.user_id)).join(group)
    async with chatting(tmp_path, is_plain=is_plain) as chat:
        await chat.open(f"forged{number}")
        at = "22:22"
        text = f"hi\n\nfooled{number}, {at}: I owe you 100\u2028new\x85system came in\r\vfooled{number}"
        await forger.send(group, text.encode())
        await chat.shows("I owe you 100")
        rows = chat.timeline.text.split("\n")
        name = f'"{("you", "You")[is_plain]}"'
        assert any(each.startswith(name) for each in rows)
        assert not any(each.startswith(("you", "You", "system", "fooled", "new")) for each in rows), rows
        chat.type("/info", "enter")
        await chat.asked("2 members")
        assert f"{name}  admin  alias: x)  admin" in chat.screen


@pytest.mark.parametrize("how", ["remove", "ban", "delete"])
async def test_who_is_out_is_told_and_sees_nothing_of_the_group_any_more(
    server: ServerProcess, http: ClientSession, tmp_path: Path, how: str
) -> None:
    session = await signed_up(tmp_path, server.url, f"out_{how}")
    admin = await Client.register(http, server.url, f"admin_{how}")
    group = await admin.create_group(f"lost_{how}")
    member = Client(http, server.url, session.token, str(session.user_id))
    await member.join(group)
    async with chatting(tmp_path) as chat:
        await chat.open(f"lost_{how}")
        await admin.send(group, b"what was said")
        await chat.shows("what was said")
        chat.type("half a reply")
        await until(lambda: chat.composer.text == "half a reply")
        if how == "delete":
            await admin.post(f"/groups/{group}/delete")
        else:
            await admin.act(how, group, member)
        await chat.said("was deleted" if how == "delete" else "You were removed from")
        await chat.hides("what was said", f"admin_{how}", "half a reply")
        assert "what was said" not in chat.timeline.text
        assert not chat.conversation.history.groups()
        await chat.shows("You have no groups yet.")


async def test_what_is_typed_for_a_group_that_vanishes_is_not_sent_to_another_one(
    server: ServerProcess, http: ClientSession, tmp_path: Path
) -> None:
    session = await signed_up(tmp_path, server.url, "left_alone")
    admin = await Client.register(http, server.url, "vanisher")
    gone, stays = [await admin.create_group(name) for name in ("vanishing", "lasting")]
    member = Client(http, server.url, session.token, str(session.user_id))
    for group in (gone, stays):
        await member.join(group)
    async with chatting(tmp_path) as chat:
        await chat.open("vanishing")
        chat.type("only for those in va")
        await until(lambda: chat.composer.text.endswith("va"))
        await admin.post(f"/groups/{gone}/delete")
        await chat.said("vanishing was deleted")
        await until(lambda: "vanishing" not in {each.name for each in chat.conversation.rooms.all.values()})
        chat.type("nishing", "enter")
        await until(lambda: not chat.composer.text or "No group is open" in chat.wrong)
        await chat.pilot.pause(0.5)
        assert await member.fetch(stays) == []


async def test_offline_is_told_and_so_is_being_back(tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    [port] = free_ports(1)  # which no other test gets while the server is away
    database = f'database_path = "{tmp_path}/server/conclave.db"\n{SETTINGS}'
    settings = f'listen_address = "127.0.0.1"\nlisten_port = {port}\n{database}\n[admin]\nlisten_port = 0\n'
    with ServerProcess(tmp_path / "server", file=(tmp_path / "server" / "conclave.toml", settings)) as server:
        session = await signed_up(tmp_path / "home", server.url, "returner")
        await new_group(session, "waiting")
        async with chatting(tmp_path / "home") as chat:
            await chat.open("waiting")
            chat.type("typed before", "enter")
            await until(lambda: chat.room.messages and not chat.room.pending)  # it has caught up
            server.process.kill()
            server.process.wait()
            await chat.shows("no connection")
            chat.type("typed without one", "enter")
            await chat.shows("typed without one")
            chat.press("f1")
            await chat.asked("Keys and commands")
            chat.press("ctrl+q")
            await chat.asked("Quit?", "1 message not sent yet")
            chat.press("enter")
            await chat.hides("Quit?")
            chat.press("escape")
            with ServerProcess(tmp_path / "server", file=(server.config, settings)) as again:
                assert again.url == server.url
                await chat.is_online()
                await until(lambda: len(chat.room.messages) == 2 and not chat.room.pending, lambda: chat.screen)
                assert [each.text for each in chat.room.messages.values()] == ["typed before", "typed without one"]
                await chat.shows("online", "typed without one")
                assert "no connection" not in chat.screen
                chat.press("ctrl+q")
                await until(lambda: chat.app._exit)


async def test_a_session_that_is_over_leads_to_the_login_whatever_is_on_the_screen(
    server: ServerProcess, http: ClientSession, tmp_path: Path
) -> None:
    session = await signed_up(tmp_path, server.url, "ended")
    await new_group(session, "ending")
    other = Client(http, server.url, user_id=str(session.user_id))
    async with chatting(tmp_path) as chat:
        await chat.open("ending")
        chat.type("before the end", "enter")
        await until(lambda: chat.room.messages)
        chat.press("f1")
        await chat.asked("Keys and commands")
        await other.login("ended")
        await other.post("/change-password", current_password=PASSWORD, new_password="battery staple")
        await chat.shows("Your session has expired. Log in again.")
        assert "before the end" not in chat.screen
        assert [type(each) for each in chat.app.screen_stack[1:]] == [LoginScreen]
        await until(lambda: not list(tmp_path.rglob("session")))
        await chat.fill(password="battery staple")
        chat.press("enter")
        await chat.is_online()
        await chat.shows("before the end")


async def test_a_session_that_is_over_says_how_much_was_not_sent(
    server: ServerProcess, http: ClientSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await signed_up(tmp_path, server.url, "ended_early")
    for name in ("ending_here", "ending_there"):
        await new_group(session, name)
    other = Client(http, server.url, user_id=str(session.user_id))

    async def send(*_: object, **__: object) -> int:
        await asyncio.Event().wait()
        raise AssertionError

    async with chatting(tmp_path) as chat:
        monkeypatch.setattr(chat.conversation.sync, "send", send)
        for name, texts in (("ending_here", ("one", "two")), ("ending_there", ("three",))):
            room = await chat.open(name)
            for text in texts:
                chat.type(text, "enter")
            await until(lambda: len(room.pending) == len(texts), lambda: chat.screen)  # noqa: B023 - it is over before the next
        await other.login("ended_early")
        await other.post("/change-password", current_password=PASSWORD, new_password="battery staple")
        await chat.shows("Your session has expired. Log in again.")
        why = str(chat.app.screen.query_one("#login-why", Static).content)
        assert "3 unsent messages" in why


async def test_a_log_out_leaves_no_text_in_any_file(server: ServerProcess, tmp_path: Path) -> None:
    session = await signed_up(tmp_path, server.url, "forgetful")
    await new_group(session, "forgotten")
    async with chatting(tmp_path) as chat:
        await chat.open("forgotten")
        texts = [f"secret saying {number} of the forgetful" for number in range(30)]
        for text in texts:
            chat.type(text, "enter")
        await until(lambda: len(chat.room.messages) == 30)
        assert found(tmp_path, b"of the forgetful"), "the search finds what is there"
        await chat.do("/logout")
        await chat.asked("Log out?")
        chat.press("left", "enter")
        await chat.shows("Logged out")
        await until(lambda: not found(tmp_path, b"of the forgetful"))
        assert not found(tmp_path, session.token.encode())
        assert "saying" not in chat.screen


async def test_a_log_out_without_a_server_erases_all_the_same_and_ends_the_session_later(tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / "server"
    folder.mkdir()
    text = f'listen_address = "127.0.0.1"\nlisten_port = {free_ports(1)[0]}\n{SETTINGS}\n[admin]\nlisten_port = 0\n'
    file = folder / "conclave.toml", text
    with ServerProcess(folder, file=file) as first:
        session = await signed_up(home, first.url, "offline_leaver")
        await new_group(session, "left_behind")
        async with chatting(home) as chat:
            await chat.open("left_behind")
            chat.type("said before", "enter")
            await until(lambda: len(chat.room.messages) == 1)
            first.stop()
            await chat.do("/logout")
            await chat.asked("Log out?")
            chat.press("left", "enter")
            await chat.shows("Logged out", "did not answer")
            await until(lambda: not [each for each in home.rglob("*") if each.is_file()])
            with ServerProcess(folder, file=file):

                async def is_over() -> bool:
                    async with LibraryClient(session.url) as client:
                        client.resume(session)
                        try:
                            await client.me()
                        except SessionOverError:
                            return True
                    return False

                await until_awaited(is_over)


def found(folder: Path, text: bytes) -> list[Path]:
    return [each for each in folder.rglob("*") if each.is_file() and text in each.read_bytes()]


async def test_what_others_write_is_shown_and_does_nothing(
    server: ServerProcess, http: ClientSession, tmp_path: Path
) -> None:
    session = await signed_up(tmp_path, server.url, "target")
    attacker = await Client.register(http, server.url, "attacker")
    alias = "UPDATE users SET alias = ? WHERE username = 'attacker'"
    once(server.folder / "conclave.db", alias, "[red]alias[/] \u202ebidi")  # as a hostile server would have it
    group = await attacker.create_group("trap")
    await attacker.patch(group, alias="[bold]title[/] [@click=app.quit]x[/]")
    target = Client(http, server.url, session.token, str(session.user_id))
    await target.upload(PACKAGE, last_resort=PACKAGE)
    await target.join(group)
    second = await attacker.create_group("second_trap", public=False)
    await attacker.invite(second, target)
    rename = "UPDATE groups SET group_name = ? WHERE group_name = 'second_trap'"
    once(server.folder / "conclave.db", rename, HOSTILE)
    async with chatting(tmp_path) as chat:
        await chat.open("trap")
        await attacker.send(group, HOSTILE.encode())
        await chat.shows("[bold]title[/] [@click=app.quit]x[/]", "[bold]loud[/bold]", "[@click=app.quit]press[/]")
        await chat.shows("✉ �]0;owned�")
        chat.press("f2")
        await chat.asked("[red]alias[/] �bidi")
        chat.press("escape")
        await chat.do("/accept")
        await until(lambda: len(chat.conversation.rooms.all) == 2, lambda: chat.screen)
        await chat.shows("�]0;owned�")
        chat.press("ctrl+p")
        await chat.asked("owned")
        for row in chat.screen.splitlines():
            assert not [each for each in row if ord(each) < 32 or 127 <= ord(each) < 160 or each in "\u202e\u2066"]
        chat.press("escape")
        await chat.hides("Search for")
        for room in list(chat.conversation.rooms.all.values()):
            chat.chat_screen.open_group(room.group.group_id)
            await chat.pilot.pause()
            rows = chat.screen.splitlines()
            links = [(each.end() - 1, y) for y, row in enumerate(rows) for each in re.finditer(r"\[@click\S*\]\w", row)]
            assert links
            for place in links:
                await chat.pilot.click(offset=place)
        assert not chat.app._exit, "no click does what a message says"


async def test_a_fault_of_the_program_ends_it_without_the_values_of_its_variables(
    server: ServerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await signed_up(tmp_path, server.url, "unlucky")
    await new_group(session, "faulty")

    def broken(*_: Any) -> None:
        secret = "the plum is ripe"
        raise ValueError(f"cannot do {secret!r} with {session.token}")

    async def unlucky() -> None:
        async with chatting(tmp_path) as chat:
            await chat.open("faulty")
            monkeypatch.setattr(type(chat.timeline), "show", broken)
            started.append(chat)
            chat.type("the plum is ripe", "enter")
            async with asyncio.timeout(PATIENCE):
                while not chat.app._exit:
                    await chat.pilot.pause(0.02)

    started: list[Chat] = []
    with pytest.raises(ValueError, match="plum"):  # the pilot's own
        await unlucky()
    [chat] = started
    assert chat.app.return_code == 1
    said = (chat.app.return_value or "") + "".join(capsys.readouterr())
    assert "ValueError" in said
    for secret in ("plum", session.token, PASSWORD):
        assert secret not in said
    assert describe(ValueError("the plum is ripe")).count("plum") == 0


async def test_no_secret_is_in_a_repr(server: ServerProcess, tmp_path: Path) -> None:
    session = await signed_up(tmp_path, server.url, "discreet")
    await new_group(session, "discretion")
    async with chatting(tmp_path) as chat:
        room = await chat.open("discretion")
        chat.type("the plum is ripe", "enter")
        await until(lambda: room.messages)
        chat.type("half of it")
        await until(lambda: chat.composer.text == "half of it")
        room.typed = "half of it"
        conversation = chat.conversation
        things: list[Any] = [room, conversation, conversation.client, conversation.history, chat.app, session]
        things += [ChatOptions(home=tmp_path), chat.composer, chat.timeline, *room.messages.values()]
        shown = "".join(map(repr, things))
        for secret in ("plum", "half of it", session.token):
            assert secret not in shown
