"""Registration tokens, for operators: each change is in the audit log. Who registers uses them by ``accounts``."""

import sqlite3

from conclave.actions.context import Context
from conclave.errors import NotFoundError
from conclave.store.resources import audit, registration_tokens
from conclave.store.resources.audit import AuditAction
from conclave.store.resources.registration_tokens import RegistrationToken, is_alive, list_all

__all__ = ["LONGEST_NOTE", "MOST_USES", "RegistrationToken", "add", "is_alive", "list_all", "revoke"]

LONGEST_NOTE = 1000
"""A note has at most 1,000 characters."""

MOST_USES = 1_000_000
"""A token opens at most 1,000,000 accounts."""


def add(
    connection: sqlite3.Connection,
    context: Context,
    actor: str,
    token_hash: bytes,
    most_uses: int,
    lifetime: int,
    note: str,
) -> RegistrationToken:
    """Add a token that opens ``most_uses`` accounts (1 .. MOST_USES) within ``lifetime`` seconds."""
    now = context.now()
    added = registration_tokens.add(connection, token_hash, most_uses, now, lifetime, actor, note)
    details = {"token": added.token_id, "uses": most_uses, "expires_at": added.expires_at, "note": note}
    audit.note(connection, now, actor, AuditAction.TOKEN_ADDED, details=details)
    return added


def revoke(connection: sqlite3.Connection, context: Context, actor: str, token_id: int) -> RegistrationToken:
    """Remove a token, so that no user can register with it any more, and return it. Raises NotFoundError."""
    removed = registration_tokens.remove(connection, token_id)
    if removed is None:
        raise NotFoundError(f"no such token: {token_id}; `conclave invite-token list` prints them")
    details = {"token": token_id, "used": removed.uses, "note": removed.note}
    audit.note(connection, context.now(), actor, AuditAction.TOKEN_REVOKED, details=details)
    return removed
