"""Explains why the server cannot listen on an address, and what to do."""

import errno
import os
import socket
from contextlib import suppress
from pathlib import Path

_LISTENING = "0A"
"""The state of a listening socket in /proc/net/tcp."""

FIRST_UNPRIVILEGED_PORT = 1024
"""Ports below 1024 need a privilege."""


class AddressError(Exception):
    """The server cannot listen on an address. The message is one line for the operator."""


def require_address(address: str, port: int) -> None:
    """Raise AddressError unless this machine has ``address``. It does not check whether ``port`` is free."""
    try:
        for family, socket_type, protocol, _, sockaddr in socket.getaddrinfo(
            address, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            with socket.socket(family, socket_type, protocol) as probe:
                probe.bind(sockaddr)
    except OSError as error:
        raise AddressError(f"cannot listen on {address} port {port}: {explain_bind_error(error, port)}") from error


def explain_bind_error(error: OSError, port: int) -> str:
    """Return one line: why the server cannot listen on ``port``, and what to do."""
    if isinstance(error, socket.gaierror):
        return f"{error.strerror}: name an address of this machine"
    reason = os.strerror(error.errno or 0)
    if error.errno == errno.EADDRINUSE:
        return f"{reason}{_listener_name(port)}: stop that process, or set another port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f'{reason}: name an address of this machine, or "0.0.0.0" for all of them'
    if error.errno == errno.EACCES and port < FIRST_UNPRIVILEGED_PORT:
        return (
            f"{reason}: a port below {FIRST_UNPRIVILEGED_PORT} needs a privilege: set another port, or give the server"
            " AmbientCapabilities=CAP_NET_BIND_SERVICE in systemd"
        )
    return reason


def _listener_name(port: int) -> str:
    """Return the name of the process that listens on ``port``, for a message; "" if unknown."""
    sockets = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    for folder in Path("/proc").glob("[0-9]*/fd") if sockets else ():
        with suppress(OSError):  # it has ended, or belongs to another user
            if any(_link_target(each) in sockets for each in folder.iterdir()):
                name = folder.with_name("comm").read_text().strip()
                return f" by process {folder.parent.name} ({name})"
    return ""


def _link_target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:  # it is closed by now
        return ""


def _listening_inodes(port: int) -> list[str]:
    """Return the inodes of the sockets that listen on ``port``, as text."""
    inodes = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                cells = line.split()
                if cells[3] == _LISTENING and int(cells[1].rpartition(":")[2], 16) == port:
                    inodes.append(cells[9])
    return inodes
