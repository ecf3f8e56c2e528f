"""What a message's lifetime is: durations, the effective expiry, the cap. Pure functions.

The rules are those of the retention contract: a server-wide setting (``message_retention``) and a
setting per group (``message_expiry_seconds``), combined by the table in ``effective_expiry``.
Reads, the SQL engine and the Spark engine all ask here, so that they cannot disagree on a policy.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

KEEP = -1
"""A server or group setting without effect of its own; as an effective expiry: never expires."""


AFTER_FETCH = 0
"""Delete-after-fetch: a message goes once every current member has fetched it."""


SESSION_LAG_SECONDS = 60
"""How far the stored expiry of a session that is in use may lag behind its true one, at most."""


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
    """Tell whether a group may not ask for ``requested`` under the server's retention.

    Inheriting (-1) and delete-after-fetch (0) are always within the cap; a server at 0 refuses every
    positive value, a server at -1 none.
    """
    return server != KEEP and requested > server


def expiry_cutoff(now: int, effective: int) -> int:
    """Return the Unix second before which messages have expired (exclusive); 0 where none has.

    A message goes when created_at < now - N: the first second at which it is no longer served is
    created_at + N + 1.
    """
    return max(0, now - effective) if effective > 0 else 0


def session_lag(token_ttl_seconds: int) -> int:
    """Return how many seconds the stored expiry of a used session may lag behind the true one."""
    return min(SESSION_LAG_SECONDS, token_ttl_seconds)


@dataclass(frozen=True)
class GroupPolicy:
    """What the messages of a group live by. ``lifetime``: the effective expiry, seconds, KEEP or AFTER_FETCH."""

    lifetime: int

    @property
    def is_after_fetch(self) -> bool:
        """Whether a message goes once every member has fetched it."""
        return self.lifetime == AFTER_FETCH

    def outlives(self, seconds: int) -> bool:
        """Tell whether a message lives for longer than ``seconds`` at any rate, whoever fetches it."""
        return self.lifetime == KEEP or self.lifetime > max(seconds, AFTER_FETCH)

    def expires_before(self, now: int) -> int:
        """Return the Unix second before which messages have expired by age at ``now`` (exclusive); 0: none has."""
        return expiry_cutoff(now, self.lifetime)


@dataclass(frozen=True)
class PolicySettings:
    """The settings that decide what is deleted.

    The store keeps those that the server last ran with: cleanup by hand follows them, and a changed
    configuration is noticed as the policy change that it is.
    """

    message_retention: int
    token_ttl_seconds: int
    invite_ttl_seconds: int

    def of_group(self, setting: int) -> "GroupPolicy":
        """Return the policy of a group whose own ``message_expiry_seconds`` is ``setting``."""
        return GroupPolicy(effective_expiry(self.message_retention, setting))

    def sessions_dead_before(self, now: int) -> int:
        """Return the bound (exclusive) on ``expires_at`` of sessions that may be removed.

        Later than the expiry itself by the lag, since the stored expiry of a used session is behind.
        """
        return now - session_lag(self.token_ttl_seconds)

    def invites_dead_before(self, now: int) -> int:
        """Return the bound (exclusive) on ``created_at`` of invites that are dead."""
        return now - self.invite_ttl_seconds

    def to_mapping(self) -> dict[str, int]:
        """Return the settings as stored."""
        return asdict(self)

    @classmethod
    def from_mapping(cls, stored: Mapping[str, Any]) -> Self:
        """Build from what ``to_mapping`` returned."""
        return cls(**stored)
