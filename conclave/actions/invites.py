"""Creates, lists, cancels, accepts and declines invites."""

import sqlite3
from collections.abc import Sequence

from conclave.actions import users
from conclave.actions.authorisation import require_admin, require_group, require_invitable
from conclave.actions.context import Context
from conclave.actions.quotas import count_accepted, count_invite, require_room
from conclave.errors import ConflictError, NotFoundError, NotMemberError
from conclave.failpoints import reach
from conclave.store import bodies
from conclave.store.engine.news import announce, announce_stored, members_of
from conclave.store.lists import ListPart, Span
from conclave.store.resources import groups, invites, members, messages, welcomes
from conclave.store.resources.invites import InviteRow, PendingInvite


def escrow(
    connection: sqlite3.Connection,
    context: Context,
    group_id: bytes,
    inviter_id: bytes,
    invitee_id: bytes,
    carried: Sequence[bytes],
) -> None:
    """Invite a user, and notify them.

    ``carried``: the commit, welcome and group info to use on acceptance. Raises NotAdminError, and the
    errors of ``users.require_enabled``, ``require_invitable``, ``quotas.require_room`` and ``require_no_invite``.
    """
    users.require_enabled(connection, inviter_id)
    group = require_admin(connection, context, group_id, inviter_id).group
    require_invitable(connection, group, [invitee_id])
    size = sum(map(len, carried))
    require_room(context.quotas, group_id, inviter_id, size, is_commit=False)
    now = context.now()
    require_no_invite(connection, context, group.group_key, invitee_id)
    invite_id = invites.add(connection, group.group_key, inviter_id, invitee_id, carried, now)
    count_invite(context.quotas, group_id, inviter_id, size)
    announce(
        connection,
        [invitee_id],
        "invite_received",
        invite_id=invite_id,
        group_id=group.group_id,
        group_name=group.group_name,
        group_alias=group.alias,
        inviter_id=inviter_id,
    )


def list_of_group(
    connection: sqlite3.Connection, context: Context, group_id: bytes, user_id: bytes, span: Span
) -> ListPart[PendingInvite]:
    """Return the pending invites of a group, the oldest first. Raises NotAdminError or NotListedError."""
    group_key = require_admin(connection, context, group_id, user_id).group.group_key
    return invites.of_group(connection, group_key, context.invites_dead_before(), span)


def list_own(connection: sqlite3.Connection, context: Context, user_id: bytes, span: Span) -> ListPart[PendingInvite]:
    """Return the pending invites of a user, the oldest first. Raises NotListedError."""
    return invites.of_user(connection, user_id, context.invites_dead_before(), span)


def cancel(
    connection: sqlite3.Connection, context: Context, group_id: bytes, user_id: bytes, invitee_id: bytes
) -> None:
    """Cancel a pending invite of a user to a group. Raises NotAdminError or NotFoundError."""
    group_key = require_admin(connection, context, group_id, user_id).group.group_key
    if not cancel_pending(connection, group_key, invitee_id, context.invites_dead_before()):
        raise NotFoundError("no invite of this user is pending")


def accept(connection: sqlite3.Connection, context: Context, invite_id: bytes, user_id: bytes) -> None:
    """Make the invitee a member, and use the bodies of the invite.

    The commit becomes a message of the inviter. The invitee is notified of the welcome, the other members of the
    commit. Raises NotFoundError, or NotMemberError if the invite is another user's.
    """
    invite, now = _require_own(connection, context, invite_id, user_id), context.now()
    group = require_group(connection, invite.group_id)
    others = members_of(connection, group.group_key)
    invites.take(connection, invite)
    members.add(connection, group.group_key, user_id, now)
    reach("accept.member_added")
    welcomes.add(connection, group.group_key, user_id, invite.welcome_body)
    commit = invite.inviter_id, invite.commit_body
    announce_stored(connection, [messages.append_stored(connection, group.group_key, *commit, now, is_commit=True)])
    group_info = bodies.get(connection, invite.group_info_body)
    bodies.erase(connection, [invite.group_info_body])
    groups.set_group_info(connection, group.group_key, group_info, with_commit=True)
    reach("accept.stored")
    announce(connection, [user_id], "welcome", group_id=group.group_id, group_alias=group.alias)
    announce(connection, others, "group_update", group_id=group.group_id, update_type="commit")
    count_accepted(context.quotas, invite.group_id)


def decline(connection: sqlite3.Connection, context: Context, invite_id: bytes, user_id: bytes) -> None:
    """Decline an invite. Raises NotFoundError, or NotMemberError if it is another user's."""
    _decline(connection, [_require_own(connection, context, invite_id, user_id)])


def require_no_invite(connection: sqlite3.Connection, context: Context, group_key: int, user_id: bytes) -> None:
    """Remove an expired invite of a user who is invited again or joins.

    Otherwise a corrected clock could make it valid again for a member. Raises ConflictError if an invite is pending,
    and UntrustedClockError if the invite may have expired only because the clock is wrong.
    """
    for former in invites.to_group(connection, group_key, user_id):
        if former.created_at >= context.invites_dead_before():
            raise ConflictError("an invite to this group is pending")
        context.require_clock(connection)
        _decline(connection, [former])


def cancel_pending(connection: sqlite3.Connection, group_key: int, invitee_id: bytes, dead_before: int) -> bool:
    """Cancel the invite of a user to a group; return whether it was pending. ``dead_before``: see ``invites``."""
    found = invites.to_group(connection, group_key, invitee_id)
    is_pending = any(each.created_at >= dead_before for each in found)
    # An expired invite is removed as by cleanup, which notifies only the inviter.
    (_cancel if is_pending else _decline)(connection, found)
    return is_pending


def decline_all(connection: sqlite3.Connection, invitee_id: bytes) -> None:
    """Decline all invites that a user has received."""
    _decline(connection, invites.to_user(connection, invitee_id))


def withdraw(connection: sqlite3.Connection, inviter_id: bytes) -> None:
    """Cancel the invites of a user to groups where that user may not invite.

    Call it at the end of the transaction that revokes the permission, so that its events come last.
    """
    _cancel(connection, invites.void(connection, inviter_id))


def withdraw_all(connection: sqlite3.Connection) -> None:
    """Do ``withdraw`` for all users: a restored backup may contain such invites."""
    _cancel(connection, invites.all_void(connection))


def remove_dead(connection: sqlite3.Connection, invite_key: int, dead_before: int) -> bool:
    """Remove an invite for cleanup, if it is still expired; return whether it was."""
    found = invites.dead(connection, invite_key, dead_before)
    if found:
        _decline(connection, [found])
    return found is not None


def _cancel(connection: sqlite3.Connection, rows: Sequence[InviteRow]) -> None:
    """Remove invites and their bodies, and notify invitees and inviters."""
    for each in rows:
        announce(connection, [each.invitee_id], "invite_cancelled", group_id=each.group_id)
    _decline(connection, rows)


def _decline(connection: sqlite3.Connection, rows: Sequence[InviteRow]) -> None:
    """Remove invites and their bodies, and notify the inviters, whose MLS groups contain the invitees."""
    invites.remove(connection, rows)
    for each in rows:
        values = {"group_id": each.group_id, "declined_user_id": each.invitee_id}
        announce(connection, [each.inviter_id], "invite_declined", **values)


def _require_own(connection: sqlite3.Connection, context: Context, invite_id: bytes, user_id: bytes) -> InviteRow:
    """Return a pending invite of the user. Raises NotFoundError, or NotMemberError if it is another user's."""
    found = invites.living(connection, invite_id, context.invites_dead_before())
    if found is None:
        raise NotFoundError("no such invite")
    if found.invitee_id != user_id:
        raise NotMemberError("this invite is another user's")
    return found
