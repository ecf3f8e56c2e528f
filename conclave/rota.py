"""A rota: calls on many, on each once in a while, evenly spread, with one timer for all."""

import asyncio
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

TURNS = 100
"""A round has 100 turns. Who is on the rota has one of them."""


class OnRota(Protocol):
    """Whoever can be on a rota. ``turn`` is for the rota to set."""

    turn: int


Member = TypeVar("Member", bound=OnRota)


class Rota(Generic[Member]):
    """Calls on each member once a round. The timer runs only while there are members."""

    def __init__(self, call: Callable[[Member], None], seconds: float) -> None:
        """``call`` must not raise. ``seconds``: how long a round takes; a change counts from the next turn on."""
        self.seconds = seconds
        self._call = call
        self._turns: list[set[Member]] = [set() for _ in range(TURNS)]
        self._newest = 0
        self._now = 0
        self._due = 0.0
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def size(self) -> int:
        """How many are on the rota."""
        return self._size

    def add(self, member: Member) -> None:
        """Call on ``member`` from now on, for the first time within a round."""
        # One turn after the other: many who come at the same moment are not called on at the same moment.
        self._newest = member.turn = (self._newest + 1) % TURNS
        self._turns[member.turn].add(member)
        self._size += 1
        if self._timer is None:
            self._due = asyncio.get_running_loop().time()
            self._wait()

    def remove(self, member: Member) -> None:
        """Do not call on ``member`` any more. It has to be on the rota."""
        self._turns[member.turn].remove(member)
        self._size -= 1
        if not self._size and self._timer:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        self._due += self.seconds / TURNS
        self._timer = asyncio.get_running_loop().call_at(self._due, self._take_turns)

    def _take_turns(self) -> None:
        """Take the turns that are due: more than one if the loop was held up, but no whole round twice."""
        now = asyncio.get_running_loop().time()
        self._due = max(self._due, now - self.seconds)
        while True:
            self._now = (self._now + 1) % TURNS
            for member in tuple(self._turns[self._now]):
                self._call(member)
            if self._due + self.seconds / TURNS > now:
                break
            self._due += self.seconds / TURNS
        if self._size:
            self._wait()
