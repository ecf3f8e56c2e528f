"""A power failure in the middle of a run: the disk has lost some of what was not synced. The next run does it again."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.support.archived import DAY, USERS, Store
from tests.support.cleaner import Cleaner
from tests.support.sample import some

pytestmark = pytest.mark.system


@pytest.fixture
def store(tmp_path: Path, cleaner: Cleaner) -> Store:
    (tmp_path / "store").mkdir()
    return Store(tmp_path / "store", cleaner)


def lose_entry(path: Path, added: list[Path]) -> None:
    path.unlink()


def empty_entry(path: Path, added: list[Path]) -> None:
    path.write_bytes(b"")


def zeros_in_entry(path: Path, added: list[Path]) -> None:
    path.write_bytes(path.read_bytes()[:100] + bytes(path.stat().st_size - 100))


def empty_files(path: Path, added: list[Path]) -> None:
    for each in added:
        each.write_bytes(b"")


def lose_files(path: Path, added: list[Path]) -> None:
    for each in added:
        each.unlink()


def zeros_in_bodies(path: Path, added: list[Path]) -> None:
    """What is stored as it is, since it cannot be compressed, can be read as if it were whole."""
    for each in added:
        content = each.read_bytes()
        at = len(content) // 3
        each.write_bytes(content[:at] + bytes(64) + content[at + 64 :])


Damage = Callable[[Path, list[Path]], None]

OF_LOG: tuple[Damage, ...] = (lose_entry, empty_entry, zeros_in_entry)

POINTS: list[tuple[str, tuple[Damage, ...]]] = [
    ("archive.turn_begun", (zeros_in_entry,)),
    ("archive.appended", (lose_entry, empty_entry, zeros_in_entry, lose_files, zeros_in_bodies)),
    ("archive.parts_dropped", (zeros_in_entry,)),
    ("archive.rewritten", (zeros_in_entry, empty_files, zeros_in_bodies)),
]

TRIED = some(POINTS, 1, "points of a power failure")


@pytest.mark.parametrize(("point", "damages"), TRIED, ids=[point for point, _ in TRIED])
def test_what_the_disk_has_lost_of_a_killed_run_is_done_again(
    store: Store, point: str, damages: tuple[Damage, ...]
) -> None:
    """For each damage, from the moment of the kill on: nothing is lost, and nothing that was due is left."""
    kept, timed = store.add_group(), store.add_group(20 * DAY)
    for _ in range(2):
        store.send(kept, 3)
        store.send(kept, 2, sender=USERS[1])
        store.send(timed, 3)
        store.now += 8 * DAY
        store.run()
    store.now += 7 * DAY // 2
    store.send(kept, 3)
    store.now += 5 * DAY if point == "archive.parts_dropped" else 8 * DAY
    if point == "archive.rewritten":
        store.delete_account(USERS[1])
    before = store.served()
    store.cleaner.kill_run(store.config, store.now, point)
    store.folder.rename(killed := store.folder.with_name("killed"))
    for damage in some(damages, 1, f"damages at {point}"):
        shutil.copytree(killed, store.folder)
        table = DeltaTable(str(store.config.archive_path))
        entry = store.config.archive_path / "_delta_log" / f"{table.version():020d}.json"
        former = set(DeltaTable(str(store.config.archive_path), version=table.version() - 1).file_uris())
        added = [Path(path) for path in set(table.file_uris()) - former]
        assert added or damage in OF_LOG, "there is something to be damaged"
        damage(entry, added)
        report = store.run()
        assert store.served() == before, damage
        store.expect_sound()
        assert store.verify()["differences"] == [], damage
        gone = set(store.made) - set(before)
        store.expect_erased(gone)
        assert store.query("SELECT unerased FROM archive_state") == [(0,)]
        assert store.run()["archived"] == 0, "all is done"
        assert report["error"] == ""
        shutil.rmtree(store.folder)
    killed.rename(store.folder)


def lose_checkpoint(path: Path) -> None:
    path.unlink()


def empty_checkpoint(path: Path) -> None:
    path.write_bytes(b"")


def zeros_in_checkpoint(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize("damage", [lose_checkpoint, empty_checkpoint, zeros_in_checkpoint])
def test_a_checkpoint_that_a_run_at_its_end_had_written_is_not_needed(
    store: Store, damage: Callable[[Path], None]
) -> None:
    log, group_key = store.config.archive_path / "_delta_log", store.add_group()
    while not (log / "_last_checkpoint").exists():
        store.send(group_key)
        store.now += 8 * DAY
        store.run()
    assert store.query("SELECT unerased FROM archive_state") == [(0,)]
    before = store.served()
    [checkpoint] = log.glob("*.checkpoint.parquet")
    damage(checkpoint)
    store.send(group_key)
    store.now += 8 * DAY
    assert store.run()["archived"] == 1
    assert set(store.served()) - set(before) == {max(store.made)}
    store.expect_sound()
    assert store.verify()["differences"] == []
