"""The application: login, conversation, logout, and how it ends."""

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
from conclave.client.chat.accounts import AccountFolder, AccountInUseError
from conclave.client.chat.conversation import Conversation
from conclave.client.chat.dialogs import QuestionDialog
from conclave.client.chat.login import LoginScreen
from conclave.client.chat.options import ChatOptions
from conclave.client.chat.palette import CommandPalette
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

MUTED_COLORS = {"muted": 0.65, "faint": 0.55}
"""Muted colours by their name: the share of the foreground colour, the rest being background."""


LOGOUT_RETRY_SECONDS = 2.0
"""A logout that the server has not answered is retried every 2 seconds."""

LOGGED_OUT = "Logged out. Local messages and keys were erased."

LOGGED_OUT_OFFLINE = (
    f"{LOGGED_OUT} The server did not answer. While this program runs, it keeps trying to end your session there."
    " Otherwise the session expires some days after its last use, or when you change your password."
)


class QuitDialog(QuestionDialog):
    """Asks for confirmation before quitting with unsent messages."""


class ChatApp(App[str]):
    """The chat. Its result is an error message, or ""."""

    CSS_PATH = "chat.tcss"
    TITLE = "conclave"
    COMMANDS: ClassVar = {CommandPalette}
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (60, "-wide")]
    VERTICAL_BREAKPOINTS = [(0, "-low"), (20, "-high")]
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+q", "quit", "Quit", priority=True, key_display="^q")]

    def __init__(self, options: ChatOptions) -> None:
        """Initialise with the options of the command line."""
        super().__init__(driver_class=TerminalDriver)
        # Without colours Textual would use greys, whose contrast is as low as that of the colours.
        self._filters = [NoColor() if isinstance(each, Monochrome) else each for each in self._filters]
        self._options = options
        self._stack = AsyncExitStack()
        self._account: AccountFolder | None = None
        self._last = options
        self.conversation: Conversation | None = None

    def get_css_variables(self) -> dict[str, str]:
        """Add muted colours for each theme. Textual's own assume the background of a whole widget."""
        variables = super().get_css_variables()
        ground, ink = Color.parse(variables["background"]), Color.parse(variables["foreground"])
        return variables | {name: ground.blend(ink, part).hex for name, part in MUTED_COLORS.items()}

    async def on_mount(self) -> None:
        """Continue the last session, or show the login form."""
        for theme in (DARK, LIGHT):
            self.register_theme(theme)
        self.theme = DARK.name
        self.set_class(self._options.is_plain, "plain")
        if self._options.is_plain:
            self.animation_level = "none"
        try:
            session = self._options.accounts.last_session(url=self._options.url, username=self._options.username)
        except SessionFileError as error:
            self.exit(describe(error), return_code=1)
            return
        if session:
            await self._start(session)
        else:
            await self.push_screen(LoginScreen(self._options))

    async def close_conversation(self) -> None:
        """Close connections and files."""
        self.conversation = None
        stack, self._stack = self._stack, AsyncExitStack()
        await stack.aclose()

    async def action_quit(self) -> None:
        """Quit, after a confirmation if messages are unsent."""
        for screen in self.screen_stack:
            if isinstance(screen, ChatScreen):
                screen.save_unsent()
        unsent = self.conversation.rooms.unsent_count() if self.conversation else 0
        if unsent and not isinstance(self.screen, QuitDialog):  # a second Ctrl+Q confirms
            is_saved = self.conversation is not None and self.conversation.unsent.is_saved
            saved = "They will be sent when you return." if is_saved else "They are not saved and will be lost."
            text = f"{formatting.count(unsent, 'message')} not sent yet. {saved}"
            await self.push_screen(QuitDialog("Quit?", text, ("Quit", "Stay"), is_destructive=True), self._quit)
        else:
            self.exit("")

    def action_help_quit(self) -> None:
        """Handle Ctrl+C outside of a selection: quit the login form or the chat. Dialogs have their own binding."""
        match self.screen:
            case ChatScreen() as screen:
                screen.interrupt()
            case LoginScreen():
                self.exit("")

    def _quit(self, answer: str | None) -> None:
        if answer == "Quit":
            self.exit("")

    async def on_login_screen_done(self, event: LoginScreen.Done) -> None:
        """Save the session and start the conversation."""
        try:
            self._options.accounts.for_session(event.session).save(event.session)
        except OSError as error:
            self.exit(f"the session cannot be saved: {error}", return_code=1)
        else:
            await self._start(event.session)

    async def on_chat_screen_logged_out(self, event: ChatScreen.LoggedOut) -> None:
        """Erase everything stored locally, and show the login form."""
        account, session = self._account, self.conversation.client.session if self.conversation else None
        await self._show_only(LoginScreen(self._last, why=LOGGED_OUT if event.has_ended else LOGGED_OUT_OFFLINE))
        await self.close_conversation()
        if session and not event.has_ended:
            self.run_worker(self._retry_logout(session))
        try:
            if account:
                account.erase()
        except (HistoryError, AccountInUseError, OSError, sqlite3.Error) as error:
            self.exit(f"you are logged out, but some local data could not be erased: {describe(error)}", return_code=1)

    async def _retry_logout(self, session: LoginSession) -> None:
        """Retry the logout until the server answers."""
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
                await asyncio.sleep(LOGOUT_RETRY_SECONDS)

    async def on_chat_screen_conversation_ended(self, event: ChatScreen.ConversationEnded) -> None:
        """Show the login form if the session is over; exit on any other error."""
        if not isinstance(event.why, SessionOverError):
            self.exit(describe(event.why), return_code=1)
        elif self.conversation:  # several tasks may report it
            account, unsent = self._account, self.conversation.rooms.unsent_count()
            then = "will be sent after you log in" if self.conversation.unsent.is_saved else "must be typed again"
            lost = f" {formatting.count(unsent, 'unsent message')} {then}."
            why = "Your session has expired. Log in again." + (lost if unsent else "")
            await self._show_only(LoginScreen(self._last, why=why))
            await self.close_conversation()
            if account:
                account.delete_session()

    async def _show_only(self, screen: Screen[None]) -> None:
        """Replace all screens and dialogs by one screen. Close the conversation only afterwards."""
        while len(self.screen_stack) > 1:
            await self.pop_screen()
        await self.push_screen(screen)

    async def _start(self, session: LoginSession) -> None:
        options = self._options
        self._last = replace(options, url=session.url, username=session.username)
        account = options.accounts.for_session(session)
        try:
            self._stack.enter_context(account.locked())
            history = self._stack.enter_context(options.history(account))
            client = await self._stack.enter_async_context(options.client(session.url))
            client.resume(session)
            codec = options.codec(account, session.user_id)
            self._stack.callback(codec.close)
            screen = ChatScreen(is_plain=options.is_plain, notifications=options.notifications)
            self.conversation = Conversation(client, history, codec, screen)
            screen.conversation = self.conversation
            await self._stack.enter_async_context(self.conversation)
        except (AccountInUseError, HistoryError, KeyStoreError, OSError, sqlite3.Error, ValueError) as error:
            await self.close_conversation()
            self.exit(str(error) if isinstance(error, ValueError) else describe(error), return_code=1)
            return
        self._account = account
        account.mark_used()
        await self._show_only(screen)

    def _fatal_error(self) -> None:
        """Exit on a program error without showing the values of variables, which include messages and tokens."""
        self.exit(describe(self._exception), return_code=1)


_EXPECTED = (AccountInUseError, HistoryError, KeyStoreError, SessionFileError, ClientError, OSError)


def describe(error: BaseException | None) -> str:
    """Return a one-line error message; for a program error its location, without values."""
    if isinstance(error, WorkerFailed):
        error = error.error
    if isinstance(error, sqlite3.Error):
        return f"the local history cannot be used: {error}"
    if isinstance(error, _EXPECTED):
        return formatting.sanitize(str(error))  # it may come from the server, and is printed to the terminal
    places = traceback.format_list(traceback.extract_tb(error.__traceback__)) if error else []
    return f"internal error, {type(error).__name__}:\n{''.join(places)}".rstrip()
