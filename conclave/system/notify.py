"""Notifies a service manager, such as systemd, of the server's state (the sd_notify protocol)."""

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
"""If the manager's socket is full, sending is retried after a quarter of a second."""

MAX_QUEUED = 16
"""At most 16 messages are queued while the manager's socket is full. The oldest are dropped."""

WATCHDOG_RETRY_SECONDS = 1.0
"""After a failed check the watchdog checks again within 1 second."""


class ServiceManager:
    """The service manager that started this process. Errors of the manager do not affect the server.

    Messages are datagrams, sent in order and without blocking: if the socket is full, they are sent later.
    """

    def __init__(self, address: str = "", watchdog_seconds: float = 0.0) -> None:
        """``address``: a path, or ``@`` and an abstract socket's name; empty: there is no manager.

        ``watchdog_seconds``: the watchdog timeout of the manager; 0: no watchdog.
        """
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._watchdog = watchdog_seconds
        self._queue: deque[bytes] = deque(maxlen=MAX_QUEUED)
        self._socket: socket.socket | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._has_failed = False

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str] = os.environ) -> Self:
        """Return the manager named in ``environment``, and remove it there, so that child processes do not get it."""
        address = environment.pop("NOTIFY_SOCKET", "")
        microseconds, pid = environment.pop("WATCHDOG_USEC", ""), environment.pop("WATCHDOG_PID", "")
        is_watched = microseconds.isdecimal() and pid in ("", str(os.getpid()))
        return cls(address, int(microseconds) / 1e6 if is_watched else 0.0)

    def ready(self, status: str) -> None:
        """Notify that the server is serving clients. ``status``: a short description."""
        self._notify("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """Notify that the configuration is being reloaded, until ``ready`` is called."""
        self._notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}", "STATUS=reading the configuration")

    def stopping(self) -> None:
        """Notify that the server is stopping."""
        self._notify("STOPPING=1", "STATUS=stopping: requests under way are finished")

    @asynccontextmanager
    async def watchdog(self, check: Callable[[], Awaitable[object]]) -> AsyncIterator[None]:
        """Send keep-alive messages for the duration of the block, twice per watchdog timeout.

        Each is sent from the event loop after ``check`` has returned. So none is sent while the loop or ``check``
        hangs, or if ``check`` raises.
        """
        task = asyncio.create_task(self._run_watchdog(check)) if self._address and self._watchdog else None
        try:
            yield
        finally:
            if task:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    def close(self) -> None:
        """Stop sending, and close the socket."""
        if self._retry:
            self._retry.cancel()
        if self._socket:
            self._socket.close()
        self._socket = self._retry = None
        self._address = ""

    async def _run_watchdog(self, check: Callable[[], Awaitable[object]]) -> None:
        pause, works = self._watchdog / 2, True
        while True:
            try:
                await check()
            except Exception as error:  # noqa: BLE001 - the manager decides whether to restart after an error
                if works:
                    log.warning("no_sign_of_life", reason=str(error))
                works = False
            else:
                self._notify("WATCHDOG=1")
                works = True
            await asyncio.sleep(pause if works else min(pause, WATCHDOG_RETRY_SECONDS))

    def _notify(self, *fields: str) -> None:
        if self._address:
            # A line break in a value would start another field.
            self._queue.append("\n".join(" ".join(field.split()) for field in fields).encode())
            if not self._retry:
                self._send()

    def _send(self) -> None:
        """Send the queued messages until the socket is full."""
        self._retry = None
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            while self._queue:
                self._socket.sendto(self._queue[0], self._address)
                self._queue.popleft()
        except BlockingIOError:
            self._retry = asyncio.get_running_loop().call_later(RETRY_SECONDS, self._send)
        except (OSError, ValueError) as error:
            self._queue.clear()
            if not self._has_failed:
                log.warning("service_manager_not_told", reason=str(error))
            self._has_failed = True
        else:
            self._has_failed = False
