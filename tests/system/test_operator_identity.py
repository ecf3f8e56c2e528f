"""Who the audit log says has run a command."""

import os
import pwd
from pathlib import Path

import pytest

from conclave.system import operator_identity

OWN = pwd.getpwuid(os.geteuid()).pw_name
UNSET = str(2**32 - 1)
NOBODYS = 2**31 - 7


def logged_in(folder: Path, number: str) -> Path:
    path = folder / "loginuid"
    path.write_text(number)
    return path


@pytest.mark.parametrize(
    ("login", "environment", "told"),
    [
        (str(os.geteuid()), {}, OWN),
        (UNSET, {}, OWN),
        (str(NOBODYS), {}, f"uid {NOBODYS} as {OWN}"),
        (UNSET, {"SUDO_UID": str(NOBODYS)}, f"uid {NOBODYS} as {OWN}"),
        (UNSET, {"SUDO_UID": str(os.geteuid())}, OWN),
        (str(os.geteuid()), {"SUDO_UID": str(NOBODYS)}, OWN),
        (UNSET, {"SUDO_UID": "root\nadmin"}, OWN),
        (UNSET, {"SUDO_UID": ""}, OWN),
        (UNSET, {"SUDO_UID": "-1"}, OWN),
        (UNSET, {"SUDO_UID": "9" * 400}, OWN),
        (UNSET, {"SUDO_UID": "9999999999"}, f"uid 9999999999 as {OWN}"),
        ("", {}, OWN),
        ("somebody", {}, OWN),
    ],
)
def test_the_kernel_says_who_logged_in_and_sudo_where_it_does_not(
    tmp_path: Path, login: str, environment: dict[str, str], told: str
) -> None:
    assert operator_identity.current(environment, logged_in(tmp_path, login)) == f"operator {told}"


def test_a_system_that_does_not_say_who_logged_in_is_no_error(tmp_path: Path) -> None:
    assert operator_identity.current({}, tmp_path / "missing") == f"operator {OWN}"
    (tmp_path / "odd").write_bytes(b"\xff\xfe")
    assert operator_identity.current({}, tmp_path / "odd") == f"operator {OWN}"


def test_a_user_without_a_name_is_told_by_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs under a number of its own."""
    monkeypatch.setattr(os, "geteuid", lambda: NOBODYS)
    assert operator_identity.current({}, tmp_path / "missing") == f"operator uid {NOBODYS}"
