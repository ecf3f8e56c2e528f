"""Registers, changes and deletes accounts, for users and operators, and logs users in."""

import sqlite3
from collections.abc import Callable
from typing import Concatenate, ParamSpec

from conclave.actions import invites, members, sessions, users
from conclave.actions.context import Context
from conclave.actions.sessions import end as logout
from conclave.actions.users import require_free
from conclave.errors import CredentialsWrongError, ForbiddenError, PasswordWrongError, TokenExpiredError
from conclave.failpoints import reach
from conclave.store.engine import news
from conclave.store.engine.news import announce, members_of
from conclave.store.resources import (
    accounts,
    audit,
    members as memberships,
    registration_tokens,
    sessions as stored_sessions,
    users as stored_users,
)
from conclave.store.resources.accounts import Account, StoredData
from conclave.store.resources.key_packages import remove_all as reset
from conclave.store.resources.users import credentials

__all__ = [
    "Account",
    "StoredData",
    "audited",
    "change_password",
    "create",
    "credentials",
    "delete",
    "disable",
    "enable",
    "end",
    "list_all",
    "login",
    "logout",
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
    """Create an account and return its id. Raises ConflictError if the name is taken.

    ``token_hash``: the hash of the registration token, if one is required. Raises ForbiddenError if it is not valid.
    """
    now = context.now()
    if token_hash and not registration_tokens.use(connection, token_hash, now):
        raise ForbiddenError("wrong registration token")
    require_free(connection, username)
    return stored_users.add(connection, username, password_hash, alias, now)


def create(
    connection: sqlite3.Connection, context: Context, actor: str, username: str, password_hash: str, alias: str
) -> bytes:
    """Create an account as an operator, even if registration is closed, and return its id. Raises ConflictError.

    ``actor``: the operator, for the audit log.
    """
    now = context.now()
    require_free(connection, username)
    user_id = stored_users.add(connection, username, password_hash, alias, now)
    audit.note(connection, now, actor, audit.AuditAction.ACCOUNT_CREATED, audit.Subject(user_id, username))
    return user_id


def login(
    connection: sqlite3.Connection, context: Context, user_id: bytes, password_hash: str, token_hash: bytes
) -> None:
    """Start a session of a user whose password was verified.

    ``password_hash``: the hash that was verified. Raises CredentialsWrongError if the stored hash has changed since.
    """
    ttl = context.policy.token_ttl_seconds
    if not stored_sessions.add(connection, user_id, password_hash, token_hash, context.now(), ttl):
        raise CredentialsWrongError


def update(connection: sqlite3.Connection, user_id: bytes, alias: str | None) -> None:
    """Change the user's alias, and notify the members of the user's groups.

    ``alias``: "" clears it, None keeps it. Raises TokenExpiredError if the account is gone.
    """
    users.require(connection, user_id)
    if alias is None:
        return
    stored_users.set_alias(connection, user_id, alias)
    for membership in memberships.of_user(connection, user_id):
        group_id, recipients = membership.group.group_id, members_of(connection, membership.group.group_key)
        announce(connection, recipients, "group_update", group_id=group_id, update_type="group_settings")


def change_password(connection: sqlite3.Connection, user_id: bytes, former: str, new: str) -> None:
    """Replace the password hash ``former`` with ``new``, and end all sessions of the user.

    Raises PasswordWrongError if ``former`` is no longer the stored hash, TokenExpiredError if the account is gone.
    """
    users.require(connection, user_id)
    if not accounts.set_password(connection, user_id, new, former):
        raise PasswordWrongError
    sessions.end_all(connection, user_id)


def reset_password(connection: sqlite3.Connection, user_id: bytes, new: str) -> None:
    """Replace any password hash with ``new``, and end all sessions of the user."""
    accounts.set_password(connection, user_id, new)
    sessions.end_all(connection, user_id)


def disable(connection: sqlite3.Connection, user_id: bytes) -> None:
    """Disable login, end all sessions, and cancel the invites that the user sent. The account's data is kept."""
    accounts.set_disabled(connection, user_id, disabled=True)
    sessions.end_all(connection, user_id)  # first, so that the user gets no further events
    invites.withdraw(connection, user_id)


def enable(connection: sqlite3.Connection, user_id: bytes) -> None:
    """Enable login again."""
    accounts.set_disabled(connection, user_id, disabled=False)


def own_credentials(connection: sqlite3.Connection, user_id: bytes) -> tuple[str, str]:
    """Return the name and password hash of the caller's account. Raises TokenExpiredError if it is gone."""
    found = stored_users.stored_credentials(connection, user_id)
    if found is None:
        raise TokenExpiredError
    return found


def delete(connection: sqlite3.Connection, context: Context, user_id: bytes, password_hash: str) -> None:
    """Delete the account of a user, whose password was verified.

    ``password_hash``: the hash that was verified. Raises PasswordWrongError if the stored hash has changed since,
    TokenExpiredError if the account is gone.
    """
    if own_credentials(connection, user_id)[1] != password_hash:
        raise PasswordWrongError
    end(connection, user_id, context.now())


def remove(connection: sqlite3.Connection, context: Context, user_id: bytes) -> None:
    """Delete an account as an operator, without a password. Raises NotFoundError."""
    users.by_id(connection, user_id)
    end(connection, user_id, context.now())


def end(connection: sqlite3.Connection, user_id: bytes, now: int) -> None:
    """Delete an account with its memberships, invites, key packages and sessions. Checks no password."""
    sessions.end_all(connection, user_id)  # first, so that the user gets no further events
    for membership in memberships.of_user(connection, user_id):
        members.end(connection, membership, now)
    reach("delete_account.left")
    invites.decline_all(connection, user_id)
    invites.withdraw(connection, user_id)
    accounts.remove(connection, user_id, now)


def unblock(connection: sqlite3.Connection, user_id: bytes) -> None:
    """Reset the count of failed logins of an account. Raises NotFoundError.

    The server counts in memory and is notified by the outbox.
    """
    news.add_unblocked(connection, users.by_id(connection, user_id).username)


def audited(
    connection: sqlite3.Connection,
    context: Context,
    actor: str,
    entry: audit.AuditAction,
    action: Callable[Concatenate[sqlite3.Connection, bytes, P], None],
    user_id: bytes,
    /,
    *args: P.args,
    **kwargs: P.kwargs,
) -> None:
    """Run ``action`` on an account, and record it in the audit log as ``entry``. Raises NotFoundError.

    ``actor``: the operator, for the audit log.
    """
    changed = users.by_id(connection, user_id)
    action(connection, user_id, *args, **kwargs)
    audit.note(connection, context.now(), actor, entry, audit.Subject(user_id, changed.username))


def list_all(connection: sqlite3.Connection, context: Context, like: str = "") -> list[Account]:
    """Return the accounts whose name or alias contains ``like``, ignoring case, ordered by name.

    Reads all accounts at once, since a long snapshot would delay cleanup.
    """
    query, rows = like.casefold(), accounts.list_all(connection, context.now())
    return [each for each in rows if query in each.username.casefold() or query in each.alias.casefold()]


def show(connection: sqlite3.Connection, context: Context, name: str) -> tuple[Account, StoredData]:
    """Return an account and the counts of its stored data, without content. Raises NotFoundError."""
    user_id = users.by_name(connection, name).user_id
    [account] = accounts.list_all(connection, context.now(), user_id)
    return account, accounts.stored_data(connection, user_id, context.invites_dead_before())
