"""A user's groups with their members, read in parts.

A group whose members exceed the size of a part is returned as a ``LongGroup``, whose members are read as a separate
list.
"""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from conclave.store.lists import Key, Listing, ListPart, Span, estimated_size
from conclave.store.resources import groups
from conclave.store.resources.groups import GroupRow
from conclave.store.resources.members import MemberRow

GROUP_BYTES = 1_024
"""A part has at most one group for each 1,024 bytes, so that few groups are read unnecessarily."""

MEASURED_ROWS = 4_096
"""At most 4,096 members are measured in one transaction, which takes some milliseconds."""


@dataclass(frozen=True)
class GroupWithMembers(GroupRow):
    """A group with its members, in the order in which they joined."""

    members: Sequence[MemberRow] = ()


@dataclass(frozen=True)
class LongGroup:
    """A group whose members exceed the size of a part. ``member_id``: the reader's own membership."""

    group: GroupRow
    member_id: int


@dataclass(frozen=True)
class MembersSize:
    """The number and size of a group's members. ``text_bytes``: of names, aliases and fingerprints, in UTF-8."""

    count: int
    text_bytes: int
    last: int | None
    """The key of the last measured member; None: there was none left."""


@dataclass
class _PartMembers:
    """The members of the groups of a part, as far as they were read."""

    by_group: dict[Key, list[MemberRow]] = field(default_factory=dict)
    size: int = 0
    cut_at: Key | None = None
    """The key of the first group whose members were not read completely."""


_OWN_GROUPS = Listing(
    columns=f"{groups.COLUMNS}, member_id",
    tables="members JOIN groups USING (group_key)",
    condition="user_id = :user_id",
    key="member_id",
    id="group_id",
    make=lambda member_id, **of_group: LongGroup(GroupRow(**of_group), member_id),
)

_MEMBERS = Listing(
    columns="user_id, username, alias, signing_key_fingerprint, role",
    tables="members JOIN users USING (user_id)",
    condition="group_key = :group_key AND member_id <= :last",
    key="member_id",
    id="user_id",
    make=MemberRow,
)


def of_user(connection: sqlite3.Connection, user_id: bytes, span: Span) -> ListPart[GroupWithMembers]:
    """List the user's groups in the order in which they were joined.

    ``ListPart.long`` is a LongGroup. Raises NotListedError.
    """
    limited_span = replace(span, rows=min(span.most_rows, span.size // GROUP_BYTES))
    own = _OWN_GROUPS.read(connection, limited_span, {"user_id": user_id})
    part_members = _members(connection, user_id, own, span.size - min(own.size, span.size // 2))
    items: list[GroupWithMembers] = []
    last = None
    for each in own.items:
        if each.member_id == part_members.cut_at:
            if not items:
                return ListPart([], each.member_id, own.is_end and len(own.items) == 1, long=each)
            return ListPart(items, last, is_end=False, size=own.size + part_members.size)
        last = each.member_id
        items.append(GroupWithMembers(**vars(each.group), members=part_members.by_group.get(last, [])))
    return ListPart(items, own.last, own.is_end, own.size + part_members.size)


def _members(connection: sqlite3.Connection, user_id: bytes, own: ListPart[LongGroup], size: int) -> _PartMembers:
    """Read the members of the groups in ``own``, up to about ``size`` bytes."""
    part_members = _PartMembers()
    if not own.items:
        return part_members
    # CROSS JOIN fixes the join order, in which the rows are sorted by the indexes.
    rows = connection.execute(
        "SELECT own.member_id, users.user_id, username, alias, signing_key_fingerprint, other.role"
        " FROM members AS own CROSS JOIN members AS other USING (group_key)"
        " CROSS JOIN users ON users.user_id = other.user_id"
        " WHERE own.user_id = ? AND own.member_id BETWEEN ? AND ? ORDER BY own.member_id, other.member_id",
        (user_id, own.items[0].member_id, own.items[-1].member_id),
    )
    with closing(rows):
        for row in rows:
            own_key, *values = row
            if part_members.size >= size:
                part_members.cut_at = own_key
                break
            part_members.size += estimated_size(row)
            part_members.by_group.setdefault(own_key, []).append(MemberRow(*values))
    return part_members


def members(connection: sqlite3.Connection, group_key: int, last: int, span: Span) -> ListPart[MemberRow]:
    """List the members of a group up to the key ``last``, inclusive, in the order in which they joined."""
    return _MEMBERS.read(connection, span, {"group_key": group_key, "last": last})


def measure(connection: sqlite3.Connection, group_key: int, after: int) -> MembersSize:
    """Measure the next MEASURED_ROWS members of a group, after the key ``after``."""
    row = connection.execute(
        "SELECT count(*), ifnull(sum(length(CAST(username || alias || signing_key_fingerprint AS BLOB))), 0),"
        " max(member_id) FROM (SELECT member_id, username, alias, signing_key_fingerprint"
        " FROM members JOIN users USING (user_id) WHERE group_key = ? AND member_id > ? ORDER BY member_id LIMIT ?)",
        (group_key, after, MEASURED_ROWS),
    ).fetchone()
    return MembersSize(*row)
