"""The policies of stored groups: the resolver's table, row by row, as readers and runs ask for it."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from conclave.retention.policy import FOREVER, KEEP
from conclave.store import policies, schema, sqlite
from tests.support.policies import ANOTHER, CASES, GROUP, Case, policy_table, settings

NOW = 1_800_000_000
LIVING, DELETED, OTHER = 1, 2, 3


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    path: Path = tmp_path_factory.mktemp("store") / "hot.db"
    schema.prepare(path)
    with closing(sqlite.connect(path)) as opened:
        yield opened


def fill(connection: sqlite3.Connection, case: Case) -> None:
    """Store a group with what its admins have set, a deleted one of the same, and another one that inherits."""
    connection.execute("DELETE FROM groups")
    connection.execute("DELETE FROM tombstones")
    connection.execute("DELETE FROM holds")
    connection.executemany(
        "INSERT INTO groups (group_key, group_id, group_name, alias, created_at, message_expiry_seconds,"
        " min_lifetime_seconds) VALUES (?, ?, ?, '', 0, ?, ?)",
        [(LIVING, GROUP.bytes, "a", case.own_max, case.own_min), (OTHER, ANOTHER.bytes, "b", KEEP, KEEP)],
    )
    connection.execute(
        "INSERT INTO tombstones (group_key, created_at, group_id, message_expiry_seconds, min_lifetime_seconds)"
        " VALUES (?, 0, ?, ?, ?)",
        (DELETED, GROUP.bytes, case.own_max, case.own_min),
    )


@policy_table
def test_every_way_to_ask_for_a_policy_gives_the_same(connection: sqlite3.Connection, case: Case) -> None:
    fill(connection, case)
    for key in (LIVING, DELETED):
        assert policies.find(connection, key, case.settings) == case.policy
    policies.list_all(connection, case.settings, NOW, lambda policy: policy == case.policy)
    expected = (case.lifetime, case.policy.expires_before(NOW), case.policy.erasable_before(NOW), 1)
    columns = "lifetime, expires_before, erasable_before, covered"
    [living, other] = connection.execute(f"SELECT {columns} FROM temp.group_policies ORDER BY group_key")
    [deleted] = connection.execute(f"SELECT {columns} FROM temp.tombstone_policies")
    assert tuple(living) == tuple(deleted) == expected
    inherited = case.settings.of_group(ANOTHER.bytes, KEEP, KEEP)
    assert tuple(other)[:2] == (inherited.lifetime, inherited.expires_before(NOW))


@policy_table
def test_a_group_whose_policy_changes_is_listed_once_with_both(connection: sqlite3.Connection, case: Case) -> None:
    fill(connection, case)
    plain = settings()
    old = {key: plain.of_group(*own) for key, own in stored(connection).items()}
    new = {key: case.settings.of_group(*own) for key, own in stored(connection).items()}
    listed = sorted(policies.changed(connection, plain, case.settings), key=lambda row: row[0])
    assert listed == [(key, old[key], new[key]) for key in sorted(old) if old[key] != new[key]]
    assert list(policies.changed(connection, case.settings, case.settings)) == []


def stored(connection: sqlite3.Connection) -> dict[int, tuple[bytes, int, int]]:
    rows = connection.execute("SELECT group_key, group_id, message_expiry_seconds, min_lifetime_seconds FROM groups")
    return {key: (group_id, own_max, own_min) for key, group_id, own_max, own_min in rows}


def test_a_legal_hold_keeps_everything_of_a_group_from_being_erased(connection: sqlite3.Connection) -> None:
    fill(connection, CASES[0])
    connection.execute(
        "INSERT INTO holds (group_key, subject_id, name, reason, added_by, added_at) VALUES (?, ?, '', '', '', 0)",
        (LIVING, GROUP.bytes),
    )
    policies.list_all(connection, settings(), NOW)
    query = "SELECT group_key, erasable_before FROM temp.group_policies ORDER BY group_key"
    assert [tuple(row) for row in connection.execute(query)] == [(LIVING, 0), (OTHER, FOREVER)]
