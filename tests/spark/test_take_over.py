"""Messages that were stored before there were keys: runs take them over, and nothing of them is left as it came."""

import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from conclave import failpoints
from conclave.clock import FakeClock
from conclave.config.archive import ArchiveConfig
from conclave.config.cleanup import CleanupConfig
from conclave.keys import tree
from conclave.keys.file import KeyFileError
from conclave.keys.inspection import Inspection
from conclave.keys.store import KeyStore
from conclave.proof import keys as proof
from conclave.proof.findings import Finding, ProofPart
from conclave.retention.policy import KEEP
from conclave.store import bodies, compaction, keyring
from conclave.store.engine import sqlite
from conclave.store.engine.faults import StoreError
from conclave.store.resources import message_keys, receipts, state, taking_over
from spark import run, take_over
from spark.environment import RunEnvironment
from tests.support.archived import DAY, USERS
from tests.support.cleaner import Cleaner
from tests.support.keyed import Keyed, KeyedBackups


@pytest.fixture
def store(tmp_path: Path, cleaner: Cleaner, monkeypatch: pytest.MonkeyPatch) -> Keyed:
    monkeypatch.setattr(bodies, "SEGMENT_BYTES", 20_000)
    (tmp_path / "home").mkdir()
    made = Keyed(tmp_path / "home", cleaner, ArchiveConfig(after=KEEP))
    made.config = replace(made.config, cleanup=CleanupConfig(engine="sql"))
    return made


def clean(store: Keyed) -> str:
    """Do a run with the SQL engine in this process; return its error."""
    with closing(RunEnvironment(store.config, FakeClock(store.now))) as engine:
        return run.clean_up(engine).error


def counted(store: Keyed) -> tuple[int, int]:
    with closing(sqlite.connect(store.config.database, readonly=True)) as connection:
        found = message_keys.count(connection)
    return found.keyed, found.plain


def is_done(store: Keyed) -> bool:
    with closing(sqlite.connect(store.config.database, readonly=True)) as connection:
        return taking_over.is_done(connection)


def proven(store: Keyed) -> list[Finding]:
    part = ProofPart("key file")
    proof.examine(part, store.config)
    return part.findings


def expect_taken_over(store: Keyed, alive: set[tuple[int, int]]) -> None:
    store.expect_served(alive)
    assert counted(store) == (len(alive), 0)
    assert store.search.numbers_in(store.folder) == set(), "no byte of the plain form is in a file"
    assert is_done(store)
    found = Inspection(store.config.keys_path)
    for key, group_id in store.group_ids.items():
        last = store.query("SELECT last_seq, keyed_after FROM groups WHERE group_key = ?", key)
        if last:
            ((end, begin),) = last
            near = range(begin + 1, min(end, begin + 100_000) + 1)  # after a restore numbers go on far above
            numbers = [*near, *(number for group, number in alive if group == key and number not in near)]
            lives = {n for n, is_alive in zip(numbers, found.living(group_id, numbers), strict=True) if is_alive}
            assert lives == {number for group, number in alive if group == key}
    assert proven(store) == []


def test_everything_that_was_stored_before_is_under_keys_after_a_run(store: Keyed) -> None:
    """With messages that were erased before and after the keys began, sent before and after, and a key block's end."""
    kept, fading, shared = store.add_group(), store.add_group(DAY), store.add_group()
    store.send(kept, 40, size=900)
    store.send(fading, 30)
    for _ in range(20):
        store.send(shared, 1, sender=USERS[0])
        store.send(shared, 1, sender=USERS[1])
    with store.opened() as connection:
        connection.execute("UPDATE groups SET last_seq = ? WHERE group_key = ?", (tree.BLOCK - 5, kept))
    store.send(kept, 10)
    store.delete_account(USERS[1])
    assert clean(store) == ""
    alive = {each for each in store.made if each[0] != shared or each[1] % 2}
    store.begin_keys()
    store.config = replace(store.config, archive=ArchiveConfig(after=KEEP))
    store.expect_served(alive)
    assert counted(store) == (0, len(alive))
    store.send(kept, 5)
    store.send(fading, 5)
    alive = {each for each in store.made if each[0] != shared or each[1] % 2}
    store.expect_served(alive)
    assert counted(store) == (10, len(alive) - 10)
    assert clean(store) == ""
    expect_taken_over(store, alive)
    store.now += 2 * DAY
    assert clean(store) == ""
    expect_taken_over(store, {each for each in alive if each[0] != fading})


def told(store: Keyed) -> list[tuple[int, int]]:
    return store.query("SELECT messages, keys_lost FROM receipts ORDER BY receipt_id")


def test_receipts_tell_of_how_many_messages_the_keys_are_lost(store: Keyed, monkeypatch: pytest.MonkeyPatch) -> None:
    key = store.add_group(DAY)
    store.send(key, 3)
    store.now += 2 * DAY
    assert clean(store) == ""
    store.send(key, 4)
    store.begin_keys()
    store.send(key, 2)
    store.now += 2 * DAY
    assert clean(store) == ""
    store.send(key, 5)
    store.now += 2 * DAY
    monkeypatch.setattr(KeyStore, "erase", broken)
    assert "keys: " in clean(store)
    assert told(store) == [(3, 0), (6, 2)], "not before they are lost"
    monkeypatch.undo()
    assert clean(store) == ""
    assert told(store) == [(3, 0), (6, 2), (5, 5)]
    with closing(sqlite.connect(store.config.database)) as connection:
        assert receipts.verify(connection).broken_at is None
        connection.execute("UPDATE receipts SET keys_lost = 0 WHERE receipt_id = 3")
        assert receipts.verify(connection).broken_at == 3


def broken(*_: object) -> int:
    raise KeyFileError("the disk of the keys is away")


def test_what_is_not_done_in_one_run_is_done_in_the_next_and_is_readable_meanwhile(
    store: Keyed, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = store.add_group(DAY)
    store.send(key, 200, size=700)
    store.begin_keys()
    monkeypatch.setattr(taking_over, "RUN_SECONDS", -1.0)
    monkeypatch.setattr(take_over, "RUN_SECONDS", -1.0)
    assert clean(store) == ""
    assert counted(store) == (0, 200), "not even a segment"
    turns = iter([False, True])
    original = compaction.take_over
    monkeypatch.setattr(compaction, "take_over", lambda c, _: original(c, lambda: next(turns)))
    assert clean(store) == ""
    keyed, plain = counted(store)
    assert keyed > 0 < plain
    assert keyed + plain == 200
    store.expect_served(set(store.made))
    monkeypatch.undo()
    assert clean(store) == ""
    expect_taken_over(store, set(store.made))


def test_numbers_of_what_was_erased_before_have_no_keys_later(store: Keyed) -> None:
    """In a group of which nothing was left, and in one that has nothing left in its newest block."""
    empty, sparse = store.add_group(DAY), store.add_group()
    store.send(empty, 8)
    store.send(sparse, 3)
    with store.opened() as connection:
        connection.execute("UPDATE groups SET last_seq = ? WHERE group_key = ?", (tree.BLOCK + 2, sparse))
    store.now += 2 * DAY
    assert clean(store) == ""
    store.begin_keys()
    assert clean(store) == ""
    assert is_done(store)
    store.send(empty, 1)
    store.send(sparse, 1)
    assert clean(store) == ""
    assert proven(store) == []
    alive = {(empty, 9), (sparse, 1), (sparse, 2), (sparse, 3), (sparse, tree.BLOCK + 3)}
    expect_taken_over(store, alive)


@pytest.mark.parametrize(
    "point", ["keying.roots_drawn", "erase.moved@7", "erase.segment_marked", "keying.parts_listed", "keying.lowered"]
)
def test_a_run_that_fails_between_loses_nothing_and_the_next_goes_on(store: Keyed, point: str) -> None:
    key = store.add_group()
    store.send(key, 100, size=700)
    store.begin_keys()
    name, _, at = point.partition("@")
    failpoints.arm(f"{name}=io@{at or 1}")
    try:
        assert clean(store) != ""
    finally:
        failpoints.arm("")
    store.expect_served(set(store.made))
    store.send(key, 3)
    store.expect_served(set(store.made))
    assert clean(store) == ""
    expect_taken_over(store, set(store.made))


def test_what_a_hold_keeps_of_a_deleted_group_keeps_its_keys(store: Keyed) -> None:
    key = store.add_group()
    store.send(key, 10)
    with store.opened() as connection:
        connection.execute(
            "INSERT INTO holds (group_key, subject_id, name, reason, added_by, added_at)"
            " SELECT group_key, group_id, group_name, '', '', 0 FROM groups"
        )
    store.begin_keys()
    store.delete_group(key)
    assert clean(store) == ""
    assert store.query("SELECT count(*) FROM messages") == [(10,)]
    assert store.search.numbers_in(store.folder) == set()
    numbers = list(range(1, 11))
    assert all(Inspection(store.config.keys_path).living(store.group_ids[key], numbers))
    assert proven(store) == []
    with store.opened() as connection:
        connection.execute("DELETE FROM holds")
    assert clean(store) == ""
    assert Inspection(store.config.keys_path).blocks() == []


def test_a_message_whose_key_was_lost_with_a_later_database_is_not_served_again(store: Keyed) -> None:
    """Somebody has put an older database in the place of one whose message was erased since."""
    key = store.add_group(DAY)
    store.send(key, 3)
    store.begin_keys()
    before = store.config.database.read_bytes()
    store.now += 2 * DAY
    store.send(key, 1)
    assert clean(store) == ""
    assert store.derivable(store.config.keys_path) == {(key, 4)}
    store.config.database.write_bytes(before)
    store.now -= 2 * DAY
    with store.opened() as connection:
        connection.execute("UPDATE groups SET last_seq = 4")
    assert clean(store) == ""
    assert store.served() == {}
    assert store.search.numbers_in(store.folder) == set()


def test_what_was_begun_cannot_be_turned_off_and_goes_on_later(store: Keyed) -> None:
    key = store.add_group()
    store.send(key, 100, size=700)
    store.begin_keys()
    failpoints.arm("erase.moved=io@7")
    try:
        assert clean(store) != ""
    finally:
        failpoints.arm("")
    before = store.config.database.read_bytes()
    with pytest.raises(StoreError, match=re.escape("set keys.encrypt to true")):
        keyring.open_to_serve(store.config.database, store.config.keys_path, encrypt=False)
    assert store.config.database.read_bytes() == before
    store.start()
    assert clean(store) == ""
    expect_taken_over(store, set(store.made))


def test_a_backup_from_before_brings_back_nothing_that_was_erased_since(tmp_path: Path) -> None:
    """What lies there as it came goes by the key that it got and lost since, also without the ledger."""
    store = KeyedBackups(tmp_path)
    kept, shared = store.add_group(), store.add_group()
    store.send(kept, 3)
    for _ in range(3):
        store.send(shared, 1, sender=USERS[0])
        store.send(shared, 1, sender=USERS[1])
    store.begin_keys()
    before = store.back_up().path
    assert clean(store) == ""
    assert is_done(store)
    store.delete_account(USERS[1])
    assert clean(store) == ""
    left = {each for each in store.made if each[0] == kept or each[1] % 2}
    store.expect_served(left)
    store.back_up()
    store.config.ledger_path.unlink()
    there, done = store.restored(before, without_ledger=True)
    assert done.taken_back["messages_erased"] == 3
    there.expect_served(left)
    there.start()
    with closing(sqlite.connect(there.config.database)) as connection, sqlite.write_transaction(connection):
        state.begin_serving(connection, there.config.policy, FakeClock(store.now).read())
    assert clean(there) == ""
    expect_taken_over(there, left)
