"""Lets users join and leave groups, and changes their roles."""

import sqlite3

from conclave.actions import commits, groups, invites, users
from conclave.actions.authorisation import (
    require_admin,
    require_joinable,
    require_member,
    require_target,
)
from conclave.actions.commits import Commit
from conclave.actions.context import Context
from conclave.actions.quotas import require_room
from conclave.errors import BadRequestError, ConflictError
from conclave.store import bodies
from conclave.store.engine.news import announce, members_of
from conclave.store.lists import ListPart, Span
from conclave.store.resources import members
from conclave.store.resources.members import MemberRow, Membership

MAX_UNDONE_JOINS = 16
"""The most joins to undo in one transaction: each sends an event to all members of its group."""


def join(connection: sqlite3.Connection, context: Context, group_id: bytes, user_id: bytes) -> bytes:
    """Make the user a member of a public group, and return its group info.

    Raises the errors of ``require_joinable``, ``require_no_invite`` and ``quotas.require_room``.
    """
    former = members.membership(connection, group_id, user_id)
    if former and former.is_overdue(context.clock.moment().earliest):
        end_and_withdraw(connection, former, context.now(), notifies_user=True)
    group_key, group_info = require_joinable(connection, group_id, user_id)
    invites.require_no_invite(connection, context, group_key, user_id)
    require_room(context.quotas, group_id, user_id, 0)
    members.add(connection, group_key, user_id, context.now(), joining=True)
    return bodies.get(connection, group_info)


def are_joins_overdue(connection: sqlite3.Connection, context: Context) -> bool:
    """Return whether ``undo_overdue_joins`` would end any membership."""
    return bool(members.overdue(connection, context.clock.moment().earliest, 1))


def undo_overdue_joins(connection: sqlite3.Connection, context: Context) -> int:
    """End memberships of users who joined and sent no external commit in time; return how many.

    Ends at most MAX_UNDONE_JOINS, and notifies all members. While the clock is in doubt, uses the earliest possible
    time.
    """
    joins = members.overdue(connection, context.clock.moment().earliest, MAX_UNDONE_JOINS)
    for each in joins:
        # Read again: if an admin was removed, this member may have become admin.
        member = members.find_by_key(connection, each.member_id)
        if member:
            end_and_withdraw(connection, member, context.now(), notifies_user=True)
    return len(joins)


def leave(connection: sqlite3.Connection, context: Context, group_id: bytes, user_id: bytes, commit: Commit) -> None:
    """End the user's membership, with ``commit`` unless it is empty. Raises NotMemberError."""
    member, now = require_member(connection, context, group_id, user_id), context.now()
    commits.store_final(connection, context, member, commit, now)
    end_and_withdraw(connection, member, now)


def remove(
    connection: sqlite3.Connection,
    context: Context,
    group_id: bytes,
    user_id: bytes,
    target_id: bytes,
    commit: Commit,
) -> None:
    """Remove a member, with ``commit`` unless it is empty, and notify them.

    Raises NotAdminError, NotFoundError (no such user) or BadRequestError (not a member).
    """
    admin, now = require_admin(connection, context, group_id, user_id), context.now()
    target = require_target(connection, group_id, target_id)
    commits.store_final(connection, context, admin, commit, now)
    end_and_withdraw(connection, target, now, notifies_user=True)


def end_and_withdraw(
    connection: sqlite3.Connection, member: Membership, now: int, *, notifies_user: bool = False
) -> None:
    """End a membership, and cancel the member's invites: see ``end`` and ``invites.withdraw``."""
    end(connection, member, now, notifies_user=notifies_user)
    invites.withdraw(connection, member.user_id)


def end(connection: sqlite3.Connection, member: Membership, now: int, *, notifies_user: bool = False) -> None:
    """End a membership. The caller cancels the member's invites, once for all memberships that it ends.

    Notifies the remaining members, and with ``notifies_user`` the removed user. If the last admin leaves, another
    member becomes admin, see ``members.HEIR``. If the last member leaves, the group is deleted.
    """
    group_key, group_id = member.group.group_key, member.group.group_id
    removal = members.remove(connection, member)
    if removal.is_empty:
        groups.end(connection, member.group, now)
    remaining = members_of(connection, group_key)
    recipients = remaining | {member.user_id} if notifies_user else remaining
    announce(connection, recipients, "member_removed", group_id=group_id, removed_user_id=member.user_id)
    if removal.heir is not None:
        members.set_role(connection, removal.heir, "admin")
        announce(connection, remaining, "group_update", group_id=group_id, update_type="role_change")


def promote(
    connection: sqlite3.Connection, context: Context, group_id: bytes, user_id: bytes, target_id: bytes
) -> None:
    """Make a member an admin, and notify all members.

    Raises NotAdminError, NotFoundError, BadRequestError or ConflictError (already an admin).
    """
    require_admin(connection, context, group_id, user_id)
    target = require_target(connection, group_id, target_id)
    if target.role == "admin":
        raise ConflictError("this member is already an admin")
    _set_role(connection, target, "admin")


def demote(connection: sqlite3.Connection, context: Context, group_id: bytes, user_id: bytes, target_id: bytes) -> None:
    """Make an admin an ordinary member, cancel their invites, and notify all members.

    Raises NotAdminError, NotFoundError or BadRequestError (not an admin, or the last one).
    """
    require_admin(connection, context, group_id, user_id)
    users.by_id(connection, target_id)
    target = members.membership(connection, group_id, target_id)
    if target is None or target.role != "admin":
        raise BadRequestError("this user is not an admin of the group")
    if not members.has_other_admin(connection, target):
        raise BadRequestError("a group must keep an admin: promote another member first")
    _set_role(connection, target, "member")
    invites.withdraw(connection, target_id)


def list_admins(
    connection: sqlite3.Connection, context: Context, group_id: bytes, user_id: bytes, span: Span
) -> ListPart[MemberRow]:
    """Return a group's admins, in the order in which they joined. Raises NotMemberError or NotListedError."""
    group_key = require_member(connection, context, group_id, user_id).group.group_key
    return members.admins_of(connection, group_key, span)


def _set_role(connection: sqlite3.Connection, member: Membership, role: str) -> None:
    members.set_role(connection, member.member_id, role)
    recipients = members_of(connection, member.group.group_key)
    announce(connection, recipients, "group_update", group_id=member.group.group_id, update_type="role_change")
