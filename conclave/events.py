"""Delivers the protocol's events to the streams of the users concerned."""

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
"""At most 1,024 events wait for a slow client. Beyond that the oldest are dropped."""

KEEP_ALIVE_SECONDS = 9.0
"""A comment is written to each stream every 9 seconds. The protocol allows at most 15."""

SLICE = 128
"""Events are written to at most 128 streams in one step of the event loop."""


@dataclass(frozen=True)
class Event:
    """An event of the protocol: its name and fields.

    ``written``: its bytes by format, shared by all streams.
    """

    name: str
    values: Mapping[str, Any]
    written: dict[Any, bytes] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True)
class Announcement:
    """An event and the ids of its recipients: ``recipients`` without ``excluded``.

    So all events of a group can share one set.
    """

    recipients: frozenset[bytes]
    event: Event
    excluded: bytes = b""


@dataclass(frozen=True)
class SessionEnded:
    """A user's session has ended. Its streams are ended too."""

    user_id: bytes
    session_id: int


class MessageStored(NamedTuple):
    """A message was stored. Only the ``cache`` uses it; no client is notified by it."""

    group_key: int
    sequence_num: int
    sender_id: bytes
    body: bytes
    created_at: int
    """Unix seconds."""
    is_timed: bool = False
    """Whether it self-destructs."""


News = Announcement | SessionEnded | MessageStored
"""The news that a transaction publishes once it is committed."""


class Stream(ABC):
    """The queue of events for one client. Subclasses write them to a connection."""

    __slots__ = ("_lost_count", "_queue", "ended", "session_id", "slot", "user_id")

    def __init__(self, user_id: bytes, session_id: int) -> None:
        """``session_id``: the stream ends with this session."""
        self.user_id = user_id
        self.session_id = session_id
        self.ended = False
        self.slot = 0  # set by the timer wheel
        self._queue: list[Event] = []
        self._lost_count = 0

    @property
    def waiting(self) -> int:
        """The number of queued events."""
        return len(self._queue)

    @property
    def is_connected(self) -> bool:
        """Whether new events reach the client, as far as the server knows."""
        return not self.ended

    def put(self, event: Event) -> bool:
        """Queue an event. Return whether the queue was empty, so that ``flush`` has to be called.

        If the queue is full, the oldest event is dropped and counted. Nothing is added after the end.
        """
        if self.ended:
            return False
        if len(self._queue) == QUEUE_LIMIT:
            del self._queue[0]
            self._lost_count += 1
        self._queue.append(event)
        return len(self._queue) == 1

    def take(self) -> tuple[int, list[Event]]:
        """Empty the queue. Return the number of events dropped since the last call, and the queued events."""
        batch = self._lost_count, self._queue
        self._lost_count, self._queue = 0, []
        return batch

    def end(self) -> None:
        """End the stream, once. Queued events are still sent."""
        if not self.ended:
            self.ended = True
            self.finish()

    @abstractmethod
    def flush(self) -> None:
        """Write the queued events, unless the client has to read earlier bytes first."""

    @abstractmethod
    def keep_alive(self) -> None:
        """Write a comment, so that clients and proxies do not close an idle stream."""

    @abstractmethod
    def finish(self) -> None:
        """Write the queued events, close the connection, and remove the stream from ``Events``."""

    @abstractmethod
    def break_off(self) -> None:
        """Close the connection at once."""


class Backlog(NamedTuple):
    """The number of queued events: of all streams, and of the slowest."""

    events: int
    longest: int


class Events:
    """The event streams of one server process."""

    def __init__(
        self, keep: Callable[[int], None] = lambda _: None, *, keep_alive_seconds: float = KEEP_ALIVE_SECONDS
    ) -> None:
        """Start without streams. ``keep``: called regularly with the session id of each stream.

        ``lost``: the number of dropped events, counted once their client is notified or disconnected.
        """
        self.wheel = TimerWheel(self._send_keep_alive, keep_alive_seconds)
        self.lost = 0
        self._keep = keep
        self._streams: dict[bytes, dict[Stream, None]] = {}
        self._priority_streams: deque[Stream] = deque()
        self._bulk_streams: deque[Stream] = deque()
        self._is_scheduled = False
        self._is_stopping = False
        self._all_ended = asyncio.Event()

    @property
    def streams_by_user(self) -> Mapping[bytes, Mapping[Stream, None]]:
        """The streams of each user, oldest first."""
        return self._streams

    def add(self, stream: Stream) -> None:
        """Deliver a user's events to a stream until ``remove``."""
        self._streams.setdefault(stream.user_id, {})[stream] = None
        self.wheel.add(stream)
        if self._is_stopping:
            stream.end()

    def remove(self, stream: Stream) -> None:
        """Remove a stream, if it is registered."""
        user_streams = self._streams.get(stream.user_id, {})
        if stream not in user_streams:
            return
        self.wheel.remove(stream)
        del user_streams[stream]
        if not user_streams:
            del self._streams[stream.user_id]
        self._check_ended()

    def publish(self, news: Iterable[News]) -> None:
        """Queue each event for all streams of its recipients, and end the streams of ended sessions.

        Users without a stream miss the event. Writing follows in later steps of the event loop, in slices.
        """
        streams_to_flush: list[Stream] = []
        for each in news:
            if isinstance(each, MessageStored):
                continue
            if isinstance(each, SessionEnded):
                self._end(each)
                continue
            for user_id in (each.recipients & self._streams.keys()) - {each.excluded}:
                streams_to_flush += [stream for stream in self._streams[user_id] if stream.put(each.event)]
        self._schedule_flush(streams_to_flush)

    def backlog(self) -> Backlog:
        """Return the size of the queues. It walks all streams. Any thread may call it."""
        waiting = [stream.waiting for streams in tuple(self._streams.values()) for stream in tuple(streams)]
        return Backlog(sum(waiting), max(waiting, default=0))

    def send(self, user_id: bytes, event: Event) -> bool:
        """Queue an event for all streams of a user. Return whether any of them is connected."""
        streams = self._streams.get(user_id, ())
        self._schedule_flush([stream for stream in streams if stream.put(event)])
        return any(stream.is_connected for stream in streams)

    def sessions(self) -> set[int]:
        """Return the ids of the sessions with an open stream."""
        return {stream.session_id for streams in self._streams.values() for stream in streams}

    def end_all(self) -> None:
        """End every stream, and each that is added later. Call it when the server stops."""
        self._is_stopping = True
        self._check_ended()
        for stream in [stream for streams in self._streams.values() for stream in streams]:
            stream.end()

    async def wait_ended(self) -> None:
        """End every stream, and wait until all are removed."""
        self.end_all()
        await self._all_ended.wait()

    def _check_ended(self) -> None:
        if self._is_stopping and not self._streams:
            self._all_ended.set()

    def _end(self, session_end: SessionEnded) -> None:
        for stream in tuple(self._streams.get(session_end.user_id, ())):
            if stream.session_id == session_end.session_id:
                stream.end()

    def _schedule_flush(self, streams: list[Stream]) -> None:
        """Schedule the streams for writing. Events for few streams do not wait for events for many."""
        if streams:
            (self._priority_streams if len(streams) <= SLICE else self._bulk_streams).extend(streams)
            self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush_slice)

    def _flush_slice(self) -> None:
        """Write to a slice of each of the two queues of streams."""
        self._is_scheduled = False
        for streams in (self._priority_streams, self._bulk_streams):
            for _ in range(min(SLICE, len(streams))):
                stream = streams.popleft()
                _break_off_on_error(stream, stream.flush)
        if self._priority_streams or self._bulk_streams:
            self._flush_soon()

    def _send_keep_alive(self, stream: Stream) -> None:
        def remind() -> None:
            self._keep(stream.session_id)
            stream.keep_alive()

        _break_off_on_error(stream, remind)


def _break_off_on_error(stream: Stream, do: Callable[[], None]) -> None:
    """Run ``do``. If it fails, break off this stream only, so that its client reconnects."""
    try:
        do()
    except Exception:
        log.exception("stream_failed")
        stream.break_off()
