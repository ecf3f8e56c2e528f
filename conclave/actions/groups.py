"""Creating, listing, changing and deleting groups."""

import sqlite3
from uuid import UUID

from conclave.actions.context import Context
from conclave.actions.quotas import count_change
from conclave.store import audit, forecast, groups, members, users
from conclave.store.forecast import NOTHING, Expiring, Forecast
from conclave.store.groups import GroupChanges, list_public
from conclave.store.members import groups_of as list_own
from conclave.store.news import announce, members_of

__all__ = ["NOTHING", "Expiring", "GroupChanges", "create", "delete", "foretell", "list_own", "list_public", "update"]

_OF_POLICY = ("message_expiry_seconds", "min_lifetime_seconds")
"""The settings of a group that decide what is deleted."""


def create(connection: sqlite3.Connection, context: Context, user_id: bytes, group_name: str, alias: str) -> bytes:
    """Create a group with the user as its sole member and admin; return its id. Raises ConflictError or QuotaError."""
    if context.quotas:
        context.quotas.require_few_groups(connection, user_id)
    return groups.add(connection, user_id, group_name, alias, context.now())


def foretell(
    connection: sqlite3.Connection, context: Context, group_id: bytes, user_id: bytes, changes: GroupChanges
) -> Forecast:
    """Foretell which messages expire by ``changes`` to a group. It only reads. Raises what ``update`` raises."""
    group = members.require_admin(connection, group_id, user_id).group
    changed = groups.as_changed(connection, group, changes, context.policy, context.clock)
    return forecast.of_change(connection, group, changed, context.policy, context.now())


def update(
    connection: sqlite3.Connection, context: Context, group_id: bytes, user_id: bytes, changes: GroupChanges
) -> None:
    """Change a group, all or nothing, and tell all members.

    Raises NotAdminError, TooManyRequestsError, and what ``groups.change`` raises.
    """
    group = members.require_admin(connection, group_id, user_id).group
    groups.change(connection, group, changes, context.policy, context.clock)
    _note_policy(connection, context, group, user_id)
    everybody = members_of(connection, group.group_key)
    announce(connection, everybody, "group_update", group_id=group_id, update_type="group_settings")


def _note_policy(connection: sqlite3.Connection, context: Context, former: groups.Group, user_id: bytes) -> None:
    """Note in the audit log what an admin has really changed of a group's policy."""
    group = groups.by_id(connection, former.group_id)
    pairs = {name: [getattr(former, name), getattr(group, name)] for name in _OF_POLICY}
    changed = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    if changed:
        count_change(context.quotas, user_id)
        actor = f"admin {users.by_id(connection, user_id).username}"
        subject = audit.Subject(former.group_id, former.group_name)
        details = {"changed": changed, "admin_id": str(UUID(bytes=user_id))}
        audit.note(connection, context.now(), actor, audit.Action.POLICY_CHANGED, subject, details)


def delete(connection: sqlite3.Connection, context: Context, group_id: bytes, user_id: bytes) -> None:
    """Delete a group for all of its members, and tell them. Raises NotAdminError."""
    group = members.require_admin(connection, group_id, user_id).group
    everybody = members_of(connection, group.group_key)
    groups.remove(connection, group, context.now())
    announce(connection, everybody, "group_deleted", group_id=group_id)
