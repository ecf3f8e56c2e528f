"""Says in words why a group has the policy that it has. Pure functions.

``resolve.py`` decides; this tells of each of its steps what it did. The steps are those of the retention contract,
section 2.
"""

from collections.abc import Iterator
from uuid import UUID

from conclave.retention.durations import duration_text
from conclave.retention.policy import AFTER_FETCH, KEEP, GroupPolicy
from conclave.retention.resolve import Limit, PolicySettings

DELETE_AFTER_FETCH = "delete-after-fetch"


def lifetime_text(seconds: int) -> str:
    """Write a lifetime for people: a duration, what 0 means, or that messages are kept."""
    if seconds == KEEP:
        return "for ever"
    return DELETE_AFTER_FETCH if seconds == AFTER_FETCH else duration_text(seconds)


def reasons(settings: PolicySettings, group_id: bytes, own_max: int, own_min: int) -> list[str]:
    """Return a sentence for each thing that decides, or that does not decide although it was set.

    ``own_max`` and ``own_min``: what the group's admins have stored, in seconds; KEEP inherits.
    """
    policy = settings.of_group(group_id, own_max, own_min)
    override = settings.groups.get(str(UUID(bytes=group_id)))
    if override:
        said = [*_of_override(override.max_lifetime, override.min_lifetime), *_not_in_force(own_max, own_min)]
    else:
        said = [*_of_max(settings, own_max, policy), *_of_min(settings, own_min)]
    return [*said, *_of_all(settings, policy)]


def _of_override(longest: int, shortest: int) -> Iterator[str]:
    sets = [f"max_lifetime {duration_text(longest)}"] if longest != KEEP else []
    sets += [f"min_lifetime {_length(shortest)}"] if shortest != KEEP else []
    yield f"the operator's override for this group binds: {' and '.join(sets) or 'no lifetime at all'}"


def _not_in_force(own_max: int, own_min: int) -> Iterator[str]:
    if own_max != KEEP:
        yield f"its admins have stored {lifetime_text(own_max)}, which is not in force: an override is final"
    if own_min != KEEP:
        yield f"its admins have stored min_lifetime {_length(own_min)}, which is not in force: an override is final"


def _of_max(settings: PolicySettings, own: int, policy: GroupPolicy) -> Iterator[str]:
    wanted, server = own, settings.message_retention
    if own != KEEP:
        yield f"its admins have set {lifetime_text(own)}"
    elif settings.default_policy.max_lifetime != KEEP:
        wanted = settings.default_policy.max_lifetime
        yield f"its admins have set nothing; retention.default_policy has max_lifetime {duration_text(wanted)}"
    else:
        yield "its admins have set nothing, and there is no default"
    if wanted > AFTER_FETCH:
        clamped = settings.limits.max_lifetime.clamp(wanted)
        yield from _clamped("max_lifetime", settings.limits.max_lifetime, wanted, clamped)
        wanted = clamped
    if server == KEEP:
        if policy.lifetime == KEEP:
            yield "message_retention is off, so nothing expires by age"
    elif policy.lifetime != wanted:
        why = "0 always wins" if server == AFTER_FETCH else "the shorter of the two binds"
        yield f"message_retention of the server is {lifetime_text(server)}, and binds" + (
            f": {why}" if wanted != KEEP else ""
        )
    elif server > AFTER_FETCH and wanted == AFTER_FETCH:
        yield f"message_retention of the server ({duration_text(server)}) does not apply to delete-after-fetch"


def _of_min(settings: PolicySettings, own: int) -> Iterator[str]:
    wanted = own if own != KEEP else settings.default_policy.min_lifetime
    whose = "its admins have set" if own != KEEP else "retention.default_policy has"
    if wanted != KEEP:
        yield f"{whose} min_lifetime {_length(wanted)}"
    clamped = settings.limits.min_lifetime.clamp(wanted)
    yield from _clamped("min_lifetime", settings.limits.min_lifetime, wanted, clamped)


def _clamped(name: str, limit: Limit, wanted: int, clamped: int) -> Iterator[str]:
    if clamped > max(wanted, 0):
        yield f"retention.limits.{name}.min makes that {_length(limit.min)}"
    elif KEEP < clamped < wanted:
        yield f"retention.limits.{name}.max makes that {_length(limit.max)}"


def _of_all(settings: PolicySettings, policy: GroupPolicy) -> Iterator[str]:
    if policy.is_after_fetch:
        if policy.hold_limit != KEEP:
            limit = duration_text(policy.hold_limit)
            yield f"retention.fetch_hold_limit: after {limit} a message expires, fetched by all members or not"
        elif settings.message_retention > AFTER_FETCH:
            yield (
                "a member who never fetches can hold messages back for longer than message_retention:"
                " retention.fetch_hold_limit is not set"
            )
        least = settings.limits.max_lifetime.min
        if policy.min_lifetime > 0 and policy.min_lifetime == least:
            yield f"retention.limits.max_lifetime.min delays erasure here: to {duration_text(least)} after sending"
    if policy.keeps_commits:
        yield "retention.retain_commits: a commit does not expire by age until every member has fetched it"
    if not settings.enabled:
        yield "retention.enabled is false: what has expired is hidden, and nothing is erased"


def _length(seconds: int) -> str:
    return duration_text(seconds) if seconds > 0 else "0"
