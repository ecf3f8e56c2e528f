"""Creates, lists, changes and deletes groups."""

import sqlite3
from dataclasses import replace
from uuid import UUID

from conclave.actions import users
from conclave.actions.authorisation import require_admin, require_group
from conclave.actions.context import Context
from conclave.actions.quotas import count_change
from conclave.errors import BadRequestError, ConflictError, NotMemberError
from conclave.failpoints import reach
from conclave.retention import marks, rehearsal
from conclave.retention.policy import PolicyChange, exceeds_cap
from conclave.retention.rehearsal import GroupImpact
from conclave.store.engine.news import announce, members_of
from conclave.store.lists import ListPart, Span
from conclave.store.resources import audit, groups, own_groups
from conclave.store.resources.groups import GroupChanges, GroupRow, list_public
from conclave.store.resources.members import MemberRow, find_by_key
from conclave.store.resources.own_groups import LongGroup, MembersSize, of_user as list_own

__all__ = [
    "GroupChanges",
    "LongGroup",
    "as_changed",
    "change",
    "create",
    "delete",
    "end",
    "list_members",
    "list_own",
    "list_public",
    "measure_members",
    "rehearse",
    "update",
]

_POLICY_SETTINGS = ("message_expiry_seconds", "min_lifetime_seconds")
"""The settings of a group that determine which messages are deleted."""


def create(connection: sqlite3.Connection, context: Context, user_id: bytes, group_name: str, alias: str) -> bytes:
    """Create a group with the user as its only member and admin; return its id.

    Raises ConflictError, QuotaError, TooManyRequestsError, and StoreFullError at the maximum number of groups.
    """
    if context.quotas:
        context.quotas.require_group_quota(connection, user_id)
    users.require(connection, user_id)
    _require_free(connection, group_name)
    count_change(context.quotas, user_id)
    return groups.add(connection, user_id, group_name, alias, context.now(), context.policy)


def rehearse(
    connection: sqlite3.Connection, context: Context, group_id: bytes, user_id: bytes, changes: GroupChanges
) -> GroupImpact:
    """Count the messages that ``changes`` to a group would hide. Changes nothing. Raises the errors of ``update``."""
    group = require_admin(connection, context, group_id, user_id).group
    changed = as_changed(connection, context, group, changes)
    return rehearsal.of_change(connection, group, changed, context.policy, context.now())


def update(
    connection: sqlite3.Connection,
    context: Context,
    group_id: bytes,
    user_id: bytes,
    changes: GroupChanges,
    of_policy: PolicyChange | None = None,
) -> None:
    """Change a group, all or nothing, and notify all members.

    ``of_policy``: required if readers are served during the transaction; it is started here. Raises NotAdminError,
    TooManyRequestsError, and the errors of ``as_changed``.
    """
    group = require_admin(connection, context, group_id, user_id).group
    change(connection, context, group, changes, of_policy)
    if changes.message_expiry_seconds not in (None, group.message_expiry_seconds):
        groups.note_expiry_setter(connection, group.group_key, user_id)
    _note_policy(connection, context, group, user_id)
    recipients = members_of(connection, group.group_key)
    announce(connection, recipients, "group_update", group_id=group_id, update_type="group_settings")


def change(
    connection: sqlite3.Connection,
    context: Context,
    group: GroupRow,
    changes: GroupChanges,
    of_policy: PolicyChange | None = None,
) -> None:
    """Apply ``changes``, all or nothing. Raises the errors of ``as_changed``."""
    now = context.now()  # before the clock is checked: a jump in between must not move marks
    groups.set_settings(connection, as_changed(connection, context, group, changes))
    if changes.concern_retention:
        if of_policy:
            of_policy.begin(group.group_key, group.policy, now)
        marks.settle(connection, context.policy, now, group.group_key)
        reach("update_group.settled")


def as_changed(connection: sqlite3.Connection, context: Context, group: GroupRow, changes: GroupChanges) -> GroupRow:
    """Validate ``changes``, and return the changed group. Only reads.

    The expiry cannot change while the clock is wrong: marks must not follow a wrong clock, and without a mark, messages
    that the former expiry hid would reappear. The minimum lifetime moves no mark, so it can change.

    Raises ConflictError if the name is taken, BadRequestError if the expiry exceeds the server's cap or is below the
    minimum lifetime, and UntrustedClockError if the clock is wrong.
    """
    changed = replace(group, **{name: value for name, value in vars(changes).items() if value is not None})
    if changed.group_name != group.group_name:
        _require_free(connection, changed.group_name)
    if changes.message_expiry_seconds is not None:
        _require_within_cap(context.policy.message_retention, changed.message_expiry_seconds)
    if changes.concern_retention:
        _require_in_order(changed)
    if changed.message_expiry_seconds != group.message_expiry_seconds:
        context.require_clock(connection)
    return changed


def _require_free(connection: sqlite3.Connection, group_name: str) -> None:
    if groups.find_by_name(connection, group_name):
        raise ConflictError("this group name is taken")


def _require_within_cap(server: int, requested: int) -> None:
    if exceeds_cap(server, requested):
        text = f"message_expiry_seconds must not exceed the server's retention of {server} seconds"
        raise BadRequestError(text, fields={"message_expiry_seconds": [text]})


def _require_in_order(group: GroupRow) -> None:
    expiry, least = group.message_expiry_seconds, group.min_lifetime_seconds
    if 0 < expiry < least:
        text = f"message_expiry_seconds ({expiry}) must not be less than min_lifetime_seconds ({least})"
        raise BadRequestError(text, fields={"message_expiry_seconds": [text], "min_lifetime_seconds": [text]})


def _note_policy(connection: sqlite3.Connection, context: Context, former: GroupRow, user_id: bytes) -> None:
    """Record the changed settings of a group's policy in the audit log."""
    group = require_group(connection, former.group_id)
    pairs = {name: [getattr(former, name), getattr(group, name)] for name in _POLICY_SETTINGS}
    changed = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    if changed:
        count_change(context.quotas, user_id)
        actor = f"admin {users.by_id(connection, user_id).username}"
        subject = audit.Subject(former.group_id, former.group_name)
        details = {"changed": changed, "admin_id": str(UUID(bytes=user_id))}
        audit.note(connection, context.now(), actor, audit.AuditAction.POLICY_CHANGED, subject, details)


def measure_members(connection: sqlite3.Connection, long: LongGroup, after: int) -> MembersSize:
    """Run ``own_groups.measure`` on a group of the user's list. Raises NotMemberError."""
    _require_still(connection, long)
    return own_groups.measure(connection, long.group.group_key, after)


def list_members(connection: sqlite3.Connection, long: LongGroup, last: int, span: Span) -> ListPart[MemberRow]:
    """Run ``own_groups.members`` on a group of the user's list. Raises NotMemberError."""
    _require_still(connection, long)
    return own_groups.members(connection, long.group.group_key, last, span)


def _require_still(connection: sqlite3.Connection, long: LongGroup) -> None:
    """Raise NotMemberError if the user's membership has ended."""
    if find_by_key(connection, long.member_id) is None:
        raise NotMemberError


def delete(connection: sqlite3.Connection, context: Context, group_id: bytes, user_id: bytes) -> None:
    """Delete a group, and notify its members. Raises NotAdminError."""
    group = require_admin(connection, context, group_id, user_id).group
    recipients = members_of(connection, group.group_key)
    end(connection, group, context.now())
    announce(connection, recipients, "group_deleted", group_id=group_id)


def end(connection: sqlite3.Connection, group: GroupRow, now: int) -> None:
    """Delete a group, and notify invited users. The caller notifies the former members."""
    invitee_ids = groups.remove(connection, group, now)
    announce(connection, invitee_ids, "invite_cancelled", group_id=group.group_id)
