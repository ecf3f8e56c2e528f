"""Invites that wait for an answer; an old one is dead at once, and cleanup removes it."""

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from conclave.budget import Share
from conclave.clock import Reading
from conclave.errors import ConflictError, NotFoundError, NotMemberError
from conclave.failpoints import reach
from conclave.store import bodies, groups, members, messages, state, welcomes
from conclave.store.groups import Group
from conclave.store.news import announce, members_of


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
    """Invite a user, who hears of it. ``carried``: commit, welcome and group info, for when it is accepted.

    Raises as ``make_way`` does.
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
    """End a dead invite of a user who is invited anew or joins: a member has none that could come back to life.

    Raises ConflictError if a living one is pending, and UntrustedClockError where only a wrong clock says that it is
    dead.
    """
    for former in _find(connection, "invites.group_key = ? AND invitee_id = ?", group_key, invitee_id):
        if former.created_at >= dead_before:
            raise ConflictError("an invite to this group is pending")
        state.require_clock(connection, clock)
        decline(connection, former)


def of_user(connection: sqlite3.Connection, user_id: bytes, dead_before: int, share: Share) -> list[PendingInvite]:
    """List the living invites of a user, the oldest first. Raises NoRoomError."""
    return _list(connection, share, "invitee_id = ? AND invites.created_at >= ?", user_id, dead_before)


def of_group(
    connection: sqlite3.Connection, group_id: bytes, user_id: bytes, dead_before: int, share: Share
) -> list[PendingInvite]:
    """List the living invites of a group, the oldest first. Raises NotAdminError or NoRoomError."""
    group = members.require_admin(connection, group_id, user_id).group
    return _list(connection, share, "invites.group_key = ? AND invites.created_at >= ?", group.group_key, dead_before)


def require_own(connection: sqlite3.Connection, invite_id: bytes, user_id: bytes, dead_before: int) -> Invite:
    """Return a living invite of the user. Raises NotFoundError, or NotMemberError if it is somebody else's."""
    found = _find(connection, "invite_id = ? AND invites.created_at >= ?", invite_id, dead_before)
    if not found:
        raise NotFoundError("no such invite")
    if found[0].invitee_id != user_id:
        raise NotMemberError("this invite is somebody else's")
    return found[0]


def accept(connection: sqlite3.Connection, invite: Invite, now: int) -> None:
    """Make the invitee a member, with all that the invite carries: its bodies change hands, none is copied.

    The commit becomes a message of the inviter's; the invitee hears of the welcome, the others of the commit.
    """
    group = groups.by_id(connection, invite.group_id)
    others = members_of(connection, group.group_key)
    connection.execute("DELETE FROM invites WHERE invite_key = ?", (invite.invite_key,))
    members.add(connection, group.group_key, invite.invitee_id, now)
    reach("accept.member_added")
    welcomes.add(connection, group.group_key, invite.invitee_id, invite.welcome_body)
    messages.append_stored(connection, group.group_key, invite.inviter_id, invite.commit_body, now, is_commit=True)
    groups.adopt_group_info(connection, group.group_key, invite.group_info_body)
    reach("accept.stored")
    announce(connection, [invite.invitee_id], "welcome", group_id=group.group_id, group_alias=group.alias)
    announce(connection, others, "group_update", group_id=group.group_id, update_type="commit")


def decline(connection: sqlite3.Connection, invite: Invite) -> None:
    """Remove an invite with what it carries. The inviter hears of it, whose MLS group holds a place for the invitee."""
    remove(connection, invite)
    announce(
        connection,
        [invite.inviter_id],
        "invite_declined",
        group_id=invite.group_id,
        declined_user_id=invite.invitee_id,
    )


def cancel(connection: sqlite3.Connection, invite: Invite) -> None:
    """Remove an invite with what it carries; invitee and inviter hear of it."""
    announce(connection, [invite.invitee_id], "invite_cancelled", group_id=invite.group_id)
    decline(connection, invite)


def cancel_pending(connection: sqlite3.Connection, group_key: int, invitee_id: bytes, dead_before: int) -> bool:
    """Cancel the invite of a user to a group; tell whether a living one was there."""
    found = _find(connection, "invites.group_key = ? AND invitee_id = ?", group_key, invitee_id)
    for each in found:
        # What is dead only waits for cleanup, which would tell the inviter alone.
        (cancel if each.created_at >= dead_before else decline)(connection, each)
    return any(each.created_at >= dead_before for each in found)


def remove_of_user(connection: sqlite3.Connection, user_id: bytes) -> None:
    """Remove the invites that a user was given, which their inviters hear of, and those that the user gave."""
    for each in _find(connection, "invitee_id = ?", user_id):
        decline(connection, each)
    for each in _find(connection, "inviter_id = ?", user_id):
        remove(connection, each)
        announce(connection, [each.invitee_id], "invite_cancelled", group_id=each.group_id)


def dead(connection: sqlite3.Connection, invite_key: int, dead_before: int) -> Invite | None:
    """Find an invite that is dead; None if it is gone, or lives."""
    found = _find(connection, "invite_key = ? AND invites.created_at < ?", invite_key, dead_before)
    return found[0] if found else None


def remove(connection: sqlite3.Connection, invite: Invite) -> None:
    """Remove an invite and erase what it carries."""
    connection.execute("DELETE FROM invites WHERE invite_key = ?", (invite.invite_key,))
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
