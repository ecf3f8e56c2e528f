"""What is due in the archive loses its keys at once, and is overwritten later: ``[archive] rewrite_after``."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conclave.archive.status import read_status
from conclave.config.archive import ArchiveConfig
from conclave.proof import keys as proof
from conclave.proof.findings import Finding, ProofPart
from conclave.retention import holds
from conclave.store.archive import unreadable
from conclave.store.engine import sqlite
from conclave.store.resources import receipts
from conclave.store.views import overdue
from tests.support.archived import DAY, USERS
from tests.support.cleaner import Cleaner
from tests.support.keyed import Keyed, Message

pytestmark = pytest.mark.system


class Deferring(Keyed):
    """A store whose messages under keys move to the archive, where what is unreadable waits for two days."""

    after = 7 * DAY

    def files(self) -> set[str]:
        """The data files of the archive."""
        return {path.name for path in self.config.archive_path.rglob("*.parquet") if "_delta_log" not in path.parts}

    def told(self) -> list[tuple[Any, ...]]:
        """What receipts say: rule, messages, keys that are lost, and what is not overwritten."""
        return self.query("SELECT rule, messages, keys_lost, waiting FROM receipts ORDER BY receipt_id")

    def waiting(self) -> unreadable.Waiting:
        with closing(sqlite.connect(self.config.database, readonly=True)) as connection:
            return unreadable.waiting(connection)

    def proven(self) -> list[Finding]:
        part = ProofPart("key file")
        proof.examine(part, self.config)
        return part.findings

    def expect_unreadable(self, dead: set[Message], alive: set[Message]) -> None:
        """No key of these follows from any byte of the key file; they lie in the archive. The others are served."""
        self.expect_served(alive)
        assert self.derivable(self.config.keys_path) == alive
        self.expect_lost(dead, self.folder)
        in_table = {(row["group_key"], row["sequence_num"]) for row in self.table().to_pylist()}
        assert dead <= in_table
        assert self.waiting().messages == len(dead)
        assert self.proven() == []
        assert self.verify()["differences"] == []
        self.expect_sound()
        with closing(sqlite.connect(self.config.database, readonly=True)) as connection:
            assert receipts.verify(connection).broken_at is None
            assert overdue.find(connection, self.now) == {}

    def expect_overwritten(self, dead: set[Message], alive: set[Message]) -> None:
        """Nor is any piece of them in any file."""
        self.expect_served(alive)
        assert self.derivable(self.config.keys_path) == alive
        self.expect_lost(dead, self.folder)
        self.expect_erased(dead)
        assert self.bytes_left(dead, self.folder) == set()
        assert self.waiting() == unreadable.Waiting(0, None)
        assert self.query("SELECT count(*) FROM archive_unreadable WHERE dead_messages > 0") == [(0,)]
        assert self.proven() == []
        self.expect_sound()
        said = self.query("SELECT sum(iif(rule = 'overwritten', messages, 0)), sum(waiting) FROM receipts")
        assert said[0][0] == said[0][1], "what was told to wait is told to be overwritten"


@pytest.fixture
def store(tmp_path: Path, cleaner: Cleaner) -> Deferring:
    (tmp_path / "home").mkdir()
    made = Deferring(tmp_path / "home", cleaner, ArchiveConfig(after=7 * DAY, margin=DAY, rewrite_after=2 * DAY))
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


def test_a_purge_is_unreadable_at_once_and_overwritten_when_it_has_waited(store: Deferring) -> None:
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
    assert store.told() == [("expired", 4, 4, 4)]
    assert read_status(store.config, store.now).unreadable == unreadable.Waiting(4, store.now)
    first = store.now

    store.now += DAY
    assert sum(run(store)["deleted"].values()) == 0, "nothing is counted twice"
    assert store.files() == before
    purge(store, due, first - 10 * DAY + 1)
    more = {(due, 5), (due, 6)}
    run(store)
    store.expect_unreadable(dead | more, everything - dead - more)
    assert store.told() == [("expired", 4, 4, 4), ("expired", 2, 2, 2)]
    assert store.waiting().since == first

    store.now = first + 2 * DAY
    assert sum(run(store)["deleted"].values()) == 0
    store.expect_overwritten(dead | more, everything - dead - more)
    assert store.told()[2:] == [("overwritten", 6, 0, 0)]
    assert other in {key for key, _ in store.served()}


def test_without_the_setting_the_next_run_overwrites(store: Deferring) -> None:
    due, _ = archived(store)
    everything = set(store.made)
    purge(store, due, sent(store, 3))
    run(store)
    dead = {(due, 1), (due, 2)}
    store.expect_unreadable(dead, everything - dead)
    run(store, archive=replace(store.config.archive, rewrite_after=0))
    store.expect_overwritten(dead, everything - dead)


def test_what_expires_waits_until_its_partition_goes_as_a_whole(store: Deferring) -> None:
    """No file is ever written anew for what expires day by day: of the whole partition only the log tells."""
    fading, other = store.add_group(640 * DAY), store.add_group(640 * DAY)  # partitions of twenty days
    store.send_daily(fading, other, days=4)
    store.config = replace(store.config, archive=replace(store.config.archive, rewrite_after=30 * DAY))
    everything, begin = set(store.made), store.now - 4 * DAY
    store.now += 10 * DAY
    run(store)
    before, alive = store.files(), everything
    for day in range(4):
        store.now = begin + 640 * DAY + day * DAY + 60
        report = run(store)
        gone = {each for each in everything if each[1] in (2 * day + 1, 2 * day + 2)}
        alive = alive - gone
        assert report["deleted"]["expired"] == 4
        if day < 3:
            assert store.files() == before
            store.expect_unreadable(everything - alive, alive)
    store.expect_overwritten(everything, set())
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
    assert store.waiting().messages == 6
    store.now += 2 * DAY
    run(store)
    assert store.query("SELECT count(*) FROM tombstones") == [(0,)]
    assert store.bytes_left(dead, store.folder) == set()
    assert store.bytes_left(everything - dead, store.folder) == everything - dead


def test_what_only_rows_can_tell_is_overwritten_in_the_same_run_with_all_that_lies_beside_it(store: Deferring) -> None:
    due, _ = archived(store)
    with_sender = store.add_group()
    store.now -= 13 * DAY
    store.send(with_sender, 1, sender=USERS[0])
    store.send(with_sender, 1, sender=USERS[1])
    store.now += 13 * DAY
    run(store)
    everything = set(store.made)
    purge(store, due, sent(store, 3))
    run(store)
    dead = {(due, 1), (due, 2)}
    store.expect_unreadable(dead, everything - dead)
    store.delete_account(USERS[1])
    run(store)
    gone = dead | {(with_sender, 2)}
    store.expect_overwritten(gone, everything - gone)
    assert sorted(store.told()) == [("deleted_account", 1, 1, 0), ("expired", 2, 2, 2), ("overwritten", 2, 0, 0)]


def test_numbers_out_of_order_do_not_wait(store: Deferring) -> None:
    """After a clock was set back a later message may be the older one: then the files tell what goes, as ever."""
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
    store.expect_overwritten(gone, everything - gone)
    assert store.told() == [("expired", 2, 2, 0)]


def test_what_is_unreadable_does_not_come_back_with_its_group(store: Deferring) -> None:
    due, _ = archived(store)
    everything = set(store.made)
    purge(store, due, sent(store, 3))
    run(store)
    dead = {(due, 1), (due, 2)}
    assert store.restore(due)["restored"] == 4
    store.expect_served(everything - dead)
    keep = replace(store.config.archive, after=-1)
    run(store, archive=keep)
    store.expect_overwritten(dead, everything - dead)


@pytest.mark.parametrize(
    "point", ["archive.unreadable_noted", "run.keys_noted", "run.keys_lost", "keys.appended", "keys.overwritten"]
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
    store.now += 2 * DAY
    run(store)
    store.expect_overwritten(dead, everything - dead)


@pytest.mark.parametrize("point", ["archive.erasures_noted", "archive.rows_deleted", "archive.index_settled"])
def test_a_run_that_dies_while_it_overwrites_counts_nothing_twice(store: Deferring, point: str) -> None:
    due, _ = archived(store)
    everything = set(store.made)
    purge(store, due, sent(store, 3))
    run(store)
    store.now += 2 * DAY
    purge(store, due, sent(store, 5) - 2 * DAY)
    store.cleaner.kill_run(store.config, store.now, point)
    purge(store, due, store.now - 12 * DAY)
    run(store, archive=replace(store.config.archive, rewrite_after=0))
    gone = {(due, number) for number in range(1, 7)}
    store.expect_overwritten(gone, everything - gone)
    assert sum(row[1] for row in store.told() if row[0] == "expired") == 6


def test_a_hold_on_a_user_leaves_a_message_that_is_unreadable_and_counts_no_other_for_it(store: Deferring) -> None:
    due, other = store.add_group(), store.add_group()
    store.send(due, 1, sender=USERS[3])
    store.send(due, 1)
    store.now += DAY
    store.send_daily(due, other, days=2)
    store.now += 10 * DAY
    run(store)
    everything = set(store.made)
    purge(store, due, sent(store, 5))
    run(store)
    assert store.told() == [("expired", 4, 4, 4)]
    with store.opened() as connection:
        hold = holds.add(connection, None, USERS[3], "name", "evidence", "operator root", store.now)
    purge(store, due, store.now)
    assert run(store)["deleted"]["expired"] == 2
    assert store.told()[1:] == [("expired", 2, 2, 0), ("overwritten", 3, 0, 0)]
    assert store.waiting().messages == 1, "what is held lies there still, and cannot be read"
    with store.opened() as connection:
        holds.remove(connection, hold)
    assert sum(run(store)["deleted"].values()) == 0
    store.now += 2 * DAY
    assert sum(run(store)["deleted"].values()) == 0
    dead = {each for each in everything if each[0] == due}
    store.expect_overwritten(dead, everything - dead)
    assert store.told()[3:] == [("overwritten", 1, 0, 0)]


@pytest.mark.parametrize("goes_whole", [True, False])
def test_what_an_accepted_clock_moves_is_not_told_again(store: Deferring, goes_whole: bool) -> None:
    right = store.now
    store.now += 365 * DAY
    due, other = archived(store)
    everything = set(store.made)
    purge(store, due, sent(store, 5))
    run(store)
    store.delete_group(due)
    if goes_whole:
        store.delete_group(other)
    ahead, store.now = store.now - right, right
    report = store.cleaner.try_run(
        replace(store.config, archive=replace(store.config.archive, rewrite_after=0)),
        *(store.now, -ahead),
        accept_clock=True,
    )
    assert report["error"] == ""
    gone = {each for each in everything if goes_whole or each[0] == due}
    store.expect_overwritten(gone, everything - gone)
    of_due = store.query("SELECT rule, messages FROM receipts WHERE group_id = ? ORDER BY 1", store.group_ids[due])
    assert of_due == [("deleted_group", 2), ("expired", 4), ("overwritten", 4)]
