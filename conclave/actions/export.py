"""Exporting what the server holds about a user, for operators: who asked for it is in the audit log."""

import sqlite3
from typing import Any, NamedTuple
from uuid import UUID

from conclave.actions import lookup
from conclave.actions.context import Context
from conclave.errors import NotFoundError
from conclave.retention import holds
from conclave.retention.holds import Hold
from conclave.store.resources import audit, users as stored_users
from conclave.store.resources.audit import AuditAction, Subject
from conclave.store.views.export import ExportPage, OwnMessage, about, groups_of_sender, page, stretch

__all__ = ["Export", "ExportPage", "OwnMessage", "about", "begin", "begin_held", "groups_of_sender", "page", "stretch"]


class Export(NamedTuple):
    """What is exported. ``about``: everything but the messages. ``is_held``: all that a hold keeps, hidden or not."""

    user_id: bytes
    name: str
    about: dict[str, Any]
    is_held: bool = False


def begin(connection: sqlite3.Connection, context: Context, actor: str, user: str) -> Export:
    """Note that a user, named by id or name, is exported. Of a deleted account, named by id, what holds keep is.

    It is noted before anything leaves the store, so also an export that is broken off is. Raises NotFoundError.
    """
    user_id = lookup.user_id(connection, user)
    found = stored_users.find(connection, user_id) if user_id else None
    if found is None:
        hold = next((each for each in holds.list_all(connection) if _covers(each, user_id)), None)
        if hold is None:
            raise NotFoundError(
                f"no such user: {user!r}; a deleted account under a legal hold is named by its id, or by --hold"
            )
        return begin_held(connection, context, actor, hold.hold_id)
    audit.note(connection, context.now(), actor, AuditAction.ACCOUNT_EXPORTED, Subject(found.user_id, found.username))
    return Export(found.user_id, found.username, about(connection, found.user_id, context.invites_dead_before()))


def begin_held(connection: sqlite3.Connection, context: Context, actor: str, hold_id: int) -> Export:
    """Note, as ``begin`` does, that what a hold on a user keeps is exported. The account may be gone.

    Raises NotFoundError.
    """
    hold = next((each for each in holds.list_all(connection) if each.hold_id == hold_id), None)
    if hold is None or not _covers(hold, hold.subject_id):
        raise NotFoundError(f"no such hold on a user: {hold_id}; `conclave hold list` prints those in force")
    found = stored_users.find(connection, hold.subject_id)
    name = found.username if found else hold.name or str(UUID(bytes=hold.subject_id))
    subject, details = Subject(hold.subject_id, hold.name), {"hold": hold_id}
    audit.note(connection, context.now(), actor, AuditAction.ACCOUNT_EXPORTED, subject, details)
    described = about(connection, hold.subject_id, context.invites_dead_before())
    if not found:
        described["account"]["username"] = hold.name
    return Export(hold.subject_id, name, described, is_held=True)


def _covers(hold: Hold, user_id: bytes | None) -> bool:
    return hold.covers == "user" and hold.subject_id == user_id
