"""Key packages: what others need to add a user to a group, each handed out once."""

import sqlite3
from collections.abc import Iterable

from conclave.errors import NotFoundError
from conclave.failpoints import reach
from conclave.store import bodies

REGULAR_KEPT = 10
"""Regular key packages of a user, at most; the oldest fall out."""


def add(connection: sqlite3.Connection, user_id: bytes, package: bytes, *, is_last_resort: bool) -> None:
    """Store a key package; a last-resort one replaces the former."""
    kept = 0 if is_last_resort else REGULAR_KEPT - 1
    _remove(
        connection,
        "user_id = ? AND is_last_resort = ? ORDER BY key_package_id DESC LIMIT -1 OFFSET ?",
        (user_id, is_last_resort, kept),
    )
    connection.execute(
        "INSERT INTO key_packages (user_id, is_last_resort, package_body) VALUES (?, ?, ?)",
        (user_id, is_last_resort, bodies.put(connection, package)),
    )


def take(connection: sqlite3.Connection, user_id: bytes) -> bytes:
    """Hand out the oldest regular key package, which is gone with that, else the last-resort one, which stays.

    Raises NotFoundError if there is none.
    """
    row = connection.execute(
        "SELECT key_package_id, is_last_resort, package_body FROM key_packages WHERE user_id = ?"
        " ORDER BY is_last_resort, key_package_id LIMIT 1",
        (user_id,),
    ).fetchone()
    if row is None:
        raise NotFoundError("this user has no key package")
    package = bodies.get(connection, row["package_body"])
    if not row["is_last_resort"]:
        _remove(connection, "key_package_id = ?", (row["key_package_id"],))
        reach("key_package.taken")
    return package


def remove_all(connection: sqlite3.Connection, user_id: bytes) -> None:
    """Erase all key packages of a user."""
    _remove(connection, "user_id = ?", (user_id,))


def _remove(connection: sqlite3.Connection, condition: str, values: Iterable[object]) -> None:
    rows = connection.execute(
        f"SELECT key_package_id, package_body FROM key_packages WHERE {condition}", tuple(values)
    ).fetchall()
    connection.executemany("DELETE FROM key_packages WHERE key_package_id = ?", [(row[0],) for row in rows])
    bodies.erase(connection, [row[1] for row in rows])
