"""Reads the audit log and the receipts of erased messages for operators.

Most entries of the log are written by the actions that they record.
"""

import sqlite3

from conclave.actions import lookup
from conclave.actions.context import Context
from conclave.actions.lookup import id_of
from conclave.store.resources import audit, receipts
from conclave.store.resources.audit import OF_GROUPS, OF_USERS, AuditAction, AuditEntry, AuditFilter
from conclave.store.resources.receipts import Chain, Receipt


def list_audit_log(
    connection: sqlite3.Connection, context: Context, limit: int, since: int | None, group: str | None, user: str | None
) -> list[AuditEntry]:
    """Return the last ``limit`` entries, the newest first.

    ``since``: only entries of the last ``since`` seconds. ``group`` or ``user``: only entries about it, by id or name;
    not both. A name selects the entries about its present owner, and those in which it is the subject's name.
    """
    begin = 0 if since is None else context.now() - since
    audit_filter = None
    if group is not None:
        audit_filter = _about(OF_GROUPS, group, lookup.group_id(connection, group))
    elif user is not None:
        audit_filter = _about(OF_USERS, user, lookup.user_id(connection, user))
    return audit.last(connection, limit, begin, audit_filter)


def log_cleanup_order(connection: sqlite3.Connection, context: Context, actor: str) -> None:
    """Record that the operator ``actor`` started a cleanup run."""
    audit.note(connection, context.now(), actor, AuditAction.CLEANUP_ORDERED)


def _about(actions: tuple[AuditAction, ...], text: str, subject_id: bytes | None) -> AuditFilter:
    return AuditFilter(actions, subject_id, "" if id_of(text) else text)


def list_receipts(connection: sqlite3.Connection, limit: int, group: str | None) -> list[Receipt] | None:
    """Return the last ``limit`` receipts, the newest first. ``group``: only its receipts, by id or name.

    Returns None if the group is unknown.
    """
    if group is None:
        return receipts.last(connection, limit)
    group_id = lookup.group_id(connection, group)
    return None if group_id is None else receipts.of_group(connection, group_id, limit)


def check_receipts(connection: sqlite3.Connection, known: tuple[int, bytes] | None) -> tuple[Chain, bool]:
    """Verify the chain. ``known``: number and hash of an earlier receipt.

    Returns the chain, and whether the earlier receipt matches, or is older than the receipts that are kept.
    """
    chain = receipts.verify(connection)
    return chain, known is None or receipts.is_known(connection, *known)
