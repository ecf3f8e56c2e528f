"""The plan as the engines hand it over to be applied."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class GroupStep:
    """A group in which something is due.

    Its marks after the run: messages numbered up to ``gone_below`` (inclusive) go, and those created before
    ``expired_before`` (exclusive, Unix seconds).
    """

    group_key: int
    floor_seq: int
    gone_below: int
    expired_before: int


@dataclass(frozen=True)
class Plan:
    """What one run deletes, by key, ascending; made for the second ``now``.

    ``deleted_accounts`` has user ids: what these sent goes, but for commits.
    """

    now: int
    groups: list[GroupStep] = field(default_factory=list)
    tombstones: list[int] = field(default_factory=list)
    deleted_accounts: list[bytes] = field(default_factory=list)
    sessions: list[int] = field(default_factory=list)
    invites: list[int] = field(default_factory=list)
