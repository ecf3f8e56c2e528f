"""Forms that lose no key, however fast somebody types, or a password manager does."""

from abc import abstractmethod

from textual.binding import Binding, BindingType
from textual.screen import Screen, ScreenResultType
from textual.widgets import Button, Input

FORM_KEYS: list[BindingType] = [
    Binding("enter", "onward", "Next", show=False, priority=True),
    Binding("tab,down", "move(1)", show=False, priority=True),
    Binding("shift+tab,up", "move(-1)", show=False, priority=True),
]
"""They come before what the fields do with a key, and move the focus at once.

Otherwise the keys that follow would still go to the field before: a password into that of the name, for all to see.
"""


class Form(Screen[ScreenResultType]):
    """A screen whose fields are gone through with Enter; from the last one it is handed in."""

    @abstractmethod
    def hand_in(self) -> None:
        """Do what the form is for."""

    def action_onward(self) -> None:
        """Go on to the next field, press the button, or hand the form in."""
        focused = self.focused
        fields = [each for each in self.query(Input) if each.display]
        if isinstance(focused, Button):
            focused.press()
        elif focused is fields[-1]:
            focused.call_later(self.hand_in)  # after what was typed into it
        else:
            self.focus_next()

    def action_move(self, by: int) -> None:
        """Go to the next field or button, or to the one before."""
        if by > 0:
            self.focus_next()
        else:
            self.focus_previous()
