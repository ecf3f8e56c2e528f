"""The context of actions: the settings, the clock, and which key packages were handed out lately."""

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
"""A function that runs in a transaction. Some only read."""


@dataclass(frozen=True)
class Context:
    """What actions need besides the store: the settings and the clock.

    They ask for the time inside their transaction. ``quotas``: None if none is set.
    """

    policy: PolicySettings
    clock: Clock
    handouts: SlidingWindow = field(default_factory=lambda: SlidingWindow(MAX_HANDOUTS, HANDOUT_SECONDS))
    """The key packages that were handed out lately, by the id of their owner; only for actions that may write."""
    quotas: Quotas | None = None

    def now(self) -> int:
        """Return the time to act on, in whole Unix seconds."""
        return self.clock.now()

    def require_clock(self, connection: sqlite3.Connection) -> None:
        """Raise UntrustedClockError if anything is wrong with the clock.

        It only reads: the transaction rolls back, so the caller has to note the fault, see ``state.note_clock_fault``.
        """
        if fault := state.clock_fault_now(connection, self.clock.read()):
            raise UntrustedClockError(fault)

    def invites_dead_before(self) -> int:
        """Return the bound (exclusive) on ``created_at`` of invites that are dead now."""
        return self.policy.invites_dead_before(self.clock.now())
