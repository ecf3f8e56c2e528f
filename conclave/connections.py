"""How many connections the process takes: as many as it may have files open, less a reserve.

Without a reserve a full process could not open what it needs for itself. And where none at all is free, libuv turns
connections away by means of one that it keeps: if a thread takes that one meanwhile, the event loop spins.
"""

import asyncio
import os
import resource
import ssl

from aiohttp import web

from conclave.logs import get_logger

log = get_logger(__name__)

MOST_FILES = 65_536
"""What the limit is raised to, where it may be; some systems allow a thousand million, which helps nobody."""

RESERVED_FILES = 64
"""Descriptors that clients do not get: for the store, the operators' listener, the cleanup worker's pipes."""

BACKLOG = 1024
"""Connections that may wait to be accepted: after a restart all streams come back at once."""

WARN_EVERY_SECONDS = 60.0


def raise_file_limit() -> int:
    """Let this process have as many files open as the system allows, up to MOST_FILES; return how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST_FILES
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return max(soft, wanted)


def for_clients(most_files: int) -> int:
    """Return how many of ``most_files`` may be open where one more client is let in."""
    return max(most_files - RESERVED_FILES, most_files // 2)


class Site(web.BaseSite):
    """Listens at an address, and closes at once the connections for which there is no descriptor to spare."""

    def __init__(
        self, runner: web.BaseRunner, address: str, port: int, most_files: int, tls: ssl.SSLContext | None = None
    ) -> None:
        """Where ``most_files`` files are open in the process, nobody is let in."""
        super().__init__(runner, ssl_context=tls, backlog=BACKLOG)
        self._address = address
        self._port = port
        self._most_files = most_files
        self._warned_at = -WARN_EVERY_SECONDS

    @property
    def name(self) -> str:
        """The address as configured."""
        return f"{self._address} port {self._port}"

    async def start(self) -> None:
        """Begin to listen. Raises OSError."""
        await super().start()
        self._server = await asyncio.get_running_loop().create_server(
            self._let_in, self._address, self._port, ssl=self._ssl_context, backlog=self._backlog
        )

    async def listen(self) -> str:
        """Begin to listen, and return the URL. Raises OSError."""
        await self.start()
        host, port = self._runner.addresses[0][:2]
        shown = f"[{host}]" if ":" in host else host
        return f"{'https' if self._ssl_context else 'http'}://{shown}:{port}"

    def _let_in(self) -> asyncio.BaseProtocol:
        server = self._runner.server
        if server is not None and self._is_room():
            return server()
        now = asyncio.get_running_loop().time()
        if now >= self._warned_at + WARN_EVERY_SECONDS:
            self._warned_at = now
            log.warning("too_many_connections", open_files=self._most_files)
        return _Refusal()

    def _is_room(self) -> bool:
        """Tell whether few enough files are open: the system gives out the least descriptor that is free."""
        try:
            least = os.open(os.devnull, os.O_RDONLY)
        except OSError:
            return False
        os.close(least)
        return least < self._most_files


class _Refusal(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
