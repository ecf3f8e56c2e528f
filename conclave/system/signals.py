"""Signal handling: resets the signal settings of the parent process, and handles SIGHUP.

SIGHUP requests a reload. It never ends the process, not even while that starts or ends.
"""

import signal
from collections.abc import Callable


def reset_inherited() -> None:
    """Unblock all signals, and reset SIGCHLD. Call it in the main thread at the start of a process.

    Blocked signals would never be delivered, and while SIGCHLD is ignored no exit status is available. If SIGHUP,
    SIGINT or SIGTERM are ignored, they stay ignored: `nohup` and scripts that start background commands rely on it.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def stop_signals() -> list[signal.Signals]:
    """Return the signals that end a server: SIGTERM always, and SIGINT unless this process ignores it."""
    is_ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    return [signal.SIGTERM] if is_ignored else [signal.SIGTERM, signal.SIGINT]


def ignore_hangup() -> None:
    """Ignore SIGHUP, before the settings are read and while the process ends.

    Unlike a Python handler this stays in effect until the process is gone.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


class Hangups:
    """Handles SIGHUP once it is created. Create it in the main thread."""

    def __init__(self) -> None:
        """Install the handler."""
        self._is_pending = False
        self._handler: Callable[[], object] = self._remember
        signal.signal(signal.SIGHUP, lambda *_: self._handler())

    def set_handler(self, handler: Callable[[], object]) -> None:
        """Call ``handler`` for each SIGHUP, and at once if one has already arrived. It may interrupt any code."""
        self._handler = handler
        if self._is_pending:
            handler()

    def _remember(self) -> None:
        self._is_pending = True
