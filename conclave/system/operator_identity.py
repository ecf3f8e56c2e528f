"""Identifies the operator who runs this process: the system user, and the login user before sudo or su."""

import os
import pwd
from collections.abc import Mapping
from pathlib import Path

_LOGIN = Path("/proc/self/loginuid")

_UNSET = 2**32 - 1
"""The login uid of processes without a login, such as services and containers."""


def current(environment: Mapping[str, str] = os.environ, login: Path = _LOGIN) -> str:
    """Return the operator's name for the audit log, such as "operator conclave".

    If another user had logged in: "operator alice as conclave". The kernel keeps the login uid through sudo and su. If
    it has none, SUDO_UID of the environment is used, which can be forged. Users without a name are shown as "uid 1000".
    """
    own = os.geteuid()
    logged_in = _login(login)
    if logged_in is None:
        logged_in = _number(environment.get("SUDO_UID", ""))
    if logged_in is None or logged_in == own:
        return f"operator {_name(own)}"
    return f"operator {_name(logged_in)} as {_name(own)}"


def owner_not_root(path: Path) -> str | None:
    """Return the name of the owner of ``path`` if it is not root and this process runs as root; otherwise None.

    Also None if the file does not exist. Only files that root creates are unusable for the owner.
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
        return None  # not Linux, or hidden by a container
    return None if number == _UNSET else number


def _number(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(_UNSET)) else None


def _name(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except (KeyError, OverflowError):
        return f"uid {number}"
