"""Tracks the server's time: offline, when the machine's clock is set, and when the server's time jumps."""

from dataclasses import dataclass

from conclave.clock import Clock, Reading

CONFIRMING_ANSWERS = 10
"""A jump of the server's time is accepted after 10 consecutive answers, each a minute after the one before.

Messages erased by a wrong time are lost, while messages erased some minutes late were hidden meanwhile. Wrong clocks
are mostly corrected within minutes. Answers are counted because a machine may sleep between two of them, minutes
because many answers arrive at once.
"""

ANSWER_INTERVAL_SECONDS = 60
"""Answers within this time count as one."""

TOLERANCE_SECONDS = 10
"""Accepted difference between the server's time and the local clocks: answers arrive late."""

DRIFT_DIVISOR = 1_000
"""Divisor of the elapsed time, which adds to the accepted difference: clocks drift."""


@dataclass(frozen=True)
class Anchor:
    """The server's time, in Unix seconds, at one reading of the local clocks."""

    server: int
    at: Reading


@dataclass(frozen=True)
class UnconfirmedTime:
    """A time from the server that the local clocks contradict."""

    anchor: Anchor
    answers: int = 1
    """Answers with this time."""


class ServerClock:
    """Extrapolates the last accepted time of the server by the local clocks.

    Messages are hidden by the latest possible time: that of the local clock on which more time has passed, or an
    unconfirmed jump. So setting the wall clock back shows nothing again, nor does a monotonic clock that stops during
    sleep. Messages are erased by the confirmed time: by the monotonic clock, without unconfirmed jumps. A constant
    error of the wall clock is harmless, since only differences count.
    """

    def __init__(self, clock: Clock, anchor: Anchor | None = None, unconfirmed: UnconfirmedTime | None = None) -> None:
        """``anchor``: None before the first answer; until then the wall clock counts."""
        self._clock = clock
        self.anchor = anchor
        self.unconfirmed = unconfirmed
        self.unknown_time_count = 0
        self._unknown_since: Reading | None = None

    def record_unknown_time(self) -> None:
        """Record an answer of the server whose clock was in doubt."""
        self._unknown_since = self._clock.read()
        self.unknown_time_count += 1

    def record_time(self, date: int) -> int:
        """Record the server's time ``date``, in whole seconds, rounded down.

        Return how many seconds the accepted time was behind: 0 unless a jump was confirmed. The first time ever is
        accepted, since there are no messages to lose.
        """
        reading, self._unknown_since = self._clock.read(), None
        received = Anchor(date + 1, reading)
        if self.anchor is None or _agrees(self.anchor, received) or _matches_wall_clock(self.anchor, received):
            self.anchor, self.unconfirmed = received, None
        elif self.unconfirmed is None or not _agrees(self.unconfirmed.anchor, received):
            self.unconfirmed = UnconfirmedTime(received)
        elif _elapsed(self.unconfirmed.anchor.at, reading) >= ANSWER_INTERVAL_SECONDS:
            self.unconfirmed = UnconfirmedTime(received, self.unconfirmed.answers + 1)
            if self.unconfirmed.answers >= CONFIRMING_ANSWERS:
                leap = received.server - _latest(self.anchor, reading)
                self.anchor, self.unconfirmed = received, None
                return max(0, leap)
        return 0

    @property
    def is_time_unknown(self) -> bool:
        """Whether the server's clock was in doubt in its last answer."""
        return self._unknown_since is not None

    @property
    def needs_answer(self) -> bool:
        """Whether to ask the server for another answer, to confirm a jump or to get a time."""
        asked_at = self._unknown_since or (self.unconfirmed.anchor.at if self.unconfirmed else None)
        return asked_at is not None and _elapsed(asked_at, self._clock.read()) >= ANSWER_INTERVAL_SECONDS

    @property
    def machine_ahead(self) -> int:
        """How many seconds the wall clock was ahead of the server's time at the last accepted answer."""
        return self.anchor.at.wall - self.anchor.server if self.anchor else 0

    def now(self) -> int:
        """Return the latest possible time of the server, in Unix seconds. Messages are hidden by it."""
        reading = self._clock.read()
        return max((_latest(each, reading) for each in self._candidates), default=reading.wall)

    def confirmed_now(self) -> int:
        """Return the confirmed time of the server, at most ``now``. Messages are erased by it."""
        reading = self._clock.read()
        return min((each.server + _elapsed(each.at, reading) for each in self._candidates), default=reading.wall)

    def earliest(self) -> int:
        """Return the earliest possible value of ``now``, in Unix seconds. Timers start at it.

        A timer that started by a clock set forward would end too late after the next answer.
        """
        reading = self._clock.read()
        return max((_earliest(each, reading) for each in self._candidates), default=reading.wall)

    @property
    def _candidates(self) -> list[Anchor]:
        """The accepted time and the unconfirmed one, if any."""
        return [each for each in (self.anchor, self.unconfirmed and self.unconfirmed.anchor) if each]


def _is_same_start(at: Reading, reading: Reading) -> bool:
    return reading.boot_id == at.boot_id and reading.since_boot >= at.since_boot


def _elapsed(at: Reading, reading: Reading) -> int:
    """Return the seconds elapsed by the monotonic clock, or by the wall clock after a reboot."""
    steady = reading.since_boot - at.since_boot if _is_same_start(at, reading) else reading.wall - at.wall
    return max(0, steady)


def _latest(anchor: Anchor, reading: Reading) -> int:
    return anchor.server + max(_elapsed(anchor.at, reading), reading.wall - anchor.at.wall)


def _earliest(anchor: Anchor, reading: Reading) -> int:
    return anchor.server - 1 + min(_elapsed(anchor.at, reading), max(0, reading.wall - anchor.at.wall))


def _agrees(anchor: Anchor, received: Anchor) -> bool:
    """Return whether a time equals an earlier one plus the elapsed time, within the tolerance."""
    passed = _elapsed(anchor.at, received.at)
    return abs(received.server - anchor.server - passed) <= TOLERANCE_SECONDS + passed // DRIFT_DIVISOR


def _matches_wall_clock(anchor: Anchor, received: Anchor) -> bool:
    """Return whether, after a reboot, a time agrees with the wall clock, which may have been wrong before."""
    return not _is_same_start(anchor.at, received.at) and abs(received.server - received.at.wall) <= TOLERANCE_SECONDS
