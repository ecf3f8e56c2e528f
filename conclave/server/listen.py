"""Listens for clients, and turns connections away before the process runs out of open files.

A process may have only a limited number of files open, and each connection is one. Without a reserve, a full process
could not open what it needs for itself. If no descriptor at all is free, libuv turns connections away with the help of
one that it keeps. If a thread takes that one meanwhile, the event loop spins.
"""

import asyncio
import os
import resource
import ssl

from aiohttp import web

from conclave import app_keys
from conclave.logs.setup import get_logger
from conclave.server.connection import Connection
from conclave.server.fast_path import FastPath

log = get_logger(__name__)

MOST_FILES = 65_536
"""The limit of open files is raised to at most 65,536. A thousand million, as on some systems, helps nobody."""

RESERVED_FILES = 64
"""Clients do not get 64 descriptors: the store, the operators' listener and the worker's pipes need them."""

MOST_OPERATORS = 32
"""The operators' listener has at most 32 connections, of the 64 descriptors above.

Whoever reaches it may connect without a token. Without a bound, silent connections there would turn clients away, and
leave the store none.
"""

BACKLOG = 1024
"""At most 1,024 connections wait to be accepted. After a restart all streams come back at once."""

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
    """Return the number of open files at which clients are turned away. ``most_files``: the process's limit."""
    return max(most_files - RESERVED_FILES, most_files // 2)


class Site(web.BaseSite):
    """Listens at an address. Closes a new connection at once if no descriptor can be spared for it."""

    def __init__(
        self,
        runner: web.BaseRunner,
        address: str,
        port: int,
        most_files: int,
        tls: ssl.SSLContext | None = None,
        fast_path: FastPath | None = None,
        most: int | None = None,
    ) -> None:
        """``most_files``: nobody is let in once the process has this many files open.

        ``fast_path``: answers plain requests for messages; None: all are parsed. ``most``: so many connections at
        most; one that waits with nothing to answer makes room for a new one. None: any number.
        """
        super().__init__(runner, ssl_context=tls, backlog=BACKLOG)
        self._address = address
        self.port = port
        self._most_files = most_files
        self._fast_path = fast_path
        self._most = most
        self._clock = runner.app.get(app_keys.CLOCK) if isinstance(runner, web.AppRunner) else None
        self._open: list[Connection] = []
        self._warned_at = -WARN_EVERY_SECONDS

    @property
    def name(self) -> str:
        """The address as configured."""
        return f"{self._address} port {self.port}"

    async def start(self) -> None:
        """Begin to listen. Raises OSError."""
        await super().start()
        self._server = self._listening = await asyncio.get_running_loop().create_server(
            self._let_in, self._address, self.port, ssl=self._ssl_context, backlog=self._backlog
        )

    async def listen(self) -> str:
        """Begin to listen, and return the URL. Raises OSError."""
        await self.start()
        host, port = self._listening.sockets[0].getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        return f"{'https' if self._ssl_context else 'http'}://{shown}:{port}"

    def _let_in(self) -> asyncio.BaseProtocol:
        server = self._runner.server
        if server is not None and self._is_room() and self._make_room():
            # Not server(): its connections would answer what is not HTTP with pages of aiohttp.
            connection = Connection(server, self._fast_path, self._clock)
            if self._most is not None:
                self._open.append(connection)
            return connection
        now = asyncio.get_running_loop().time()
        if now >= self._warned_at + WARN_EVERY_SECONDS:
            self._warned_at = now
            log.warning("too_many_connections", open_files=self._most_files)
        return _Refusal()

    def _is_room(self) -> bool:
        """Tell whether few enough files are open. The system always gives out the least free descriptor."""
        try:
            least = os.open(os.devnull, os.O_RDONLY)
        except OSError:
            return False
        os.close(least)
        return least < self._most_files

    def _make_room(self) -> bool:
        """Tell whether one more connection may be. The first one that asks for nothing ends for it, if it has to."""
        if self._most is None:
            return True
        self._open = [each for each in self._open if not each.has_ended()]
        if len(self._open) < self._most:
            return True
        idle = next((each for each in self._open if each.asks_for_nothing()), None)
        if idle is None:
            return False
        self._open.remove(idle)
        idle.force_close()
        return True


class _Refusal(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
