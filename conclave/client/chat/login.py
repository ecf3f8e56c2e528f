"""The form for server, name and password, which logs in or creates an account."""

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
from conclave.client.chat.dialogs import QuestionDialog
from conclave.client.chat.forms import FORM_KEYS, FormScreen
from conclave.client.chat.options import LOCAL_URL, ChatOptions
from conclave.client.errors import ClientError, NoAnswerError, ResourceError, WrongPasswordError, describe_error
from conclave.client.session import LoginSession
from conclave.errors import ErrorCode

_LOOPBACK = ("localhost", "127.0.0.1", "::1")

_INTRODUCTION = "Group messages that expire on time."


def server_url(text: str) -> str:
    """Return the URL of a server address. The default scheme is https, or http for this machine. Raises ValueError."""
    text = text.strip().rstrip("/")
    if "://" in text:
        return str(URL(text))
    url = URL(f"http://{text}")
    return str(url if url.host in _LOOPBACK else URL(f"https://{text}"))


def is_insecure(url: str) -> bool:
    """Tell whether passwords and messages would cross a network unencrypted."""
    parsed = URL(url)
    return parsed.scheme == "http" and parsed.host not in _LOOPBACK


class LoginScreen(FormScreen[None]):
    """The login form. Enter goes to the next field, and submits from the last one."""

    BINDINGS: ClassVar[list[BindingType]] = FORM_KEYS
    AUTO_FOCUS = ""  # otherwise early keys would go to the wrong field

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
        """Create the widgets."""
        with Vertical(id="login"):
            yield Label("conclave", id="login-name")
            yield Static(Content(self._why or _INTRODUCTION), id="login-why")
            yield Label("Server")
            yield Input(self._options.url or LOCAL_URL, id="server", compact=True, select_on_focus=False)
            yield Label("Name")
            yield Input(self._options.username, id="name", compact=True, max_length=64)
            yield Label("Password")
            yield Input(password=True, id="password", compact=True)
            yield Label("Repeat password", classes="again")
            yield Input(password=True, id="again", classes="again", compact=True)
            yield Label("Registration token (from the operator of the server)", classes="token")
            yield Input(password=True, id="token", classes="token", compact=True)
            yield Static("", id="wrong", classes="wrong")
            with Horizontal(classes="dialog-answers"):
                yield Button("Log in", variant="primary", id="log-in", compact=True)
                yield Button("Create account", id="register", compact=True)
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        """Focus the first empty field."""
        self.query(".token, .again").set(display=False)
        missing = next((each for each in self.query(Input) if not each.value), self.query_one("#password", Input))
        missing.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Warn about an unencrypted connection."""
        if event.input.id == "server":
            try:
                warns = is_insecure(server_url(event.value))
            except ValueError:
                warns = False
            self._show("http:// is not encrypted: your password can be read on the way" if warns else "")

    def submit_form(self) -> None:
        """Log in, or create the account if that was started."""
        self._submit(is_new=self.query_one("#again", Input).display)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Log in, or create an account and log in."""
        self._submit(is_new=event.button.id == "register")

    @work(exclusive=True)
    async def _submit(self, *, is_new: bool) -> None:
        name, password = self.query_one("#name", Input).value.strip(), self.query_one("#password", Input).value
        if not name or not password:
            self._show("Enter your name and password.")
            return
        again = self.query_one("#again", Input)
        if is_new and not again.display:
            self.query(".again").set(display=True)
            again.focus()
            self._show("Repeat the password: a mistyped password cannot be recovered.")
            return
        if is_new and again.value != password:
            self._show("The passwords do not match.")
            return
        self._show("Connecting …")
        try:
            client = self._options.client(server_url(self.query_one("#server", Input).value))
        except (ValueError, OSError) as error:
            self._show(str(error))
            return
        try:
            async with client:
                session = await self._session(client, name, password, is_new=is_new)
                if not is_new and not await self._confirm_replacement(client, session):
                    await client.logout()
                    self._show("Cancelled. Your other device is unchanged.")
                    return
        except WrongPasswordError:
            self._show("Wrong name or password. If you have no account yet, choose Create account.")
        except (ClientError, OSError) as error:
            self._show_error(error)
        else:
            self.query_one("#password", Input).value = again.value = ""
            self.post_message(self.Done(session))

    async def _session(self, client: Client, name: str, password: str, *, is_new: bool) -> LoginSession:
        if is_new:
            await client.register(name, password, registration_token=self.query_one("#token", Input).value)
        return await client.login(name, password)

    async def _confirm_replacement(self, client: Client, session: LoginSession) -> bool:
        """Ask before this device replaces another one: an account has one device with keys."""
        if self._options.make_codec is None or self._options.accounts.for_session(session).has_keys:
            return True
        others = [each for each in await client.sessions() if not each.current]
        if not others:
            return True
        last = formatting.date_and_time(max(each.last_used_at for each in others))
        text = (
            f"{formatting.display_name(session.username)} is also logged in on another device, last used {last}. An"
            " account can be used on one device only. If you continue, this device gets new keys, and the other one"
            " can no longer send or read. Other members are notified of the key change. Earlier messages cannot be"
            " read here."
        )
        dialog = QuestionDialog("Replace your other device?", text, ("Replace", "Cancel"), is_destructive=True)
        return await self.app.push_screen_wait(dialog) == "Replace"

    def _show_error(self, error: Exception) -> None:
        if isinstance(error, ResourceError) and error.code == ErrorCode.RESOURCE_FORBIDDEN:
            self.query(".token").set(display=True)
            self.query_one("#token", Input).focus()
        hint = " Check the address, and that the server is running." if isinstance(error, NoAnswerError) else ""
        self._show(f"{describe_error(error)}{hint}")

    def _show(self, text: str) -> None:
        self.query_one("#wrong", Static).update(Content(formatting.sanitize(text)))
