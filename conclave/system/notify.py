"""Tells a service manager, as systemd, how the server is: serving, reloading, stopping, alive. Without one, nothing."""

import asyncio
import os
import socket
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager, suppress
from typing import Self

from conclave.logs.setup import get_logger

log = get_logger(__name__)

RETRY_SECONDS = 0.25
"""What could not be told, since the manager was busy, is told again a quarter of a second later."""

MOST_WAITING = 16
"""At most 16 messages wait for a manager that is busy. The oldest goes first."""

LOOK_AGAIN_SECONDS = 1.0
"""A server that could not show that it is alive tries again after at most 1 second."""


class ServiceManager:
    """The service manager that has started this process. Nothing that it does or lacks can harm the server.

    Messages are datagrams, in the order in which they are told. None waits for the manager: what it cannot take at
    once is sent later.
    """

    def __init__(self, address: str = "", watchdog_seconds: float = 0.0) -> None:
        """``address``: a path, or ``@`` and a name that is no file; empty: there is no manager.

        ``watchdog_seconds``: for how long the manager waits for a sign of life; 0: it does not.
        """
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._watchdog = watchdog_seconds
        self._waiting: deque[bytes] = deque(maxlen=MOST_WAITING)
        self._socket: socket.socket | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._has_failed = False

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str] = os.environ) -> Self:
        """Return the manager that ``environment`` names, and take it out there, for what is started later."""
        address = environment.pop("NOTIFY_SOCKET", "")
        microseconds, pid = environment.pop("WATCHDOG_USEC", ""), environment.pop("WATCHDOG_PID", "")
        is_watched = microseconds.isdecimal() and pid in ("", str(os.getpid()))
        return cls(address, int(microseconds) / 1e6 if is_watched else 0.0)

    def ready(self, status: str) -> None:
        """Say that clients are served, and in a few words how."""
        self._tell("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """Say that the configuration is read again. ``ready`` says that it is over."""
        self._tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}", "STATUS=reading the configuration")

    def stopping(self) -> None:
        """Say that the server is about to end."""
        self._tell("STOPPING=1", "STATUS=stopping: requests under way are finished")

    @asynccontextmanager
    async def watched(self, look: Callable[[], Awaitable[object]]) -> AsyncIterator[None]:
        """Show signs of life while the block lasts, twice in the time that the manager waits.

        They come from the event loop, each after ``look`` has returned: so none comes while the loop hangs, or while
        ``look`` hangs or raises.
        """
        task = asyncio.create_task(self._live(look)) if self._address and self._watchdog else None
        try:
            yield
        finally:
            if task:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    def close(self) -> None:
        """Say no more."""
        if self._retry:
            self._retry.cancel()
        if self._socket:
            self._socket.close()
        self._socket = self._retry = None
        self._address = ""

    async def _live(self, look: Callable[[], Awaitable[object]]) -> None:
        pause, works = self._watchdog / 2, True
        while True:
            try:
                await look()
            except Exception as error:  # noqa: BLE001 - after any error the manager decides what follows
                if works:
                    log.warning("no_sign_of_life", reason=str(error))
                works = False
            else:
                self._tell("WATCHDOG=1")
                works = True
            await asyncio.sleep(pause if works else min(pause, LOOK_AGAIN_SECONDS))

    def _tell(self, *fields: str) -> None:
        if self._address:
            # A line break in a value would begin another field.
            self._waiting.append("\n".join(" ".join(field.split()) for field in fields).encode())
            if not self._retry:
                self._send()

    def _send(self) -> None:
        """Send what waits, as far as the manager takes it."""
        self._retry = None
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            while self._waiting:
                self._socket.sendto(self._waiting[0], self._address)
                self._waiting.popleft()
        except BlockingIOError:
            self._retry = asyncio.get_running_loop().call_later(RETRY_SECONDS, self._send)
        except (OSError, ValueError) as error:
            self._waiting.clear()
            if not self._has_failed:
                log.warning("service_manager_not_told", reason=str(error))
            self._has_failed = True
        else:
            self._has_failed = False
