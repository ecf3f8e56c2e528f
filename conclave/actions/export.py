"""Exports the data of a user for operators. Each export is recorded in the audit log."""

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
    """The exported data. ``about``: everything but messages. ``is_held``: include all held messages, even if hidden."""

    user_id: bytes
    name: str
    about: dict[str, Any]
    is_held: bool = False


def begin(connection: sqlite3.Connection, context: Context, actor: str, user: str) -> Export:
    """Start the export of a user, by id or name, and record it in the audit log. Raises NotFoundError.

    For a deleted account, given by id, only messages under a legal hold are exported. The log entry is written first,
    so aborted exports are recorded too.
    """
    user_id = lookup.user_id(connection, user)
    found = stored_users.find(connection, user_id) if user_id else None
    if found is None:
        hold = next((each for each in holds.list_all(connection) if _covers(each, user_id)), None)
        if hold is None:
            raise NotFoundError(
                f"no such user: {user!r}; use the id or --hold for a deleted account under a legal hold"
            )
        return begin_held(connection, context, actor, hold.hold_id)
    audit.note(connection, context.now(), actor, AuditAction.ACCOUNT_EXPORTED, Subject(found.user_id, found.username))
    return Export(found.user_id, found.username, about(connection, found.user_id, context.invites_dead_before()))


def begin_held(connection: sqlite3.Connection, context: Context, actor: str, hold_id: int) -> Export:
    """Start the export of the messages under a hold on a user, whose account may be deleted.

    Recorded in the audit log. Raises NotFoundError.
    """
    hold = next((each for each in holds.list_all(connection) if each.hold_id == hold_id), None)
    if hold is None or not _covers(hold, hold.subject_id):
        raise NotFoundError(f"no such hold on a user: {hold_id}; see `conclave hold list`")
    found = stored_users.find(connection, hold.subject_id)
    name = found.username if found else hold.name or str(UUID(bytes=hold.subject_id))
    subject, details = Subject(hold.subject_id, hold.name), {"hold": hold_id}
    audit.note(connection, context.now(), actor, AuditAction.ACCOUNT_EXPORTED, subject, details)
    account_data = about(connection, hold.subject_id, context.invites_dead_before())
    if not found:
        account_data["account"]["username"] = hold.name
    return Export(hold.subject_id, name, account_data, is_held=True)


def _covers(hold: Hold, user_id: bytes | None) -> bool:
    return hold.covers == "user" and hold.subject_id == user_id
