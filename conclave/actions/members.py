"""Joining and leaving groups, and the roles in them."""

import sqlite3

from conclave.actions.context import Context
from conclave.actions.quotas import count_commit, require_room
from conclave.store import bodies, commits, invites, members, users
from conclave.store.commits import Commit
from conclave.store.members import admins_of as list_admins

__all__ = ["demote", "join", "leave", "list_admins", "promote", "remove"]


def join(connection: sqlite3.Connection, context: Context, group_id: bytes, user_id: bytes) -> bytes:
    """Make the user a member of a public group, and return its group info.

    Raises what ``members.require_joinable``, ``invites.make_way`` and ``quotas.require_room`` raise.
    """
    group_key, group_info = members.require_joinable(connection, group_id, user_id)
    invites.make_way(connection, group_key, user_id, context.invites_dead_before(), context.clock.read())
    require_room(context.quotas, group_id, user_id, 0)
    members.add(connection, group_key, user_id, context.now(), joining=True)
    return bodies.get(connection, group_info)


def leave(connection: sqlite3.Connection, context: Context, group_id: bytes, user_id: bytes, commit: Commit) -> None:
    """End the user's membership, with a commit if one is given. Raises NotMemberError."""
    member, now = members.require_member(connection, group_id, user_id), context.now()
    with bodies.spare_room(connection):
        commits.store(connection, member, commit, now)
    count_commit(context.quotas, group_id, user_id, len(commit.commit_message))
    members.remove(connection, member, now)


def remove(
    connection: sqlite3.Connection,
    context: Context,
    group_id: bytes,
    user_id: bytes,
    target_id: bytes,
    commit: Commit,
) -> None:
    """Remove a member, with a commit if one is given, and tell them.

    Raises NotAdminError, NotFoundError (no such user) or BadRequestError (no member).
    """
    admin, now = members.require_admin(connection, group_id, user_id), context.now()
    target = members.require_target(connection, group_id, target_id)
    with bodies.spare_room(connection):
        commits.store(connection, admin, commit, now)
    count_commit(context.quotas, group_id, user_id, len(commit.commit_message))
    members.remove(connection, target, now, told=True)


def promote(connection: sqlite3.Connection, group_id: bytes, user_id: bytes, target_id: bytes) -> None:
    """Make a member an admin. Raises NotAdminError, NotFoundError, BadRequestError or ConflictError (one already)."""
    members.require_admin(connection, group_id, user_id)
    members.promote(connection, members.require_target(connection, group_id, target_id))


def demote(connection: sqlite3.Connection, group_id: bytes, user_id: bytes, target_id: bytes) -> None:
    """Make an admin a member. Raises NotAdminError, NotFoundError or BadRequestError (no admin, or the last)."""
    members.require_admin(connection, group_id, user_id)
    users.by_id(connection, target_id)
    members.demote(connection, members.membership(connection, group_id, target_id))
