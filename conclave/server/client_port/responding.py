"""A connection's way out: writes responses, and finds out whether the client has them."""

import asyncio
from dataclasses import dataclass

from conclave.clock import Clock
from conclave.response_memory import Budget
from conclave.server.client_port.admission import Admission, TrackedConnection
from conclave.wire import acknowledgement, response_head
from conclave.wire.acknowledgement import Acknowledgement
from conclave.wire.handover import drain_fully, limit_unsent, wait_drained
from conclave.wire.pace import SMALL_BYTES
from conclave.wire.response_head import CrossOrigin


@dataclass(slots=True)
class PortState:
    """What the connections of a port share."""

    admission: Admission
    budget: Budget
    clock: Clock
    cross_origin: CrossOrigin
    is_stopping: bool = False


class RespondingConnection(TrackedConnection, asyncio.BufferedProtocol):
    """A connection as the fast path and aiohttp's side of it use it."""

    __slots__ = (
        *("_acknowledgement", "_loop", "_responding", "_writable"),
        *("below", "is_half_closed", "is_refused", "port"),
    )

    def __init__(self, port: PortState, address: str) -> None:
        """``address``: the client's, as ``addresses.origin`` returns it."""
        super().__init__(address)
        self.port = port
        self.below: asyncio.Transport | None = None  # below ``transport``, if that is a TLS layer
        self.is_half_closed = False  # whether the client has ended its side
        self.is_refused = False  # whether something that arrived was not HTTP, and was answered so
        self._loop = asyncio.get_running_loop()
        self._writable: asyncio.Future[None] | None = None
        """Set while writing is paused. Done when writing is resumed, or the connection is lost."""
        self._acknowledgement: Acknowledgement | None = None
        """Set while the response is expected to be acknowledged by the client's system."""
        self._responding: asyncio.Task[None] | None = None

    def note_below(self, transport: asyncio.Transport) -> None:
        """Note the transport below the TLS layer: it alone knows what the system has not taken yet."""
        self.below = transport

    def note_account(self, account: bytes) -> None:
        """Note that a request was authenticated."""
        if self.account is None:
            self.port.admission.note_authenticated(self)
        self.account = account

    def go_on(self) -> None:
        """Read the next request: this one is answered."""
        raise NotImplementedError

    def answer(self, parts: list[bytes]) -> None:
        """Write a response, head and body, and go on once the system has taken it."""
        if self._write(parts):
            self.go_on()
        else:
            self._responding = self._loop.create_task(self._finish(parts))

    async def _finish(self, parts: list[bytes]) -> None:
        try:
            await self._taken(parts)
        finally:
            self.go_on()

    async def hand_over(self, parts: list[bytes], *, counts: bool) -> bool:
        """Write a response, and clear ``parts``. Call ``go_on`` after it.

        Return whether the client has it, see ``wire.handover.hand_over``. If that does not count, wait only until the
        system has taken it.
        """
        counts = counts and not self.may_be_gone()
        is_taken = self._write(parts)
        expected = self.expect_acknowledgement() if counts else None
        if not is_taken:
            is_taken = await self._taken(parts)
        parts.clear()
        return is_taken and expected is not None and await expected.wait()

    def _write(self, parts: list[bytes]) -> bool:
        """Write a response. Return whether nothing waits for the client; True also if the connection is lost."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return True
        if self.port.is_stopping:
            parts[0] = parts[0].replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
        if sum(map(len, parts)) > SMALL_BYTES:
            limit_unsent(transport)
        response_head.write(transport, parts)
        return not transport.get_write_buffer_size()

    async def _taken(self, parts: list[bytes]) -> bool:
        """Wait until the system has taken a response, unless the client is too slow. Return whether it has."""
        transport = self.transport
        if transport is None:
            return False
        drain_fully(transport)
        size = sum(map(len, parts))
        with self.port.budget.waiting(self.account, size, size, transport.get_write_buffer_size, transport.abort):
            return await wait_drained(self._drain, transport)

    async def _drain(self) -> bool:
        if self._writable:
            await self._writable
        return self._writable is None

    def pause_writing(self) -> None:
        """Let responses wait: the client reads more slowly than the server writes."""
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        """Write again."""
        writable, self._writable = self._writable, None
        if writable and not writable.done():
            writable.set_result(None)

    def may_be_gone(self) -> bool:
        """Return whether the client has ended its side, or the connection is broken; True also if that is unknown."""
        return self.is_half_closed or self.transport is None or not acknowledgement.is_open(self.transport)

    def expect_acknowledgement(self) -> Acknowledgement | None:
        """Start to wait for the acknowledgement of everything that was written. None: the connection is lost."""
        if self.transport:
            self._acknowledgement = Acknowledgement(self.transport, self.below)
            self._acknowledgement.look()
        return self._acknowledgement
