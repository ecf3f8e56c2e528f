"""A timer wheel: calls on many, on each once a round, evenly spread, with one timer for all."""

import asyncio
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

SLOTS = 100
"""A round has 100 slots. Each member has one of them."""


class WheelMember(Protocol):
    """What can be on a wheel. ``slot`` is for the wheel to set."""

    slot: int


Member = TypeVar("Member", bound=WheelMember)


class TimerWheel(Generic[Member]):
    """Calls on each member once a round. The timer runs only while there are members."""

    def __init__(self, call: Callable[[Member], None], seconds: float) -> None:
        """``call``: if it raises, the rest of its slot waits for the next round.

        ``seconds``: how long a round takes; a change counts from the next slot on.
        """
        self.seconds = seconds
        self._call = call
        self._slots: list[set[Member]] = [set() for _ in range(SLOTS)]
        self._newest = 0
        self._now = 0
        self._due = 0.0
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def size(self) -> int:
        """How many are on the wheel."""
        return self._size

    def add(self, member: Member) -> None:
        """Call on ``member`` from now on, for the first time within a round."""
        # One slot after the other: many who come at the same moment are not called on at the same moment.
        self._newest = member.slot = (self._newest + 1) % SLOTS
        self._slots[member.slot].add(member)
        self._size += 1
        if self._timer is None:
            self._due = asyncio.get_running_loop().time()
            self._wait()

    def remove(self, member: Member) -> None:
        """Do not call on ``member`` any more. It has to be on the wheel."""
        self._slots[member.slot].remove(member)
        self._size -= 1
        if not self._size and self._timer:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        self._due += self.seconds / SLOTS
        self._timer = asyncio.get_running_loop().call_at(self._due, self._run_due_slots)

    def _run_due_slots(self) -> None:
        """Call the slots that are due: more than one if the loop was held up, but no whole round twice."""
        now = asyncio.get_running_loop().time()
        self._due = max(self._due, now - self.seconds)
        try:
            while True:
                self._now = (self._now + 1) % SLOTS
                for member in tuple(self._slots[self._now]):
                    self._call(member)
                if self._due + self.seconds / SLOTS > now:
                    break
                self._due += self.seconds / SLOTS
        finally:
            if self._size:
                self._wait()
