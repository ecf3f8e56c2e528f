"""An account as a whole: its password, and its end."""

import sqlite3

from conclave.errors import PasswordWrongError
from conclave.failpoints import reach
from conclave.store import invites, key_packages, members, sessions, users


def change_password(connection: sqlite3.Connection, user_id: bytes, former: str, new: str) -> None:
    """Replace the hash ``former`` by ``new`` and end every session.

    Raises PasswordWrongError if ``former`` is not the stored one any more, TokenExpiredError if the account is gone.
    """
    users.require(connection, user_id)
    changed = connection.execute(
        "UPDATE users SET password_hash = ? WHERE user_id = ? AND password_hash = ?", (new, user_id, former)
    )
    if not changed.rowcount:
        raise PasswordWrongError
    sessions.remove_all(connection, user_id)


def delete(connection: sqlite3.Connection, user_id: bytes, now: int) -> None:
    """Delete an account with its memberships, invites, key packages and sessions.

    Its application messages are hidden at once; a tombstone leaves them to cleanup. Commits stay: the others could
    not go on without them.
    """
    for membership in members.of_user(connection, user_id):
        members.remove(connection, membership, now)
    reach("delete_account.left")
    invites.remove_of_user(connection, user_id)
    key_packages.remove_all(connection, user_id)
    sessions.remove_all(connection, user_id)
    connection.execute("DELETE FROM users WHERE user_id = ?", (user_id,))
    reach("delete_account.removed")
    connection.execute("INSERT INTO user_tombstones (user_id, created_at) VALUES (?, ?)", (user_id, now))
