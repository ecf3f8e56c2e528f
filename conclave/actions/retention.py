"""Returns how long the messages of a group are kept, and counts the messages that a change would hide."""

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
"""Rehearsals run one at a time, so as to leave readers of the store and processors to other requests."""

DEFAULT = "*"
"""The key of the default policy in the response for the server's configuration."""

MAX_MILLISECONDS = 2**53 - 1
"""The greatest integer that every JSON parser represents exactly. Longer lifetimes are reported as this value."""


@dataclass(frozen=True)
class Retention:
    """The retention of a group. Lifetimes: KEEP, AFTER_FETCH or seconds.

    ``server_retention_seconds`` and ``group_expiry_seconds``: the settings of server and group.
    ``effective_expiry_seconds``: the lifetime in force. ``min_lifetime_seconds``: younger messages are not erased; 0:
    no bound. ``policy_source``: a ``Source``. ``held_by``: for admins, the members who have not yet fetched messages.
    ``hidden_before``: messages created before this Unix second are hidden for ever, by a purge or a former policy; 0:
    no messages. ``taken_back``: at most 1,000 numbers of messages that were taken back, ascending: the latest, or the
    requested ones. ``more``: whether there are others. ``expiry_set_by``: the admin who set ``group_expiry_seconds``;
    empty if unknown.
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
    """Return the retention of a group. Raises NotMemberError.

    ``taken_back_after``: list taken back messages with greater numbers; None: the latest withdrawals.
    """
    member = require_member(connection, context, group_id, user_id)
    group = member.group
    view = visibility.of_group(connection, group, context.now())
    withdrawals = (
        taken_back.latest(connection, group.group_key)
        if taken_back_after is None
        else taken_back.numbered_after(connection, group.group_key, taken_back_after)
    )
    shows_lagging = member.role == "admin" and view.policy.is_after_fetch
    return Retention(
        server_retention_seconds=context.policy.message_retention,
        group_expiry_seconds=group.message_expiry_seconds,
        effective_expiry_seconds=view.policy.lifetime,
        min_lifetime_seconds=view.policy.min_lifetime,
        policy_source=view.policy.source.value,
        legal_hold=holds.is_held(connection, group.group_key),
        held_by=members.lagging(connection, group, view) if shows_lagging else (),
        hidden_before=view.hidden_for_ever,
        taken_back=withdrawals.numbers,
        expiry_set_by=expiry_setter(connection, group.group_key),
        more=withdrawals.more,
        last_sequence_num=group.last_seq,
    )


Bounds = dict[str, dict[str, int]]


@dataclass(frozen=True)
class Configuration:
    """The operator's settings, in milliseconds, as in MSC1763. Unset values have no key."""

    policies: Mapping[str, dict[str, int]]
    limits: Bounds


def configuration(connection: sqlite3.Connection, context: Context, user_id: bytes) -> Configuration:
    """Return the default policy, the operator's policies for the user's own groups, and the limits."""
    settings = context.policy
    group_ids = [each for each in settings.overrides if members.membership(connection, each, user_id)]
    default = _lifetimes(settings.of_setting(KEEP, KEEP))
    policies = {DEFAULT: default} if default else {}
    policies |= {str(UUID(bytes=each)): _lifetimes(settings.overrides[each]) for each in group_ids}
    return Configuration(policies, _limits(settings))


def _lifetimes(policy: GroupPolicy) -> dict[str, int]:
    least = policy.min_lifetime or KEEP
    return _in_milliseconds({"min_lifetime": least, "max_lifetime": policy.lifetime})


def _limits(settings: PolicySettings) -> Bounds:
    def bounds(limit: LifetimeRange) -> dict[str, int]:
        return _in_milliseconds({"min": limit.min, "max": limit.max})

    limits = {"min_lifetime": settings.limits.min_lifetime, "max_lifetime": settings.limits.max_lifetime}
    return {name: values for name, limit in limits.items() if (values := bounds(limit))}


def _in_milliseconds(seconds: Mapping[str, int]) -> dict[str, int]:
    return {name: min(each * 1000, MAX_MILLISECONDS) for name, each in seconds.items() if each != KEEP}


class Rehearsals:
    """Rehearses changes of groups, in the hot store and in the archive.

    Users take turns, so frequent requests of one user do not delay others.
    """

    def __init__(self, store: Database, archive: Archive, context: Context) -> None:
        """Use the clock and the settings of ``context``."""
        self._store = store
        self._archive = archive
        self._context = context
        self._turns = FairSemaphore(CONCURRENT_REHEARSALS)

    @property
    def waiting(self) -> int:
        """The number of callers that wait for their turn."""
        return self._turns.waiting

    async def of_change(self, group_id: bytes, user_id: bytes, changes: GroupChanges) -> MessageTotals:
        """Count the messages that ``changes`` would hide at once.

        If the archive cannot be read, returns an upper bound: a broken archive must not block the change. Raises the
        errors of ``groups.update``, and UnavailableError if too many callers wait.
        """
        async with self._turns.turn(user_id):
            while True:
                found = await self._store.read(groups.rehearse, self._context, group_id, user_id, changes)
                if found.archive_count is None:
                    return found.known
                try:
                    archived = await self._archive.tally(found.archive_count)
                except ArchiveError:
                    return found.known + found.at_most
                if await self._store.read(stretches.relaid) == found.archive_count.stretch.relaid:
                    return found.known + archived
