"""Adds and releases legal holds for operators. Each change is recorded in the audit log."""

import sqlite3
from dataclasses import dataclass

from conclave.actions import lookup, users
from conclave.actions.context import Context
from conclave.actions.lookup import id_of
from conclave.errors import NotFoundError
from conclave.retention import holds
from conclave.retention.holds import Hold, list_all
from conclave.store.resources import audit
from conclave.store.resources.audit import AuditAction, Subject

__all__ = ["MAX_REASON_LENGTH", "Hold", "HoldSubject", "add", "find_group", "find_user", "list_all", "release"]

MAX_REASON_LENGTH = 1000
"""The most characters of a reason."""


@dataclass(frozen=True)
class HoldSubject:
    """A group or user that a hold can cover.

    ``group_key``: None for a user. ``name``: "" if it was deleted. ``is_certain``: False if only the archive
    itself shows whether messages of a deleted user are left.
    """

    group_key: int | None
    subject_id: bytes
    name: str
    is_certain: bool = True


def find_group(connection: sqlite3.Connection, group: str) -> HoldSubject:
    """Find a group by id or name, a deleted group by id. Raises NotFoundError."""
    group_id = lookup.group_id(connection, group)
    found = holds.group_of(connection, group_id) if group_id else None
    if group_id is None or found is None:
        raise NotFoundError(f"no such group: {group!r}, or all of it is erased; use the id for a deleted group")
    return HoldSubject(found[0], group_id, found[1])


def find_user(connection: sqlite3.Connection, user: str) -> HoldSubject:
    """Find a user by id or name, a deleted user by id. Raises NotFoundError.

    For a deleted user this may scan all messages, so do not call it in a write transaction.
    """
    user_id = id_of(user)
    try:
        found = users.by_id(connection, user_id) if user_id else users.by_name(connection, user)
    except NotFoundError:
        has_messages = holds.has_left_messages(connection, user_id) if user_id else False
        if user_id is None or has_messages is False:
            raise NotFoundError(
                f"no such user: {user!r}, or all messages of the account are erased; use the id for a deleted account"
            ) from None
        return HoldSubject(None, user_id, "", is_certain=has_messages is not None)
    return HoldSubject(None, found.user_id, found.username)


def add(connection: sqlite3.Connection, context: Context, actor: str, subject: HoldSubject, reason: str) -> Hold:
    """Add a hold and return it. Raises NotFoundError if the whole group has since been erased.

    ``actor``: the operator, for the audit log. ``reason``: 1 to MAX_REASON_LENGTH characters.
    """
    if subject.group_key is not None and holds.group_of(connection, subject.subject_id) is None:
        raise NotFoundError("all of the group was erased just now")
    now = context.now()
    values = (subject.group_key, subject.subject_id, subject.name, reason, actor, now)
    hold = Hold(holds.add(connection, *values), *values)
    action = AuditAction.USER_HELD if subject.group_key is None else AuditAction.GROUP_HELD
    details = {"hold": hold.hold_id, "reason": reason}
    audit.note(connection, now, actor, action, Subject(subject.subject_id, subject.name), details)
    return hold


def release(connection: sqlite3.Connection, context: Context, actor: str, hold_id: int) -> Hold:
    """Remove a hold and return it. Raises NotFoundError."""
    hold = holds.remove(connection, hold_id)
    if hold is None:
        raise NotFoundError(f"no such hold: {hold_id}; see `conclave hold list`")
    action = AuditAction.USER_RELEASED if hold.group_key is None else AuditAction.GROUP_RELEASED
    details = {"hold": hold_id, "reason": hold.reason, "added_by": hold.added_by, "added_at": hold.added_at}
    audit.note(connection, context.now(), actor, action, Subject(hold.subject_id, hold.name), details)
    return hold
