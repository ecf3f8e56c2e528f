"""Signals as a process inherits them from its parent: what it takes over, and what it does not.

SIGHUP asks a server for a reload, and never ends the process, from before it starts until it has ended.
"""

import signal
from collections.abc import Callable


def usable() -> None:
    """Let signals come, and let the ends of other processes be known. For the main thread, at the start of a process.

    Blocked signals would never come, and while SIGCHLD is ignored the system tells no exit status. SIGHUP, SIGINT and
    SIGTERM that are ignored stay so: `nohup` wants that, and a script that puts a command into the background.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def that_end() -> list[signal.Signals]:
    """Return the signals that end a server: SIGTERM always, and SIGINT unless this process ignores it."""
    is_ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    return [signal.SIGTERM] if is_ignored else [signal.SIGTERM, signal.SIGINT]


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
