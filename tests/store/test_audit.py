"""The audit log: written with what it tells of, found again by whom it is about, pruned in small steps."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from conclave.clock import FakeClock
from conclave.retention.resolve import Lifetimes, PolicySettings
from conclave.store.engine import sqlite
from conclave.store.resources import audit, state
from conclave.store.resources.audit import AuditAction, AuditEntry, AuditFilter, Subject
from tests.support import stores

NOW, DAY = 1_700_000_000, 86_400
POLICY = PolicySettings(-1, 30 * DAY, 7 * DAY)


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    stores.prepare(tmp_path / "hot.db")
    with closing(sqlite.connect(tmp_path / "hot.db")) as opened:
        yield opened


def ids(entries: list[AuditEntry]) -> list[int]:
    return [each.audit_id for each in entries]


def test_an_entry_comes_back_as_it_was_written(connection: sqlite3.Connection) -> None:
    subject, details = Subject(b"g" * 16, "friends"), {"hold": 1, "reason": "Fall “17”\n\x1b[31m"}
    audit.note(connection, NOW, "operator root", AuditAction.GROUP_HELD, subject, details)
    assert audit.last(connection, 1) == [AuditEntry(1, NOW, "operator root", "group_held", subject, details)]


def test_what_is_rolled_back_leaves_no_entry_and_no_gap(connection: sqlite3.Connection) -> None:
    with suppress(LookupError), sqlite.write_transaction(connection):
        audit.note(connection, NOW, "server", AuditAction.SETTINGS_CHANGED)
        raise LookupError
    audit.note(connection, NOW, "server", AuditAction.SETTINGS_CHANGED)
    assert ids(audit.last(connection, 9)) == [1]


def test_entries_are_found_by_id_or_by_the_name_of_that_time_the_newest_first(connection: sqlite3.Connection) -> None:
    group, other, user = b"g" * 16, b"h" * 16, b"u" * 16
    for at, action, subject in (
        (NOW, AuditAction.GROUP_HELD, Subject(group, "bob")),
        (NOW + 1, AuditAction.USER_HELD, Subject(user, "bob")),
        (NOW + 2, AuditAction.GROUP_PURGED, Subject(group, "renamed")),
        (NOW + 3, AuditAction.POLICY_CHANGED, Subject(other, "bob")),
        (NOW + 4, AuditAction.GROUP_HELD, Subject(group, "")),
        (NOW + 5, AuditAction.CLOCK_ACCEPTED, Subject()),
    ):
        audit.note(connection, at, "operator root", action, subject)
    assert ids(audit.last(connection, 9)) == [6, 5, 4, 3, 2, 1]
    assert ids(audit.last(connection, 2)) == [6, 5]
    assert ids(audit.last(connection, 9, NOW + 3)) == [6, 5, 4]
    assert ids(audit.last(connection, 9, 0, AuditFilter(audit.OF_GROUPS, group, ""))) == [5, 3, 1]
    assert ids(audit.last(connection, 9, 0, AuditFilter(audit.OF_GROUPS, None, "bob"))) == [4, 1]
    assert ids(audit.last(connection, 9, 0, AuditFilter(audit.OF_GROUPS, other, "bob"))) == [4, 1]
    assert ids(audit.last(connection, 9, 0, AuditFilter(audit.OF_USERS, None, "bob"))) == [2]
    assert ids(audit.last(connection, 9, 0, AuditFilter(audit.OF_GROUPS, None, ""))) == [], (
        "the nameless are found by id"
    )


def test_each_action_is_about_a_group_a_user_or_the_server() -> None:
    of_server = {
        *(AuditAction.SETTINGS_CHANGED, AuditAction.CLOCK_ACCEPTED),
        *(AuditAction.BACKUP_MADE, AuditAction.BACKUP_RESTORED),
        *(AuditAction.TOKEN_ADDED, AuditAction.TOKEN_REVOKED, AuditAction.CLEANUP_ORDERED),
    }
    assert {*audit.OF_GROUPS, *audit.OF_USERS, *of_server} == set(AuditAction)
    assert len(audit.OF_GROUPS) + len(audit.OF_USERS) + len(of_server) == len(AuditAction)


def test_pruning_takes_the_oldest_a_bounded_number_at_a_time(
    connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "PRUNE_BATCH", 2)
    for at in (5, 1, 4, 2, 3):
        audit.note(connection, at, "server", AuditAction.SETTINGS_CHANGED)
    assert audit.prune(connection, 4)
    assert sorted(each.at for each in audit.last(connection, 9)) == [3, 4, 5]
    assert not audit.prune(connection, 4)
    assert sorted(each.at for each in audit.last(connection, 9)) == [4, 5], "not what is exactly as old"
    assert not audit.prune(connection, 4)
    audit.note(connection, 9, "server", AuditAction.SETTINGS_CHANGED)
    while audit.prune(connection, 10):
        pass
    assert audit.last(connection, 9) == []
    audit.note(connection, 9, "server", AuditAction.SETTINGS_CHANGED)
    assert ids(audit.last(connection, 9)) == [7], "no number comes again"


def test_a_server_with_other_settings_notes_each_with_its_old_and_its_new_value(connection: sqlite3.Connection) -> None:
    group = "8f14e45f-ceea-467f-9a3d-2b1c6d5e7f80"
    clock = FakeClock(NOW)
    state.begin_serving(connection, POLICY, clock.read())
    state.begin_serving(connection, POLICY, clock.read())
    assert audit.last(connection, 9) == [], "the first settings, and the same ones again, are no change"
    changed = PolicySettings(
        DAY, 30 * DAY, 7 * DAY, default_policy=Lifetimes(-1, 2 * DAY), groups={group: Lifetimes(-1, 3 * DAY)}
    )
    clock.advance(5)
    state.begin_serving(connection, changed, clock.read())
    state.begin_serving(connection, POLICY, clock.read())
    back, there = audit.last(connection, 9)
    of_group = f"retention.groups.{group}"
    assert (there.at, there.actor, there.action, there.subject) == (NOW + 5, "server", "settings_changed", Subject())
    assert there.details == {
        "changed": {
            "message_retention": [-1, DAY],
            "retention.default_policy.max_lifetime": [-1, 2 * DAY],
            f"{of_group}.min_lifetime": [None, -1],
            f"{of_group}.max_lifetime": [None, 3 * DAY],
        }
    }
    assert back.details == {"changed": {name: pair[::-1] for name, pair in there.details["changed"].items()}}
