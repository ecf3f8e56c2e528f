"""Backups that forget: none of them has a key, and restores take the newest vault."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from conclave.backup import restoring, vault as backup_vault
from conclave.backup.manifest import BackupError
from conclave.clock import FakeClock
from conclave.config.settings import KEYS, LEDGER
from conclave.config.vault import VaultConfig
from conclave.keys import copying, file
from conclave.keys.file import KeyFile
from conclave.keys.inspection import Inspection
from conclave.keys.replacing import FORMER, NEW
from conclave.keys.store import KeyStore
from conclave.store import keyring
from conclave.store.engine.faults import StoreError
from conclave.store.ledger import book
from spark import ending, run
from spark.environment import RunEnvironment
from tests.support.archived import DAY
from tests.support.keyed import KeyedBackups, clean, state


@pytest.fixture
def store(tmp_path: Path) -> KeyedBackups:
    made = KeyedBackups(tmp_path)
    made.begin_keys()
    return made


def of(store: KeyedBackups, group: int) -> set[tuple[int, int]]:
    return {(key, number) for key, number in store.made if key == group}


def test_no_generation_has_a_key_and_a_copy_of_the_vault_is_today_s(store: KeyedBackups, tmp_path: Path) -> None:
    kept, fading = store.add_group(), store.add_group(DAY)
    store.send(kept, 5)
    store.send(fading, 5)
    generations = [store.back_up().path]
    for _ in range(3):
        store.now += DAY
        store.send(fading, 2)
        clean(store)
        generations.append(store.back_up().path)
    copy = tmp_path / "copy"
    backup_vault.copy(store.config, copy)
    gone = of(store, fading) - set(store.served())
    assert len(gone) == 7
    assert store.derivable(copy / KEYS) == store.derivable(store.config.keys_path) == set(store.served())
    store.expect_lost(gone, copy, store.backups, store.folder / "home")
    roots = set(store.roots.values())
    for each in generations:
        data = b"".join(path.read_bytes() for path in each.rglob("*") if path.is_file())
        assert not any(secret in data for secret in roots)
    assert store.bytes_left(gone, generations[0]) != set(), "they do lie there, and cannot be read"
    assert store.search.numbers_in(generations[0]) == set(), "nothing lies there as it came"


def test_from_each_generation_a_restore_serves_what_is_alive(store: KeyedBackups, tmp_path: Path) -> None:
    kept, fading, deleted = store.add_group(), store.add_group(DAY), store.add_group()
    store.send(kept, 5)
    store.send(fading, 5)
    store.send(deleted, 5)
    first = store.back_up().path
    store.now += 2 * DAY
    store.send(kept, 3)
    store.delete_group(deleted)
    clean(store)
    store.write_ledger()
    second = store.back_up().path
    there, done = store.restored(first)
    there.start()
    assert set(there.served()) == {(kept, number) for number in range(1, 6)}
    assert done.replayed["messages_erased"] == 5, "the expired ones; of the deleted group the ledger told"
    assert there.derivable(there.config.keys_path) == set(there.served()), "what came later is given up by the start"
    store.elsewhere = tmp_path / "again"
    again, _ = store.restored(second)
    assert set(again.served()) == {(kept, number) for number in range(1, 9)}
    assert state(again.config.database) is not None


def test_without_its_ledger_a_restore_still_brings_back_nothing_that_was_erased(store: KeyedBackups) -> None:
    kept, deleted = store.add_group(), store.add_group()
    store.send(kept, 3)
    store.send(deleted, 3)
    made = store.back_up()
    store.delete_group(deleted)
    clean(store)
    store.back_up()
    store.config.ledger_path.unlink()
    there, done = store.restored(made.path, accepts_older=True)
    assert set(there.served()) == of(store, kept)
    assert done.replayed["messages_erased"] == 3


def test_without_keys_a_restore_is_refused_in_words_that_help(store: KeyedBackups) -> None:
    store.send(store.add_group(), 3)
    made = store.back_up()
    store.config.keys_path.unlink()
    with pytest.raises(BackupError) as refused:
        store.restored(made.path)
    assert "without it no message can be read" in str(refused.value)
    assert not (store.elsewhere / "hot.db").exists()


def test_older_keys_than_the_backup_are_told_and_taken_only_if_that_is_meant(store: KeyedBackups) -> None:
    group, later = store.add_group(), store.add_group()
    store.send(group, 3)
    older = store.config.keys_path.read_bytes()
    store.send(later, 2)
    made = store.back_up()
    store.config.keys_path.write_bytes(older)
    with pytest.raises(BackupError, match="is older than the backup"):
        store.restored(made.path)
    there, _ = store.restored(made.path, accepts_older=True)
    assert set(there.served()) == of(store, group), "what has no key is given up"


def test_the_keys_of_another_server_are_told(store: KeyedBackups, tmp_path: Path) -> None:
    store.send(store.add_group(), 3)
    made = store.back_up()
    (tmp_path / "other").mkdir()
    other = KeyedBackups(tmp_path / "other")
    other.begin_keys()
    store.config.keys_path.write_bytes(other.config.keys_path.read_bytes())
    with pytest.raises(BackupError, match="another server"):
        store.restored(made.path)
    there = replace(store.config, database_path=str(tmp_path / "there" / "hot.db"))
    (tmp_path / "there").mkdir()
    there.vault_path.mkdir()
    there.keys_path.write_bytes(other.config.keys_path.read_bytes())
    with pytest.raises(BackupError, match="move it away first, and keep it"):
        restoring.restore(there, FakeClock(store.now), made.path, lambda _: "")


def test_a_restore_takes_the_newest_vault(store: KeyedBackups, tmp_path: Path) -> None:
    """The database alone was lost: what was erased since the last backup stays erased."""
    kept, fading = store.add_group(), store.add_group(DAY)
    store.send(kept, 3)
    store.send(fading, 3)
    made = store.back_up()
    older = tmp_path / "older"
    backup_vault.copy(store.config, older)
    store.now += 2 * DAY
    clean(store)
    there, _ = store.restored(made.path, vault=older)
    assert store.derivable(older / KEYS) == {*of(store, kept), *of(store, fading)}, "it alone was there"
    store.elsewhere = tmp_path / "again"
    store.elsewhere.mkdir()
    shutil.copytree(store.config.vault_path, store.elsewhere / "hot.vault")
    there, _ = store.restored(made.path)
    assert Inspection(there.config.keys_path).serial >= Inspection(store.config.keys_path).serial
    assert there.derivable(there.config.keys_path) == of(store, kept)


def test_a_restore_does_not_put_an_older_copy_in_place_of_a_newer_damaged_vault(
    store: KeyedBackups, tmp_path: Path
) -> None:
    kept = store.add_group()
    store.send(kept, 3)
    made = store.back_up()
    older = tmp_path / "older"
    backup_vault.copy(store.config, older)
    store.send(store.add_group(), 3)
    damaged = bytearray(store.config.keys_path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    newer = tmp_path / "newer"
    shutil.copytree(store.config.vault_path, newer)
    (newer / KEYS).write_bytes(damaged)
    there = replace(
        store.config, database_path=str(tmp_path / "there.db"), vault=VaultConfig(str(newer), (str(older),))
    )
    with pytest.raises(BackupError, match=f"{newer / KEYS}: is newer than {older / KEYS}, but damaged"):
        restoring.restore(there, FakeClock(store.now), made.path, lambda _: "")
    assert (newer / KEYS).read_bytes() == damaged


def test_the_first_start_after_a_restore_gives_up_what_it_took_back(store: KeyedBackups) -> None:
    group = store.add_group()
    store.send(group, 3)
    made = store.back_up()
    store.send(group, 2)
    store.back_up()
    there, _ = store.restored(made.path)
    assert there.derivable(there.config.keys_path) == of(store, group), "until then the former database could go on"
    there.start()
    assert there.derivable(there.config.keys_path) == set(there.served()) == {(group, n) for n in (1, 2, 3)}
    there.stored, there.made = dict(store.stored), dict(store.made)
    there.send(group, 1)
    assert len(there.served()) == 4


def test_one_process_at_a_time_writes_the_ledger_of_a_copy(store: KeyedBackups, tmp_path: Path) -> None:
    copy, ledger = tmp_path / "copy", store.config.ledger_path
    backup_vault.copy(store.config, copy)
    (copy / LEDGER).unlink()
    with (
        closing(KeyStore(store.config.keys_path)) as keys,
        ThreadPoolExecutor() as threads,
        copying.copy_lock(keys.path, copy / LEDGER),
    ):
        renewing = threads.submit(keyring.update_copy, keys, ledger, copy)
        with pytest.raises(TimeoutError):
            renewing.result(0.5)
        assert not (copy / LEDGER).exists()
    renewing.result(0)
    assert book.tip_of_copy(copy / LEDGER) == book.tip(ledger)


def test_what_else_lies_where_a_copy_goes_is_left_alone(store: KeyedBackups, tmp_path: Path) -> None:
    store.send(store.add_group(), 3)
    copy = tmp_path / "copy"
    backup_vault.copy(store.config, copy)
    (copy / KEYS).write_bytes(b"something else")
    with pytest.raises(BackupError, match="is not a copy of these keys"):
        backup_vault.copy(store.config, copy)
    assert (copy / KEYS).read_bytes() == b"something else"


def test_a_copy_that_was_cut_short_is_made_again(store: KeyedBackups, tmp_path: Path) -> None:
    store.send(store.add_group(), 3)
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / f"{KEYS}{NEW}").write_bytes(b"cut")
    backup_vault.copy(store.config, copy)
    assert store.derivable(copy / KEYS) == set(store.served())
    assert sorted(path.name for path in copy.iterdir()) == [KEYS, LEDGER]


@pytest.mark.parametrize("suffix", [NEW, FORMER])
def test_what_a_process_that_died_has_left_beside_a_copy_is_removed_although_the_copy_is_current(
    store: KeyedBackups, tmp_path: Path, suffix: str
) -> None:
    """It may have keys that were destroyed since."""
    store.send(store.add_group(), 3)
    copy = tmp_path / "copy"
    backup_vault.copy(store.config, copy)
    shutil.copy(copy / KEYS, copy / f"{KEYS}{suffix}")
    backup_vault.copy(store.config, copy)
    assert sorted(path.name for path in copy.iterdir()) == [KEYS, LEDGER]


def test_a_database_keeps_its_keys(store: KeyedBackups) -> None:
    store.send(store.add_group(), 3)
    path, database = store.config.keys_path, store.config.database
    path.rename(path.with_name("away"))
    with pytest.raises(StoreError, match="the vault is missing"):
        keyring.open_to_serve(database, path)
    assert not path.exists(), "none is begun in its place"


def test_a_new_database_does_not_take_the_keys_of_another_one(store: KeyedBackups, tmp_path: Path) -> None:
    store.send(store.add_group(), 3)
    (tmp_path / "new").mkdir()
    other = KeyedBackups(tmp_path / "new")
    with pytest.raises(StoreError, match="belongs to another database"):
        keyring.open_to_serve(other.config.database, store.config.keys_path)
    empty = tmp_path / "new" / "begun"
    file.create(empty, bytes(range(16)))
    opened = keyring.open_to_serve(other.config.database, empty)
    assert opened.keys_id == bytes(range(16)), "one without keys was left by a start that died"
    opened.close()


def test_copies_are_renewed_by_each_run_and_forget_with_it(store: KeyedBackups, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    store.config = replace(store.config, vault=VaultConfig(copies=(str(copy),)))
    fading = store.add_group(DAY)
    store.send(fading, 4)
    clean(store)
    assert store.derivable(copy / KEYS) == of(store, fading)
    before = [(copy / name).stat().st_ino for name in (KEYS, LEDGER)]
    clean(store)
    assert [(copy / name).stat().st_ino for name in (KEYS, LEDGER)] == before, "nothing has changed"
    store.now += 2 * DAY
    clean(store)
    assert store.derivable(copy / KEYS) == set()
    store.expect_lost(of(store, fading), copy, store.folder / "home")
    assert book.tip(copy / LEDGER) == book.tip(store.config.ledger_path)
    KeyFile(copy / KEYS).close()


def test_a_copy_whose_disk_is_away_keeps_no_other_one_old(store: KeyedBackups, tmp_path: Path) -> None:
    away, good, second = tmp_path / "away" / "copy", tmp_path / "good", tmp_path / "away" / "second"
    store.config = replace(store.config, vault=VaultConfig(copies=(str(away), str(good), str(second))))
    fading = store.add_group(DAY)
    store.send(fading, 4)
    for is_alive in (True, False):
        with closing(RunEnvironment(store.config, FakeClock(store.now))) as engine:
            told = run.clean_up(engine).error
        assert str(away) in told
        assert str(second) in told
        assert store.derivable(good / KEYS) == (of(store, fading) if is_alive else set())
        store.now += 2 * DAY


def test_an_older_vault_never_replaces_a_newer_copy(store: KeyedBackups, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    store.send(store.add_group(), 2)
    older = store.config.keys_path.read_bytes()
    store.send(store.add_group(), 2)
    backup_vault.copy(store.config, copy)
    newer = (copy / KEYS).read_bytes()
    store.config.keys_path.write_bytes(older)
    with pytest.raises(BackupError, match="is older than the database, which has 2 messages without keys"):
        backup_vault.copy(store.config, copy)
    store.config = replace(store.config, vault=VaultConfig(copies=(str(copy),)))
    with closing(RunEnvironment(store.config, FakeClock(store.now))) as engine:
        assert "is older than the database" in run.clean_up(engine).error
    assert (copy / KEYS).read_bytes() == newer


def test_what_is_noted_while_a_run_loses_keys_is_lost_too(store: KeyedBackups, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group is deleted just then, whose id comes before that of the group which the run has read."""
    first, last = sorted((store.add_group(DAY), store.add_group(DAY)), key=store.group_ids.__getitem__)
    store.send(first, 4)
    store.send(last, 4)
    store.now += 2 * DAY
    store.set_expiry(first, -1)
    deleted: list[int] = []

    def delete(point: str) -> None:
        if point == "run.keys_noted" and not deleted:
            deleted.append(first)
            store.delete_group(first)

    monkeypatch.setattr(ending, "reach", delete)
    clean(store)
    assert deleted == [first]
    assert store.noted() == 0
    unused = [100, 65_535]
    assert Inspection(store.config.keys_path).have_keys(store.group_ids[first], unused) == [False, False]
    clean(store)
    assert store.derivable(store.config.keys_path) == set()
