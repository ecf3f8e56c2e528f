"""What is to be done in which group, and when: in memory only, since it follows anew from the state at each start."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from uuid import UUID

from conclave.wire.results import GroupDetails

SOON_SECONDS = 0.2
"""Several changes that come together are looked at once, after 0.2 seconds."""

CHECK_INTERVAL_SECONDS = 3_600.0
"""Every group is looked at once an hour: for keys that are to be renewed, and for what was missed."""

FIRST_JOIN_DELAY, MAX_DELAY = 0.5, 3_600.0
"""Who cannot come in tries again after half a second, and twice as long each time: two devices may be at odds."""

FIRST_CHECK_DELAY = 2.0
"""Who is unsure compares the server's group info after two seconds, and after twice as long each time."""

CONFLICT_SECONDS = 600.0
"""For ten minutes after another member's commit that does not count the group info is compared several times."""

CONTESTED_SECONDS = 7_200.0
"""What others told two hours ago is no sign any more that they are in another branch."""

STABLE_AFTER_SECONDS = 600.0
"""Who has stayed in for 10 minutes begins at half a second again."""


@dataclass
class GroupAgenda:
    """A group. Times are those of ``clock``, in seconds.

    ``at``: when to look at it. ``info_at``: when to compare the server's group info. ``needed_since``: since when
    something waits that several members could do. ``ahead``: something came of an epoch that this client is not in.
    ``claimed``: the own epoch in which a group info of another one was seen first, at ``claimed_at``.
    ``read_at``: all that was at the server then was read.
    ``asked_at``: when the user asked in.
    ``is_caught_up``: all that was at the server at the start was read.
    ``has_read_all``: everything since the epoch began was. ``has_sent``: an own text has come back since the start.
    ``is_new``: the user has come in, and the keys were not compared with the server's group info since then.
    ``contested``: how often something of another branch was replaced at the server.
    ``listed``, ``admins``: of the server's list as it was read last; None: not yet. ``without_right``: members who have
    made a change that they had no right to: they are in a branch of their own.
    """

    clock: Callable[[], float]
    at: float | None = None
    info_at: float | None = None
    commit_needed_since: float | None = None
    stranger_since: float | None = None
    is_stranger_reported: bool = False
    has_later_messages: bool = False
    other_epoch: int | None = None
    other_epoch_seen_at: float = 0.0
    read_at: float = -inf
    join_sent_at: float = -inf
    is_caught_up: bool = False
    has_sent: bool = False
    is_new: bool = False
    has_read_all: bool = False
    attempts: int = 0
    entered_at: float | None = None
    info_uploaded_epoch: int | None = None
    listed: frozenset[UUID] | None = None
    admins: frozenset[UUID] = frozenset()
    unauthorized: set[UUID] = field(default_factory=set)
    _epoch: int = -1
    contested: int = 0
    _contested_at: float = -inf
    _fetched_at: float = -inf
    _conflict_at: float = -inf
    _has_missed: bool = False
    _missed_epoch: int = -1
    _checks: int = 0
    readable_count: int = 0
    unreadable_count: int = 0
    unreadable_commits: int = 0

    def record_other_epoch(self, epoch: int) -> bool:
        """A group info of another epoch than the own one is at the server. Tell whether that is new."""
        is_new = self.other_epoch != epoch
        if is_new:
            self.other_epoch, self.other_epoch_seen_at = epoch, self.clock()
        return is_new

    def has_read_past(self, epoch: int) -> bool:
        """Tell whether all was read that was there when such a group info was seen, and this epoch is still the last.

        Before that it says nothing: who reads slowly is behind the others, and in no other branch.
        """
        return self.other_epoch == epoch and self.other_epoch_seen_at < self.read_at

    def record_fetch(self) -> None:
        """A page of messages is asked for next."""
        self._fetched_at = self.clock()

    def record_caught_up(self) -> None:
        """The page that was asked for last was empty."""
        self.is_caught_up, self.read_at = True, self._fetched_at

    def update_members(self, group: GroupDetails) -> bool:
        """Note the members and admins as the server lists them now. Tell whether there are other members."""
        former, self.listed = self.listed, frozenset(each.user_id for each in group.members)
        self.admins = frozenset(each.user_id for each in group.members if each.role == "admin")
        return self.listed != former

    def record_readable(self, epoch: int, sent_in: int) -> None:
        """A message could be read in this epoch, which was encrypted in that or an earlier one."""
        self._enter_epoch(epoch)
        self._clear_gap(sent_in)
        self.readable_count += 1

    def record_unreadable(self, epoch: int, *, is_foreign: bool) -> None:
        """A message could not be read in this epoch: it is rubbish, or this client has lost the way.

        ``is_foreign``: it may come from a member who has lost the way: who has read all stays then.
        """
        self._enter_epoch(epoch)
        self.unreadable_count += 1
        self.unreadable_commits += not is_foreign
        self.check_info_soon()

    def record_commit(self, epoch: int, *, by_others: bool = True) -> None:
        """A commit has led into this epoch, and was read just now.

        ``by_others``: by a member who was in: they were where this client was, whatever it has not read before that.
        """
        had_read_all = self.has_read_all
        self._enter_epoch(epoch)
        if by_others:
            self._clear_gap(epoch - 1)
        self.has_read_all = had_read_all or (by_others and not self._has_missed)
        if self._has_missed:
            self._checks = 0

    def record_gap(self, epoch: int) -> None:
        """Something was not read in this epoch: it had gone before, or is for others."""
        self.has_read_all, self._has_missed, self._missed_epoch = False, True, epoch
        self._checks = 0

    def _clear_gap(self, epoch: int) -> None:
        """Others were in this epoch: so what was missed in an earlier one led nowhere else."""
        self._has_missed = self._has_missed and self._missed_epoch >= epoch

    @property
    def is_complete(self) -> bool:
        """Whether all was read since the epoch began, and nothing of its members was refused: none follows it yet."""
        return self.has_read_all and not self.unreadable_commits

    def _enter_epoch(self, epoch: int) -> None:
        if epoch != self._epoch:
            self._epoch, self.readable_count, self.unreadable_count, self.unreadable_commits, self.has_read_all = (
                epoch,
                0,
                0,
                0,
                False,
            )

    def check_info_soon(self, *, is_own: bool = False) -> None:
        """The server's group info may be a wrong one. ``is_own``: by this client's doing, so it looks at once."""
        self.check_info(0.0 if is_own else SOON_SECONDS)

    def check_info(self, after: float) -> None:
        """Compare the server's group info after so many seconds."""
        at = self.clock() + after
        self.info_at = at if self.info_at is None else min(at, self.info_at)

    def next_check_delay(self) -> float:
        """Return how long to wait before it is compared again as long as it is not known who is right."""
        self._checks += 1
        return min(FIRST_CHECK_DELAY * 2.0 ** min(self._checks - 1, 20), MAX_DELAY)

    @property
    def is_settled(self) -> bool:
        """Whether nothing says that others may be in another branch."""
        is_suspect = self.clock() - self._conflict_at < CONFLICT_SECONDS
        return not self._has_missed and not self.contested and not is_suspect

    def record_conflict(self) -> None:
        """A member has made a commit that does not count here: it has lost, or it counts in another branch."""
        self._conflict_at, self._checks = self.clock(), 0
        self.check_info_soon()

    def record_contest(self) -> None:
        """The group info of another member is replaced: that client may do the same."""
        if self.clock() - self._contested_at > CONTESTED_SECONDS:
            self.contested = 0
        self.contested, self._contested_at, self._checks = self.contested + 1, self.clock(), 0

    def clear_contest(self) -> None:
        """An earlier member has sent something with the same keys."""
        self.contested = 0

    def reset_attempts(self) -> None:
        """Another one has come in at the same moment: that is no failure, and is not waited for longer each time."""
        self.attempts = 0

    def record_entry(self, epoch: int, *, is_new: bool) -> None:
        """The user has the keys. ``is_new``: of a group of others."""
        self.is_new = is_new
        self._has_missed = False
        self.record_commit(epoch)
        self.has_later_messages, self.other_epoch, self.entered_at, self.is_caught_up = False, None, self.clock(), True
        self.contested = self._checks = 0

    def next_join_delay(self) -> float:
        """Return how long to wait before the user asks in again."""
        if self.entered_at is not None and self.clock() - self.entered_at > STABLE_AFTER_SECONDS:
            self.attempts = 0
        self.entered_at = None
        self.attempts += 1
        return min(FIRST_JOIN_DELAY * 2.0 ** min(self.attempts - 1, 20), MAX_DELAY)


@dataclass
class Agenda:
    """All groups."""

    clock: Callable[[], float] = time.monotonic
    _groups: dict[UUID, GroupAgenda] = field(default_factory=dict)

    def group(self, group_id: UUID) -> GroupAgenda:
        """Return what is to be done in a group."""
        if group_id not in self._groups:
            self._groups[group_id] = GroupAgenda(self.clock)
        return self._groups[group_id]

    def schedule(self, group_id: UUID, after: float = SOON_SECONDS) -> None:
        """Look at a group soon, or after so many seconds."""
        agenda, at = self.group(group_id), self.clock() + after
        agenda.at = at if agenda.at is None else min(at, agenda.at)

    def due(self) -> list[UUID]:
        """Return the groups that are to be looked at now."""
        now = self.clock()
        return [group_id for group_id, each in self._groups.items() if each.at is not None and each.at <= now]

    def forget(self, group_id: UUID) -> None:
        """Forget a group."""
        self._groups.pop(group_id, None)
