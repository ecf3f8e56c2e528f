"""Keeps count of connections, and picks those that are closed where there are too many.

Anybody may open connections and say nothing. So the connections that ask for nothing are kept in the order in which
they go: first those that have never sent a request, then those whose requests had no valid token, then the others; of
each kind the longest idle one first.
"""

from collections import Counter
from collections.abc import Mapping
from enum import IntEnum
from typing import TYPE_CHECKING

from conclave.events import Events, Stream
from conclave.logs.setup import get_logger

if TYPE_CHECKING:
    from conclave.server.connection import Connection

log = get_logger(__name__)

SPARED = 4
"""An account or address with at most 4 connections loses none on which something is under way."""

SILENT_SECONDS = 60.0
"""A new connection has a minute for the head of its first request, and for the TLS handshake before that."""

NEW_SECONDS = 1.0
"""What comes on a connection in its first second may not have been read yet. So others are closed before it."""

IDLE_SECONDS = 3630.0
"""A connection ends that asks for nothing for an hour, and half a minute: longer than proxies keep theirs."""

WARN_EVERY_SECONDS = 60.0

CLOSED_FOR = ("silent", "idle", "address", "room", "largest", "refused")
"""Why connections are closed: they asked for nothing for too long; they made room for others of their address, or for
any others, also with something under way on them; or there was no room for them.
"""


class Standing(IntEnum):
    """What a connection has been used for. Those of a lower standing are closed before the others."""

    SILENT = 0
    """Nothing: it has never sent the whole head of a request, or no request is taken any more."""
    STRANGER = 1
    """Requests without a valid token."""
    KNOWN = 2
    """An authenticated request."""


class Room:
    """The connections of a site, but for those that became event streams."""

    def __init__(self, most: int, most_unknown: float, closed: Counter[str], events: Events | None = None) -> None:
        """``most``: so many connections may be open, streams of ``events`` too.

        ``most_unknown``: so many of one address that have carried no authenticated request.
        ``closed``: counts those that are closed here, by the reason.
        """
        self._most = most
        self._most_unknown = most_unknown
        self.open: dict[Connection, None] = {}
        """In the order in which they came."""
        self._closed = closed
        self._events = events
        self._idle: tuple[dict[Connection, None], ...] = tuple({} for _ in Standing)
        self._unknown: dict[str, dict[Connection, None]] = {}
        """Those without an authenticated request, by their address."""
        self._warned_at = -WARN_EVERY_SECONDS

    def add(self, connection: "Connection") -> None:
        """Note a new connection, which asks for nothing yet."""
        self.open[connection] = None
        self._unknown.setdefault(connection.address, {})[connection] = None
        self._idle[connection.place][connection] = None

    def rest(self, connection: "Connection") -> None:
        """Note that a connection asks for nothing any more."""
        if self._idle[connection.place].pop(connection, True) is None:
            connection.place = connection.standing
            self._idle[connection.place][connection] = None

    def know(self, connection: "Connection") -> None:
        """Note that a connection has carried an authenticated request."""
        of_address = self._unknown.get(connection.address, {})
        if of_address.pop(connection, True) is None and not of_address:
            del self._unknown[connection.address]

    def forget(self, connection: "Connection") -> None:
        """Forget a connection that is closed, or became a stream."""
        if connection in self.open:
            del self.open[connection]
            self.know(connection)
            del self._idle[connection.place][connection]

    def make_room(self, address: str, now: float) -> bool:
        """Tell whether a new connection from ``address`` may be. Close others for it, if that has to be.

        ``now``: by the loop's time.
        """
        of_address = self._unknown.get(address, {})
        if len(of_address) >= self._most_unknown:
            first = next((each for each in of_address if each.is_idle), None)
            if first is None:
                self._closed["refused"] += 1
                return False
            self._close(first, "address")
        if self._count() < self._most:
            return True
        self.warn(now)
        if self.close_idle(now - NEW_SECONDS) or self._close_of_largest(address) or self.close_idle(now):
            return True
        self._closed["refused"] += 1
        return False

    def close_idle(self, before: float) -> bool:
        """Close a connection that asks for nothing. Return whether there was one.

        ``before``: one that has never asked is closed only if it came until then, by the loop's time.
        """
        for standing, each in zip(Standing, self._idle, strict=True):
            first = _first_idle(each)
            if first and (standing is not Standing.SILENT or first.free_since <= before):
                self._close(first, "room")
                return True
        return False

    def warn(self, now: float) -> None:
        """Log that there are too many connections, at most once in WARN_EVERY_SECONDS."""
        if now >= self._warned_at + WARN_EVERY_SECONDS:
            self._warned_at = now
            log.warning("too_many_connections", most=self._most)

    def sweep(self, now: float) -> None:
        """Close the connections that have asked for nothing for too long. ``now``: by the loop's time."""
        for standing, each in zip(Standing, self._idle, strict=True):
            is_silent = standing is Standing.SILENT
            before = now - (SILENT_SECONDS if is_silent else IDLE_SECONDS)
            while (first := _first_idle(each)) and first.free_since < before:
                self._close(first, "silent" if is_silent else "idle")

    def _count(self) -> int:
        return len(self.open) + (self._events.wheel.size if self._events else 0)

    def _close_of_largest(self, address: str) -> bool:
        """Close connections, or streams, of the account or address that has the most. Return whether there were any.

        Only where nobody's connections ask for nothing: with requests that last, one account could keep all others out.
        A sixteenth of what it has goes at once, since to look through all connections takes time.
        """
        counts = Counter(each.owner for each in self.open)
        streams = self._events.of_accounts if self._events else {}
        counts.update({account: len(each) for account, each in streams.items()})
        [(owner, count), *_] = counts.most_common(1) or [(b"", 0)]
        if count <= max(SPARED, counts[address] + 1):
            return False
        for each in _of_owner(owner, self.open, streams)[: max(1, count // 16)]:
            self._closed["largest"] += 1
            if isinstance(each, Stream):
                if self._events:
                    self._events.remove(each)
                each.break_off()
            else:
                self.forget(each)
                each.drop()
        return True

    def _close(self, connection: "Connection", reason: str) -> None:
        self._closed[reason] += 1
        self.forget(connection)
        connection.drop()


def _first_idle(connections: dict["Connection", None]) -> "Connection | None":
    """Return the first one on which nothing is under way.

    Others before it go to the end: they belong there once they ask for nothing any more.
    """
    for _ in range(len(connections)):
        first = next(iter(connections))
        if first.is_idle:
            return first
        del connections[first]
        connections[first] = None
    return None


def _of_owner(
    owner: bytes | str, connections: dict["Connection", None], streams: Mapping[bytes, Mapping[Stream, None]]
) -> list["Connection | Stream"]:
    """Return the connections of an account or an address, and then its streams; of each the oldest first."""
    own = [each for each in connections if each.owner == owner]
    return [*own, *(streams.get(owner, ()) if isinstance(owner, bytes) else ())]
