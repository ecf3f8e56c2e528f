"""The input field for messages and commands, with completion."""

from collections.abc import Callable
from typing import Any

from rich.text import Text
from textual import events
from textual.widgets import TextArea

from conclave.client.chat import commands, formatting, mentions

MAX_RECENT = 50
"""The last 50 commands can be recalled. Messages cannot, since they must not outlive their expiry."""


class Composer(TextArea):
    """A text field that grows. Enter sends, Alt+Enter adds a line, Tab completes a command or a name."""

    def __init__(
        self,
        *,
        submit: Callable[[str], None],
        on_key_press: Callable[[str], bool],
        names: Callable[[], list[str]],
        **others: Any,
    ) -> None:
        """``submit``: takes the typed text. ``on_key_press``: handles other keys, and returns whether it did.

        ``names``: returns the names that @name can mention. All are called directly rather than by messages: a fast
        typist may have switched to another group before a message arrives, to which the text would then be sent.
        """
        super().__init__(**others, show_line_numbers=False, highlight_cursor_line=False, compact=True)
        self._submit = submit
        self._on_key_press = on_key_press
        self._names = names
        self._restored: str | None = None
        self._recent: list[str] = []
        self._at = 0

    def prefill(self, text: str) -> None:
        """Set the text, with the cursor at its end."""
        self.text = text
        self.move_cursor(self.document.end)
        self.focus()

    def restore_line(self, line: str) -> None:
        """Restore a rejected line, selected, so that typing replaces it."""
        self._restored = line
        self.prefill(line)
        self.select_all()

    def get_line(self, line_index: int) -> Text:
        """Return a line for drawing. Pasted or completed text may come from other users."""
        parts = self.document.get_line(line_index).split("\t")
        return Text("\t".join(map(formatting.visible, parts)), end="", no_wrap=True)

    def send(self) -> None:
        """Submit the text."""
        text = self.text.strip()
        if not text:
            return
        if text.startswith("/") and not commands.has_message(text):
            self._recent = [*(each for each in self._recent[-MAX_RECENT + 1 :] if each != text), text]
        self._at = len(self._recent)
        self.text = ""
        self.history.clear()  # undo would restore a message
        self._submit(text)

    async def _on_key(self, event: events.Key) -> None:
        """Send, complete, recall, or scroll; insert any other key.

        All keys are handled here, in order. Bindings with priority would overtake keys typed before, and other bindings
        (as TextArea has for Backspace and arrows) would be overtaken by keys typed after.
        """
        bound = self._bindings.key_to_bindings.get(event.key)
        if self._handle(event.key):
            event.stop()
            event.prevent_default()
        elif bound:
            event.stop()
            event.prevent_default()
            await self.run_action(bound[0].action)
        else:
            await super()._on_key(event)

    def _handle(self, key: str) -> bool:
        """Handle a key; return whether it was handled."""
        match key:
            case "enter":
                self.send()
            case "alt+enter" | "shift+enter" | "ctrl+j":
                self.insert("\n")
            case "ctrl+c":
                return self._interrupt()
            case "tab":
                return self._complete()
            case "up" | "down":
                return self._recall(-1 if key == "up" else 1)
            case _:
                return self._on_key_press(key)
        return True

    def name_suggestions(self) -> list[str]:
        """Return the names that could complete the word at the cursor; none if it is complete or not a mention."""
        beginning = self._partial_mention()
        found = mentions.completions(beginning, self._names()) if beginning is not None else []
        return [] if found == [beginning] else found

    def _partial_mention(self) -> str | None:
        row, column = self.cursor_location
        return mentions.partial_mention(self.document.get_line(row)[:column])

    def _complete_name(self, beginning: str) -> bool:
        """Insert the common prefix of the matching names, with a space after a unique one."""
        found = mentions.completions(beginning, self._names())
        if found:
            row, column = self.cursor_location
            self.replace(
                mentions.common_prefix(found) + " " * (len(found) == 1), (row, column - len(beginning)), (row, column)
            )
        return bool(found)

    def _complete(self) -> bool:
        if (beginning := self._partial_mention()) is not None:
            return self._complete_name(beginning)
        if not self.text.startswith("/") or " " in self.text:
            return False
        found = commands.matching(self.text)
        if len(found) == 1:
            self.prefill(f"/{found[0].name}{' ' if found[0].arguments else ''}")
        return bool(found)

    def _interrupt(self) -> bool:
        """Handle Ctrl+C: copy a selection, clear the field, or quit."""
        if self.selected_text and self.text != self._restored:
            return False
        if not self.text:
            return self._on_key_press("ctrl+c")
        self.clear()
        return True

    def _recall(self, step: int) -> bool:
        """Recall a recent command, unless something else is being typed."""
        if self.text and self.text not in self._recent:
            return False
        at = self._at + step
        if not 0 <= at <= len(self._recent):
            return False
        self._at = at
        self.prefill([*self._recent, ""][at])
        return True
