"""Exporting what the server holds about a user, for operators: who asked for it is in the audit log."""

import sqlite3
from typing import Any

from conclave.actions import name_lookup, users
from conclave.actions.context import Context
from conclave.errors import NotFoundError
from conclave.store.resources import audit
from conclave.store.resources.audit import AuditAction, Subject
from conclave.store.views.export import OwnMessage, Page, about, groups_of_sender, page, stretch

__all__ = ["OwnMessage", "Page", "about", "begin", "groups_of_sender", "page", "stretch"]


def begin(connection: sqlite3.Connection, context: Context, actor: str, user: str) -> tuple[bytes, dict[str, Any]]:
    """Note that a user, named by id or name, is exported; return the id, and everything but the messages.

    It is noted before anything leaves the store, so also an export that is broken off is. Raises NotFoundError.
    """
    user_id = name_lookup.user_id(connection, user)
    if user_id is None:
        raise NotFoundError(f"no such user: {user!r}")
    username = users.by_id(connection, user_id).username
    audit.note(connection, context.now(), actor, AuditAction.ACCOUNT_EXPORTED, Subject(user_id, username))
    return user_id, about(connection, user_id, context.invites_dead_before())
