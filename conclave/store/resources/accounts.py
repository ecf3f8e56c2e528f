"""Accounts: list, set the password, disable, delete."""

import sqlite3
from dataclasses import dataclass

from conclave.failpoints import reach
from conclave.store.resources import key_packages
from conclave.store.resources.messages import usage_of_sender


@dataclass(frozen=True)
class Account:
    """An account as shown to operators. Times are Unix seconds.

    ``last_used_at``: the last use of a stored session, with a delay of up to a minute; None without stored sessions.
    ``sessions``: the number of sessions that have not expired.
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
    """Other data that is stored for an account, as shown to operators.

    ``messages``: application messages in the hot store. ``message_bytes``: the size of their bodies.
    ``archived_groups``: the number of groups in which the archive may have messages of the account. ``invites``: those
    that the user has received. ``holds``: the ids of the legal holds on the user.
    """

    messages: int
    message_bytes: int
    archived_groups: int
    key_packages: int
    invites: int
    welcomes: int
    holds: list[int]


def list_all(connection: sqlite3.Connection, now: int, user_id: bytes | None = None) -> list[Account]:
    """List all accounts, ordered by name; or only that of ``user_id``, if it exists.

    ``now``: Unix seconds; only sessions that expire later count.
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


def stored_data(connection: sqlite3.Connection, user_id: bytes, invites_dead_before: int) -> StoredData:
    """Return the other data that is stored for an account. Reads an index entry for each of its messages.

    ``invites_dead_before``: invites created before this Unix second have expired.
    """
    messages, size = usage_of_sender(connection, user_id)
    archived_groups, key_package_count, invite_count, welcome_count = connection.execute(
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
        archived_groups,
        key_package_count,
        invite_count,
        welcome_count,
        [row[0] for row in holds],
    )


def set_password(connection: sqlite3.Connection, user_id: bytes, new: str, former: str | None = None) -> bool:
    """Set the password hash to ``new``; return whether it was set.

    ``former``: the required current hash; None: any.
    """
    cursor = connection.execute(
        "UPDATE users SET password_hash = ?1 WHERE user_id = ?2 AND password_hash = ifnull(?3, password_hash)",
        (new, user_id, former),
    )
    return cursor.rowcount > 0


def set_disabled(connection: sqlite3.Connection, user_id: bytes, *, disabled: bool) -> None:
    """Disable or enable an account."""
    connection.execute("UPDATE users SET disabled = ? WHERE user_id = ?", (disabled, user_id))


def remove(connection: sqlite3.Connection, user_id: bytes, now: int) -> None:
    """Delete an account and its key packages. Its application messages are hidden at once.

    Because of the tombstone, cleanup erases them. Commits stay, since the other members cannot continue without them.
    """
    key_packages.remove_all(connection, user_id)
    connection.execute("DELETE FROM users WHERE user_id = ?", (user_id,))
    reach("delete_account.removed")
    connection.execute("INSERT INTO user_tombstones (user_id, created_at) VALUES (?, ?)", (user_id, now))
