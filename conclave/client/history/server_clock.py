"""Tells the server's time, also offline, when the machine's clock is set, and while the server's leaps."""

from dataclasses import dataclass

from conclave.clock import Clock, Reading

CONFIRMING_ANSWERS = 10
"""A leap of the server's time is believed once 10 answers in a row go by it, each a minute after the one before.

What is erased by a wrong time never comes back, and what is erased some minutes late was hidden meanwhile. A clock that
is set wrong by hand, by a time server or when a machine wakes up is mostly mended within minutes. Answers are counted
since a machine may sleep between two of them, and minutes since many come within a moment.
"""

ANSWER_INTERVAL_SECONDS = 60
"""Of answers within a minute one counts."""

TOLERANCE_SECONDS = 10
"""The server's time may differ from what this machine's clocks make of it by 10 seconds: answers come late."""

DRIFT_DIVISOR = 1_000
"""And by a thousandth of the time since it was heard: clocks of two machines do not go alike."""


@dataclass(frozen=True)
class Anchor:
    """The server's time, Unix seconds, at one reading of this machine's clocks."""

    server: int
    at: Reading


@dataclass(frozen=True)
class UnconfirmedTime:
    """A time that the server tells and this machine's clocks contradict."""

    anchor: Anchor
    answers: int = 1
    """How many have told it."""


class ServerClock:
    """Goes on from the last time of the server's that is believed, by this machine's clocks.

    By the latest that it may be, things are hidden: by whichever of the two clocks says that more time has passed, or
    by a leap that is in doubt. A wall clock that is set back revives nothing, nor does a steady one that stands still
    while the machine sleeps. By what is sure, things are erased: by the monotonic clock, and not by a leap
    that is in doubt. A wall clock that is fast or slow all the time does no harm: only what it has moved counts.
    """

    def __init__(self, clock: Clock, anchor: Anchor | None = None, doubt: UnconfirmedTime | None = None) -> None:
        """``anchor``: None if the server has never been heard; the wall clock counts until it is."""
        self._clock = clock
        self.anchor = anchor
        self.doubt = doubt
        self.unknown_time_count = 0
        self._unknown_since: Reading | None = None

    def record_unknown_time(self) -> None:
        """The server answers and does not know what time it is."""
        self._unknown_since = self._clock.read()
        self.unknown_time_count += 1

    def record_time(self, date: int) -> int:
        """The server says that it is ``date``, in whole seconds rounded down: up to a second more.

        Return how many seconds the time that was believed was behind: 0 unless a doubt has ended by being confirmed.
        The first time that is ever heard is believed: nothing else is known, and nothing is here that could be lost.
        """
        reading, self._unknown_since = self._clock.read(), None
        received = Anchor(date + 1, reading)
        if self.anchor is None or _agrees(self.anchor, received) or _matches_wall_clock(self.anchor, received):
            self.anchor, self.doubt = received, None
        elif self.doubt is None or not _agrees(self.doubt.anchor, received):
            self.doubt = UnconfirmedTime(received)
        elif _elapsed(self.doubt.anchor.at, reading) >= ANSWER_INTERVAL_SECONDS:
            self.doubt = UnconfirmedTime(received, self.doubt.answers + 1)
            if self.doubt.answers >= CONFIRMING_ANSWERS:
                leap = received.server - _latest(self.anchor, reading)
                self.anchor, self.doubt = received, None
                return max(0, leap)
        return 0

    @property
    def is_time_unknown(self) -> bool:
        """Whether the server did not know the time when it answered last."""
        return self._unknown_since is not None

    @property
    def needs_answer(self) -> bool:
        """Whether another answer would count, for a doubt or against it, or may have a time at last."""
        asked_at = self._unknown_since or (self.doubt.anchor.at if self.doubt else None)
        return asked_at is not None and _elapsed(asked_at, self._clock.read()) >= ANSWER_INTERVAL_SECONDS

    @property
    def machine_ahead(self) -> int:
        """By how many seconds the wall clock was ahead of the server's time when that was heard last."""
        return self.anchor.at.wall - self.anchor.server if self.anchor else 0

    def now(self) -> int:
        """Return the latest that the server's time may be, Unix seconds: by it things are hidden."""
        reading = self._clock.read()
        return max((_latest(each, reading) for each in self._candidates), default=reading.wall)

    def confirmed_now(self) -> int:
        """Return the time that has come for sure, by which things are erased: no later than ``now``."""
        reading = self._clock.read()
        return min((each.server + _elapsed(each.at, reading) for each in self._candidates), default=reading.wall)

    def earliest(self) -> int:
        """Return the earliest that the time may be by which things are hidden, Unix seconds: from it on timers run.

        A timer that began by a clock that was set forward would end too late once the server is heard again.
        """
        reading = self._clock.read()
        return max((_earliest(each, reading) for each in self._candidates), default=reading.wall)

    @property
    def _candidates(self) -> list[Anchor]:
        """The times that may be right."""
        return [each for each in (self.anchor, self.doubt and self.doubt.anchor) if each]


def _is_same_start(at: Reading, reading: Reading) -> bool:
    return reading.boot_id == at.boot_id and reading.since_boot >= at.since_boot


def _elapsed(at: Reading, reading: Reading) -> int:
    """Return how much time has passed by the monotonic clock, or by the wall clock after a reboot."""
    steady = reading.since_boot - at.since_boot if _is_same_start(at, reading) else reading.wall - at.wall
    return max(0, steady)


def _latest(anchor: Anchor, reading: Reading) -> int:
    return anchor.server + max(_elapsed(anchor.at, reading), reading.wall - anchor.at.wall)


def _earliest(anchor: Anchor, reading: Reading) -> int:
    return anchor.server - 1 + min(_elapsed(anchor.at, reading), max(0, reading.wall - anchor.at.wall))


def _agrees(anchor: Anchor, received: Anchor) -> bool:
    """Tell whether a time is the one that another one has become by now."""
    passed = _elapsed(anchor.at, received.at)
    return abs(received.server - anchor.server - passed) <= TOLERANCE_SECONDS + passed // DRIFT_DIVISOR


def _matches_wall_clock(anchor: Anchor, received: Anchor) -> bool:
    """Tell whether a time is that of the wall clock after a reboot, which may have been wrong before it."""
    return not _is_same_start(anchor.at, received.at) and abs(received.server - received.at.wall) <= TOLERANCE_SECONDS
