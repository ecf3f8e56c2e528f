"""Adds and revokes registration tokens for operators. Each change is recorded in the audit log."""

import sqlite3

from conclave.actions.context import Context
from conclave.errors import NotFoundError
from conclave.store.resources import audit, registration_tokens
from conclave.store.resources.audit import AuditAction
from conclave.store.resources.registration_tokens import RegistrationToken, is_alive, list_all

__all__ = ["MAX_NOTE_LENGTH", "MAX_USES", "RegistrationToken", "add", "is_alive", "list_all", "revoke"]

MAX_NOTE_LENGTH = 1000
"""The most characters of a note."""

MAX_USES = 1_000_000
"""The most accounts that one token can create."""


def add(
    connection: sqlite3.Connection,
    context: Context,
    actor: str,
    token_hash: bytes,
    max_uses: int,
    lifetime: int,
    note: str,
) -> RegistrationToken:
    """Add a token that can create ``max_uses`` accounts (1 to MAX_USES) within ``lifetime`` seconds."""
    now = context.now()
    token = registration_tokens.add(connection, token_hash, max_uses, now, lifetime, actor, note)
    details = {"token": token.token_id, "uses": max_uses, "expires_at": token.expires_at, "note": note}
    audit.note(connection, now, actor, AuditAction.TOKEN_ADDED, details=details)
    return token


def revoke(connection: sqlite3.Connection, context: Context, actor: str, token_id: int) -> RegistrationToken:
    """Remove a token and return it. Raises NotFoundError."""
    token = registration_tokens.remove(connection, token_id)
    if token is None:
        raise NotFoundError(f"no such token: {token_id}; see `conclave invite-token list`")
    details = {"token": token_id, "used": token.uses, "note": token.note}
    audit.note(connection, context.now(), actor, AuditAction.TOKEN_REVOKED, details=details)
    return token
