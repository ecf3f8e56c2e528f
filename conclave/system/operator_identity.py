"""Tells which operator runs this process: the system user, and who had logged in before sudo or su."""

import os
import pwd
from collections.abc import Mapping
from pathlib import Path

_LOGIN = Path("/proc/self/loginuid")

_UNSET = 2**32 - 1
"""The kernel's word for: no login. A service or a container has it."""


def current(environment: Mapping[str, str] = os.environ, login: Path = _LOGIN) -> str:
    """Return who runs this process, as the audit log names operators: "operator conclave".

    If another user had logged in: "operator alice as conclave". The kernel remembers who it was, through sudo and su.
    Where it does not, sudo's word counts, which is no proof: it comes from the environment. A user number
    without a name is told as "uid 1000".
    """
    own = os.geteuid()
    logged_in = _login(login)
    if logged_in is None:
        logged_in = _number(environment.get("SUDO_UID", ""))
    if logged_in is None or logged_in == own:
        return f"operator {_name(own)}"
    return f"operator {_name(logged_in)} as {_name(own)}"


def owner_not_root(path: Path) -> str | None:
    """Return the name of the user to whom ``path`` belongs if that is not root, and this process is root's.

    None otherwise, and if there is no such file: only root leaves files behind that the owner cannot use.
    """
    try:
        owner = path.stat().st_uid
    except OSError:
        return None
    return _name(owner).replace("uid ", "#") if owner and os.geteuid() == 0 else None


def _login(path: Path) -> int | None:
    try:
        number = _number(path.read_text())
    except (OSError, UnicodeDecodeError):
        return None  # another system, or a container that hides it
    return None if number == _UNSET else number


def _number(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(_UNSET)) else None


def _name(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except (KeyError, OverflowError):
        return f"uid {number}"
