"""Limits the number of connections, and selects connections to close if there are too many.

A client may open connections and send nothing. So idle connections are closed in this order: those that never sent a
request, those whose requests had no valid token, then the others; within each kind the longest idle first.

Each connection is an open file. Some descriptors are reserved for the process itself.
"""

import asyncio
import math
import os
from collections import Counter
from enum import IntEnum
from typing import NamedTuple

from conclave.events import Events, Stream
from conclave.logs.setup import get_logger

log = get_logger(__name__)

RESERVED_FILES = 64
"""64 descriptors are reserved for the store, the operators' listener and the worker's pipes."""

MAX_OPERATORS = 32
"""The operators' listener uses at most 32 of these 64."""

ADDRESS_DIVISOR, MIN_PER_ADDRESS = 4, 64
"""An address has at most a quarter of all connections, or 64 if that is more, without an authenticated request: a proxy
may open that many after a restart.
"""

MIN_PROTECTED = 4
"""An account or address with at most 4 connections keeps those with a request in progress."""

SILENT_SECONDS = 60.0
"""A new connection has a minute for the head of its first request, and for the TLS handshake before that."""

NEW_SECONDS = 1.0
"""A connection younger than a second is closed last: its request may not have been read yet."""

IDLE_SECONDS = 3630.0
"""A connection is closed after an hour and 30 seconds without a request, which exceeds the timeouts of proxies."""

WARN_EVERY_SECONDS = 60.0

CLOSE_REASONS = ("silent", "idle", "address", "room", "largest", "refused")
"""Why connections are closed. ``silent`` and ``idle``: idle for too long, before or after the first request.
``address``, ``room`` and ``largest``: to make room for the same address, for any, and with a request in progress.
``refused``: no room.
"""

IDLE, FAST_PATH, DELEGATED, CLOSED = range(4)
"""The states of a connection. IDLE: no request in progress, perhaps an incomplete head. FAST_PATH: the fast path
answers a request. DELEGATED: aiohttp answers one, and its body may be arriving. CLOSED: no further request is read.
"""


class ConnectionRank(IntEnum):
    """How a connection was used. Lower ranks are closed first."""

    SILENT = 0  # it never sent a complete head, or is closed
    UNAUTHENTICATED = 1
    AUTHENTICATED = 2


class ConnectionLimits(NamedTuple):
    """``total``: connections that may be open, event streams included.

    ``unauthenticated``: connections of one address without an authenticated request.
    """

    total: int
    unauthenticated: float = math.inf

    @classmethod
    def for_clients(cls, max_files: int) -> "ConnectionLimits":
        """Return the limits for clients. ``max_files``: the process's limit of open files."""
        lowest_free = os.open(os.devnull, os.O_RDONLY)  # the lowest free descriptor: about as many are open
        os.close(lowest_free)
        total = max(max_files - RESERVED_FILES, max_files // 2) - lowest_free
        return cls(total, max(total // ADDRESS_DIVISOR, MIN_PER_ADDRESS))

    @classmethod
    def for_operators(cls) -> "ConnectionLimits":
        """Return the limits of the operators' listener."""
        return cls(MAX_OPERATORS)


class TrackedConnection:
    """The state of a connection that ``Admission`` needs."""

    __slots__ = ("account", "address", "connecting", "idle_since", "listed_as", "state", "transport")

    def __init__(self, address: str) -> None:
        """``address``: the client's, as ``addresses.origin`` returns it."""
        self.address = address
        self.account: bytes | None = None  # the user of the last authenticated request
        self.state = IDLE
        self.idle_since = asyncio.get_running_loop().time()
        self.listed_as = ConnectionRank.SILENT  # its rank when it last became idle
        self.connecting: asyncio.Task[None] | None = None
        """Creates the transport, after a TLS handshake if any. None once done."""
        self.transport: asyncio.Transport | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no request is in progress."""
        return self.state in (IDLE, CLOSED)

    @property
    def owner(self) -> bytes | str:
        """The account of its last authenticated request, else the address."""
        return self.address if self.account is None else self.account

    def drop(self) -> None:
        """Close it at once, even before it has a transport."""
        if self.transport:
            self.transport.abort()
        elif self.connecting:
            self.connecting.cancel()


class Admission:
    """The connections of a port, except those that became event streams."""

    def __init__(self, limits: ConnectionLimits, close_counts: Counter[str], events: Events | None = None) -> None:
        """``close_counts``: counts closed connections by reason. ``events``: the event streams."""
        self._limits = limits
        self.open: dict[TrackedConnection, None] = {}  # in the order in which they were accepted
        self._close_counts = close_counts
        self._events = events
        self._idle: tuple[dict[TrackedConnection, None], ...] = tuple({} for _ in ConnectionRank)
        self._unauthenticated: dict[str, dict[TrackedConnection, None]] = {}  # by address
        self._warned_at = -WARN_EVERY_SECONDS

    def add(self, connection: TrackedConnection) -> None:
        """Add a new connection, which is idle."""
        self.open[connection] = None
        self._unauthenticated.setdefault(connection.address, {})[connection] = None
        self._idle[connection.listed_as][connection] = None

    def mark_idle(self, connection: TrackedConnection) -> None:
        """Mark a connection as idle: its request is finished, or it is closed."""
        if self._idle[connection.listed_as].pop(connection, True) is None:
            used = ConnectionRank.UNAUTHENTICATED if connection.account is None else ConnectionRank.AUTHENTICATED
            connection.listed_as = ConnectionRank.SILENT if connection.state == CLOSED else used
            self._idle[connection.listed_as][connection] = None

    def mark_authenticated(self, connection: TrackedConnection) -> None:
        """Mark a connection as authenticated."""
        unauthenticated = self._unauthenticated.get(connection.address, {})
        if unauthenticated.pop(connection, True) is None and not unauthenticated:
            del self._unauthenticated[connection.address]

    def remove(self, connection: TrackedConnection) -> None:
        """Remove a connection that is closed, or became a stream."""
        if connection in self.open:
            del self.open[connection]
            self.mark_authenticated(connection)
            del self._idle[connection.listed_as][connection]

    def admit(self, address: str, now: float) -> bool:
        """Return whether a new connection from ``address`` is accepted. Close others for it if necessary.

        ``now``: the loop's time.
        """
        unauthenticated = self._unauthenticated.get(address, {})
        if len(unauthenticated) >= self._limits.unauthenticated:
            idle = next((each for each in unauthenticated if each.is_idle), None)
            if idle is None:
                self._close_counts["refused"] += 1
                return False
            self._close(idle, "address")
        streams = self._events.wheel.size if self._events else 0
        if len(self.open) + streams < self._limits.total:
            return True
        self.warn(now)
        if self.close_idle(now - NEW_SECONDS) or self._close_of_largest(address) or self.close_idle(now):
            return True
        self._close_counts["refused"] += 1
        return False

    def close_idle(self, before: float) -> bool:
        """Close an idle connection. Return whether there was one.

        ``before``: a silent one is closed only if it was accepted before this time of the loop.
        """
        for rank, idle in zip(ConnectionRank, self._idle, strict=True):
            connection = _first_idle(idle)
            if connection and (rank is not ConnectionRank.SILENT or connection.idle_since <= before):
                self._close(connection, "room")
                return True
        return False

    def warn(self, now: float) -> None:
        """Log that there are too many connections, at most once in WARN_EVERY_SECONDS."""
        if now >= self._warned_at + WARN_EVERY_SECONDS:
            self._warned_at = now
            log.warning("too_many_connections", most=self._limits.total)

    def sweep(self, now: float) -> None:
        """Close the connections that are idle for too long. ``now``: the loop's time."""
        for rank, idle in zip(ConnectionRank, self._idle, strict=True):
            is_silent = rank is ConnectionRank.SILENT
            before = now - (SILENT_SECONDS if is_silent else IDLE_SECONDS)
            while (connection := _first_idle(idle)) and connection.idle_since < before:
                self._close(connection, "silent" if is_silent else "idle")

    def _close_of_largest(self, address: str) -> bool:
        """Close connections or streams of the account or address that has the most. Return whether there were any.

        Only if no connection is idle: otherwise one account could lock out all others by requests that last long. A
        sixteenth of its connections is closed at once, since scanning all connections takes time.
        """
        counts = Counter(each.owner for each in self.open)
        streams = self._events.streams_by_user if self._events else {}
        counts.update({account: len(each) for account, each in streams.items()})
        [(owner, count), *_] = counts.most_common(1) or [(b"", 0)]
        if count <= max(MIN_PROTECTED, counts[address] + 1):
            return False
        candidates: list[TrackedConnection | Stream] = [each for each in self.open if each.owner == owner]
        candidates += streams.get(owner, ()) if isinstance(owner, bytes) else ()
        for each in candidates[: max(1, count // 16)]:
            if isinstance(each, TrackedConnection):
                self._close(each, "largest")
            elif self._events:
                self._close_counts["largest"] += 1
                self._events.remove(each)
                each.break_off()
        return True

    def _close(self, connection: TrackedConnection, reason: str) -> None:
        self._close_counts[reason] += 1
        self.remove(connection)
        connection.drop()


def _first_idle(connections: dict[TrackedConnection, None]) -> TrackedConnection | None:
    """Return the first one that is idle. Move those before it to the end, where they belong once they are idle."""
    for _ in range(len(connections)):
        first = next(iter(connections))
        if first.is_idle:
            return first
        del connections[first]
        connections[first] = None
    return None
