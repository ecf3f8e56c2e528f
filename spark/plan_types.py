"""The plan that both engines make, and that is then applied."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class GroupStep:
    """A group in which something is due, with its marks after the run.

    Messages with numbers up to ``gone_below`` (inclusive) go, and those created before ``expired_before`` (exclusive,
    Unix seconds), except commits with numbers greater than ``commits_above``. Of these only those created before
    ``erasable_before`` (exclusive, Unix seconds) are old enough; 0: the marks rise, and nothing goes. ``redacts``: 1 if
    self-destructing messages go that have come to their end for everybody, otherwise 0.
    """

    group_key: int
    floor_seq: int
    gone_below: int
    expired_before: int
    erasable_before: int
    commits_above: int
    redacts: int = 0


@dataclass(frozen=True)
class Plan:
    """What one run deletes at the Unix second ``now``: keys in ascending order.

    ``tombstones``: keys of deleted groups. ``deleted_accounts``: user ids; what they have sent goes, except commits.
    Of both goes what is old enough and under no legal hold.
    """

    now: int
    groups: list[GroupStep] = field(default_factory=list)
    tombstones: list[int] = field(default_factory=list)
    deleted_accounts: list[bytes] = field(default_factory=list)
    sessions: list[int] = field(default_factory=list)
    invites: list[int] = field(default_factory=list)

    @property
    def risen(self) -> list[tuple[int, int]]:
        """The marks ``gone_below`` that the run raises before anything goes, and the keys of their groups."""
        return [(step.gone_below, step.group_key) for step in self.groups]
