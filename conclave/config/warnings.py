"""Finds valid settings that may not do what the operator expects. Pure functions.

Also formats the settings that the server logs when it starts.
"""

from collections.abc import Collection, Iterator
from typing import NamedTuple

from conclave.config.retention import RetentionConfig
from conclave.config.settings import Config
from conclave.retention.durations import duration_text, duration_words
from conclave.retention.jobs import gaps
from conclave.retention.policy import AFTER_FETCH, KEEP, GroupPolicy


class ConfigWarning(NamedTuple):
    """A setting with an effect that the operator may not expect."""

    setting: str
    means: str


def find_warnings(config: Config, policies: Collection[GroupPolicy] | None = None) -> Iterator[ConfigWarning]:
    """Yield the warnings about a configuration.

    ``policies``: the policies that groups have under it, to omit warnings that affect no group; None: omit no warnings.
    """
    retention, server = config.retention, config.message_retention
    if policies is None or any(_is_uncovered(retention, policy) for policy in policies):
        for gap in gaps(retention.purge_jobs):
            yield ConfigWarning(
                "retention.purge_jobs", f"no job covers {gap}: expired messages are hidden there, but not erased"
            )
    if policies is None or any(policy.is_after_fetch for policy in policies):
        yield from _unlimited_hold(retention, server)
    if policies is None or any(policy.lifetime == KEEP for policy in policies):
        yield from _limits_without_expiry(retention, server)
    if config.vault_path.is_relative_to(config.data):
        yield ConfigWarning(
            "vault.path", "is in the data directory, which is copied with the database: put it elsewhere"
        )


def unknown_group(group_id: str) -> ConfigWarning:
    """Return the warning for an override whose group does not exist."""
    return ConfigWarning(f"retention.groups.{group_id}", "this group does not exist, or was deleted: check the id")


def _is_uncovered(retention: RetentionConfig, policy: GroupPolicy) -> bool:
    """Return whether messages expire under a policy that no job covers."""
    return policy.lifetime != KEEP and not any(job.covers(policy) for job in retention.purge_jobs)


def _unlimited_hold(retention: RetentionConfig, server: int) -> Iterator[ConfigWarning]:
    """Yield warnings about caps that do not apply to delete-after-fetch."""
    if retention.fetch_hold_limit != KEEP:
        return
    means = (
        "does not apply to groups in delete-after-fetch, where a member who does not fetch can delay deletion for"
        " longer; set retention.fetch_hold_limit"
    )
    if server > AFTER_FETCH:
        yield ConfigWarning("message_retention", f"{duration_text(server)}: {means}")
    longest = retention.limits.max_lifetime.max
    if longest != KEEP:
        yield ConfigWarning("retention.limits.max_lifetime.max", f"{duration_text(longest)}: {means}")


def _limits_without_expiry(retention: RetentionConfig, server: int) -> Iterator[ConfigWarning]:
    """Yield a warning if the limits have no effect in groups whose admins set no lifetime."""
    limit = retention.limits.max_lifetime
    if (limit.min, limit.max) == (KEEP, KEEP) or server != KEEP or retention.default_policy.max_lifetime != KEEP:
        return
    yield ConfigWarning(
        "retention.limits.max_lifetime",
        "sets no expiry: groups whose admins set none keep their messages for ever; set message_retention or"
        " retention.default_policy.max_lifetime",
    )


def retention_in_words(config: Config) -> str:
    """Return in words how long messages are kept at most."""
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
    """Return in words the engine and the interval of cleanup."""
    jobs = len(config.retention.purge_jobs)
    more = f", and {jobs} purge job{'' if jobs == 1 else 's'}" if jobs else ""
    return f"{config.cleanup.engine}, every {duration_words(config.cleanup_interval)}{more}"


def archive_in_words(config: Config) -> str:
    """Return in words whether and when messages move to the archive."""
    return "off" if config.archive.after == KEEP else f"after {duration_words(config.archive.after)}"
