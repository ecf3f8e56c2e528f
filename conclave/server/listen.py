"""Listens for clients, and closes connections before the process runs out of open files.

A process may have only a limited number of files open, and each connection is one. Without a reserve, a full process
could not open what it needs for itself. Connections are accepted here and not by the event loop: it accepts all that
wait before it tells of the first one, and spins if no descriptor is left.
"""

import asyncio
import errno
import math
import os
import resource
import socket
import ssl
from collections import Counter
from contextlib import AsyncExitStack, suppress

from aiohttp import web

from conclave import app_keys
from conclave.config.addresses import origin
from conclave.health import background
from conclave.health.parts import HealthPart
from conclave.server.behind import Making
from conclave.server.busiest import Busiest
from conclave.server.connection import AHEAD, Connection
from conclave.server.room import Room
from conclave.server.securing import secure
from conclave.wire.cross_origin import CrossOrigin

MOST_FILES = 65_536
"""The limit of open files is raised to at most 65,536. A thousand million, as on some systems, is of no use."""

RESERVED_FILES = 64
"""Clients do not get 64 descriptors: the store, the operators' listener and the worker's pipes need them."""

MOST_OPERATORS = 32
"""The operators' listener has at most 32 connections, of the 64 descriptors above.

Any client that reaches it may connect without a token. Without a bound, silent connections there would turn clients
away, and leave the store none.
"""

ADDRESS_PART, LEAST_OF_ADDRESS = 4, 64
"""Connections from one address without an authenticated request are at most a quarter of all, or 64 if that is less.

So many may come at once after a restart, by a proxy, before the request of the first one is read.
"""

BACKLOG = 1024
"""At most 1,024 connections wait to be accepted. After a restart all streams come back at once."""

ACCEPTED_AT_ONCE = 16
"""At most 16 connections are accepted before others are served. Those that are closed for them go only after that."""

PAUSE_SECONDS = 0.2
"""If no descriptor is left, the next connection is accepted after 0.2 seconds."""

SWEEP_SECONDS = 5.0
"""How often the server looks for connections that have asked for nothing for too long."""

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
    """Return how many connections clients may have, besides the files that are open now.

    ``most_files``: the process's limit.
    """
    least = os.open(os.devnull, os.O_RDONLY)  # the system always gives out the least free descriptor
    os.close(least)
    return max(most_files - RESERVED_FILES, most_files // 2) - least


def of_address(most: int) -> int:
    """Return how many of ``most`` connections may be of one address without an authenticated request."""
    return max(most // ADDRESS_PART, LEAST_OF_ADDRESS)


class Site(web.BaseSite):
    """Listens at an address, and makes room for new connections."""

    def __init__(
        self,
        runner: web.AppRunner,
        address: str,
        port: int,
        most: int,
        tls: ssl.SSLContext | None = None,
        busiest: Busiest | None = None,
        *,
        most_unknown: float = math.inf,
    ) -> None:
        """``runner``: was set up. ``most``: so many connections may be open, event streams too.

        ``most_unknown``: so many of one address that have carried no authenticated request.
        ``busiest``: answers plain requests for messages; None: aiohttp answers all.
        """
        super().__init__(runner, ssl_context=tls, backlog=BACKLOG)
        assert runner.server  # noqa: S101 - it was set up
        self.server = runner.server
        self.clock = runner.app[app_keys.CLOCK]
        self.cross_origin = runner.app.get(app_keys.CROSS_ORIGIN, CrossOrigin())
        self._health = runner.app[app_keys.HEALTH]
        if not isinstance(self.server.request_factory, Making):
            self.server.request_factory = Making(self.server, self.clock, self.cross_origin)
        self._address = address
        self.port = port
        self._tls = tls
        self.busiest = busiest
        self.room = Room(
            most, most_unknown, runner.app.get(app_keys.CLOSED, Counter()), runner.app.get(app_keys.EVENTS)
        )
        self.is_stopping = False
        self.went_on = asyncio.Event()
        """Set whenever a connection is free again, or is lost."""
        self._listening: list[socket.socket] = []
        self._pausing: asyncio.TimerHandle | None = None
        self._sweeping = AsyncExitStack()

    @property
    def name(self) -> str:
        """The address as configured."""
        return f"{self._address} port {self.port}"

    @property
    def open(self) -> dict[Connection, None]:
        """The connections, in the order in which they came. A stream is none any more."""
        return self.room.open

    async def start(self) -> None:
        """Begin to listen. Raises OSError."""
        await super().start()
        found = await asyncio.get_running_loop().getaddrinfo(
            self._address or None, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        try:
            for family, _, _, _, address in dict.fromkeys(found):
                listening = socket.create_server(address, family=family, backlog=BACKLOG)
                listening.settimeout(0)
                self._listening.append(listening)
        except OSError:
            self._close()
            raise
        self._accept_more()
        sweep = background.every(self._health, HealthPart.CONNECTIONS, SWEEP_SECONDS, self._sweep)
        await self._sweeping.enter_async_context(sweep)

    async def stop(self) -> None:
        """Accept no more connections. End those that ask for nothing, wait for what is answered here.

        The rest is left to the runner. Answers under way get STOP_SECONDS.
        """
        self.is_stopping = True
        self._close()
        await self._sweeping.aclose()
        for each in tuple(self.open):
            if each.transport is None:
                each.drop()
            elif each.is_idle:
                each.transport.close()
        await self._answered(STOP_SECONDS)
        for each in self._ahead():
            each.drop()
        if self.busiest:
            self.busiest.give_up()
        await self._answered(STOP_SECONDS)
        if self.busiest:
            await self.busiest.finish(STOP_SECONDS)
        await super().stop()

    def _close(self) -> None:
        """Listen no more."""
        if self._pausing:
            self._pausing.cancel()
        for listening in self._listening:
            asyncio.get_running_loop().remove_reader(listening)
            listening.close()
        self._listening.clear()

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
        """Close the connections that have asked for nothing for too long."""
        self.room.sweep(asyncio.get_running_loop().time())

    async def listen(self) -> str:
        """Begin to listen, and return the URL. Raises OSError."""
        await self.start()
        host, port = self._listening[0].getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        return f"{'https' if self._tls else 'http'}://{shown}:{port}"

    def _accept_more(self) -> None:
        for listening in self._listening:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        """Accept connections that wait."""
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                end, (host, *_) = listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._pause()
                    return
                continue  # that connection has failed already
            address = origin(host, (), ())
            if self.room.make_room(address, asyncio.get_running_loop().time()):
                self._begin(end, address)
            else:
                end.close()

    def _pause(self) -> None:
        """Accept nothing for a while: the system has no descriptor left, or no memory."""
        loop = asyncio.get_running_loop()
        self.room.warn(loop.time())
        self.room.close_idle(loop.time())
        for listening in self._listening:
            loop.remove_reader(listening)
        self._pausing = loop.call_later(PAUSE_SECONDS, self._accept_more)

    def _begin(self, end: socket.socket, address: str) -> None:
        """Begin a connection, with a handshake if it is to be secured."""
        end.settimeout(0)
        connection = Connection(self, address)
        self.room.add(connection)
        connection.beginning = asyncio.get_running_loop().create_task(self._connect(connection, end))
        connection.beginning.add_done_callback(lambda _: self._begun(connection, end))

    async def _connect(self, connection: Connection, end: socket.socket) -> None:
        with suppress(OSError):  # the client is gone, speaks no TLS, or has taken too long
            if self._tls:
                await secure(connection, end, self._tls)
            else:
                await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, end)

    def _begun(self, connection: Connection, end: socket.socket) -> None:
        if connection.beginning:  # it failed or was cancelled, perhaps before it began
            connection.beginning = None
            self.room.forget(connection)
            end.close()
