"""The export of a user's data from the store: metadata at once, messages page by page.

The export under a legal hold includes hidden messages, and also works for deleted accounts.
"""

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

from conclave.retention import stretches, visibility
from conclave.retention.policy import FOREVER
from conclave.retention.stretches import Stretch
from conclave.store import bodies
from conclave.store.engine.sqlite import placeholders
from conclave.store.resources import groups, members, users
from conclave.store.resources.audit import OF_USERS, AuditAction
from conclave.store.resources.groups import GroupRow
from conclave.store.sender_index import SENT

WINDOW = 20_000
"""A page reads at most 20,000 messages of a group, to keep read transactions short."""

PAGE_MESSAGES = 2_000
PAGE_BYTES = 8 * 1024 * 1024
"""A page has at most 2,000 messages, and ends with the first body beyond 8 MiB."""


class OwnMessage(NamedTuple):
    """A message sent by the user."""

    sequence_num: int
    created_at: int
    """Unix seconds."""
    is_commit: bool
    self_destruct_seconds: int
    body: bytes


@dataclass(frozen=True)
class ExportPage:
    """Messages in order of their numbers."""

    messages: Sequence[OwnMessage]
    after: int | None
    """The number after which the next page begins; None: this is the last one."""


def about(connection: sqlite3.Connection, user_id: bytes, invites_dead_before: int) -> dict[str, Any]:
    """Return all data about a user except the messages, as a JSON object. For a deleted account it has fewer fields.

    It contains no passwords, tokens or hashes of them. Times are Unix seconds. ``invites_dead_before``: invites created
    before this second have expired.
    """
    account = _rows(
        connection,
        "SELECT user_id, username, alias, signing_key_fingerprint, created_at, disabled FROM users WHERE user_id = ?",
        user_id,
    )
    return {
        "account": account[0] if account else {"user_id": str(UUID(bytes=user_id)), "deleted": True},
        "sessions": _rows(
            connection,
            "SELECT public_id AS session_id, created_at, last_used_at, expires_at FROM sessions WHERE user_id = ?"
            " ORDER BY session_id",
            user_id,
        ),
        "memberships": _rows(
            connection,
            "SELECT group_id, group_name, groups.alias AS group_alias, role, joined_at, watermark, read_up_to"
            " FROM members JOIN groups USING (group_key) WHERE user_id = ? ORDER BY member_id",
            user_id,
        ),
        "key_packages": [
            {"is_last_resort": bool(is_last_resort), "body": bodies.get(connection, body_id)}
            for is_last_resort, body_id in connection.execute(
                "SELECT is_last_resort, package_body FROM key_packages WHERE user_id = ? ORDER BY key_package_id",
                (user_id,),
            ).fetchall()
        ],
        "invites": _rows(
            connection,
            "SELECT invite_id, group_id, inviter_id, invitee_id, invites.created_at FROM invites"
            " JOIN groups USING (group_key) WHERE (invitee_id = ?1 OR inviter_id = ?1) AND invites.created_at >= ?2"
            " ORDER BY invite_key",
            user_id,
            invites_dead_before,
        ),
        "welcomes": _rows(
            connection,
            "SELECT welcome_id, group_id FROM welcomes JOIN groups USING (group_key) WHERE user_id = ?"
            " ORDER BY welcome_key",
            user_id,
        ),
        "bans": _rows(
            connection,
            "SELECT group_id, banned_at, banned_by FROM bans JOIN groups USING (group_key) WHERE user_id = ?"
            " ORDER BY ban_key",
            user_id,
        ),
        "bans_made": _rows(
            connection,
            "SELECT group_id, user_id AS banned_id, banned_at FROM bans JOIN groups USING (group_key)"
            " WHERE banned_by = ? ORDER BY ban_key",
            user_id,
        ),
        "expiries_set": _rows(
            connection, "SELECT group_id FROM groups WHERE expiry_set_by = ? ORDER BY group_key", user_id
        ),
        "holds": _rows(
            connection,
            "SELECT hold_id AS hold, reason, added_by, added_at FROM holds WHERE user_id = ? ORDER BY hold_id",
            user_id,
        ),
        "audit": _audit_entries(connection, user_id),
    }


def _audit_entries(connection: sqlite3.Connection, user_id: bytes) -> list[dict[str, Any]]:
    """Return the audit entries about the user, the user's decisions as an admin, and the user's messages."""
    rows = connection.execute(
        "SELECT audit_id AS entry, at, actor, action, subject_id, subject, details FROM audit"
        f" WHERE subject_id = ? AND action IN ({placeholders(OF_USERS)}) OR details ->> '$.admin_id' = ?"
        f" OR (action = '{AuditAction.MESSAGE_TAKEN_BACK}' AND details ->> '$.sender_id' = ?) ORDER BY audit_id",
        (user_id, *OF_USERS, str(UUID(bytes=user_id)), str(UUID(bytes=user_id))),
    )
    return [
        {name: _plain(name, row[name]) for name in row.keys()} | {"details": json.loads(row["details"])}  # noqa: SIM118 - a row iterates over its values
        for row in rows
    ]


def _rows(connection: sqlite3.Connection, query: str, *values: bytes | int) -> list[dict[str, Any]]:
    rows = connection.execute(query, values).fetchall()
    return [{name: _plain(name, row[name]) for name in row.keys()} for row in rows]  # noqa: SIM118 - as above


def _plain(name: str, value: Any) -> Any:
    if name == "disabled":
        return bool(value)
    return str(UUID(bytes=value)) if isinstance(value, bytes) and len(value) == users.ID_BYTES else value


def groups_of_sender(connection: sqlite3.Connection, user_id: bytes) -> list[bytes]:
    """Return the ids of the groups in which the user may have messages.

    A group that the user has left, and in which only the archive has messages of the user, is included only if there
    are application messages among them.
    """
    rows = connection.execute(
        f"SELECT group_id FROM groups WHERE group_key IN (SELECT group_key FROM {SENT} WHERE sender_id = ?1"
        " UNION SELECT group_key FROM archive_senders WHERE sender_id = ?1"
        " UNION SELECT group_key FROM members WHERE user_id = ?1) ORDER BY group_key",
        (user_id,),
    )
    return [row[0] for row in rows]


def stretch(connection: sqlite3.Connection, group_id: bytes, now: int) -> Stretch | None:
    """Return the visible stretch of a group's archived messages; None if there is none, or the group is deleted."""
    group = groups.find(connection, group_id)
    return stretches.stretch(connection, group, 0, visibility.of_group(connection, group, now)) if group else None


def page(connection: sqlite3.Connection, group_id: bytes, user_id: bytes, after: int, now: int) -> ExportPage | None:
    """Return messages of the user in the hot store with numbers greater than ``after``, as visible to the user.

    Expired and redacted messages are omitted. None: the group is deleted.
    """
    group = groups.find(connection, group_id)
    if group is None:
        return None
    view = visibility.of_group(connection, group, now)
    begin = visibility.pass_hidden(connection, group, view, max(after, group.archived_seq))
    end = _window_end(connection, group, begin)
    reader_messages = _reader_messages(connection, group, user_id)
    condition, _ = view.hot
    rows = connection.execute(
        f"SELECT sequence_num, created_at, is_commit, ifnull(seconds, 0) FROM ({reader_messages.query})"
        f" WHERE group_key = :group_key AND sender_id = :user_id AND sequence_num <= :end AND {condition}"
        f" AND {reader_messages.condition} ORDER BY sequence_num LIMIT :limit",
        {
            "group_key": group.group_key,
            "user_id": user_id,
            "end": end,
            "limit": PAGE_MESSAGES,
            "now": now,
            **reader_messages.values,
            **view.bounds(begin),
        },
    ).fetchall()
    read = _page(connection, group.group_key, group_id, rows, end)
    return read if read.after is not None and read.after < group.last_seq else ExportPage(read.messages, None)


def _page(
    connection: sqlite3.Connection, group_key: int, group_id: bytes, rows: Sequence[sqlite3.Row], end: int
) -> ExportPage:
    """Return the page of ``rows``, without messages whose key is destroyed. ``end``: the last number of its window."""
    messages: list[OwnMessage] = []
    size = 0
    for number, created_at, is_commit, seconds in rows:
        body = bodies.of_message(connection, group_key, group_id, number)
        if body is not None:
            messages.append(OwnMessage(number, created_at, bool(is_commit), seconds, body))
            size += len(body)
        if size > PAGE_BYTES:
            return ExportPage(messages, number)
    return ExportPage(messages, rows[-1]["sequence_num"] if len(rows) == PAGE_MESSAGES else end)


def _window_end(connection: sqlite3.Connection, group: GroupRow, begin: int) -> int:
    """Return the number of the last message of a page's window, which begins after the number ``begin``.

    It counts messages, not numbers: after a restore, a group's numbers continue billions higher.
    """
    row = connection.execute(
        "SELECT sequence_num FROM messages WHERE group_key = ? AND sequence_num > ? ORDER BY sequence_num"
        " LIMIT 1 OFFSET ?",
        (group.group_key, begin, WINDOW - 1),
    ).fetchone()
    return int(row[0]) if row else group.last_seq


def _reader_messages(connection: sqlite3.Connection, group: GroupRow, user_id: bytes) -> visibility.ReaderMessages:
    """Return the filter for self-destructing messages. A user who has left the group sees none of them."""
    member = members.membership(connection, group.group_id, user_id)
    member_id, joined_after = (member.member_id, member.joined_after) if member else (0, FOREVER)
    return visibility.of_reader(member_id, joined_after, include_redacted=False)


class HeldGroup(NamedTuple):
    """A group, existing or deleted, that may have stored messages."""

    group_key: int
    group_id: bytes
    archived_seq: int
    """Messages up to this number are in the archive; 0 in a deleted group, which has no border."""
    is_deleted: bool


_STORED_GROUPS = """
SELECT group_key, group_id, archived_seq, FALSE AS is_deleted FROM groups
UNION ALL SELECT group_key, group_id, 0, TRUE FROM tombstones
"""


def held_groups(connection: sqlite3.Connection) -> dict[int, HeldGroup]:
    """Return all groups that may have stored messages, including deleted ones, by key."""
    return {row[0]: HeldGroup(*row) for row in connection.execute(_STORED_GROUPS)}


def held_groups_of_sender(connection: sqlite3.Connection, user_id: bytes) -> list[HeldGroup]:
    """Return the groups, including deleted ones, in which the hot store has messages of a user."""
    rows = connection.execute(
        f"SELECT * FROM ({_STORED_GROUPS}) WHERE group_key IN (SELECT group_key FROM {SENT} WHERE sender_id = ?)"
        " ORDER BY group_key",
        (user_id,),
    )
    return [HeldGroup(*row) for row in rows]


def held_page(connection: sqlite3.Connection, group: HeldGroup, user_id: bytes, after: int) -> ExportPage:
    """Return messages of a user in the hot store with numbers greater than ``after``, including hidden ones."""
    begin = max(after, group.archived_seq)
    end = connection.execute(
        "SELECT max(sequence_num) FROM (SELECT sequence_num FROM messages WHERE group_key = ? AND sequence_num > ?"
        " ORDER BY sequence_num LIMIT ?)",
        (group.group_key, begin, WINDOW),
    ).fetchone()[0]
    if end is None:
        return ExportPage([], None)
    rows = connection.execute(
        "SELECT sequence_num, messages.created_at, is_commit, ifnull(seconds, 0) FROM messages"
        " LEFT JOIN self_destructing USING (group_key, sequence_num) WHERE group_key = ? AND sender_id = ?"
        " AND sequence_num > ? AND sequence_num <= ? ORDER BY sequence_num LIMIT ?",
        (group.group_key, user_id, begin, end, PAGE_MESSAGES),
    ).fetchall()
    return _page(connection, group.group_key, group.group_id, rows, end)
