"""Key packages, with which others add a user to a group. A regular one is handed out only once."""

import sqlite3
from collections.abc import Iterable, Sequence

from conclave.failpoints import reach
from conclave.store import bodies
from conclave.store.engine.sqlite import placeholders

REGULAR_KEPT = 10
"""A user has at most 10 regular key packages; a new one replaces the oldest."""


def add(connection: sqlite3.Connection, user_id: bytes, package: bytes, *, is_last_resort: bool) -> None:
    """Store a key package. A last-resort one replaces the previous last-resort one."""
    kept_count = 0 if is_last_resort else REGULAR_KEPT - 1
    _remove(
        connection,
        "user_id = ? AND is_last_resort = ? ORDER BY key_package_id DESC LIMIT -1 OFFSET ?",
        (user_id, is_last_resort, kept_count),
    )
    connection.execute(
        "INSERT INTO key_packages (user_id, is_last_resort, package_body) VALUES (?, ?, ?)",
        (user_id, is_last_resort, bodies.put(connection, package)),
    )


def regular_packages(connection: sqlite3.Connection, user_id: bytes) -> set[bytes]:
    """Return the regular key packages of a user."""
    rows = connection.execute(
        "SELECT package_body FROM key_packages WHERE user_id = ? AND NOT is_last_resort", (user_id,)
    ).fetchall()
    return set(bodies.get_many(connection, [row[0] for row in rows]).values())


def take(connection: sqlite3.Connection, user_ids: Sequence[bytes]) -> list[bytes] | None:
    """Hand out one key package for each user (at most some thousands), in the order of ``user_ids``.

    It is the oldest regular one, which is removed, or else the last-resort one, which stays. Returns None, without
    removing any, if a user has no key package.
    """
    rows = connection.execute(
        "SELECT key_package_id, user_id, is_last_resort, package_body FROM key_packages WHERE key_package_id IN"
        " (SELECT (SELECT key_package_id FROM key_packages WHERE key_packages.user_id = users.user_id"
        f" ORDER BY is_last_resort, key_package_id LIMIT 1) FROM users WHERE user_id IN ({placeholders(user_ids)}))",
        user_ids,
    ).fetchall()
    body_by_user = {row["user_id"]: row["package_body"] for row in rows}
    if not body_by_user.keys() >= set(user_ids):
        return None
    packages = bodies.get_many(connection, body_by_user.values())
    regular_ids = [row["key_package_id"] for row in rows if not row["is_last_resort"]]
    if regular_ids:
        _remove(connection, f"key_package_id IN ({placeholders(regular_ids)})", regular_ids)
        reach("key_package.taken")
    return [packages[body_by_user[user_id]] for user_id in user_ids]


def remove_all(connection: sqlite3.Connection, user_id: bytes) -> None:
    """Erase all key packages of a user."""
    _remove(connection, "user_id = ?", (user_id,))


def _remove(connection: sqlite3.Connection, condition: str, values: Iterable[object]) -> None:
    rows = connection.execute(
        f"SELECT key_package_id, package_body FROM key_packages WHERE {condition}", tuple(values)
    ).fetchall()
    package_ids = [row[0] for row in rows]
    connection.execute(f"DELETE FROM key_packages WHERE key_package_id IN ({placeholders(package_ids)})", package_ids)
    bodies.erase(connection, [row[1] for row in rows])
