"""Says in a few words what a configuration means for messages, for the line that a start logs. Pure."""

from conclave.config.settings import Config
from conclave.retention.durations import duration_words
from conclave.retention.policy import AFTER_FETCH, KEEP


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
