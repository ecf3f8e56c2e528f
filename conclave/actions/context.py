"""The context of actions: the settings, the clock, and which key packages were handed out lately."""

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Concatenate, ParamSpec, Self, TypeVar

from conclave.actions.quotas import Quotas
from conclave.clock import Clock
from conclave.limits import HANDOUT_SECONDS, HANDOUTS, SlidingWindow
from conclave.retention.resolve import PolicySettings

P = ParamSpec("P")
T = TypeVar("T")

Action = Callable[Concatenate[sqlite3.Connection, P], T]
"""A function that runs in a transaction. Some only read."""


@dataclass
class Context:
    """What actions need besides the store: the settings and the clock.

    They ask for the time inside their transaction. ``policy`` is the one in force, and ``quotas`` those that are, None
    if none is set. They are replaced when the server takes over other settings, ``policy`` never while anything is
    written.
    ``handouts``: the key packages that were handed out lately, by the id of their owner; only for actions that may
    write.
    """

    policy: PolicySettings
    clock: Clock
    handouts: SlidingWindow = field(default_factory=lambda: SlidingWindow(HANDOUTS, HANDOUT_SECONDS))
    quotas: Quotas | None = None

    def of_now(self) -> Self:
        """Return the same with the policy of now, for reading: ask for it before the snapshot that is read.

        A policy that is newer than the snapshot would show what marks have yet to hide. An older one shows what the
        caller would have seen a moment ago.
        """
        return replace(self)

    def now(self) -> int:
        """Return the time to act on, in whole Unix seconds."""
        return self.clock.now()

    def invites_dead_before(self) -> int:
        """Return the bound (exclusive) on ``created_at`` of invites that are dead now."""
        return self.policy.invites_dead_before(self.clock.now())
