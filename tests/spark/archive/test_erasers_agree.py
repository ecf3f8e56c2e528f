"""Runs with and without Spark erase the same from the archive, and tell the same: by every rule, and its exceptions."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from deltalake import DeltaTable

from conclave.keys.inspection import Inspection
from spark.archive.table import Table
from tests.spark.archive.test_holds import hold, release
from tests.spark.archive.test_keys import Archived
from tests.support.archived import DAY, USERS, Store
from tests.support.cleaner import Cleaner

pytestmark = pytest.mark.system


@contextmanager
def by_spark(cleaner: Cleaner) -> Iterator[None]:
    """Have runs erase by Spark in the block."""
    cleaner.erases_by_spark = True
    try:
        yield
    finally:
        cleaner.erases_by_spark = False


@pytest.fixture
def store(tmp_path: Path, cleaner: Cleaner) -> Store:
    (tmp_path / "store").mkdir()
    return Store(tmp_path / "store", cleaner)


def told(store: Store) -> dict[str, Any]:
    """What is left of a store, and what it says of what is gone."""
    rows = store.table().to_pylist()
    columns = "group_key, lifetime, span, first_seq, last_seq, oldest, newest, message_count, body_bytes, checksum"
    return {
        "messages": sorted((row["group_key"], row["sequence_num"], row["checksum"]) for row in rows),
        "index": sorted(store.query(f"SELECT {columns} FROM archive_parts")),
        "receipts": sorted(
            store.query("SELECT group_id, rule, sum(messages), max(last_seq), max(newest) FROM receipts GROUP BY 1, 2")
        ),
        "senders": sorted(store.query("SELECT sender_id, group_key FROM archive_senders")),
        "taken back": sorted(store.query("SELECT group_key, sequence_num, erased FROM taken_back")),
        "tombstones": store.query("SELECT count(*) FROM user_tombstones"),
    }


def run_both(store: Store) -> dict[str, int]:
    """Do the same dry run and run with and without Spark, from here; return the report. Spark's copy is thrown away."""
    twin = store.copied(store.folder.with_name(f"twin{store.now}"))
    planned = store.cleaner.dry_run(store.config, store.now)["deleted"]
    assert "MERGE" not in operations(store)
    report = store.run()
    assert "MERGE" not in operations(store)
    with by_spark(store.cleaner):
        assert twin.cleaner.dry_run(twin.config, twin.now)["deleted"] == planned == report["deleted"]
        assert twin.run()["deleted"] == report["deleted"]
    assert told(twin) == told(store)
    for each in (store, twin):
        each.expect_sound()
        assert each.verify()["differences"] == []
    deleted: dict[str, int] = report["deleted"]
    return deleted


def operations(store: Store) -> list[str]:
    return [entry["operation"] for entry in DeltaTable(str(store.config.archive_path)).history()]


def test_every_rule_and_what_it_spares(store: Store) -> None:
    """Expired but for commits, fetched, taken back, by deleted accounts, deleted groups; and under a legal hold."""
    groups = [store.add_group() for _ in range(6)]
    expired, keeps, fetched, taken, deleted, kept = groups
    for _ in range(4):
        for key in groups:
            store.send(key, 2)
            store.send(key, 1, sender=USERS[1])
            store.send(key, 1, sender=USERS[2], is_commit=True)
            store.send(key, 1, sender=USERS[3])
        store.now += 4 * DAY
    store.now += 8 * DAY
    assert store.run()["archived"] == 120
    for key in (expired, keeps):
        store.set_expiry(key, 18 * DAY)
    with store.opened() as connection:
        connection.execute("UPDATE groups SET keeps_commits = 1 WHERE group_key = ?", (keeps,))
    store.set_expiry(fetched, 0)
    store.fetch(fetched, 7)
    store.take_back(taken, 1, 3, 12, 20)
    store.take_back(kept, 2)
    store.delete_group(deleted)
    store.delete_account(USERS[1])
    held = hold(store, user_id=USERS[3])
    first = run_both(store)
    assert first["expired"] > 0
    assert first["fetched"] == 6
    assert first["taken_back"] == 4 - 1 + 1
    assert first["deleted_account"] > 0
    assert first["deleted_group"] == 16
    release(store, held)
    store.now += DAY
    second = run_both(store)
    assert second["deleted_group"] == 4
    assert second["taken_back"] == 1
    store.now += 40 * DAY
    assert run_both(store)["expired"] > 0
    left = {row["sequence_num"] for row in store.table().to_pylist() if row["group_key"] == keeps}
    assert left == {4, 9, 14, 19}, "its commits"


def test_what_the_hot_store_has_again_goes_from_the_archive(store: Store) -> None:
    restored, other = store.add_group(), store.add_group()
    for key in (restored, other):
        store.send(key, 4)
    store.now += 8 * DAY
    store.run()
    assert store.restore(restored) == {"restored": 4}
    served = store.served()
    run_both(store)
    assert store.served() == served


def test_under_keys_the_same_numbers_are_lost(tmp_path: Path, cleaner: Cleaner) -> None:
    """Found also where only whole partitions go."""
    (tmp_path / "home").mkdir()
    store = Archived(tmp_path / "home", cleaner)
    store.begin_keys()
    timed, shared = store.add_group(20 * DAY), store.add_group()
    for _ in range(3):
        store.send(timed, 2)
        store.send(shared, 1)
        store.send(shared, 1, sender=USERS[1])
        store.now += DAY
    store.now += 8 * DAY
    store.run()
    everything = set(store.made)
    store.now += 10 * DAY
    assert store.run()["deleted"]["expired"] > 0
    assert "MERGE" not in operations(store)
    gone = {key for key in everything if key not in store.served()}
    assert store.derivable(store.config.keys_path) == everything - gone
    store.delete_account(USERS[1])
    twin = cast("Archived", store.copied(tmp_path / "twin"))
    store.run()
    with by_spark(cleaner):
        twin.run()
    assert "MERGE" in operations(twin)
    left = set(store.served())
    assert {(shared, number) for number in (1, 3, 5)} <= left
    for each in (store, twin):
        assert set(each.served()) == left
        assert each.derivable(each.config.keys_path) == left
        assert Inspection(each.config.keys_path).flaws == []


def test_erasing_a_little_again_and_again_crowds_no_partition(store: Store) -> None:
    """A file that is written anew stays one file: compacting would start Spark."""
    key, kept = store.add_group(), store.add_group()
    for _ in range(4):
        store.send(key, 12)
        store.send(kept, 2)
        store.now += 8 * DAY
        store.run()

    def session() -> Any:
        raise AssertionError("no Spark is needed")

    before = len(list(store.config.archive_path.glob("lifetime=*/span=*/*")))
    for number in range(1, 12):
        store.take_back(key, *range(number, 48, 12))
        assert store.run()["deleted"]["taken_back"] == 4
        assert Table(session, store.config.archive_path).crowded_partitions() == []
        assert len(list(store.config.archive_path.glob("lifetime=*/span=*/*"))) <= before
    store.expect_sound()
    assert set(operations(store)) <= {"CREATE TABLE", "WRITE", "DELETE"}
