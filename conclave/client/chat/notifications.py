"""Notifies the user by bell and desktop notification. Message text is included only on request."""

import os
import time
from collections.abc import Callable, Mapping
from enum import StrEnum

from conclave.client.chat import formatting
from conclave.client.events import Message

NOTIFY_SECONDS = 5.0
"""At most one notification every 5 seconds, for example after a night offline."""

MAX_TEXT = 100
"""A notification has at most 100 characters of a message."""

SELF_DESTRUCTING = "a self-destructing message"
"""Replaces the text of self-destructing messages, since a desktop may store notifications."""

_BELL, _STRING_END = "\a", "\x1b\\"

_BY_777 = ("rxvt", "foot", "vte")
"""Terminals with OSC 777 notifications; others support OSC 9, or none."""


class NotificationMode(StrEnum):
    """How to notify: not at all, by bell, by a desktop notification without text, or by one with text."""

    OFF = "off"
    BELL = "bell"
    DESKTOP = "desktop"
    TEXT = "text"


class Notifier:
    """Notifies the user, at a limited rate."""

    def __init__(
        self, mode: NotificationMode, write: Callable[[str], object], environment: Mapping[str, str] = os.environ
    ) -> None:
        """``write``: writes to the terminal. ``environment``: identifies the terminal."""
        self._mode = mode
        self._write = write
        self._environment = environment
        self._last = -NOTIFY_SECONDS

    def notify(self, who: str, where: str, message: Message) -> None:
        """Notify the user that ``who`` has written a message in the group ``where``."""
        now = time.monotonic()
        if self._mode is NotificationMode.OFF or now < self._last + NOTIFY_SECONDS:
            return
        self._last = now
        text = SELF_DESTRUCTING if message.self_destruct_seconds else message.text
        self._write(sequence(self._mode, f"{who} in {where}: {text or ''}", self._environment))


def sequence(mode: NotificationMode, text: str, environment: Mapping[str, str]) -> str:
    """Return the escape sequences for a notification. ``text`` cannot end or start a sequence."""
    if mode is not NotificationMode.DESKTOP and mode is not NotificationMode.TEXT:
        return _BELL
    shown = formatting.sanitize(text)[:MAX_TEXT] if mode is NotificationMode.TEXT else "new message"
    terminal = environment.get("TERM", "")
    has_777 = terminal.startswith(_BY_777) or "VTE_VERSION" in environment
    # "conclave" comes first: some terminals take a text that begins with a number as another command.
    notification = f"\x1b]777;notify;conclave;{shown}" if has_777 else f"\x1b]9;conclave: {shown}"
    notification += _STRING_END
    if "TMUX" in environment:  # wraps it for the outer terminal: allow-passthrough
        doubled = notification.replace("\x1b", "\x1b\x1b")
        notification = f"\x1bPtmux;{doubled}{_STRING_END}"
    return notification + _BELL
