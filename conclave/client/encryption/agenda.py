"""Schedules the checks of groups, and records observations. In memory only: each start derives both again."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from uuid import UUID

from conclave.wire.results import GroupDetails

SOON_SECONDS = 0.2
"""Delay of a check, so that several changes are checked together."""

CHECK_INTERVAL_SECONDS = 3_600.0
"""Interval of the regular checks of each group, to renew keys and find missed changes."""

FIRST_JOIN_DELAY, MAX_DELAY = 0.5, 3_600.0
"""Delay before joining again, doubled each time: two devices may replace each other."""

FIRST_CHECK_DELAY = 2.0
"""Delay after which an unconfirmed client compares the server's group info, doubled each time."""

CONFLICT_SECONDS = 600.0
"""How long the group info is compared more often after another member's commit was rejected."""

CONTESTED_SECONDS = 7_200.0
"""Maximum age of a contest that still indicates another branch."""

STABLE_AFTER_SECONDS = 600.0
"""Time in a group after which the delay of joining starts at FIRST_JOIN_DELAY again."""


@dataclass
class GroupAgenda:
    """The schedule and the observations of a group. Times are seconds of ``clock``.

    ``at``: time of the next check. ``info_at``: time of the next comparison with the server's group info.
    ``commit_needed_since``: the time since which a commit is needed that several members could make.
    ``has_later_messages``: messages of a later epoch arrived. ``other_epoch``: the own epoch in which a group info of
    another epoch was first seen, at ``other_epoch_seen_at``. ``read_at``: all messages that the server had at this time
    were read. ``join_sent_at``: time of sending the own external commit. ``is_caught_up``: all messages that the server
    had at the start were read. ``has_read_all``: all messages since the epoch began were read. ``has_sent``: an own
    text has come back since the start. ``is_new``: the user has joined, and the server's group info was not compared
    since. ``contested``: number of times that this client has replaced a group info of another branch. ``listed``,
    ``admins``: the members and admins in the server's last list; None: not read yet. ``unauthorized``: members who made
    a change without permission, and are therefore in a separate branch.
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
    _has_gap: bool = False
    _gap_epoch: int = -1
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
        """Return whether all messages older than that group info were read, without leaving this epoch.

        Until then the group info proves nothing: this client may only be behind the others.
        """
        return self.other_epoch == epoch and self.other_epoch_seen_at < self.read_at

    def record_fetch(self) -> None:
        """Record that a page of messages is being requested."""
        self._fetched_at = self.clock()

    def record_caught_up(self) -> None:
        """Record that the last requested page was empty."""
        self.is_caught_up, self.read_at = True, self._fetched_at

    def update_members(self, group: GroupDetails) -> bool:
        """Update the members and admins from the server's list. Return whether the members have changed."""
        former, self.listed = self.listed, frozenset(each.user_id for each in group.members)
        self.admins = frozenset(each.user_id for each in group.members if each.role == "admin")
        return self.listed != former

    def record_readable(self, epoch: int, sent_epoch: int) -> None:
        """Record a decrypted message, received in ``epoch`` and encrypted in ``sent_epoch``, which is not later."""
        self._enter_epoch(epoch)
        self._clear_gap(sent_epoch)
        self.readable_count += 1

    def record_unreadable(self, epoch: int, *, is_foreign: bool) -> None:
        """Record a message that failed in ``epoch``: it is invalid, or this client is in a wrong branch.

        ``is_foreign``: the message may come from a member in a wrong branch. So a client that has read everything
        stays.
        """
        self._enter_epoch(epoch)
        self.unreadable_count += 1
        self.unreadable_commits += not is_foreign
        self.check_info_soon()

    def record_commit(self, epoch: int, *, by_others: bool = True) -> None:
        """Record a commit that has led into ``epoch``.

        ``by_others``: an existing member made it, which shows that the member was in this client's branch.
        """
        had_read_all = self.has_read_all
        self._enter_epoch(epoch)
        if by_others:
            self._clear_gap(epoch - 1)
        self.has_read_all = had_read_all or (by_others and not self._has_gap)
        if self._has_gap:
            self._checks = 0

    def record_gap(self, epoch: int) -> None:
        """Record a message that was not read in ``epoch``: it was erased before, or its keys belong to others."""
        self.has_read_all, self._has_gap, self._gap_epoch = False, True, epoch
        self._checks = 0

    def _clear_gap(self, epoch: int) -> None:
        """Forget gaps before ``epoch``, which other members have reached too."""
        self._has_gap = self._has_gap and self._gap_epoch >= epoch

    @property
    def is_complete(self) -> bool:
        """Whether this is the last epoch: all messages since it began were read, and no commit was rejected."""
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
        """Schedule a comparison of the server's group info, at once if this client caused the change (``is_own``)."""
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
        return not self._has_gap and not self.contested and not is_suspect

    def record_conflict(self) -> None:
        """Record that another member's commit was rejected: it came second, or belongs to another branch."""
        self._conflict_at, self._checks = self.clock(), 0
        self.check_info_soon()

    def record_contest(self) -> None:
        """Record that this client replaces another member's group info. The member may replace it again."""
        if self.clock() - self._contested_at > CONTESTED_SECONDS:
            self.contested = 0
        self.contested, self._contested_at, self._checks = self.contested + 1, self.clock(), 0

    def clear_contest(self) -> None:
        """Forget contests, since a senior member has sent a message with the same keys."""
        self.contested = 0

    def reset_attempts(self) -> None:
        """Reset the delay of joining: another client joined at the same moment, which is not a failure."""
        self.attempts = 0

    def record_entry(self, epoch: int, *, is_new: bool) -> None:
        """Record that the user has received the keys. ``is_new``: the group has other members."""
        self.is_new = is_new
        self._has_gap = False
        self.record_commit(epoch)
        self.has_later_messages, self.other_epoch, self.entered_at, self.is_caught_up = False, None, self.clock(), True
        self.contested = self._checks = 0

    def next_join_delay(self) -> float:
        """Return the delay before the next attempt to join."""
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
