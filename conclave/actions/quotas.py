"""Quotas: how fast users and groups may send, and how much they may store. Counted in memory, off unless set.

What is stored is measured by a query when it is asked for first. From then on what is sent is added. So the count is
never too low, but for what was on its way to the disk while it was measured. It is too high by what was erased since:
when it reaches the quota, it is measured again, at most once a minute, and each hour anyway. What is never refused,
such as the commit of a member who leaves, counts too. So that no user stores without end by it, what comes before it
may be refused: joining, and inviting. Nothing is kept over a restart.
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

MEASURED_AGAIN_SECONDS = 60
"""What has reached its quota is measured again after at least 60 seconds."""

MEASURED_ANYWAY_SECONDS = 3600
"""After an hour the next send has it measured again."""


class Owner(NamedTuple):
    """Whose messages are counted: a user's or a group's, by id."""

    owner_id: bytes
    is_user: bool


@dataclass
class _Count:
    """What an owner has stored, at most; ``measured_at``: seconds since the machine was started."""

    messages: int
    body_bytes: int
    measured_at: int


class Quotas:
    """The quotas of one server. ``paces`` and ``full`` are asked under the write lock, the rest on the event loop."""

    def __init__(self, limits: LimitsConfig, clock: Clock) -> None:
        """Begin with nothing counted."""
        self._limits = limits
        self._clock = clock
        self.paces = [
            (LeakyBucket(most, MINUTE), is_user)
            for most, is_user in ((limits.user_sends_per_minute, True), (limits.group_sends_per_minute, False))
            if most
        ]
        """Each pace that is set, and whether it is that of users or of groups."""
        self._counts: OrderedDict[Owner, _Count] = OrderedDict()
        self._measuring = asyncio.Lock()
        self._measured: Owner | None = None
        self._since = StorageUsage(0, 0)
        """What ``_measured`` was sent since its measurement began."""

    async def prepare(self, store: Database, group_id: bytes, user_id: bytes, size: int) -> None:
        """Measure what has to be known before a user sends ``size`` bytes to a group. Raises StoreError.

        One measurement runs at a time, so that readers are left for others.
        """
        limits = self._limits
        for owner, is_limited in (
            (Owner(user_id, is_user=True), limits.user_stored_bytes),
            (Owner(group_id, is_user=False), limits.group_stored_bytes or limits.group_stored_messages),
        ):
            if is_limited and self._is_wanted(owner, size):
                async with self._measuring:
                    if self._is_wanted(owner, size):  # it was not measured meanwhile
                        await self._measure(store, owner, user_id)

    def require_few_groups(self, connection: sqlite3.Connection, user_id: bytes) -> None:
        """Raise QuotaError if a user is an admin of as many groups as the operator allows."""
        most = self._limits.user_groups
        if most and storage_usage.groups_of_admin(connection, user_id) >= most:
            raise QuotaError(f"you are an admin of as many groups as one user may be: {most:,}")

    def count_change(self, user_id: bytes) -> None:
        """Count in a user's rate what is no message. Raises TooManyRequestsError, and counts nothing then."""
        owner, now = Owner(user_id, is_user=True), self.now()
        for pace in (pace for pace, is_user in self.paces if is_user):
            if seconds := pace.wait(owner, now):
                raise TooManyRequestsError("too many messages by you", seconds=seconds)
            pace.record(owner, now)

    def now(self) -> int:
        """Return the seconds since the machine was started."""
        return self._clock.read().since_boot

    def full(self, owner: Owner, more: StorageUsage) -> QuotaError | None:
        """Return how a message is refused that is the last of those that ``owner`` would store; None if it is not."""
        count, limits = self._counts.get(owner), self._limits
        if count is None:
            return None
        most_bytes = limits.user_stored_bytes if owner.is_user else limits.group_stored_bytes
        most_messages = 0 if owner.is_user else limits.group_stored_messages
        if most_bytes and count.body_bytes + more.body_bytes > most_bytes:
            return _refused(owner)
        return _refused(owner) if most_messages and count.messages + more.messages > most_messages else None

    def add(self, owner: Owner, more: StorageUsage) -> None:
        """Count what was stored."""
        count = self._counts.get(owner)
        if count:
            count.messages += more.messages
            count.body_bytes += more.body_bytes
        if owner == self._measured:
            self._since = _sum(self._since, more)

    def _is_wanted(self, owner: Owner, size: int) -> bool:
        count = self._counts.get(owner)
        if count is None:
            return True
        age = self.now() - count.measured_at
        if age < MEASURED_AGAIN_SECONDS:
            return False
        return age >= MEASURED_ANYWAY_SECONDS or self.full(owner, StorageUsage(1, size)) is not None

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
    """The sends of one transaction: asks for each whether it may be, and counts all of them once they are stored.

    Until then nothing counts, so a transaction that has to begin anew may ask for the same sends again.
    """

    def __init__(self, quotas: Quotas) -> None:
        """Begin with none."""
        self._quotas = quotas
        self._now = quotas.now()
        self._admitted: dict[Owner, StorageUsage] = {}
        self._paced: Counter[Owner] = Counter()

    def refusal(
        self, group_id: bytes, user_id: bytes, size: int, *, is_commit: bool = False, must_fit: bool = True
    ) -> ApiError | None:
        """Return how a member is refused who sends ``size`` bytes to a group; None if it may be.

        ``is_commit``: it does not count in what the user has stored. ``must_fit``: it is refused for what is stored.
        """
        user, group = Owner(user_id, is_user=True), Owner(group_id, is_user=False)
        for pace, is_user in self._quotas.paces:
            owner = user if is_user else group
            seconds = pace.wait(owner, self._now, self._paced[owner] + 1)
            if seconds:
                return TooManyRequestsError(
                    f"too many messages {'by you' if is_user else 'in this group'}", seconds=seconds
                )
        storing = {
            owner: _sum(self._admitted.get(owner, StorageUsage(0, 0)), StorageUsage(1, size))
            for owner in ((group,) if is_commit else (user, group))
        }
        for owner, more in storing.items():
            refused = self._quotas.full(owner, more)
            if refused and must_fit:
                return refused
        self._admitted |= storing
        self._paced.update((user, group))
        return None

    def stored(self) -> None:
        """Count what was admitted."""
        for pace, is_user in self._quotas.paces:
            for owner, count in self._paced.items():
                if owner.is_user == is_user:
                    pace.record(owner, self._now, count)
        for owner, more in self._admitted.items():
            self._quotas.add(owner, more)

    def add_to_rates(self, group_id: bytes, user_id: bytes) -> None:
        """Count one more, also beyond the rates."""
        self._paced.update((Owner(user_id, is_user=True), Owner(group_id, is_user=False)))
        self.stored()

    def add_to_stored(self, group_id: bytes, size: int) -> None:
        """Count a commit of ``size`` bytes, whether it fits or not."""
        self._admitted[Owner(group_id, is_user=False)] = StorageUsage(1, size)
        self.stored()


def require_room(quotas: Quotas | None, group_id: bytes, user_id: bytes, size: int, *, is_commit: bool = True) -> None:
    """Raise TooManyRequestsError or QuotaError if a user may not store ``size`` bytes in a group now.

    A join or an invite may store commits that are never refused, so these ask before. Nothing is counted.
    ``is_commit``: it does not count in what the user has stored.
    """
    if quotas and (refused := Sends(quotas).refusal(group_id, user_id, size, is_commit=is_commit)):
        raise refused


def count_invite(quotas: Quotas | None, group_id: bytes, user_id: bytes, size: int) -> None:
    """Count in the rates an invite, and the ``size`` bytes that wait with it as stored by its group and its inviter."""
    if quotas:
        Sends(quotas).add_to_rates(group_id, user_id)
        for owner in (Owner(group_id, is_user=False), Owner(user_id, is_user=True)):
            quotas.add(owner, StorageUsage(0, size))


def count_accepted(quotas: Quotas | None, group_id: bytes) -> None:
    """Count the message that the commit of an accepted invite becomes. Its bytes were counted with the invite."""
    if quotas:
        quotas.add(Owner(group_id, is_user=False), StorageUsage(1, 0))


def count_change(quotas: Quotas | None, user_id: bytes) -> None:
    """Count in the user's rate a change of a policy: the audit log keeps it for years. Raises TooManyRequestsError.

    Not in the rate of the group: no member who sends much keeps its admins from changing it.
    """
    if quotas:
        quotas.count_change(user_id)


def count_commit(quotas: Quotas | None, group_id: bytes, user_id: bytes, size: int) -> None:
    """Count a user's commit of ``size`` bytes that was stored without asking; 0: there was none."""
    if quotas and size:
        Sends(quotas).add_to_rates(group_id, user_id)
        Sends(quotas).add_to_stored(group_id, size)


def quotas_of(limits: LimitsConfig, clock: Clock) -> Quotas | None:
    """Return the quotas that are set; None if none is."""
    of_quotas = (
        *(limits.user_sends_per_minute, limits.group_sends_per_minute, limits.user_stored_bytes),
        *(limits.group_stored_bytes, limits.group_stored_messages, limits.user_groups),
    )
    return Quotas(limits, clock) if any(of_quotas) else None


def _sum(one: StorageUsage, other: StorageUsage) -> StorageUsage:
    return StorageUsage(one.messages + other.messages, one.body_bytes + other.body_bytes)


def _refused(owner: Owner) -> QuotaError:
    whose = "you have stored as much as one user may" if owner.is_user else "this group has stored as much as one may"
    return QuotaError(f"{whose}: older messages have to go first")
