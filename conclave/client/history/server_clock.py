"""Tracks the server's time, even offline, when the machine's clock is set, or when the server's time jumps."""

from dataclasses import dataclass

from conclave.clock import Clock, Reading

CONFIRMING_ANSWERS = 10
"""A jump of the server's time is accepted after 10 consecutive answers, each a minute after the one before.

Messages erased because of a wrong time are lost. Messages erased some minutes late do no harm: they are hidden until
then. Wrong clocks are usually corrected within minutes. Several answers are required because the machine may be
suspended between two of them, and minutes between them because many answers may arrive at once.
"""

ANSWER_INTERVAL_SECONDS = 60
"""Answers within this time count as one."""

TOLERANCE_SECONDS = 10
"""Accepted difference between the server's time and the local clocks: answers arrive late."""

DRIFT_DIVISOR = 1_000
"""The elapsed time divided by this is added to the accepted difference, since clocks drift."""


@dataclass(frozen=True)
class Anchor:
    """The server's time, in Unix seconds, at one reading of the local clocks."""

    server: int
    at: Reading


@dataclass(frozen=True)
class UnconfirmedTime:
    """A time of the server that contradicts the local clocks."""

    anchor: Anchor
    answers: int = 1
    """Number of answers with this time."""


class ServerClock:
    """Extrapolates the last accepted time of the server with the local clocks.

    Messages are hidden according to the latest possible time: that of the local clock on which more time has passed, or
    an unconfirmed jump. So no message reappears if the wall clock is set back, or the monotonic clock stops while the
    machine is suspended. Messages are erased according to the confirmed time: that of the monotonic clock, without
    unconfirmed jumps. A constant error of the wall clock is harmless, since only differences count.
    """

    def __init__(self, clock: Clock, anchor: Anchor | None = None, unconfirmed: UnconfirmedTime | None = None) -> None:
        """``anchor``: None before the first answer; until then the wall clock is used."""
        self._clock = clock
        self.anchor = anchor
        self.unconfirmed = unconfirmed
        self.unknown_time_count = 0
        self._unknown_since: Reading | None = None

    def record_unknown_time(self) -> None:
        """Record an answer that the server sent while its clock was in doubt."""
        self._unknown_since = self._clock.read()
        self.unknown_time_count += 1

    def record_time(self, date: int) -> int:
        """Record the server's time ``date``, in whole seconds, rounded down.

        Return how many seconds the accepted time was behind: 0 unless a jump was confirmed. The first time ever is
        accepted, since there are no messages to lose.
        """
        reading, self._unknown_since = self._clock.read(), None
        candidate = Anchor(date + 1, reading)
        if self.anchor is None or _agrees(self.anchor, candidate) or _matches_wall_clock(self.anchor, candidate):
            self.anchor, self.unconfirmed = candidate, None
        elif self.unconfirmed is None or not _agrees(self.unconfirmed.anchor, candidate):
            self.unconfirmed = UnconfirmedTime(candidate)
        elif _elapsed(self.unconfirmed.anchor.at, reading) >= ANSWER_INTERVAL_SECONDS:
            self.unconfirmed = UnconfirmedTime(candidate, self.unconfirmed.answers + 1)
            if self.unconfirmed.answers >= CONFIRMING_ANSWERS:
                jump = candidate.server - _latest(self.anchor, reading)
                self.anchor, self.unconfirmed = candidate, None
                return max(0, jump)
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
        """Return the latest possible time of the server, in Unix seconds, by which messages are hidden."""
        reading = self._clock.read()
        return max((_latest(each, reading) for each in self._candidates), default=reading.wall)

    def confirmed_now(self) -> int:
        """Return the confirmed time of the server, at most ``now``, by which messages are erased."""
        reading = self._clock.read()
        return min((each.server + _elapsed(each.at, reading) for each in self._candidates), default=reading.wall)

    def earliest(self) -> int:
        """Return the earliest possible value of ``now``, in Unix seconds, at which timers start.

        If a clock that was set forward determined the start, the timer would end too late after the next answer.
        """
        reading = self._clock.read()
        return max((_earliest(each, reading) for each in self._candidates), default=reading.wall)

    @property
    def _candidates(self) -> list[Anchor]:
        """The accepted time and the unconfirmed one, if any."""
        return [each for each in (self.anchor, self.unconfirmed and self.unconfirmed.anchor) if each]


def _is_same_boot(at: Reading, reading: Reading) -> bool:
    return reading.boot_id == at.boot_id and reading.since_boot >= at.since_boot


def _elapsed(at: Reading, reading: Reading) -> int:
    """Return the elapsed seconds of the monotonic clock, or of the wall clock after a reboot."""
    elapsed = reading.since_boot - at.since_boot if _is_same_boot(at, reading) else reading.wall - at.wall
    return max(0, elapsed)


def _latest(anchor: Anchor, reading: Reading) -> int:
    return anchor.server + max(_elapsed(anchor.at, reading), reading.wall - anchor.at.wall)


def _earliest(anchor: Anchor, reading: Reading) -> int:
    return anchor.server - 1 + min(_elapsed(anchor.at, reading), max(0, reading.wall - anchor.at.wall))


def _agrees(anchor: Anchor, candidate: Anchor) -> bool:
    """Return whether a time equals an earlier one plus the elapsed time, within the tolerance."""
    elapsed = _elapsed(anchor.at, candidate.at)
    return abs(candidate.server - anchor.server - elapsed) <= TOLERANCE_SECONDS + elapsed // DRIFT_DIVISOR


def _matches_wall_clock(anchor: Anchor, candidate: Anchor) -> bool:
    """Return whether, after a reboot, a time agrees with the wall clock, which may have been wrong before."""
    return not _is_same_boot(anchor.at, candidate.at) and abs(candidate.server - candidate.at.wall) <= TOLERANCE_SECONDS
