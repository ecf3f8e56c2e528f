"""Asks who the user is, and at which server; opens an account if there is none yet."""

from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.message import Message as UiMessage
from textual.widgets import Button, Footer, Input, Label, Static
from yarl import URL

from conclave.client.api import Client
from conclave.client.chat import formatting
from conclave.client.chat.dialogs import Ask
from conclave.client.chat.forms import FORM_KEYS, Form
from conclave.client.chat.options import LOCAL_URL, ChatOptions
from conclave.client.errors import ClientError, NoAnswerError, ResourceError, WrongPasswordError, describe_error
from conclave.client.session import LoginSession
from conclave.errors import ErrorCode

_LOOPBACK = ("localhost", "127.0.0.1", "::1")

_INTRODUCTION = "Groups that forget on time."


def server_url(text: str) -> str:
    """Return the address that somebody means: without a scheme it is https, on this machine http. Raises ValueError."""
    text = text.strip().rstrip("/")
    if "://" in text:
        return str(URL(text))
    url = URL(f"http://{text}")
    return str(url if url.host in _LOOPBACK else URL(f"https://{text}"))


def is_open(url: str) -> bool:
    """Tell whether passwords and messages would go through a network for everybody to read."""
    parsed = URL(url)
    return parsed.scheme == "http" and parsed.host not in _LOOPBACK


class LoginScreen(Form[None]):
    """A form. Enter goes from field to field, and logs in from the last one."""

    BINDINGS: ClassVar[list[BindingType]] = FORM_KEYS
    AUTO_FOCUS = ""  # or what is typed at once would begin in the wrong field

    class Done(UiMessage):
        """The user is logged in."""

        def __init__(self, session: LoginSession) -> None:
            self.session = session
            super().__init__()

    def __init__(self, options: ChatOptions, *, why: str = "") -> None:
        """``why``: why the user has to log in again."""
        super().__init__()
        self._options = options
        self._why = why

    def compose(self) -> ComposeResult:
        """Put it together."""
        with Vertical(id="login"):
            yield Label("conclave", id="login-name")
            yield Static(Content(self._why or _INTRODUCTION), id="login-why")
            yield Label("Server")
            yield Input(self._options.url or LOCAL_URL, id="server", compact=True, select_on_focus=False)
            yield Label("Name")
            yield Input(self._options.username, id="name", compact=True, max_length=64)
            yield Label("Password")
            yield Input(password=True, id="password", compact=True)
            yield Label("Password, once more", classes="again")
            yield Input(password=True, id="again", classes="again", compact=True)
            yield Label("Registration token, from whoever runs the server", classes="token")
            yield Input(password=True, id="token", classes="token", compact=True)
            yield Static("", id="wrong", classes="wrong")
            with Horizontal(classes="dialog-answers"):
                yield Button("Log in", variant="primary", id="log-in", compact=True)
                yield Button("Create account", id="register", compact=True)
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        """Begin where something is missing."""
        self.query(".token, .again").set(display=False)
        missing = next((each for each in self.query(Input) if not each.value), self.query_one("#password", Input))
        missing.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Warn of an address that everybody can read along at."""
        if event.input.id == "server":
            try:
                warns = is_open(server_url(event.value))
            except ValueError:
                warns = False
            self._say("http:// is not encrypted: whoever is on the way reads your password" if warns else "")

    def hand_in(self) -> None:
        """Log in, or open an account if that was begun."""
        self._enter(is_new=self.query_one("#again", Input).display)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Log in, or open an account and log in."""
        self._enter(is_new=event.button.id == "register")

    @work(exclusive=True)
    async def _enter(self, *, is_new: bool) -> None:
        name, password = self.query_one("#name", Input).value.strip(), self.query_one("#password", Input).value
        if not name or not password:
            self._say("Type your name and your password.")
            return
        again = self.query_one("#again", Input)
        if is_new and not again.display:
            self.query(".again").set(display=True)
            again.focus()
            self._say("Type the password once more: nobody can tell you one that was mistyped.")
            return
        if is_new and again.value != password:
            self._say("The passwords are not the same.")
            return
        self._say("One moment …")
        try:
            client = self._options.client(server_url(self.query_one("#server", Input).value))
        except (ValueError, OSError) as error:
            self._say(str(error))
            return
        try:
            async with client:
                session = await self._session(client, name, password, is_new=is_new)
                if not is_new and not await self._may_take_over(client, session):
                    await client.logout()
                    self._say("Nothing was changed: the other device goes on.")
                    return
        except WrongPasswordError:
            self._say("Name or password is wrong. If you have no account here yet: Create account.")
        except (ClientError, OSError) as error:
            self._refused(error)
        else:
            self.query_one("#password", Input).value = again.value = ""
            self.post_message(self.Done(session))

    async def _session(self, client: Client, name: str, password: str, *, is_new: bool) -> LoginSession:
        if is_new:
            await client.register(name, password, registration_token=self.query_one("#token", Input).value)
        return await client.login(name, password)

    async def _may_take_over(self, client: Client, session: LoginSession) -> bool:
        """Ask before this device takes the place of another one: an account has one device with keys."""
        if self._options.make_codec is None or self._options.accounts.of(session).has_keys:
            return True
        others = [each for each in await client.sessions() if not each.current]
        if not others:
            return True
        last = formatting.date_and_time(max(each.last_used_at for each in others))
        text = (
            f"{formatting.called(session.username)} is logged in elsewhere too, last used {last}. An account has one"
            " device: if you go on, this one gets new keys and takes the place of that one, which can then send and"
            " read nothing. Everybody is told that your key has changed, and what was sent before cannot be read here."
        )
        ask = Ask("Take the place of your other device?", text, ("Take its place", "Cancel"), is_grave=True)
        return await self.app.push_screen_wait(ask) == "Take its place"

    def _refused(self, error: Exception) -> None:
        if isinstance(error, ResourceError) and error.code == ErrorCode.RESOURCE_FORBIDDEN:
            self.query(".token").set(display=True)
            self.query_one("#token", Input).focus()
        hint = " Is the address right, and does the server run?" if isinstance(error, NoAnswerError) else ""
        self._say(f"{describe_error(error)}{hint}")

    def _say(self, text: str) -> None:
        self.query_one("#wrong", Static).update(Content(formatting.harmless(text)))
