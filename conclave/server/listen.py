"""Listens for clients, and turns connections away before the process runs out of open files.

A process may have only a limited number of files open, and each connection is one. Without a reserve, a full process
could not open what it needs for itself. If no descriptor at all is free, libuv turns connections away with the help of
one that it keeps. If a thread takes that one meanwhile, the event loop spins.
"""

import asyncio
import os
import resource
import ssl
from contextlib import AsyncExitStack, suppress

from aiohttp import web

from conclave import app_keys
from conclave.health import background
from conclave.health.parts import HealthPart
from conclave.logs.setup import get_logger
from conclave.server.behind import Making
from conclave.server.busiest import Busiest
from conclave.server.connection import AHEAD, FREE, OVER, Connection
from conclave.server.securing import Securing

log = get_logger(__name__)

MOST_FILES = 65_536
"""The limit of open files is raised to at most 65,536. A thousand million, as on some systems, is of no use."""

RESERVED_FILES = 64
"""Clients do not get 64 descriptors: the store, the operators' listener and the worker's pipes need them."""

MOST_OPERATORS = 32
"""The operators' listener has at most 32 connections, of the 64 descriptors above.

Any client that reaches it may connect without a token. Without a bound, silent connections there would turn clients
away, and leave the store none.
"""

BACKLOG = 1024
"""At most 1,024 connections wait to be accepted. After a restart all streams come back at once."""

WARN_EVERY_SECONDS = 60.0

IDLE_SECONDS = 3630.0
"""A connection ends that asks for nothing for an hour, and half a minute: longer than proxies keep theirs."""

SWEEP_SECONDS = 20.0
"""How often that is looked for."""

STOP_SECONDS = 2.0
"""Answers under way get 2 seconds to leave when the server stops. aiohttp's get as many after that."""


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
        runner: web.AppRunner,
        address: str,
        port: int,
        most_files: int,
        tls: ssl.SSLContext | None = None,
        busiest: Busiest | None = None,
        most: int | None = None,
    ) -> None:
        """``runner``: was set up. ``most_files``: no connection is accepted once the process has this many files open.

        ``busiest``: answers plain requests for messages; None: aiohttp answers all. ``most``: so many connections at
        most; one that waits with nothing to answer makes room for a new one. None: any number.
        """
        super().__init__(runner, ssl_context=tls, backlog=BACKLOG)
        assert runner.server  # noqa: S101 - it was set up
        self.server = runner.server
        self.clock = runner.app[app_keys.CLOCK]
        self._health = runner.app[app_keys.HEALTH]
        if not isinstance(self.server.request_factory, Making):
            self.server.request_factory = Making(self.server, self.clock)
        self._address = address
        self.port = port
        self._most_files = most_files
        self._tls = tls
        self.busiest = busiest
        self._most = most
        self.open: dict[Connection, None] = {}
        """The connections, in the order in which they came. A stream is none any more."""
        self.is_stopping = False
        self.went_on = asyncio.Event()
        """Set whenever a connection is free again, or is lost."""
        self._securing: set[asyncio.Task[None]] = set()
        """The handshakes under way."""
        self._listening: asyncio.Server | None = None
        self._sweeping = AsyncExitStack()
        self._warned_at = -WARN_EVERY_SECONDS

    @property
    def name(self) -> str:
        """The address as configured."""
        return f"{self._address} port {self.port}"

    async def start(self) -> None:
        """Begin to listen. Raises OSError."""
        await super().start()
        self._listening = await asyncio.get_running_loop().create_server(
            self._let_in, self._address, self.port, backlog=BACKLOG
        )
        sweep = background.every(self._health, HealthPart.CONNECTIONS, SWEEP_SECONDS, self._sweep)
        if self._most is None:  # otherwise idle ones make room where it is needed
            await self._sweeping.enter_async_context(sweep)

    async def stop(self) -> None:
        """Accept no more connections. End those that ask for nothing, wait for what is answered here.

        The rest is left to the runner. Answers under way get STOP_SECONDS.
        """
        self.is_stopping = True
        if self._listening:
            self._listening.close()
        await self._sweeping.aclose()
        for task in self._securing:
            task.cancel()
        for each in tuple(self.open):
            if each.transport and each.state in (FREE, OVER):
                each.transport.close()
        await self._answered(STOP_SECONDS)
        for each in self._ahead():
            if each.transport:
                each.transport.abort()
        if self.busiest:
            self.busiest.give_up()
        await self._answered(STOP_SECONDS)
        await super().stop()

    def _ahead(self) -> list[Connection]:
        return [each for each in self.open if each.state == AHEAD]

    async def _answered(self, seconds: float) -> None:
        """Wait until everything is answered that is not aiohttp's to answer, for ``seconds`` at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._ahead():
                    self.went_on.clear()
                    await self.went_on.wait()

    async def _sweep(self) -> None:
        """End the connections that have asked for nothing for IDLE_SECONDS."""
        loop = asyncio.get_running_loop()
        for each in tuple(self.open):
            if each.transport and each.state == FREE and each.free_since < loop.time() - IDLE_SECONDS:
                each.transport.close()

    async def listen(self) -> str:
        """Begin to listen, and return the URL. Raises OSError."""
        await self.start()
        assert self._listening  # noqa: S101 - it has started
        host, port = self._listening.sockets[0].getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        return f"{'https' if self._tls else 'http'}://{shown}:{port}"

    def _let_in(self) -> asyncio.BaseProtocol:
        """Decide on a connection that the system has accepted, before any handshake: none is held for long in vain."""
        if not self.is_stopping and self._is_room() and self._make_room():
            connection = Connection(self)
            if self._most is not None:  # otherwise once it is there: after a handshake that fails it never is
                self.open[connection] = None
            if self._tls is None:
                return connection
            return Securing(connection, self._tls, self._most_files, self._securing, lambda: self.is_stopping)
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
        if self._most is None or len(self.open) < self._most:
            return True
        idle = next((each for each in self.open if each.state in (FREE, OVER)), None)
        if idle is None:
            return False
        del self.open[idle]
        idle.is_unwanted = True  # also if it is not there yet
        if idle.transport:
            idle.transport.close()
        return True


class _Refusal(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
