"""Registration tokens: each allows a number of registrations, for a limited time. Only hashes are stored."""

import sqlite3
from dataclasses import dataclass

from conclave.retention.policy import end_of

KEPT_SECONDS = 30 * 86_400
"""Expired tokens stay in the list for 30 days."""

PRUNE_BATCH = 1024
"""A call of ``prune`` deletes at most 1,024 tokens."""

_VALID = "uses < most_uses AND created_at + lifetime > :now"


@dataclass(frozen=True)
class RegistrationToken:
    """A token as shown to operators. Times are Unix seconds. ``added_by``: an operator, as in the audit log."""

    token_id: int
    most_uses: int
    uses: int
    created_at: int
    lifetime: int
    added_by: str
    note: str

    @property
    def expires_at(self) -> int:
        """The first second at which it is no longer valid."""
        return end_of(self.created_at, self.lifetime)

    def state(self, now: int) -> str:
        """Return "valid", "used up" or "expired"."""
        if self.expires_at <= now:
            return "expired"
        return "used up" if self.uses >= self.most_uses else "valid"


_COLUMNS = "token_id, most_uses, uses, created_at, lifetime, added_by, note"


def add(
    connection: sqlite3.Connection,
    token_hash: bytes,
    most_uses: int,
    now: int,
    lifetime: int,
    added_by: str,
    note: str,
) -> RegistrationToken:
    """Add a token, given by its hash. Its id is never reused."""
    values = (most_uses, now, lifetime, added_by, note)
    cursor = connection.execute(
        "INSERT INTO registration_tokens (token_hash, most_uses, created_at, lifetime, added_by, note)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        (token_hash, *values),
    )
    return RegistrationToken(cursor.lastrowid or 0, most_uses, 0, now, lifetime, added_by, note)


def list_all(connection: sqlite3.Connection) -> list[RegistrationToken]:
    """List all tokens in the order in which they were added, including expired and used-up ones."""
    rows = connection.execute(f"SELECT {_COLUMNS} FROM registration_tokens ORDER BY token_id")
    return [RegistrationToken(*row) for row in rows]


def remove(connection: sqlite3.Connection, token_id: int) -> RegistrationToken | None:
    """Remove a token and return it; None if it does not exist."""
    row = connection.execute(
        f"DELETE FROM registration_tokens WHERE token_id = ? RETURNING {_COLUMNS}", (token_id,)
    ).fetchone()
    return RegistrationToken(*row) if row else None


def is_alive(connection: sqlite3.Connection, token_hash: bytes, now: int) -> bool:
    """Return whether the token is valid now."""
    cursor = connection.execute(
        f"SELECT 1 FROM registration_tokens WHERE token_hash = :hash AND {_VALID}", {"hash": token_hash, "now": now}
    )
    return cursor.fetchone() is not None


def use(connection: sqlite3.Connection, token_hash: bytes, now: int) -> bool:
    """Count a registration, in its transaction; return whether the token was valid."""
    cursor = connection.execute(
        f"UPDATE registration_tokens SET uses = uses + 1 WHERE token_hash = :hash AND {_VALID}",
        {"hash": token_hash, "now": now},
    )
    return cursor.rowcount > 0


def prune(connection: sqlite3.Connection, now: int) -> bool:
    """Delete tokens that expired more than KEPT_SECONDS ago, at most PRUNE_BATCH; return whether more are left.

    It may be used as a Step of a cleanup run.
    """
    deleted_count = connection.execute(
        "DELETE FROM registration_tokens WHERE token_id IN"
        " (SELECT token_id FROM registration_tokens WHERE created_at + lifetime < ? LIMIT ?)",
        (now - KEPT_SECONDS, PRUNE_BATCH),
    ).rowcount
    return deleted_count == PRUNE_BATCH
