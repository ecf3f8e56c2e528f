"""``[retention]``: lifetimes of messages, their limits, and purge jobs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self
from uuid import UUID

from marshmallow import ValidationError, post_load, validate, validates_schema
from marshmallow.fields import Dict, List, Nested

from conclave.config.fields import Duration, Section
from conclave.retention.jobs import PurgeJob
from conclave.retention.policy import AFTER_FETCH, KEEP
from conclave.retention.resolve import SELF_DESTRUCT_MAX_AGE, LifetimeLimits, LifetimeRange, Lifetimes
from conclave.strict_fields import StrictBoolean, Text

RESPONSE, NEXT_FETCH = "response", "next_fetch"
"""How a fetch is confirmed: by the acknowledged response, or by ``after`` of the member's next fetch."""

_SYNAPSE_NAMES = {"allowed_lifetime_min": "min", "allowed_lifetime_max": "max"}
"""Synapse's names for the bounds of limits.max_lifetime."""

_NOT_KEEP = validate.NoneOf([KEEP], error='must be a duration or "0"')
_NOT_ZERO = validate.NoneOf([AFTER_FETCH], error='must be a duration: only admins and message_retention can set "0"')


@dataclass(frozen=True)
class RetentionConfig:
    """``[retention]``: the lifetimes of messages, receipts and the audit log. Times: seconds; KEEP: not set."""

    enabled: bool = True
    """If False, no message is erased."""
    default_policy: Lifetimes = field(default_factory=Lifetimes)
    """The policy of groups whose admins set nothing."""
    limits: LifetimeLimits = field(default_factory=LifetimeLimits)
    """The allowed ranges of the lifetimes that admins and the default policy set."""
    groups: Mapping[str, Lifetimes] = field(default_factory=dict)
    """Overrides, by group id as text."""
    fetch_confirmation: str = RESPONSE
    """``response`` or ``next_fetch``."""
    fetch_hold_limit: int = KEEP
    """How long a member who does not fetch can delay the deletion of a message."""
    retain_commits: bool = False
    """See GroupPolicy."""
    self_destruct_max_age: int = SELF_DESTRUCT_MAX_AGE
    """The age in seconds at which a self-destructing message is hidden from members who have not read it."""
    admins_may_redact: bool = False
    """Whether a group's admins may take back messages of others."""
    keep_receipts: int = 31_536_000
    keep_audit: int = 94_608_000
    purge_jobs: tuple[PurgeJob, ...] = ()
    """Empty: one job for all groups, every ``cleanup_interval``."""

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Build from a mapping of field names to JSON values."""
        arguments = dict(values)
        if "default_policy" in arguments:
            arguments["default_policy"] = Lifetimes(**arguments["default_policy"])
        if "limits" in arguments:
            ranges = {name: LifetimeRange(**bounds) for name, bounds in arguments["limits"].items()}
            arguments["limits"] = LifetimeLimits(**ranges)
        if "groups" in arguments:
            groups = arguments["groups"]
            arguments["groups"] = {group_id: Lifetimes(**override) for group_id, override in groups.items()}
        if "purge_jobs" in arguments:
            arguments["purge_jobs"] = tuple(PurgeJob(**job) for job in arguments["purge_jobs"])
        return cls(**arguments)


class LifetimesSchema(Section):
    """The schema of a policy."""

    min_lifetime = Duration(words=True, validate=_NOT_KEEP)
    max_lifetime = Duration(words=True, validate=[_NOT_KEEP, _NOT_ZERO])


class LifetimeRangeSchema(Section):
    """The schema of the allowed range of a lifetime."""

    min = Duration(words=True, validate=_NOT_KEEP)
    max = Duration(words=True, validate=_NOT_KEEP)


class LifetimeLimitsSchema(Section):
    """The schema of ``limits``."""

    min_lifetime = Nested(LifetimeRangeSchema)
    max_lifetime = Nested(LifetimeRangeSchema)


class PurgeJobSchema(Section):
    """The schema of a purge job."""

    shortest_max_lifetime = Duration(words=True, validate=_NOT_KEEP)
    longest_max_lifetime = Duration(words=True, validate=_NOT_KEEP)
    interval = Duration(required=True, error_messages={"required": "is missing: how often the job runs"})


class GroupId(Text):
    """The id of a group, a UUID with hyphens or as 32 hex digits, loaded as its canonical text."""

    def _deserialize(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        text: str = super()._deserialize(value, *args, **kwargs)
        try:
            parsed = UUID(text)
        except ValueError:
            parsed = None
        if parsed is None or text.lower() not in (str(parsed), parsed.hex):
            raise ValidationError(f"{text!r} is not the id of a group: a UUID with hyphens, or 32 hex digits")
        return str(parsed)


class Overrides(Dict):
    """The operator's policies for single groups, by group id."""

    def _deserialize(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        loaded: dict[str, Any] = super()._deserialize(value, *args, **kwargs)  # type: ignore[no-untyped-call]
        if len(loaded) < len(value):
            raise ValidationError("has the same group twice, in two spellings of its id")
        return loaded


class RetentionSchema(Section):
    """The schema of ``[retention]``."""

    enabled = StrictBoolean()
    default_policy = Nested(LifetimesSchema)
    limits = Nested(LifetimeLimitsSchema)
    allowed_lifetime_min = Duration(words=True, validate=_NOT_KEEP)
    allowed_lifetime_max = Duration(words=True, validate=_NOT_KEEP)
    groups = Overrides(
        keys=GroupId(), values=Nested(LifetimesSchema), error_messages={"invalid": "must be a table of tables"}
    )
    fetch_confirmation = Text(
        validate=validate.OneOf([RESPONSE, NEXT_FETCH], error='must be "response" or "next_fetch"')
    )
    fetch_hold_limit = Duration()
    retain_commits = StrictBoolean()
    self_destruct_max_age = Duration()
    admins_may_redact = StrictBoolean()
    keep_receipts = Duration()
    keep_audit = Duration()
    purge_jobs = List(Nested(PurgeJobSchema), error_messages={"invalid": "must be a list of tables"})

    @validates_schema(skip_on_field_errors=False)
    def _reject_both_names(self, values: dict[str, Any], **_: Any) -> None:
        limit = values.get("limits", {}).get("max_lifetime", {})
        both = {
            name: [f"is another name for limits.max_lifetime.{bound}: set only one"]
            for name, bound in _SYNAPSE_NAMES.items()
            if name in values and bound in limit
        }
        if both:
            raise ValidationError(both)

    @post_load
    def _convert_synapse_names(self, values: dict[str, Any], **_: Any) -> dict[str, Any]:
        return _with_usual_names(values)


def _with_usual_names(values: dict[str, Any]) -> dict[str, Any]:
    """Replace Synapse's names for two of the limits. If both names are set, the usual one takes precedence."""
    settings = {name: value for name, value in values.items() if name not in _SYNAPSE_NAMES}
    for name, bound in _SYNAPSE_NAMES.items():
        if name in values:
            limits = settings.get("limits", {})
            settings["limits"] = limits | {"max_lifetime": {bound: values[name]} | limits.get("max_lifetime", {})}
    return settings


def valid_parts(values: dict[str, Any], faults: Any) -> dict[str, Any]:
    """Return the valid settings of an invalid ``[retention]``, to check them for contradictions.

    ``values``: the loaded settings. ``faults``: marshmallow's messages, or None. If any purge job is invalid, all are
    omitted, since jobs without a bound would have another meaning.
    """
    settings = _with_usual_names(values)
    if isinstance(faults, dict) and "purge_jobs" in faults:
        settings.pop("purge_jobs", None)
    return settings


def contradictions(retention: RetentionConfig, message_retention: int) -> Iterator[str]:
    """Yield a line for each contradiction between settings."""
    limits = retention.limits
    for name, limit in (("min_lifetime", limits.min_lifetime), ("max_lifetime", limits.max_lifetime)):
        if KEEP < limit.max < limit.min:
            yield f"retention.limits.{name}: its max must not be less than its min"
    if limits.max_lifetime.max == AFTER_FETCH:
        yield 'retention.limits.max_lifetime: its max must not be "0"'
    policies = {"retention.default_policy": retention.default_policy}
    policies |= {f"retention.groups.{group_id}": override for group_id, override in retention.groups.items()}
    for name, lifetimes in policies.items():
        if KEEP < lifetimes.max_lifetime < lifetimes.min_lifetime:
            yield f"{name}: its max_lifetime must not be less than its min_lifetime"
    if AFTER_FETCH < message_retention < limits.max_lifetime.min:
        yield "message_retention: must not be less than retention.limits.max_lifetime.min"
    for job in retention.purge_jobs:
        if job.longest_max_lifetime != KEEP and job.longest_max_lifetime <= job.shortest_max_lifetime:
            yield f"retention.purge_jobs: {job.name}: longest_max_lifetime must be greater than shortest_max_lifetime"
    if len({job.name for job in retention.purge_jobs}) < len(retention.purge_jobs):
        yield "retention.purge_jobs: two of them have the same bounds"
