"""Signals as a process inherits them from its parent: what it takes over, and what it does not."""

import signal


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
