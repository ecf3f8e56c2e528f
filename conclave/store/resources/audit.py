"""The audit log: decisions about retention, accounts and the clock.

Entries stay when their subjects are deleted, so there are no foreign keys, and names are copied. The log contains no
message content, password or token.
"""

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from conclave.store.engine.sqlite import placeholders

SERVER = "server"
"""The actor of the server's own actions."""

PRUNE_BATCH = 1024
"""A call of ``prune`` deletes at most 1,024 entries."""


class AuditAction(StrEnum):
    """The kinds of entries."""

    GROUP_HELD = "group_held"
    GROUP_RELEASED = "group_released"
    USER_HELD = "user_held"
    USER_RELEASED = "user_released"
    POLICY_CHANGED = "policy_changed"
    SETTINGS_CHANGED = "settings_changed"
    GROUP_PURGED = "group_purged"
    GROUP_RESTORED = "group_restored"
    MESSAGE_TAKEN_BACK = "message_taken_back"
    CLOCK_ACCEPTED = "clock_accepted"
    CLEANUP_ORDERED = "cleanup_ordered"
    PASSWORD_RESET = "password_reset"  # noqa: S105 - the name of an action
    ACCOUNT_DISABLED = "account_disabled"
    ACCOUNT_ENABLED = "account_enabled"
    ACCOUNT_DELETED = "account_deleted"
    BACKUP_MADE = "backup_made"
    BACKUP_RESTORED = "backup_restored"
    ACCOUNT_CREATED = "account_created"
    ACCOUNT_EXPORTED = "account_exported"
    LOGIN_UNBLOCKED = "login_unblocked"
    TOKEN_ADDED = "registration_token_added"  # noqa: S105 - the name of an action
    TOKEN_REVOKED = "registration_token_revoked"  # noqa: S105 - the name of an action


OF_GROUPS = (
    *(AuditAction.GROUP_HELD, AuditAction.GROUP_RELEASED, AuditAction.POLICY_CHANGED),
    *(AuditAction.GROUP_PURGED, AuditAction.GROUP_RESTORED, AuditAction.MESSAGE_TAKEN_BACK),
)
"""Actions whose subject is a group."""

OF_USERS = (
    *(AuditAction.USER_HELD, AuditAction.USER_RELEASED, AuditAction.PASSWORD_RESET),
    *(AuditAction.ACCOUNT_DISABLED, AuditAction.ACCOUNT_ENABLED, AuditAction.ACCOUNT_DELETED),
    *(AuditAction.ACCOUNT_CREATED, AuditAction.ACCOUNT_EXPORTED, AuditAction.LOGIN_UNBLOCKED),
)
"""Actions whose subject is a user."""


@dataclass(frozen=True)
class Subject:
    """The subject of an entry: the id and then-current name of a group or user. The default is the server."""

    subject_id: bytes = b""
    name: str = ""


@dataclass(frozen=True)
class AuditEntry:
    """A decision. ``at``: Unix seconds. ``details``: a JSON object."""

    audit_id: int
    at: int
    actor: str
    action: str
    subject: Subject
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class AuditFilter:
    """Selects entries with one of ``actions`` whose subject has this id, or had this name.

    ``subject_id``: None: select by name only.
    """

    actions: tuple[AuditAction, ...]
    subject_id: bytes | None
    name: str


def last_at(connection: sqlite3.Connection, action: AuditAction) -> int:
    """Return the time of the last entry with ``action``, Unix seconds; 0 if there is none."""
    row = connection.execute("SELECT ifnull(max(at), 0) FROM audit WHERE action = ?", (action,)).fetchone()
    return int(row[0])


def note(
    connection: sqlite3.Connection,
    at: int,
    actor: str,
    action: AuditAction,
    subject: Subject = Subject(),
    details: Mapping[str, Any] | None = None,
) -> None:
    """Add an entry, in the transaction of the action.

    ``at``: Unix seconds. ``actor``: "operator NAME", "operator page at ADDRESS", "admin NAME", "user NAME" or SERVER.
    ``details``: a JSON object.
    """
    connection.execute(
        "INSERT INTO audit (at, actor, action, subject_id, subject, details) VALUES (?, ?, ?, ?, ?, ?)",
        (at, actor, action, subject.subject_id, subject.name, json.dumps(details or {})),
    )


def last(
    connection: sqlite3.Connection, limit: int, since: int = 0, entry_filter: AuditFilter | None = None
) -> list[AuditEntry]:
    """Return the last ``limit`` entries, newest first.

    ``since``: only entries of this Unix second and later. ``entry_filter``: only these entries.
    """
    condition = "at >= ?"
    values: tuple[Any, ...] = (since,)
    if entry_filter:
        actions = placeholders(entry_filter.actions)
        condition += f" AND action IN ({actions}) AND (subject_id = ? OR subject = ? AND subject != '')"
        values += (*entry_filter.actions, entry_filter.subject_id, entry_filter.name)
    rows = connection.execute(
        "SELECT audit_id, at, actor, action, subject_id, subject, details FROM audit"
        f" WHERE {condition} ORDER BY audit_id DESC LIMIT ?",
        (*values, limit),
    )
    return [
        AuditEntry(audit_id, at, actor, action, Subject(subject_id, name), json.loads(details))
        for audit_id, at, actor, action, subject_id, name, details in rows
    ]


def prune(connection: sqlite3.Connection, before: int) -> bool:
    """Delete at most PRUNE_BATCH entries older than the Unix second ``before``; return whether more are left.

    It may be used as a Step of a cleanup run.
    """
    deleted_count = connection.execute(
        "DELETE FROM audit WHERE audit_id IN (SELECT audit_id FROM audit WHERE at < ? ORDER BY at LIMIT ?)",
        (before, PRUNE_BATCH),
    ).rowcount
    return deleted_count == PRUNE_BATCH
