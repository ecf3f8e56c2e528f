"""Accounts: list them for operators, set a password, disable an account, delete it."""

import sqlite3
from dataclasses import dataclass

from conclave.failpoints import reach
from conclave.store.resources import key_packages
from conclave.store.resources.messages import sent_by


@dataclass(frozen=True)
class Account:
    """What an operator sees of an account. Times are Unix seconds.

    ``last_used_at``: when a stored session was last used, up to a minute late; None without stored sessions.
    ``sessions``: how many sessions have not expired.
    """

    user_id: bytes
    username: str
    alias: str
    created_at: int
    last_used_at: int | None
    groups: int
    sessions: int
    disabled: bool


@dataclass(frozen=True)
class StoredData:
    """What else is stored of an account, for operators.

    ``messages``: application messages in the hot store. ``message_bytes``: of their bodies. ``archived_groups``: in how
    many groups the archive may have messages of the account; how many, only the archive itself could tell.
    ``invites``: those that wait for this user. ``holds``: the numbers of the legal holds on the user.
    """

    messages: int
    message_bytes: int
    archived_groups: int
    key_packages: int
    invites: int
    welcomes: int
    holds: list[int]


def list_all(connection: sqlite3.Connection, now: int, user_id: bytes | None = None) -> list[Account]:
    """List all accounts, ordered by name; or only the one of ``user_id``, if there is one.

    ``now``: Unix seconds; a session counts if it expires after this second.
    """
    rows = connection.execute(
        "SELECT user_id, username, alias, created_at, disabled,"
        " (SELECT max(last_used_at) FROM sessions WHERE sessions.user_id = users.user_id) AS last_used_at,"
        " (SELECT count(*) FROM sessions WHERE sessions.user_id = users.user_id AND expires_at > ?) AS sessions,"
        " (SELECT count(*) FROM members WHERE members.user_id = users.user_id) AS groups"
        f" FROM users {'WHERE user_id = ?' if user_id else ''} ORDER BY username",
        (now, user_id) if user_id else (now,),
    )
    return [Account(**dict(row) | {"disabled": bool(row["disabled"])}) for row in rows]


def kept(connection: sqlite3.Connection, user_id: bytes, invites_dead_before: int) -> StoredData:
    """Return what else is stored of an account. Reads an index entry for each of its messages.

    ``invites_dead_before``: those created before this Unix second have expired.
    """
    messages, size = sent_by(connection, user_id)
    archived, packages, invited, welcomed = connection.execute(
        "SELECT (SELECT count(*) FROM archive_senders WHERE sender_id = ?1),"
        " (SELECT count(*) FROM key_packages WHERE user_id = ?1),"
        " (SELECT count(*) FROM invites WHERE invitee_id = ?1 AND created_at >= ?2),"
        " (SELECT count(*) FROM welcomes WHERE user_id = ?1)",
        (user_id, invites_dead_before),
    ).fetchone()
    holds = connection.execute("SELECT hold_id FROM holds WHERE user_id = ? ORDER BY hold_id", (user_id,))
    return StoredData(
        messages,
        size,
        archived,
        packages,
        invited,
        welcomed,
        [row[0] for row in holds],
    )


def set_password(connection: sqlite3.Connection, user_id: bytes, new: str, former: str | None = None) -> bool:
    """Replace a password's hash by ``new``; tell whether that was done.

    ``former``: what the stored hash has to be; None: any.
    """
    changed = connection.execute(
        "UPDATE users SET password_hash = ?1 WHERE user_id = ?2 AND password_hash = ifnull(?3, password_hash)",
        (new, user_id, former),
    )
    return changed.rowcount > 0


def set_disabled(connection: sqlite3.Connection, user_id: bytes, *, disabled: bool) -> None:
    """Stop a user from logging in, or let the user log in again."""
    connection.execute("UPDATE users SET disabled = ? WHERE user_id = ?", (disabled, user_id))


def remove(connection: sqlite3.Connection, user_id: bytes, now: int) -> None:
    """Delete an account, with its key packages, which hides its application messages at once.

    A tombstone tells cleanup to erase them. Its commits stay, since the other members cannot continue without them.
    """
    key_packages.remove_all(connection, user_id)
    connection.execute("DELETE FROM users WHERE user_id = ?", (user_id,))
    reach("delete_account.removed")
    connection.execute("INSERT INTO user_tombstones (user_id, created_at) VALUES (?, ?)", (user_id, now))
