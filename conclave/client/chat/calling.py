"""Calls the user at the terminal: a bell, and a notification of the desktop, with a text only if that is asked for."""

import os
import time
from collections.abc import Callable, Mapping
from enum import StrEnum

from conclave.client.chat import formatting
from conclave.client.events import Message

CALLS_EVERY = 5.0
"""It calls at most every 5 seconds: who comes back after a night is called once."""

MOST_TOLD = 100
"""Of a message 100 characters are told."""

BURNS = "a message that goes once it is read"
"""Told in place of a self-destructing one: a desktop may keep what it was told."""

_BELL, _STRING_END = "\a", "\x1b\\"

_BY_777 = ("rxvt", "foot", "vte")
"""Terminals that know a notification as OSC 777; others know it, if at all, as OSC 9."""


class Calls(StrEnum):
    """How the chat calls: not at all, by the bell, by a notification too, or by one that has the text in it."""

    OFF = "off"
    BELL = "bell"
    DESKTOP = "desktop"
    TEXT = "text"


class Caller:
    """Calls the user, but not all the time."""

    def __init__(
        self, calls: Calls, write: Callable[[str], object], environment: Mapping[str, str] = os.environ
    ) -> None:
        """``write``: writes to the terminal. ``environment``: says which one it is."""
        self._calls = calls
        self._write = write
        self._environment = environment
        self._last = -CALLS_EVERY

    def call(self, who: str, where: str, message: Message) -> None:
        """Call the user; ``who`` has written a message in the group ``where``."""
        now = time.monotonic()
        if self._calls is Calls.OFF or now < self._last + CALLS_EVERY:
            return
        self._last = now
        text = BURNS if message.self_destruct_seconds else message.text
        self._write(sequence(self._calls, f"{who} in {where}: {text or ''}", self._environment))


def sequence(calls: Calls, text: str, environment: Mapping[str, str]) -> str:
    """Return what a terminal is to be told. Nothing of ``text`` can end it, or begin another one."""
    if calls is not Calls.DESKTOP and calls is not Calls.TEXT:
        return _BELL
    told = formatting.harmless(text)[:MOST_TOLD] if calls is Calls.TEXT else "somebody has written to you"
    terminal = environment.get("TERM", "")
    knows_777 = terminal.startswith(_BY_777) or "VTE_VERSION" in environment
    # "conclave" comes first: some terminals take a text that begins with a number for another command.
    notification = f"\x1b]777;notify;conclave;{told}" if knows_777 else f"\x1b]9;conclave: {told}"
    notification += _STRING_END
    if "TMUX" in environment:  # it hands on to its own terminal what is marked so, if it is told to
        doubled = notification.replace("\x1b", "\x1b\x1b")
        notification = f"\x1bPtmux;{doubled}{_STRING_END}"
    return notification + _BELL
