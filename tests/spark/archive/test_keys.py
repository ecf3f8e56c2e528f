"""Messages under keys in the archive: moved as they are, served, restored, and lost by expiry with their keys."""

from pathlib import Path

import pytest

from conclave.keys.inspection import Inspection
from tests.support.archived import DAY, USERS
from tests.support.cleaner import Cleaner
from tests.support.keyed import Keyed

pytestmark = pytest.mark.system


class Archived(Keyed):
    """A store whose messages under keys move to the archive."""

    after = 7 * DAY


@pytest.fixture
def store(tmp_path: Path, cleaner: Cleaner) -> Archived:
    (tmp_path / "home").mkdir()
    made = Archived(tmp_path / "home", cleaner)
    made.begin_keys()
    return made


def run(store: Archived) -> None:
    assert store.run()["error"] == ""
    assert store.noted() == 0


def test_what_the_archive_has_is_served_and_loses_its_keys_when_it_goes(store: Archived) -> None:
    """Whole parts by their age, single messages of a deleted account, and a deleted group."""
    kept, fading, shared, doomed = store.add_group(), store.add_group(30 * DAY), store.add_group(), store.add_group()
    for key in (kept, fading, doomed):
        store.send(key, 4)
    for _ in range(3):
        store.send(shared, 1, sender=USERS[0])
        store.send(shared, 1, sender=USERS[1])
    everything = set(store.made)
    store.now += 10 * DAY
    run(store)
    assert store.query("SELECT count(*) FROM messages") == [(0,)]
    store.expect_served(everything)
    assert store.derivable(store.config.keys_path) == everything

    store.delete_group(doomed)
    store.delete_account(USERS[1])
    store.now += 25 * DAY
    run(store)
    left = {(kept, number) for number in (1, 2, 3, 4)} | {(shared, number) for number in (1, 3, 5)}
    store.expect_served(left)
    assert store.derivable(store.config.keys_path) == left
    store.expect_lost(everything - left, store.folder)
    store.expect_erased(everything - left)

    store.restore(kept)
    store.expect_served(left)
    run(store)
    store.expect_served(left)
    assert store.derivable(store.config.keys_path) == left, "what the database has again keeps its keys"


def test_a_run_that_dies_in_the_archive_leaves_its_keys_to_the_next(store: Archived) -> None:
    kept, shared = store.add_group(), store.add_group()
    store.send(kept, 3)
    for _ in range(3):
        store.send(shared, 1, sender=USERS[0])
        store.send(shared, 1, sender=USERS[1])
    store.now += 10 * DAY
    run(store)
    store.delete_account(USERS[1])
    report = store.try_run("archive.part_erased=io")
    assert report["error"]
    gone = {(shared, number) for number in (2, 4, 6)}
    assert gone <= store.derivable(store.config.keys_path), "not before that is noted"
    run(store)
    left = {(kept, number) for number in (1, 2, 3)} | {(shared, number) for number in (1, 3, 5)}
    store.expect_served(left)
    assert store.derivable(store.config.keys_path) == left
    assert Inspection(store.config.keys_path).flaws == []


def archived_and_half_due(store: Archived) -> int:
    """Archive six messages of a group, of which every other one is due: an account is gone since. Return the group."""
    shared = store.add_group()
    for _ in range(3):
        store.send(shared, 1, sender=USERS[0])
        store.send(shared, 1, sender=USERS[1])
    store.now += 10 * DAY
    run(store)
    store.delete_account(USERS[1])
    return shared


def expect_half(store: Archived, shared: int) -> None:
    """What was due is gone with its keys, and told once; the rest is there."""
    left = {(shared, number) for number in (1, 3, 5)}
    store.expect_served(left)
    assert store.derivable(store.config.keys_path) == left
    assert store.query("SELECT rule, sum(messages) FROM receipts GROUP BY 1") == [("deleted_account", 3)]


def test_an_accepted_clock_forgets_nothing_that_a_run_that_died_has_erased(store: Archived) -> None:
    shared = archived_and_half_due(store)
    assert store.try_run("archive.erased_by_keys=io")["error"]
    store.now -= 15 * DAY
    report = store.cleaner.try_run(store.config, store.now, set_by=-15 * DAY, accept_clock=True)
    assert report["error"] == ""
    expect_half(store, shared)
