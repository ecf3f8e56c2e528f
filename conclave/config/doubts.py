"""Finds settings that are valid, but may not do what the operator expects of them. Pure."""

from collections.abc import Iterator
from typing import NamedTuple

from conclave.config.retention import RetentionConfig
from conclave.config.settings import Config
from conclave.retention.durations import duration_text
from conclave.retention.jobs import gaps
from conclave.retention.policy import AFTER_FETCH, KEEP


class Doubt(NamedTuple):
    """A setting, and what it means in fact."""

    setting: str
    means: str


def doubts(config: Config) -> Iterator[Doubt]:
    """Yield what a configuration shows by itself."""
    retention, server = config.retention, config.message_retention
    for gap in gaps(retention.purge_jobs):
        yield Doubt("retention.purge_jobs", f"no job covers {gap}: what expires there is hidden, but not erased")
    yield from _escapes(retention, server)
    yield from _creates_nothing(retention, server)
    if config.ledger_path.is_relative_to(config.data):
        yield Doubt("ledger.path", "lies in the data directory, with which it would be lost: put it on another disk")


def of_unknown_group(group_id: str) -> Doubt:
    """Return what to say of an override whose group the store does not know."""
    return Doubt(f"retention.groups.{group_id}", "there is no such group, or no longer: look for a mistyped id")


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
