"""Reading the audit log, for operators. Other entries are written by the actions that they speak of."""

import sqlite3

from conclave.actions import lookup
from conclave.actions.context import Context
from conclave.actions.lookup import id_of
from conclave.store.resources import audit
from conclave.store.resources.audit import OF_GROUPS, OF_USERS, AuditAction, AuditEntry, AuditFilter


def list_last(
    connection: sqlite3.Connection, context: Context, limit: int, since: int | None, group: str | None, user: str | None
) -> list[AuditEntry]:
    """Return the last ``limit`` entries, the newest first.

    ``since``: only those of the last so many seconds. ``group`` and ``user``: only those about this one, by id or name;
    not both. A name stands for what has it now, and for all that had it when the entry was written.
    """
    begin = 0 if since is None else context.now() - since
    wanted = None
    if group is not None:
        wanted = _about(OF_GROUPS, group, lookup.group_id(connection, group))
    elif user is not None:
        wanted = _about(OF_USERS, user, lookup.user_id(connection, user))
    return audit.last(connection, limit, begin, wanted)


def note_ordered(connection: sqlite3.Connection, context: Context, actor: str) -> None:
    """Note that an operator has cleanup run now. ``actor``: as the audit log names one."""
    audit.note(connection, context.now(), actor, AuditAction.CLEANUP_ORDERED)


def _about(actions: tuple[AuditAction, ...], text: str, subject_id: bytes | None) -> AuditFilter:
    return AuditFilter(actions, subject_id, "" if id_of(text) else text)
