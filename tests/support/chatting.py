"""Somebody at the terminal chat: keys and mouse go in as from a terminal, and what the terminal shows comes out."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

from textual import events
from textual.app import App
from textual.keys import _character_to_key
from textual.pilot import Pilot
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Button, Input

from conclave.client import Client as LibraryClient, LoginSession
from conclave.client.chat.app import ChatApp
from conclave.client.chat.composer import Composer
from conclave.client.chat.conversation import Conversation
from conclave.client.chat.options import ChatOptions
from conclave.client.chat.rooms import Room
from conclave.client.chat.screen import ChatScreen
from conclave.client.chat.sidebar import Sidebar
from conclave.client.chat.status_messages import StatusMessages
from conclave.client.chat.timeline import Timeline
from tests.support.client import PASSWORD
from tests.support.server import PATIENCE

SETTINGS = '[cleanup]\nengine = "sql"\ndisk_reserve = "0"\n'
T = TypeVar("T")

_RUNNING: list[ChatApp] = []
"""The chats that run now: one that has failed is not waited for."""


async def until(condition: Callable[[], T], what: Callable[[], object] = str) -> T:
    """Wait until ``condition`` returns something that counts as true, and return it. ``what``: for the failure."""
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        for app in _RUNNING:
            if app._exception:
                raise app._exception
            assert not app._exit, app.return_value
        assert time.monotonic() < deadline, f"waited in vain: {what()}"
        await asyncio.sleep(0.02)
    return found


def screen_text(app: App[Any]) -> str:
    """Return what the terminal shows, row by row."""
    return "\n".join(strip.text.rstrip() for strip in screen_strips(app))


def screen_strips(app: App[Any]) -> list[Strip]:
    """Return what the terminal shows, with its colours: a strip for each row."""
    update: Any = app.screen._compositor.render_update(full=True, screen_stack=app._background_screens)
    return [Strip.join(each) for each in update.strips]


class Chat:
    """Somebody at a running chat."""

    def __init__(self, app: ChatApp, pilot: Pilot[str]) -> None:
        self.app = app
        self.pilot = pilot
        self._heard: list[str] = []
        self._listens_to: list[StatusMessages] = []

    @property
    def chat_screen(self) -> ChatScreen:
        """The screen of the chat, whatever dialog is on top of it."""
        found = next(each for each in self.app.screen_stack if isinstance(each, ChatScreen))
        if found._statuses not in self._listens_to:
            self._listen_to(found._statuses)
        return found

    def _listen_to(self, statuses: StatusMessages) -> None:
        """Keep what is said: a busy machine may take it away before it is looked at."""
        add = statuses.add

        def heard(text: str, *, is_error: bool = False) -> None:
            self._heard.append(text)
            add(text, is_error=is_error)

        statuses.add = heard  # type: ignore[method-assign]  # see above
        self._listens_to.append(statuses)

    @property
    def conversation(self) -> Conversation:
        assert self.app.conversation
        return self.app.conversation

    @property
    def room(self) -> Room:
        assert self.chat_screen.room
        return self.chat_screen.room

    @property
    def timeline(self) -> Timeline:
        return self.chat_screen.query_one(Timeline)

    @property
    def composer(self) -> Composer:
        return self.chat_screen.query_one(Composer)

    @property
    def sidebar(self) -> Sidebar:
        return self.chat_screen.query_one(Sidebar)

    @property
    def screen(self) -> str:
        """Everything that the terminal shows."""
        return screen_text(self.app)

    @property
    def statuses(self) -> list[str]:
        """What was said in passing, and can still be read."""
        is_there = any(isinstance(each, ChatScreen) for each in self.app.screen_stack)
        return [each.text for each in self.chat_screen._statuses.all] if is_there else []

    @property
    def wrong(self) -> str:
        """What is said by the field about the line in it."""
        return self.chat_screen._error

    def press(self, *keys: str) -> None:
        """Press keys as fast as a terminal hands them over; a text of several characters is one key's name."""
        driver = self.app._driver
        assert driver
        for key in keys:
            is_character = len(key) == 1
            event = events.Key(_character_to_key(key) if is_character else key, key if is_character else None)
            event.set_sender(self.app)
            driver.send_message(event)

    def type(self, text: str, *keys: str) -> None:
        """Type a text, then press keys."""
        self.press(*text, *keys)

    def paste(self, text: str) -> None:
        """Paste a text, as a terminal does that marks what was pasted."""
        assert self.app._driver
        event = events.Paste(text)
        event.set_sender(self.app)
        self.app._driver.send_message(event)

    async def shows(self, *texts: str) -> None:
        """Wait until the terminal shows some texts."""

        def all_are_there() -> bool:
            screen = self.screen  # drawn once a look
            return all(each in screen for each in texts)

        await until(all_are_there, lambda: f"{texts} in\n{self.screen}")

    async def hides(self, *texts: str) -> None:
        """Wait until the terminal shows none of some texts."""

        def none_is_there() -> bool:
            screen = self.screen
            return not any(each in screen for each in texts)

        await until(none_is_there, lambda: f"no {texts} in\n{self.screen}")

    async def said(self, text: str) -> None:
        """Wait until something was said, in passing or by the field. What was said until then is not found again."""
        await until(
            lambda: any(text in each for each in [*self._heard, *self.statuses, self.wrong]),
            lambda: f"{text}: {self.statuses} {self.wrong}\n{self.screen}",
        )
        self._heard.clear()

    async def page_to(self, text: str, key: str = "pagedown") -> None:
        """Go on page by page, or back, until a text is on the screen, and to the end of that page."""
        deadline = time.monotonic() + PATIENCE
        while text not in self.screen:
            assert time.monotonic() < deadline, self.screen
            self.press(key)
            await self.pilot.pause(0.1)

    async def stays(self, look: Callable[[], T]) -> T:
        """Wait until what is looked at is the same for half a second, and return it."""
        found = look()
        for _ in range(60):
            before = found
            await self.pilot.pause(0.5)
            if (found := look()) == before:
                return found
        raise AssertionError(f"it never stays the same:\n{self.screen}")

    async def do(self, line: str) -> None:
        """Type a command, and wait until it was taken."""
        await self._clear()
        self.type(line, "enter")
        await until(lambda: not self.composer.text, lambda: self.composer.text)

    async def _clear(self) -> None:
        """Wait until a command can be typed."""
        if not (self.app.screen is self.chat_screen and self.composer.has_focus):  # Escape would mean something there
            self.press("escape")
        await until(lambda: self.app.screen is self.chat_screen and self.composer.has_focus, lambda: self.screen)
        self.composer.prefill("")

    async def is_online(self) -> None:
        """Wait for a connection, and for the groups."""
        await until(lambda: self.app.conversation and self.conversation.offline is None, lambda: self.screen)

    async def open(self, name: str) -> Room:
        """Open a group as soon as it is there."""
        await until(lambda: self.conversation.rooms.by_name(name), lambda: f"{name} in\n{self.screen}")
        await self._clear()
        self.type(line := f"/go {name}")
        # The first group opens by itself: that it is open does not tell that the line was taken.
        await until(lambda: self.composer.text == line, lambda: self.composer.text)
        self.press("enter")
        await until(lambda: not self.composer.text, lambda: self.composer.text)
        await until(lambda: self.chat_screen.room and self.room.name == name, lambda: self.screen)
        return self.room

    async def click(self, widget: Any, offset: tuple[int, int] = (1, 0)) -> None:
        """Click with the mouse, once what is clicked on stands still: a form that scrolls takes a moment."""
        if isinstance(widget, Widget):
            await self.stays(lambda: widget.region)
        await self.pilot.click(widget, offset=offset)

    def button(self, label: str) -> Button:
        """A button of the dialog on top, by what stands on it."""
        return next(each for each in self.app.screen.query(Button) if str(each.label) == label)

    async def asked(self, *texts: str) -> None:
        """Wait for a dialog that has some texts."""
        await until(lambda: len(self.app.screen_stack) > 2, lambda: self.screen)
        await self.shows(*texts)

    async def fill(self, **fields: str) -> None:
        """Fill in the fields of a form."""
        for name, text in fields.items():
            field = self.app.screen.query_one(f"#{name}", Input)
            field.value = ""
            field.focus()
            await until(lambda field=field: field.has_focus)  # type: ignore[misc]  # mypy knows no default in a lambda
            self.type(text)
            await until(lambda field=field, text=text: field.value == text, lambda: self.screen)  # type: ignore[misc]  # as above


@contextlib.asynccontextmanager
async def chatting(
    home: Path, url: str = "", *, size: tuple[int, int] = (80, 24), online: bool = True, **options: Any
) -> AsyncIterator[Chat]:
    """Start the chat; it ends with the block. ``online``: wait for the connection. It encrypts if it is told to."""
    app = ChatApp(ChatOptions(home=home, url=url, **{"make_codec": None} | options))
    try:
        async with app.run_test(size=size, notifications=True) as pilot:
            chat = Chat(app, pilot)
            _RUNNING.append(app)
            await until(lambda: app.focused or app._exit)
            if online:
                await chat.is_online()
            yield chat
            if not app._exit:
                await pilot.pause()  # or keys would come to an app that has no screen any more
    finally:
        if app in _RUNNING:
            _RUNNING.remove(app)
        await app.close_conversation()


async def signed_up(home: Path, url: str, name: str, *, is_new: bool = True) -> LoginSession:
    """Make an account, or log in to one that there is, and leave its session where the chat finds it."""
    options = ChatOptions(home=home)
    async with LibraryClient(url) as client:
        if is_new:
            await client.register(name, PASSWORD)
        session = await client.login(name, PASSWORD)
    options.accounts.for_session(session).save(session)
    return session


async def new_group(session: LoginSession, name: str, *, public: bool = True, expiry: int | None = None) -> UUID:
    """Make a group by other means than the chat."""
    from conclave.client import PlaintextCodec
    from conclave.client.membership import MembershipManager

    async with LibraryClient(session.url) as client:
        client.resume(session)
        group = await MembershipManager(client, PlaintextCodec()).create(name, public=public)
        if expiry is not None:
            await client.update_group(group, expiry=expiry)
    return group
