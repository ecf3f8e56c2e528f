"""Legal holds and purges in the archive: kept there until released, counted without Spark."""

from pathlib import Path
from uuid import UUID

import pytest

from conclave.actions import holds, purges
from conclave.actions.command_runner import CommandRunner
from conclave.actions.context import Context
from conclave.archive import queries
from conclave.archive.faults import UnreadableArchiveError
from conclave.clock import FakeClock
from conclave.keys.cipher import OVERHEAD_BYTES
from conclave.retention import marks
from conclave.retention.hidden import MessageTotals
from conclave.store.resources import audit
from conclave.system import operator_identity
from tests.support.archived import DAY, START, USERS, Store
from tests.support.cleaner import Cleaner

pytestmark = pytest.mark.system


@pytest.fixture
def store(tmp_path: Path, cleaner: Cleaner) -> Store:
    return Store(tmp_path, cleaner)


def outside(store: Store) -> tuple[CommandRunner, Context]:
    opened = CommandRunner(store.config, FakeClock(store.now))
    return opened, opened.context()


def hold(store: Store, *, group_key: int | None = None, user_id: bytes = b"") -> int:
    opened, context = outside(store)
    subject = user_id or store.group_ids[group_key or 0]
    covered = holds.HoldSubject(group_key, subject, "name")
    return opened.write(holds.add, context, "operator root", covered, "case 17").hold_id


def release(store: Store, hold_id: int) -> None:
    opened, context = outside(store)
    opened.write(holds.release, context, "operator root", hold_id)


def plan(store: Store, group_key: int, before: int) -> tuple[MessageTotals, MessageTotals]:
    """What a purge would take from the database, and from the archive."""
    opened, context = outside(store)
    found = opened.read(purges.plan, context, str(UUID(bytes=store.group_ids[group_key])), before)
    return found.impact.known, queries.count(store.config, found.impact.archive_count)


def test_a_hold_keeps_what_is_archived_until_it_is_released(store: Store) -> None:
    held, other, deleted = store.add_group(20 * DAY), store.add_group(20 * DAY), store.add_group()
    for group_key in (held, other, deleted):
        store.send(group_key, 3)
        store.send(group_key, 2, sender=USERS[1], is_commit=True)
    kept = store.add_group()
    store.send(kept, 2)
    store.now += 8 * DAY
    assert store.run()["archived"] == 17
    of_group, of_user = hold(store, group_key=held), hold(store, user_id=USERS[1])
    store.delete_group(deleted)
    store.delete_account(USERS[0])
    store.now += 13 * DAY
    covered = {(held, seq) for seq in range(1, 6)} | {(key, seq) for key in (other, deleted) for seq in (4, 5)}
    store.expect_served(set())
    store.run()
    store.expect_sound()
    store.expect_served(set())
    left = store.search.numbers_in(store.folder)
    assert {store.made[key] for key in covered} <= left
    store.expect_erased(set(store.made) - covered)
    release(store, of_user)
    store.run()
    store.expect_sound()
    covered = {(held, seq) for seq in range(1, 6)}
    assert store.search.numbers_in(store.folder) == {store.made[key] for key in covered}
    release(store, of_group)
    store.run()
    store.expect_sound()
    store.expect_erased(set(store.made))
    assert sum(store.run()["deleted"].values()) == 0


def test_a_purge_counts_hides_and_erases_in_both_tiers(store: Store) -> None:
    purged, other = store.add_group(), store.add_group()
    for _ in range(4):
        for group_key in (purged, other):
            store.send(group_key, 2)
            store.send(group_key, 1, sender=USERS[1])
        store.now += 3 * DAY
    assert store.run()["archived"] > 0
    border = START + 7 * DAY
    early = {(purged, seq) for seq in range(1, 10)}
    in_archive = {(purged, row["sequence_num"]) for row in store.table().to_pylist() if row["group_key"] == purged}
    hot, cold = plan(store, purged, border)
    assert hot.messages + cold.messages == len(early)
    assert cold.messages == len(early & in_archive) > 0
    assert hot.body_bytes + cold.body_bytes == 300 * len(early) + OVERHEAD_BYTES * cold.messages
    assert (cold.oldest, cold.held, cold.young) == (START, 0, 0)
    hold_id = hold(store, user_id=USERS[1])
    assert sum(amount.held for amount in plan(store, purged, border)) == 3
    every = hold(store, group_key=purged)
    assert sum(amount.held for amount in plan(store, purged, border)) == 9
    release(store, every)
    assert plan(store, purged, START) == (MessageTotals(), MessageTotals())
    opened, context = outside(store)
    opened.write(purges.purge, context, "operator root", store.group_ids[purged], border)
    served = set(store.made) - early
    store.expect_served(served)
    store.run()
    store.expect_sound()
    store.expect_served(served)
    by_bob = {(purged, seq) for seq in (3, 6, 9)}
    store.expect_erased(early - by_bob)
    assert {store.made[key] for key in by_bob} <= store.search.numbers_in(store.folder)
    release(store, hold_id)
    store.run()
    store.expect_served(served)
    store.expect_erased(early)


def test_an_archive_that_cannot_be_read_is_told_in_a_line(store: Store) -> None:
    group_key = store.add_group()
    store.send(group_key, 3)
    store.now += 8 * DAY
    store.run()
    store.config.archive_path.rename(store.folder / "elsewhere")
    with pytest.raises(UnreadableArchiveError, match=str(store.config.archive_path)) as told:
        plan(store, group_key, store.now)
    assert "\n" not in str(told.value)


def test_a_restored_group_is_noted_once_it_is_served_from_the_database(store: Store) -> None:
    group_key = store.add_group()
    store.send(group_key, 3)
    store.now += 8 * DAY
    store.run()
    assert "error" in store.restore(group_key, "restore.before_switch=io")
    assert store.query("SELECT * FROM audit") == []
    assert store.restore(group_key) == {"restored": 3}
    [entry] = outside(store)[0].read(audit.last, 9)
    assert (entry.action, entry.actor) == ("group_restored", operator_identity.current())
    assert (entry.subject.subject_id, entry.details) == (store.group_ids[group_key], {"messages": 3})


def test_what_holds_keep_is_counted_exactly_in_both_tiers_also_where_only_some_of_a_part_is_due(store: Store) -> None:
    timed, fetched, kept = store.add_group(20 * DAY), store.add_group(), store.add_group()
    for _ in range(3):  # in one part of the archive, and due one after the other
        store.send(timed, 4)
        store.send(timed, 2, sender=USERS[1], is_commit=True)
        store.now += DAY
    for group_key in (fetched, kept):
        store.send(group_key, 4)
        store.send(group_key, 3, sender=USERS[1])
    store.now += 8 * DAY
    assert store.run()["archived"] == 32
    store.send(timed, 2, sender=USERS[1], is_commit=True)
    of_group = hold(store, group_key=timed)
    assert store.run()["held"] == 0
    store.now += 11 * DAY  # the first 12 of 18 in the archive are due
    assert (store.dry_run()["held"], store.run()["held"]) == (12, 12)
    of_user = hold(store, user_id=USERS[1])
    assert store.run()["held"] == 12, "none counts twice"
    with store.opened() as connection:
        marks.hide_before(connection, fetched, store.now)
    assert (store.dry_run()["held"], store.run()["held"]) == (15, 15)
    store.now += 11 * DAY
    assert (store.dry_run()["held"], store.run()["held"]) == (23, 23), "the last two are in the database"
    release(store, of_group)
    assert (store.dry_run()["held"], store.run()["held"]) == (11, 11), "of the user: commits count too"
    release(store, of_user)
    assert store.run()["held"] == 0
    store.expect_sound()


def test_a_run_changes_nothing_in_the_archive_while_all_that_is_due_there_is_held(store: Store) -> None:
    group_key, kept = store.add_group(20 * DAY), store.add_group()
    for sender in (USERS[0], USERS[1]):
        store.send(group_key, 2, sender=sender)
    store.send(kept, 2)
    store.now += 8 * DAY
    assert store.run()["archived"] == 6
    hold_id = hold(store, user_id=USERS[1])
    store.now += 13 * DAY
    assert store.run()["deleted"]["expired"] == 2
    state = "SELECT version, turn, unerased FROM archive_state"
    before, files = store.query(state), sorted(store.config.archive_path.rglob("*.json"))
    assert store.run()["deleted"]["expired"] == 0
    assert store.query(state) == before
    assert sorted(store.config.archive_path.rglob("*.json")) == files
    store.expect_sound()
    release(store, hold_id)
    assert store.run()["deleted"]["expired"] == 2
    store.expect_erased({(group_key, seq) for seq in (1, 2, 3, 4)})
    store.expect_sound()


@pytest.mark.parametrize("covers", ["groups", "user"])
def test_what_a_run_that_failed_has_erased_is_not_told_to_be_held_by_a_hold_that_came_later(
    store: Store, covers: str
) -> None:
    timed, purged, kept = store.add_group(20 * DAY), store.add_group(), store.add_group()
    for group_key in (timed, purged, kept):
        store.send(group_key, 3)
    store.now += 8 * DAY
    store.run()
    store.now += 13 * DAY
    with store.opened() as connection:
        marks.hide_before(connection, purged, store.now)
    assert store.try_run("archive.erased_by_keys=io")["error"], "the point was reached"
    if covers == "user":
        hold(store, user_id=USERS[0])
    else:
        hold(store, group_key=timed)
        hold(store, group_key=purged)
    store.run()
    store.expect_sound()
    assert {row["group_key"] for row in store.table().to_pylist()} == {kept}
    receipts = store.query("SELECT group_id, sum(messages) FROM receipts GROUP BY 1")
    assert dict(receipts) == {store.group_ids[timed]: 3, store.group_ids[purged]: 3}
