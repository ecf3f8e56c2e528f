"""What a crash, a full disk or an operator may leave behind before or between the runs of an archive."""

from dataclasses import replace
from pathlib import Path

import pytest

from conclave.config.cleanup import CleanupConfig
from conclave.store import bodies
from tests.support.archived import DAY, Store
from tests.support.cleaner import Cleaner

pytestmark = pytest.mark.system


@pytest.fixture
def store(tmp_path: Path, cleaner: Cleaner) -> Store:
    return Store(tmp_path, cleaner)


def test_an_archive_that_was_not_made_to_its_end_is_made_by_the_next_run(store: Store) -> None:
    group_key = store.add_group()
    store.send(group_key, 3)
    store.now += 8 * DAY
    log = store.config.archive_path / "_delta_log"
    log.mkdir(parents=True)
    (log / ".00000000000000000000.json.f3a0.tmp").write_text("{")
    assert store.run()["archived"] == 3
    store.expect_sound()


def test_a_batch_of_which_nothing_is_left_ends(store: Store) -> None:
    gone, kept = store.add_group(), store.add_group()
    store.send(gone, 3)
    store.now += 8 * DAY
    store.send(kept, 3)
    assert store.try_run("archive.fixed=io")["error"], "the point was reached"
    store.delete_group(gone)
    store.now += 8 * DAY
    assert store.run()["archived"] == 3
    store.expect_served({(kept, number) for number in range(1, 4)})
    store.expect_erased({(gone, number) for number in range(1, 4)})
    store.expect_sound()
    store.run()
    assert store.query("SELECT count(*) FROM tombstones") == [(0,)]


def test_by_a_wrong_clock_nothing_moves_and_nothing_goes(store: Store) -> None:
    timed, kept = store.add_group(20 * DAY), store.add_group()
    for group_key in (timed, kept):
        store.send(group_key, 3)
    store.now += 8 * DAY
    store.run()
    store.send(kept, 3)
    before = store.table().num_rows
    report = store.cleaner.try_run(store.config, store.now + 400 * DAY, set_by=400 * DAY)
    assert "ClockWrongError" in report["error"]
    assert store.table().num_rows == before
    store.expect_served(set(store.made))
    assert store.query("SELECT count(*) FROM archive_moves") == [(1,)]


def test_a_dry_run_counts_what_all_have_fetched_in_the_archive(store: Store) -> None:
    fetched, kept = store.add_group(), store.add_group()
    for group_key in (fetched, kept):
        store.send(group_key, 4)
    store.now += 8 * DAY
    store.run()
    store.set_expiry(fetched, 0)
    store.fetch_all(fetched)
    planned = store.cleaner.dry_run(store.config, store.now)
    assert planned["deleted"] == store.run()["deleted"]
    assert planned["deleted"]["fetched"] == 4


def test_a_run_that_is_over_its_time_goes_on_in_the_next_one(store: Store) -> None:
    group_key = store.add_group()
    store.send(group_key, 300)
    store.now += 8 * DAY
    hurried = replace(store.config, cleanup=CleanupConfig(max_run_time=1))
    told = [store.cleaner.try_run(hurried, store.now)["error"] for _ in range(2)]
    assert all(not each or "max_run_time" in each for each in told), told
    store.expect_served(set(store.made))
    store.run()
    store.expect_served(set(store.made))
    store.expect_sound()


def test_what_cannot_be_read_is_not_moved(store: Store) -> None:
    group_key = store.add_group()
    store.send(group_key, 5)
    with store.opened() as connection:
        bodies.delete_of_messages(connection, [bodies.message_id(group_key, 3)])
    store.now += 8 * DAY
    assert "could not be read from the database" in store.try_run("")["error"]
    assert store.query("SELECT count(*) FROM messages") == [(5,)]
    assert store.query("SELECT archived_seq FROM groups") == [(0,)]


def test_copies_of_a_move_whose_bodies_are_gone_are_not_restored(store: Store) -> None:
    group_key = store.add_group()
    store.send(group_key, 300)
    store.now += 8 * DAY
    assert store.try_run("archive.copies_chunk_deleted=io@2")["error"], "the point was reached"
    assert store.query("SELECT count(*) > 0 FROM messages") == [(1,)]
    assert store.restore(group_key)["restored"] == 300
    store.expect_served(set(store.made))
