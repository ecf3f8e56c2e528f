"""What was taken back of the archive: hidden there at once, erased by the next run, whatever happens in between."""

from collections.abc import Set
from dataclasses import replace
from pathlib import Path

import pytest

from conclave.actions import holds
from conclave.actions.command_runner import CommandRunner
from conclave.clock import FakeClock
from conclave.config.retention import RetentionConfig
from conclave.retention.resolve import Lifetimes
from conclave.store.archive import status
from conclave.store.resources import state
from tests.support.archived import DAY, USERS, Store
from tests.support.cleaner import Cleaner

pytestmark = pytest.mark.system


@pytest.fixture
def store(tmp_path: Path, cleaner: Cleaner) -> Store:
    return Store(tmp_path, cleaner)


def expect(store: Store, gone: Set[tuple[int, int]], kept: Set[tuple[int, int]] = frozenset()) -> None:
    """These are not served, and in no file but for ``kept``; everything else is served."""
    store.expect_served(set(store.made) - gone)
    store.expect_erased({*gone} - kept)
    assert {store.made[key] for key in kept} <= store.search.numbers_in(store.folder)
    assert set(store.query("SELECT group_key, sequence_num FROM taken_back WHERE NOT erased")) == kept
    counts = dict(store.query("SELECT group_key, taken_back_count FROM groups WHERE taken_back_count"))
    assert counts == {key: sum(each[0] == key for each in kept) for key in {each[0] for each in kept}}


def filled(store: Store) -> tuple[int, int]:
    """Two groups with 12 messages each in the archive, in several parts of it, and two that are not."""
    one, other = store.add_group(40 * DAY), store.add_group()
    store.send_daily(one, other, days=6)
    store.now += 8 * DAY
    assert store.run()["archived"] == 24
    store.send(one, 2)
    store.send(other, 2)
    return one, other


def test_it_is_erased_from_the_archive_by_the_next_run(store: Store) -> None:
    one, other = filled(store)
    gone = {(one, 1), (one, 5), (one, 12), (one, 14), (other, 7)}
    for key, number in sorted(gone):
        store.take_back(key, number)
    store.expect_served(set(store.made) - gone)
    with store.opened() as connection:
        assert status.overdue(connection, store.now).taken_back_messages == 4
    deleted = store.run()["deleted"]
    assert (deleted["taken_back"], deleted["expired"]) == (5, 0)
    store.expect_sound()
    expect(store, gone)
    before = store.table().num_rows
    assert sum(store.run()["deleted"].values()) == 0
    assert store.table().num_rows == before
    told = store.query("SELECT group_id, sum(messages) FROM receipts WHERE rule = 'taken_back' GROUP BY 1")
    assert dict(told) == {store.group_ids[one]: 4, store.group_ids[other]: 1}


def test_a_hold_and_a_least_lifetime_keep_it_there_and_it_stays_hidden(store: Store) -> None:
    one, other = filled(store)
    store.send(one, 1, sender=USERS[1])
    opened = CommandRunner(store.config, FakeClock(store.now))
    hold = opened.write(
        holds.add, opened.context(), "operator root", holds.HoldSubject(one, store.group_ids[one], "one"), "case"
    )
    gone = {(one, 3), (one, 13), (one, 15), (other, 3)}
    for key, number in sorted(gone):
        store.take_back(key, number)
    assert store.run()["deleted"]["taken_back"] == 1
    expect(store, gone, {(one, 3), (one, 13), (one, 15)})
    store.now += 8 * DAY
    assert store.run()["archived"] == 5, "under a hold it moves with the others"
    expect(store, gone, {(one, 3), (one, 13), (one, 15)})
    user = opened.write(holds.add, opened.context(), "operator root", holds.HoldSubject(None, USERS[1], "user"), "case")
    opened.write(holds.release, opened.context(), "operator root", hold.hold_id)
    assert store.run()["deleted"]["taken_back"] == 2
    expect(store, gone, {(one, 15)})
    opened.write(holds.release, opened.context(), "operator root", user.hold_id)
    assert store.run()["deleted"]["taken_back"] == 1
    expect(store, gone)
    store.expect_sound()


@pytest.mark.parametrize("point", ["archive.part_erased", "archive.erased_by_keys"])
def test_a_run_that_fails_while_it_erases_it_is_made_good(store: Store, point: str) -> None:
    one, other = filled(store)
    gone = {(one, 2), (one, 9), (other, 4)}
    for key, number in sorted(gone):
        store.take_back(key, number)
    assert store.try_run(f"{point}=io")["error"]
    store.expect_served(set(store.made) - gone)
    store.run()
    store.expect_sound()
    expect(store, gone)
    told = store.query("SELECT group_id, sum(messages) FROM receipts WHERE rule = 'taken_back' GROUP BY 1")
    assert dict(told) == {store.group_ids[one]: 2, store.group_ids[other]: 1}


def test_what_hides_it_stays_until_its_key_is_destroyed(store: Store) -> None:
    """Until then the archive could serve it."""
    one, _ = filled(store)
    store.take_back(one, 2)
    store.delete_account(USERS[1])
    senders = store.query("SELECT count(*) FROM archive_senders WHERE sender_id = ?", USERS[1])
    assert store.try_run("run.keys_noted=io")["error"].startswith("keys: ")
    assert store.query("SELECT count(*) FROM taken_back WHERE NOT erased") == [(1,)]
    assert store.query("SELECT count(*) FROM archive_senders WHERE sender_id = ?", USERS[1]) == senders
    store.run()
    assert store.query("SELECT count(*) FROM taken_back WHERE NOT erased") == [(0,)]
    assert store.query("SELECT count(*) FROM user_tombstones") == [(0,)]


@pytest.mark.parametrize("point", ["archive.appended", "archive.verified", "archive.group_switched"])
def test_it_does_not_come_back_by_a_move_that_broke_off(store: Store, point: str) -> None:
    """The table has it already, and the next run erases it from the database before the move is finished."""
    group_key = store.add_group()
    store.send(group_key, 6)
    store.now += 8 * DAY
    assert store.try_run(f"{point}=io")["error"]
    store.take_back(group_key, 3)
    for _ in range(2):
        store.run()
        store.expect_sound()
        store.expect_served(set(store.made) - {(group_key, 3)})
    expect(store, {(group_key, 3)})


def test_a_restore_from_the_archive_leaves_it_taken_back(store: Store) -> None:
    one, other = filled(store)
    opened = CommandRunner(store.config, FakeClock(store.now))
    hold = opened.write(
        holds.add, opened.context(), "operator root", holds.HoldSubject(one, store.group_ids[one], "one"), "case"
    )
    store.take_back(one, 4)
    store.run()
    assert store.restore(one)["restored"] == 12
    stay = replace(store.config.archive, after=-1)
    store.run(archive=stay)
    expect(store, {(one, 4)}, {(one, 4)})
    opened.write(holds.release, opened.context(), "operator root", hold.hold_id)
    assert store.run(archive=stay)["deleted"]["taken_back"] == 1
    expect(store, {(one, 4)})
    assert len(store.served()) == 27
    assert other


def test_it_goes_with_its_part_of_the_archive_and_with_its_group(store: Store) -> None:
    one, other = filled(store)
    store.take_back(one, 2, 11)
    store.take_back(other, 2)
    store.now += 60 * DAY
    store.delete_group(other)
    store.run()
    assert store.served() == {}
    assert store.query("SELECT count(*) FROM taken_back WHERE NOT erased") == [(0,)]
    store.expect_erased(set(store.made))


def test_a_least_lifetime_keeps_it_in_the_archive(tmp_path: Path, cleaner: Cleaner) -> None:
    store = Store(tmp_path, cleaner)
    least = RetentionConfig(default_policy=Lifetimes(min_lifetime=30 * DAY))
    store.config = replace(store.config, retention=least)
    with store.opened() as connection:
        state.begin_serving(connection, store.config.policy, FakeClock(store.now).read(), accepts_change=True)
    one, _ = filled(store)
    store.take_back(one, 2)
    assert store.run()["deleted"]["taken_back"] == 0
    expect(store, {(one, 2)}, {(one, 2)})
    store.now += 20 * DAY
    assert store.run()["deleted"]["taken_back"] == 1
    expect(store, {(one, 2)})
