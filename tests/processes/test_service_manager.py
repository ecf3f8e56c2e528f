"""A server process under a service manager: what it hears from start to stop."""

import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.server import ServerProcess, waiting

SQL = '[cleanup]\nengine = "sql"\ndisk_reserve = "0"\n'


@pytest.fixture
def manager() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as found:
        found.bind(f"\0conclave/processes-{os.getpid()}")
        found.setblocking(False)
        yield found


def environment(manager: socket.socket, **more: str) -> dict[str, str]:
    return {"NOTIFY_SOCKET": "@" + manager.getsockname()[1:].decode(), **more}


def heard(manager: socket.socket) -> list[str]:
    found = []
    while True:
        try:
            found.append(manager.recv(4096).decode().partition("\n")[0])
        except BlockingIOError:
            return found


def test_a_manager_hears_of_the_start_of_reloads_and_of_the_stop(tmp_path: Path, manager: socket.socket) -> None:
    with ServerProcess(tmp_path, SQL, env=environment(manager)) as server:
        told: list[str] = []
        for count in (1, 3, 5):
            for _ in waiting("READY=1"):
                told += heard(manager)
                if len(told) >= count:
                    break
            if count == 3:
                server.config.write_text("nonsense = 1\n")  # a reload that is refused ends too
            if count < 5:
                server.process.send_signal(signal.SIGHUP)
        assert server.stop()[0] == 0
        told += heard(manager)
        assert told == ["READY=1", *("RELOADING=1", "READY=1") * 2, "STOPPING=1"]
        names = [event["event"] for event in server.events()]
        assert names.count("reloaded") == 1
        assert "reload_refused" in names


def test_a_server_that_hangs_shows_no_sign_of_life(tmp_path: Path, manager: socket.socket) -> None:
    with ServerProcess(tmp_path, SQL, env=environment(manager, WATCHDOG_USEC="200000")) as server:
        for _ in waiting("signs of life"):
            if heard(manager).count("WATCHDOG=1"):
                break
        server.process.send_signal(signal.SIGSTOP)
        for _ in waiting("silence"):
            if not heard(manager):
                break
        assert heard(manager) == []
        server.process.send_signal(signal.SIGCONT)
        for _ in waiting("signs of life"):
            if "WATCHDOG=1" in heard(manager):
                break
        assert server.stop()[0] == 0


def test_the_worker_knows_nothing_of_the_manager(tmp_path: Path, manager: socket.socket) -> None:
    with ServerProcess(tmp_path, SQL, env=environment(manager, WATCHDOG_USEC="60000000")) as server:
        server.wait_for("cleanup_run")
        for process in server.descendants():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a worker ends once its run is over
                environ = Path(f"/proc/{process}/environ").read_bytes()
                assert b"NOTIFY_SOCKET" not in environ
                assert b"WATCHDOG_USEC" not in environ
