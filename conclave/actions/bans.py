"""Bans users from groups, and lifts and lists bans."""

import sqlite3

from conclave.actions import commits, invites, members, users
from conclave.actions.authorisation import require_admin
from conclave.actions.commits import Commit
from conclave.actions.context import Context
from conclave.errors import BadRequestError
from conclave.store.lists import ListPart, Span
from conclave.store.resources import bans
from conclave.store.resources.bans import BanRow
from conclave.store.resources.members import membership


def ban(
    connection: sqlite3.Connection,
    context: Context,
    group_id: bytes,
    user_id: bytes,
    target_id: bytes,
    commit: Commit,
) -> None:
    """Ban a user. Cancels a pending invite; a member is removed with ``commit``.

    Raises NotAdminError, or NotFoundError if the user does not exist.
    """
    admin = require_admin(connection, context, group_id, user_id)
    users.by_id(connection, target_id)
    group_key, now = admin.group.group_key, context.now()
    invites.cancel_pending(connection, group_key, target_id, context.invites_dead_before())
    bans.add(connection, group_key, target_id, user_id, now)
    target = membership(connection, group_id, target_id)
    if target:
        commits.store_final(connection, context, admin, commit, now)
        # If this was the last member, the group and the ban are deleted.
        members.end_and_withdraw(connection, target, now, notifies_user=True)


def unban(connection: sqlite3.Connection, context: Context, group_id: bytes, user_id: bytes, target_id: bytes) -> None:
    """Lift a ban. Raises NotAdminError, NotFoundError (no such user) or BadRequestError (not banned)."""
    group_key = require_admin(connection, context, group_id, user_id).group.group_key
    users.by_id(connection, target_id)
    if not bans.remove(connection, group_key, target_id):
        raise BadRequestError("this user is not banned from the group")


def list_banned(
    connection: sqlite3.Connection, context: Context, group_id: bytes, user_id: bytes, span: Span
) -> ListPart[BanRow]:
    """Return the banned users, in the order of their bans. Raises NotAdminError or NotListedError."""
    group_key = require_admin(connection, context, group_id, user_id).group.group_key
    return bans.of_group(connection, group_key, span)
