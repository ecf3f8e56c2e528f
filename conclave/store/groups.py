"""Groups: create one, find it, change its settings and group info, delete it."""

import sqlite3
from dataclasses import dataclass, replace
from uuid import uuid4

from conclave.budget import Share
from conclave.clock import Clock
from conclave.errors import BadRequestError, ConflictError, NotFoundError
from conclave.failpoints import reach
from conclave.retention.policy import exceeds_cap
from conclave.retention.resolve import PolicySettings
from conclave.store import bodies, marks, policies, state, users
from conclave.store.news import announce

LONGEST_NAME = 64
"""A group name has at most 64 characters."""


@dataclass(frozen=True)
class Group:
    """A group without its members.

    See marks.py for ``last_seq``, ``gone_below`` and ``expired_before``, archive/stretches.py for ``archived_seq``.
    ``self_destructs``: 1 if it has self-destructing messages.
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


@dataclass(frozen=True)
class PublicGroup:
    """What every user may learn of a public group."""

    group_id: bytes
    group_name: str
    alias: str
    member_count: int


@dataclass(frozen=True)
class GroupChanges:
    """New settings of a group. None leaves a setting as it is; "" clears the alias."""

    alias: str | None = None
    group_name: str | None = None
    visibility: str | None = None
    message_expiry_seconds: int | None = None
    min_lifetime_seconds: int | None = None

    @property
    def concern_retention(self) -> bool:
        """Whether they name how long messages live."""
        return self.message_expiry_seconds is not None or self.min_lifetime_seconds is not None


COLUMNS = (
    "groups.group_key, group_id, group_name, groups.alias, visibility, message_expiry_seconds, mls_group_id,"
    " group_info_body, last_seq, gone_below, expired_before, archived_seq, min_lifetime_seconds, self_destructs"
)


def add(connection: sqlite3.Connection, creator_id: bytes, group_name: str, alias: str, now: int) -> bytes:
    """Create a group whose only member and admin is its creator; return its id. Raises ConflictError."""
    users.require(connection, creator_id)
    _require_free(connection, group_name)
    group_id = uuid4().bytes
    group_key = connection.execute(
        "INSERT INTO groups (group_id, group_name, alias, created_at) VALUES (?, ?, ?, ?)",
        (group_id, group_name, alias, now),
    ).lastrowid
    reach("create_group.added")
    connection.execute(
        "INSERT INTO members (group_key, user_id, role, joined_at) VALUES (?, ?, 'admin', ?)",
        (group_key, creator_id, now),
    )
    return group_id


def by_id(connection: sqlite3.Connection, group_id: bytes) -> Group:
    """Find a group. Raises NotFoundError."""
    row = connection.execute(f"SELECT {COLUMNS} FROM groups WHERE group_id = ?", (group_id,)).fetchone()
    if row is None:
        raise NotFoundError("no such group")
    return Group(**row)


def by_name(connection: sqlite3.Connection, name: str) -> Group:
    """Find a group by its name. Raises NotFoundError."""
    row = connection.execute(f"SELECT {COLUMNS} FROM groups WHERE group_name = ?", (name,)).fetchone()
    if row is None:
        raise NotFoundError("no such group")
    return Group(**row)


def list_public(connection: sqlite3.Connection, pattern: str, share: Share) -> list[PublicGroup]:
    """List the public groups whose name contains ``pattern``, ordered by name. Raises NoRoomError.

    Upper and lower case of ASCII letters are the same.
    """
    if len(pattern) > LONGEST_NAME:
        return []
    escaped = pattern.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    rows = connection.execute(
        "SELECT group_id, group_name, alias,"
        " (SELECT count(*) FROM members WHERE members.group_key = groups.group_key) AS member_count"
        " FROM groups WHERE visibility = 'public' AND group_name LIKE ? ESCAPE '\\' ORDER BY group_name",
        (f"%{escaped}%",),
    )
    return [PublicGroup(**row) for row in share.count(rows)]


def change(
    connection: sqlite3.Connection, group: Group, changes: GroupChanges, policy: PolicySettings, clock: Clock
) -> None:
    """Apply all of ``changes``, or nothing of them. Raises what ``as_changed`` raises."""
    now = clock.now()  # before the clock is looked at: a jump in between must not settle marks
    changed = as_changed(connection, group, changes, policy, clock)
    if changed.message_expiry_seconds != group.message_expiry_seconds:
        old, new = (policies.of_group(each, policy) for each in (group, changed))
        marks.settle(connection, group.group_key, old, new, now)
        reach("update_group.settled")
    connection.execute(
        "UPDATE groups SET alias = ?, group_name = ?, visibility = ?, message_expiry_seconds = ?,"
        " min_lifetime_seconds = ? WHERE group_key = ?",
        (
            changed.alias,
            changed.group_name,
            changed.visibility,
            changed.message_expiry_seconds,
            changed.min_lifetime_seconds,
            group.group_key,
        ),
    )


def as_changed(
    connection: sqlite3.Connection, group: Group, changes: GroupChanges, policy: PolicySettings, clock: Clock
) -> Group:
    """Return the group as ``changes`` would make it, if they may be made now. It only reads.

    The expiry does not change while the clock is wrong: a wrong clock may move no mark, and without a mark it would be
    forgotten what the old expiry has hidden. The least lifetime moves no mark, and nothing is erased while the clock is
    wrong, so it may change.

    Raises ConflictError if the name is taken, BadRequestError if the expiry exceeds the server's cap or is below the
    least lifetime, and UntrustedClockError if the clock is wrong.
    """
    changed = replace(group, **{name: value for name, value in vars(changes).items() if value is not None})
    if changed.group_name != group.group_name:
        _require_free(connection, changed.group_name)
    if changes.message_expiry_seconds is not None:
        _require_within_cap(policy.message_retention, changed.message_expiry_seconds)
    if changes.concern_retention:
        _require_in_order(changed)
    if changed.message_expiry_seconds != group.message_expiry_seconds:
        state.require_clock(connection, clock.read())
    return changed


def set_mls_group_id(connection: sqlite3.Connection, group: Group, mls_group_id: str) -> None:
    """Set the group's MLS id, if it has none yet. A later one is ignored."""
    connection.execute(
        "UPDATE groups SET mls_group_id = ? WHERE group_key = ? AND mls_group_id = ''", (mls_group_id, group.group_key)
    )


def set_group_info(connection: sqlite3.Connection, group: Group, group_info: bytes) -> None:
    """Replace the group info, and erase the former one."""
    adopt_group_info(connection, group.group_key, bodies.put(connection, group_info))


def adopt_group_info(connection: sqlite3.Connection, group_key: int, body_id: int) -> None:
    """Make the stored body ``body_id`` the group info, and erase the former one."""
    former = connection.execute("SELECT group_info_body FROM groups WHERE group_key = ?", (group_key,)).fetchone()[0]
    if former is not None:
        bodies.erase(connection, [former])
    connection.execute("UPDATE groups SET group_info_body = ? WHERE group_key = ?", (body_id, group_key))


def remove(connection: sqlite3.Connection, group: Group, now: int) -> None:
    """Delete a group, which hides it at once. A tombstone tells cleanup to erase its messages.

    Invited users hear of it here; the caller tells those who were members.
    """
    key = (group.group_key,)
    carried = connection.execute(
        "SELECT group_info_body FROM groups WHERE group_key = ?1 AND group_info_body IS NOT NULL"
        " UNION ALL SELECT welcome_body FROM welcomes WHERE group_key = ?1"
        " UNION ALL SELECT commit_body FROM invites WHERE group_key = ?1"
        " UNION ALL SELECT welcome_body FROM invites WHERE group_key = ?1"
        " UNION ALL SELECT group_info_body FROM invites WHERE group_key = ?1",
        key,
    ).fetchall()
    invitees = connection.execute("SELECT invitee_id FROM invites WHERE group_key = ?", key).fetchall()
    bodies.erase(connection, [row[0] for row in carried])
    reach("delete_group.bodies_erased")
    connection.execute("DELETE FROM welcomes WHERE group_key = ?", key)
    connection.execute("DELETE FROM groups WHERE group_key = ?", key)
    reach("delete_group.removed")
    connection.execute(
        "INSERT INTO tombstones (group_key, created_at, group_id, message_expiry_seconds, min_lifetime_seconds)"
        " VALUES (?, ?, ?, ?, ?)",
        (group.group_key, now, group.group_id, group.message_expiry_seconds, group.min_lifetime_seconds),
    )
    announce(connection, [row[0] for row in invitees], "invite_cancelled", group_id=group.group_id)


def _require_free(connection: sqlite3.Connection, group_name: str) -> None:
    if connection.execute("SELECT 1 FROM groups WHERE group_name = ?", (group_name,)).fetchone():
        raise ConflictError("this group name is taken")


def _require_within_cap(server: int, requested: int) -> None:
    if exceeds_cap(server, requested):
        text = f"message_expiry_seconds must not exceed the server's retention of {server} seconds"
        raise BadRequestError(text, fields={"message_expiry_seconds": [text]})


def _require_in_order(group: Group) -> None:
    expiry, least = group.message_expiry_seconds, group.min_lifetime_seconds
    if 0 < expiry < least:
        text = f"message_expiry_seconds ({expiry}) must not be less than min_lifetime_seconds ({least})"
        raise BadRequestError(text, fields={"message_expiry_seconds": [text], "min_lifetime_seconds": [text]})
