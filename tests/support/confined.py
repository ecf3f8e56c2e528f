"""Runs a command under the system calls that a systemd unit allows, without systemd: UNIT COMMAND...

Needs systemd-analyze, which knows the names of sets of calls, and libseccomp, by which systemd does the same.
"""

import ctypes
import errno
import os
import re
import shutil
import socket
import subprocess
import sys
from ctypes.util import find_library
from functools import cache
from pathlib import Path

ALLOW, ERRNO = 0x7FFF0000, 0x00050000
EQUAL, MASKED_EQUAL = 4, 7
PROT_WRITE, PROT_EXEC = 2, 4
ADDRESS_FAMILIES = {name: getattr(socket, name) for name in dir(socket) if name.startswith("AF_")}


class Argument(ctypes.Structure):
    """A condition on an argument of a call."""

    _fields_ = [
        ("number", ctypes.c_uint),
        ("comparison", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    ]


def is_possible() -> bool:
    return bool(shutil.which("systemd-analyze") and find_library("seccomp"))


def settings(unit: Path) -> dict[str, list[str]]:
    """Return what a unit sets, by name."""
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r"^(\w+)=(.*)$", unit.read_text(), flags=re.MULTILINE):
        found.setdefault(name, []).append(value)
    return found


@cache
def calls(name: str) -> frozenset[str]:
    """Return the system calls of a set, as of ``@system-service``."""
    if not name.startswith("@"):
        return frozenset({name})
    listed = subprocess.run(
        ["systemd-analyze", "syscall-filter", "--no-pager", name], capture_output=True, text=True, check=True
    )
    lines = (line.strip() for line in listed.stdout.splitlines()[1:])
    return frozenset().union(*(calls(line) for line in lines if line and not line.startswith("#")))


def allowed(unit: Path) -> set[str]:
    """Return the system calls that a unit allows: what is always allowed, and by its lines from first to last."""
    found = set(calls("@default"))
    for line in settings(unit)["SystemCallFilter"]:
        named = set().union(*(calls(name) for name in line.removeprefix("~").split()))
        found = found - named if line.startswith("~") else found | named
    return found


class Filter:
    """A filter of system calls, which binds this process and all that it starts."""

    def __init__(self, default: int) -> None:
        self._library = ctypes.CDLL(find_library("seccomp"))
        self._library.seccomp_init.restype = ctypes.c_void_p
        self._context = ctypes.c_void_p(self._library.seccomp_init(ctypes.c_uint32(default)))

    def add(self, action: int, call: str, *arguments: Argument) -> None:
        """Add a rule. Calls that this machine does not have are left out."""
        number = self._library.seccomp_syscall_resolve_name(call.encode())
        if number < 0:
            return
        conditions = (Argument * len(arguments))(*arguments)
        failed = self._library.seccomp_rule_add_array(
            self._context, ctypes.c_uint32(action), number, len(arguments), conditions
        )
        assert not failed, (call, os.strerror(-failed))

    def load(self) -> None:
        failed = self._library.seccomp_load(self._context)
        assert not failed, os.strerror(-failed)


def confine(unit: Path) -> None:
    """Bind this process by what ``unit`` says of system calls, address families and memory."""
    inner = Filter(ALLOW)
    families = settings(unit)["RestrictAddressFamilies"][0].split()
    for family in sorted({*ADDRESS_FAMILIES} - {*families}):
        condition = Argument(0, EQUAL, ADDRESS_FAMILIES[family], 0)
        inner.add(ERRNO | errno.EAFNOSUPPORT, "socket", condition)
    if settings(unit)["MemoryDenyWriteExecute"] == ["true"]:
        both = PROT_WRITE | PROT_EXEC
        inner.add(ERRNO | errno.EPERM, "mmap", Argument(2, MASKED_EQUAL, both, both))
        inner.add(ERRNO | errno.EPERM, "mprotect", Argument(2, MASKED_EQUAL, PROT_EXEC, PROT_EXEC))
    # What binds by name comes last: it would forbid to load another one.
    names = Filter(ERRNO | errno.EPERM)
    for call in sorted(allowed(unit)):
        names.add(ALLOW, call)
    inner.load()
    names.load()


if __name__ == "__main__":
    confine(Path(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
