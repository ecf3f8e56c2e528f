"""Memberships: role, join state and watermark of each member of a group."""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from conclave.clock import Clock
from conclave.failpoints import reach
from conclave.retention import marks, stretches, visibility
from conclave.retention.visibility import Visibility
from conclave.store.lists import Listing, ListPart, Span
from conclave.store.resources import groups, welcomes
from conclave.store.resources.groups import GroupRow
from conclave.store.resources.users import UserRow

JOIN_SECONDS = 60
"""A join must be completed by the external commit within 60 seconds, otherwise the membership no longer counts."""

MAX_LAGGING = 100
"""At most 100 lagging members are listed for an admin."""


class NoMembershipError(Exception):
    """The user is not a member of the group, or the group does not exist."""


@dataclass(frozen=True)
class Membership:
    """A user's membership of a group. A user who leaves and comes back gets a new one.

    ``joined_at``: Unix seconds. ``joining``: see ``add``. ``watermark``: the member has fetched the messages up to this
    number, inclusive. ``joined_after``: messages above this number were sent during this membership. ``read_up_to``:
    the member has read everything up to this number, inclusive. ``missed_from`` and ``missed_to``: see
    ``fetch_gaps.Gap``; 0: no gap.
    """

    member_id: int
    group: GroupRow
    user_id: bytes
    role: str
    watermark: int
    joined_at: int
    joining: bool
    joined_after: int
    read_up_to: int
    missed_from: int
    missed_to: int

    def is_overdue(self, now: int) -> bool:
        """Return whether the join was not completed in time. ``now``: Unix seconds."""
        return self.joining and self.joined_at < now - JOIN_SECONDS


@dataclass(frozen=True)
class MemberRow(UserRow):
    """A member as shown to the other members."""

    role: str


_ADMINS = Listing(
    columns="user_id, username, alias, signing_key_fingerprint, role",
    tables="members JOIN users USING (user_id)",
    condition="group_key = :group_key AND role = 'admin'",
    key="member_id",
    id="user_id",
    make=MemberRow,
)

_MEMBERSHIPS = (
    f"SELECT {groups.COLUMNS}, member_id, user_id, role, watermark, joined_at, joining, joined_after, read_up_to,"
    " missed_from, missed_to FROM members JOIN groups USING (group_key)"
)
_MEMBERSHIP_COLUMNS = (
    *("member_id", "user_id", "role", "watermark", "joined_at", "joining", "joined_after"),
    *("read_up_to", "missed_from", "missed_to"),
)


def membership(connection: sqlite3.Connection, group_id: bytes, user_id: bytes) -> Membership | None:
    """Find a stored membership; None if there is none, or the group does not exist.

    It may be overdue: ``current`` returns only those that count.
    """
    row = connection.execute(f"{_MEMBERSHIPS} WHERE group_id = ? AND user_id = ?", (group_id, user_id)).fetchone()
    return _membership(row) if row else None


def current(connection: sqlite3.Connection, group_id: bytes, user_id: bytes, clock: Clock) -> Membership | None:
    """Find a membership; None if there is none, or if its join was not completed in time.

    While the clock is in doubt, a join that is overdue only according to that clock still counts.
    """
    found = membership(connection, group_id, user_id)
    return found if found and not found.is_overdue(clock.moment().earliest) else None


def overdue(connection: sqlite3.Connection, now: int, limit: int) -> list[Membership]:
    """List at most ``limit`` memberships whose joins were not completed in time. ``now``: Unix seconds."""
    rows = connection.execute(
        f"{_MEMBERSHIPS} WHERE joining AND joined_at < ? ORDER BY joined_at, member_id LIMIT ?",
        (now - JOIN_SECONDS, limit),
    ).fetchall()
    return [_membership(row) for row in rows]


def find_by_key(connection: sqlite3.Connection, member_id: int) -> Membership | None:
    """Find a membership by its key; None if it has ended."""
    row = connection.execute(f"{_MEMBERSHIPS} WHERE member_id = ?", (member_id,)).fetchone()
    return _membership(row) if row else None


def of_user(connection: sqlite3.Connection, user_id: bytes) -> list[Membership]:
    """List a user's memberships in the order in which the groups were joined."""
    rows = connection.execute(f"{_MEMBERSHIPS} WHERE user_id = ? ORDER BY member_id", (user_id,)).fetchall()
    return [_membership(row) for row in rows]


def _membership(row: sqlite3.Row) -> Membership:
    group_values = dict(row)
    membership_values = {name: group_values.pop(name) for name in _MEMBERSHIP_COLUMNS}
    return Membership(group=GroupRow(**group_values), **membership_values)


def lagging(connection: sqlite3.Connection, group: GroupRow, view: Visibility) -> list[bytes]:
    """List the members who have not fetched messages that others have, furthest behind first; at most MAX_LAGGING.

    Only visible messages count. Messages that no member has fetched do not count.
    """
    ahead = connection.execute("SELECT max(watermark) FROM members WHERE group_key = ?", (group.group_key,)).fetchone()
    last = _last_shown(connection, group, view, ahead[0] or 0)
    rows = connection.execute(
        "SELECT user_id FROM members WHERE group_key = ? AND watermark < ? ORDER BY watermark, member_id LIMIT ?",
        (group.group_key, last, MAX_LAGGING),
    )
    return [row[0] for row in rows]


def _last_shown(connection: sqlite3.Connection, group: GroupRow, view: Visibility, up_to: int) -> int:
    """Return the greatest number up to ``up_to`` of a visible message; 0 if there is none."""
    condition, _ = view.hot
    begin = visibility.pass_hidden(connection, group, view, group.archived_seq)
    row = connection.execute(
        f"SELECT sequence_num FROM messages WHERE group_key = :group_key AND {condition} AND sequence_num <= :up_to"
        " ORDER BY sequence_num DESC LIMIT 1",
        {"group_key": group.group_key, **view.bounds(begin), "up_to": up_to},
    ).fetchone()
    if row:
        return int(row[0])
    archived = stretches.stretch(connection, group, 0, view)
    parts = archived.parts if archived else ()
    return max((min(part.last_seq, up_to) for part in parts if part.first_seq <= up_to), default=0)


def admins_of(connection: sqlite3.Connection, group_key: int, span: Span) -> ListPart[MemberRow]:
    """List a group's admins, in the order in which they joined. Raises NotListedError."""
    return _ADMINS.read(connection, span, {"group_key": group_key})


def add(connection: sqlite3.Connection, group_key: int, user_id: bytes, now: int, *, joining: bool = False) -> None:
    """Add a member to a group.

    ``joining``: the member must still send the external commit that joining a public group requires, within
    JOIN_SECONDS.
    """
    marks.advance_floor(connection, group_key)
    reach("join.floor_raised")
    connection.execute(
        "INSERT INTO members (group_key, user_id, role, joined_at, joining, joined_after, read_up_to)"
        " SELECT group_key, ?, 'member', ?, ?, last_seq, last_seq FROM groups WHERE group_key = ?",
        (user_id, now, joining, group_key),
    )


def joining(connection: sqlite3.Connection, group_key: int) -> set[bytes]:
    """Return the ids of a group's members whose joins are not completed, including overdue ones."""
    rows = connection.execute("SELECT user_id FROM members WHERE group_key = ? AND joining", (group_key,))
    return {row[0] for row in rows}


def complete_join(connection: sqlite3.Connection, member: Membership) -> None:
    """Complete a join: the member has sent the external commit."""
    connection.execute("UPDATE members SET joining = 0 WHERE member_id = ?", (member.member_id,))


def set_role(connection: sqlite3.Connection, member_id: int, role: str) -> None:
    """Make a member an "admin" or an ordinary "member"."""
    connection.execute("UPDATE members SET role = ? WHERE member_id = ?", (role, member_id))


def has_other_admin(connection: sqlite3.Connection, member: Membership) -> bool:
    """Return whether the group has another admin whose account is not disabled."""
    others = (
        "SELECT 1 FROM members JOIN users USING (user_id)"
        " WHERE group_key = ? AND role = 'admin' AND member_id != ? AND NOT disabled"
    )
    return connection.execute(others, (member.group.group_key, member.member_id)).fetchone() is not None


HEIR = (
    "CASE WHEN max(role = 'admin' AND NOT disabled) THEN NULL"
    " ELSE ifnull(min(iif(disabled, NULL, member_id)), iif(max(role = 'admin'), NULL, min(member_id))) END"
)
"""SQL aggregate over a group's members and their accounts: the member_id who is to become admin, or NULL.

That is the first who joined, preferably one whose account is not disabled. A disabled admin does not count, unless all
members are disabled.
"""


class RemovalResult(NamedTuple):
    """The state of a group after a removal. ``heir``: the member_id who is to become admin, or None."""

    is_empty: bool
    heir: int | None


def remove(connection: sqlite3.Connection, member: Membership) -> RemovalResult:
    """End a membership, and return the state of the group."""
    group_key = member.group.group_key
    reach("leave.committed")
    connection.execute("DELETE FROM members WHERE member_id = ?", (member.member_id,))
    reach("leave.removed")
    welcomes.remove(connection, group_key, member.user_id)
    member_count, heir = connection.execute(
        f"SELECT count(*), {HEIR} FROM members JOIN users USING (user_id) WHERE group_key = ?", (group_key,)
    ).fetchone()
    if member_count:
        marks.advance_floor(connection, group_key)
    return RemovalResult(
        not member_count, heir if member.role == "admin" else None
    )  # only the removal of an admin needs an heir


def confirm_fetched(connection: sqlite3.Connection, watermarks: Sequence[tuple[int, int]]) -> list[None]:
    """Raise watermarks. ``watermarks``: member ids, and the last numbers that they have fetched.

    A joint write, see ``group_commit.JointWrite``.
    """
    connection.executemany(
        "UPDATE members SET watermark = ? WHERE member_id = ? AND watermark < ?",
        [(up_to, member_id, up_to) for member_id, up_to in watermarks],
    )
    return [None] * len(watermarks)
