"""A clock that ignores small backward steps of the wall clock, so that what expired stays expired."""

import threading
from dataclasses import dataclass

from conclave.clock import Clock, Moment, Reading
from conclave.clock.guard import TOLERANCE_SECONDS, seconds_apart, time_to_act_on


@dataclass(frozen=True)
class Floor:
    """The time that the steady clock does not fall below."""

    acted_until: int = 0
    """The greatest time that was acted on, Unix seconds."""
    acceptances: int = 0
    """How often an operator had accepted the clock before that."""


class SteadyClock:
    """A clock whose time never falls below its floor while the wall clock is at most the tolerance behind.

    The tolerance is that of the clock guard. A wall clock that was further behind counts as it is until ``resume``.

    The floor rises with each look, but only by readings that agree with the monotonic clock. So a jump of the
    wall clock does not raise it, even before the jump is noticed. Several threads may use it.

    Each look also tells whether the clock is in doubt: since the last ``resume``, or by this very reading. So what
    decides by a ``moment`` does not depend on when the guard looks next.
    """

    def __init__(self, clock: Clock) -> None:
        """Begin without a floor. ``clock`` is not trusted until ``resume`` gives a reading that was right."""
        self._clock = clock
        self._lock = threading.Lock()
        self._floor = Floor()
        self._known: Reading | None = None
        self._is_behind = False

    @property
    def floor(self) -> Floor:
        """The time that ``now`` does not fall below."""
        return self._floor

    def now(self) -> int:
        """Return the time to act on, in whole Unix seconds."""
        return self.moment().now

    def moment(self) -> Moment:
        """Return the time to act on, and whether it is in doubt: both by the same reading."""
        with self._lock:
            reading = self._clock.read()
            until = self._floor.acted_until
            if until - reading.wall > TOLERANCE_SECONDS:
                self._is_behind = True
            # While it is behind, time would leap to the floor as soon as the wall clock came within the tolerance.
            now = reading.wall if self._is_behind else time_to_act_on(reading.wall, until)
            is_known = self._known and abs(seconds_apart(self._known, reading)) <= TOLERANCE_SECONDS
            if self._is_behind or not is_known:
                return Moment(now, min(now, until), in_doubt=True)
            if reading.wall > until:
                self._floor = Floor(reading.wall, self._floor.acceptances)
            return Moment(now, now)

    def read(self) -> Reading:
        """Return both clocks as they are."""
        return self._clock.read()

    def resume(self, floor: Floor, known: Reading | None) -> None:
        """Go on from the ``floor`` that the store knows.

        ``known``: a reading of this process that was right, or None if it was wrong. The floor sinks only if an
        operator has accepted the clock since.
        """
        with self._lock:
            is_new = floor.acceptances != self._floor.acceptances
            if is_new or floor.acted_until > self._floor.acted_until:
                self._floor = floor
            if is_new or known:
                self._is_behind = False
            self._known = known
