"""What is due in the archive is erased by its keys, and its space is given back later: ``[archive] reclaim_after``."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conclave.archive.status import read_status
from conclave.config.archive import ArchiveConfig
from conclave.proof import keys as proof
from conclave.proof.findings import ProofFinding, ProofPart
from conclave.retention import holds
from conclave.store.archive import reclaiming
from conclave.store.archive.reclaiming import DeadSpace
from conclave.store.engine import sqlite
from conclave.store.resources import receipts
from conclave.store.views import overdue
from tests.support.archived import DAY, USERS
from tests.support.cleaner import Cleaner
from tests.support.keyed import Keyed, Message

pytestmark = pytest.mark.system


class Deferring(Keyed):
    """A store whose messages move to the archive. What is erased there takes space for two days."""

    after = 7 * DAY

    def files(self) -> set[str]:
        """The data files of the archive."""
        return {path.name for path in self.config.archive_path.rglob("*.parquet") if "_delta_log" not in path.parts}

    def told(self) -> list[tuple[Any, ...]]:
        """What receipts say: rule and messages."""
        return self.query("SELECT rule, messages FROM receipts ORDER BY receipt_id")

    def dead(self) -> DeadSpace:
        with closing(sqlite.connect(self.config.database, readonly=True)) as connection:
            return reclaiming.dead(connection)

    def proven(self) -> list[ProofFinding]:
        part = ProofPart("key file")
        proof.examine(part, self.config)
        return part.findings

    def expect_unreadable(self, dead: set[Message], alive: set[Message]) -> None:
        """No key of these follows from any byte of the key file; they lie in the archive. The others are served."""
        self._expect_lost(dead, alive)
        in_table = {(row["group_key"], row["sequence_num"]) for row in self.table().to_pylist()}
        assert dead <= in_table
        assert self.dead().messages == len(dead)
        assert self.verify()["differences"] == []
        with closing(sqlite.connect(self.config.database, readonly=True)) as connection:
            assert receipts.verify(connection).broken_at is None
            assert overdue.find(connection, self.now) == {}

    def expect_reclaimed(self, dead: set[Message], alive: set[Message]) -> None:
        """Nor is any piece of them in a file of the archive."""
        self._expect_lost(dead, alive)
        assert self.bytes_left(dead, self.config.archive_path) == set()
        assert self.dead() == DeadSpace(0, None)

    def _expect_lost(self, dead: set[Message], alive: set[Message]) -> None:
        self.expect_served(alive)
        assert self.derivable(self.config.keys_path) == alive
        self.expect_lost(dead, self.folder)
        assert self.proven() == []
        self.expect_sound()


def eager(store: Deferring) -> ArchiveConfig:
    """Settings with which each run gives back all space."""
    return replace(store.config.archive, reclaim_interval=0, reclaim_after=0)


@pytest.fixture
def store(tmp_path: Path, cleaner: Cleaner) -> Deferring:
    (tmp_path / "home").mkdir()
    # Most of a partition is dead in these tests: what is worth it is decided by time alone where it has to wait.
    settings = ArchiveConfig(after=7 * DAY, margin=DAY, reclaim_interval=2 * DAY)
    made = Deferring(tmp_path / "home", cleaner, settings)
    made.begin_keys()
    return made


def run(store: Deferring, **changed: Any) -> dict[str, Any]:
    report = store.run(**changed)
    assert report["error"] == ""
    assert store.noted() == 0
    return report


def archived(store: Deferring) -> tuple[int, int]:
    """Archive two groups in one partition: 6 messages of each, two a day. Return both: the first is to be purged."""
    due, other = store.add_group(), store.add_group()
    store.send_daily(due, other, days=3)
    store.now += 10 * DAY
    run(store)
    assert store.query("SELECT count(*) FROM messages") == [(0,)]
    return due, other


def purge(store: Deferring, group: int, before: int) -> None:
    with store.opened() as connection:
        connection.execute("UPDATE groups SET expired_before = ? WHERE group_key = ?", (before, group))


def sent(store: Deferring, number: int) -> int:
    """When the message with that number was sent: two a day."""
    return store.now - 13 * DAY + (number - 1) // 2 * DAY


def test_a_purge_is_unreadable_at_once_and_its_space_is_given_back_later(store: Deferring) -> None:
    due, other = archived(store)
    everything = set(store.made)
    before = store.files()
    purge(store, due, sent(store, 5))
    dead = {(due, number) for number in (1, 2, 3, 4)}
    report = run(store)
    assert report["deleted"]["expired"] == 4
    assert report["groups_touched"] == 1
    assert store.files() == before, "nothing was written anew"
    store.expect_unreadable(dead, everything - dead)
    assert store.told() == [("expired", 4)]
    assert read_status(store.config, store.now).dead == DeadSpace(4, store.now)
    first = store.now

    store.now += DAY
    assert sum(run(store)["deleted"].values()) == 0, "nothing is counted twice"
    assert store.files() == before
    purge(store, due, first - 10 * DAY + 1)
    more = {(due, 5), (due, 6)}
    run(store)
    store.expect_unreadable(dead | more, everything - dead - more)
    assert store.told() == [("expired", 4), ("expired", 2)]
    assert store.dead().since == first

    store.now = first + 2 * DAY
    assert sum(run(store)["deleted"].values()) == 0
    store.expect_reclaimed(dead | more, everything - dead - more)
    assert len(store.told()) == 2
    assert other in {key for key, _ in store.served()}


def test_little_waits_for_as_long_as_the_setting_says(store: Deferring) -> None:
    due, _ = archived(store)
    everything = set(store.made)
    purge(store, due, sent(store, 3))
    run(store)
    dead = {(due, 1), (due, 2)}
    first, settings = store.now, replace(store.config.archive, reclaim_interval=0, reclaim_after=5 * DAY)
    before = store.files()
    run(store, archive=settings)
    store.expect_unreadable(dead, everything - dead)
    assert store.files() == before
    store.now = first + 5 * DAY
    run(store, archive=settings)
    store.expect_reclaimed(dead, everything - dead)


def test_a_partition_of_which_nothing_lives_goes_without_being_read(store: Deferring) -> None:
    fading, other = store.add_group(640 * DAY), store.add_group(640 * DAY)  # partitions of twenty days
    store.send_daily(fading, other, days=4)
    store.config = replace(store.config, archive=replace(store.config.archive, reclaim_interval=0))
    everything, begin = set(store.made), store.now - 4 * DAY
    store.now += 10 * DAY
    run(store)
    before, alive = store.files(), everything
    for day in range(4):
        store.now = begin + 640 * DAY + day * DAY + 60
        report = run(store, archive=replace(store.config.archive, reclaim_interval=0 if day == 3 else 900 * DAY))
        gone = {each for each in everything if each[1] in (2 * day + 1, 2 * day + 2)}
        alive = alive - gone
        assert report["deleted"]["expired"] == 4
        if day < 3:
            assert store.files() == before
            store.expect_unreadable(everything - alive, alive)
    store.expect_reclaimed(everything, set())
    assert sum(row[1] for row in store.told() if row[0] == "expired") == 16


def test_a_deleted_group_is_unreadable_at_once_and_what_is_held_is_not(store: Deferring) -> None:
    doomed, other = archived(store)
    everything = set(store.made)
    store.delete_group(doomed)
    with store.opened() as connection:
        holds.add(connection, other, store.group_ids[other], "name", "evidence", "operator root", store.now)
    purge(store, other, store.now - 5 * DAY)
    run(store)
    dead = {each for each in everything if each[0] == doomed}
    assert store.derivable(store.config.keys_path) == everything - dead, "what is held keeps its keys"
    store.expect_lost(dead, store.folder)
    assert store.dead().messages == 6
    assert store.query("SELECT count(*) FROM tombstones") == [(0,)]
    store.now += 2 * DAY
    run(store)
    assert store.bytes_left(dead, store.folder) == set()
    assert store.bytes_left(everything - dead, store.folder) == everything - dead


def test_what_only_rows_can_tell_is_erased_beside_what_lives(store: Deferring) -> None:
    with_sender, other = store.add_group(), store.add_group()
    for number in range(1, 7):
        store.send(with_sender, 1, sender=USERS[number % 2])
    store.send(other, 2)
    store.now += 13 * DAY
    run(store)
    everything = set(store.made)
    store.delete_account(USERS[1])
    run(store)
    gone = {(with_sender, number) for number in (1, 3, 5)}
    store.expect_unreadable(gone, everything - gone)
    assert store.told() == [("deleted_account", 3)]
    purge(store, with_sender, store.now - 12 * DAY)
    run(store)
    more = {(with_sender, number) for number in (2, 4, 6)}
    store.expect_unreadable(gone | more, everything - gone - more)
    assert store.told()[1:] == [("expired", 3)], "what was erased before is not counted again"
    run(store, archive=eager(store))
    store.expect_reclaimed(gone | more, everything - gone - more)


def test_numbers_out_of_order_are_erased_one_by_one(store: Deferring) -> None:
    """After a clock was set back a later message may be the older one."""
    due, other = store.add_group(), store.add_group()
    store.now += DAY
    store.send(due, 2)
    store.send(other, 2)
    store.now -= DAY
    store.send(due, 2)
    store.now += 13 * DAY
    run(store)
    everything = set(store.made)
    purge(store, due, store.now - 12 * DAY)
    run(store)
    gone = {(due, 3), (due, 4)}
    store.expect_unreadable(gone, everything - gone)
    assert store.told() == [("expired", 2)]


def test_what_was_erased_does_not_come_back_with_its_group(store: Deferring) -> None:
    due, _ = archived(store)
    everything = set(store.made)
    purge(store, due, sent(store, 3))
    run(store)
    dead = {(due, 1), (due, 2)}
    assert store.restore(due)["restored"] == 4
    store.expect_served(everything - dead)
    run(store)
    assert (due, 3) in {tuple(row) for row in store.query("SELECT group_key, sequence_num FROM messages")}
    store.expect_served(everything - dead)
    run(store, archive=replace(store.config.archive, reclaim_interval=0))
    run(store)
    assert store.query("SELECT count(*) FROM messages") == [(0,)], "it moves again once its space is given back"
    store.expect_reclaimed(dead, everything - dead)


@pytest.mark.parametrize(
    "point",
    [
        "archive.part_erased",
        "archive.erased_by_keys",
        "run.keys_noted",
        "run.keys_lost",
        "keys.appended",
        "keys.overwritten",
    ],
)
def test_a_run_that_dies_before_the_keys_are_lost_leaves_it_to_the_next(store: Deferring, point: str) -> None:
    due, _ = archived(store)
    everything = set(store.made)
    purge(store, due, sent(store, 5))
    store.cleaner.kill_run(store.config, store.now, point)
    dead = {(due, number) for number in (1, 2, 3, 4)}
    store.expect_served(everything - dead)
    run(store)
    store.expect_unreadable(dead, everything - dead)
    assert sum(row[1] for row in store.told()) == 4


@pytest.mark.parametrize(
    "point", ["archive.turn_begun", "archive.rewritten", "archive.space_noted", "archive.file_removed"]
)
def test_a_run_that_dies_while_it_gives_space_back_loses_nothing(store: Deferring, point: str) -> None:
    due, _ = archived(store)
    everything = set(store.made)
    purge(store, due, sent(store, 5))
    run(store)
    store.now += 2 * DAY
    store.cleaner.kill_run(store.config, store.now, point)
    dead = {(due, number) for number in (1, 2, 3, 4)}
    store.expect_served(everything - dead)
    run(store, archive=eager(store))
    store.expect_reclaimed(dead, everything - dead)
    assert store.told() == [("expired", 4)]


def test_a_hold_on_a_user_keeps_what_is_not_erased_yet_and_counts_nothing_twice(store: Deferring) -> None:
    due, other = store.add_group(), store.add_group()
    store.send(due, 1, sender=USERS[3])
    store.send(due, 1)
    store.now += DAY
    store.send(due, 1, sender=USERS[3])
    store.send(other, 2)
    store.now += 10 * DAY
    run(store)
    everything = set(store.made)
    purge(store, due, store.now - 10 * DAY)
    run(store)
    assert store.told() == [("expired", 2)]
    with store.opened() as connection:
        hold = holds.add(connection, None, USERS[3], "name", "evidence", "operator root", store.now)
    purge(store, due, store.now)
    assert run(store)["held"] == 1
    dead = {(due, 1), (due, 2)}
    assert store.derivable(store.config.keys_path) == everything - dead, "what is held keeps its key, and is hidden"
    with store.opened() as connection:
        holds.remove(connection, hold)
    assert run(store)["deleted"]["expired"] == 1
    assert store.told() == [("expired", 2), ("expired", 1)]
