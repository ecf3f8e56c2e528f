"""Where the user types: messages, and commands that complete themselves."""

from collections.abc import Callable
from typing import Any

from rich.text import Text
from textual import events
from textual.widgets import TextArea

from conclave.client.chat import commands, formatting, mentions

MOST_REMEMBERED = 50
"""The last 50 commands can be had again. Messages cannot: they are to be forgotten."""


class Composer(TextArea):
    """A field that grows with its text. Enter sends, Alt+Enter begins a new line, Tab completes a command or a name."""

    def __init__(
        self,
        *,
        hands_over: Callable[[str], None],
        does: Callable[[str], bool],
        names: Callable[[], list[str]],
        **others: Any,
    ) -> None:
        """``hands_over``: takes what is to be sent or done. ``does``: does what a key means, if it means something.

        ``names``: of those who can be meant by @name. All are called at once, not by messages: whoever types fast goes
        to another group before a message would have come, and the text would be sent there.
        """
        super().__init__(**others, show_line_numbers=False, highlight_cursor_line=False, compact=True)
        self._hands_over = hands_over
        self._does_elsewhere = does
        self._names = names
        self._given_back: str | None = None
        self._former: list[str] = []
        self._at = 0

    def prefill(self, text: str) -> None:
        """Put a text into the field, with the cursor after it."""
        self.text = text
        self.move_cursor(self.document.end)
        self.focus()

    def give_back(self, line: str) -> None:
        """Put a line that was not taken into the field again, marked: what is typed now takes its place."""
        self._given_back = line
        self.prefill(line)
        self.select_all()

    def get_line(self, line_index: int) -> Text:
        """Return a line as it is drawn: what was pasted, completed or given back may be somebody else's."""
        parts = self.document.get_line(line_index).split("\t")
        return Text("\t".join(map(formatting.visible, parts)), end="", no_wrap=True)

    def send(self) -> None:
        """Hand over what was typed."""
        text = self.text.strip()
        if not text:
            return
        if text.startswith("/") and not commands.has_message(text):
            self._former = [*(each for each in self._former[-MOST_REMEMBERED + 1 :] if each != text), text]
        self._at = len(self._former)
        self.text = ""
        self.history.clear()  # or undo would bring a message back
        self._hands_over(text)

    async def _on_key(self, event: events.Key) -> None:
        """Send, complete, recall, scroll; anything else is typed.

        Not by bindings with priority: those would overtake what was typed just before. Nor by others, as the field has
        for Backspace and the arrows: what is typed just after would overtake them.
        """
        bound = self._bindings.key_to_bindings.get(event.key)
        if self._does(event.key):
            event.stop()
            event.prevent_default()
        elif bound:
            event.stop()
            event.prevent_default()
            await self.run_action(bound[0].action)
        else:
            await super()._on_key(event)

    def _does(self, key: str) -> bool:
        """Do what a key means here. Tell whether it means something."""
        match key:
            case "enter":
                self.send()
            case "alt+enter" | "shift+enter" | "ctrl+j":
                self.insert("\n")
            case "ctrl+c":
                return self._interrupts()
            case "tab":
                return self._completes()
            case "up" | "down":
                return self._recalls(-1 if key == "up" else 1)
            case _:
                return self._does_elsewhere(key)
        return True

    def names_to_come(self) -> list[str]:
        """Return the names that a word at the cursor could become; none if it is no @name, or whole."""
        beginning = self._begun()
        found = mentions.completed(beginning, self._names()) if beginning is not None else []
        return [] if found == [beginning] else found

    def _begun(self) -> str | None:
        row, column = self.cursor_location
        return mentions.begun(self.document.get_line(row)[:column])

    def _completes_name(self, beginning: str) -> bool:
        """Write a name as far as it is sure, and a space after a whole one."""
        found = mentions.completed(beginning, self._names())
        if found:
            row, column = self.cursor_location
            self.replace(mentions.sure(found) + " " * (len(found) == 1), (row, column - len(beginning)), (row, column))
        return bool(found)

    def _completes(self) -> bool:
        if (beginning := self._begun()) is not None:
            return self._completes_name(beginning)
        if not self.text.startswith("/") or " " in self.text:
            return False
        found = commands.matching(self.text)
        if len(found) == 1:
            self.prefill(f"/{found[0].name}{' ' if found[0].takes else ''}")
        return bool(found)

    def _interrupts(self) -> bool:
        """Copy what the user has selected; or else drop what was typed, which Ctrl+Z brings back; or else leave."""
        if self.selected_text and self.text != self._given_back:
            return False
        if not self.text:
            return self._does_elsewhere("ctrl+c")
        self.clear()
        return True

    def _recalls(self, step: int) -> bool:
        """Bring back a former command, if nothing else is being typed."""
        if self.text and self.text not in self._former:
            return False
        at = self._at + step
        if not 0 <= at <= len(self._former):
            return False
        self._at = at
        self.prefill([*self._former, ""][at])
        return True
