"""Dialogs: questions, texts, lists of messages, and the password form."""

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Label, OptionList, Static
from textual.widgets.option_list import Option

from conclave.client.chat.command_context import MessageChoice
from conclave.client.chat.forms import FORM_KEYS, FormScreen
from conclave.client.events import Message

REFRESH_SECONDS = 0.2
"""Expired messages disappear from a list within 0.2 seconds."""


class QuestionDialog(ModalScreen[str]):
    """A question with answers. The last one is harmless, and is the answer of Escape and, at first, Enter."""

    AUTO_FOCUS = ""  # otherwise the first answer would briefly have the focus

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,ctrl+c", "cancel", "Cancel"),
        Binding("left", "app.focus_previous", show=False),
        Binding("right", "app.focus_next", show=False),
    ]

    def __init__(self, title: str, text: str, answers: Sequence[str], *, is_destructive: bool = False) -> None:
        """``answers``: the labels of the buttons."""
        super().__init__()
        self._title, self._text, self._answers, self._is_grave = title, text, answers, is_destructive

    def compose(self) -> ComposeResult:
        """Create the widgets."""
        with Vertical(classes="dialog"):
            yield Label(Content(self._title), classes="dialog-title")
            yield Static(Content(self._text), classes="dialog-text")
            with Horizontal(classes="dialog-answers"):
                for index, answer in enumerate(self._answers):
                    button = Button(Content(answer), id=f"answer-{index}", compact=True)
                    if index == 0:
                        button.variant = "error" if self._is_grave else "primary"
                    yield button

    def on_mount(self) -> None:
        """Focus the harmless answer."""
        self.set_focus(self.query(Button).last())

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Return the answer."""
        self.dismiss(self._answers[int((event.button.id or "answer-0").removeprefix("answer-"))])

    def action_cancel(self) -> None:
        """Return the harmless answer."""
        self.dismiss(self._answers[-1])


class TextDialog(ModalScreen[None]):
    """A text to read. Escape or Enter closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,enter,q,ctrl+c", "close_dialog", "Close")]

    def __init__(self, title: str, text: str | Content) -> None:
        super().__init__()
        self._title, self._text = title, text

    def compose(self) -> ComposeResult:
        """Create the widgets."""
        with Vertical(classes="dialog tall"):
            yield Label(Content(self._title), classes="dialog-title")
            with VerticalScroll():
                yield Static(Content(self._text) if isinstance(self._text, str) else self._text)
            yield Label("Press Escape to close", classes="dialog-hint")

    def on_mount(self) -> None:
        """Focus the text, so that arrows scroll."""
        self.query_one(VerticalScroll).focus()

    def action_close_dialog(self) -> None:
        """Close the dialog."""
        self.dismiss(None)


class MessagePicker(ModalScreen[Message | None]):
    """A list of messages to choose from, two lines each. Messages that expire are removed from it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,ctrl+c", "close_dialog", "Close")]

    def __init__(self, title: str, look: Callable[[], list[MessageChoice]]) -> None:
        """``look``: returns the messages that still exist."""
        super().__init__()
        self._title, self._look = title, look
        self._shown: list[MessageChoice] = []

    def compose(self) -> ComposeResult:
        """Create the widgets."""
        with Vertical(classes="dialog tall"):
            yield Label(Content(self._title), classes="dialog-title")
            yield OptionList(id="found", compact=True)
            yield Label("Enter opens, Escape closes", classes="dialog-hint")

    def on_mount(self) -> None:
        """Update the list periodically."""
        self.set_interval(REFRESH_SECONDS, self._show)
        self._show()
        self.query_one(OptionList).focus()

    def _show(self) -> None:
        """Update the list. The highlighted message stays highlighted."""
        found = self._look()
        if found == self._shown:
            return
        options = self.query_one(OptionList)
        at = options.highlighted or 0
        highlighted = self._shown[at][0] if self._shown else None
        self._shown = found
        rows = [Option(Content.assemble((about, "dim"), f"\n{part}")) for _, about, part in found]
        options.set_options(rows or [Option("no longer available", disabled=True)])
        kept = next((index for index, (each, *_) in enumerate(found) if each == highlighted), min(at, len(found) - 1))
        options.highlighted = kept if found else None

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Return the chosen message, if it still exists."""
        chosen = self._shown[event.option_index][0]
        self._show()
        if any(each == chosen for each, *_ in self._shown):
            self.dismiss(chosen)

    def action_close_dialog(self) -> None:
        """Return no message."""
        self.dismiss(None)


class PasswordDialog(FormScreen[tuple[str, str] | None], ModalScreen[tuple[str, str] | None]):
    """Asks for the current password, and twice for a new one."""

    BINDINGS: ClassVar[list[BindingType]] = [*FORM_KEYS, Binding("escape,ctrl+c", "cancel", "Cancel")]

    def compose(self) -> ComposeResult:
        """Create the widgets."""
        with Vertical(classes="dialog"):
            yield Label("Change password", classes="dialog-title")
            yield Static("You will be logged out on all devices, including this one.", classes="dialog-text")
            yield Input(password=True, placeholder="current password", id="current", compact=True)
            yield Input(password=True, placeholder="new password, at least 8 characters", id="new", compact=True)
            yield Input(password=True, placeholder="repeat the new password", id="again", compact=True)
            yield Label("", id="wrong", classes="wrong")
            with Horizontal(classes="dialog-answers"):
                yield Button("Change", variant="primary", id="change", compact=True)
                yield Button("Cancel", id="cancel", compact=True)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Submit or cancel."""
        if event.button.id == "change":
            self.submit_form()
        else:
            self.dismiss(None)

    def action_cancel(self) -> None:
        """Cancel."""
        self.dismiss(None)

    def submit_form(self) -> None:
        """Return both passwords if the repetition matches."""
        current, new, again = (self.query_one(f"#{each}", Input).value for each in ("current", "new", "again"))
        if new != again:
            self.query_one("#wrong", Label).update("The new passwords do not match.")
            return
        self.dismiss((current, new))
