"""Decides which policy a group has, from what its admins and the operator have set. Pure functions.

The rules are those of the retention contract, section 2. Where the contract says "step", the number is given here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any, Self
from uuid import UUID

from conclave.retention.policy import AFTER_FETCH, KEEP, GroupPolicy, Source, effective_expiry, session_lag

SELF_DESTRUCT_MAX_AGE = 2_592_000
"""A self-destructing message that a member never reads is hidden from all after 30 days, unless set otherwise."""

MOST_REMEMBERED = 4096
"""At most 4096 policies are remembered: admins choose the values."""


@dataclass(frozen=True)
class Lifetimes:
    """The shortest and the longest time that messages are kept, in seconds; KEEP: not set."""

    min_lifetime: int = KEEP
    max_lifetime: int = KEEP


@dataclass(frozen=True)
class Limit:
    """The bounds within which a lifetime is brought, in seconds, inclusive; KEEP: none."""

    min: int = KEEP
    max: int = KEEP

    def clamp(self, seconds: int) -> int:
        """Bring a lifetime within the bounds."""
        raised = max(seconds, self.min)
        return raised if self.max == KEEP else min(raised, self.max)


@dataclass(frozen=True)
class Limits:
    """The bounds on the lifetimes that admins and the default policy set."""

    min_lifetime: Limit = field(default_factory=Limit)
    max_lifetime: Limit = field(default_factory=Limit)


@dataclass(frozen=True)
class PolicySettings:
    """The settings that decide what is deleted.

    The store keeps the settings that the server last ran with. Cleanup by hand follows these. A changed configuration
    is noticed as a policy change.

    ``message_retention``: KEEP, AFTER_FETCH or seconds. ``groups``: the operator's overrides, by the id of the group as
    text. ``fetch_hold_limit``: seconds or KEEP. See ``RetentionConfig`` for the others.
    """

    message_retention: int
    token_ttl_seconds: int
    invite_ttl_seconds: int
    enabled: bool = True
    default_policy: Lifetimes = field(default_factory=Lifetimes)
    limits: Limits = field(default_factory=Limits)
    groups: Mapping[str, Lifetimes] = field(default_factory=dict)
    fetch_hold_limit: int = KEEP
    retain_commits: bool = False
    self_destruct_max_age: int = SELF_DESTRUCT_MAX_AGE

    @cached_property
    def overrides(self) -> dict[bytes, GroupPolicy]:
        """The policies that the operator has set for single groups, by the id of the group (step 1)."""
        return {
            UUID(group_id).bytes: self._policy(set_.max_lifetime, set_.min_lifetime, Source.OVERRIDE)
            for group_id, set_ in self.groups.items()
        }

    @cached_property
    def _remembered(self) -> dict[tuple[int, int], GroupPolicy]:
        return {}

    def of_group(self, group_id: bytes, max_lifetime: int, min_lifetime: int) -> GroupPolicy:
        """Return the policy of a group whose admins have set these lifetimes: seconds or KEEP, which inherits.

        ``max_lifetime`` may also be AFTER_FETCH.
        """
        return self.overrides.get(group_id) or self.of_setting(max_lifetime, min_lifetime)

    def of_setting(self, max_lifetime: int, min_lifetime: int) -> GroupPolicy:
        """Return the policy of a group without an override (steps 2 to 5)."""
        known = self._remembered.get((max_lifetime, min_lifetime))
        if known is None:
            if len(self._remembered) >= MOST_REMEMBERED:
                self._remembered.clear()
            known = self._remembered[max_lifetime, min_lifetime] = self._resolved(max_lifetime, min_lifetime)
        return known

    def _resolved(self, own_max: int, own_min: int) -> GroupPolicy:
        default = self.default_policy
        longest = own_max if own_max != KEEP else default.max_lifetime
        shortest = own_min if own_min != KEEP else default.min_lifetime
        if longest > AFTER_FETCH:
            longest = self.limits.max_lifetime.clamp(longest)
        lifetime = effective_expiry(self.message_retention, longest)
        if lifetime == KEEP:
            source = Source.NONE
        elif lifetime != longest:
            source = Source.SERVER
        else:
            source = Source.GROUP if own_max != KEEP else Source.DEFAULT
        return self._policy(lifetime, self.limits.min_lifetime.clamp(shortest), source)

    def _policy(self, lifetime: int, min_lifetime: int, source: Source) -> GroupPolicy:
        is_after_fetch = lifetime == AFTER_FETCH
        # Delete-after-fetch has no length that a limit could raise: the limit delays erasure in its place (step 5).
        least = max(0, min_lifetime, self.limits.max_lifetime.min if is_after_fetch else 0)
        return GroupPolicy(
            lifetime,
            least,
            self.fetch_hold_limit if is_after_fetch else KEEP,
            keeps_commits=self.retain_commits,
            erases=self.enabled,
            source=source,
        )

    def sessions_dead_before(self, now: int) -> int:
        """Return the bound (exclusive) on ``expires_at`` of sessions that may be removed.

        It is earlier than ``now`` by the lag, since the stored expiry of a used session is behind.
        """
        return now - session_lag(self.token_ttl_seconds)

    def invites_dead_before(self, now: int) -> int:
        """Return the bound (exclusive) on ``created_at`` of invites that are dead."""
        return now - self.invite_ttl_seconds

    def hides_as(self, other: Self) -> bool:
        """Tell whether every group has the same policy as under ``other``, as far as marks depend on it."""
        return not {*self.differing(other)} - {"token_ttl_seconds", "invite_ttl_seconds", "retention.enabled"}

    def differing(self, other: Self) -> list[str]:
        """Return the names of the settings that differ from ``other``, as a configuration has them."""
        names = [each.name for each in fields(self) if getattr(self, each.name) != getattr(other, each.name)]
        return [name if name in _AT_TOP else f"retention.{name}" for name in names]

    def changes(self, former: Self) -> dict[str, list[Any]]:
        """Return each single setting that differs from ``former``, named as in a configuration: old value, new value.

        Lifetimes are in seconds or KEEP. None: there is no such override.
        """
        old, new = (dict(_single(each.to_mapping())) for each in (former, self))
        differing = [name for name in {**old, **new} if old.get(name) != new.get(name)]
        return {name if name in _AT_TOP else f"retention.{name}": [old.get(name), new.get(name)] for name in differing}

    def to_mapping(self) -> dict[str, Any]:
        """Return the settings as stored."""
        return asdict(self)

    @classmethod
    def from_mapping(cls, stored: Mapping[str, Any]) -> Self:
        """Build from what ``to_mapping`` returned; what an older version did not know has its default."""
        values = dict(stored)
        if "default_policy" in values:
            values["default_policy"] = Lifetimes(**values["default_policy"])
            values["limits"] = Limits(**{name: Limit(**bounds) for name, bounds in values["limits"].items()})
            values["groups"] = {group_id: Lifetimes(**set_) for group_id, set_ in values["groups"].items()}
        return cls(**values)


_AT_TOP = ("message_retention", "token_ttl_seconds", "invite_ttl_seconds")


def _single(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the single settings of nested ones, with the names of the tables that they are in before theirs."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _single(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
