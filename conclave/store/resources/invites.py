"""Pending invites: add, find, list, remove.

Cleanup removes expired invites. ``dead_before`` in this module: invites created before this Unix second have expired.

An invite is valid only as long as its inviter may invite. Actions that end this right withdraw the invite in the same
transaction, with ``withdraw``.
"""

import json
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from conclave.store import bodies
from conclave.store.lists import Listing, ListPart, Span


@dataclass(frozen=True)
class PendingInvite:
    """An invite as shown to invitees and admins."""

    invite_id: bytes
    group_id: bytes
    group_name: str
    group_alias: str
    inviter_username: str
    created_at: int
    invitee_id: bytes
    inviter_id: bytes


@dataclass(frozen=True)
class InviteRow:
    """A stored invite, with the ids of its bodies."""

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

_NOT_EXPIRED = "invites.created_at >= :dead_before"

_OF_USER = Listing(
    columns="invite_id, group_id, group_name, groups.alias AS group_alias, username AS inviter_username,"
    " invites.created_at, invitee_id, inviter_id",
    tables="invites JOIN groups USING (group_key) JOIN users ON user_id = inviter_id",
    condition=f"invitee_id = :user_id AND {_NOT_EXPIRED}",
    key="invite_key",
    id="invite_id",
    make=PendingInvite,
)
_OF_GROUP = replace(_OF_USER, condition=f"invites.group_key = :group_key AND {_NOT_EXPIRED}")

_MAY_INVITE = (
    "EXISTS (SELECT 1 FROM members JOIN users USING (user_id) WHERE members.group_key = invites.group_key"
    " AND members.user_id = inviter_id AND role = 'admin' AND NOT disabled)"
)
"""SQL condition: the inviter may still invite, as an admin of the group whose account is not disabled."""


def add(
    connection: sqlite3.Connection,
    group_key: int,
    inviter_id: bytes,
    invitee_id: bytes,
    contents: Sequence[bytes],
    now: int,
) -> bytes:
    """Store an invite and return its id. The user must not have another one to this group.

    ``contents``: commit, welcome and group info, to be used when the invite is accepted.
    """
    invite_id = uuid4().bytes
    connection.execute(
        "INSERT INTO invites (invite_id, group_key, invitee_id, inviter_id, created_at, commit_body, welcome_body,"
        " group_info_body) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (*(invite_id, group_key, invitee_id, inviter_id, now), *(bodies.put(connection, body) for body in contents)),
    )
    return invite_id


def to_group(connection: sqlite3.Connection, group_key: int, invitee_id: bytes) -> list[InviteRow]:
    """Return a list of at most one: the invite of a user to a group, expired or not."""
    return _find(connection, "invites.group_key = ? AND invitee_id = ?", group_key, invitee_id)


def of_user(connection: sqlite3.Connection, user_id: bytes, dead_before: int, span: Span) -> ListPart[PendingInvite]:
    """List the invites of a user that have not expired, oldest first. Raises NotListedError."""
    return _OF_USER.read(connection, span, {"user_id": user_id, "dead_before": dead_before})


def of_group(connection: sqlite3.Connection, group_key: int, dead_before: int, span: Span) -> ListPart[PendingInvite]:
    """List the invites of a group that have not expired, oldest first. Raises NotListedError."""
    return _OF_GROUP.read(connection, span, {"group_key": group_key, "dead_before": dead_before})


def living(connection: sqlite3.Connection, invite_id: bytes, dead_before: int) -> InviteRow | None:
    """Find an invite that has not expired, and whose inviter may still invite."""
    matches = _find(connection, f"invite_id = ? AND invites.created_at >= ? AND {_MAY_INVITE}", invite_id, dead_before)
    return matches[0] if matches else None


def take(connection: sqlite3.Connection, invite: InviteRow) -> None:
    """Remove an invite, but not its bodies."""
    connection.execute("DELETE FROM invites WHERE invite_key = ?", (invite.invite_key,))


def to_user(connection: sqlite3.Connection, invitee_id: bytes) -> list[InviteRow]:
    """Return all invites that a user has received."""
    return _find(connection, "invitee_id = ?", invitee_id)


def void(connection: sqlite3.Connection, inviter_id: bytes) -> list[InviteRow]:
    """Return the invites by a user to groups where the user may no longer invite."""
    return _find(connection, f"inviter_id = ? AND NOT {_MAY_INVITE}", inviter_id)


def all_void(connection: sqlite3.Connection) -> list[InviteRow]:
    """Return the invites of all users who may no longer invite."""
    return _find(connection, f"NOT {_MAY_INVITE}")


def dead(connection: sqlite3.Connection, invite_key: int, dead_before: int) -> InviteRow | None:
    """Find an expired invite; None if it was removed or has not expired."""
    matches = _find(connection, "invite_key = ? AND invites.created_at < ?", invite_key, dead_before)
    return matches[0] if matches else None


def remove(connection: sqlite3.Connection, invites: Sequence[InviteRow]) -> None:
    """Remove invites and their bodies, with few statements: a user may have sent thousands."""
    keys = json.dumps([each.invite_key for each in invites])
    connection.execute("DELETE FROM invites WHERE invite_key IN (SELECT value FROM json_each(?))", (keys,))
    bodies.erase(
        connection, [body for each in invites for body in (each.commit_body, each.welcome_body, each.group_info_body)]
    )


def _find(connection: sqlite3.Connection, condition: str, *values: Any) -> list[InviteRow]:
    rows: Iterable[sqlite3.Row] = connection.execute(_SELECT + condition, values).fetchall()
    return [InviteRow(**row) for row in rows]
