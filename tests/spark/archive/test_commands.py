"""`conclave archive`: what is there, whether it is whole, and how a group's messages come back."""

import json
import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from uuid import UUID

import pyarrow
import pytest
from click.testing import CliRunner, Result
from deltalake import DeltaTable, write_deltalake
from py4j.protocol import Py4JNetworkError
from pyspark.sql import SparkSession

from conclave.cli import archive, cleanup
from conclave.clock import FakeClock
from conclave.config.archive import ArchiveConfig
from conclave.config.cleanup import CleanupConfig
from conclave.keys.store import KeyStore
from conclave.retention.policy import KEEP
from spark import readiness
from spark.archive.check import Check
from spark.archive.run import ArchiveRun
from spark.environment import RunEnvironment
from spark.hot_store import ArchiveRunError, Hot
from tests.conftest import Running
from tests.support.archive import Mover
from tests.support.archived import DAY, USERS, Store
from tests.support.cleaner import Cleaner
from tests.support.failpoints import RESTORE_POINTS
from tests.support.sample import some

pytestmark = pytest.mark.system


@pytest.fixture
def store(tmp_path: Path, cleaner: Cleaner) -> Store:
    return Store(tmp_path, cleaner)


def status(store: Store, monkeypatch: pytest.MonkeyPatch, *options: str) -> Result:
    """Run `conclave archive status` on the store, at its time."""
    monkeypatch.setattr(archive, "SystemClock", lambda: FakeClock(store.now))
    path = store.folder / "conclave.toml"
    path.write_text(f'database_path = "{store.config.database}"\n[archive]\nafter = "7d"\nmargin = "1d"\n')
    result = CliRunner().invoke(archive.archive, ["status", "--config", str(path), *options])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_status_tells_what_is_where_and_what_is_overdue(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    result = status(store, monkeypatch)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "nothing has been archived yet\n", "")
    kept, timed, deleted = store.add_group(), store.add_group(20 * DAY), store.add_group()
    for group_key in (kept, timed, deleted):
        store.send(group_key, 3)
    store.now += 8 * DAY
    store.run()
    found = json.loads(status(store, monkeypatch, "--json").stdout)
    files = list(store.config.archive_path.glob("lifetime=*/span=*/*.parquet"))
    shares = {each["lifetime"]: each for each in found["shares"]}
    assert (shares[-1]["messages"], shares[-1]["body_bytes"], shares[-1]["groups"]) == (6, 1800, 2)
    assert (shares[20 * DAY]["month"], shares[20 * DAY]["messages"]) == ("2023-11", 3)
    assert sum(each["files"] for each in shares.values()) == len(files)
    assert sum(each["disk_bytes"] for each in shares.values()) == sum(path.stat().st_size for path in files)
    assert found["table_version"] == found["needed_version"]
    assert set(found["overdue"].values()) == {0}
    assert [(move["messages"], move["finished_at"]) for move in found["moves"]] == [(9, store.now)]
    assert "nothing is overdue" in status(store, monkeypatch).stdout
    store.delete_group(deleted)
    store.delete_account(USERS[0])
    store.now += 13 * DAY
    overdue = json.loads(status(store, monkeypatch, "--json").stdout)["overdue"]
    assert overdue == {
        "expired_parts": 1,
        "expired_seconds": DAY,
        "deleted_groups": 1,
        "deleted_groups_seconds": 13 * DAY,
        "deleted_accounts": 1,
        "deleted_accounts_seconds": 13 * DAY,
        "restored_messages": 0,
        "taken_back_messages": 0,
    }
    assert "deleted groups, the first 13d ago" in status(store, monkeypatch).stdout


def test_status_tells_what_it_can_of_an_archive_that_is_not_there(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.send(store.add_group(), 3)
    store.now += 8 * DAY
    store.run()
    store.config.archive_path.rename(store.folder / "elsewhere")
    result = status(store, monkeypatch)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"conclave: {store.config.archive_path}: ")
    assert "cannot be read" in result.stdout
    assert "900" in result.stdout, "the index is still told"


Archived = tuple[Store, int, int]


@pytest.fixture
def archived(archived_once: Archived, tmp_path: Path) -> Archived:
    store, kept, timed = archived_once
    return store.copied(tmp_path / "store"), kept, timed


@pytest.fixture(scope="module")
def archived_once(tmp_path_factory: pytest.TempPathFactory, cleaner: Cleaner) -> Archived:
    """Archive 20 messages of each of two groups; return the store and the groups' keys."""
    store = Store(tmp_path_factory.mktemp("archived"), cleaner)
    kept, timed = store.add_group(), store.add_group(60 * DAY)
    for group_key in (kept, timed):
        store.send(group_key, 20)
    store.now += 8 * DAY
    store.run()
    return store, kept, timed


def name(store: Store, group_key: int) -> str:
    return f"group {UUID(bytes=store.group_ids[group_key])}"


def test_an_archive_that_is_whole_is_found_so_between_runs_and_within_a_move(store: Store, archived: Archived) -> None:
    assert store.verify() == {"messages": 0, "body_bytes": 0, "index_rows": 0, "differences": []}
    store, kept, _ = archived
    whole = {"messages": 40, "body_bytes": 12_000, "index_rows": 2, "differences": []}
    assert store.verify() == whole
    store.send(kept, 5)
    store.now += 8 * DAY
    assert store.try_run("archive.appended=io")["error"]
    assert store.verify() == whole, "what is on its way does not count yet"


def test_what_was_removed_changed_doubled_or_planted_is_found(archived: Archived) -> None:
    store, kept, timed = archived
    table = DeltaTable(str(store.config.archive_path))
    table.delete(f"group_key = {kept} AND sequence_num = 7")
    assert store.verify()["differences"] == [
        f"{name(store, kept)}, kept, from 2023-10-20: 19 messages, but the index has 20"
    ]
    table.update({"mls_message": "X'00'"}, predicate=f"group_key = {timed} AND sequence_num = 7")
    rows = [row for row in store.table().to_pylist() if (row["group_key"], row["sequence_num"]) == (timed, 3)]
    planted = [{**row, "group_key": 99} for row in rows]
    write_deltalake(table, pyarrow.Table.from_pylist(rows + planted), mode="append")
    assert store.verify()["differences"] == [
        f"{name(store, kept)}, kept, from 2023-10-20: 19 messages, but the index has 20",
        f"{name(store, timed)}, kept for 60d, from 2023-11-13: 1 messages are damaged: their checksums differ",
        f"{name(store, timed)}, kept for 60d, from 2023-11-13: 21 messages, but the index has 20",
        f"{name(store, timed)}: 1 numbers are there more than once",
    ]


def test_files_that_are_missing_are_told_in_one_line(archived: Archived) -> None:
    store, *_ = archived
    next(store.config.archive_path.glob("lifetime=*/span=*/*.parquet")).unlink()
    told = store.verify()
    assert told["refused"]
    assert told["error"].startswith(f"{store.config.archive_path}: cannot be read: ")
    assert "\n" not in told["error"]


def test_a_damaged_file_is_named_in_one_line_by_runs_and_dry_runs(archived: Archived) -> None:
    store, *_ = archived
    [file] = store.config.archive_path.glob("lifetime=-1/span=*/*.parquet")
    file.write_bytes(file.read_bytes()[:1000])
    store.delete_account(USERS[0])
    planned = store.cleaner.dry_run(store.config, store.now)
    assert planned["refused"]
    for told in (planned["error"], store.try_run("")["error"]):
        assert re.search(f"{re.escape(str(file))}: .", told), told
        assert "\n" not in told


def test_what_a_dry_run_finds_wrong_is_told_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: RunEnvironment) -> None:
        raise ArchiveRunError("the archive: cannot be read")

    monkeypatch.setattr(cleanup, "rehearse", fail)
    monkeypatch.setattr("conclave.cli.common.use_console_log", lambda: None)
    shown = CliRunner().invoke(cleanup.cleanup, ["run", "--dry-run"])
    assert shown.exit_code == 1
    assert shown.stderr.splitlines()[1:] == ["conclave: the archive: cannot be read"]


class Dead:
    """A session whose Java has been killed, as by the system when memory is short."""

    @property
    def read(self) -> None:
        raise Py4JNetworkError("Answer from Java side is empty")


def no_keys() -> KeyStore:
    raise AssertionError("no key is needed")


async def test_a_java_that_ends_while_the_archive_is_read_is_told_in_a_line(running: Running) -> None:
    alice = await running.user("alice")
    group = await alice.create_group("friends")
    await alice.send(group)
    Mover(running.config).move(group, 1)
    config = running.config
    hot = Hot(config.database, config.policy, running.clock.now())
    dead = cast("SparkSession", Dead())
    archive = ArchiveRun(lambda: dead, lambda: None, hot, config.archive_path, config.archive, no_keys)
    with pytest.raises(ArchiveRunError, match=f"{config.archive_path}: cannot be read: Answer from Java side is empty"):
        archive.check()


def no_moving(store: Store) -> dict[str, ArchiveConfig]:
    return {"archive": replace(store.config.archive, after=KEEP)}


def test_a_restored_group_is_served_as_before_and_leaves_the_archive(archived: Archived) -> None:
    store, kept, timed = archived
    other = store.add_group()
    store.send(other, 5)
    store.send(kept, 5, sender=USERS[1])
    store.now += 8 * DAY
    store.run()
    store.send(kept, 3)
    before = store.served()
    assert [store.restore(group_key)["restored"] for group_key in (kept, timed)] == [25, 20]
    assert store.served() == before
    assert store.verify()["differences"] == []
    report = store.run(**no_moving(store))
    assert (report["archived"], report["deleted"]) == (0, dict.fromkeys(report["deleted"], 0))
    assert store.served() == before
    assert {row["group_key"] for row in store.table().to_pylist()} == {other}
    assert store.query("SELECT DISTINCT group_key FROM archive_senders") == [(other,)]
    store.expect_sound()
    store.delete_account(USERS[1])
    store.set_expiry(timed, 9 * DAY)
    gone = {(kept, number) for number in range(21, 26)} | {(timed, number) for number in range(1, 21)}
    store.run(**no_moving(store))
    store.expect_served(set(before) - gone)
    store.expect_erased(gone)
    assert store.query("SELECT count(*) FROM user_tombstones") == [(0,)]
    assert store.run()["archived"] == 20, "once moving is on again"
    store.expect_served(set(before) - gone)
    store.expect_sound()


@pytest.mark.parametrize("point", some(RESTORE_POINTS, 1, "points where a restore fails"))
def test_a_restore_that_fails_anywhere_changes_nothing_that_is_served(store: Store, point: str) -> None:
    kept, other = store.add_group(), store.add_group()
    for group_key in (kept, other):
        store.send(group_key, 300)
    store.now += 8 * DAY
    store.run()
    before = store.served()
    assert store.restore(kept, f"{point}=io")["error"] == "disk I/O error"
    assert store.served() == before
    if point != "restore.switched":
        assert store.restore(kept, f"{point}=io")["error"] == "disk I/O error"
        assert store.restore(kept)["restored"] == 300
        assert store.served() == before
    store.run()
    assert store.served() == before
    store.expect_sound()


def test_a_restored_group_that_is_deleted_is_erased_once(archived: Archived) -> None:
    """Its messages lie in the archive too until that is reclaimed: nothing is counted, or noted, for them."""
    store, kept, timed = archived
    assert store.restore(kept)["restored"] == 20
    store.delete_group(kept)
    lasting = replace(store.config.archive, after=KEEP, reclaim_interval=DAY)
    assert store.run(archive=lasting)["deleted"]["deleted_group"] == 20
    assert store.query("SELECT sum(messages) FROM receipts") == [(20,)]
    assert store.query("SELECT count(*) FROM tombstones") == [(0,)]
    assert store.query("SELECT messages FROM archive_returned") == [(20,)]
    store.expect_erased({key for key in store.made if key[0] == kept})
    store.expect_served({key for key in store.made if key[0] == timed})
    store.now += DAY
    store.run(archive=lasting)
    assert store.query("SELECT count(*) FROM archive_returned") == [(0,)]
    store.expect_sound()


def test_a_restore_leaves_the_room_that_cleanup_needs(archived: Archived) -> None:
    """A restore that fills the disk leaves copies that only a run removes, and no run could work there."""
    store, kept, _ = archived
    before = store.served()
    told = store.restore(kept, cleanup=CleanupConfig(disk_reserve=2**60))
    assert re.fullmatch(
        f"{store.config.database}: there is no room for what is in the archive: [0-9,]+ bytes are free,"
        f" {2**60 + 4 * 2**20 + 6000:,} are needed, with those that are kept for cleanup; nothing was restored",
        told["error"],
    )
    assert told["refused"]
    assert store.query("SELECT count(*) FROM messages") == [(0,)]
    assert store.served() == before
    assert store.restore(kept)["restored"] == 20


def test_what_a_restore_that_did_not_end_has_copied_goes_with_the_next_run(archived: Archived) -> None:
    store, kept, timed = archived
    before = store.served()
    assert store.restore(kept, "restore.before_switch=io")["refused"]
    store.delete_group(timed)
    store.run(**no_moving(store))
    store.expect_served({key for key in before if key[0] == kept})
    store.expect_erased({key for key in before if key[0] == timed})
    store.expect_sound()
    assert store.query("SELECT count(*) FROM messages") == [(0,)]


def test_a_restore_that_makes_no_sense_is_refused(archived: Archived) -> None:
    store, kept, timed = archived
    hot = store.add_group()
    refused = {
        store.restore(hot)["error"]: "nothing of the group is served from the archive",
        store.cleaner.restore(store.config, store.now, bytes(16), "")["error"]: "no such group",
        store.cleaner.restore(store.config, store.now, store.group_ids[kept], "")["error"]: (
            'the next run would move the messages again: set [archive] after = "-1" first'
        ),
    }
    DeltaTable(str(store.config.archive_path)).delete(f"group_key = {kept} AND sequence_num = 7")
    refused[store.restore(kept)["error"]] = (
        f"{name(store, kept)}, kept, from 2023-10-20: 19 messages, but the index has 20; nothing was restored"
    )
    assert list(refused) == list(refused.values())
    assert store.restore(timed)["restored"] == 20
    assert store.restore(timed)["error"] == "nothing of the group is served from the archive"


def test_verify_prints_what_differs_and_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = tmp_path / "conclave.toml"
    config.write_text(f'database_path = "{tmp_path / "hot.db"}"\n')

    monkeypatch.setattr("conclave.cli.common.use_console_log", lambda: None)
    missing = CliRunner().invoke(archive.archive, ["restore", str(UUID(int=1)), "--config", str(config)])
    assert (missing.exit_code, missing.stderr) == (
        1,
        f"conclave: {tmp_path / 'hot.db'}: no such database; `conclave serve` creates it\n",
    )

    def verify(check: Check) -> Result:
        archived = nullcontext(SimpleNamespace(check=lambda: check))
        monkeypatch.setattr(readiness, "archive_at_rest", lambda _: archived)
        return CliRunner().invoke(archive.archive, ["verify", "--config", str(config)])

    whole = verify(Check(1000, 2000, 3))
    assert (whole.exit_code, whole.stdout) == (
        0,
        "the archive is intact: 1,000 messages with 2,000 bytes in 3 rows of the index\n",
    )
    differing = verify(Check(1000, 2000, 3, ["a"] * 102))
    assert (differing.exit_code, differing.stdout) == (1, "a\n" * 100 + "and 2 more\n")
    assert differing.stderr.startswith("conclave: the archive is damaged; read: 1,000 messages")
