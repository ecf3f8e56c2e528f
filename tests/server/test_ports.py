"""Why an address cannot be listened on: one line, with what to do."""

import errno
import os
import socket

import pytest

from conclave.server.start_check import explain_bind_error


def test_whoever_listens_there_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        told = explain_bind_error(OSError(errno.EADDRINUSE, ""), taken.getsockname()[1])
    assert told.startswith(f"Address already in use by process {os.getpid()} (")
    assert told.endswith("): stop that process, or set another port")


def test_a_port_that_nobody_listens_on_names_nobody() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert (
        explain_bind_error(OSError(errno.EADDRINUSE, ""), port)
        == "Address already in use: stop that process, or set another port"
    )


@pytest.mark.parametrize(
    ("error", "port", "remedy"),
    [
        (OSError(errno.EACCES, ""), 443, "Permission denied: a port below 1024 needs a privilege: set another port"),
        (OSError(errno.EACCES, ""), 8080, "Permission denied"),
        (OSError(errno.EADDRNOTAVAIL, ""), 8080, 'name an address of this machine, or "0.0.0.0" for all of them'),
        (socket.gaierror(-2, "Name or service not known"), 8080, "not known: name an address of this machine"),
        (OSError(errno.EMFILE, ""), 8080, "Too many open files"),
    ],
)
def test_each_reason_has_its_remedy(error: OSError, port: int, remedy: str) -> None:
    assert remedy in explain_bind_error(error, port)
