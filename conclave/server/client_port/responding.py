"""Writes the responses of a connection, and finds out whether the client has received them."""

import asyncio
from dataclasses import dataclass

from conclave.clock import Clock
from conclave.response_memory import Budget
from conclave.server.client_port.admission import Admission, TrackedConnection
from conclave.wire import acknowledgement, response_head
from conclave.wire.acknowledgement import Acknowledgement
from conclave.wire.handover import limit_unsent, wait_drained, wait_for_full_drain
from conclave.wire.pace import SMALL_BYTES
from conclave.wire.response_head import CrossOrigin


@dataclass(slots=True)
class PortState:
    """The state that all connections of a port share."""

    admission: Admission
    budget: Budget
    clock: Clock
    cross_origin: CrossOrigin
    is_stopping: bool = False


class RespondingConnection(TrackedConnection, asyncio.BufferedProtocol):
    """The part of a connection that the fast path and ``delegation`` use."""

    __slots__ = (
        *("_acknowledgement", "_loop", "_response_task", "_writable"),
        *("below", "is_half_closed", "is_refused", "port"),
    )

    def __init__(self, port: PortState, address: str) -> None:
        """``address``: the client's, as ``addresses.origin`` returns it."""
        super().__init__(address)
        self.port = port
        self.below: asyncio.Transport | None = None  # the transport below a TLS layer
        self.is_half_closed = False  # whether the client has ended its side
        self.is_refused = False  # whether a malformed request was rejected
        self._loop = asyncio.get_running_loop()
        self._writable: asyncio.Future[None] | None = None
        """Set while writing is paused. Done when writing resumes, or the connection is lost."""
        self._acknowledgement: Acknowledgement | None = None
        """Set while an acknowledgement of the response is pending."""
        self._response_task: asyncio.Task[None] | None = None

    def set_raw_transport(self, transport: asyncio.Transport) -> None:
        """Set the transport below the TLS layer, which knows how many bytes the system has not accepted."""
        self.below = transport

    def set_account(self, account: bytes) -> None:
        """Record that a request was authenticated."""
        if self.account is None:
            self.port.admission.mark_authenticated(self)
        self.account = account

    def next_request(self) -> None:
        """Continue with the next request, once this one is answered."""
        raise NotImplementedError  # abstract: ClientConnection implements it

    def answer(self, parts: list[bytes]) -> None:
        """Write a response, head and body, and continue once the system has accepted it."""
        if self._write(parts):
            self.next_request()
        else:
            self._response_task = self._loop.create_task(self._finish(parts))

    async def _finish(self, parts: list[bytes]) -> None:
        try:
            await self._wait_drained(parts)
        finally:
            self.next_request()

    async def hand_over(self, parts: list[bytes], *, counts: bool) -> bool:
        """Write a response, and clear ``parts``. Call ``next_request`` after it.

        Return whether the client has acknowledged it, see ``wire.handover.hand_over``. Unless ``counts``, wait only
        until the system has accepted it.
        """
        counts = counts and not self.may_be_gone()
        is_accepted = self._write(parts)
        pending_acknowledgement = self.expect_acknowledgement() if counts else None
        if not is_accepted:
            is_accepted = await self._wait_drained(parts)
        parts.clear()
        return is_accepted and pending_acknowledgement is not None and await pending_acknowledgement.wait()

    def _write(self, parts: list[bytes]) -> bool:
        """Write a response. Return whether nothing is unsent; True even if the connection is lost."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return True
        if self.port.is_stopping:
            parts[0] = parts[0].replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
        if sum(map(len, parts)) > SMALL_BYTES:
            limit_unsent(transport)
        response_head.write(transport, parts)
        return not transport.get_write_buffer_size()

    async def _wait_drained(self, parts: list[bytes]) -> bool:
        """Wait until the system has accepted a response, or the client is too slow. Return whether it has."""
        transport = self.transport
        if transport is None:
            return False
        wait_for_full_drain(transport)
        size = sum(map(len, parts))
        with self.port.budget.waiting(self.account, size, size, transport.get_write_buffer_size, transport.abort):
            return await wait_drained(self._drain, transport)

    async def _drain(self) -> bool:
        if self._writable:
            await self._writable
        return self._writable is None

    def pause_writing(self) -> None:
        """Block responses: the client reads more slowly than the server writes."""
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        """Unblock responses."""
        writable, self._writable = self._writable, None
        if writable and not writable.done():
            writable.set_result(None)

    def may_be_gone(self) -> bool:
        """Return whether the client has ended its side, or the connection is lost; also True if unknown."""
        return self.is_half_closed or self.transport is None or not acknowledgement.is_open(self.transport)

    def expect_acknowledgement(self) -> Acknowledgement | None:
        """Start waiting for the acknowledgement of all written bytes. None: the connection is lost."""
        if self.transport:
            self._acknowledgement = Acknowledgement(self.transport, self.below)
            self._acknowledgement.poll()
        return self._acknowledgement
