"""The policies of stored groups: the resolver's table, row by row, as readers and runs ask for it."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from conclave.retention import marks, rules
from conclave.retention.jobs import PurgeJob
from conclave.retention.policy import FOREVER, KEEP
from conclave.retention.rules import limits_of
from conclave.store.engine import sqlite
from tests.support import stores
from tests.support.policies import ANOTHER, CASES, DAY, GROUP, HOUR, MONTH, Case, policy_table, settings

NOW = 1_800_000_000
LIVING, DELETED, OTHER = 1, 2, 3


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    path: Path = tmp_path_factory.mktemp("store") / "hot.db"
    stores.prepare(path)
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
def test_the_row_says_what_the_resolver_does_and_sql_what_the_policy_means(
    connection: sqlite3.Connection, case: Case
) -> None:
    fill(connection, case)
    marks.write(connection, case.settings)
    inherited = case.settings.of_group(ANOTHER.bytes, KEEP, KEEP)
    for key, policy in ((LIVING, case.policy), (DELETED, case.policy), (OTHER, inherited)):
        found = rules.find_policy(connection, key)
        assert found == policy
        assert found.source == policy.source
        limits = limits_of(connection, key, NOW)
        assert limits
        assert limits.erasable_before == policy.erasable_before(NOW)
        assert limits.is_deleted or limits.cutoff == policy.expires_before(NOW)
    marks.write(connection, settings(), LIVING)
    assert rules.find_policy(connection, LIVING) == settings().of_setting(case.own_max, case.own_min)
    assert rules.find_policy(connection, OTHER) == inherited, "one group alone was written"


@policy_table
def test_a_group_whose_policy_changes_is_listed_once_with_both(connection: sqlite3.Connection, case: Case) -> None:
    fill(connection, case)
    plain = settings()
    marks.write(connection, plain)
    old = {key: plain.of_group(*own) for key, own in stored(connection).items()}
    new = {key: case.settings.of_group(*own) for key, own in stored(connection).items()}
    listed = sorted(marks.changed(connection, case.settings), key=lambda row: row[0])
    assert listed == [(key, old[key], new[key]) for key in sorted(old) if old[key] != new[key]]
    assert marks.policies_under(connection, case.settings) == set(new.values())
    marks.settle(connection, case.settings, NOW)
    assert list(marks.changed(connection, case.settings)) == []
    assert {key: rules.find_policy(connection, key) for key in new} == new


@policy_table
def test_a_job_covers_the_same_groups_by_the_row_as_by_the_policy(connection: sqlite3.Connection, case: Case) -> None:
    fill(connection, case)
    marks.write(connection, case.settings)
    for shortest, longest in ((-1, -1), (-1, DAY), (DAY, -1), (DAY, MONTH), (HOUR, DAY)):
        job = PurgeJob(1, shortest, longest)
        found = connection.execute(f"SELECT {job.covered} FROM groups WHERE group_key = ?", (LIVING,)).fetchone()[0]
        assert bool(found) == job.covers(case.policy)


def stored(connection: sqlite3.Connection) -> dict[int, tuple[bytes, int, int]]:
    rows = connection.execute("SELECT group_key, group_id, message_expiry_seconds, min_lifetime_seconds FROM groups")
    return {key: (group_id, own_max, own_min) for key, group_id, own_max, own_min in rows}


def test_a_legal_hold_keeps_everything_of_a_group_from_being_erased(connection: sqlite3.Connection) -> None:
    fill(connection, CASES[0])
    marks.write(connection, settings())
    connection.execute(
        "INSERT INTO holds (group_key, subject_id, name, reason, added_by, added_at) VALUES (?, ?, '', '', '', 0)",
        (LIVING, GROUP.bytes),
    )
    found = {key: limits_of(connection, key, NOW) for key in (LIVING, OTHER)}
    assert [each.erasable_before for each in found.values() if each] == [0, FOREVER]
