"""A clock that small steps of the wall clock do not turn back: what has expired by it stays expired."""

import threading
from dataclasses import dataclass

from conclave.clock import Clock, Reading
from conclave.retention.clock_guard import TOLERANCE_SECONDS, seconds_apart, time_to_act_on


@dataclass(frozen=True)
class Floor:
    """The greatest time that was acted on, Unix seconds, and how often the clock has been accepted before that."""

    acted_until: int = 0
    acceptances: int = 0


class SteadyClock:
    """Another clock, whose time never falls below its floor while that one is within the guard's tolerance below it.

    The floor rises with each look, but only by readings that agree with the clock that nobody sets: a jump does not
    raise it, though nobody may have noticed it yet. May be used by several threads.
    """

    def __init__(self, clock: Clock) -> None:
        """Begin without a floor, and without trust in ``clock``: see ``resume``."""
        self._clock = clock
        self._lock = threading.Lock()
        self._floor = Floor()
        self._known: Reading | None = None
        self._is_behind = False

    @property
    def floor(self) -> Floor:
        """What the time does not fall below."""
        return self._floor

    def now(self) -> int:
        """Return the time to act on, in whole Unix seconds."""
        with self._lock:
            reading = self._clock.read()
            until = self._floor.acted_until
            if until - reading.wall > TOLERANCE_SECONDS:
                self._is_behind = True
            if self._is_behind:
                # Coming within the tolerance by and by, it would skip the rest at once.
                return reading.wall
            if self._known and reading.wall > until and abs(seconds_apart(self._known, reading)) <= TOLERANCE_SECONDS:
                self._floor = Floor(reading.wall, self._floor.acceptances)
            return time_to_act_on(reading.wall, self._floor.acted_until)

    def read(self) -> Reading:
        """Return both clocks as they are."""
        return self._clock.read()

    def resume(self, floor: Floor, known: Reading | None) -> None:
        """Go on from what the store knows; ``known``: a reading of this process that was right, None if it was not.

        The floor sinks only where the clock was accepted since.
        """
        with self._lock:
            is_new = floor.acceptances != self._floor.acceptances
            if is_new or floor.acted_until > self._floor.acted_until:
                self._floor = floor
            if is_new or known:
                self._is_behind = False
            self._known = known
