"""Accepting the clock: what is served is the same before and after it."""

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from conclave.actions.authorisation import require_group
from conclave.clock import FakeClock
from conclave.retention import marks, visibility
from conclave.retention.resolve import PolicySettings
from conclave.store import bodies, clock_repair
from conclave.store.engine import sqlite
from conclave.store.resources import groups, messages, state, users
from tests.support import stores
from tests.support.memberships import member_of

NOW, DAY = 1_700_000_000, 86_400
TTL = 30 * DAY
POLICY = PolicySettings(-1, TTL, 7 * DAY)


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    stores.prepare(tmp_path / "hot.db")
    with closing(sqlite.connect(tmp_path / "hot.db")) as opened:
        state.begin_serving(opened, POLICY, FakeClock(NOW).read())
        yield opened


@pytest.mark.parametrize("seed", range(20))
def test_what_is_served_stays_the_same(connection: sqlite3.Connection, seed: int) -> None:
    chance = random.Random(seed)
    user_id = users.add(connection, "alice", "", "", NOW)
    for name in "abcdef":
        group_id = groups.add(connection, user_id, name, "", NOW, POLICY)
        key = member_of(connection, group_id, user_id).group.group_key
        around = chance.choice([NOW, NOW + 400 * DAY])
        for _ in range(chance.randrange(20)):
            at = chance.choice([NOW, around]) + chance.randrange(-5, 6) * chance.choice([1, 60, DAY])
            messages.append_stored(connection, key, user_id, bodies.put(connection, b"x"), at, is_commit=False)
        connection.execute(
            "UPDATE groups SET expired_before = ?, message_expiry_seconds = ? WHERE group_key = ?",
            (around + chance.randrange(-3, 4) * chance.choice([0, 1, 60, DAY]), chance.choice([-1, 5, 3 * DAY]), key),
        )
        marks.write(connection, POLICY, key)
    before = served(connection)
    clock_repair.accept(connection, FakeClock(NOW), TTL)
    assert served(connection) == before
    last = connection.execute("SELECT group_key, session_id FROM touches ORDER BY touch DESC LIMIT 1").fetchone()
    assert tuple(last) == (None, None), "a server forgets what it remembers"
    assert connection.execute("SELECT max(created_at) FROM messages").fetchone()[0] <= NOW
    for (key,) in connection.execute("SELECT group_key FROM groups").fetchall():
        before.add((key, sent(connection, key, user_id)))
    assert served(connection) == before, "what is sent in the same second is served"


def sent(connection: sqlite3.Connection, group_key: int, user_id: bytes) -> int:
    body_id = bodies.put(connection, b"new")
    return messages.append_stored(connection, group_key, user_id, body_id, NOW, is_commit=False).sequence_num


def served(connection: sqlite3.Connection) -> set[tuple[int, int]]:
    """What clients get, by group and number."""
    found: set[tuple[int, int]] = set()
    for (group_id,) in connection.execute("SELECT group_id FROM groups").fetchall():
        group = require_group(connection, group_id)
        view = visibility.of_group(connection, group, NOW)
        rows = connection.execute(
            f"SELECT sequence_num FROM messages WHERE group_key = :group_key AND {view.hot[0]}",
            {"group_key": group.group_key, **view.bounds(0)},
        )
        found.update((group.group_key, row[0]) for row in rows)
    return found
