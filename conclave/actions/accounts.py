"""Opening an account, beginning and ending a session, what users do with their own account, and operators with any."""

import sqlite3

from conclave.actions.context import Context
from conclave.errors import PasswordWrongError
from conclave.store import accounts, members, sessions, users
from conclave.store.accounts import Account, change_password, disable, enable, reset_password
from conclave.store.key_packages import remove_all as reset
from conclave.store.news import announce, members_of
from conclave.store.sessions import remove as logout
from conclave.store.users import credentials, own_credentials, require_free

__all__ = [
    "change_password",
    "credentials",
    "delete",
    "disable",
    "enable",
    "list_all",
    "login",
    "logout",
    "own_credentials",
    "register",
    "remove",
    "require_free",
    "reset",
    "reset_password",
    "update",
]


def register(connection: sqlite3.Connection, context: Context, username: str, password_hash: str, alias: str) -> bytes:
    """Open an account and return its id. Raises ConflictError if the name is taken."""
    return users.add(connection, username, password_hash, alias, context.now())


def login(
    connection: sqlite3.Connection, context: Context, user_id: bytes, password_hash: str, token_hash: bytes
) -> None:
    """Begin a session of who has shown the password behind ``password_hash``.

    Raises CredentialsWrongError if that is not the user's any more.
    """
    sessions.add(connection, user_id, password_hash, token_hash, context.now(), context.policy.token_ttl_seconds)


def update(connection: sqlite3.Connection, user_id: bytes, alias: str | None) -> None:
    """Change the user's alias, which the members of the user's groups hear of; "" clears it, None leaves it.

    Raises TokenExpiredError if the account is gone.
    """
    users.require(connection, user_id)
    if alias is None:
        return
    users.set_alias(connection, user_id, alias)
    for membership in members.of_user(connection, user_id):
        group_id, everybody = membership.group.group_id, members_of(connection, membership.group.group_key)
        announce(connection, everybody, "group_update", group_id=group_id, update_type="group_settings")


def delete(connection: sqlite3.Connection, context: Context, user_id: bytes, password_hash: str) -> None:
    """Delete the account of who has shown the password behind ``password_hash``.

    Raises PasswordWrongError if that is not the user's any more, TokenExpiredError if the account is gone.
    """
    if users.own_credentials(connection, user_id)[1] != password_hash:
        raise PasswordWrongError
    accounts.delete(connection, user_id, context.now())


def remove(connection: sqlite3.Connection, context: Context, user_id: bytes) -> None:
    """Delete an account for an operator, as its user can. Raises NotFoundError."""
    users.by_id(connection, user_id)
    accounts.delete(connection, user_id, context.now())


def list_all(connection: sqlite3.Connection, context: Context, like: str = "") -> list[Account]:
    """List the accounts whose name or alias contains ``like``, whatever its case, by name.

    All of them at once: a snapshot that lasts as long as a reader of the list would hold cleanup up.
    """
    sought, listed = like.casefold(), accounts.list_all(connection, context.now())
    return [each for each in listed if sought in each.username.casefold() or sought in each.alias.casefold()]
