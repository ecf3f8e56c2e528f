"""Asks the user, and tells what does not fit into a line."""

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Label, OptionList, Static
from textual.widgets.option_list import Option

from conclave.client.chat.command_context import Told
from conclave.client.chat.forms import FORM_KEYS, Form
from conclave.client.events import Message

LOOKED_EVERY = 0.2
"""What is gone vanishes from a list within 0.2 seconds."""


class Ask(ModalScreen[str]):
    """A question with answers, of which the last one is the harmless one. Escape chooses it."""

    AUTO_FOCUS = ""  # or the first answer, which is not harmless, would be the one of Enter for a moment

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,ctrl+c", "give_up", "Cancel"),
        Binding("left", "app.focus_previous", show=False),
        Binding("right", "app.focus_next", show=False),
    ]

    def __init__(self, title: str, text: str, answers: Sequence[str], *, is_grave: bool = False) -> None:
        """``answers``: the words on the buttons."""
        super().__init__()
        self._title, self._text, self._answers, self._is_grave = title, text, answers, is_grave

    def compose(self) -> ComposeResult:
        """Put it together."""
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
        """The harmless answer is the one that Enter gives."""
        self.set_focus(self.query(Button).last())

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Give the answer."""
        self.dismiss(self._answers[int((event.button.id or "answer-0").removeprefix("answer-"))])

    def action_give_up(self) -> None:
        """Give the harmless answer."""
        self.dismiss(self._answers[-1])


class Tell(ModalScreen[None]):
    """A text to read. Escape or Enter puts it away."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,enter,q,ctrl+c", "put_away", "Close")]

    def __init__(self, title: str, text: str | Content) -> None:
        super().__init__()
        self._title, self._text = title, text

    def compose(self) -> ComposeResult:
        """Put it together."""
        with Vertical(classes="dialog tall"):
            yield Label(Content(self._title), classes="dialog-title")
            with VerticalScroll():
                yield Static(Content(self._text) if isinstance(self._text, str) else self._text)
            yield Label("Escape puts this away", classes="dialog-hint")

    def on_mount(self) -> None:
        """Arrows scroll."""
        self.query_one(VerticalScroll).focus()

    def action_put_away(self) -> None:
        """Close it."""
        self.dismiss(None)


class Pick(ModalScreen[Message | None]):
    """Messages to choose from, each with two lines about it. One that is gone vanishes here too."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,ctrl+c", "put_away", "Close")]

    def __init__(self, title: str, look: Callable[[], list[Told]]) -> None:
        """``look``: returns those that are there at the moment."""
        super().__init__()
        self._title, self._look = title, look
        self._shown: list[Told] = []

    def compose(self) -> ComposeResult:
        """Put it together."""
        with Vertical(classes="dialog tall"):
            yield Label(Content(self._title), classes="dialog-title")
            yield OptionList(id="found", compact=True)
            yield Label("Enter goes there, Escape puts this away", classes="dialog-hint")

    def on_mount(self) -> None:
        """Look again all the time."""
        self.set_interval(LOOKED_EVERY, self._show)
        self._show()
        self.query_one(OptionList).focus()

    def _show(self) -> None:
        """Show what is there; what was highlighted stays so."""
        found = self._look()
        if found == self._shown:
            return
        options = self.query_one(OptionList)
        at = options.highlighted or 0
        highlighted = self._shown[at][0] if self._shown else None
        self._shown = found
        told = [Option(Content.assemble((about, "dim"), f"\n{part}")) for _, about, part in found]
        options.set_options(told or [Option("all of it is gone by now", disabled=True)])
        kept = next((index for index, (each, *_) in enumerate(found) if each == highlighted), min(at, len(found) - 1))
        options.highlighted = kept if found else None

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Choose one, if it is still there."""
        chosen = self._shown[event.option_index][0]
        self._show()
        if any(each == chosen for each, *_ in self._shown):
            self.dismiss(chosen)

    def action_put_away(self) -> None:
        """Choose none."""
        self.dismiss(None)


class NewPassword(Form[tuple[str, str] | None], ModalScreen[tuple[str, str] | None]):
    """Asks for the current password, and twice for a new one."""

    BINDINGS: ClassVar[list[BindingType]] = [*FORM_KEYS, Binding("escape,ctrl+c", "give_up", "Cancel")]

    def compose(self) -> ComposeResult:
        """Put it together."""
        with Vertical(classes="dialog"):
            yield Label("Change your password", classes="dialog-title")
            yield Static("All your sessions end, on other devices too. Log in again after it.", classes="dialog-text")
            yield Input(password=True, placeholder="current password", id="current", compact=True)
            yield Input(password=True, placeholder="new password, 8 characters or more", id="new", compact=True)
            yield Input(password=True, placeholder="new password again", id="again", compact=True)
            yield Label("", id="wrong", classes="wrong")
            with Horizontal(classes="dialog-answers"):
                yield Button("Change it", variant="primary", id="change", compact=True)
                yield Button("Cancel", id="cancel", compact=True)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Do what the button says."""
        if event.button.id == "change":
            self.hand_in()
        else:
            self.dismiss(None)

    def action_give_up(self) -> None:
        """Leave it as it is."""
        self.dismiss(None)

    def hand_in(self) -> None:
        """Change it, if the new one was typed twice."""
        current, new, again = (self.query_one(f"#{each}", Input).value for each in ("current", "new", "again"))
        if new != again:
            self.query_one("#wrong", Label).update("The new passwords are not the same.")
            return
        self.dismiss((current, new))
