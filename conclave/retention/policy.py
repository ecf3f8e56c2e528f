"""What decides how long a message lives: the effective expiry and the cap. Pure functions.

The rules are those of the retention contract: a server-wide setting (``message_retention``) and a setting per group
(``message_expiry_seconds``), combined by the table in ``effective_expiry``. Reads, the SQL engine and the Spark engine
all ask here, so that they cannot disagree on a policy.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

KEEP = -1
"""As a setting of the server or a group: no effect. As an effective expiry: messages never expire."""


AFTER_FETCH = 0
"""Delete-after-fetch: a message goes once every current member has fetched it."""


SESSION_LAG_SECONDS = 60
"""The stored expiry of a session in use lags behind its true one by at most 60 seconds."""


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


@dataclass(frozen=True)
class GroupPolicy:
    """How long the messages of a group live.

    ``lifetime``: the effective expiry in seconds, KEEP or AFTER_FETCH.
    """

    lifetime: int

    @property
    def is_after_fetch(self) -> bool:
        """Whether a message goes once every member has fetched it."""
        return self.lifetime == AFTER_FETCH

    def outlives(self, seconds: int) -> bool:
        """Tell whether every message lives for longer than ``seconds``, whoever fetches it."""
        return self.lifetime == KEEP or self.lifetime > max(seconds, AFTER_FETCH)

    def expires_before(self, now: int) -> int:
        """Return the Unix second before which messages have expired by age at ``now`` (exclusive); 0: none has."""
        return expiry_cutoff(now, self.lifetime)


@dataclass(frozen=True)
class PolicySettings:
    """The settings that decide what is deleted.

    The store keeps the settings that the server last ran with. Cleanup by hand follows these. A changed configuration
    is noticed as a policy change.
    """

    message_retention: int
    token_ttl_seconds: int
    invite_ttl_seconds: int

    def of_group(self, setting: int) -> "GroupPolicy":
        """Return the policy of a group whose own ``message_expiry_seconds`` is ``setting``."""
        return GroupPolicy(effective_expiry(self.message_retention, setting))

    def sessions_dead_before(self, now: int) -> int:
        """Return the bound (exclusive) on ``expires_at`` of sessions that may be removed.

        It is earlier than ``now`` by the lag, since the stored expiry of a used session is behind.
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
