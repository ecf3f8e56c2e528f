"""Limits how fast users and groups send, and how much they store. Counts in memory; off unless configured.

The first request measures the stored amount by a query; later sends are added. The count is never too low, except for
writes that were in progress during the measurement. Later erasures are not subtracted, so it is measured again when it
reaches the quota, at most once a minute, and every hour. Messages that are never rejected, such as the commit
of a leaving member, count too; to bound these, joining and inviting are checked. Counts do not survive a restart.
"""

import asyncio
import sqlite3
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

from conclave.auth.sliding_window import MAX_KEYS, LeakyBucket
from conclave.clock import Clock
from conclave.config.limits import LimitsConfig
from conclave.errors import ApiError, QuotaError, TooManyRequestsError
from conclave.store.engine.database import Database
from conclave.store.views import storage_usage
from conclave.store.views.storage_usage import StorageUsage

MINUTE = 60

MIN_REMEASURE_SECONDS = 60
"""An owner at its quota is measured again after at least 60 seconds."""

MAX_MEASURE_AGE_SECONDS = 3600
"""The first send after an hour measures again."""


class Owner(NamedTuple):
    """A user or group whose messages are counted."""

    owner_id: bytes
    is_user: bool


@dataclass
class _Count:
    """An upper bound on the messages that an owner has stored. ``measured_at``: seconds since the machine started."""

    messages: int
    body_bytes: int
    measured_at: int


class Quotas:
    """The quotas of one server. Use ``paces`` and ``exceeded`` under the write lock, the rest on the event loop."""

    def __init__(self, limits: LimitsConfig, clock: Clock) -> None:
        """Start with empty counts."""
        self._limits = limits
        self._clock = clock
        self.paces = [
            (LeakyBucket(limit, MINUTE), is_user)
            for limit, is_user in ((limits.user_sends_per_minute, True), (limits.group_sends_per_minute, False))
            if limit
        ]
        """Each configured rate limit, and whether it applies to users or groups."""
        self._counts: OrderedDict[Owner, _Count] = OrderedDict()
        self._measuring = asyncio.Lock()
        self._measured: Owner | None = None
        self._since = StorageUsage(0, 0)
        """The messages that ``_measured`` has stored since its measurement began."""

    async def prepare(self, store: Database, group_id: bytes, user_id: bytes, size: int) -> None:
        """Measure the necessary counts before a user sends ``size`` bytes to a group. Raises StoreError.

        Measurements run one at a time, so as not to occupy all readers of the store.
        """
        limits = self._limits
        for owner, is_limited in (
            (Owner(user_id, is_user=True), limits.user_stored_bytes),
            (Owner(group_id, is_user=False), limits.group_stored_bytes or limits.group_stored_messages),
        ):
            if is_limited and self._needs_measuring(owner, size):
                async with self._measuring:
                    if self._needs_measuring(owner, size):  # another task may have measured it
                        await self._measure(store, owner, user_id)

    def require_group_quota(self, connection: sqlite3.Connection, user_id: bytes) -> None:
        """Raise QuotaError if a user is an admin of the maximum number of groups."""
        max_groups = self._limits.user_groups
        if max_groups and storage_usage.groups_of_admin(connection, user_id) >= max_groups:
            raise QuotaError(f"you are an admin of {max_groups:,} groups, the maximum")

    def count_change(self, user_id: bytes) -> None:
        """Count a change in a user's rate. Raises TooManyRequestsError if it exceeds the rate, without counting it."""
        owner, now = Owner(user_id, is_user=True), self.now()
        for pace in (pace for pace, is_user in self.paces if is_user):
            if seconds := pace.wait(owner, now):
                raise TooManyRequestsError("too many messages by you", seconds=seconds)
            pace.record(owner, now)

    def now(self) -> int:
        """Return the seconds since the machine was started."""
        return self._clock.read().since_boot

    def exceeded(self, owner: Owner, more: StorageUsage) -> QuotaError | None:
        """Return an error if storing ``more`` would exceed the quota of ``owner``, otherwise None."""
        count, limits = self._counts.get(owner), self._limits
        if count is None:
            return None
        max_bytes = limits.user_stored_bytes if owner.is_user else limits.group_stored_bytes
        max_messages = 0 if owner.is_user else limits.group_stored_messages
        if max_bytes and count.body_bytes + more.body_bytes > max_bytes:
            return _quota_error(owner)
        return _quota_error(owner) if max_messages and count.messages + more.messages > max_messages else None

    def add(self, owner: Owner, more: StorageUsage) -> None:
        """Add to the count of stored messages."""
        count = self._counts.get(owner)
        if count:
            count.messages += more.messages
            count.body_bytes += more.body_bytes
        if owner == self._measured:
            self._since = _sum(self._since, more)

    def _needs_measuring(self, owner: Owner, size: int) -> bool:
        count = self._counts.get(owner)
        if count is None:
            return True
        age = self.now() - count.measured_at
        if age < MIN_REMEASURE_SECONDS:
            return False
        return age >= MAX_MEASURE_AGE_SECONDS or self.exceeded(owner, StorageUsage(1, size)) is not None

    async def _measure(self, store: Database, owner: Owner, sender: bytes) -> None:
        self._measured, self._since = owner, StorageUsage(0, 0)
        try:
            if owner.is_user:
                found: StorageUsage | None = await store.read(storage_usage.of_user, owner.owner_id)
            else:
                bytes_too = self._limits.group_stored_bytes > 0
                found = await store.read(storage_usage.of_group, owner.owner_id, sender, bytes_too=bytes_too)
            if found:
                self._counts[owner] = _Count(*_sum(found, self._since), self.now())
                self._counts.move_to_end(owner)
        finally:
            self._measured = None
        if len(self._counts) > MAX_KEYS:
            self._counts.popitem(last=False)


class Sends:
    """Checks the sends of one transaction against quotas, and counts them once they are stored.

    Until then nothing counts, so a repeated transaction may check the same sends again.
    """

    def __init__(self, quotas: Quotas) -> None:
        """Start without sends."""
        self._quotas = quotas
        self._now = quotas.now()
        self._accepted: dict[Owner, StorageUsage] = {}
        self._paced: Counter[Owner] = Counter()

    def refusal(
        self, group_id: bytes, user_id: bytes, size: int, *, is_commit: bool = False, must_fit: bool = True
    ) -> ApiError | None:
        """Return an error if sending ``size`` bytes to a group would exceed a quota, otherwise None.

        ``is_commit``: do not count it as stored by the user. ``must_fit``: check the storage quotas too.
        """
        user, group = Owner(user_id, is_user=True), Owner(group_id, is_user=False)
        for pace, is_user in self._quotas.paces:
            owner = user if is_user else group
            seconds = pace.wait(owner, self._now, self._paced[owner] + 1)
            if seconds:
                return TooManyRequestsError(
                    f"too many messages {'by you' if is_user else 'in this group'}", seconds=seconds
                )
        totals = {
            owner: _sum(self._accepted.get(owner, StorageUsage(0, 0)), StorageUsage(1, size))
            for owner in ((group,) if is_commit else (user, group))
        }
        for owner, more in totals.items():
            error = self._quotas.exceeded(owner, more)
            if error and must_fit:
                return error
        self._accepted |= totals
        self._paced.update((user, group))
        return None

    def stored(self) -> None:
        """Count all accepted sends."""
        for pace, is_user in self._quotas.paces:
            for owner, count in self._paced.items():
                if owner.is_user == is_user:
                    pace.record(owner, self._now, count)
        for owner, more in self._accepted.items():
            self._quotas.add(owner, more)

    def add_to_rates(self, group_id: bytes, user_id: bytes) -> None:
        """Count one more send, without checking the rates."""
        self._paced.update((Owner(user_id, is_user=True), Owner(group_id, is_user=False)))
        self.stored()

    def add_to_stored(self, group_id: bytes, size: int) -> None:
        """Count a commit of ``size`` bytes as stored, without checking the quota."""
        self._accepted[Owner(group_id, is_user=False)] = StorageUsage(1, size)
        self.stored()


def require_room(quotas: Quotas | None, group_id: bytes, user_id: bytes, size: int, *, is_commit: bool = True) -> None:
    """Raise TooManyRequestsError or QuotaError if a user may not store ``size`` bytes in a group now.

    Call it before a join or an invite, whose later commits are never rejected. Counts nothing. ``is_commit``: do not
    count it as stored by the user.
    """
    if quotas and (error := Sends(quotas).refusal(group_id, user_id, size, is_commit=is_commit)):
        raise error


def count_invite(quotas: Quotas | None, group_id: bytes, user_id: bytes, size: int) -> None:
    """Count an invite in the rates, and its ``size`` bytes as stored by the group and the inviter."""
    if quotas:
        Sends(quotas).add_to_rates(group_id, user_id)
        for owner in (Owner(group_id, is_user=False), Owner(user_id, is_user=True)):
            quotas.add(owner, StorageUsage(0, size))


def count_accepted(quotas: Quotas | None, group_id: bytes) -> None:
    """Count the commit message of an accepted invite. Its bytes were counted with the invite."""
    if quotas:
        quotas.add(Owner(group_id, is_user=False), StorageUsage(1, 0))


def count_change(quotas: Quotas | None, user_id: bytes) -> None:
    """Count a change that the audit log records in the user's rate. Raises TooManyRequestsError.

    It does not count in the group's rate, so that busy members do not keep admins from changing the group.
    """
    if quotas:
        quotas.count_change(user_id)


def count_commit(quotas: Quotas | None, group_id: bytes, user_id: bytes, size: int) -> None:
    """Count a user's commit of ``size`` bytes that was stored without a check; 0: no commit."""
    if quotas and size:
        Sends(quotas).add_to_rates(group_id, user_id)
        Sends(quotas).add_to_stored(group_id, size)


def create_quotas(limits: LimitsConfig, clock: Clock) -> Quotas | None:
    """Return the configured quotas; None if no quota is set."""
    quota_limits = (
        *(limits.user_sends_per_minute, limits.group_sends_per_minute, limits.user_stored_bytes),
        *(limits.group_stored_bytes, limits.group_stored_messages, limits.user_groups),
    )
    return Quotas(limits, clock) if any(quota_limits) else None


def _sum(one: StorageUsage, other: StorageUsage) -> StorageUsage:
    return StorageUsage(one.messages + other.messages, one.body_bytes + other.body_bytes)


def _quota_error(owner: Owner) -> QuotaError:
    whose = "you have stored as much as one user may" if owner.is_user else "this group has stored as much as one may"
    return QuotaError(f"{whose}: wait until older messages are deleted")
