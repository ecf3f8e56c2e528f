"""The program: logs in, holds the conversation, and shows it."""

import asyncio
import sqlite3
import traceback
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import ClassVar

from textual.app import App
from textual.binding import Binding, BindingType
from textual.color import Color
from textual.filter import Monochrome, NoColor
from textual.screen import Screen
from textual.theme import Theme
from textual.worker import WorkerFailed

from conclave.client.chat import formatting
from conclave.client.chat.accounts import Account, AccountInUseError
from conclave.client.chat.conversation import Conversation
from conclave.client.chat.dialogs import Ask
from conclave.client.chat.login import LoginScreen
from conclave.client.chat.options import ChatOptions
from conclave.client.chat.palette import Doings
from conclave.client.chat.screen import ChatScreen
from conclave.client.chat.terminal import TerminalDriver
from conclave.client.encryption.key_database import KeyStoreError
from conclave.client.errors import ClientError, RefusedError, SessionOverError, is_final
from conclave.client.history.schema import HistoryError
from conclave.client.session import LoginSession, SessionFileError

DARK = Theme(
    name="conclave-dark",
    primary="#7aa6da",
    secondary="#6b8299",
    accent="#e8a35c",
    warning="#e8a35c",
    error="#e06c75",
    success="#8fbf7f",
    foreground="#d8dee6",
    background="#12161c",
    surface="#181d25",
    panel="#1f2630",
    dark=True,
)

LIGHT = Theme(
    name="conclave-light",
    primary="#2f6299",
    secondary="#5b6f85",
    accent="#a8570c",
    warning="#a8570c",
    error="#b3303c",
    success="#2f7d32",
    foreground="#1d242c",
    background="#fbfaf7",
    surface="#f3f1ec",
    panel="#e8e5dd",
    dark=False,
)

STANDING_BACK = {"muted": 0.65, "faint": 0.55}
"""How much of the colour of letters is in that of a time, or of a line between two days; the rest is of the ground."""


ENDED_EVERY = 2.0
"""A session that could not be ended is tried again every 2 seconds."""

LOGGED_OUT = "You are logged out, and nothing of it is here any more."

NOT_ENDED = (
    f"{LOGGED_OUT} The server did not answer: your session there ends once it does while this program runs, or by"
    " itself some days after its last use, or when you change your password."
)


class Leaving(Ask):
    """Asks whether to leave although something is not sent."""


class ChatApp(App[str]):
    """The chat. It ends with a line that says why, or with ""."""

    CSS_PATH = "chat.tcss"
    TITLE = "conclave"
    COMMANDS: ClassVar = {Doings}
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (60, "-wide")]
    VERTICAL_BREAKPOINTS = [(0, "-low"), (20, "-high")]
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+q", "quit", "Quit", priority=True, key_display="^q")]

    def __init__(self, options: ChatOptions) -> None:
        """Take what a start was told."""
        super().__init__(driver_class=TerminalDriver)
        # Textual makes greys of colours, which are as hard to read on some grounds as the colours were.
        self._filters = [NoColor() if isinstance(each, Monochrome) else each for each in self._filters]
        self._options = options
        self._stack = AsyncExitStack()
        self._account: Account | None = None
        self._last = options
        self.conversation: Conversation | None = None

    def get_css_variables(self) -> dict[str, str]:
        """Add colours for what stands back, in each theme. Textual's own are made for the ground of a whole widget."""
        variables = super().get_css_variables()
        ground, ink = Color.parse(variables["background"]), Color.parse(variables["foreground"])
        return variables | {name: ground.blend(ink, part).hex for name, part in STANDING_BACK.items()}

    async def on_mount(self) -> None:
        """Go on with the last session, or ask who the user is."""
        for theme in (DARK, LIGHT):
            self.register_theme(theme)
        self.theme = DARK.name
        self.set_class(self._options.is_plain, "plain")
        if self._options.is_plain:
            self.animation_level = "none"
        try:
            session = self._options.accounts.last(url=self._options.url, username=self._options.username)
        except SessionFileError as error:
            self.exit(described(error), return_code=1)
            return
        if session:
            await self._begin(session)
        else:
            await self.push_screen(LoginScreen(self._options))

    async def close_conversation(self) -> None:
        """Close connections and files."""
        self.conversation = None
        stack, self._stack = self._stack, AsyncExitStack()
        await stack.aclose()

    async def action_quit(self) -> None:
        """Leave, unless something was typed that is not sent."""
        for screen in self.screen_stack:
            if isinstance(screen, ChatScreen):
                screen.save_unsent()
        unsent = self.conversation.rooms.unsent() if self.conversation else 0
        if unsent and not isinstance(self.screen, Leaving):  # whoever asks twice to leave means it
            is_kept = self.conversation is not None and self.conversation.unsent.is_kept
            kept = (
                "They are sent once you are back." if is_kept else "They are kept nowhere: they are lost if you leave."
            )
            text = f"{unsent} of your messages could not be sent. {kept}"
            await self.push_screen(Leaving("Leave?", text, ("Leave", "Stay"), is_grave=True), self._leave)
        else:
            self.exit("")

    def action_help_quit(self) -> None:
        """Do what Ctrl+C means where nothing is selected: leave the form, or the chat. Dialogs have it themselves."""
        match self.screen:
            case ChatScreen() as screen:
                screen.interrupt()
            case LoginScreen():
                self.exit("")

    def _leave(self, answer: str | None) -> None:
        if answer == "Leave":
            self.exit("")

    async def on_login_screen_done(self, event: LoginScreen.Done) -> None:
        """Begin the conversation."""
        try:
            self._options.accounts.of(event.session).save(event.session)
        except OSError as error:
            self.exit(f"the session cannot be kept: {error}", return_code=1)
        else:
            await self._begin(event.session)

    async def on_chat_screen_logged_out(self, event: ChatScreen.LoggedOut) -> None:
        """Forget everything here."""
        account, session = self._account, self.conversation.client.session if self.conversation else None
        await self._show_only(LoginScreen(self._last, why=LOGGED_OUT if event.has_ended else NOT_ENDED))
        await self.close_conversation()
        if session and not event.has_ended:
            self.run_worker(self._end(session))
        try:
            if account:
                account.forget()
        except (HistoryError, AccountInUseError, OSError, sqlite3.Error) as error:
            self.exit(f"you are logged out, but something is still here: {described(error)}", return_code=1)

    async def _end(self, session: LoginSession) -> None:
        """End a session as soon as the server answers."""
        async with self._options.client(session.url) as client:
            client.resume(session)
            while True:
                try:
                    await client.logout()
                except RefusedError as error:
                    if is_final(error):
                        return
                except ClientError:
                    pass
                else:
                    return
                await asyncio.sleep(ENDED_EVERY)

    async def on_chat_screen_ended(self, event: ChatScreen.Ended) -> None:
        """The session is over, or the disk fails."""
        if not isinstance(event.why, SessionOverError):
            self.exit(described(event.why), return_code=1)
        elif self.conversation:  # more than one task may have noticed
            account, unsent = self._account, self.conversation.rooms.unsent()
            missing = "it waits for that" if self.conversation.unsent.is_kept else "type what is missing anew"
            lost = f" {formatting.count(unsent, 'message')} of yours had not been sent: {missing}."
            why = "Your session is over: log in again." + (lost if unsent else "")
            await self._show_only(LoginScreen(self._last, why=why))
            await self.close_conversation()
            if account:
                account.end_session()

    async def _show_only(self, screen: Screen[None]) -> None:
        """Show a screen, and nothing below it: dialogs go too. What is shown must not be closed before."""
        while len(self.screen_stack) > 1:
            await self.pop_screen()
        await self.push_screen(screen)

    async def _begin(self, session: LoginSession) -> None:
        options = self._options
        self._last = replace(options, url=session.url, username=session.username)
        account = options.accounts.of(session)
        try:
            self._stack.enter_context(account.in_use())
            history = self._stack.enter_context(options.history(account))
            client = await self._stack.enter_async_context(options.client(session.url))
            client.resume(session)
            codec = options.codec(account, session.user_id)
            self._stack.callback(codec.close)
            screen = ChatScreen(is_plain=options.is_plain, calls=options.calls)
            self.conversation = Conversation(client, history, codec, screen)
            screen.conversation = self.conversation
            await self._stack.enter_async_context(self.conversation)
        except (AccountInUseError, HistoryError, KeyStoreError, OSError, sqlite3.Error, ValueError) as error:
            await self.close_conversation()
            self.exit(str(error) if isinstance(error, ValueError) else described(error), return_code=1)
            return
        self._account = account
        account.used()
        await self._show_only(screen)

    def _fatal_error(self) -> None:
        """Leave by an error of the program, without showing the values of its variables: they have texts and tokens."""
        self.exit(described(self._exception), return_code=1)


_EXPECTED = (AccountInUseError, HistoryError, KeyStoreError, SessionFileError, ClientError, OSError)


def described(error: BaseException | None) -> str:
    """Say what went wrong: in a line, or, of an error of the program, where it was, without any value."""
    if isinstance(error, WorkerFailed):
        error = error.error
    if isinstance(error, sqlite3.Error):
        return f"the local history cannot be used: {error}"
    if isinstance(error, _EXPECTED):
        return formatting.harmless(str(error))  # it may be the server's, and goes to the bare terminal
    places = traceback.format_list(traceback.extract_tb(error.__traceback__)) if error else []
    return f"an error of the program, {type(error).__name__}:\n{''.join(places)}".rstrip()
