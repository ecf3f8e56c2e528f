"""What becomes of a group's messages."""

import sqlite3
from dataclasses import dataclass

from conclave.actions.context import Context
from conclave.store import members


@dataclass(frozen=True)
class Layers:
    """Both layers of a group's retention: KEEP, AFTER_FETCH or seconds."""

    server_retention_seconds: int
    group_expiry_seconds: int


def policy(connection: sqlite3.Connection, context: Context, group_id: bytes, user_id: bytes) -> Layers:
    """Return how long messages of a group live. Raises NotMemberError."""
    member = members.require_member(connection, group_id, user_id)
    return Layers(context.policy.message_retention, member.group.message_expiry_seconds)
