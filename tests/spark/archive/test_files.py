"""The archive's files: what is in them, who may read them, how many there are, and that they go."""

import json
import os
import stat
import time
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from conclave.config.archive import ArchiveConfig
from conclave.config.cleanup import CleanupConfig
from spark.archive.table import FEW_FILES
from tests.support.archived import DAY, USERS, Store
from tests.support.cleaner import Cleaner
from tests.support.sample import amount

pytestmark = pytest.mark.system

HOUR = 3600


@pytest.fixture
def store(tmp_path: Path, cleaner: Cleaner) -> Store:
    return Store(tmp_path, cleaner)


def test_many_small_files_of_a_part_become_few_in_the_order_of_groups(store: Store) -> None:
    crowd = amount(FEW_FILES, 2)
    groups = [store.add_group() for _ in range(3)]
    for _ in range(crowd + 2):
        for group_key in reversed(groups):
            store.send(group_key, 2)
        store.now += HOUR
    store.now += 7 * DAY - (crowd + 2) * HOUR
    for _ in range(crowd):
        store.now += HOUR
        assert store.run_in_batches(0, crowd)["archived"] == 6
    assert len(data_files(store)) == crowd
    store.now += HOUR
    assert store.try_run("archive.rewritten=io", crowd)["error"], "the point was reached"
    store.expect_served(set(store.made))
    assert store.run_in_batches(0, crowd)["archived"] == 0
    assert len(data_files(store)) == 1
    assert "WRITE" in {entry["operation"] for entry in DeltaTable(str(store.config.archive_path)).history()}
    rows = [(row["group_key"], row["sequence_num"]) for row in store.table().to_pylist()]
    assert rows == sorted(rows)
    store.expect_served(set(store.made))
    store.expect_sound()


def test_what_a_crash_left_half_written_goes_in_the_next_run(store: Store) -> None:
    group_key = store.add_group()
    store.send(group_key, 3)
    store.now += 8 * DAY
    assert store.try_run("archive.fixed=io")["error"]
    with store.opened() as connection:
        connection.execute("UPDATE archive_state SET unerased = 1")
    orphan = store.config.archive_path / "lifetime=-1" / "span=0" / "part-00000-orphan.c000.zstd.parquet"
    orphan.parent.mkdir(parents=True)
    orphan.write_bytes(store.search.body(store.made[group_key, 1], 300))
    store.run()
    assert not orphan.parent.exists()
    store.expect_served(set(store.made))


def test_the_log_holds_no_bodies_and_no_senders_and_nobody_else_may_read_anything(store: Store) -> None:
    groups = [store.add_group(), store.add_group(60 * DAY)]
    for group_key in groups:
        store.send(group_key, 3, sender=USERS[2])
    store.now += 8 * DAY
    store.run()
    store.set_expiry(groups[0], 5 * DAY)
    store.run()
    log = store.config.archive_path / "_delta_log"
    text = b"".join(path.read_bytes() for path in log.iterdir() if path.is_file())
    assert USERS[2] not in text
    assert USERS[2].hex().encode() not in text.lower()
    assert store.search.numbers_in(log) == set()
    statistics = [
        json.loads(action["add"]["stats"])
        for path in log.glob("*.json")
        for line in path.read_text().splitlines()
        if "add" in (action := json.loads(line))
    ]
    assert statistics
    for each in statistics:
        assert set(each["minValues"]) == {"group_key", "sequence_num", "created_at"}
    for path in [store.config.archive_path, *store.config.archive_path.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    assert not list(store.config.archive_path.rglob(".*")), "no checksum files of Hadoop's"


def test_the_log_is_cut_behind_its_checkpoint(store: Store) -> None:
    group_key = store.add_group()
    for _ in range(amount(14, 7)):
        store.send(group_key)
        store.now += 8 * DAY
        store.run()
        for path in (store.config.archive_path / "_delta_log").iterdir():
            old = time.time() - 2 * HOUR
            os.utime(path, (old, old))
    names = [path.name for path in (store.config.archive_path / "_delta_log").glob("*.json")]
    assert len(names) <= 12
    store.expect_served(set(store.made))


def test_a_dry_run_says_what_would_move_and_go_and_changes_nothing(store: Store) -> None:
    kept, whole, some = store.add_group(), store.add_group(20 * DAY), store.add_group()
    for group_key in (kept, whole, some):
        store.send(group_key, 3)
    store.now += 8 * DAY
    store.run()
    store.send(kept, 2)
    store.now += 13 * DAY
    store.set_expiry(some, 10 * DAY)
    before = state_of(store)
    planned = store.cleaner.dry_run(store.config, store.now)
    assert state_of(store) == before
    done = store.run()
    for name in ("archived", "deleted", "groups_touched"):
        assert planned[name] == done[name], name
    assert (done["archived"], done["deleted"]["expired"], done["groups_touched"]) == (2, 6, 2)


def test_a_run_with_nothing_due_does_not_open_the_table(store: Store) -> None:
    store.config = replace(store.config, archive=replace(store.config.archive, reclaim_interval=10 * DAY))
    group_key = store.add_group(60 * DAY)
    store.send(group_key, 3)
    store.now += 8 * DAY
    store.run()
    hidden = store.config.archive_path.rename(store.folder / "elsewhere")
    assert store.run()["error"] == ""
    store.now += 60 * DAY
    report = store.try_run("")
    assert "is it mounted?" in report["error"], "an archive that is missing is never begun anew"
    assert report["deleted"]["expired"] == 3, "to erase is to destroy keys"
    hidden.rename(store.config.archive_path)
    store.run()
    store.expect_sound()
    assert store.table().num_rows == 0


def test_the_archive_of_another_database_is_left_alone(store: Store, tmp_path: Path, cleaner: Cleaner) -> None:
    (tmp_path / "other").mkdir()
    other = Store(tmp_path / "other", cleaner)
    for each in (store, other):
        each.send(each.add_group(), 3)
        each.now += 8 * DAY
    store.run()
    path = str(store.config.archive_path)
    other.config = replace(other.config, archive=replace(other.config.archive, path=path))
    assert "belongs to another database" in other.try_run("")["error"]
    assert store.table().num_rows == 3


def test_the_sql_engine_refuses_once_messages_have_moved(store: Store) -> None:
    group_key = store.add_group(60 * DAY)
    store.send(group_key, 3)
    store.now += 8 * DAY
    off, sql = ArchiveConfig(), CleanupConfig(engine="sql")
    store.run(archive=off, cleanup=sql)
    store.run()
    report = store.cleaner.try_run(replace(store.config, archive=off, cleanup=sql), store.now)
    assert 'needs [cleanup] engine = "spark"' in report["error"]
    store.now += 60 * DAY
    assert store.run(archive=off)["deleted"]["expired"] == 3, "the archive goes on expiring when moving is off"
    assert store.run(archive=off, cleanup=sql)["error"] == ""


def data_files(store: Store) -> list[Path]:
    return sorted(store.config.archive_path.glob("lifetime=*/span=*/*.parquet"))


def state_of(store: Store) -> dict[str, bytes]:
    return {
        str(path): path.read_bytes()
        for folder in (store.config.archive_path, store.config.database.parent)
        for path in folder.rglob("*")
        if path.is_file() and path.name != "hot.db-shm" and path.stat().st_size
    }
