"""A plain telling of what one cleanup run does: no SQL, no DataFrames, none of the project's functions."""

from dataclasses import dataclass, field


@dataclass
class GroupState:
    """A group; ``messages`` maps sequence numbers to the second of arrival. Deleted ones have a tombstone."""

    expiry: int
    watermarks: list[int]
    messages: dict[int, int]
    floor_seq: int = 0
    gone_below: int = 0
    expired_before: int = 0
    deleted: bool = False


@dataclass
class State:
    """A store, the settings of its server, and the time of the run."""

    now: int
    server: int
    token_ttl: int
    invite_ttl: int
    groups: list[GroupState]
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


def run(state: State) -> Outcome:
    """Say what a run leaves."""
    messages: set[tuple[int, int]] = set()
    marks: dict[int, tuple[int, int, int]] = {}
    for position, group in enumerate(state.groups):
        if group.deleted:
            continue
        policy = effective(state.server, group.expiry)
        floor, gone = group.floor_seq, group.gone_below
        if policy == 0:
            floor = max(floor, min(group.watermarks))
            gone = max(gone, floor)
        marks[position] = (floor, gone, group.expired_before)
        for number, created_at in group.messages.items():
            expired = created_at < group.expired_before or (policy > 0 and created_at + policy < state.now)
            if number > gone and not expired:
                messages.add((position, number))
    lag = min(60, state.token_ttl)
    return Outcome(
        messages,
        marks,
        {at for at, expires in enumerate(state.session_expiries) if state.now - expires <= lag},
        {at for at, created in enumerate(state.invite_times) if state.now - created <= state.invite_ttl},
    )
