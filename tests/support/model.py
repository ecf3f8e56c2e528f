"""A plain telling of what is served and of what one cleanup run does.

No SQL, no DataFrames, none of the project's functions.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Sent:
    """A message: the second of its arrival, and the number of its sender."""

    created_at: int
    sender: int
    is_commit: bool


@dataclass
class GroupState:
    """A group; ``messages`` by sequence number. Deleted ones have a tombstone."""

    expiry: int
    watermarks: list[int]
    messages: dict[int, Sent]
    floor_seq: int = 0
    gone_below: int = 0
    expired_before: int = 0
    deleted: bool = False


@dataclass
class State:
    """A store, the settings of its server, and the time of the run; ``deleted_senders`` have a tombstone."""

    now: int
    server: int
    token_ttl: int
    invite_ttl: int
    groups: list[GroupState]
    deleted_senders: set[int] = field(default_factory=set)
    session_expiries: list[int] = field(default_factory=list)
    invite_times: list[int] = field(default_factory=list)


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


def served(state: State) -> set[tuple[int, int]]:
    """Say what members get, by group's position and sequence number, before the run."""
    return {
        (position, number)
        for position, group in enumerate(state.groups)
        for number, sent in group.messages.items()
        if not group.deleted and number > group.gone_below and not is_over(state, group, sent)
    }


def is_over(state: State, group: GroupState, sent: Sent) -> bool:
    """Whether a message is past its time, or its sender gone; commits outlive their senders."""
    policy = effective(state.server, group.expiry)
    expired = sent.created_at < group.expired_before or (policy > 0 and sent.created_at + policy < state.now)
    return expired or (sent.sender in state.deleted_senders and not sent.is_commit)


def run(state: State) -> Outcome:
    """Say what a run leaves."""
    messages: set[tuple[int, int]] = set()
    marks: dict[int, tuple[int, int, int]] = {}
    for position, group in enumerate(state.groups):
        if group.deleted:
            continue
        floor, gone = group.floor_seq, group.gone_below
        if effective(state.server, group.expiry) == 0:
            floor = max(floor, min(group.watermarks))
            gone = max(gone, floor)
        marks[position] = (floor, gone, group.expired_before)
        for number, sent in group.messages.items():
            if number > gone and not is_over(state, group, sent):
                messages.add((position, number))
    lag = min(60, state.token_ttl)
    return Outcome(
        messages,
        marks,
        {at for at, expires in enumerate(state.session_expiries) if state.now - expires <= lag},
        {at for at, created in enumerate(state.invite_times) if state.now - created <= state.invite_ttl},
    )
