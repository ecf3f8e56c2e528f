"""A client's connection: splits its bytes into requests, answered by the fast path or by aiohttp.

Requests are answered one after the other. Bytes after an unanswered request are buffered, and reading pauses.
"""

import asyncio
import socket
from collections.abc import Iterable
from typing import Any, cast

from aiohttp import web

from conclave.errors import ApiError, BadRequestError, UnsupportedCodingError
from conclave.logs.setup import get_logger
from conclave.server.client_port import framing
from conclave.server.client_port.admission import CLOSED, DELEGATED, FAST_PATH, IDLE
from conclave.server.client_port.delegation import MALFORMED, AiohttpHandler
from conclave.server.client_port.fast_path import FastPath, FastRequest
from conclave.server.client_port.framing import MalformedRequestError, RequestHead, RequestScanner, UnknownCodingError
from conclave.server.client_port.responding import PortState, RespondingConnection
from conclave.server.middleware import new_request_id
from conclave.wire import response_head
from conclave.wire.exchange import error_response
from conclave.wire.formats import Format
from conclave.wire.handover import BARE_TRANSPORT, CONNECTION

log = get_logger(__name__)

READ_BYTES = 32 * 1024
"""At most 32 KiB are read at a time, and buffered behind a request in progress."""

HEAD_SECONDS = 60.0
"""A head may take a minute from its first byte."""

LINGER_SECONDS = 2.0
"""If a request is rejected before all of it has arrived, its client may continue to send for 2 seconds."""

_BUFFER = memoryview(bytearray(READ_BYTES))
"""The read buffer of all connections: each copies its bytes at once."""

_DETACHED = asyncio.BufferedProtocol()
"""uvloop caches the methods of a transport's buffered protocol. Setting this one in between clears the cache."""


class ClientConnection(RespondingConnection):
    """A connection to a client."""

    __slots__ = (
        *("_buffered_data", "_fast_path", "_handler", "_is_paused", "_pauses_for_handler"),
        *("_scanner", "_server", "_timer"),
    )

    def __init__(self, port: PortState, address: str, server: web.Server, fast_path: FastPath | None) -> None:
        """``server``: answers all requests except the fast path's. ``address``: as ``addresses.origin`` returns it."""
        super().__init__(port, address)
        self._server = server
        self._fast_path = fast_path
        self._handler: AiohttpHandler | None = None
        self._buffered_data = b""
        self._scanner: RequestScanner | None = None  # checks an incomplete head
        self._is_paused = self._pauses_for_handler = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport; close it if the server is stopping."""
        self.transport = transport  # type: ignore[assignment] # uvloop's only look like asyncio's
        self.connecting = None
        if client_socket := transport.get_extra_info("socket"):
            client_socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if self.port.is_stopping:
            transport.close()

    def get_buffer(self, _sizehint: int) -> memoryview:
        """Return the buffer to read into."""
        return _BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        """Process the bytes that were read."""
        data = bytes(_BUFFER[:nbytes])
        if self.state == IDLE:
            self._take_request(self._buffered_data + data if self._buffered_data else data)
        elif self.state == DELEGATED and self._handler and self._handler.expects_body:
            self._buffered_data = self._handler.take_body(data)
            self._read_or_pause()
        elif self.state != CLOSED:
            self._buffered_data += data
            if self._acknowledgement:
                self._acknowledgement.poll()  # a client's next request acknowledges the response before
            self._read_or_pause()

    def _take_request(self, data: bytes) -> None:
        """Start the first request of ``data``, and buffer the rest. Only for an idle connection."""
        if data[0] in b"\r\n":  # empty lines may separate requests
            data = data.lstrip(b"\r\n")
        end = data.find(framing.END) + len(framing.END)
        try:
            if end < len(framing.END):
                self._hold_head(data)
                return
            self._stop_waiting_for_head()
            text = data[:end]
            fast_path = self._fast_path
            head, request = fast_path.read_head(text, self) if fast_path else (framing.measure(text), None)
            size = end + (head.length or 0)
            if request and len(data) >= size:
                self.state, self._buffered_data = FAST_PATH, data[size:]
                self._loop.call_soon(self._answer_fast, request, data[:size], head)
            else:
                self._buffered_data = self._delegate(data, head, size)
        except UnknownCodingError as error:
            self._refuse(error, UnsupportedCodingError())
        except MalformedRequestError as error:
            self._refuse(error, BadRequestError(MALFORMED))
        finally:
            if self._buffered_data or self._is_paused:
                self._read_or_pause()

    def _hold_head(self, data: bytes) -> None:
        """Buffer an incomplete head. Raises MalformedRequestError as soon as it cannot become valid."""
        checked_bytes = len(self._buffered_data) if self._scanner else 0
        self._buffered_data = data
        if not data:
            return
        if not self._scanner:
            self._scanner = RequestScanner()
            self._timer = self._loop.call_later(HEAD_SECONDS, self._time_out_head)
        if len(data) > framing.MAX_HEAD_BYTES:
            raise MalformedRequestError("too long")
        self._scanner.feed(data[checked_bytes:])

    def _stop_waiting_for_head(self) -> None:
        self._scanner, self._buffered_data = None, b""
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def _time_out_head(self) -> None:
        text = f"the head of the request has not arrived within {HEAD_SECONDS:g} seconds"
        self._refuse(TimeoutError(), BadRequestError(text))

    def _answer_fast(self, request: FastRequest, data: bytes, head: RequestHead) -> None:
        """Answer a request by the fast path, else by aiohttp. In a separate step, see ``FastPath.take``."""
        if self._fast_path and not self._fast_path.take(request, data[len(data) - (head.length or 0) :]):
            self._delegate(data, head, len(data))

    def _delegate(self, data: bytes, head: RequestHead, size: int) -> bytes:
        """Pass a request of ``size`` bytes to aiohttp. Return the following bytes. Raises MalformedRequestError."""
        self.state = DELEGATED
        if self.transport is None or self.transport.is_closing():
            return b""
        if self._handler is None:
            delegated_transport = cast(asyncio.Transport, _DelegatedTransport(self, self.transport))
            self._handler = AiohttpHandler(self._server, self, delegated_transport)
            if self._writable:
                self._handler.pause_writing()
        return self._handler.take(data, head, size)

    def next_request(self) -> None:
        """Start the next request if it has arrived, or close the connection if that is due."""
        if self.state == CLOSED:
            return
        self.state, self.idle_since, self._response_task, self._acknowledgement = IDLE, self._loop.time(), None, None
        self.port.admission.mark_idle(self)
        if self.transport is None or self.transport.is_closing():
            return
        if self._buffered_data and not self.port.is_stopping:
            self._take_request(self._buffered_data)
        elif self._is_paused:
            self._read_or_pause()
        if self.state == IDLE and (self.port.is_stopping or self.is_half_closed):
            self.transport.close()

    def eof_received(self) -> bool:
        """Record that the client has ended its side. Complete requests are still answered.

        TLS cannot end one direction alone.
        """
        self.is_half_closed = True
        if self._acknowledgement:
            self._acknowledgement.poll(is_last=True)
        if self.transport is None or self.transport.get_extra_info("sslcontext"):
            return False
        if self.state == DELEGATED:
            return self._handler is not None and self._handler.has_whole_request
        return self.state == FAST_PATH

    def _read_or_pause(self) -> None:
        """Pause reading while bytes are buffered or aiohttp has enough of the body, else resume."""
        transport = self.transport
        pauses = self._pauses_for_handler or (bool(self._buffered_data) and self.state != IDLE)
        if pauses is self._is_paused or transport is None or transport.is_closing() or self.is_half_closed:
            return
        self._is_paused = pauses
        if pauses:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def pause(self) -> None:
        """Pause reading: aiohttp has enough of the body."""
        self._pauses_for_handler = True
        self._read_or_pause()

    def resume(self) -> None:
        """Resume reading."""
        self._pauses_for_handler = False
        self._read_or_pause()

    def pause_writing(self) -> None:
        """Block responses: the client reads more slowly than the server writes."""
        super().pause_writing()
        if self._handler:
            self._handler.pause_writing()

    def resume_writing(self) -> None:
        """Unblock responses."""
        super().resume_writing()
        if self._handler:
            self._handler.resume_writing()

    def _refuse(self, error: Exception, api_error: ApiError) -> None:
        """Answer a malformed request, and end the connection. Neither the answer nor the log contains bytes of it."""
        transport, request_id = self.transport, new_request_id()
        if transport is None or transport.is_closing():
            return
        log.info("request_malformed", reason=type(error).__name__, request_id=request_id)
        headers = {**response_head.headers_of(request_id), "Connection": "close"}
        response = error_response(Format.JSON, headers, api_error)
        cors_lines = self.port.cross_origin.lines(b"")
        response_head.write(transport, [response_head.response_bytes(response, self.port.clock, cors_lines)])
        self.is_refused = True
        self.end()

    def end(self) -> None:
        """Close the connection once everything is sent.

        After a rejected request, or with more bytes arriving, it lingers for LINGER_SECONDS: the system resets a
        connection that is closed with unread bytes, and the client would lose the answer. With TLS that may happen.
        """
        transport, lingers, self.state = self.transport, self.is_refused or bool(self._buffered_data), CLOSED
        self.idle_since = self._loop.time()
        self.port.admission.mark_idle(self)
        self._stop_waiting_for_head()
        if transport is None or transport.is_closing():
            return
        if not lingers or self.port.is_stopping or self.is_half_closed or not transport.can_write_eof():
            transport.close()
            return
        try:
            transport.write_eof()
        except OSError:  # the client is gone
            transport.abort()
            return
        self._timer = self._loop.call_later(LINGER_SECONDS, transport.close)
        self.resume()

    def release(self, successor: asyncio.BaseProtocol) -> None:
        """Give the transport to another protocol for good."""
        if self.transport:
            self.transport.set_protocol(_DETACHED)
            self.transport.set_protocol(successor)
        self._release()

    def connection_lost(self, exc: Exception | None) -> None:
        """Release all resources. The request in progress continues."""
        handler = self._handler
        self._release()
        if handler:
            handler.connection_lost(exc)

    def _release(self) -> None:
        self.transport = self._handler = None
        if self._acknowledgement:
            self._acknowledgement.poll(is_last=True)
            self._acknowledgement = None
        self._stop_waiting_for_head()
        self.port.admission.remove(self)
        if self._writable and not self._writable.done():
            self._writable.set_result(None)


class _DelegatedTransport:
    """The transport that aiohttp uses. Reading and closing are delegated to the connection."""

    def __init__(self, connection: ClientConnection, bare: asyncio.Transport) -> None:
        self._connection, self._bare = connection, bare
        self.close, self.set_protocol = connection.end, connection.release
        self.pause_reading, self.resume_reading = connection.pause, connection.resume

    def write(self, data: bytes | bytearray | memoryview) -> None:
        response_head.write(self._bare, [data])

    def writelines(self, parts: Iterable[bytes]) -> None:
        response_head.write(self._bare, [*parts])

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == CONNECTION:
            return self._connection
        return self._bare if name == BARE_TRANSPORT else self._bare.get_extra_info(name, default)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bare, name)
