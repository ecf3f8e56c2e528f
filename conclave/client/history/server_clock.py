"""Tells the server's time, also offline and when the machine's clock is set."""

from collections.abc import Callable
from dataclasses import dataclass

from conclave.clock import Clock, Reading


@dataclass(frozen=True)
class Anchor:
    """The server's time, Unix seconds, at one reading of this machine's clocks."""

    server: int
    at: Reading


class ServerClock:
    """Goes on from what the server said last, by whichever of the two clocks says that more time has passed.

    So what has expired by either clock has expired: a wall clock that is set back revives nothing, nor does one that
    stands still while the machine sleeps. A wall clock that is fast or slow all the time does no harm: only what it has
    moved since the server was heard counts. One that is set forward makes messages expire early, until the server is
    heard again.
    """

    def __init__(self, clock: Clock, anchor: Anchor | None = None) -> None:
        """``anchor``: None if the server has never been heard; the wall clock counts until it is."""
        self._clock = clock
        self.anchor = anchor

    def hear(self, date: int) -> Anchor:
        """The server says that it is ``date``, in whole seconds rounded down: up to a second more."""
        self.anchor = Anchor(date + 1, self._clock.read())
        return self.anchor

    def now(self) -> int:
        """Return the latest that the server's time may be, Unix seconds: by it things end."""
        return self._goes_on(max, 0)

    def earliest(self) -> int:
        """Return the earliest that the server's time may be, Unix seconds: from it on timers run.

        A timer that began by a clock that was set forward would end too late once the server is heard again.
        """
        return self._goes_on(min, -1)

    def _goes_on(self, which: Callable[[list[int]], int], rounded: int) -> int:
        reading = self._clock.read()
        if self.anchor is None:
            return reading.wall
        at = self.anchor.at
        passed = [reading.wall - at.wall]
        if reading.boot_id == at.boot_id:
            passed.append(reading.since_boot - at.since_boot)
        return self.anchor.server + rounded + max(0, which(passed))
