"""Counts connections, and selects those that are closed where there are too many.

A client may open connections and send nothing. So idle connections are kept in the order in which they are closed:
first those that never sent a request, then those whose requests had no valid token, then the others; of each kind the
one that is idle for the longest time first.

Each connection is an open file. Without a reserve of these, a full process could not open what it needs for itself.
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
"""Clients do not get 64 descriptors: the store, the operators' listener and the worker's pipes need them."""

MAX_OPERATORS = 32
"""The operators' listener, to which anything on its network can connect, has at most 32 of these 64."""

ADDRESS_DIVISOR, MIN_PER_ADDRESS = 4, 64
"""Connections of an address without an authenticated request are at most a quarter of all, or 64 if that is more: a
proxy may open so many at once after a restart.
"""

SPARED = 4
"""An account or address with at most 4 connections loses none that has a request in progress."""

SILENT_SECONDS = 60.0
"""A new connection has a minute for the head of its first request, and for the TLS handshake before that."""

NEW_SECONDS = 1.0
"""What arrives in a connection's first second may not have been read yet. So others are closed before it."""

IDLE_SECONDS = 3630.0
"""A connection is closed after an hour and half a minute without a request: longer than proxies keep theirs."""

WARN_EVERY_SECONDS = 60.0

CLOSE_REASONS = ("silent", "idle", "address", "room", "largest", "refused")
"""Why connections are closed: idle for too long (``silent``: before the first request); to make room for others of the
address, or for any others, also with a request in progress (``largest``); or no room was left.
"""

IDLE, FAST_PATH, DELEGATED, CLOSED = range(4)
"""The states of a connection. No request is in progress, and an incomplete head is held; the fast path answers one;
aiohttp has one, and gets its body as it arrives; no further request is read.
"""


class ConnectionRank(IntEnum):
    """What a connection has been used for. Those of a lower rank are closed before the others."""

    SILENT = 0  # it never sent the whole head of a request, or is closed
    UNAUTHENTICATED = 1
    AUTHENTICATED = 2


class ConnectionLimits(NamedTuple):
    """``total``: connections that may be open, event streams included.

    ``unauthenticated``: those of one address that have had no authenticated request.
    """

    total: int
    unauthenticated: float = math.inf

    @classmethod
    def for_clients(cls, max_files: int) -> "ConnectionLimits":
        """Return what clients may have besides the files that are open now. ``max_files``: the process's limit."""
        least = os.open(os.devnull, os.O_RDONLY)  # the system always gives out the least free descriptor
        os.close(least)
        total = max(max_files - RESERVED_FILES, max_files // 2) - least
        return cls(total, max(total // ADDRESS_DIVISOR, MIN_PER_ADDRESS))

    @classmethod
    def for_operators(cls) -> "ConnectionLimits":
        """Return what the operators' listener may have."""
        return cls(MAX_OPERATORS)


class TrackedConnection:
    """What ``Admission`` knows of a connection."""

    __slots__ = ("account", "address", "connecting", "has_sent_head", "idle_since", "listed_as", "state", "transport")

    def __init__(self, address: str) -> None:
        """``address``: the client's, as ``addresses.origin`` returns it."""
        self.address = address
        self.account: bytes | None = None  # the user of the last authenticated request
        self.has_sent_head = False
        self.state = IDLE
        self.idle_since = asyncio.get_running_loop().time()
        self.listed_as = ConnectionRank.SILENT  # its rank when it last became idle
        self.connecting: asyncio.Task[None] | None = None
        """Makes the transport, after the handshake if there is one. None once that is done."""
        self.transport: asyncio.Transport | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no request is in progress."""
        return self.state in (IDLE, CLOSED)

    @property
    def rank(self) -> ConnectionRank:
        """What it was used for."""
        if self.state == CLOSED or not self.has_sent_head:
            return ConnectionRank.SILENT
        return ConnectionRank.UNAUTHENTICATED if self.account is None else ConnectionRank.AUTHENTICATED

    @property
    def owner(self) -> bytes | str:
        """The account that uses it, or the address."""
        return self.address if self.account is None else self.account

    def drop(self) -> None:
        """Close it at once, also before it has a transport."""
        if self.transport:
            self.transport.abort()
        elif self.connecting:
            self.connecting.cancel()


class Admission:
    """The connections of a port, without those that became event streams."""

    def __init__(self, limits: ConnectionLimits, closed: Counter[str], events: Events | None = None) -> None:
        """``closed``: counts the connections that are closed here, by reason. ``events``: has the streams."""
        self._limits = limits
        self.open: dict[TrackedConnection, None] = {}  # in the order in which they were accepted
        self._closed = closed
        self._events = events
        self._idle: tuple[dict[TrackedConnection, None], ...] = tuple({} for _ in ConnectionRank)
        self._unauthenticated: dict[str, dict[TrackedConnection, None]] = {}  # by address
        self._warned_at = -WARN_EVERY_SECONDS

    def add(self, connection: TrackedConnection) -> None:
        """Add a new connection, which is idle."""
        self.open[connection] = None
        self._unauthenticated.setdefault(connection.address, {})[connection] = None
        self._idle[connection.listed_as][connection] = None

    def note_idle(self, connection: TrackedConnection) -> None:
        """Note that a request of a connection is finished, or the connection closed."""
        if self._idle[connection.listed_as].pop(connection, True) is None:
            connection.listed_as = connection.rank
            self._idle[connection.listed_as][connection] = None

    def note_authenticated(self, connection: TrackedConnection) -> None:
        """Note that a request of a connection was authenticated."""
        of_address = self._unauthenticated.get(connection.address, {})
        if of_address.pop(connection, True) is None and not of_address:
            del self._unauthenticated[connection.address]

    def remove(self, connection: TrackedConnection) -> None:
        """Remove a connection that is closed, or became a stream."""
        if connection in self.open:
            del self.open[connection]
            self.note_authenticated(connection)
            del self._idle[connection.listed_as][connection]

    def admit(self, address: str, now: float) -> bool:
        """Return whether a new connection from ``address`` is accepted. Close others for it if necessary.

        ``now``: the loop's time.
        """
        of_address = self._unauthenticated.get(address, {})
        if len(of_address) >= self._limits.unauthenticated:
            first = next((each for each in of_address if each.is_idle), None)
            if first is None:
                self._closed["refused"] += 1
                return False
            self._close(first, "address")
        streams = self._events.wheel.size if self._events else 0
        if len(self.open) + streams < self._limits.total:
            return True
        self.warn(now)
        if self.close_idle(now - NEW_SECONDS) or self._close_of_largest(address) or self.close_idle(now):
            return True
        self._closed["refused"] += 1
        return False

    def close_idle(self, before: float) -> bool:
        """Close an idle connection. Return whether there was one.

        ``before``: a silent one is closed only if it was accepted before that, by the loop's time.
        """
        for rank, idle in zip(ConnectionRank, self._idle, strict=True):
            first = _first_idle(idle)
            if first and (rank is not ConnectionRank.SILENT or first.idle_since <= before):
                self._close(first, "room")
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
            while (first := _first_idle(idle)) and first.idle_since < before:
                self._close(first, "silent" if is_silent else "idle")

    def _close_of_largest(self, address: str) -> bool:
        """Close connections or streams of the account or address that has the most. Return whether there were any.

        Only if no connection is idle: otherwise one account could lock out all others by requests that last long. A
        sixteenth of what it has is closed at once, since looking through all connections takes time.
        """
        counts = Counter(each.owner for each in self.open)
        streams = self._events.streams_by_user if self._events else {}
        counts.update({account: len(each) for account, each in streams.items()})
        [(owner, count), *_] = counts.most_common(1) or [(b"", 0)]
        if count <= max(SPARED, counts[address] + 1):
            return False
        own: list[TrackedConnection | Stream] = [each for each in self.open if each.owner == owner]
        own += streams.get(owner, ()) if isinstance(owner, bytes) else ()
        for each in own[: max(1, count // 16)]:
            self._closed["largest"] += 1
            if isinstance(each, Stream):
                if self._events:
                    self._events.remove(each)
                each.break_off()
            else:
                self.remove(each)
                each.drop()
        return True

    def _close(self, connection: TrackedConnection, reason: str) -> None:
        self._closed[reason] += 1
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
