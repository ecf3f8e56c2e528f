"""The context of actions: settings, clock, quotas and recent key package handouts."""

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Concatenate, ParamSpec, TypeVar

from conclave.actions.quotas import Quotas
from conclave.auth.sliding_window import HANDOUT_SECONDS, MAX_HANDOUTS, SlidingWindow
from conclave.clock import Clock
from conclave.errors import UntrustedClockError
from conclave.retention.resolve import PolicySettings
from conclave.store.resources import state

P = ParamSpec("P")
T = TypeVar("T")

Action = Callable[Concatenate[sqlite3.Connection, P], T]
"""A function that runs in a transaction, possibly read-only."""


@dataclass(frozen=True)
class Context:
    """The context of actions, besides the store.

    Actions read the clock inside their transaction. ``quotas``: None if no quota is set.
    """

    policy: PolicySettings
    clock: Clock
    handouts: SlidingWindow = field(default_factory=lambda: SlidingWindow(MAX_HANDOUTS, HANDOUT_SECONDS))
    """The recent key package handouts by owner id, for actions that may write."""
    quotas: Quotas | None = None

    def now(self) -> int:
        """Return the time to use, in whole Unix seconds."""
        return self.clock.now()

    def require_clock(self, connection: sqlite3.Connection) -> None:
        """Raise UntrustedClockError if the clock has a fault.

        Only reads, since the transaction rolls back: the caller must record the fault, see ``state.note_clock_fault``.
        """
        if fault := state.check_clock_quickly(connection, self.clock.read()):
            raise UntrustedClockError(fault)

    def invites_dead_before(self) -> int:
        """Return the bound (exclusive) on ``created_at`` of expired invites."""
        return self.policy.invites_dead_before(self.clock.now())
