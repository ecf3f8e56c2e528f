"""Checks permissions in groups. Each function returns the rows that it checked, or raises."""

import sqlite3
from collections.abc import Sequence

from conclave.actions import users
from conclave.actions.context import Context
from conclave.errors import (
    BadRequestError,
    BannedError,
    ConflictError,
    NotAdminError,
    NotFoundError,
    NotMemberError,
    NotPublicError,
)
from conclave.store.engine.news import members_of
from conclave.store.resources import bans, groups, users as stored_users
from conclave.store.resources.groups import GroupRow
from conclave.store.resources.members import Membership, current, membership


def require_group(connection: sqlite3.Connection, group_id: bytes) -> GroupRow:
    """Return a group. Raises NotFoundError."""
    found = groups.find(connection, group_id)
    if found is None:
        raise NotFoundError("no such group")
    return found


def require_member(connection: sqlite3.Connection, context: Context, group_id: bytes, user_id: bytes) -> Membership:
    """Return the caller's membership. Raises NotMemberError, even if the group does not exist."""
    found = current(connection, group_id, user_id, context.clock)
    if found is None:
        raise NotMemberError
    return found


def require_admin(connection: sqlite3.Connection, context: Context, group_id: bytes, user_id: bytes) -> Membership:
    """Return the caller's membership. Raises NotAdminError, even if the group or membership does not exist."""
    found = current(connection, group_id, user_id, context.clock)
    if found is None or found.role != "admin":
        raise NotAdminError
    return found


def require_target(connection: sqlite3.Connection, group_id: bytes, user_id: bytes) -> Membership:
    """Return the membership of another user.

    Raises NotFoundError if the user does not exist, BadRequestError if the user is not a member.
    """
    users.by_id(connection, user_id)
    found = membership(connection, group_id, user_id)
    if found is None:
        raise BadRequestError("this user is not a member of the group")
    return found


def require_invitable(connection: sqlite3.Connection, group: GroupRow, user_ids: Sequence[bytes]) -> None:
    """Raise NotFoundError, ConflictError or BannedError for the first user who cannot be invited to the group.

    ``user_ids``: at most a few thousand.
    """
    existing_ids = stored_users.known(connection, user_ids)
    member_ids = members_of(connection, group.group_key)
    banned_ids = bans.banned(connection, group.group_key)
    for user_id in user_ids:
        if user_id not in existing_ids:
            raise NotFoundError("no such user")
        if user_id in member_ids:
            raise ConflictError("this user is a member of the group already")
        if user_id in banned_ids:
            raise BannedError


def require_joinable(connection: sqlite3.Connection, group_id: bytes, user_id: bytes) -> tuple[int, int]:
    """Return the key of a public group that the caller can join, and the body id of its group info.

    Raises NotFoundError, NotPublicError, BannedError, ConflictError (already a member) or BadRequestError (no group
    info).
    """
    group = require_group(connection, group_id)
    if group.visibility != "public":
        raise NotPublicError
    if bans.is_banned(connection, group.group_key, user_id):
        raise BannedError
    if membership(connection, group_id, user_id):
        raise ConflictError("already a member of this group")
    if group.group_info_body is None:
        raise BadRequestError("this group has no group info yet")
    users.require(connection, user_id)
    return group.group_key, group.group_info_body
