"""Events of the protocol: who listens, and which events each listener gets."""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

QUEUE_LIMIT = 1024
"""At most 1,024 events wait for a slow listener. After that the oldest are dropped."""


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
    """An event, and the ids of the users who are to get it."""

    recipients: frozenset[bytes]
    event: Event


@dataclass(frozen=True)
class Ending:
    """The end of a user's session, which ends the session's streams."""

    user_id: bytes
    session_id: int


@dataclass(frozen=True)
class Stored:
    """A message that was stored. Only what the server remembers hears of it, see ``cache``.

    ``body``: None where it was stored before. ``created_at``: Unix seconds.
    """

    group_key: int
    sequence_num: int
    sender_id: bytes
    body: bytes | None
    created_at: int


News = Announcement | Ending | Stored
"""What a transaction announces."""


class Stream:
    """The events that wait for one listener."""

    def __init__(self, session_id: int, on_end: Callable[[], None]) -> None:
        """The stream ends with its session. ``on_end`` is called then, once."""
        self.session_id = session_id
        self.ended = False
        self._on_end = on_end
        self._waiting: deque[Event] = deque()
        self._lost = 0
        self._news = asyncio.Event()

    def put(self, event: Event) -> None:
        """Add an event; never waits. If too many wait, the oldest is lost, and the listener learns that."""
        if len(self._waiting) == QUEUE_LIMIT:
            self._waiting.popleft()
            self._lost += 1
        self._waiting.append(event)
        self._news.set()

    def end(self) -> None:
        """End the stream. The listener still takes the events that wait."""
        if not self.ended:
            self.ended = True
            self._news.set()
            self._on_end()

    async def wait(self, seconds: float) -> None:
        """Wait until there is something to take, the stream has ended, or ``seconds`` are over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):  # wait_for would make a task for each of thousands
                await self._news.wait()

    def take(self) -> tuple[int, list[Event]]:
        """Return the number of events lost since the last call, and the events that wait."""
        lost, events = self._lost, list(self._waiting)
        self._lost = 0
        self._waiting.clear()
        self._news.clear()
        return lost, events


class Events:
    """The listeners of one server process."""

    def __init__(self) -> None:
        """Begin without listeners."""
        self._streams: dict[bytes, set[Stream]] = defaultdict(set)
        self._stopping = False

    @contextmanager
    def listen(self, user_id: bytes, session_id: int, on_end: Callable[[], None] = lambda: None) -> Iterator[Stream]:
        """Yield a stream of a user's events while the block lasts. ``on_end`` is called when the stream ends."""
        stream = Stream(session_id, on_end)
        self._streams[user_id].add(stream)
        if self._stopping:
            stream.end()
        try:
            yield stream
        finally:
            self._streams[user_id].discard(stream)
            if not self._streams[user_id]:
                del self._streams[user_id]

    def publish(self, news: Iterable[News]) -> None:
        """Hand each event to every stream of its recipients, and end the streams of sessions that are over.

        A user without a stream misses the event.
        """
        for each in news:
            if isinstance(each, Stored):
                continue
            if isinstance(each, Ending):
                self._end(each)
                continue
            for user_id in each.recipients & self._streams.keys():
                for stream in self._streams[user_id]:
                    stream.put(each.event)

    def sessions(self) -> set[int]:
        """Return the ids of the sessions that have a stream open."""
        return {stream.session_id for streams in self._streams.values() for stream in streams}

    def _end(self, ending: Ending) -> None:
        for stream in self._streams.get(ending.user_id, ()):
            if stream.session_id == ending.session_id:
                stream.end()

    def end_all(self) -> None:
        """End every stream, and each that begins later, since the server stops."""
        self._stopping = True
        for streams in self._streams.values():
            for stream in streams:
                stream.end()
