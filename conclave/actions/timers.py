"""Telling readers what is redacted for them: what has destroyed itself, or was taken back."""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from conclave.actions.context import Context
from conclave.events import Event, Events, Stream
from conclave.store.resources import sessions, state, taken_back, timers
from conclave.store.resources.timers import Redaction, heard, last_missed

__all__ = [
    "Redaction",
    "Telling",
    "Waiting",
    "begin_stream",
    "heard",
    "last_missed",
    "look",
    "tell",
    "tell_taken_back",
]

HEARD_AT_ONCE = 2_048
"""At most 2,048 notes that were heard are forgotten in a transaction: senders wait for it."""


class Waiting(NamedTuple):
    """Whether timers have ended that were not told, and whether messages were taken back that were not."""

    timers: bool
    taken_back: bool


def look(connection: sqlite3.Connection, context: Context) -> Waiting:
    """Return whether ``tell`` and ``tell_taken_back`` have anything to do."""
    are_due = timers.are_due(connection, context.now()) and not state.standing(connection).fault
    return Waiting(are_due, taken_back.are_untold(connection))


def tell_taken_back(connection: sqlite3.Connection) -> list[Redaction]:
    """Note messages that were taken back as told, some at a time; return whom to tell of what. No clock matters."""
    return taken_back.tell(connection)


def tell(connection: sqlite3.Connection, context: Context) -> tuple[int, list[Redaction]]:
    """Note timers that have ended, some at a time; return how many these were, and whom to tell of what.

    A wrong clock ends no timer for good, not even before the guard has noticed: reads go by it, and what it hides comes
    back once the clock is accepted. What readers were told would not. Raises UntrustedClockError.
    """
    now = context.now()  # before the clock is looked at: a jump in between must end nothing
    context.require_clock(connection)
    return timers.tell(connection, now)


def begin_stream(connection: sqlite3.Connection, session_id: int, user_id: bytes) -> list[Redaction] | None:
    """Return what a user who begins to listen may have missed; None if the session is over."""
    return timers.missed(connection, user_id) if sessions.exists(connection, session_id) else None


@dataclass(eq=False)
class Coming:
    """A stream that is about to begin: what is published waits in it, but it may yet fail to begin.

    ``published``: notes up to this one were published before it was there. ``handed``: the notes of what waits in it.
    ``forgotten``: notes of its user that the store has had until now, though they were heard: it may have read them.
    """

    stream: Stream
    published: int
    handed: list[int] = field(default_factory=list)
    forgotten: set[int] = field(default_factory=set)


class Telling:
    """Tells the streams of readers what was redacted for them: those that are open, or else the next one.

    The store has a note for each redaction that is still to be heard. Which of these were heard is decided here, on the
    event loop, in the moment in which a stream gets the event; the store learns of it soon after. So a reader hears of
    each once, unless the process dies in between: then once more.
    """

    def __init__(self, events: Events) -> None:
        """Nothing is told before ``begin``."""
        self._events = events
        self._published = 0
        self._heard: dict[int, bytes] = {}
        """Whose each note is."""
        self._coming: dict[bytes, list[Coming]] = {}

    def begin(self, last: int) -> None:
        """Begin. ``last``: notes up to this one are of a former process. A stream that begins gets them."""
        self._published = last

    def publish(self, told: Sequence[Redaction]) -> None:
        """Tell the streams that are open of what ``tell`` has returned."""
        made: dict[tuple[bytes, int], Event] = {}
        for each in told:
            event = made.setdefault((each.group_id, each.sequence_num), _event(each))
            if self._events.send(each.user_id, event):
                self._heard[each.missed_id] = each.user_id
            for coming in self._coming.get(each.user_id, ()):
                if not coming.stream.ended:
                    coming.handed.append(each.missed_id)
            self._published = each.missed_id

    @contextmanager
    def expect(self, stream: Stream) -> Iterator[Coming]:
        """Follow a stream that begins, or fails to, within the block. ``Events`` has just come to know it."""
        coming = Coming(stream, self._published)
        self._coming.setdefault(stream.user_id, []).append(coming)
        try:
            yield coming
        finally:
            of_user = self._coming[stream.user_id]
            of_user.remove(coming)
            if not of_user:
                del self._coming[stream.user_id]

    def catch_up(self, coming: Coming, missed: Iterable[Redaction]) -> None:
        """Hand a stream what it has missed, but for what it got by ``publish``; nothing if it has ended.

        ``missed``: what ``begin_stream`` returned, called within ``expect``. Once the stream has begun, call ``begun``.
        """
        for each in missed if not coming.stream.ended else ():
            is_heard = each.missed_id in self._heard or each.missed_id in coming.forgotten
            if each.missed_id <= coming.published and not is_heard:
                coming.handed.append(each.missed_id)
                if each.is_member:
                    coming.stream.put(_event(each))

    def begun(self, coming: Coming) -> None:
        """Note that a stream gets all that waited in it."""
        self._heard.update(dict.fromkeys(coming.handed, coming.stream.user_id))

    @property
    def heard(self) -> tuple[int, ...]:
        """Notes of which the store has to learn that they were heard, at most HEARD_AT_ONCE; none: it knows of all."""
        return tuple(islice(self._heard, HEARD_AT_ONCE))

    def forget(self, heard: Iterable[int]) -> None:
        """Forget notes that the store does not have any more. ``heard``: of those that it had to learn of."""
        for each in heard:
            for coming in self._coming.get(self._heard.pop(each, b""), ()):
                coming.forgotten.add(each)


def _event(redaction: Redaction) -> Event:
    values = {"group_id": redaction.group_id, "sequence_num": redaction.sequence_num}
    return Event("message_redacted", values)
