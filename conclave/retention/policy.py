"""Defines policies, which determine when a message is hidden, and when it may be erased.

``resolve.py`` decides which policy a group has, and ``marks.py`` writes it to the group's row. Every decision about a
message uses the row: see ``rules.py``.

``FormerPolicies`` has the policies that are being replaced, so that messages they have hidden stay hidden. A change
writes the marks for one second, but on a slow disk it may be committed seconds later. Until then, readers still use the
former policy, and the marks do not cover messages that it hides in these seconds. So readers apply the former policy
too, from the transaction until the time of the commit is known. If the second has changed by then, another mark covers
the difference. It is written at once, or with the next heartbeat of the server if that fails or the request was
cancelled. Until then, the difference is hidden only by this process, and lost if the process crashes.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass


KEEP = -1
"""As a setting of the server or a group: no effect. As an effective expiry: messages never expire."""


AFTER_FETCH = 0
"""Delete-after-fetch: a message is deleted once every current member has fetched it."""


FOREVER = 2**63 - 1
"""An unreachable bound on numbers or Unix seconds: the greatest integer that SQLite stores."""


LAST_SECOND = 2**53 - 1
"""Sums of times saturate here: the greatest integer that every JSON parser represents exactly."""


SESSION_LAG_SECONDS = 60
"""The stored expiry of an active session is at most 60 seconds earlier than its actual expiry."""


def end_of(begin: int, seconds: int) -> int:
    """Return the Unix second ``seconds`` after ``begin``, at most LAST_SECOND."""
    return min(begin + seconds, LAST_SECOND)


def effective_expiry(server: int, group: int) -> int:
    """Combine the server's retention with a group's setting.

    Both are KEEP, AFTER_FETCH or seconds, and so is the result:

    ====== ===== ==================
    server group effective
    ====== ===== ==================
    -1     -1    keep
    -1     N     N
    -1     0     delete-after-fetch
    S      -1    S
    S      N     min(S, N)
    0      any   delete-after-fetch
    any    0     delete-after-fetch
    ====== ===== ==================
    """
    if AFTER_FETCH in (server, group):
        return AFTER_FETCH
    return min((setting for setting in (server, group) if setting != KEEP), default=KEEP)


def exceeds_cap(server: int, requested: int) -> bool:
    """Return whether a requested expiry is longer than the server's retention allows.

    Inheriting (-1) and delete-after-fetch (0) are always within the cap. A server at 0 rejects every positive value. A
    server at -1 accepts every value.
    """
    return server != KEEP and requested > server


def expiry_cutoff(now: int, effective: int) -> int:
    """Return the Unix second before which messages have expired (exclusive); 0: no message has.

    A message expires when created_at < now - N, so the first second at which it is not served is created_at + N + 1.
    """
    return max(0, now - effective) if effective > 0 else 0


def session_lag(token_ttl_seconds: int) -> int:
    """Return how many seconds too early the stored expiry of an active session may be."""
    return min(SESSION_LAG_SECONDS, token_ttl_seconds)


class Source(StrEnum):
    """The source of the lifetime of a group's messages."""

    OVERRIDE = "override"
    GROUP = "group"
    DEFAULT = "default"
    SERVER = "server"
    NONE = "none"


@dataclass(frozen=True)
class GroupPolicy:
    """The policy of a group: how long its messages are kept.

    ``lifetime``: the effective expiry in seconds, KEEP or AFTER_FETCH. ``min_lifetime``: the age in seconds before
    which no message is erased, even if hidden. ``hold_limit``: with AFTER_FETCH, the age in seconds at which a message
    expires even if not all have fetched it; KEEP: never. ``keeps_commits``: commits do not expire by age until every
    member has fetched them. ``erases``: False if no message may be erased. ``source``: the source of ``lifetime``.
    """

    lifetime: int
    min_lifetime: int = 0
    hold_limit: int = KEEP
    keeps_commits: bool = False
    erases: bool = True
    source: Source = field(default=Source.NONE, compare=False)

    @property
    def row(self) -> tuple[int, int, int, bool, bool, str]:
        """The values of ``rules.POLICY_COLUMNS``."""
        return self.lifetime, self.min_lifetime, self.hold_limit, self.keeps_commits, self.erases, self.source.value

    @property
    def is_after_fetch(self) -> bool:
        """Whether messages are deleted once every member has fetched them."""
        return self.lifetime == AFTER_FETCH

    @cached_property  # used for each message of a page
    def age_limit(self) -> int:
        """The age in seconds at which a message expires; KEEP: never."""
        return self.hold_limit if self.is_after_fetch else self.lifetime

    def hides_as(self, other: "GroupPolicy") -> bool:
        """Return whether both policies always hide the same messages, even if they erase at different times."""
        own, other_values = ((each.lifetime, each.hold_limit, each.keeps_commits) for each in (self, other))
        return own == other_values

    def outlives(self, seconds: int) -> bool:
        """Return whether every message is kept longer than ``seconds``, even if all have fetched it."""
        return self.lifetime == KEEP or self.lifetime > max(seconds, AFTER_FETCH)

    def expires_before(self, now: int) -> int:
        """Return the Unix second before which messages have expired by age at ``now`` (exclusive); 0: no message."""
        return expiry_cutoff(now, self.age_limit)

    def expires_at(self, created_at: int) -> int:
        """Return the first Unix second at which a message is no longer served because of its age; 0: never."""
        return min(created_at + self.age_limit + 1, LAST_SECOND) if self.age_limit > 0 else 0

    def erasable_before(self, now: int) -> int:
        """Return the Unix second before which messages (exclusive) are old enough to be erased at ``now``.

        A message is old enough from ``created_at + min_lifetime`` on. 0: no message is. FOREVER: all are.
        """
        if not self.erases:
            return 0
        return max(0, now - self.min_lifetime + 1) if self.min_lifetime > 0 else FOREVER


class FormerPolicies:
    """The policies that are being replaced on one server. Thread-safe."""

    def __init__(self) -> None:
        """Create an empty registry."""
        self._lock = Lock()
        self._replaced: dict[int, tuple[GroupPolicy, ...]] = {}
        self._before: dict[int, int] = {}
        self._unmarked: dict[int, int] = {}

    def of(self, group_key: int) -> "tuple[GroupPolicy, ...]":
        """Return the policies of a group that are being replaced. Call it before ``hidden_before``."""
        return self._replaced.get(group_key, ())

    def hidden_before(self, group_key: int) -> int:
        """Return the Unix second before which messages of a group (exclusive) are hidden, besides its marks."""
        return self._before.get(group_key, 0)

    def forget(self) -> None:
        """Clear the bounds without a mark. Call it when an operator has accepted the clock and reset the marks."""
        self._before.clear()
        self._unmarked.clear()

    @property
    def unmarked(self) -> dict[int, int]:
        """The Unix seconds before which messages are hidden without a mark, by group key."""
        with self._lock:
            return {**self._unmarked}

    def marked(self, unmarked: dict[int, int]) -> None:
        """Record that marks were written for ``unmarked``, a former value of the property."""
        with self._lock:
            for group_key, before in unmarked.items():
                if self._unmarked.get(group_key) == before:
                    del self._unmarked[group_key]

    def begin(self, group_key: int, policy: "GroupPolicy") -> None:
        """Start to apply ``policy``, which is being replaced."""
        with self._lock:
            self._replaced[group_key] = (*self.of(group_key), policy)

    def end(self, group_key: int, policy: "GroupPolicy", before: int) -> None:
        """Stop applying ``policy``, and hide messages created before the Unix second ``before``; 0: no messages."""
        with self._lock:
            if before:  # before the policy is removed: readers take no lock
                self._before[group_key] = max(before, self.hidden_before(group_key))
                self._unmarked[group_key] = self._before[group_key]
            remaining = [*self.of(group_key)]
            remaining.remove(policy)
            self._replaced[group_key] = (*remaining,)
            if not remaining:
                del self._replaced[group_key]


class PolicyChange:
    """One change of a group's policy."""

    def __init__(self, former: FormerPolicies) -> None:
        """Prepare a change. ``former``: the former policies of this server."""
        self._former = former
        self._started: tuple[int, GroupPolicy, int] | None = None
        self._is_over = False

    def begin(self, group_key: int, policy: "GroupPolicy", at: int) -> None:
        """Record, in the transaction, which policy is replaced. ``at``: the second for which marks are settled."""
        if not self._is_over:  # otherwise ``end`` would not follow
            self._former.begin(group_key, policy)
            self._started = group_key, policy, at

    def end(self, now: int) -> bool:
        """Record that the transaction has ended, at the Unix second ``now``. Always call it.

        Returns whether marks cover everything that is hidden.
        """
        self._is_over = True
        if self._started is None:
            return True
        group_key, policy, at = self._started
        before = policy.expires_before(now)
        is_marked = before <= policy.expires_before(at)
        self._former.end(group_key, policy, 0 if is_marked else before)
        return is_marked
