"""What actions go by, beside what is stored and what they are asked for."""

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Concatenate, ParamSpec, TypeVar

from conclave.clock import Clock
from conclave.limits import HANDOUT_SECONDS, HANDOUTS, SlidingWindow
from conclave.retention.policy import PolicySettings

P = ParamSpec("P")
T = TypeVar("T")

Action = Callable[Concatenate[sqlite3.Connection, P], T]
"""What runs in a transaction; also what only reads there."""


@dataclass(frozen=True)
class Context:
    """The settings and the clock that actions go by; they ask for the time inside their transaction.

    ``handouts``: the key packages that were handed out of late, by the id of the user whose they are; only for who may
    write.
    """

    policy: PolicySettings
    clock: Clock
    handouts: SlidingWindow = field(default_factory=lambda: SlidingWindow(HANDOUTS, HANDOUT_SECONDS))

    def now(self) -> int:
        """Return the time to act on, in whole Unix seconds."""
        return self.clock.now()

    def invites_dead_before(self) -> int:
        """Return the bound (exclusive) on ``created_at`` of invites that are dead now."""
        return self.policy.invites_dead_before(self.clock.now())
