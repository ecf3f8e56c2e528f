"""What a policy means: when a message is hidden, when it may be erased, and which values go together.

Which policy a group has, is decided in ``resolve.py``, and written to the group's row by ``marks.py``. All who judge a
message go by the row: see ``policy_row.py``.

``FormerPolicies`` has policies that another one is about to replace: what they hide until then stays hidden. A change
of a group settles its marks as of the second in which they are written. Until the commit is there, a moment later or on
a slow disk some seconds, readers go by the former policy, and of what it hides meanwhile the marks do not tell. So from
the transaction on, until it is known when the change was there, every reader of the server hides what the former policy
does, too. If a second has gone by, what was hidden by then is hidden from here on, and by a mark that is written after
it: at once, or with the next beat of the server if that fails, or if no request waits for the change any more. Only a
process that dies before forgets it.
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
"""Delete-after-fetch: a message goes once every current member has fetched it."""


FOREVER = 2**63 - 1
"""A bound, on numbers or Unix seconds, that nothing reaches. It is the greatest integer that SQLite stores."""


LAST_SECOND = 2**53 - 1
"""Sums of times saturate here: it is the greatest integer that every JSON reader holds exactly."""


SESSION_LAG_SECONDS = 60
"""The stored expiry of a session in use lags behind its true one by at most 60 seconds."""


def end_of(begin: int, seconds: int) -> int:
    """Return the Unix second that comes ``seconds`` after ``begin``, at most LAST_SECOND."""
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
    """Tell whether a group asks for a longer expiry than the server's retention allows.

    Inheriting (-1) and delete-after-fetch (0) are always within the cap. A server at 0 refuses every positive value. A
    server at -1 refuses none.
    """
    return server != KEEP and requested > server


def expiry_cutoff(now: int, effective: int) -> int:
    """Return the Unix second before which messages have expired (exclusive); 0 if none has.

    A message goes when created_at < now - N. So the first second at which it is no longer served is created_at + N + 1.
    """
    return max(0, now - effective) if effective > 0 else 0


def session_lag(token_ttl_seconds: int) -> int:
    """Return how many seconds the stored expiry of a used session may lag behind the true one."""
    return min(SESSION_LAG_SECONDS, token_ttl_seconds)


class Source(StrEnum):
    """Where the lifetime of a group's messages comes from."""

    OVERRIDE = "override"
    GROUP = "group"
    DEFAULT = "default"
    SERVER = "server"
    NONE = "none"


@dataclass(frozen=True)
class GroupPolicy:
    """How long the messages of a group live.

    ``lifetime``: the effective expiry in seconds, KEEP or AFTER_FETCH. ``min_lifetime``: no message is erased when
    younger than these seconds, even if it is hidden. ``hold_limit``: with AFTER_FETCH a message expires after these
    seconds, fetched by all or not; KEEP: never. ``keeps_commits``: commits do not expire by age while a member has
    not fetched them. ``erases``: False if nothing may be erased. ``source``: what ``lifetime`` comes from.
    """

    lifetime: int
    min_lifetime: int = 0
    hold_limit: int = KEEP
    keeps_commits: bool = False
    erases: bool = True
    source: Source = field(default=Source.NONE, compare=False)

    @property
    def row(self) -> tuple[int, int, int, bool, bool, str]:
        """The values of ``policy_row.COLUMNS``."""
        return self.lifetime, self.min_lifetime, self.hold_limit, self.keeps_commits, self.erases, self.source.value

    @property
    def is_after_fetch(self) -> bool:
        """Whether a message goes once every member has fetched it."""
        return self.lifetime == AFTER_FETCH

    @cached_property  # a page asks for each of its messages
    def age_limit(self) -> int:
        """After how many seconds a message expires by its age; KEEP: never."""
        return self.hold_limit if self.is_after_fetch else self.lifetime

    def hides_as(self, other: "GroupPolicy") -> bool:
        """Tell whether both hide the same at every moment, even if they do not let the same be erased."""
        own, others = ((each.lifetime, each.hold_limit, each.keeps_commits) for each in (self, other))
        return own == others

    def outlives(self, seconds: int) -> bool:
        """Tell whether every message lives for longer than ``seconds``, fetched or not."""
        return self.lifetime == KEEP or self.lifetime > max(seconds, AFTER_FETCH)

    def expires_before(self, now: int) -> int:
        """Return the Unix second before which messages have expired by age at ``now`` (exclusive); 0: none has."""
        return expiry_cutoff(now, self.age_limit)

    def expires_at(self, created_at: int) -> int:
        """Return the first Unix second at which a message is no longer served because of its age; 0: never."""
        return min(created_at + self.age_limit + 1, LAST_SECOND) if self.age_limit > 0 else 0

    def erasable_before(self, now: int) -> int:
        """Return the Unix second before which messages (exclusive) are old enough to be erased at ``now``.

        A message is old enough from ``created_at + min_lifetime`` on. 0: none is. FOREVER: all are.
        """
        if not self.erases:
            return 0
        return max(0, now - self.min_lifetime + 1) if self.min_lifetime > 0 else FOREVER


class FormerPolicies:
    """The policies that are being replaced on one server. Threads may ask."""

    def __init__(self) -> None:
        """Begin with none."""
        self._lock = Lock()
        self._replaced: dict[int, tuple[GroupPolicy, ...]] = {}
        self._before: dict[int, int] = {}
        self._unmarked: dict[int, int] = {}

    def of(self, group_key: int) -> "tuple[GroupPolicy, ...]":
        """Return the policies of a group that may have been in force a moment ago. Ask before ``hidden_before``."""
        return self._replaced.get(group_key, ())

    def hidden_before(self, group_key: int) -> int:
        """Return the Unix second before which messages of a group (exclusive) are hidden, whatever its marks say."""
        return self._before.get(group_key, 0)

    def forget(self) -> None:
        """Hide by the marks alone: an operator has accepted a clock, and brought them to its time."""
        self._before.clear()
        self._unmarked.clear()

    @property
    def unmarked(self) -> dict[int, int]:
        """Before which Unix seconds messages are hidden without a mark, by the keys of their groups."""
        with self._lock:
            return {**self._unmarked}

    def marked(self, unmarked: dict[int, int]) -> None:
        """Note that the marks of what ``unmarked`` has told are there."""
        with self._lock:
            for group_key, before in unmarked.items():
                if self._unmarked.get(group_key) == before:
                    del self._unmarked[group_key]

    def begin(self, group_key: int, policy: "GroupPolicy") -> None:
        """Hide what ``policy`` hides, which is being replaced."""
        with self._lock:
            self._replaced[group_key] = (*self.of(group_key), policy)

    def end(self, group_key: int, policy: "GroupPolicy", before: int) -> None:
        """Hide what is older than ``before``, 0 for nothing, and not what ``policy`` hides: it is replaced by now."""
        with self._lock:
            if before:  # first, for who does not find the policy any more
                self._before[group_key] = max(before, self.hidden_before(group_key))
                self._unmarked[group_key] = self._before[group_key]
            left = [*self.of(group_key)]
            left.remove(policy)
            self._replaced[group_key] = (*left,)
            if not left:
                del self._replaced[group_key]


class PolicyChange:
    """One change of a group's policy."""

    def __init__(self, former: FormerPolicies) -> None:
        """Prepare only. ``former``: those of the server that changes it."""
        self._former = former
        self._begun: tuple[int, GroupPolicy, int] | None = None
        self._is_over = False

    def begin(self, group_key: int, policy: "GroupPolicy", at: int) -> None:
        """Note, in the transaction, which policy is replaced. ``at``: the second as of which the marks are settled."""
        if not self._is_over:  # otherwise nothing would end it
            self._former.begin(group_key, policy)
            self._begun = group_key, policy, at

    def end(self, now: int) -> bool:
        """Note that the transaction has ended, by the Unix second ``now``. Call it in any case.

        Returns whether there is a mark for all that is hidden.
        """
        self._is_over = True
        if self._begun is None:
            return True
        group_key, policy, at = self._begun
        before = policy.expires_before(now)
        is_told = before <= policy.expires_before(at)
        self._former.end(group_key, policy, 0 if is_told else before)
        return is_told
