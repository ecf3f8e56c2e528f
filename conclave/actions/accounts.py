"""Accounts and logins: what users do with their own account, and operators with any account."""

import sqlite3
from collections.abc import Callable
from typing import Concatenate, ParamSpec

from conclave.actions.context import Context
from conclave.errors import PasswordWrongError
from conclave.store import accounts, audit, members, outbox, registration_tokens, sessions, users
from conclave.store.accounts import Account, Kept, change_password, disable, enable, reset_password
from conclave.store.key_packages import remove_all as reset
from conclave.store.news import announce, members_of
from conclave.store.sessions import remove as logout
from conclave.store.users import credentials, own_credentials, require_free

__all__ = [
    "Account",
    "Kept",
    "change_password",
    "create",
    "credentials",
    "delete",
    "disable",
    "enable",
    "list_all",
    "login",
    "logout",
    "noted",
    "own_credentials",
    "register",
    "remove",
    "require_free",
    "reset",
    "reset_password",
    "show",
    "unblock",
    "update",
]

P = ParamSpec("P")


def register(
    connection: sqlite3.Connection,
    context: Context,
    username: str,
    password_hash: str,
    alias: str,
    token_hash: bytes | None = None,
) -> bytes:
    """Open an account and return its id. Raises ConflictError if the name is taken.

    ``token_hash``: of the stored registration token that this uses, if it needs one. Raises ForbiddenError if that is
    not valid any more.
    """
    now = context.now()
    if token_hash:
        registration_tokens.use(connection, token_hash, now)
    return users.add(connection, username, password_hash, alias, now)


def create(
    connection: sqlite3.Connection, context: Context, actor: str, username: str, password_hash: str, alias: str
) -> bytes:
    """Open an account for an operator, whether registration is open or not, and return its id. Raises ConflictError.

    ``actor``: as the audit log names one.
    """
    now = context.now()
    user_id = users.add(connection, username, password_hash, alias, now)
    audit.note(connection, now, actor, audit.Action.ACCOUNT_CREATED, audit.Subject(user_id, username))
    return user_id


def login(
    connection: sqlite3.Connection, context: Context, user_id: bytes, password_hash: str, token_hash: bytes
) -> None:
    """Begin a session of a user who has shown the password.

    ``password_hash``: what the password was checked against. Raises CredentialsWrongError if that is not the user's
    hash any more.
    """
    sessions.add(connection, user_id, password_hash, token_hash, context.now(), context.policy.token_ttl_seconds)


def update(connection: sqlite3.Connection, user_id: bytes, alias: str | None) -> None:
    """Change the user's alias, and tell the members of the user's groups.

    ``alias``: "" clears it, None leaves it. Raises TokenExpiredError if the account is gone.
    """
    users.require(connection, user_id)
    if alias is None:
        return
    users.set_alias(connection, user_id, alias)
    for membership in members.of_user(connection, user_id):
        group_id, everybody = membership.group.group_id, members_of(connection, membership.group.group_key)
        announce(connection, everybody, "group_update", group_id=group_id, update_type="group_settings")


def delete(connection: sqlite3.Connection, context: Context, user_id: bytes, password_hash: str) -> None:
    """Delete the account of a user who has shown the password.

    ``password_hash``: what the password was checked against. Raises PasswordWrongError if that is not the user's hash
    any more, TokenExpiredError if the account is gone.
    """
    if users.own_credentials(connection, user_id)[1] != password_hash:
        raise PasswordWrongError
    accounts.delete(connection, user_id, context.now())


def remove(connection: sqlite3.Connection, context: Context, user_id: bytes) -> None:
    """Delete an account for an operator, as its user can. Raises NotFoundError."""
    users.by_id(connection, user_id)
    accounts.delete(connection, user_id, context.now())


def unblock(connection: sqlite3.Connection, user_id: bytes) -> None:
    """Have the server forget the wrong passwords that were tried for an account. Raises NotFoundError.

    It counts them in its memory, and hears of this by the outbox.
    """
    outbox.add_unblocked(connection, users.by_id(connection, user_id).username)


def noted(
    connection: sqlite3.Connection,
    context: Context,
    actor: str,
    told: audit.Action,
    action: Callable[Concatenate[sqlite3.Connection, bytes, P], None],
    user_id: bytes,
    /,
    *args: P.args,
    **kwargs: P.kwargs,
) -> None:
    """Change an account by ``action``, and note it in the audit log as ``told``. Raises NotFoundError.

    ``actor``: an operator, as the audit log names one.
    """
    changed = users.by_id(connection, user_id)
    action(connection, user_id, *args, **kwargs)
    audit.note(connection, context.now(), actor, told, audit.Subject(user_id, changed.username))


def list_all(connection: sqlite3.Connection, context: Context, like: str = "") -> list[Account]:
    """List the accounts whose name or alias contains ``like``, in upper or lower case, ordered by name.

    It reads all of them at once. A snapshot that lasts while somebody reads the list would hold cleanup up.
    """
    sought, listed = like.casefold(), accounts.list_all(connection, context.now())
    return [each for each in listed if sought in each.username.casefold() or sought in each.alias.casefold()]


def show(connection: sqlite3.Connection, context: Context, name: str) -> tuple[Account, Kept]:
    """Return what operators may know of an account: no content. Raises NotFoundError."""
    user_id = users.by_name(connection, name).user_id
    [account] = accounts.list_all(connection, context.now(), user_id)
    return account, accounts.kept(connection, user_id, context.invites_dead_before())
