"""Named points at which a test can kill a process or make it fail. Off unless the environment arms one.

``CONCLAVE_FAILPOINT=NAME=ACTION`` arms one point: ``kill`` ends the process as kill -9 does, ``full`` and ``io`` raise
the errors of a full disk and of a broken one. ``ACTION@N``: the Nth time that the point is reached.
"""

import os
import signal
import sqlite3

_ERRORS = {"full": ("database or disk is full", sqlite3.SQLITE_FULL), "io": ("disk I/O error", sqlite3.SQLITE_IOERR)}

_name, _action, _countdown = "", "", 0


def arm(text: str) -> None:
    """Arm the point in ``text``, which has the format of the environment variable. An empty text disarms."""
    global _name, _action, _countdown  # noqa: PLW0603 - a process has one armed point
    _name, _, action = text.partition("=")
    _action, _, after = action.partition("@")
    _countdown = int(after or 1)


def reach(name: str) -> None:
    """Kill the process or raise an error if the point ``name`` is armed."""
    if name == _name:
        _fail()


def _fail() -> None:
    global _countdown  # noqa: PLW0603 - a process has one armed point
    _countdown -= 1
    if _countdown:
        return
    if _action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    text, code = _ERRORS[_action]
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    raise error


arm(os.environ.get("CONCLAVE_FAILPOINT", ""))
