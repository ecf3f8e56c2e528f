"""Events: who is listening, and handing each of them what is addressed to their user."""

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

QUEUE_LIMIT = 1024
"""Events that wait for a slow listener, at most; the oldest give way."""


@dataclass(frozen=True)
class Event:
    """Something that happened in a group; ``user_id``: whom it is about."""

    name: str
    group_id: bytes
    user_id: bytes


class Events:
    """The listeners of one server process."""

    def __init__(self) -> None:
        """Begin without listeners."""
        self._listeners: dict[bytes, set[asyncio.Queue[Event]]] = defaultdict(set)

    @contextmanager
    def listen(self, user_id: bytes) -> Iterator[asyncio.Queue[Event]]:
        """Take what is addressed to a user from the queue, while the block lasts."""
        queue: asyncio.Queue[Event] = asyncio.Queue(QUEUE_LIMIT)
        self._listeners[user_id].add(queue)
        try:
            yield queue
        finally:
            self._listeners[user_id].discard(queue)
            if not self._listeners[user_id]:
                del self._listeners[user_id]

    def publish(self, recipient_id: bytes, event: Event) -> None:
        """Hand ``event`` to every listener of a user; never waits. Whoever does not listen misses it."""
        for queue in self._listeners.get(recipient_id, ()):
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(event)
