"""Events of the protocol: who listens, and which events each listener gets."""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from conclave.clock.timer_wheel import TimerWheel
from conclave.logs.setup import get_logger

log = get_logger(__name__)

QUEUE_LIMIT = 1024
"""At most 1,024 events wait for a slow listener. After that the oldest are dropped."""

KEEP_ALIVE_SECONDS = 9.0
"""Every 9 seconds a stream gets a comment. The protocol allows at most 15 s."""

SLICE = 128
"""News go to at most 128 streams at a time. Between two slices, others get their slot."""


@dataclass(frozen=True)
class Event:
    """Something that happened: the name and the fields of one of the protocol's events.

    ``written`` keeps the bytes of the event for each format, since they are the same for all who hear it.
    """

    name: str
    values: Mapping[str, Any]
    written: dict[Any, bytes] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True)
class Announcement:
    """An event, and the ids of the users who are to get it: ``recipients``, but not ``but_not``.

    One set can so stand for all events of a group, by any cause.
    """

    recipients: frozenset[bytes]
    event: Event
    but_not: bytes = b""


@dataclass(frozen=True)
class SessionEnded:
    """The end of a user's session, which ends the session's streams."""

    user_id: bytes
    session_id: int


class MessageStored(NamedTuple):
    """A message that was stored. Only what the server remembers hears of it, see ``cache``."""

    group_key: int
    sequence_num: int
    sender_id: bytes
    body: bytes
    created_at: int
    """Unix seconds."""
    is_timed: bool = False
    """Whether it destroys itself."""


News = Announcement | SessionEnded | MessageStored
"""What a transaction announces."""


class Stream(ABC):
    """The events that wait for one listener. How they reach it is for the subclass to know."""

    __slots__ = ("_lost", "_waiting", "ended", "session_id", "slot", "user_id")

    def __init__(self, user_id: bytes, session_id: int) -> None:
        """The stream ends with its session."""
        self.user_id = user_id
        self.session_id = session_id
        self.ended = False
        self.slot = 0  # the wheel's
        self._waiting: list[Event] = []
        self._lost = 0

    @property
    def waiting(self) -> int:
        """How many events wait."""
        return len(self._waiting)

    @property
    def hears(self) -> bool:
        """Whether what is added reaches the listener, as far as the server knows."""
        return not self.ended

    def put(self, event: Event) -> bool:
        """Add an event; never waits. Return whether it is the only one, so that ``flush`` has to be called.

        If too many wait, the oldest is lost, and the listener learns that. Nothing is added after the end.
        """
        if self.ended:
            return False
        if len(self._waiting) == QUEUE_LIMIT:
            del self._waiting[0]
            self._lost += 1
        self._waiting.append(event)
        return len(self._waiting) == 1

    def take(self) -> tuple[int, list[Event]]:
        """Return the number of events lost since the last call, and the events that wait."""
        taken = self._lost, self._waiting
        self._lost, self._waiting = 0, []
        return taken

    def end(self) -> None:
        """End the stream, once. The listener still gets the events that wait."""
        if not self.ended:
            self.ended = True
            self.finish()

    @abstractmethod
    def flush(self) -> None:
        """Hand on what waits, unless the listener has to take something else first."""

    @abstractmethod
    def keep_alive(self) -> None:
        """Show a silent listener that the stream is still there."""

    @abstractmethod
    def finish(self) -> None:
        """Hand on what waits, and close the connection. Then the stream leaves ``Events``."""

    @abstractmethod
    def break_off(self) -> None:
        """Close the connection at once."""


class Backlog(NamedTuple):
    """The events that wait for slow listeners: how many in all, and for the slowest."""

    events: int
    longest: int


class Events:
    """The listeners of one server process."""

    def __init__(
        self, keep: Callable[[int], None] = lambda _: None, *, keep_alive_seconds: float = KEEP_ALIVE_SECONDS
    ) -> None:
        """Begin without listeners. ``keep`` is called every so often with the id of a session that listens.

        ``lost``: how many events were dropped, counted when their listener learns of it or has gone.
        """
        self.wheel = TimerWheel(self._remind, keep_alive_seconds)
        self.lost = 0
        self._keep = keep
        self._streams: dict[bytes, dict[Stream, None]] = {}
        self._few: deque[Stream] = deque()
        self._many: deque[Stream] = deque()
        self._handing_on = False
        self._stopping = False
        self._gone = asyncio.Event()

    @property
    def of_accounts(self) -> Mapping[bytes, Mapping[Stream, None]]:
        """The streams of each user, in the order in which they began."""
        return self._streams

    def add(self, stream: Stream) -> None:
        """Hand a stream its user's events, until ``remove``."""
        self._streams.setdefault(stream.user_id, {})[stream] = None
        self.wheel.add(stream)
        if self._stopping:
            stream.end()

    def remove(self, stream: Stream) -> None:
        """Forget a stream, if it is still there."""
        of_user = self._streams.get(stream.user_id, {})
        if stream not in of_user:
            return
        self.wheel.remove(stream)
        del of_user[stream]
        if not of_user:
            del self._streams[stream.user_id]
        self._notice_end()

    def publish(self, news: Iterable[News]) -> None:
        """Hand each event to every stream of its recipients, and end the streams of sessions that are over.

        A user without a stream misses the event. Nothing is written here: that comes soon after, in slices.
        """
        fresh: list[Stream] = []
        for each in news:
            if isinstance(each, MessageStored):
                continue
            if isinstance(each, SessionEnded):
                self._end(each)
                continue
            for user_id in (each.recipients & self._streams.keys()) - {each.but_not}:
                fresh += [stream for stream in self._streams[user_id] if stream.put(each.event)]
        self._have_flushed(fresh)

    def backlog(self) -> Backlog:
        """Return what waits for slow listeners. It walks all streams; any thread may do that."""
        waiting = [stream.waiting for streams in tuple(self._streams.values()) for stream in tuple(streams)]
        return Backlog(sum(waiting), max(waiting, default=0))

    def tell(self, user_id: bytes, event: Event) -> bool:
        """Hand an event to every stream of a user. Return whether any of them hears it."""
        streams = self._streams.get(user_id, ())
        self._have_flushed([stream for stream in streams if stream.put(event)])
        return any(stream.hears for stream in streams)

    def sessions(self) -> set[int]:
        """Return the ids of the sessions that have a stream open."""
        return {stream.session_id for streams in self._streams.values() for stream in streams}

    def end_all(self) -> None:
        """End every stream, and each that begins later, since the server stops."""
        self._stopping = True
        self._notice_end()
        for stream in [stream for streams in self._streams.values() for stream in streams]:
            stream.end()

    async def gone(self) -> None:
        """End every stream, and wait until the last is gone."""
        self.end_all()
        await self._gone.wait()

    def _notice_end(self) -> None:
        if self._stopping and not self._streams:
            self._gone.set()

    def _end(self, ending: SessionEnded) -> None:
        for stream in tuple(self._streams.get(ending.user_id, ())):
            if stream.session_id == ending.session_id:
                stream.end()

    def _have_flushed(self, fresh: list[Stream]) -> None:
        """Have what waits for some streams written soon. What few hear does not wait for what many hear."""
        if fresh:
            (self._few if len(fresh) <= SLICE else self._many).extend(fresh)
            self._hand_on_soon()

    def _hand_on_soon(self) -> None:
        if not self._handing_on:
            self._handing_on = True
            asyncio.get_running_loop().call_soon(self._hand_on)

    def _hand_on(self) -> None:
        """Write to a slice of those who hear what few hear, and to a slice of the others."""
        self._handing_on = False
        for streams in (self._few, self._many):
            for _ in range(min(SLICE, len(streams))):
                stream = streams.popleft()
                _try(stream, stream.flush)
        if self._few or self._many:
            self._hand_on_soon()

    def _remind(self, stream: Stream) -> None:
        def remind() -> None:
            self._keep(stream.session_id)
            stream.keep_alive()

        _try(stream, remind)


def _try(stream: Stream, do: Callable[[], None]) -> None:
    """A fault of one stream ends it, so that its client notices, and is not the other streams' fault."""
    try:
        do()
    except Exception:
        log.exception("stream_failed")
        stream.break_off()
