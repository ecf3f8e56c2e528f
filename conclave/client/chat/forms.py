"""Forms that handle keys in order, however fast they are typed, for example by a password manager."""

from abc import abstractmethod

from textual.binding import Binding, BindingType
from textual.screen import Screen, ScreenResultType
from textual.widgets import Button, Input

FORM_KEYS: list[BindingType] = [
    Binding("enter", "onward", "Next", show=False, priority=True),
    Binding("tab,down", "move(1)", show=False, priority=True),
    Binding("shift+tab,up", "move(-1)", show=False, priority=True),
]
"""Bindings with priority over those of the fields, which move the focus at once.

Otherwise keys typed after Tab would go to the previous field: a password into the visible name field.
"""


class FormScreen(Screen[ScreenResultType]):
    """A screen with fields. Enter goes to the next one, and submits from the last one."""

    @abstractmethod
    def submit_form(self) -> None:
        """Submit the form."""

    def action_onward(self) -> None:
        """Go to the next field, press the focused button, or submit."""
        focused = self.focused
        fields = [each for each in self.query(Input) if each.display]
        if isinstance(focused, Button):
            focused.press()
        elif focused is fields[-1]:
            focused.call_later(self.submit_form)  # after what was typed into it
        else:
            self.focus_next()

    def action_move(self, by: int) -> None:
        """Go to the next or the previous field or button."""
        if by > 0:
            self.focus_next()
        else:
            self.focus_previous()
