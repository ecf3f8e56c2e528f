"""Groups: create, find, change the settings and the group info, delete.

A group info that is encoded as in RFC 9420 is parsed for its MLS group id and epoch.
"""

import sqlite3
import struct
from dataclasses import dataclass
from typing import NamedTuple
from uuid import uuid4

from conclave.failpoints import reach
from conclave.retention import marks
from conclave.retention.policy import GroupPolicy
from conclave.retention.resolve import PolicySettings
from conclave.retention.rules import POLICY_COLUMNS, policy_of_row
from conclave.store import bodies
from conclave.store.engine.faults import StoreFullError
from conclave.store.lists import Listing, ListPart, Span

_HEAD = struct.Struct(">HHHH")
"""Version and wire format of the MLSMessage, then version and cipher suite of the GroupContext (sections 6 and 8.1)."""

_MLS10 = 1
_GROUP_INFO = 4
_LONGEST_LENGTH = 4
_EPOCH = struct.Struct(">Q")


class Epoch(NamedTuple):
    """An epoch of an MLS group."""

    mls_group: bytes
    number: int


def epoch_of(group_info: bytes) -> Epoch | None:
    """Return the epoch of a group info; None if it is not an MLSMessage of MLS 1.0 with an unencrypted GroupInfo.

    Only the fields up to the epoch are parsed.
    """
    if len(group_info) <= _HEAD.size:
        return None
    version, wire_format, of_context, _ = _HEAD.unpack_from(group_info)
    if (version, wire_format, of_context) != (_MLS10, _GROUP_INFO, _MLS10):
        return None
    # The length of the id takes 1, 2 or 4 bytes, given by its first two bits, and must be minimal (section 2.1.2).
    first_byte = group_info[_HEAD.size]
    size = 1 << (first_byte >> 6)
    begin = _HEAD.size + size
    if size > _LONGEST_LENGTH or len(group_info) < begin:
        return None
    length = int.from_bytes(group_info[_HEAD.size : begin], "big") & ((1 << (8 * size - 2)) - 1)
    end = begin + length
    is_not_minimal = size > 1 and length < 1 << (4 * size - 2)
    if is_not_minimal or len(group_info) < end + _EPOCH.size:
        return None
    return Epoch(group_info[begin:end], _EPOCH.unpack_from(group_info, end)[0])


def is_outdated(group_info: bytes, by: bytes, *, with_commit: bool) -> bool:
    """Return whether a group info is of an earlier epoch of the same MLS group than the group info ``by``.

    ``with_commit``: it was sent with the commit that starts its epoch. Then it is also outdated if ``by`` has the same
    epoch: the first commit for an epoch counts. Returns False if either cannot be parsed.
    """
    own, other = epoch_of(group_info), epoch_of(by)
    return bool(own and other and own.mls_group == other.mls_group and own.number < other.number + with_commit)


LONGEST_NAME = 64
"""A group name has at most 64 characters."""


@dataclass(frozen=True)
class GroupRow:
    """A group without its members.

    For ``last_seq``, ``gone_below`` and ``expired_before`` see ``retention/marks.py``, for ``archived_seq``
    ``retention/stretches.py``. ``self_destructs``: the number of its self-destructing messages. ``taken_back_count``:
    the number of withdrawn messages that are not erased yet, in both tiers. The columns from ``effective_expiry`` on
    are the policy.
    """

    group_key: int
    group_id: bytes
    group_name: str
    alias: str
    visibility: str
    message_expiry_seconds: int
    mls_group_id: str
    group_info_body: int | None
    last_seq: int
    gone_below: int
    expired_before: int
    archived_seq: int
    min_lifetime_seconds: int = -1
    self_destructs: int = 0
    taken_back_count: int = 0
    effective_expiry: int = -1
    least_lifetime: int = 0
    hold_limit: int = -1
    keeps_commits: int = 0
    erases: int = 0
    policy_source: str = ""

    @property
    def policy(self) -> GroupPolicy:
        """The policy in force."""
        return policy_of_row(
            *(self.effective_expiry, self.least_lifetime, self.hold_limit),
            *(self.keeps_commits, self.erases, self.policy_source),
        )


@dataclass(frozen=True)
class PublicGroupRow:
    """A public group as shown to all users."""

    group_id: bytes
    group_name: str
    alias: str
    member_count: int


@dataclass(frozen=True)
class GroupChanges:
    """New settings of a group. None leaves a setting unchanged; "" clears the alias."""

    alias: str | None = None
    group_name: str | None = None
    visibility: str | None = None
    message_expiry_seconds: int | None = None
    min_lifetime_seconds: int | None = None

    @property
    def concern_retention(self) -> bool:
        """Whether retention settings are changed."""
        return self.message_expiry_seconds is not None or self.min_lifetime_seconds is not None


COLUMNS = (
    "groups.group_key, group_id, group_name, groups.alias, visibility, message_expiry_seconds, mls_group_id,"
    " group_info_body, last_seq, gone_below, expired_before, archived_seq, min_lifetime_seconds, self_destructs,"
    f" taken_back_count, {POLICY_COLUMNS}"
)


_PUBLIC = Listing(
    columns="group_id, group_name, alias,"
    " (SELECT count(*) FROM members WHERE members.group_key = groups.group_key) AS member_count",
    tables="groups",
    condition="visibility = 'public' AND group_name LIKE :pattern ESCAPE '\\'",
    key="group_name",
    id="group_id",
    make=PublicGroupRow,
)


def add(
    connection: sqlite3.Connection,
    creator_id: bytes,
    group_name: str,
    alias: str,
    now: int,
    settings: PolicySettings,
) -> bytes:
    """Create a group whose only member and admin is its creator; return its id. The name must be free.

    Raises StoreFullError if the group keys are exhausted: message ids have 63 bits, see ``bodies.NUMBER_BITS``.
    """
    group_id = uuid4().bytes
    group_key = connection.execute(
        "INSERT INTO groups (group_id, group_name, alias, created_at) VALUES (?, ?, ?, ?) RETURNING group_key",
        (group_id, group_name, alias, now),
    ).fetchone()[0]
    if group_key > bodies.MAX_GROUP_KEY:
        raise StoreFullError(f"{bodies.MAX_GROUP_KEY:,} groups were created, the maximum of a database")
    marks.write(connection, settings, group_key)
    reach("create_group.added")
    connection.execute(
        "INSERT INTO members (group_key, user_id, role, joined_at) VALUES (?, ?, 'admin', ?)",
        (group_key, creator_id, now),
    )
    return group_id


def find(connection: sqlite3.Connection, group_id: bytes) -> GroupRow | None:
    """Find a group by its id."""
    return _group_row(connection.execute(f"SELECT {COLUMNS} FROM groups WHERE group_id = ?", (group_id,)).fetchone())


def find_by_name(connection: sqlite3.Connection, name: str) -> GroupRow | None:
    """Find a group by its name."""
    return _group_row(connection.execute(f"SELECT {COLUMNS} FROM groups WHERE group_name = ?", (name,)).fetchone())


def find_by_key(connection: sqlite3.Connection, group_key: int) -> GroupRow | None:
    """Find a group by its key."""
    return _group_row(connection.execute(f"SELECT {COLUMNS} FROM groups WHERE group_key = ?", (group_key,)).fetchone())


def _group_row(row: sqlite3.Row | None) -> GroupRow | None:
    return GroupRow(**row) if row else None


def list_public(connection: sqlite3.Connection, pattern: str, span: Span) -> ListPart[PublicGroupRow]:
    """List the public groups whose name contains ``pattern``, ordered by name.

    ASCII letters match case-insensitively. Raises NotListedError.
    """
    if len(pattern) > LONGEST_NAME:
        return ListPart([], None, is_end=True)
    escaped_pattern = pattern.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return _PUBLIC.read(connection, span, {"pattern": f"%{escaped_pattern}%"})


def set_settings(connection: sqlite3.Connection, group: GroupRow) -> None:
    """Store the settings of ``group``."""
    connection.execute(
        "UPDATE groups SET alias = ?, group_name = ?, visibility = ?, message_expiry_seconds = ?,"
        " min_lifetime_seconds = ? WHERE group_key = ?",
        (
            group.alias,
            group.group_name,
            group.visibility,
            group.message_expiry_seconds,
            group.min_lifetime_seconds,
            group.group_key,
        ),
    )


def note_expiry_setter(connection: sqlite3.Connection, group_key: int, user_id: bytes) -> None:
    """Store which admin has set the retention of a group."""
    connection.execute("UPDATE groups SET expiry_set_by = ? WHERE group_key = ?", (user_id, group_key))


def expiry_setter(connection: sqlite3.Connection, group_key: int) -> bytes:
    """Return the id of the admin who has set the retention of a group; empty if unknown."""
    cursor = connection.execute("SELECT ifnull(expiry_set_by, x'') FROM groups WHERE group_key = ?", (group_key,))
    user_id: bytes = cursor.fetchone()[0]
    return user_id


def set_mls_group_id(connection: sqlite3.Connection, group: GroupRow, mls_group_id: str) -> None:
    """Set the group's MLS group id, unless it has one already."""
    connection.execute(
        "UPDATE groups SET mls_group_id = ? WHERE group_key = ? AND mls_group_id = ''", (mls_group_id, group.group_key)
    )


def set_group_info(connection: sqlite3.Connection, group_key: int, group_info: bytes, *, with_commit: bool) -> None:
    """Replace the group info, unless the stored one is newer: joining with an outdated one would fail.

    ``with_commit``: see ``is_outdated``. The encryption key stays the same for the lifetime of the group, so that a
    restored older copy of the database has a readable group info with which members can rejoin.
    """
    row = connection.execute("SELECT group_info_body FROM groups WHERE group_key = ?", (group_key,)).fetchone()
    if row[0] is None:
        body_id = bodies.put(connection, group_info)
        connection.execute("UPDATE groups SET group_info_body = ? WHERE group_key = ?", (body_id, group_key))
    elif not is_outdated(group_info, by=bodies.get(connection, row[0]), with_commit=with_commit):
        bodies.replace(connection, row[0], group_info)


def is_superseded(connection: sqlite3.Connection, group: GroupRow, group_info: bytes) -> bool:
    """Return whether another commit has started the epoch of ``group_info``, or a later one."""
    body_id = group.group_info_body
    return body_id is not None and is_outdated(group_info, by=bodies.get(connection, body_id), with_commit=True)


def remove(connection: sqlite3.Connection, group: GroupRow, now: int) -> list[bytes]:
    """Delete a group, which hides it at once. Because of the tombstone, cleanup erases its messages.

    Returns the ids of the users who were invited.
    """
    key = (group.group_key,)
    group_info_rows = connection.execute(
        "SELECT group_info_body FROM groups WHERE group_key = ? AND group_info_body IS NOT NULL", key
    ).fetchall()
    other_body_rows = connection.execute(
        "SELECT welcome_body FROM welcomes WHERE group_key = ?1"
        " UNION ALL SELECT commit_body FROM invites WHERE group_key = ?1"
        " UNION ALL SELECT welcome_body FROM invites WHERE group_key = ?1"
        " UNION ALL SELECT group_info_body FROM invites WHERE group_key = ?1",
        key,
    ).fetchall()
    invitee_rows = connection.execute("SELECT invitee_id FROM invites WHERE group_key = ?", key).fetchall()
    bodies.erase(connection, [row[0] for row in (*group_info_rows, *other_body_rows)])
    reach("delete_group.bodies_erased")
    connection.execute("DELETE FROM welcomes WHERE group_key = ?", key)
    columns = f"group_key, group_id, message_expiry_seconds, min_lifetime_seconds, {POLICY_COLUMNS}"
    connection.execute(
        f"INSERT INTO tombstones ({columns}, created_at) SELECT {columns}, ? FROM groups WHERE group_key = ?",
        (now, *key),
    )
    reach("delete_group.removed")
    connection.execute("DELETE FROM groups WHERE group_key = ?", key)
    return [row[0] for row in invitee_rows]
