"""Events: who is listening, and handing each of them what is addressed to their user."""

import asyncio
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

QUEUE_LIMIT = 1024
"""Events that wait for a slow listener, at most; the oldest give way."""


@dataclass(frozen=True)
class Event:
    """Something that happened: the name and the fields of one of the protocol's events.

    ``written`` keeps it as it goes over streams, by format: it is the same for all who hear it.
    """

    name: str
    values: Mapping[str, Any]
    written: dict[Any, bytes] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True)
class Announcement:
    """An event and the users whom it is addressed to."""

    recipients: frozenset[bytes]
    event: Event


@dataclass(frozen=True)
class Ending:
    """A session that is over, and its streams with it; without ``session_id`` all sessions of the user are."""

    user_id: bytes
    session_id: int | None = None


News = Announcement | Ending
"""What a transaction has to tell."""


class Stream:
    """What waits for one listener."""

    def __init__(self, session_id: int) -> None:
        """The stream ends with its session."""
        self.session_id = session_id
        self.ended = False
        self._waiting: deque[Event] = deque()
        self._lost = 0
        self._news = asyncio.Event()

    def put(self, event: Event) -> None:
        """Add an event; never waits. Where too many wait, the oldest is lost, which the listener learns."""
        if len(self._waiting) == QUEUE_LIMIT:
            self._waiting.popleft()
            self._lost += 1
        self._waiting.append(event)
        self._news.set()

    def end(self) -> None:
        """Let the listener go, once it has taken what waits."""
        self.ended = True
        self._news.set()

    async def wait(self, seconds: float) -> None:
        """Wait until there is something to take, the stream has ended, or ``seconds`` are over."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), seconds)

    def take(self) -> tuple[int, list[Event]]:
        """Return how many events were lost since the last time, and those that wait."""
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

    @contextmanager
    def listen(self, user_id: bytes, session_id: int) -> Iterator[Stream]:
        """Take part in what is addressed to a user, while the block lasts."""
        stream = Stream(session_id)
        self._streams[user_id].add(stream)
        try:
            yield stream
        finally:
            self._streams[user_id].discard(stream)
            if not self._streams[user_id]:
                del self._streams[user_id]

    def publish(self, news: Iterable[News]) -> None:
        """Hand each event to every stream of its recipients, and end the streams of sessions that are over.

        Who does not listen misses it.
        """
        for each in news:
            if isinstance(each, Ending):
                self._end(each)
                continue
            for user_id in each.recipients & self._streams.keys():
                for stream in self._streams[user_id]:
                    stream.put(each.event)

    def _end(self, ending: Ending) -> None:
        for stream in self._streams.get(ending.user_id, ()):
            if ending.session_id in (None, stream.session_id):
                stream.end()

    def end_all(self) -> None:
        """End every stream: the server stops."""
        for streams in self._streams.values():
            for stream in streams:
                stream.end()
