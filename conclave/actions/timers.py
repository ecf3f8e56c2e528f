"""Notifies readers of redacted messages: those that self-destructed for them, or were taken back."""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from conclave.actions.context import Context
from conclave.events import Event, Events, Stream
from conclave.store.resources import sessions, state, taken_back, timers
from conclave.store.resources.timers import Redaction, confirm_notified, last_missed

__all__ = [
    "Redaction",
    "RedactionNotifier",
    "Unannounced",
    "announce_ended",
    "announce_taken_back",
    "begin_stream",
    "confirm_notified",
    "last_missed",
    "unannounced",
]

MAX_DELIVERED_AT_ONCE = 2_048
"""The most delivered notes to delete in one transaction, for which senders wait."""


class Unannounced(NamedTuple):
    """Whether there are ended timers, and withdrawals, that were not announced yet."""

    timers: bool
    taken_back: bool


def unannounced(connection: sqlite3.Connection, context: Context) -> Unannounced:
    """Return whether ``announce_ended`` and ``announce_taken_back`` would announce redactions."""
    are_due = timers.are_due(connection, context.now()) and not state.clock_state(connection).fault
    return Unannounced(are_due, taken_back.has_unnotified(connection))


def announce_taken_back(connection: sqlite3.Connection) -> list[Redaction]:
    """Mark some taken back messages as announced; return the redactions to publish. Does not depend on the clock."""
    return taken_back.take_unnotified(connection)


def announce_ended(connection: sqlite3.Connection, context: Context) -> tuple[int, list[Redaction]]:
    """Mark some ended timers as announced; return how many, and the redactions to publish.

    An announced end is final, so nothing is announced while the clock is wrong: messages that a wrong clock hides
    become visible again once the clock is accepted. Raises UntrustedClockError.
    """
    now = context.now()  # before the clock is checked: a jump in between must end nothing
    context.require_clock(connection)
    return timers.take_ended(connection, now)


def begin_stream(connection: sqlite3.Connection, session_id: int, user_id: bytes) -> list[Redaction] | None:
    """Return the redactions that a user who opens a stream may have missed; None if the session has ended."""
    return timers.missed_redactions(connection, user_id) if sessions.exists(connection, session_id) else None


@dataclass(eq=False)
class OpeningStream:
    """A stream that is being opened: it buffers published events, but opening it may still fail.

    ``published``: notes up to this one were published before the stream was registered. ``queued``: the notes of the
    events in its buffer. ``deleted``: delivered notes of its user that have since been deleted, and may have been read.
    """

    stream: Stream
    published: int
    queued: list[int] = field(default_factory=list)
    deleted: set[int] = field(default_factory=set)


class RedactionNotifier:
    """Notifies readers of redactions: on their open streams, or else on the next one.

    The store has a note for each redaction to deliver. It counts as delivered once a stream has the event, which is
    decided here, on the event loop; the note is deleted later. So each redaction is delivered once, or twice if the
    process crashes in between.
    """

    def __init__(self, events: Events) -> None:
        """Create a notifier that publishes nothing before ``begin``."""
        self._events = events
        self._published = 0
        self._delivered: dict[int, bytes] = {}
        """The user of each delivered note."""
        self._opening: dict[bytes, list[OpeningStream]] = {}

    def begin(self, last: int) -> None:
        """Start. ``last``: notes up to this one are of a former process, and delivered to new streams."""
        self._published = last

    def publish(self, redactions: Sequence[Redaction]) -> None:
        """Send redactions to all open streams."""
        events: dict[tuple[bytes, int], Event] = {}
        for each in redactions:
            event = events.setdefault((each.group_id, each.sequence_num), _event(each))
            if self._events.send(each.user_id, event):
                self._delivered[each.missed_id] = each.user_id
            for opening in self._opening.get(each.user_id, ()):
                if not opening.stream.ended:
                    opening.queued.append(each.missed_id)
            self._published = each.missed_id

    @contextmanager
    def opening(self, stream: Stream) -> Iterator[OpeningStream]:
        """Context manager in which a stream is opened. ``stream``: just registered with ``Events``."""
        opening = OpeningStream(stream, self._published)
        self._opening.setdefault(stream.user_id, []).append(opening)
        try:
            yield opening
        finally:
            openings = self._opening[stream.user_id]
            openings.remove(opening)
            if not openings:
                del self._opening[stream.user_id]

    def catch_up(self, opening: OpeningStream, missed: Iterable[Redaction]) -> None:
        """Send a stream the redactions that it has missed, unless it has ended or got them by ``publish``.

        ``missed``: the result of ``begin_stream``, called within ``opening``. Call ``opened`` afterwards.
        """
        for each in missed if not opening.stream.ended else ():
            is_delivered = each.missed_id in self._delivered or each.missed_id in opening.deleted
            if each.missed_id <= opening.published and not is_delivered:
                opening.queued.append(each.missed_id)
                if each.is_member:
                    opening.stream.put(_event(each))

    def opened(self, opening: OpeningStream) -> None:
        """Record that a stream is open, so that its buffered events are delivered."""
        self._delivered.update(dict.fromkeys(opening.queued, opening.stream.user_id))

    @property
    def delivered(self) -> tuple[int, ...]:
        """The delivered notes that the store has to delete, at most MAX_DELIVERED_AT_ONCE."""
        return tuple(islice(self._delivered, MAX_DELIVERED_AT_ONCE))

    def forget(self, deleted: Iterable[int]) -> None:
        """Forget notes that the store has deleted."""
        for each in deleted:
            for opening in self._opening.get(self._delivered.pop(each, b""), ()):
                opening.deleted.add(each)


def _event(redaction: Redaction) -> Event:
    values = {"group_id": redaction.group_id, "sequence_num": redaction.sequence_num}
    return Event("message_redacted", values)
