"""A plain telling of what is served and of what one cleanup run does.

No SQL, no DataFrames, none of the project's functions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Sent:
    """A message: the second of its arrival, and the number of its sender.

    ``ends``: of one that destroys itself, when each member who has read it may no longer see it, by the member's
    position. None: it does not. ``ended``: it was too old to be read under former settings. ``taken``: it was taken
    back.
    """

    created_at: int
    sender: int
    is_commit: bool
    ends: Mapping[int, int] | None = None
    ended: bool = False
    taken: bool = False


@dataclass
class GroupState:
    """A group; ``messages`` by sequence number. Deleted ones have a tombstone.

    ``min_lifetime``: the admins' setting, -1 for none. ``override``: the operator's shortest and longest lifetime, -1
    for none; None for no override. ``joined``: the group's last number when each member joined, 0 if it says nothing.
    """

    expiry: int
    watermarks: list[int]
    messages: dict[int, Sent]
    floor_seq: int = 0
    gone_below: int = 0
    expired_before: int = 0
    deleted: bool = False
    commits_below: int = 0
    min_lifetime: int = -1
    override: tuple[int, int] | None = None
    held: bool = False
    joined: list[int] = field(default_factory=list)


@dataclass
class State:
    """A store, the settings of its server, and the time of the run; ``deleted_senders`` have a tombstone.

    ``job``: the shortest (exclusive) and longest lifetime of the run's purge job, -1 for none; None for all groups.
    """

    now: int
    server: int
    token_ttl: int
    invite_ttl: int
    groups: list[GroupState]
    deleted_senders: set[int] = field(default_factory=set)
    session_expiries: list[int] = field(default_factory=list)
    invite_times: list[int] = field(default_factory=list)
    held_senders: set[int] = field(default_factory=set)
    enabled: bool = True
    hold_limit: int = -1
    retain_commits: bool = False
    job: tuple[int, int] | None = None
    max_age: int = 2_592_000


@dataclass(frozen=True)
class Outcome:
    """What is left: messages and marks by the group's position, sessions and invites by theirs."""

    messages: set[tuple[int, int]]
    marks: dict[int, tuple[int, int, int]]
    sessions: set[int]
    invites: set[int]


def effective(server: int, group: int) -> int:
    """The table of the retention contract, row by row."""
    if server == 0 or group == 0:
        return 0
    if server == -1:
        return group
    return server if group == -1 else min(server, group)


def lifetime(state: State, group: GroupState) -> int:
    """The operator's override is final."""
    return group.override[1] if group.override else effective(state.server, group.expiry)


def served(state: State) -> set[tuple[int, int]]:
    """Say what the first member gets, by group's position and sequence number, before the run."""
    return {
        (position, number)
        for position, group in enumerate(state.groups)
        for number, sent in group.messages.items()
        if not group.deleted and number > group.gone_below and not is_over(state, group, number, sent)
        if not is_redacted(state, group, number, sent, 0)
    }


def is_redacted(state: State, group: GroupState, number: int, sent: Sent, member: int) -> bool:
    """Whether a member may not see a message that destroys itself or was taken back, or not any more."""
    if sent.taken or sent.ends is None:
        return sent.taken
    joined = group.joined[member] if group.joined else 0
    too_old = sent.ended or sent.created_at + state.max_age < state.now
    return joined >= number or (sent.ends[member] <= state.now if member in sent.ends else too_old)


def is_redacted_for_all(state: State, group: GroupState, number: int, sent: Sent) -> bool:
    """Whether no member may see it."""
    return sent.taken or (
        sent.ends is not None
        and all(is_redacted(state, group, number, sent, member) for member in range(len(group.watermarks)))
    )


def is_over(state: State, group: GroupState, number: int, sent: Sent) -> bool:
    """Whether a message is past its time, or its sender gone; commits outlive their senders."""
    return is_expired(state, group, number, sent) or (sent.sender in state.deleted_senders and not sent.is_commit)


def is_expired(state: State, group: GroupState, number: int, sent: Sent) -> bool:
    """Whether a message is past its time. A commit may be kept until everybody has fetched it."""
    if state.retain_commits and sent.is_commit and number > max(group.commits_below, min(group.watermarks)):
        return False
    policy = lifetime(state, group)
    limit = state.hold_limit if policy == 0 else policy
    return sent.created_at < group.expired_before or (limit > 0 and sent.created_at + limit < state.now)


def may_go(state: State, group: GroupState, sent: Sent) -> bool:
    """Whether nothing withholds a message from being erased."""
    least = max(0, group.override[0] if group.override else group.min_lifetime)
    is_old_enough = least == 0 or sent.created_at + least <= state.now
    return state.enabled and is_old_enough and not group.held and sent.sender not in state.held_senders


def belongs(state: State, group: GroupState) -> bool:
    """Whether a group belongs to the run: by its lifetime, or since something is past a mark."""
    if state.job is None:
        return True
    shortest, longest = state.job
    policy = lifetime(state, group)
    if policy == 0:
        by_lifetime = shortest == -1
    elif policy == -1:
        by_lifetime = longest == -1
    else:
        by_lifetime = policy > shortest and (longest == -1 or policy <= longest)
    return by_lifetime or any(
        may_go(state, group, sent)
        and (
            number <= group.gone_below
            or (sent.created_at < group.expired_before and is_expired(state, group, number, sent))
            or is_redacted_for_all(state, group, number, sent)
        )
        for number, sent in group.messages.items()
    )


def run(state: State) -> Outcome:
    """Say what a run leaves."""
    messages: set[tuple[int, int]] = set()
    marks: dict[int, tuple[int, int, int]] = {}
    for position, group in enumerate(state.groups):
        floor, gone, takes_part = group.floor_seq, group.gone_below, belongs(state, group)
        if lifetime(state, group) == 0 and takes_part:
            floor = max(floor, min(group.watermarks))
            gone = max(gone, floor)
        if not group.deleted:
            marks[position] = (floor, gone, group.expired_before)
        for number, sent in group.messages.items():
            by_account = sent.sender in state.deleted_senders and not sent.is_commit
            due = number <= gone or is_expired(state, group, number, sent)
            due = due or is_redacted_for_all(state, group, number, sent)
            goes = group.deleted or by_account or (due and takes_part)
            if not (goes and may_go(state, group, sent)):
                messages.add((position, number))
    lag = min(60, state.token_ttl)
    return Outcome(
        messages,
        marks,
        {at for at, expires in enumerate(state.session_expiries) if state.now - expires <= lag or state.job},
        {at for at, created in enumerate(state.invite_times) if state.now - created <= state.invite_ttl or state.job},
    )
