"""Invites: making, listing, cancelling, accepting and declining them."""

import sqlite3
from collections.abc import Sequence

from conclave.actions.context import Context
from conclave.actions.quotas import count_accepted, count_invite, require_room
from conclave.budget import Share
from conclave.errors import NotFoundError
from conclave.store import acceptance, invites, members, users
from conclave.store.invites import PendingInvite


def escrow(
    connection: sqlite3.Connection,
    context: Context,
    group_id: bytes,
    inviter_id: bytes,
    invitee_id: bytes,
    carried: Sequence[bytes],
) -> None:
    """Invite a user, and tell them.

    ``carried``: commit, welcome and group info, for when the invite is accepted. Raises NotAdminError, and what
    ``users.require_enabled``, ``members.require_invitable``, ``quotas.require_room`` and ``invites.make_way`` raise.
    """
    users.require_enabled(connection, inviter_id)
    group = members.require_admin(connection, group_id, inviter_id).group
    members.require_invitable(connection, group, [invitee_id])
    size = sum(map(len, carried))
    require_room(context.quotas, group_id, inviter_id, size, is_commit=False)
    now, dead_before = context.now(), context.invites_dead_before()
    invites.add(connection, group, inviter_id, invitee_id, carried, now, dead_before, context.clock.read())
    count_invite(context.quotas, group_id, inviter_id, size)


def list_of_group(
    connection: sqlite3.Connection, context: Context, group_id: bytes, user_id: bytes, share: Share
) -> list[PendingInvite]:
    """List the living invites of a group, the oldest first. Raises NotAdminError or NoRoomError."""
    group_key = members.require_admin(connection, group_id, user_id).group.group_key
    return invites.of_group(connection, group_key, context.invites_dead_before(), share)


def list_own(connection: sqlite3.Connection, context: Context, user_id: bytes, share: Share) -> list[PendingInvite]:
    """List the living invites of a user, the oldest first. Raises NoRoomError."""
    return invites.of_user(connection, user_id, context.invites_dead_before(), share)


def cancel(
    connection: sqlite3.Connection, context: Context, group_id: bytes, user_id: bytes, invitee_id: bytes
) -> None:
    """Cancel the invite of a user to a group. Raises NotAdminError, or NotFoundError if none is pending."""
    group_key = members.require_admin(connection, group_id, user_id).group.group_key
    if not invites.cancel_pending(connection, group_key, invitee_id, context.invites_dead_before()):
        raise NotFoundError("no invite of this user is pending")


def accept(connection: sqlite3.Connection, context: Context, invite_id: bytes, user_id: bytes) -> None:
    """Make the invitee a member. Raises NotFoundError, or NotMemberError if the invite is somebody else's."""
    invite = invites.require_own(connection, invite_id, user_id, context.invites_dead_before())
    acceptance.accept(connection, invite, context.now())
    count_accepted(context.quotas, invite.group_id)


def decline(connection: sqlite3.Connection, context: Context, invite_id: bytes, user_id: bytes) -> None:
    """Decline an invite. Raises NotFoundError, or NotMemberError if it is somebody else's."""
    invites.decline(connection, invites.require_own(connection, invite_id, user_id, context.invites_dead_before()))
