"""When to check which group, and what was observed in it. In memory only: each start derives it again."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from uuid import UUID

from conclave.wire.results import GroupDetails

SOON_SECONDS = 0.2
"""Delay of a check, so that several changes are checked together."""

CHECK_INTERVAL_SECONDS = 3_600.0
"""Interval of the regular checks of each group, for keys to renew and missed changes."""

FIRST_JOIN_DELAY, MAX_DELAY = 0.5, 3_600.0
"""Delay before joining again, doubled each time: two devices may replace each other."""

FIRST_CHECK_DELAY = 2.0
"""An unconfirmed client compares the server's group info after this delay, doubled each time."""

CONFLICT_SECONDS = 600.0
"""How long after another member's rejected commit the group info is compared more often."""

CONTESTED_SECONDS = 7_200.0
"""Older contests are no sign of another branch any more."""

STABLE_AFTER_SECONDS = 600.0
"""A client that has been in the group this long starts at FIRST_JOIN_DELAY again."""


@dataclass
class GroupAgenda:
    """The schedule and the observations of a group. Times are seconds of ``clock``.

    ``at``: when to check the group. ``info_at``: when to compare the server's group info. ``commit_needed_since``:
    since when a commit is needed that several members could make. ``has_later_messages``: messages of a later epoch
    arrived. ``other_epoch``: the own epoch in which a group info of another epoch was first seen, at
    ``other_epoch_seen_at``. ``read_at``: everything on the server at that time was read. ``join_sent_at``: when the own
    external commit was sent. ``is_caught_up``: everything on the server at the start was read. ``has_read_all``:
    everything since the epoch began was read. ``has_sent``: an own text has come back since the start. ``is_new``: the
    user has joined, and the server's group info was not compared since. ``contested``: how often a group info of
    another branch was replaced on the server. ``listed``, ``admins``: by the server's last list; None: not read yet.
    ``unauthorized``: members who made a change without the right to it, and so are in a branch of their own.
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
        """Record that the server has a group info of another epoch. Return whether this is the first time."""
        is_new = self.other_epoch != epoch
        if is_new:
            self.other_epoch, self.other_epoch_seen_at = epoch, self.clock()
        return is_new

    def has_read_past(self, epoch: int) -> bool:
        """Return whether everything older than that group info was read, without leaving this epoch.

        Until then the group info proves nothing: a client that reads slowly is only behind the others.
        """
        return self.other_epoch == epoch and self.other_epoch_seen_at < self.read_at

    def record_fetch(self) -> None:
        """Record that a page of messages is requested now."""
        self._fetched_at = self.clock()

    def record_caught_up(self) -> None:
        """Record that the last requested page was empty."""
        self.is_caught_up, self.read_at = True, self._fetched_at

    def update_members(self, group: GroupDetails) -> bool:
        """Update the members and admins from the server's list. Return whether the members have changed."""
        former, self.listed = self.listed, frozenset(each.user_id for each in group.members)
        self.admins = frozenset(each.user_id for each in group.members if each.role == "admin")
        return self.listed != former

    def record_readable(self, epoch: int, sent_in: int) -> None:
        """Record a decrypted message, received in ``epoch`` and encrypted in ``sent_in``, not later."""
        self._enter_epoch(epoch)
        self._clear_gap(sent_in)
        self.readable_count += 1

    def record_unreadable(self, epoch: int, *, is_foreign: bool) -> None:
        """Record a message that failed in ``epoch``: it is invalid, or this client is in a wrong branch.

        ``is_foreign``: it may come from a member in a wrong branch, so a client that has read everything stays.
        """
        self._enter_epoch(epoch)
        self.unreadable_count += 1
        self.unreadable_commits += not is_foreign
        self.check_info_soon()

    def record_commit(self, epoch: int, *, by_others: bool = True) -> None:
        """Record a commit that has led into ``epoch``.

        ``by_others``: by an existing member, which shows that it was in this client's branch.
        """
        had_read_all = self.has_read_all
        self._enter_epoch(epoch)
        if by_others:
            self._clear_gap(epoch - 1)
        self.has_read_all = had_read_all or (by_others and not self._has_missed)
        if self._has_missed:
            self._checks = 0

    def record_gap(self, epoch: int) -> None:
        """Record a message that was not read in ``epoch``: it was gone before, or is for others."""
        self.has_read_all, self._has_missed, self._missed_epoch = False, True, epoch
        self._checks = 0

    def _clear_gap(self, epoch: int) -> None:
        """Forget gaps before ``epoch``: other members have reached it too."""
        self._has_missed = self._has_missed and self._missed_epoch >= epoch

    @property
    def is_complete(self) -> bool:
        """Whether everything since the epoch began was read, and no commit was rejected: it is the last epoch."""
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
        """Schedule a comparison of the server's group info: at once if ``is_own``, this client caused the change."""
        self.check_info(0.0 if is_own else SOON_SECONDS)

    def check_info(self, after: float) -> None:
        """Schedule a comparison of the server's group info in ``after`` seconds."""
        at = self.clock() + after
        self.info_at = at if self.info_at is None else min(at, self.info_at)

    def next_check_delay(self) -> float:
        """Return the delay of the next comparison while another branch is possible."""
        self._checks += 1
        return min(FIRST_CHECK_DELAY * 2.0 ** min(self._checks - 1, 20), MAX_DELAY)

    @property
    def is_settled(self) -> bool:
        """Whether there are no signs of another branch."""
        is_suspect = self.clock() - self._conflict_at < CONFLICT_SECONDS
        return not self._has_missed and not self.contested and not is_suspect

    def record_conflict(self) -> None:
        """Record another member's rejected commit: it came second, or belongs to another branch."""
        self._conflict_at, self._checks = self.clock(), 0
        self.check_info_soon()

    def record_contest(self) -> None:
        """Record that this client replaces another member's group info, which may be replaced again."""
        if self.clock() - self._contested_at > CONTESTED_SECONDS:
            self.contested = 0
        self.contested, self._contested_at, self._checks = self.contested + 1, self.clock(), 0

    def clear_contest(self) -> None:
        """Forget contests: a senior member has sent something with the same keys."""
        self.contested = 0

    def reset_attempts(self) -> None:
        """Reset the delay of joining: another client joined at the same moment, which is not a failure."""
        self.attempts = 0

    def record_entry(self, epoch: int, *, is_new: bool) -> None:
        """Record that the user has the keys. ``is_new``: the group has other members."""
        self.is_new = is_new
        self._has_missed = False
        self.record_commit(epoch)
        self.has_later_messages, self.other_epoch, self.entered_at, self.is_caught_up = False, None, self.clock(), True
        self.contested = self._checks = 0

    def next_join_delay(self) -> float:
        """Return the delay before the next try to join."""
        if self.entered_at is not None and self.clock() - self.entered_at > STABLE_AFTER_SECONDS:
            self.attempts = 0
        self.entered_at = None
        self.attempts += 1
        return min(FIRST_JOIN_DELAY * 2.0 ** min(self.attempts - 1, 20), MAX_DELAY)


@dataclass
class Agenda:
    """The schedules of all groups."""

    clock: Callable[[], float] = time.monotonic
    _groups: dict[UUID, GroupAgenda] = field(default_factory=dict)

    def group(self, group_id: UUID) -> GroupAgenda:
        """Return the schedule of a group."""
        if group_id not in self._groups:
            self._groups[group_id] = GroupAgenda(self.clock)
        return self._groups[group_id]

    def schedule(self, group_id: UUID, after: float = SOON_SECONDS) -> None:
        """Schedule a check of a group in ``after`` seconds, unless one is due earlier."""
        agenda, at = self.group(group_id), self.clock() + after
        agenda.at = at if agenda.at is None else min(at, agenda.at)

    def due(self) -> list[UUID]:
        """Return the groups to check now."""
        now = self.clock()
        return [group_id for group_id, each in self._groups.items() if each.at is not None and each.at <= now]

    def forget(self, group_id: UUID) -> None:
        """Forget a group."""
        self._groups.pop(group_id, None)
