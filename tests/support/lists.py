"""Every list of the protocol, with as many rows as a test wants."""

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

from conclave import app_keys
from conclave.retention.resolve import PolicySettings
from conclave.store import bodies
from conclave.store.resources import bans, groups, invites, members, sessions, users, welcomes
from tests.conftest import Running
from tests.support.client import Client

POLICY = PolicySettings(message_retention=-1, token_ttl_seconds=86_400, invite_ttl_seconds=86_400)

Connection = sqlite3.Connection


@dataclass(frozen=True)
class Scene:
    """Whose list it is: a user, and one of the user's groups, of which the user is the admin."""

    user_id: bytes
    group_key: int
    group_id: bytes
    now: int

    def path(self, path: str) -> str:
        return path.format(group_id=UUID(bytes=self.group_id))


Fill = Callable[[Connection, Scene, Sequence[str]], list[bytes]]


@dataclass(frozen=True)
class Case:
    """A list: where it is, its field, the name of its ids, what adds and removes rows, whether it is complete."""

    path: str
    field: str
    id: str
    add: Fill
    """Adds a row for each name, and returns their ids."""
    remove: Callable[[Connection, Scene, bytes], None]
    is_complete: bool = False

    def ids(self, answer: dict[str, Any]) -> list[bytes]:
        return [UUID(each[self.id]).bytes for each in answer[self.field]]


def person(connection: Connection, name: str, now: int) -> bytes:
    return users.add(connection, name, "", f"alias of {name}", now)


def _new_group(connection: Connection, name: str, owner: bytes, now: int) -> groups.GroupRow:
    found = groups.find(connection, groups.add(connection, owner, name, "", now, POLICY))
    assert found
    return found


def _own_groups(connection: Connection, scene: Scene, names: Sequence[str]) -> list[bytes]:
    return [groups.add(connection, scene.user_id, name, "", scene.now, POLICY) for name in names]


def _public_groups(connection: Connection, scene: Scene, names: Sequence[str]) -> list[bytes]:
    found = []
    for name in names:
        owner = person(connection, f"o_{name}", scene.now)
        found.append(_new_group(connection, name, owner, scene.now).group_id)
        connection.execute("UPDATE groups SET visibility = 'public' WHERE group_id = ?", (found[-1],))
    return found


def _invites_to_me(connection: Connection, scene: Scene, names: Sequence[str]) -> list[bytes]:
    found = []
    for name in names:
        owner = person(connection, f"o_{name}", scene.now)
        key = _new_group(connection, name, owner, scene.now).group_key
        found.append(invites.add(connection, key, owner, scene.user_id, [b"c", b"w", b"g"], scene.now))
    return found


def _invites_of_group(connection: Connection, scene: Scene, names: Sequence[str]) -> list[bytes]:
    invited = [person(connection, name, scene.now) for name in names]
    of_group = scene.group_key, scene.user_id
    return [invites.add(connection, *of_group, each, [b"c", b"w", b"g"], scene.now) for each in invited]


def _welcomes(connection: Connection, scene: Scene, names: Sequence[str]) -> list[bytes]:
    for name in names:
        welcomes.add(connection, scene.group_key, scene.user_id, bodies.put(connection, name.encode() * 9))
    rows = connection.execute("SELECT welcome_id FROM welcomes ORDER BY welcome_key DESC LIMIT ?", (len(names),))
    return [row[0] for row in rows][::-1]


def _bans(connection: Connection, scene: Scene, names: Sequence[str]) -> list[bytes]:
    banned = [person(connection, name, scene.now) for name in names]
    for each in banned:
        bans.add(connection, scene.group_key, each, scene.user_id, scene.now)
    return banned


def _admins(connection: Connection, scene: Scene, names: Sequence[str]) -> list[bytes]:
    added = _members(connection, scene, names)
    connection.execute("UPDATE members SET role = 'admin' WHERE group_key = ?", (scene.group_key,))
    return added


def _members(connection: Connection, scene: Scene, names: Sequence[str]) -> list[bytes]:
    added = [person(connection, name, scene.now) for name in names]
    for each in added:
        members.add(connection, scene.group_key, each, scene.now)
    return added


def _sessions(connection: Connection, scene: Scene, names: Sequence[str]) -> list[bytes]:
    for _ in names:
        sessions.add(connection, scene.user_id, _hash_of(connection, scene), uuid4().bytes * 2, scene.now, 10**6)
    rows = connection.execute("SELECT public_id FROM sessions ORDER BY session_id DESC LIMIT ?", (len(names),))
    return [row[0] for row in rows][::-1]


def _hash_of(connection: Connection, scene: Scene) -> str:
    row = connection.execute("SELECT password_hash FROM users WHERE user_id = ?", (scene.user_id,)).fetchone()
    return str(row[0])


def _delete(table: str, column: str) -> Callable[[Connection, Scene, bytes], None]:
    def delete(connection: Connection, _: Scene, row_id: bytes) -> None:
        connection.execute(f"DELETE FROM {table} WHERE {column} = ?", (row_id,))

    return delete


def _leave(connection: Connection, scene: Scene, row_id: bytes) -> None:
    own = "group_key = (SELECT group_key FROM groups WHERE group_id = ?) AND user_id = ?"
    connection.execute(f"DELETE FROM members WHERE {own}", (row_id, scene.user_id))


def _demote(connection: Connection, scene: Scene, row_id: bytes) -> None:
    own = "group_key = ? AND user_id = ?"
    connection.execute(f"UPDATE members SET role = 'member' WHERE {own}", (scene.group_key, row_id))


def _hide(connection: Connection, _: Scene, row_id: bytes) -> None:
    connection.execute("UPDATE groups SET visibility = 'private' WHERE group_id = ?", (row_id,))


CASES = {
    "own groups": Case("/groups", "groups", "group_id", _own_groups, _leave, is_complete=True),
    "public groups": Case("/groups/public", "groups", "group_id", _public_groups, _hide),
    "own invites": Case(
        *("/invites", "invites", "invite_id", _invites_to_me), _delete("invites", "invite_id"), is_complete=True
    ),
    "invites of a group": Case(
        *("/groups/{group_id}/invites", "invites", "invite_id", _invites_of_group),
        _delete("invites", "invite_id"),
        is_complete=True,
    ),
    "welcomes": Case(
        *("/welcomes", "welcomes", "welcome_id", _welcomes), _delete("welcomes", "welcome_id"), is_complete=True
    ),
    "bans": Case("/groups/{group_id}/banned", "users", "user_id", _bans, _delete("bans", "user_id")),
    "admins": Case("/groups/{group_id}/admins", "admins", "user_id", _admins, _demote),
    "sessions": Case("/sessions", "sessions", "id", _sessions, _delete("sessions", "public_id")),
}


async def scene_of(running: Running, client: Client, name: str = "club") -> Scene:
    """Return a scene with a group of the client's."""
    group_id = UUID((await client.post("/groups", group_name=name))["group_id"]).bytes
    [(key,)] = await running.query("SELECT group_key FROM groups WHERE group_id = ?", group_id)
    return Scene(UUID(client.user_id).bytes, key, group_id, running.clock.now())


async def fill(running: Running, case: Case, scene: Scene, names: Sequence[str]) -> list[bytes]:
    """Add rows to a list, and return their ids."""
    return await running.app[app_keys.STORE].write(case.add, scene, names)


async def remove(running: Running, case: Case, scene: Scene, row_id: bytes) -> None:
    """Remove a row of a list."""
    await running.app[app_keys.STORE].write(case.remove, scene, row_id)


async def add_members(running: Running, scene: Scene, names: Sequence[str]) -> list[bytes]:
    """Add members to the group of a scene, and return their ids."""
    return await running.app[app_keys.STORE].write(_members, scene, names)
