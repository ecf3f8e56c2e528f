"""Messages that were archived before there were keys: runs take their partitions over, file by file."""

from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from conclave.config.archive import ArchiveConfig
from conclave.config.keys import KeysConfig
from conclave.keys.inspection import Inspection
from conclave.proof import keys as proof
from conclave.proof.findings import ProofPart
from conclave.store.engine import sqlite
from conclave.store.resources import message_keys, taking_over
from tests.support.archived import DAY, USERS
from tests.support.cleaner import Cleaner
from tests.support.keyed import Keyed, Message

pytestmark = pytest.mark.system


class Archived(Keyed):
    """A store with an archive that was filled before there were keys."""

    after = 7 * DAY


@pytest.fixture
def store(tmp_path: Path, cleaner: Cleaner) -> Archived:
    """Two classes, several files of a partition, messages of somebody who goes, and some that are not archived yet."""
    (tmp_path / "home").mkdir()
    made = Archived(tmp_path / "home", cleaner, ArchiveConfig(after=7 * DAY, margin=DAY))
    kept, fading, shared = made.add_group(), made.add_group(60 * DAY), made.add_group()
    for _ in range(2):
        for key in (kept, fading):
            made.send(key, 5)
        for _ in range(3):
            made.send(shared, 1, sender=USERS[0])
            made.send(shared, 1, sender=USERS[1])
        made.now += 10 * DAY
        made.run()
    made.send(kept, 4)
    return made


def begin(store: Archived) -> set[Message]:
    before = set(store.made)
    store.begin_keys()
    return before


def counted(store: Archived) -> tuple[int, int]:
    with closing(sqlite.connect(store.config.database, readonly=True)) as connection:
        found = message_keys.count(connection)
    return found.keyed, found.plain


def expect_taken_over(store: Archived, alive: set[Message]) -> None:
    store.expect_served(alive)
    assert counted(store) == (len(alive), 0)
    assert store.search.numbers_in(store.folder, store.cleaner.folder) == set(), "no byte of the plain form is left"
    store.expect_sound()
    with closing(sqlite.connect(store.config.database, readonly=True)) as connection:
        assert taking_over.is_done(connection)
    found = Inspection(store.config.keys_path)
    for key, group_id in store.group_ids.items():
        ((last, keyed_after),) = store.query("SELECT last_seq, keyed_after FROM groups WHERE group_key = ?", key)
        numbers = list(range(keyed_after + 1, last + 1))
        lives = {n for n, is_alive in zip(numbers, found.living(group_id, numbers), strict=True) if is_alive}
        assert lives == {number for group, number in alive if group == key}
    part = ProofPart("key file")
    proof.examine(part, store.config)
    assert part.findings == []
    assert store.verify()["differences"] == []


def test_what_was_archived_before_there_were_keys_is_under_them_in_the_end(store: Archived) -> None:
    alive = begin(store)
    store.expect_served(alive)
    assert counted(store) == (0, len(alive))
    kept, _, shared = store.group_ids
    store.send(kept, 1)
    alive = set(store.made)
    store.run()
    store.expect_served(alive)
    assert counted(store)[1] == len(alive) - 5, "the hot store first"
    store.run()
    store.run()
    expect_taken_over(store, alive)
    store.delete_account(USERS[1])
    store.now += 51 * DAY
    store.run()
    left = {each for each in alive if each[0] == kept or (each[0] == shared and each[1] % 2)}
    expect_taken_over(store, left)
    store.restore(kept)
    store.run(archive=replace(store.config.archive, after=-1))
    expect_taken_over(store, left)


@pytest.mark.parametrize("point", ["keying.rewritten", "keying.partition_settled", "keying.lowered", "archive.erased"])
def test_a_run_that_is_killed_leaves_what_can_be_read_and_the_next_goes_on(store: Archived, point: str) -> None:
    alive = begin(store)
    store.run()
    store.cleaner.kill_run(store.config, store.now, point)
    store.expect_served(alive)
    store.run()
    store.run()
    expect_taken_over(store, alive)


def test_a_group_that_is_restored_meanwhile_is_under_keys_in_the_hot_store(store: Archived) -> None:
    alive = begin(store)
    store.run()
    store.cleaner.kill_run(store.config, store.now, "keying.rewritten")
    kept, fading, _ = store.group_ids
    for key in (kept, fading):
        store.restore(key)
    store.expect_served(alive)
    still = replace(store.config.archive, after=-1)
    for _ in range(3):
        store.run(archive=still)
    expect_taken_over(store, alive)


def test_what_an_accepted_clock_lays_elsewhere_meanwhile_is_taken_over_there(store: Archived) -> None:
    alive = begin(store)
    store.run()
    spans = store.query("SELECT lifetime, span FROM plain_parts")
    store.now -= 15 * DAY
    accept = partial(store.cleaner.try_run, store.config, store.now, set_by=-15 * DAY, accept_clock=True)
    assert "disk I/O error" in accept(failpoint="archive.clock_settled=io")["error"]
    assert set(store.query("SELECT lifetime, span FROM plain_parts")) > set(spans)
    store.expect_served(alive)
    assert not accept()["error"]
    for _ in range(3):
        store.cleaner.run(store.config, store.now, -15 * DAY)
    expect_taken_over(store, alive)


def test_without_the_setting_nothing_is_touched(store: Archived) -> None:
    assert store.config.keys == KeysConfig()
    before = store.query("SELECT * FROM archive_parts")
    store.run()
    assert store.query("SELECT * FROM archive_parts") == before
    assert not store.config.keys_path.exists()
