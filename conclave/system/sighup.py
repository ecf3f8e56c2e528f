"""SIGHUP in a server: it asks for a reload, and never ends the process, from before it starts until it has ended."""

import signal
from collections.abc import Callable


def ignore() -> None:
    """Let SIGHUP do nothing. Before the settings are read it asks for nothing new, and at the end for nothing more.

    Unlike a handler of Python this holds until the process is gone.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


class Hangups:
    """Notes each SIGHUP from when this is made. For the main thread."""

    def __init__(self) -> None:
        """Begin without any."""
        self._is_noted = False
        self._tell: Callable[[], object] = self._note
        signal.signal(signal.SIGHUP, lambda *_: self._tell())

    def hand_on(self, tell: Callable[[], object]) -> None:
        """Call ``tell`` for each from here on, and now if there was one. It may be called amid anything."""
        self._tell = tell
        if self._is_noted:
            tell()

    def _note(self) -> None:
        self._is_noted = True
