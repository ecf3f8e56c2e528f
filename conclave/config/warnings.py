"""Finds settings that are valid, but may not do what the operator expects of them. Pure.

Also the few words in which a start logs what a configuration means for messages.
"""

from collections.abc import Collection, Iterator
from typing import NamedTuple

from conclave.config.retention import RetentionConfig
from conclave.config.settings import Config
from conclave.retention.durations import duration_text, duration_words
from conclave.retention.jobs import gaps
from conclave.retention.policy import AFTER_FETCH, KEEP, GroupPolicy


class Doubt(NamedTuple):
    """A setting, and what it means in fact."""

    setting: str
    means: str


def doubts(config: Config, policies: Collection[GroupPolicy] | None = None) -> Iterator[Doubt]:
    """Yield what a configuration shows by itself.

    ``policies``: those that groups have under it. What concerns none of these groups is left out; None: nothing is,
    since groups may come that it concerns.
    """
    retention, server = config.retention, config.message_retention
    if policies is None or any(_is_missed(retention, policy) for policy in policies):
        for gap in gaps(retention.purge_jobs):
            yield Doubt("retention.purge_jobs", f"no job covers {gap}: what expires there is hidden, but not erased")
    if policies is None or any(policy.is_after_fetch for policy in policies):
        yield from _escapes(retention, server)
    if policies is None or any(policy.lifetime == KEEP for policy in policies):
        yield from _creates_nothing(retention, server)
    if config.vault_path.is_relative_to(config.data):
        yield Doubt("vault.path", "lies in the data directory, which is copied with the database: put it elsewhere")


def of_unknown_group(group_id: str) -> Doubt:
    """Return what to say of an override whose group the store does not know."""
    return Doubt(f"retention.groups.{group_id}", "there is no such group, or no longer: look for a mistyped id")


def _is_missed(retention: RetentionConfig, policy: GroupPolicy) -> bool:
    """Return whether messages expire by a policy that no job covers."""
    return policy.lifetime != KEEP and not any(job.covers(policy) for job in retention.purge_jobs)


def _escapes(retention: RetentionConfig, server: int) -> Iterator[Doubt]:
    """Yield the caps that delete-after-fetch escapes."""
    if retention.fetch_hold_limit != KEEP:
        return
    means = (
        "does not bind groups in delete-after-fetch: there a member who does not fetch can hold messages back for"
        " longer; set retention.fetch_hold_limit"
    )
    if server > AFTER_FETCH:
        yield Doubt("message_retention", f"{duration_text(server)}: {means}")
    most = retention.limits.max_lifetime.max
    if most != KEEP:
        yield Doubt("retention.limits.max_lifetime.max", f"{duration_text(most)}: {means}")


def _creates_nothing(retention: RetentionConfig, server: int) -> Iterator[Doubt]:
    """Yield the limits that nothing is brought within, unless admins set something."""
    limit = retention.limits.max_lifetime
    if (limit.min, limit.max) == (KEEP, KEEP) or server != KEEP or retention.default_policy.max_lifetime != KEEP:
        return
    yield Doubt(
        "retention.limits.max_lifetime",
        "creates no expiry: groups whose admins have set none keep their messages for ever; set message_retention or"
        " retention.default_policy.max_lifetime",
    )


def retention_in_words(config: Config) -> str:
    """Return how long messages are kept at most."""
    server, default = config.message_retention, config.retention.default_policy.max_lifetime
    if not config.retention.enabled:
        return "nothing is erased"
    if server == AFTER_FETCH:
        return "until every member has fetched"
    own = f"{duration_words(default)} unless a group has its own" if default != KEEP else ""
    if server == KEEP:
        return own or "for ever, unless a group has its own"
    return f"at most {duration_words(server)}" + (f", {own}" if own else "")


def cleanup_in_words(config: Config) -> str:
    """Return what cleans up, and how often."""
    jobs = len(config.retention.purge_jobs)
    more = f", and {jobs} purge job{'' if jobs == 1 else 's'}" if jobs else ""
    return f"{config.cleanup.engine}, every {duration_words(config.cleanup_interval)}{more}"


def archive_in_words(config: Config) -> str:
    """Return whether messages move to the archive, and when."""
    return "off" if config.archive.after == KEEP else f"after {duration_words(config.archive.after)}"
