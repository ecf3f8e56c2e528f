"""Listens for clients, and accepts connections.

The event loop's own accept is not used: it accepts all waiting connections before it reports the first, and spins if no
descriptor is left.
"""

import asyncio
import errno
import socket
import ssl
from collections import Counter
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import cast

from aiohttp import web

from conclave import app_keys
from conclave.config.addresses import origin
from conclave.health import background
from conclave.health.parts import HealthPart
from conclave.response_memory import Budget
from conclave.server.client_port.admission import FAST_PATH, Admission, ConnectionLimits
from conclave.server.client_port.connection import ClientConnection
from conclave.server.client_port.delegation import create_request
from conclave.server.client_port.fast_path import FastPath
from conclave.server.client_port.responding import PortState
from conclave.server.tls import handshake
from conclave.wire.response_head import CrossOrigin

BACKLOG = 1024
"""At most 1,024 connections wait to be accepted: after a restart all streams reconnect at once."""

ACCEPTED_AT_ONCE = 16
"""At most 16 connections are accepted in one step: closed connections free their descriptors only after it."""

PAUSE_SECONDS = 0.2
"""The pause in accepting if no descriptor is left."""

SWEEP_SECONDS = 5.0
"""How often the server closes connections that are idle for too long."""

STOP_SECONDS = 2.0
"""At a stop, the fast path has 2 seconds to send its answers, then aiohttp has another 2."""

STOP_POLL_SECONDS = 0.01


class ClientPort(web.BaseSite):
    """Listens at an address, and limits its connections."""

    def __init__(
        self,
        runner: web.AppRunner,
        address: str,
        port: int,
        limits: ConnectionLimits,
        tls: ssl.SSLContext | None = None,
        fast_path: FastPath | None = None,
    ) -> None:
        """``runner``: has been set up. ``fast_path``: if None, aiohttp answers all requests."""
        super().__init__(runner, ssl_context=tls, backlog=BACKLOG)
        assert runner.server  # noqa: S101 - it is set up
        app, self._web_server = runner.app, runner.server
        self._address, self.port = address, port
        self._tls = tls
        self._fast_path = fast_path
        self._health = app[app_keys.HEALTH]
        clock, cross_origin = app[app_keys.CLOCK], app.get(app_keys.CROSS_ORIGIN, CrossOrigin())
        make = self._web_server.request_factory
        self._web_server.request_factory = partial(create_request, make, clock, cross_origin)
        self._admission = Admission(limits, app.get(app_keys.CLOSED_CONNECTIONS, Counter()), app.get(app_keys.EVENTS))
        self._state = PortState(self._admission, app.get(app_keys.BUDGET, Budget(0)), clock, cross_origin)
        self._listeners: list[socket.socket] = []
        self._resume_timer: asyncio.TimerHandle | None = None
        self._sweep_stack = AsyncExitStack()

    @property
    def name(self) -> str:
        """The address as configured."""
        return f"{self._address} port {self.port}"

    @property
    def open(self) -> dict[ClientConnection, None]:
        """The connections in order of acceptance, without streams."""
        return cast(dict[ClientConnection, None], self._admission.open)

    async def listen(self) -> str:
        """Start to listen, and return the URL. Raises OSError."""
        await self.start()
        host, port = self._listeners[0].getsockname()[:2]
        url_host = f"[{host}]" if ":" in host else host
        return f"{'https' if self._tls else 'http'}://{url_host}:{port}"

    async def start(self) -> None:
        """Start to listen. Raises OSError."""
        await super().start()
        addresses = await asyncio.get_running_loop().getaddrinfo(
            self._address or None, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        try:
            for family, _, _, _, address in dict.fromkeys(addresses):
                listener = socket.create_server(address, family=family, backlog=BACKLOG)
                listener.settimeout(0)
                self._listeners.append(listener)
        except OSError:
            self._close()
            raise
        self._accept_more()
        sweep = background.every(self._health, HealthPart.CONNECTIONS, SWEEP_SECONDS, self._sweep)
        await self._sweep_stack.enter_async_context(sweep)

    async def stop(self) -> None:
        """Stop accepting, close idle connections, and wait for the fast path. The runner handles the rest.

        Answers get STOP_SECONDS, and as many again to store watermarks.
        """
        self._state.is_stopping = True
        self._close()
        await self._sweep_stack.aclose()
        for each in tuple(self.open):
            if each.transport is None:
                each.drop()
            elif each.is_idle:
                each.transport.close()
        if self._fast_path:
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_SECONDS):
                    while self._on_fast_path():  # noqa: ASYNC110 - an event would cost each request
                        await asyncio.sleep(STOP_POLL_SECONDS)
            for each in self._on_fast_path():
                each.drop()
            await self._fast_path.finish(STOP_SECONDS)
        await super().stop()

    def _close(self) -> None:
        if self._resume_timer:
            self._resume_timer.cancel()
        for listener in self._listeners:
            asyncio.get_running_loop().remove_reader(listener)
            listener.close()
        self._listeners.clear()

    def _on_fast_path(self) -> list[ClientConnection]:
        return [each for each in self.open if each.state == FAST_PATH]

    async def _sweep(self) -> None:
        self._admission.sweep(asyncio.get_running_loop().time())

    def _accept_more(self) -> None:
        for listener in self._listeners:
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                client_socket, (host, *_) = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._pause()
                    return
                continue  # that connection is already closed
            address = origin(host, (), ())
            if self._admission.admit(address, asyncio.get_running_loop().time()):
                self._begin(client_socket, address)
            else:
                client_socket.close()

    def _pause(self) -> None:
        """Pause accepting: the system has no descriptor or memory left."""
        loop = asyncio.get_running_loop()
        self._admission.warn(loop.time())
        self._admission.close_idle(loop.time())
        for listener in self._listeners:
            loop.remove_reader(listener)
        self._resume_timer = loop.call_later(PAUSE_SECONDS, self._accept_more)

    def _begin(self, client_socket: socket.socket, address: str) -> None:
        """Start a connection on an accepted socket, with a handshake if there is TLS."""
        client_socket.settimeout(0)
        connection = ClientConnection(self._state, address, self._web_server, self._fast_path)
        self._admission.add(connection)
        connection.connecting = asyncio.get_running_loop().create_task(self._connect(connection, client_socket))
        connection.connecting.add_done_callback(lambda _: self._connected(connection, client_socket))

    async def _connect(self, connection: ClientConnection, client_socket: socket.socket) -> None:
        with suppress(OSError):  # the client is gone, does not use TLS, or was too slow
            if self._tls:
                await handshake(client_socket, self._tls, connection, connection.set_raw_transport)
            else:
                await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, client_socket)

    def _connected(self, connection: ClientConnection, client_socket: socket.socket) -> None:
        if connection.connecting:  # it failed or was cancelled
            connection.connecting = None
            self._admission.remove(connection)
            client_socket.close()
