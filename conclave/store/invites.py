"""Invites that wait for an answer: send, decline, cancel, withdraw, list them.

An invite is dead once it is too old, and cleanup removes it later. ``dead_before`` in this module: the Unix second
before which a dead invite was made, exclusive.

An invite is good only as long as its inviter may invite. Whatever ends that, ends the invite in the same transaction,
by ``withdraw``.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from conclave.budget import Share
from conclave.clock import Reading
from conclave.errors import ConflictError, NotFoundError, NotMemberError
from conclave.store import bodies, state
from conclave.store.groups import Group
from conclave.store.news import announce


@dataclass(frozen=True)
class PendingInvite:
    """An invite as invitees and admins see it."""

    invite_id: bytes
    group_id: bytes
    group_name: str
    group_alias: str
    inviter_username: str
    created_at: int
    invitee_id: bytes
    inviter_id: bytes


@dataclass(frozen=True)
class Invite:
    """A stored invite, with the bodies that it carries."""

    invite_key: int
    group_key: int
    group_id: bytes
    invitee_id: bytes
    inviter_id: bytes
    created_at: int
    commit_body: int
    welcome_body: int
    group_info_body: int


_SELECT = (
    "SELECT invite_key, invites.group_key, group_id, invitee_id, inviter_id, invites.created_at, commit_body,"
    " welcome_body, invites.group_info_body FROM invites JOIN groups USING (group_key) WHERE "
)

_MAY_INVITE = (
    "EXISTS (SELECT 1 FROM members JOIN users USING (user_id) WHERE members.group_key = invites.group_key"
    " AND members.user_id = inviter_id AND role = 'admin' AND NOT disabled)"
)
"""Whether the inviter is still one who may invite: an admin of the group, whose account is not disabled."""


def add(
    connection: sqlite3.Connection,
    group: Group,
    inviter_id: bytes,
    invitee_id: bytes,
    carried: Sequence[bytes],
    now: int,
    dead_before: int,
    clock: Reading,
) -> None:
    """Invite a user, and tell that user. Raises as ``make_way`` does.

    ``carried``: commit, welcome and group info, which are used when the invite is accepted.
    """
    make_way(connection, group.group_key, invitee_id, dead_before, clock)
    invite_id = uuid4().bytes
    connection.execute(
        "INSERT INTO invites (invite_id, group_key, invitee_id, inviter_id, created_at, commit_body, welcome_body,"
        " group_info_body) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(invite_id, group.group_key, invitee_id, inviter_id, now),
            *(bodies.put(connection, body) for body in carried),
        ),
    )
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


def make_way(
    connection: sqlite3.Connection, group_key: int, invitee_id: bytes, dead_before: int, clock: Reading
) -> None:
    """Remove the dead invite of a user who is invited again or joins.

    Otherwise a member could have an invite that comes back to life. Raises ConflictError if a living invite is pending,
    and UntrustedClockError if the invite is dead by a wrong clock only.
    """
    for former in _find(connection, "invites.group_key = ? AND invitee_id = ?", group_key, invitee_id):
        if former.created_at >= dead_before:
            raise ConflictError("an invite to this group is pending")
        state.require_clock(connection, clock)
        decline(connection, former)


def of_user(connection: sqlite3.Connection, user_id: bytes, dead_before: int, share: Share) -> list[PendingInvite]:
    """List the living invites of a user, the oldest first. Raises NoRoomError."""
    return _list(connection, share, "invitee_id = ? AND invites.created_at >= ?", user_id, dead_before)


def of_group(connection: sqlite3.Connection, group_key: int, dead_before: int, share: Share) -> list[PendingInvite]:
    """List the living invites of a group, the oldest first. Raises NoRoomError."""
    return _list(connection, share, "invites.group_key = ? AND invites.created_at >= ?", group_key, dead_before)


def require_own(connection: sqlite3.Connection, invite_id: bytes, user_id: bytes, dead_before: int) -> Invite:
    """Return a living invite of the user, whose inviter may still invite.

    Raises NotFoundError, or NotMemberError if it is another user's.
    """
    found = _find(connection, f"invite_id = ? AND invites.created_at >= ? AND {_MAY_INVITE}", invite_id, dead_before)
    if not found:
        raise NotFoundError("no such invite")
    if found[0].invitee_id != user_id:
        raise NotMemberError("this invite is somebody else's")
    return found[0]


def take(connection: sqlite3.Connection, invite: Invite) -> None:
    """Remove an invite, and leave what it carries to the caller."""
    connection.execute("DELETE FROM invites WHERE invite_key = ?", (invite.invite_key,))


def decline(connection: sqlite3.Connection, invite: Invite) -> None:
    """Remove an invite with what it carries, and tell the inviter.

    The inviter has to know, since the inviter's MLS group holds a place for the invitee.
    """
    remove(connection, invite)
    announce(
        connection,
        [invite.inviter_id],
        "invite_declined",
        group_id=invite.group_id,
        declined_user_id=invite.invitee_id,
    )


def cancel(connection: sqlite3.Connection, invite: Invite) -> None:
    """Remove an invite with what it carries, and tell invitee and inviter."""
    announce(connection, [invite.invitee_id], "invite_cancelled", group_id=invite.group_id)
    decline(connection, invite)


def cancel_pending(connection: sqlite3.Connection, group_key: int, invitee_id: bytes, dead_before: int) -> bool:
    """Cancel the invite of a user to a group; tell whether there was a living one."""
    found = _find(connection, "invites.group_key = ? AND invitee_id = ?", group_key, invitee_id)
    for each in found:
        # A dead one only waits for cleanup, which would tell the inviter alone.
        (cancel if each.created_at >= dead_before else decline)(connection, each)
    return any(each.created_at >= dead_before for each in found)


def decline_all(connection: sqlite3.Connection, invitee_id: bytes) -> None:
    """Decline every invite that a user has received."""
    for each in _find(connection, "invitee_id = ?", invitee_id):
        decline(connection, each)


def withdraw(connection: sqlite3.Connection, inviter_id: bytes) -> None:
    """Cancel the invites of a user to the groups where that user may not invite, or not any more.

    Call it in the transaction that takes the right away, after all else: the events follow those that say why.
    """
    for each in _find(connection, f"inviter_id = ? AND NOT {_MAY_INVITE}", inviter_id):
        cancel(connection, each)


def withdraw_all(connection: sqlite3.Connection) -> None:
    """Do as ``withdraw``, for all users: former versions, and a restored backup, leave such invites."""
    for each in _find(connection, f"NOT {_MAY_INVITE}"):
        cancel(connection, each)


def dead(connection: sqlite3.Connection, invite_key: int, dead_before: int) -> Invite | None:
    """Find a dead invite; None if it is gone or still lives."""
    found = _find(connection, "invite_key = ? AND invites.created_at < ?", invite_key, dead_before)
    return found[0] if found else None


def remove(connection: sqlite3.Connection, invite: Invite) -> None:
    """Remove an invite and erase what it carries."""
    take(connection, invite)
    bodies.erase(connection, [invite.commit_body, invite.welcome_body, invite.group_info_body])


def _find(connection: sqlite3.Connection, condition: str, *values: Any) -> list[Invite]:
    rows: Iterable[sqlite3.Row] = connection.execute(_SELECT + condition, values).fetchall()
    return [Invite(**row) for row in rows]


def _list(connection: sqlite3.Connection, share: Share, condition: str, *values: Any) -> list[PendingInvite]:
    rows = connection.execute(
        "SELECT invite_id, group_id, group_name, groups.alias AS group_alias, username AS inviter_username,"
        " invites.created_at, invitee_id, inviter_id FROM invites JOIN groups USING (group_key)"
        f" JOIN users ON user_id = inviter_id WHERE {condition} ORDER BY invite_key",
        values,
    )
    return [PendingInvite(**row) for row in share.count(rows)]
