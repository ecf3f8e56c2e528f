"""A clock that ignores small backward steps of the wall clock, so that expired messages stay expired."""

import threading
from dataclasses import dataclass

from conclave.clock import Clock, Moment, Reading
from conclave.clock.guard import TOLERANCE_SECONDS, effective_time, seconds_apart


@dataclass(frozen=True)
class Floor:
    """The time that the steady clock does not fall below."""

    acted_until: int = 0
    """The greatest time that was acted on, Unix seconds."""
    acceptances: int = 0
    """How often an operator had accepted the clock by then."""


class SteadyClock:
    """A clock whose time never falls below its floor while the wall clock is behind it by at most the tolerance.

    The clock guard has the same tolerance. If the wall clock was further behind, its time is used as it is until
    ``resume``.

    Each reading raises the floor if it agrees with the monotonic clock. So a jump of the wall clock does not raise
    the floor, even before the jump is detected. Thread-safe.

    Each ``moment`` also shows whether the clock is in doubt, since the last ``resume`` or because of this reading. So
    decisions do not depend on the time of the next check.
    """

    def __init__(self, clock: Clock) -> None:
        """Start without a floor. ``clock`` is in doubt until ``resume`` is called with a correct reading."""
        self._clock = clock
        self._lock = threading.Lock()
        self._floor = Floor()
        self._last_correct: Reading | None = None
        self._is_behind = False

    @property
    def floor(self) -> Floor:
        """The time that ``now`` does not fall below."""
        return self._floor

    def now(self) -> int:
        """Return the time to act on, in whole Unix seconds."""
        return self.moment().now

    def moment(self) -> Moment:
        """Return the time to act on, and whether it is in doubt, from one reading."""
        with self._lock:
            reading = self._clock.read()
            acted_until = self._floor.acted_until
            if acted_until - reading.wall > TOLERANCE_SECONDS:
                self._is_behind = True
            # Otherwise the time would jump to the floor as soon as the wall clock came within the tolerance.
            now = reading.wall if self._is_behind else effective_time(reading.wall, acted_until)
            is_plausible = self._last_correct and abs(seconds_apart(self._last_correct, reading)) <= TOLERANCE_SECONDS
            if self._is_behind or not is_plausible:
                return Moment(now, min(now, acted_until), in_doubt=True)
            if reading.wall > acted_until:
                self._floor = Floor(reading.wall, self._floor.acceptances)
            return Moment(now, now)

    def read(self) -> Reading:
        """Return both clocks, without the floor."""
        return self._clock.read()

    def resume(self, floor: Floor, correct_reading: Reading | None) -> None:
        """Continue from the ``floor`` in the store.

        ``correct_reading``: a reading of this process, or None if the clock was wrong. The floor is lowered only if an
        operator has accepted the clock since.
        """
        with self._lock:
            is_new = floor.acceptances != self._floor.acceptances
            if is_new or floor.acted_until > self._floor.acted_until:
                self._floor = floor
            if is_new or correct_reading:
                self._is_behind = False
            self._last_correct = correct_reading
