"""What a message's lifetime is: durations, the effective expiry, the cap. Pure functions.

The rules are those of the retention contract: a server-wide setting (``message_retention``) and a
setting per group (``message_expiry_seconds``), combined by the table in ``effective_expiry``.
Reads, the SQL engine and the Spark engine all ask here, so that they cannot disagree on a policy.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

KEEP = -1
"""A server or group setting without effect of its own; as an effective expiry: never expires."""

AFTER_FETCH = 0
"""Delete-after-fetch: a message goes once every current member has fetched it."""

MAX_SECONDS = 2**53 - 1
"""The greatest lifetime: the greatest integer that every JSON reader holds exactly."""

SESSION_LAG_SECONDS = 60
"""How far the stored expiry of a session that is in use may lag behind its true one, at most."""

_MONTH_SECONDS = 2_592_000
_UNITS = {"s": 1, "min": 60, "h": 3600, "d": 86_400, "w": 604_800, "mo": _MONTH_SECONDS, "y": 31_536_000}
_BARE_MONTH = "m"
"""As older configurations have it. Others mean minutes by it, so whoever writes it is told what it means here."""

_DURATION = re.compile(r"([0-9]+)([a-z]{1,3})", re.ASCII)
_WORDS = {"-1": KEEP, "0": AFTER_FETCH}


class InvalidDurationError(ValueError):
    """A text that is no duration; its message says what one looks like."""


def parse_duration(text: str, *, words: bool = False) -> int:
    """Return the seconds that ``text`` names: a positive integer and one of s, min, h, d, w, mo, y.

    mo is 30 days and y is 365 days; m is mo, see ``is_in_bare_months``. With ``words`` the texts "-1" (off) and "0"
    (delete-after-fetch) are allowed too. Bounds: 1 .. 2^53-1 seconds. Raises InvalidDurationError.
    """
    if words and text in _WORDS:
        return _WORDS[text]
    match = _DURATION.fullmatch(text)
    seconds = int(match[1][:20]) * (_UNITS | {_BARE_MONTH: _MONTH_SECONDS}).get(match[2], 0) if match else 0
    if not 1 <= seconds <= MAX_SECONDS:
        also = ', "-1" or "0"' if words else ""
        units = ", ".join(_UNITS)
        raise InvalidDurationError(
            f'{text!r} is not a duration: a positive integer and a unit ({units}), as in "30d"{also}'
        )
    return seconds


def is_in_bare_months(text: str) -> bool:
    """Tell whether a duration has the unit m, which is easily taken for minutes."""
    match = _DURATION.fullmatch(text)
    return match is not None and match[2] == _BARE_MONTH


def duration_text(seconds: int) -> str:
    """Write seconds in whole days, hours, minutes or seconds, the greatest that fits: 30d, 36h, 90min, 5s."""
    unit = next(name for name in ("d", "h", "min", "s") if seconds % _UNITS[name] == 0)
    return f"{seconds // _UNITS[unit]}{unit}"


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
class PolicySettings:
    """The settings that decide what is deleted.

    The store keeps those that the server last ran with: cleanup by hand follows them, and a changed
    configuration is noticed as the policy change that it is.
    """

    message_retention: int
    token_ttl_seconds: int
    invite_ttl_seconds: int

    def effective(self, group: int) -> int:
        """Return the effective expiry of a group with the setting ``group``."""
        return effective_expiry(self.message_retention, group)

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
