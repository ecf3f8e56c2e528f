"""Resolves the policy of a group from the settings of its admins and of the operator. Pure functions.

The rules are those of the retention contract, section 2; comments give its step numbers. ``reasons`` explains in words
the effect of each step on a group.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any, Self
from uuid import UUID

from conclave.retention.durations import duration_text
from conclave.retention.policy import AFTER_FETCH, KEEP, GroupPolicy, Source, effective_expiry, session_lag

SELF_DESTRUCT_MAX_AGE = 2_592_000
"""The default age in seconds at which a self-destructing message can no longer be read for the first time: 30 days."""

MAX_CACHED = 4096
"""The most policies to cache: admins choose the values."""


@dataclass(frozen=True)
class Lifetimes:
    """The minimum and maximum lifetime of messages, in seconds; KEEP: not set."""

    min_lifetime: int = KEEP
    max_lifetime: int = KEEP


@dataclass(frozen=True)
class LifetimeRange:
    """The allowed range of a lifetime, in seconds, inclusive; KEEP: no bound."""

    min: int = KEEP
    max: int = KEEP

    def clamp(self, seconds: int) -> int:
        """Return the lifetime, clamped to the range."""
        raised = max(seconds, self.min)
        return raised if self.max == KEEP else min(raised, self.max)


@dataclass(frozen=True)
class LifetimeLimits:
    """The allowed ranges of the lifetimes that admins and the default policy set."""

    min_lifetime: LifetimeRange = field(default_factory=LifetimeRange)
    max_lifetime: LifetimeRange = field(default_factory=LifetimeRange)


@dataclass(frozen=True)
class PolicySettings:
    """The settings that determine which data is deleted.

    The database stores the settings that the server last ran with. Manual cleanup uses these, and the server compares
    them with its configuration to detect policy changes.

    ``message_retention``: KEEP, AFTER_FETCH or seconds. ``groups``: the operator's overrides, by group id as text.
    ``fetch_hold_limit``: seconds or KEEP. See ``RetentionConfig`` for the others.
    """

    message_retention: int
    token_ttl_seconds: int
    invite_ttl_seconds: int
    enabled: bool = True
    default_policy: Lifetimes = field(default_factory=Lifetimes)
    limits: LifetimeLimits = field(default_factory=LifetimeLimits)
    groups: Mapping[str, Lifetimes] = field(default_factory=dict)
    fetch_hold_limit: int = KEEP
    retain_commits: bool = False
    self_destruct_max_age: int = SELF_DESTRUCT_MAX_AGE

    @cached_property
    def overrides(self) -> dict[bytes, GroupPolicy]:
        """The operator's policies for single groups, by group id (step 1)."""
        return {
            UUID(group_id).bytes: self._policy(override.max_lifetime, override.min_lifetime, Source.OVERRIDE)
            for group_id, override in self.groups.items()
        }

    @cached_property
    def _cached(self) -> dict[tuple[int, int], GroupPolicy]:
        return {}

    def of_group(self, group_id: bytes, max_lifetime: int, min_lifetime: int) -> GroupPolicy:
        """Return the policy of a group whose admins set these lifetimes, in seconds.

        KEEP inherits. ``max_lifetime`` may also be AFTER_FETCH.
        """
        return self.overrides.get(group_id) or self.of_setting(max_lifetime, min_lifetime)

    def of_setting(self, max_lifetime: int, min_lifetime: int) -> GroupPolicy:
        """Return the policy of a group without an override (steps 2 to 5)."""
        policy = self._cached.get((max_lifetime, min_lifetime))
        if policy is None:
            if len(self._cached) >= MAX_CACHED:
                self._cached.clear()
            policy = self._cached[max_lifetime, min_lifetime] = self._resolved(max_lifetime, min_lifetime)
        return policy

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
        # Delete-after-fetch has no lifetime to raise, so the limit delays erasure instead (step 5).
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

        It is earlier than ``now`` by ``session_lag``, since the stored expiry of an active session lags behind.
        """
        return now - session_lag(self.token_ttl_seconds)

    def invites_dead_before(self, now: int) -> int:
        """Return the bound (exclusive) on ``created_at`` of expired invites."""
        return now - self.invite_ttl_seconds

    def hides_as(self, other: Self) -> bool:
        """Return whether both settings hide the same messages in every group."""
        return not {*self.differing(other)} - {"token_ttl_seconds", "invite_ttl_seconds", "retention.enabled"}

    def differing(self, other: Self) -> list[str]:
        """Return the configuration names of the settings that differ from ``other``."""
        names = [each.name for each in fields(self) if getattr(self, each.name) != getattr(other, each.name)]
        return [name if name in _AT_TOP else f"retention.{name}" for name in names]

    def changes(self, former: Self) -> dict[str, list[Any]]:
        """Return the old and new value of each setting that differs from ``former``, by configuration name.

        Lifetimes are in seconds or KEEP. None: no such override exists.
        """
        old, new = (dict(_flatten(each.to_mapping())) for each in (former, self))
        differing = [name for name in {**old, **new} if old.get(name) != new.get(name)]
        return {name if name in _AT_TOP else f"retention.{name}": [old.get(name), new.get(name)] for name in differing}

    def to_mapping(self) -> dict[str, Any]:
        """Return the settings in the stored form."""
        return asdict(self)

    @classmethod
    def from_mapping(cls, stored: Mapping[str, Any]) -> Self:
        """Build from the result of ``to_mapping``. Settings that an older version lacked get their defaults."""
        values = dict(stored)
        if "default_policy" in values:
            values["default_policy"] = Lifetimes(**values["default_policy"])
            ranges = {name: LifetimeRange(**bounds) for name, bounds in values["limits"].items()}
            values["limits"] = LifetimeLimits(**ranges)
            values["groups"] = {group_id: Lifetimes(**override) for group_id, override in values["groups"].items()}
        return cls(**values)


_AT_TOP = ("message_retention", "token_ttl_seconds", "invite_ttl_seconds")


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the settings of nested tables, with dotted names."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


DELETE_AFTER_FETCH = "delete-after-fetch"


def lifetime_text(seconds: int) -> str:
    """Format a lifetime: a duration, "delete-after-fetch" or "for ever"."""
    if seconds == KEEP:
        return "for ever"
    return DELETE_AFTER_FETCH if seconds == AFTER_FETCH else duration_text(seconds)


def reasons(settings: PolicySettings, group_id: bytes, own_max: int, own_min: int) -> list[str]:
    """Return a sentence for each setting that applies, or that is overruled.

    ``own_max`` and ``own_min``: the settings of the group's admins, in seconds; KEEP inherits.
    """
    policy = settings.of_group(group_id, own_max, own_min)
    override = settings.groups.get(str(UUID(bytes=group_id)))
    if override:
        specific = [*_of_override(override.max_lifetime, override.min_lifetime), *_overruled(own_max, own_min)]
    else:
        specific = [*_of_max(settings, own_max, policy), *_of_min(settings, own_min)]
    return [*specific, *_general(settings, policy)]


def _of_override(longest: int, shortest: int) -> Iterator[str]:
    sets = [f"max_lifetime {duration_text(longest)}"] if longest != KEEP else []
    sets += [f"min_lifetime {_length(shortest)}"] if shortest != KEEP else []
    yield f"the operator's override for this group applies: {' and '.join(sets) or 'no lifetime'}"


def _overruled(own_max: int, own_min: int) -> Iterator[str]:
    if own_max != KEEP:
        yield f"its admins set {lifetime_text(own_max)}, which the override overrules"
    if own_min != KEEP:
        yield f"its admins set min_lifetime {_length(own_min)}, which the override overrules"


def _of_max(settings: PolicySettings, own: int, policy: GroupPolicy) -> Iterator[str]:
    lifetime, server = own, settings.message_retention
    if own != KEEP:
        yield f"its admins set {lifetime_text(own)}"
    elif settings.default_policy.max_lifetime != KEEP:
        lifetime = settings.default_policy.max_lifetime
        yield f"its admins set nothing; retention.default_policy has max_lifetime {duration_text(lifetime)}"
    else:
        yield "its admins set nothing, and there is no default"
    if lifetime > AFTER_FETCH:
        clamped = settings.limits.max_lifetime.clamp(lifetime)
        yield from _clamped("max_lifetime", settings.limits.max_lifetime, lifetime, clamped)
        lifetime = clamped
    if server == KEEP:
        if policy.lifetime == KEEP:
            yield "message_retention is off, so nothing expires by age"
    elif policy.lifetime != lifetime:
        why = "0 takes precedence" if server == AFTER_FETCH else "the shorter one takes precedence"
        yield f"message_retention of the server, {lifetime_text(server)}, applies" + (
            f": {why}" if lifetime != KEEP else ""
        )
    elif server > AFTER_FETCH and lifetime == AFTER_FETCH:
        yield f"message_retention of the server ({duration_text(server)}) does not apply to delete-after-fetch"


def _of_min(settings: PolicySettings, own: int) -> Iterator[str]:
    lifetime = own if own != KEEP else settings.default_policy.min_lifetime
    whose = "its admins set" if own != KEEP else "retention.default_policy has"
    if lifetime != KEEP:
        yield f"{whose} min_lifetime {_length(lifetime)}"
    clamped = settings.limits.min_lifetime.clamp(lifetime)
    yield from _clamped("min_lifetime", settings.limits.min_lifetime, lifetime, clamped)


def _clamped(name: str, limit: LifetimeRange, lifetime: int, clamped: int) -> Iterator[str]:
    if clamped > max(lifetime, 0):
        yield f"retention.limits.{name}.min raises it to {_length(limit.min)}"
    elif KEEP < clamped < lifetime:
        yield f"retention.limits.{name}.max reduces it to {_length(limit.max)}"


def _general(settings: PolicySettings, policy: GroupPolicy) -> Iterator[str]:
    if policy.is_after_fetch:
        if policy.hold_limit != KEEP:
            limit = duration_text(policy.hold_limit)
            yield f"retention.fetch_hold_limit: a message expires after {limit}, fetched by all members or not"
        elif settings.message_retention > AFTER_FETCH:
            yield (
                "retention.fetch_hold_limit is not set: a member who never fetches can delay deletion beyond"
                " message_retention"
            )
        least = settings.limits.max_lifetime.min
        if policy.min_lifetime > 0 and policy.min_lifetime == least:
            yield f"retention.limits.max_lifetime.min delays erasure until {duration_text(least)} after sending"
    if policy.keeps_commits:
        yield "retention.retain_commits: a commit does not expire by age until every member has fetched it"
    if not settings.enabled:
        yield "retention.enabled is false: expired messages are hidden, but nothing is erased"


def _length(seconds: int) -> str:
    return duration_text(seconds) if seconds > 0 else "0"
