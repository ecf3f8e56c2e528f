"""Keeping users out of a group."""

import sqlite3

from conclave.actions.context import Context
from conclave.actions.quotas import count_commit
from conclave.budget import Share
from conclave.store import bans, bodies, commits, invites, members, users
from conclave.store.bans import BannedUser
from conclave.store.commits import Commit


def ban(
    connection: sqlite3.Connection,
    context: Context,
    group_id: bytes,
    user_id: bytes,
    target_id: bytes,
    commit: Commit,
) -> None:
    """Ban a user. A pending invite is cancelled, and a member is removed by ``commit``.

    Raises NotAdminError, or NotFoundError if there is no such user.
    """
    admin = members.require_admin(connection, group_id, user_id)
    users.by_id(connection, target_id)
    group_key, now = admin.group.group_key, context.now()
    invites.cancel_pending(connection, group_key, target_id, context.invites_dead_before())
    bans.add(connection, group_key, target_id, user_id, now)
    target = members.membership(connection, group_id, target_id)
    if target:
        with bodies.spare_room(connection):
            commits.store(connection, admin, commit, now)
        count_commit(context.quotas, group_id, user_id, len(commit.commit_message))
        members.remove(connection, target, now, told=True)  # if this was the last member, the ban goes with the group


def unban(connection: sqlite3.Connection, group_id: bytes, user_id: bytes, target_id: bytes) -> None:
    """Lift a ban. Raises NotAdminError, NotFoundError (no such user) or BadRequestError (not banned)."""
    group_key = members.require_admin(connection, group_id, user_id).group.group_key
    users.by_id(connection, target_id)
    bans.remove(connection, group_key, target_id)


def list_banned(connection: sqlite3.Connection, group_id: bytes, user_id: bytes, share: Share) -> list[BannedUser]:
    """List the banned users, in the order of their bans. Raises NotAdminError or NoRoomError."""
    return bans.of_group(connection, members.require_admin(connection, group_id, user_id).group.group_key, share)
