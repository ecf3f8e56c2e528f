"""Short messages above the input field, which disappear after some seconds. Pure."""

from dataclasses import dataclass, replace

MAX_STATUSES = 3
"""The last 3 messages are shown."""

INFO_SECONDS, ERROR_SECONDS = 8.0, 30.0
"""How long a message is shown while the terminal has the focus."""


@dataclass(frozen=True)
class StatusMessage:
    """A short message. ``left``: how many seconds it is still shown."""

    text: str
    is_error: bool
    left: float


class StatusMessages:
    """The messages that are shown."""

    def __init__(self) -> None:
        """Start without messages."""
        self.all: list[StatusMessage] = []

    def add(self, text: str, *, is_error: bool = False) -> None:
        """Add a message, in place of an earlier one with the same text."""
        others = [each for each in self.all if each.text != text]
        self.all = [*others, StatusMessage(text, is_error, ERROR_SECONDS if is_error else INFO_SECONDS)][-MAX_STATUSES:]

    def has(self, text: str) -> bool:
        """Tell whether a message with this text is shown."""
        return any(each.text == text for each in self.all)

    def clear_info(self) -> bool:
        """Remove all messages but errors, when the user goes on. Return whether any was removed."""
        return self._keep([each for each in self.all if each.is_error])

    def tick(self, seconds: float) -> bool:
        """Subtract elapsed seconds. Return whether a message was removed."""
        self.all = [replace(each, left=each.left - seconds) for each in self.all]
        return self._keep([each for each in self.all if each.left > 0])

    def _keep(self, kept: list[StatusMessage]) -> bool:
        is_less = len(kept) < len(self.all)
        self.all = kept
        return is_less
