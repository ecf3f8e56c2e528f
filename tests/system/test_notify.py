"""What a service manager hears, over a real socket."""

import asyncio
import os
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import structlog.testing

from conclave.system import notify
from conclave.system.notify import ServiceManager


class Manager:
    """A service manager's end of the socket."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self._socket.setblocking(False)

    def heard(self) -> list[str]:
        """What has come since the last time."""
        found = []
        while True:
            try:
                found.append(self._socket.recv(4096).decode())
            except BlockingIOError:
                return found

    async def hears(self, message: str) -> None:
        for _ in range(600):
            if message in self.heard():
                return
            await asyncio.sleep(0.05)
        raise AssertionError(message)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["a file", "a name"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    # The path of a socket has at most 107 bytes.
    address = f"/tmp/notify-{os.getpid()}" if request.param == "a file" else f"@conclave/notify-{os.getpid()}"
    found = Manager(address)
    yield found
    found.close()
    Path(address).unlink(missing_ok=True)


async def nothing() -> None: ...


async def test_messages_come_in_their_order(manager: Manager) -> None:
    told = ServiceManager(manager.address)
    before = time.monotonic_ns() // 1000
    told.ready("serving at\nhttp://localhost\nSTOPPING=1")
    told.reloading()
    told.ready("serving")
    told.stopping()
    first, second, third, fourth = manager.heard()
    told.close()
    assert first == "READY=1\nSTATUS=serving at http://localhost STOPPING=1", "a value is one line"
    reloading, moment, _ = second.split("\n")
    assert reloading == "RELOADING=1"
    assert before <= int(moment.removeprefix("MONOTONIC_USEC=")) <= time.monotonic_ns() // 1000
    assert third == "READY=1\nSTATUS=serving"
    assert fourth.startswith("STOPPING=1\nSTATUS=")


async def test_a_manager_that_is_busy_hears_everything_later(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "RETRY_SECONDS", 0.01)
    told = ServiceManager(manager.address)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as other, suppress(BlockingIOError):
        for _ in range(100_000):  # until its queue is full
            other.sendto(b"", told._address)
    told.reloading()
    told.ready("serving")
    assert told._retry, "its queue is full"
    heard: list[str] = []
    while len(heard) < 2:
        heard += [message for message in manager.heard() if message]
        await asyncio.sleep(0.01)
    told.close()
    assert [message.partition("=")[0] for message in heard] == ["RELOADING", "READY"]


async def test_signs_of_life_come_while_the_loop_goes_round(manager: Manager) -> None:
    told = ServiceManager(manager.address, watchdog_seconds=0.02)
    async with told.watchdog(nothing):
        for _ in range(3):
            await manager.hears("WATCHDOG=1")
        manager.heard()
        time.sleep(0.2)  # the loop hangs
        assert manager.heard() == []
        await manager.hears("WATCHDOG=1")
    manager.heard()
    await asyncio.sleep(0.1)
    assert manager.heard() == []
    told.close()


async def test_no_sign_of_life_comes_while_the_store_cannot_be_read(
    manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "WATCHDOG_RETRY_SECONDS", 0.01)
    works = asyncio.Event()
    tries = 0

    async def look() -> None:
        nonlocal tries
        tries += 1
        if tries < 5:
            raise OSError("Input/output error")
        await works.wait()

    told = ServiceManager(manager.address, watchdog_seconds=0.02)
    with structlog.testing.capture_logs() as logs:
        async with told.watchdog(look):
            while tries < 5:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            assert (tries, manager.heard()) == (5, []), "neither when reading fails nor when it hangs"
            works.set()
            await manager.hears("WATCHDOG=1")
    told.close()
    assert [(line["event"], line["reason"]) for line in logs] == [("no_sign_of_life", "Input/output error")], "once"


@pytest.mark.parametrize("address", ["/nowhere/at-all", "relative\0", "/" + "x" * 200, "vsock:2:1"])
async def test_a_manager_that_cannot_be_told_harms_nobody(address: str) -> None:
    told = ServiceManager(address, watchdog_seconds=0.02)
    with structlog.testing.capture_logs() as logs:
        told.ready("serving")
        async with told.watchdog(nothing):
            await asyncio.sleep(0.1)
        told.stopping()
        told.close()
    assert [line["event"] for line in logs] == ["service_manager_not_told"], "once"


async def test_without_a_manager_there_is_neither_a_socket_nor_a_task() -> None:
    environment = {"PATH": "/bin", "WATCHDOG_USEC": "1000"}
    told = ServiceManager.from_environment(environment)
    tasks = asyncio.all_tasks()
    async with told.watchdog(nothing):
        told.ready("serving")
        told.stopping()
        assert asyncio.all_tasks() == tasks
    assert told._socket is None
    assert environment == {"PATH": "/bin"}


@pytest.mark.parametrize(
    ("microseconds", "pid", "seconds"),
    [
        ("60000000", "own", 60.0),
        ("500000", "", 0.5),
        ("60000000", "1", 0.0),
        ("", "", 0.0),
        ("0", "", 0.0),
        ("-5", "", 0.0),
        ("soon", "", 0.0),
    ],
)
def test_the_watchdog_is_ours_or_off(microseconds: str, pid: str, seconds: float) -> None:
    pid = str(os.getpid()) if pid == "own" else pid
    environment = {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": microseconds, "WATCHDOG_PID": pid}
    told = ServiceManager.from_environment(environment)
    assert (told._address, told._watchdog) == ("/run/x", seconds)
    assert environment == {}, "programs that are started later know nothing of it"
