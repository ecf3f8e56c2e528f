"""Who is in which group, in which role, and how far each has fetched."""

import sqlite3
from collections import defaultdict
from dataclasses import dataclass

from conclave.errors import BadRequestError, ConflictError, NotAdminError, NotMemberError, NotPublicError
from conclave.failpoints import reach
from conclave.store import groups, marks
from conclave.store.announce import announce, members_of
from conclave.store.groups import Group
from conclave.store.users import User


@dataclass(frozen=True)
class Membership:
    """One user's membership of one group; leaving and coming back makes a new one."""

    member_id: int
    group: Group
    user_id: bytes
    role: str
    watermark: int


@dataclass(frozen=True)
class Member(User):
    """A member as the other members see it."""

    role: str


@dataclass(frozen=True)
class GroupMembers:
    """A group with its members, the longest-standing first."""

    group: Group
    members: list[Member]


def membership(connection: sqlite3.Connection, group_id: bytes, user_id: bytes) -> Membership | None:
    """Find a membership; None also if there is no such group."""
    row = connection.execute(
        f"SELECT {groups.COLUMNS}, member_id, user_id, role, watermark FROM members JOIN groups USING (group_key)"
        " WHERE group_id = ? AND user_id = ?",
        (group_id, user_id),
    ).fetchone()
    if row is None:
        return None
    values = dict(row)
    own = {name: values.pop(name) for name in ("member_id", "user_id", "role", "watermark")}
    return Membership(group=Group(**values), **own)


def require_member(connection: sqlite3.Connection, group_id: bytes, user_id: bytes) -> Membership:
    """Return the caller's membership. Raises NotMemberError."""
    found = membership(connection, group_id, user_id)
    if found is None:
        raise NotMemberError
    return found


def require_admin(connection: sqlite3.Connection, group_id: bytes, user_id: bytes) -> Membership:
    """Return the caller's membership. Raises NotAdminError also if there is no such group or membership."""
    found = membership(connection, group_id, user_id)
    if found is None or found.role != "admin":
        raise NotAdminError
    return found


def groups_of(connection: sqlite3.Connection, user_id: bytes) -> list[GroupMembers]:
    """List the user's groups in the order in which they were joined."""
    own = connection.execute(
        f"SELECT {groups.COLUMNS} FROM members JOIN groups USING (group_key) WHERE user_id = ? ORDER BY member_id",
        (user_id,),
    ).fetchall()
    listed: dict[int, list[Member]] = defaultdict(list)
    for row in connection.execute(
        "SELECT group_key, user_id, username, alias, signing_key_fingerprint, role"
        " FROM members JOIN users USING (user_id)"
        " WHERE group_key IN (SELECT group_key FROM members WHERE user_id = ?) ORDER BY member_id",
        (user_id,),
    ):
        values = dict(row)
        listed[values.pop("group_key")].append(Member(**values))
    return [GroupMembers(Group(**row), listed[row["group_key"]]) for row in own]


def join_public(connection: sqlite3.Connection, group_id: bytes, user_id: bytes, now: int, invite_ttl: int) -> int:
    """Add the caller to a public group as one who is joining; return the id of its group info's body.

    Raises NotFoundError, NotPublicError, ConflictError (member, or invited) or BadRequestError (no group info).
    """
    group = groups.by_id(connection, group_id)
    if group.visibility != "public":
        raise NotPublicError
    if membership(connection, group_id, user_id):
        raise ConflictError("already a member of this group")
    pending = "SELECT 1 FROM invites WHERE group_key = ? AND invitee_id = ? AND created_at >= ?"
    if connection.execute(pending, (group.group_key, user_id, now - invite_ttl)).fetchone():
        raise ConflictError("an invite to this group is pending: accept it instead")
    if group.group_info_body is None:
        raise BadRequestError("this group has no group info yet")
    marks.advance_floor(connection, group.group_key)
    reach("join.floor_raised")
    connection.execute(
        "INSERT INTO members (group_key, user_id, role, joined_at, joining) VALUES (?, ?, 'member', ?, 1)",
        (group.group_key, user_id, now),
    )
    return group.group_info_body


def remove(connection: sqlite3.Connection, member: Membership, now: int) -> None:
    """End a membership.

    The remaining members hear of it. The group keeps an admin: the longest-standing member follows the last
    one. With its last member the group goes.
    """
    group_key = member.group.group_key
    reach("leave.committed")
    connection.execute("DELETE FROM members WHERE member_id = ?", (member.member_id,))
    reach("leave.removed")
    left = connection.execute(
        "SELECT min(member_id) AS eldest, max(role = 'admin') AS has_admin FROM members WHERE group_key = ?",
        (group_key,),
    ).fetchone()
    if left["eldest"] is None:
        groups.remove(connection, groups.by_id(connection, member.group.group_id), now)
        return
    marks.advance_floor(connection, group_key)
    group_id, remaining = member.group.group_id, members_of(connection, group_key)
    announce(connection, remaining, "member_removed", group_id=group_id, removed_user_id=member.user_id)
    if not left["has_admin"]:
        connection.execute("UPDATE members SET role = 'admin' WHERE member_id = ?", (left["eldest"],))
        announce(connection, remaining, "group_update", group_id=group_id, update_type="role_change")


def confirm_fetched(connection: sqlite3.Connection, member_id: int, up_to: int) -> None:
    """Note that a member has every message up to ``up_to``; a watermark never goes down."""
    connection.execute(
        "UPDATE members SET watermark = ? WHERE member_id = ? AND watermark < ?", (up_to, member_id, up_to)
    )
