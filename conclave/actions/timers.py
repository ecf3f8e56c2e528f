"""Telling readers that a self-destructing message has come to its end for them."""

import sqlite3
from collections.abc import Iterable, Sequence

from conclave.actions.context import Context
from conclave.events import Event, Events
from conclave.store import sessions, state, timers
from conclave.store.timers import Redaction, heard, last_missed

__all__ = ["Redaction", "Telling", "are_due", "begin_stream", "heard", "last_missed", "tell"]


def are_due(connection: sqlite3.Connection, context: Context) -> bool:
    """Tell whether ``tell`` has anything to do. While the clock is wrong it has not."""
    return timers.are_due(connection, context.now()) and not state.standing(connection).fault


def tell(connection: sqlite3.Connection, context: Context) -> tuple[int, list[Redaction]]:
    """Note timers that have ended, some at a time; return how many these were, and whom to tell of what.

    A wrong clock ends no timer for good, not even before the guard has noticed: reads go by it, and what it hides comes
    back once the clock is accepted. What readers were told would not. Raises UntrustedClockError.
    """
    state.require_clock(connection, context.clock.read())
    return timers.tell(connection, context.now())


def begin_stream(connection: sqlite3.Connection, session_id: int, user_id: bytes) -> list[Redaction] | None:
    """Return what a user who begins to listen may have missed; None if the session is over."""
    return timers.missed(connection, user_id) if sessions.exists(connection, session_id) else None


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
        self._heard: set[int] = set()

    def begin(self, last: int) -> None:
        """Begin. ``last``: notes up to this one are of a former process. Whoever begins to listen hears of them."""
        self._published = last

    def publish(self, told: Sequence[Redaction]) -> None:
        """Tell the streams that are open of what ``tell`` has returned."""
        made: dict[tuple[bytes, int], Event] = {}
        for each in told:
            event = made.setdefault((each.group_id, each.sequence_num), _event(each))
            if self._events.tell(each.user_id, event):
                self._heard.add(each.missed_id)
            self._published = each.missed_id

    def catch_up(self, missed: Iterable[Redaction]) -> list[Event]:
        """Return the events that a new stream gets first. Those that it gets by ``publish`` are not among them.

        ``missed``: what ``begin_stream`` returned, called when ``Events`` already knew the stream.
        """
        return [_event(each) for each in self._unheard(missed) if each.is_member]

    def caught_up(self, missed: Iterable[Redaction]) -> None:
        """Note that a stream got what ``catch_up`` has just returned."""
        self._heard.update(each.missed_id for each in self._unheard(missed))

    @property
    def heard(self) -> tuple[int, ...]:
        """The notes of which the store has to learn that they were heard."""
        return tuple(self._heard)

    def forget(self, heard: Iterable[int]) -> None:
        """Forget notes that the store does not have any more."""
        self._heard.difference_update(heard)

    def _unheard(self, missed: Iterable[Redaction]) -> list[Redaction]:
        return [each for each in missed if each.missed_id <= self._published and each.missed_id not in self._heard]


def _event(redaction: Redaction) -> Event:
    values = {"group_id": redaction.group_id, "sequence_num": redaction.sequence_num}
    return Event("message_redacted", values)
