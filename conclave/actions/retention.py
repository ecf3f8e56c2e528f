"""How long the messages of a group live, and what a change of that would hide."""

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from conclave.actions import groups
from conclave.actions.authorisation import require_member
from conclave.actions.context import Context
from conclave.archive.reader import Archive, ArchiveError
from conclave.auth.passwords import FairSemaphore
from conclave.retention import holds, stretches, visibility
from conclave.retention.hidden import MessageTotals
from conclave.retention.policy import KEEP, GroupPolicy
from conclave.retention.resolve import LifetimeRange, PolicySettings
from conclave.store.engine.database import Database
from conclave.store.resources import members, taken_back
from conclave.store.resources.groups import GroupChanges, expiry_setter

CONCURRENT_REHEARSALS = 1
"""At most 1 change is rehearsed at a time: most readers of the store, and most of the machine, are left to others."""

DEFAULT = "*"
"""Stands for the groups without a policy of their own, in the answer to how the server is configured."""

MOST_MILLISECONDS = 2**53 - 1
"""The greatest integer that every JSON reader takes. A longer lifetime is told as this one."""


@dataclass(frozen=True)
class Retention:
    """How long the messages of a group live. Lifetimes: KEEP, AFTER_FETCH or seconds.

    ``server_retention_seconds`` and ``group_expiry_seconds``: both layers, as set. ``effective_expiry_seconds``: what
    counts. ``min_lifetime_seconds``: nothing younger is erased, 0 for no bound. ``policy_source``: a ``Source``.
    ``held_by``: the members whose missing fetch holds messages back, only for admins. ``hidden_before``: what was
    created before this Unix second is hidden for ever, by a purge or by a policy that was in force once; 0 for nothing.
    ``taken_back``: numbers of messages that were taken back, at most 1,000, ascending: the last that were, or those
    that were asked for. ``more``: whether there are others, or others follow. ``expiry_set_by``: the admin who has set
    ``group_expiry_seconds``; empty if that is not known.
    """

    server_retention_seconds: int
    group_expiry_seconds: int
    effective_expiry_seconds: int
    min_lifetime_seconds: int
    policy_source: str
    legal_hold: bool
    held_by: Sequence[bytes]
    hidden_before: int
    taken_back: Sequence[int]
    expiry_set_by: bytes
    more: bool
    last_sequence_num: int


def policy(
    connection: sqlite3.Connection, context: Context, group_id: bytes, user_id: bytes, taken_back_after: int | None
) -> Retention:
    """Return how long messages of a group live. Raises NotMemberError.

    ``taken_back_after``: only what was taken back of greater numbers; None: what was taken back last.
    """
    member = require_member(connection, context, group_id, user_id)
    group = member.group
    view = visibility.of_group(connection, group, context.now())
    taken = (
        taken_back.latest(connection, group.group_key)
        if taken_back_after is None
        else taken_back.numbered_after(connection, group.group_key, taken_back_after)
    )
    is_listed = member.role == "admin" and view.policy.is_after_fetch
    return Retention(
        server_retention_seconds=context.policy.message_retention,
        group_expiry_seconds=group.message_expiry_seconds,
        effective_expiry_seconds=view.policy.lifetime,
        min_lifetime_seconds=view.policy.min_lifetime,
        policy_source=view.policy.source.value,
        legal_hold=holds.is_held(connection, group.group_key),
        held_by=members.holding_back(connection, group, view) if is_listed else (),
        hidden_before=view.hidden_for_ever,
        taken_back=taken.numbers,
        expiry_set_by=expiry_setter(connection, group.group_key),
        more=taken.more,
        last_sequence_num=group.last_seq,
    )


Bounds = dict[str, dict[str, int]]


@dataclass(frozen=True)
class Configuration:
    """What the operator has set, in milliseconds, as MSC1763 has it: what is not set has no key."""

    policies: Mapping[str, dict[str, int]]
    limits: Bounds


def configuration(connection: sqlite3.Connection, context: Context, user_id: bytes) -> Configuration:
    """Return the default policy, the operator's policies for the user's own groups, and the limits."""
    settings = context.policy
    own = [each for each in settings.overrides if members.membership(connection, each, user_id)]
    default = _lifetimes(settings.of_setting(KEEP, KEEP))
    told = {DEFAULT: default} if default else {}
    told |= {str(UUID(bytes=each)): _lifetimes(settings.overrides[each]) for each in own}
    return Configuration(told, _limits(settings))


def _lifetimes(policy: GroupPolicy) -> dict[str, int]:
    least = policy.min_lifetime or KEEP
    return _in_milliseconds({"min_lifetime": least, "max_lifetime": policy.lifetime})


def _limits(settings: PolicySettings) -> Bounds:
    def bounds(limit: LifetimeRange) -> dict[str, int]:
        return _in_milliseconds({"min": limit.min, "max": limit.max})

    found = {"min_lifetime": settings.limits.min_lifetime, "max_lifetime": settings.limits.max_lifetime}
    return {name: told for name, limit in found.items() if (told := bounds(limit))}


def _in_milliseconds(seconds: Mapping[str, int]) -> dict[str, int]:
    return {name: min(each * 1000, MOST_MILLISECONDS) for name, each in seconds.items() if each != KEEP}


class Rehearsals:
    """Rehearses changes of groups: what they hide, in the hot store and in the archive. Only its caller waits for one.

    Users take turns. However often one of them asks, others come next.
    """

    def __init__(self, store: Database, archive: Archive, context: Context) -> None:
        """Rehearse by the clock and the settings of ``context``."""
        self._store = store
        self._archive = archive
        self._context = context
        self._turns = FairSemaphore(CONCURRENT_REHEARSALS)

    @property
    def waiting(self) -> int:
        """How many callers wait for their turn."""
        return self._turns.waiting

    async def of_change(self, group_id: bytes, user_id: bytes, changes: GroupChanges) -> MessageTotals:
        """Return what expires at once if ``changes`` are made now.

        Where the archive cannot be read, a part of which only some expires counts as a whole: the change must not wait
        for an archive that is broken. Raises what ``groups.update`` raises, and UnavailableError if too many wait.
        """
        async with self._turns.turn(user_id):
            while True:
                found = await self._store.read(groups.rehearse, self._context, group_id, user_id, changes)
                if found.archive_count is None:
                    return found.known
                try:
                    counted = await self._archive.tally(found.archive_count)
                except ArchiveError:
                    return found.known + found.at_most
                if await self._store.read(stretches.relaid) == found.archive_count.stretch.relaid:
                    return found.known + counted
