"""What counts as overdue, since when, and what is late."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from conclave.clock import FakeClock
from conclave.config.settings import Config
from conclave.retention import marks
from conclave.retention.jobs import HOUSEKEEPING, PurgeJob, schedule
from conclave.retention.resolve import Lifetimes, PolicySettings
from conclave.store.archive import status
from conclave.store.engine import sqlite
from conclave.store.resources import audit, state
from conclave.store.resources.audit import AuditAction, Subject
from conclave.store.views import overdue
from conclave.store.views.overdue import GroupBacklog, OverdueTotal
from tests.support import stores
from tests.support.stores import MESSAGE

NOW = 2_000_000_000
HOUR = 3600
DAY = 86_400
SENT = NOW - 10 * DAY
GROUP = b"g" * 16
ALICE, BOB = b"a" * 16, b"b" * 16
KEEP = PolicySettings(-1, 1000, 1000)


@pytest.fixture
def store(config: Config) -> Iterator[sqlite3.Connection]:
    """A group of Alice and Bob with messages 1 and 2 of Alice and a commit 3 of Bob, all sent ten days ago."""
    stores.prepare(config.database)
    with closing(sqlite.connect(config.database)) as connection:
        state.begin_serving(connection, config.policy, FakeClock(NOW).read())
        connection.executemany(
            "INSERT INTO users (user_id, username, password_hash, alias, created_at) VALUES (?, hex(?), '', '', 0)",
            [(ALICE, ALICE), (BOB, BOB)],
        )
        connection.execute(
            "INSERT INTO groups (group_key, group_id, group_name, alias, created_at, last_seq)"
            " VALUES (1, ?, 'g', '', 0, 3)",
            (GROUP,),
        )
        connection.executemany(
            "INSERT INTO members (group_key, user_id, role, joined_at) VALUES (1, ?, 'member', 0)", [(ALICE,), (BOB,)]
        )
        for number, (sender, is_commit) in enumerate([(ALICE, False), (ALICE, False), (BOB, True)], 1):
            stores.add_message(connection, 1, number, sender, SENT, is_commit=is_commit)
        connection.execute("PRAGMA query_only = ON")  # as the server's readers
        yield connection


def change(store: sqlite3.Connection, sql: str, *values: object) -> None:
    store.execute("PRAGMA query_only = OFF")
    assert store.execute(sql, values).rowcount != 0
    store.execute("PRAGMA query_only = ON")


def govern(store: sqlite3.Connection, settings: PolicySettings) -> None:
    store.execute("PRAGMA query_only = OFF")
    marks.write(store, settings)
    store.execute("PRAGMA query_only = ON")


def found(store: sqlite3.Connection, settings: PolicySettings = KEEP, now: int = NOW) -> GroupBacklog | None:
    govern(store, settings)
    return overdue.find(store, now).get(1)


def since(store: sqlite3.Connection, settings: PolicySettings = KEEP, now: int = NOW) -> int | None:
    due = found(store, settings, now)
    return due.since if due else None


def ran(store: sqlite3.Connection, at: int, outcome: str = "ok") -> None:
    change(
        store,
        "INSERT INTO cleanup_runs (started_at, finished_at, engine, outcome, counts) VALUES (?, ?, 'sql', ?, '{}')",
        *(at, at, outcome),
    )


def archive(store: sqlite3.Connection, first: int = 1, last: int = 3) -> None:
    """Have all messages lie in the archive, in one part."""
    change(store, "DELETE FROM messages")
    change(store, "UPDATE groups SET archived_seq = 3")
    change(
        store,
        "INSERT INTO archive_parts VALUES (1, -1, ?, ?, ?, ?, ?, 3, 12, 0)",
        *(SENT - SENT % DAY, first, last, SENT, SENT),
    )


@pytest.mark.parametrize("where", ["hot", "archived"])
def test_by_age_it_counts_from_the_first_second_at_which_it_is_hidden_and_old_enough(
    store: sqlite3.Connection, where: str
) -> None:
    if where == "archived":
        archive(store)
    day = replace(KEEP, message_retention=DAY)
    assert since(store) is None
    assert since(store, day, SENT + DAY) is None
    assert since(store, day, SENT + DAY + 1) == since(store, day) == SENT + DAY + 1
    least = replace(day, default_policy=Lifetimes(5 * DAY, -1))
    assert since(store, least, SENT + 5 * DAY - 1) is None
    assert since(store, least, SENT + 5 * DAY) == since(store, least) == SENT + 5 * DAY
    assert since(store, replace(day, enabled=False)) is None
    govern(store, day)
    assert overdue.total_overdue(store, NOW) == OverdueTotal(1, 9 * DAY - 1)


@pytest.mark.parametrize("where", ["hot", "archived"])
def test_what_a_hold_keeps_is_not_overdue(store: sqlite3.Connection, where: str) -> None:
    if where == "archived":
        archive(store)
    day = replace(KEEP, message_retention=DAY)
    add = "INSERT INTO holds (group_key, user_id, subject_id, name, reason, added_by, added_at) VALUES"
    change(store, f"{add} (NULL, ?, ?, '', '', '', 0)", ALICE, ALICE)
    # Of the archive the index does not say whether anything is not Alice's.
    assert since(store, day) == (SENT + DAY + 1 if where == "hot" else None)
    change(store, f"{add} (NULL, ?, ?, '', '', '', 0)", BOB, BOB)
    assert since(store, day) is None
    change(store, "DELETE FROM holds")
    change(store, f"{add} (1, NULL, ?, '', '', '', 0)", GROUP)
    assert since(store, day) is None
    change(store, "DELETE FROM holds")
    assert since(store, day) == SENT + DAY + 1


def test_a_decision_makes_nothing_overdue_from_before_it(store: sqlite3.Connection) -> None:
    day = replace(KEEP, message_retention=DAY)
    for at, action, subject in [
        (NOW - 900, AuditAction.GROUP_HELD, Subject(GROUP)),
        (NOW - 800, AuditAction.SETTINGS_CHANGED, Subject()),
        (NOW - 700, AuditAction.USER_RELEASED, Subject(BOB)),
        (NOW - 600, AuditAction.POLICY_CHANGED, Subject(GROUP)),
    ]:
        store.execute("PRAGMA query_only = OFF")
        audit.note(store, at, "operator o", action, subject)
        audit.note(store, NOW, "operator o", AuditAction.ACCOUNT_DISABLED, Subject(BOB))
        store.execute("PRAGMA query_only = ON")
        assert since(store, day) == at


def test_what_everybody_has_fetched_counts_from_the_last_run_that_succeeded(store: sqlite3.Connection) -> None:
    change(store, "UPDATE groups SET message_expiry_seconds = 0")
    change(store, "UPDATE members SET watermark = 2 WHERE user_id = ?", ALICE)
    assert found(store) is None
    change(store, "UPDATE members SET watermark = 1 WHERE user_id = ?", BOB)
    ran(store, NOW - 500)
    ran(store, NOW - 100, "failed")
    due = found(store)
    assert due
    assert (due.by_policy, due.by_mark) == (NOW - 500, None)
    change(store, "UPDATE groups SET gone_below = 1")
    due = found(store)
    assert due
    assert (due.by_policy, due.by_mark) == (None, NOW - 500)


def test_only_runs_that_cover_a_group_count_for_what_everybody_has_fetched(store: sqlite3.Connection) -> None:
    jobs = schedule([PurgeJob(DAY, -1, 3 * DAY), PurgeJob(HOUR, 3 * DAY, -1)], HOUR)
    change(store, "UPDATE groups SET message_expiry_seconds = 0")
    change(store, "UPDATE members SET watermark = 3")
    for ago, job in ((900, "everything"), (800, "up to 3d"), (700, "over 3d"), (600, HOUSEKEEPING)):
        counts = json.dumps({"job": job})
        change(
            store,
            "INSERT INTO cleanup_runs (started_at, finished_at, engine, outcome, counts) VALUES (?, ?, 'sql', 'ok', ?)",
            *(NOW - ago, NOW, counts),
        )
    govern(store, KEEP)
    assert overdue.find(store, NOW, schedule=jobs)[1].since == NOW - 800
    assert overdue.find(store, NOW)[1].since == NOW - 600
    change(store, "UPDATE groups SET gone_below = 3")
    assert overdue.find(store, NOW, schedule=jobs)[1].since == NOW - 600


def test_what_a_mark_hides_counts_from_the_last_run_that_succeeded(store: sqlite3.Connection) -> None:
    change(store, "UPDATE groups SET expired_before = ?", SENT + 1)
    ran(store, NOW - 500)
    due = found(store)
    assert due
    assert (due.by_policy, due.by_mark) == (None, NOW - 500)


def test_commits_that_are_kept_are_not_overdue(store: sqlite3.Connection) -> None:
    day = replace(KEEP, message_retention=DAY, retain_commits=True)
    assert since(store, day) == SENT + DAY + 1
    change(store, "DELETE FROM messages WHERE NOT is_commit")
    assert since(store, day) is None
    change(store, "UPDATE members SET watermark = 3")
    assert since(store, day) == SENT + DAY + 1


@pytest.mark.parametrize("where", ["hot", "archived"])
def test_a_deleted_group_is_overdue_from_its_deletion_on_or_when_it_is_old_enough(
    store: sqlite3.Connection, where: str
) -> None:
    if where == "archived":
        archive(store)
    change(store, "DELETE FROM groups")
    change(store, "INSERT INTO tombstones (group_key, created_at, group_id) VALUES (1, ?, ?)", NOW - 50, GROUP)
    assert since(store) == NOW - 50
    assert since(store, replace(KEEP, default_policy=Lifetimes(10 * DAY - 20, -1))) == NOW - 20
    assert since(store, replace(KEEP, default_policy=Lifetimes(10 * DAY + 1, -1))) is None
    assert since(store, replace(KEEP, groups={"67676767-6767-6767-6767-676767676767": Lifetimes(11 * DAY)})) is None


@pytest.mark.parametrize("where", ["hot", "archived"])
def test_a_deleted_account_is_overdue_from_its_deletion_on(store: sqlite3.Connection, where: str) -> None:
    if where == "archived":
        archive(store)
        change(store, "INSERT INTO archive_senders VALUES (?, 1)", ALICE)
    change(store, "INSERT INTO user_tombstones VALUES (?, ?)", BOB, NOW - 60)
    assert since(store) is None, "Bob has sent nothing but a commit"
    change(store, "INSERT INTO user_tombstones VALUES (?, ?)", ALICE, NOW - 50)
    assert since(store) == NOW - 50
    assert since(store, replace(KEEP, default_policy=Lifetimes(11 * DAY, -1))) is None
    assert overdue.find(store, NOW, 2) == {}
    add = "INSERT INTO holds (user_id, subject_id, name, reason, added_by, added_at) VALUES (?, ?, '', '', '', 0)"
    change(store, add, ALICE, ALICE)
    assert since(store) is None


def test_of_a_deleted_account_the_oldest_message_counts_in_whatever_group_it_lies(store: sqlite3.Connection) -> None:
    change(
        store,
        "INSERT INTO groups (group_key, group_id, group_name, alias, created_at, last_seq)"
        " VALUES (2, ?, 'h', '', 0, 1)",
        b"h" * 16,
    )
    change(store, f"INSERT INTO messages {MESSAGE} VALUES (2, 1, ?, 0, ?, 0)", ALICE, SENT - 5 * DAY)
    change(store, "INSERT INTO user_tombstones VALUES (?, ?)", ALICE, SENT)
    nine_days = replace(KEEP, default_policy=Lifetimes(9 * DAY, -1))
    govern(store, nine_days)
    due = overdue.find(store, NOW)
    assert {key: each.since for key, each in due.items()} == {2: SENT + 4 * DAY}
    only = overdue.find(store, NOW, 1)
    assert {key: each.since for key, each in only.items()} == {1: SENT + 9 * DAY}


def test_late_is_what_two_runs_have_left(store: sqlite3.Connection) -> None:
    settings = replace(KEEP, message_retention=DAY)
    govern(store, settings)
    due = SENT + DAY + 1
    hourly = schedule([], HOUR)
    assert overdue.with_late(store, hourly, due + 2 * HOUR)[1] == OverdueTotal()
    assert overdue.with_late(store, hourly, due + 2 * HOUR + 1)[1] == OverdueTotal(1, 2 * HOUR + 1)
    weekly = schedule([PurgeJob(7 * DAY, -1, 2 * DAY)], HOUR)
    assert overdue.with_late(store, weekly, due + 2 * HOUR + 1)[1] == OverdueTotal()
    assert overdue.with_late(store, weekly, due + 14 * DAY + 1)[1] == OverdueTotal(1, 14 * DAY + 1)
    other = schedule([PurgeJob(HOUR, 2 * DAY, -1)], HOUR)
    assert other[0][0].name == HOUSEKEEPING
    assert overdue.with_late(store, other, due + 99 * DAY)[1] == OverdueTotal(), "no run covers it"
    change(store, "DELETE FROM groups")
    change(store, "INSERT INTO tombstones (group_key, created_at, group_id) VALUES (1, ?, ?)", NOW, GROUP)
    govern(store, settings)
    assert overdue.with_late(store, weekly, NOW + 2 * HOUR + 1)[1] == OverdueTotal(1, 2 * HOUR + 1), "any run would do"


def test_the_status_of_the_archive_leaves_out_what_is_withheld(store: sqlite3.Connection) -> None:
    archive(store)
    day = replace(KEEP, message_retention=DAY)
    govern(store, day)
    told = status.overdue(store, NOW)
    assert (told.expired_parts, told.expired_seconds) == (1, 9 * DAY)
    for withheld in (replace(day, enabled=False), replace(day, default_policy=Lifetimes(11 * DAY, -1))):
        govern(store, withheld)
        assert status.overdue(store, NOW).expired_parts == 0
    change(store, "DELETE FROM groups")
    change(store, "INSERT INTO tombstones (group_key, created_at, group_id) VALUES (1, ?, ?)", NOW - 50, GROUP)
    govern(store, day)
    assert status.overdue(store, NOW).deleted_groups == 1
    assert status.overdue(store, NOW).deleted_groups_seconds == 50
    govern(store, replace(day, enabled=False))
    assert status.overdue(store, NOW).deleted_groups == 0
