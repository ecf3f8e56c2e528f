"""The pictures of docs/chat.md: drawn from the chat itself, and looked at for what they are to show.

With CONCLAVE_PICTURES set they are drawn into docs/pictures; look at them before you commit them.
"""

import contextlib
import os
import re
import sqlite3
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID
from xml.etree import ElementTree

import pytest
from yarl import URL

from conclave import app_keys
from conclave.client.chat.app import DARK, LIGHT
from conclave.client.chat.options import ChatOptions
from conclave.client.encryption.view import Trust
from conclave.client.session import LoginSession
from conclave.clock import FakeClock
from conclave.config.settings import Config
from tests.conftest import Running, StartServer
from tests.processes.test_operators_page import DRAWN, PICTURES
from tests.support.chatting import Chat, chatting, screen_strips, until
from tests.support.client import PACKAGE, PASSWORD, Client
from tests.support.keyring import Keyring, key
from tests.support.pictures import DAY as DAY_COLOURS, NIGHT as NIGHT_COLOURS, drawn, faintest
from tests.support.server import waiting

TALK = (
    (56, "grace", "The hut has six beds left for Saturday.", 0),
    (55, "linus", "Take them! I bring the rope.", 0),
    (44, "ada", "Booked: six beds, and dinner at seven.", 0),
    (31, "margaret", "Forecast: clear until noon, thunder after two.", 0),
    (30, "margaret", "So we start at five. Sorry.", 0),
    (16, "ada", "Five it is.", 0),
    (4, "grace", "The code of the key box, for whoever is first: 4711", 120),
    (3, "linus", "@ada, who takes the stove?", 0),
    (1, "margaret", "I do. And there is water at the col.", 0),
)
"""What is said in the open group: minutes before noon, by whom, what, and after how many seconds it goes when read."""

NEW_FROM = 4

NOON = 1_780_315_200
"""Monday, 1 June 2026, 12:00."""

TRUSTED = (Trust.VERIFIED, Trust.VERIFIED, Trust.UNKNOWN)

HOUR, DAY = 3_600, 86_400
SIZES = ((40, 12), (80, 24), (200, 60))
LEGIBLE = 3.0
"""The contrast that every text has at least."""

GREYS = {*DAY_COLOURS, *NIGHT_COLOURS}
PEOPLE = ("ada", "grace", "linus", "margaret", "olga")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOON - 3 * DAY)


@pytest.fixture(autouse=True)
def in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


@contextlib.asynccontextmanager
async def ada(running: Running, home: Path, clock: FakeClock, **options: Any) -> AsyncIterator[Chat]:
    """Ada's chat, which goes by the test's clock alone: the server's answers have the real date.

    The others send text as it is, so that a picture needs no keys; it says what those who have keys see.
    """
    keys = Keyring()
    keys.holds(*(key(UUID(int=number), trust) for number, trust in zip((2, 3, 4), TRUSTED, strict=True)))
    async with chatting(home, clock=clock, make_codec=lambda *_: keys, **options) as chat:
        chat.conversation.client.transport.on_time = lambda _: None
        chat.conversation.history._clock.anchor = None
        yield chat


async def people(running: Running, home: Path) -> dict[str, Client]:
    """Sign up everybody, with ids that are the same each time: names have their colours by them."""
    found = {}
    for number, name in enumerate(PEOPLE, start=1):
        client = Client(running.http, running.url, user_id=str(UUID(int=number)))
        await client.post("/register", username=name, password=PASSWORD)
        await running.app[app_keys.STORE].write(_set_id, name, UUID(int=number).bytes)
        await client.login(name)
        await client.upload(PACKAGE, last_resort=PACKAGE)
        found[name] = client
    session = LoginSession(running.url, UUID(found["ada"].user_id), "ada", found["ada"].token)
    ChatOptions(home=home).accounts.for_session(session).save(session)
    return found


def _set_id(connection: sqlite3.Connection, name: str, user_id: bytes) -> None:
    connection.execute("UPDATE users SET user_id = ? WHERE username = ?", (user_id, name))


async def groups_of(by: dict[str, Client]) -> tuple[str, str, str]:
    """Make Ada's groups, and return those in which something will be said."""
    club = await by["ada"].create_group("book_club")
    trip = await by["ada"].create_group("alpine_trip", expiry=HOUR)
    duty = await by["linus"].create_group("on_call", expiry=0)
    old = await by["margaret"].create_group("retro", expiry=30 * DAY)
    members = {trip: ("grace", "linus", "margaret"), club: ("grace", "olga"), duty: ("ada",), old: ("ada",)}
    for group, names in members.items():
        for name in names:
            await by[name].join(group)
    return club, trip, duty


async def fetched(chat: Chat, group_id: UUID, text: str) -> None:
    """Wait until a message is the last one of a group."""
    history = chat.conversation.history
    await until(lambda: [each.text for each in history.last_messages(group_id, 1)] == [text], lambda: chat.screen)


async def played(
    chat: Chat, by: dict[str, Client], groups: tuple[str, str, str], clock: FakeClock, *, is_plain: bool = False
) -> None:
    """Let three days pass in Ada's groups, until noon."""
    club, trip, duty = groups
    await until(lambda: len(chat.conversation.rooms.all) == 4)
    for number in range(38):
        await by[("grace", "olga")[number % 2]].send(club, f"On chapter {number + 1}: I have notes.".encode())
    await chat.open("book_club")
    while "chapter 38" not in chat.screen:
        chat.press("pagedown")
        await chat.pilot.pause(0.05)
    clock.seconds = NOON - 58 * 60
    await chat.open("alpine_trip")
    for minutes, name, text, burns in TALK:
        clock.seconds = NOON - minutes * 60 + 30
        if minutes == NEW_FROM:
            await until(lambda: not chat.conversation.history.unread(UUID(trip), chat.conversation.user_id))
            await chat.open("retro")
        if name == "ada":
            chat.type(text, "enter")
        else:
            await by[name].send(trip, text.encode(), burns)
        await fetched(chat, UUID(trip), text)
    await by["grace"].send(club, b"Chapter 39, by the way, is short.")
    for number in range(12):
        await by["linus"].send(duty, f"alert {number}".encode())
    await by["olga"].invite(await by["olga"].create_group("choir", public=False), by["ada"])
    clock.seconds = NOON
    if is_plain:
        await until(lambda: chat.conversation.rooms.invites and chat.room.unread == 0)
    else:
        await chat.shows("✉ choir", "fetched 12", "∞ 1")
    await chat.open("alpine_trip")
    await chat.shows("water")
    chat.chat_screen._statuses.all = []
    chat.chat_screen._show_statuses()
    await chat.shows("deleted after 1 hour", *([] if is_plain else ["2:00 ✶"]))


async def picture(chat: Chat, title: str, description: str) -> str:
    """Draw what the chat shows, in both themes, as if its server had a name."""
    if chat.app.conversation:
        chat.conversation.client.transport.url = URL("https://chat.example.org")
        chat.composer.cursor_blink = False  # or it would be there in some pictures, and not in others
        chat.chat_screen._show()
    for _ in waiting("both themes to show the same"):  # a line about the server may come or go in between
        strips = []
        for theme in (LIGHT, DARK):
            chat.app.theme = theme.name
            for _ in range(3):  # the screen that is drawn anew may be laid out anew
                await chat.pilot.pause()
            strips.append(screen_strips(chat.app))
        by_day, by_night = ([strip.text for strip in each] for each in strips)
        if by_day == by_night:
            break
    svg = drawn(strips[0], strips[1], title, description)
    if len(chat.app.screen_stack) == 2:  # a dialog lies over what it makes faint
        for each in strips:
            assert faintest(each) >= (LEGIBLE, "")
    by_day, by_night = re.findall(r"\.paper { fill: (#[0-9a-f]{6}) }", svg)
    assert by_night < "#3" < "#e" < by_day, "paper is bright by day, and dark by night"
    return svg


def kept(name: str, svg: str, folder: Path) -> Path:
    """Write a picture: for the docs if that is asked for, otherwise only to look at it here."""
    path = (DRAWN if os.environ.get(PICTURES) else folder) / name
    path.write_text(svg, encoding="utf-8")
    assert path.stat().st_size < 60_000, "pictures are small"
    assert "@font-face" not in svg
    assert "http" not in svg.replace('"http://www.w3.org/2000/svg"', "")
    ElementTree.fromstring(svg)
    return path


async def at_size(chat: Chat, size: tuple[int, int], title: str, description: str) -> str:
    """Draw the chat in another size, where the last message is whole, and nothing is cut."""
    await chat.pilot.resize_terminal(*size)
    await chat.shows("water", "at the col.", "deleted after 1 hour", "F1 Help")
    assert "…" not in chat.screen
    return await picture(chat, title, description)


@pytest.mark.system
async def test_a_lively_group_and_what_a_change_would_hide(
    config: Config, start_server: StartServer, tmp_path: Path, clock: FakeClock
) -> None:
    async with start_server(config) as running:
        by = await people(running, tmp_path / "home")
        groups = await groups_of(by)
        async with ada(running, tmp_path / "home", clock) as chat:
            await played(chat, by, groups, clock)
            screen = chat.screen
            for each in (
                "encrypted, 2 of 3 verified",
                "grace",
                "linus",
                "you",
                "─ new ─",
                "✉ choir",
                "fetched 12",
                "retro",
                "30d",
                "∞ 1",
                "1h",
            ):
                assert each in screen, f"{each} in\n{screen}"
            assert {"●", "◕", "◑", "◔", "○", "✶"} & set(screen) >= {"●", "◑", "◔", "✶"}, screen
            said = [
                "The chat at 80 columns. On the left Ada's groups, each with how long its messages live and how many",
                "are unread, and an invite. On the right the open group, whose messages go after 1 hour: beside each",
                "stand a circle that empties and the time that is left.",
            ]
            kept("chat.svg", await picture(chat, "A group whose messages go after an hour", " ".join(said)), tmp_path)
            for width, height in SIZES:
                same = f"The same group on {width} columns and {height} rows, on which nothing is cut or covered."
                if (width, height) != (80, 24):
                    drawing = await at_size(
                        chat, (width, height), f"The chat on {width} columns and {height} rows", same
                    )
                    kept(f"chat-{width}x{height}.svg", drawing, tmp_path)
            await chat.pilot.resize_terminal(80, 24)
            chat.conversation.client.transport.url = URL(running.url)
            await chat.open("book_club")
            await chat.do("/expire 1d")
            await chat.asked("Change expiry?", "messages, the oldest from", "hidden for everyone now", "Cancel")
            await until(lambda: chat.button("Cancel").has_focus)
            said = [
                "A dialog over a group: its messages would be deleted after 1 day; 38 of them, the oldest from",
                "three days ago, would be hidden for everyone now. The buttons are Change and Cancel.",
            ]
            kept("chat-expire.svg", await picture(chat, "What a shorter lifetime would hide", " ".join(said)), tmp_path)


async def test_the_login(tmp_path: Path) -> None:
    async with chatting(tmp_path / "home", "https://chat.example.org", online=False, username="ada") as chat:
        await chat.fill(server="chat.example.org", password="correct horse")
        await chat.shows("•" * len("correct horse"), "chat.example.org", "Create account")
        said = "A form with server, name and password, and two buttons: log in, create account."
        chat.app.screen.set_focus(chat.app.screen.query_one("#log-in"))
        await chat.pilot.pause()
        kept("chat-login.svg", await picture(chat, "Logging in", said), tmp_path)


@pytest.mark.system
@pytest.mark.parametrize("is_plain", [False, True], ids=["no-colour", "plain"])
async def test_the_same_group_without_colours_and_for_screen_readers(
    config: Config,
    start_server: StartServer,
    tmp_path: Path,
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
    is_plain: bool,
) -> None:
    if not is_plain:
        monkeypatch.setenv("NO_COLOR", "1")
    how = "in plain mode" if is_plain else "without colours"
    async with start_server(config) as running:
        by = await people(running, tmp_path / "home")
        groups = await groups_of(by)
        async with ada(running, tmp_path / "home", clock, is_plain=is_plain) as chat:
            await played(chat, by, groups, clock, is_plain=is_plain)
            for width, height in SIZES:
                said = (
                    f"The chat {how} on {width} columns and {height} rows: nothing is cut, covered or told by colour."
                )
                svg = await at_size(chat, (width, height), f"The chat {how}", said)
                kept(f"chat-{'plain' if is_plain else 'no-colour'}-{width}x{height}.svg", svg, tmp_path)
                if is_plain:
                    assert not set("●◕◑◔○✶─▌▏") & set(svg)
                else:
                    day_and_night = re.findall(r"fill: (#[0-9a-f]{6})", svg)
                    assert all(
                        len({each[1:3], each[3:5], each[5:7]}) == 1 for each in day_and_night if each not in GREYS
                    )
