"""A timer wheel: calls a function for each of many members once a round, with a single timer."""

import asyncio
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

SLOTS = 100
"""A round has 100 slots. Each member is in one of them."""


class WheelMember(Protocol):
    """A member of a timer wheel. The wheel sets ``slot``."""

    slot: int


Member = TypeVar("Member", bound=WheelMember)


class TimerWheel(Generic[Member]):
    """Calls a function for each member once a round. The timer runs only while there are members."""

    def __init__(self, call: Callable[[Member], None], seconds: float) -> None:
        """``call``: called with each member. If it raises, the rest of its slot is skipped until the next round.

        ``seconds``: the length of a round; a change takes effect with the next slot.
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
        """The number of members."""
        return self._size

    def add(self, member: Member) -> None:
        """Add ``member``, which is first called within one round."""
        # Slots are assigned in turn, so that members added at the same time are not all called at the same time.
        self._newest = member.slot = (self._newest + 1) % SLOTS
        self._slots[member.slot].add(member)
        self._size += 1
        if self._timer is None:
            self._due = asyncio.get_running_loop().time()
            self._wait()

    def remove(self, member: Member) -> None:
        """Remove ``member``, which must be on the wheel."""
        self._slots[member.slot].remove(member)
        self._size -= 1
        if not self._size and self._timer:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        self._due += self.seconds / SLOTS
        self._timer = asyncio.get_running_loop().call_at(self._due, self._run_due_slots)

    def _run_due_slots(self) -> None:
        """Run the slots that are due: several if the event loop was blocked, but at most one round."""
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
