"""Memberships as the store has them, for tests and benchmarks that call what takes one."""

import sqlite3

from conclave.store.resources.members import Membership, membership


def member_of(connection: sqlite3.Connection, group_id: bytes, user_id: bytes) -> Membership:
    """Return a user's membership of a group, which is there."""
    found = membership(connection, group_id, user_id)
    assert found
    return found
