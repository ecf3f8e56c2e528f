"""Backups: one state of both tiers, nothing erased in it, files shared where nothing changed, and no half ones."""

import errno
import os
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from conclave.backup import checking, database_copy, destination, making, manifest
from conclave.backup.destination import MARK, UNFINISHED, backups_in
from conclave.backup.making import BackupResult
from conclave.backup.manifest import BackupError
from conclave.store.engine import path_check, sqlite
from conclave.store.engine.faults import free_bytes
from conclave.system import locks, operator_identity
from tests.support.archived import DAY
from tests.support.backups import Backed


@pytest.fixture
def store(tmp_path: Path) -> Backed:
    return Backed(tmp_path)


@pytest.fixture
def archived(store: Backed) -> tuple[Backed, int]:
    """A store with five messages in the archive, of two spans, and two in the database."""
    group = store.add_group()
    store.send(group, 3)
    store.now += 40 * DAY
    store.send(group, 2)
    store.move(group, 5)
    store.send(group, 2)
    return store, group


def data_files(backup: Path) -> list[Path]:
    return sorted((backup / "archive").glob("lifetime=*/span=*/*"))


def test_a_backup_is_both_tiers_as_they_were(archived: tuple[Backed, int]) -> None:
    store, group = archived
    made = store.back_up()
    before = store.served()
    store.send(group, 4)
    store.mover.rewrite()
    assert checking.find_faults(made.path, made.manifest) == []
    there, _ = store.restored(made.path)
    assert there.served() == before
    assert (made.manifest.messages, made.manifest.number, made.manifest.made_at) == (7, 1, store.now)
    assert made.manifest.archive
    assert made.manifest.archive.rows == 5


def test_a_store_without_an_archive_is_backed_up_too(store: Backed) -> None:
    store.send(store.add_group(), 3)
    made = store.back_up()
    assert made.manifest.archive is None
    assert list(made.manifest.files) == [manifest.DATABASE]
    assert len(store.restored(made.path)[0].served()) == 3


def test_the_copied_database_is_one_file_with_the_rows_that_the_manifest_tells(archived: tuple[Backed, int]) -> None:
    store, _ = archived
    made = store.back_up()
    assert sorted(path.name for path in made.path.iterdir()) == ["archive", manifest.DATABASE, manifest.NAME]
    with closing(sqlite.connect(made.path / manifest.DATABASE, readonly=True)) as connection:
        assert connection.execute("SELECT count(*) FROM messages").fetchone()[0] == made.manifest.rows["messages"] == 2
    assert len(list(made.path.iterdir())) == 3, "who reads it leaves nothing behind"


def test_what_was_erased_is_in_no_backup(store: Backed) -> None:
    kept, fading = store.add_group(), store.add_group(DAY)
    for _ in range(50):
        store.send(kept, 2, size=700)
        store.send(fading, 2, size=700)
    before = store.back_up()
    gone = {number for (group, _), number in store.made.items() if group == fading}
    keys = store.config.keys_path
    assert store.search.numbers_in(before.path) == set(), "without the keys nothing is read"
    assert store.search.left_of(gone, before.path, keys) == gone
    store.now += 2 * DAY
    store.clean()
    for backup in (before, store.back_up()):
        assert store.search.numbers_in(backup.path, keys) == set(store.made.values()) - gone


def test_files_that_have_not_changed_are_shared_with_the_earlier_backup(archived: tuple[Backed, int]) -> None:
    store, group = archived
    first = store.back_up()
    store.move(group, 7)
    second = store.back_up()
    shared = {path.name: path for path in data_files(first.path)}
    both = [path for path in data_files(second.path) if path.name in shared]
    assert len(both) == len(shared) == 2
    assert all(path.samefile(shared[path.name]) for path in both)
    assert len(data_files(second.path)) == 3
    log = "archive/_delta_log/00000000000000000000.json"
    assert not (first.path / log).samefile(second.path / log), "a run may write an entry of the log anew"
    assert not (first.path / log).samefile(store.config.archive_path / "_delta_log" / Path(log).name)


def test_what_a_killed_run_left_unfinished_in_the_log_is_not_copied(archived: tuple[Backed, int]) -> None:
    store, _ = archived
    log = store.config.archive_path / "_delta_log"
    whole = {path.name for path in log.iterdir()}
    for name in ("_last_checkpoint#1", f"{9:020d}.checkpoint.parquet#1", "_commit_0.json.tmp", f".{9:020d}.json.0.tmp"):
        (log / name).write_bytes(b"{}")
    made = store.back_up()
    assert {path.name for path in (made.path / "archive" / "_delta_log").iterdir()} == whole


def test_files_are_copied_where_they_cannot_be_shared(
    archived: tuple[Backed, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = archived

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    made = store.back_up()
    assert made.copied_bytes + made.shared_bytes == sum(path.stat().st_size for path in data_files(made.path))
    live = {path.name: path for paths in store.mover.files().values() for path in paths}
    assert not any(path.samefile(live[path.name]) for path in data_files(made.path))
    assert checking.find_faults(made.path, made.manifest) == []


@pytest.fixture
def other_disk(tmp_path: Path) -> Iterator[Path]:
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no other file system to write to")
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


def test_on_another_disk_files_are_copied_once(
    archived: tuple[Backed, int], other_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, group = archived
    store.backups = other_disk / "backups"
    first = store.back_up()
    assert (first.copied_bytes, first.shared_bytes) == (sum(p.stat().st_size for p in data_files(first.path)), 0)
    asked: list[int] = []
    monkeypatch.setattr(making._BackupJob, "_require_room", lambda _, needed: asked.append(needed))
    monkeypatch.setattr("conclave.backup.database_copy.size_of", lambda _: 0)
    second = store.back_up()
    assert (second.copied_bytes, asked) == (0, [0]), "what is linked takes no room"
    store.move(group, 7)
    third = store.back_up()
    assert third.copied_bytes == asked[-1] > 0
    assert checking.find_faults(third.path, third.manifest) == []


def test_files_that_cannot_be_shared_need_room_also_on_the_same_disk(
    archived: tuple[Backed, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the confinement of systemd's units, where the folders are mounted apart."""
    store, _ = archived
    asked: list[int] = []
    monkeypatch.setattr(making._BackupJob, "_require_room", lambda _, needed: asked.append(needed))
    monkeypatch.setattr("conclave.backup.database_copy.size_of", lambda _: 0)
    store.back_up()
    assert asked == [0]

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    shutil.rmtree(store.backups)
    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr("conclave.backup.files._clone", lambda *_: False)
    made = store.back_up()
    assert asked[-1] == made.copied_bytes == sum(path.stat().st_size for path in data_files(made.path))
    assert checking.find_faults(made.path, made.manifest) == []


def test_what_a_run_replaces_meanwhile_does_not_make_the_two_tiers_differ(archived: tuple[Backed, int]) -> None:
    """The run has the lock, so the backup has copied the archive's files before, and waits."""
    store, group = archived
    running = locks.hold(store.config.database, locks.CLEANUP)
    running.__enter__()

    def end_run() -> None:
        store.mover.rewrite()
        store.move(group, 7)
        running.__exit__(None, None, None)

    made = store.back_up(wait=end_run)
    assert made.manifest.messages == 7
    assert {path.name for path in data_files(made.path)} == {
        path.name for paths in store.mover.files().values() for path in paths
    }
    assert len(store.restored(made.path)[0].served()) == 7


def test_if_much_has_changed_meanwhile_it_is_copied_before_the_lock_is_taken_again(
    archived: tuple[Backed, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = archived
    looked: list[int] = []

    def missing(*_: object) -> int:
        with pytest.raises(locks.LockedError), locks.hold(store.config.database, locks.CLEANUP):
            pass
        looked.append(1)
        return making.COPIED_LOCKED_BYTES + 1

    monkeypatch.setattr(making._BackupJob, "_require_room", lambda *_: None)  # it asks, too, without the lock
    monkeypatch.setattr("conclave.backup.archive_copy.ArchiveCopy.missing_bytes", lambda *_: 0)
    store.back_up()
    monkeypatch.setattr("conclave.backup.making._BackupJob._copy_archive", lambda _: looked.append(0))
    monkeypatch.setattr("conclave.backup.archive_copy.ArchiveCopy.missing_bytes", missing)
    made = store.back_up()
    assert looked == [0, 1, 0, 1, 0], "the last round takes what is left with the lock"
    assert checking.find_faults(made.path, made.manifest) == []


def test_a_backup_that_did_not_end_is_gone_on_with(
    archived: tuple[Backed, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = archived

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error", "somewhere")

    with monkeypatch.context() as patch:
        patch.setattr("conclave.backup.database_copy.copy", fail)
        with pytest.raises(BackupError, match="somewhere: Input/output error"):
            store.back_up()
    assert [path.name for path in store.backups.iterdir() if path.name[0] == "2"] == []
    left = {path.name: path.stat().st_ino for path in data_files(store.backups / UNFINISHED)}
    assert len(left) == 2
    first = next(iter(data_files(store.backups / UNFINISHED)))
    first.with_name(f"{first.name}.part").write_bytes(b"half of a file")
    (store.backups / UNFINISHED / manifest.DATABASE).write_bytes(b"half of a database")
    made = store.back_up()
    assert {path.name: path.stat().st_ino for path in data_files(made.path)} == left
    assert made.copied_bytes + made.shared_bytes == 0, "all of it was there"
    assert checking.find_faults(made.path, made.manifest) == []
    assert not (store.backups / UNFINISHED).exists()


def test_only_the_oldest_go_and_their_order_is_that_in_which_they_were_made(store: Backed) -> None:
    store.send(store.add_group())
    made = [store.back_up().path.name]
    store.now -= 300  # the clock was set back
    made.append(store.back_up(keep=2).path.name)
    last = store.back_up(keep=2)
    assert last.removed == [made[0]]
    assert [each.path.name for each in list(backups_in(store.backups))] == sorted([made[1], last.path.name])
    assert made[1] != last.path.name, "the same second has two names"


def test_a_backup_that_is_removed_while_all_are_listed_is_not_told(store: Backed) -> None:
    first = store.back_up().path
    store.now += DAY
    second = store.back_up().path
    listed = backups_in(store.backups)
    assert next(listed).path == first
    shutil.rmtree(second)
    assert list(listed) == []


def test_a_backup_that_cannot_be_looked_at_is_told(store: Backed, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fails has not removed it."""
    made, lstat = store.back_up().path, Path.lstat

    def fail(path: Path) -> os.stat_result:
        if path == made:
            raise OSError(errno.EIO, "Input/output error")
        return lstat(path)

    (made / "manifest.json").unlink()
    monkeypatch.setattr(Path, "lstat", fail)
    assert [(each.path, bool(each.fault)) for each in backups_in(store.backups)] == [(made, True)]


def test_a_damaged_backup_is_told_and_not_removed(store: Backed) -> None:
    store.send(store.add_group())
    first = store.back_up()
    text = (first.path / manifest.NAME).read_text()
    (first.path / manifest.NAME).write_text(text.replace('"number": 1', '"number": 7'))
    store.now += 60
    second, third = store.back_up(), store.back_up(keep=1)
    assert third.removed == [second.path.name]
    assert second.notes == []
    [note] = third.notes
    assert note.startswith(f"{first.path / manifest.NAME}: was changed or damaged")
    assert note.endswith("it is neither counted nor removed")
    assert [(each.path, bool(each.fault)) for each in list(backups_in(store.backups))] == [
        (first.path, True),
        (third.path, False),
    ]
    assert "its checksum differs" in next(backups_in(store.backups)).fault


def test_a_backup_that_is_a_link_to_another_place_stays_and_does_not_count(store: Backed, tmp_path: Path) -> None:
    """As one that was moved to a larger disk."""
    first = store.back_up().path
    moved = first.rename(tmp_path / "moved")
    first.symlink_to(moved)
    names = []
    for _ in range(3):
        store.now += 60
        names.append(store.back_up(keep=1).path.name)
    assert {path.name for path in store.backups.iterdir()} == {MARK, first.name, names[-1]}
    assert manifest.read(moved)


@pytest.mark.parametrize("name", [UNFINISHED, ".removed"])
def test_a_link_among_the_backups_has_nothing_removed_elsewhere(store: Backed, tmp_path: Path, name: str) -> None:
    store.back_up()
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "letter").touch()
    (store.backups / name).symlink_to(tmp_path / "precious")
    store.now += 60
    store.back_up()
    assert [path.name for path in (tmp_path / "precious").iterdir()] == ["letter"]


def test_a_removal_that_did_not_end_is_finished(store: Backed, monkeypatch: pytest.MonkeyPatch) -> None:
    store.send(store.add_group())
    store.back_up()
    with monkeypatch.context() as patch:
        patch.setattr(
            destination.Destination, "remove_leftovers", lambda _: (_ for _ in ()).throw(OSError(5, "broken"))
        )
        with pytest.raises(BackupError):
            store.back_up(keep=1)
    before = {path.name for path in store.backups.iterdir()}
    store.back_up()
    assert destination._REMOVED not in {path.name for path in store.backups.iterdir()}
    assert before


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_umask")
def test_nobody_else_can_read_a_backup(archived: tuple[Backed, int]) -> None:
    store, _ = archived
    store.backups.mkdir(mode=0o755)
    for path in (*store.config.archive_path.rglob("*.parquet"),):
        path.chmod(0o600)
    made = store.back_up()
    for path in (store.backups, *store.backups.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    assert made.path.is_dir()


def refusal(store: Backed) -> str:
    with pytest.raises(BackupError) as refused:
        store.back_up()
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_a_folder_in_the_data_directory_is_refused_by_any_name(archived: tuple[Backed, int], tmp_path: Path) -> None:
    store, _ = archived
    for folder in (store.config.data, store.config.data / "backups", store.config.archive_path / "backups"):
        store.backups = folder
        assert "where no backup may be" in refusal(store)
    store.backups = tmp_path / "link"
    store.backups.symlink_to(store.config.data)
    assert "where no backup may be" in refusal(store)
    assert not (store.config.data / MARK).exists()


def test_root_makes_backups_in_a_folder_of_another_user_than_the_servers(
    store: Backed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has backups of their own, and fetches them as root, has no nightly one there that could not remove them."""
    owners = {store.backups: "keeper", store.config.database: "conclave"}
    monkeypatch.setattr(operator_identity, "owner_not_root", owners.get)
    store.backups.mkdir(mode=0o700)
    assert store.back_up().path.is_dir()
    owners[store.backups] = "conclave"
    assert "sudo -u 'conclave'" in refusal(store)


def test_a_folder_of_somebody_else_is_refused_and_left_as_it_is(store: Backed) -> None:
    store.backups.mkdir(mode=0o750)
    (store.backups / "thesis.tex").write_text("chapter 1")
    assert "contains thesis.tex, which is not a backup" in refusal(store)
    assert [path.name for path in store.backups.iterdir()] == ["thesis.tex"]
    assert stat.S_IMODE(store.backups.stat().st_mode) == 0o750


def test_a_folder_in_which_another_process_makes_its_first_backup_meanwhile_holds_nothing_else(
    store: Backed, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.backups.mkdir()
    is_file = Path.is_file

    def meanwhile(path: Path) -> bool:
        found = is_file(path)
        if not found:
            path.touch()
            (store.backups / UNFINISHED).mkdir()
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Path, "is_file", meanwhile)
        assert list(backups_in(store.backups)) == []
    assert {path.name for path in store.backups.iterdir()} == {MARK, UNFINISHED}


def test_a_folder_is_no_mark(store: Backed) -> None:
    (store.backups / MARK).mkdir(parents=True)
    store.backups.chmod(0o750)
    assert f"contains {MARK}, which is not a backup" in refusal(store)
    with pytest.raises(BackupError, match="is not a folder for backups"):
        list(backups_in(store.backups))
    assert stat.S_IMODE(store.backups.stat().st_mode) == 0o750


def test_other_places_where_no_backup_can_be_are_refused(store: Backed, tmp_path: Path) -> None:
    store.backups = tmp_path / "file"
    store.backups.write_text("")
    assert "is a file, not a folder" in refusal(store)
    store.backups = tmp_path / "missing" / "backups"
    assert "is its disk mounted?" in refusal(store)
    store.backups = path_check.restoring(store.config.database)
    assert "is the working folder of a restore" in refusal(store)
    store.backups = tmp_path / "open"
    store.backups.mkdir()
    store.backups.chmod(0o777)
    assert "is writable for everyone" in refusal(store)


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    """A server works in such a folder, so it is backed up and restored; SQLite cannot copy to such a folder."""
    odd = tmp_path / os.fsdecode(b"\xff")
    odd.mkdir()
    store = Backed(odd)
    store.start()
    store.backups = tmp_path / "backups"
    store.back_up()
    there, _ = store.restored(store.back_up().path)
    assert there.config.database.exists()
    store.backups = odd / "backups"
    assert "the name is not UTF-8, as SQLite requires" in refusal(store)


def test_backups_of_another_database_are_left_alone(store: Backed, tmp_path: Path) -> None:
    store.back_up()
    (tmp_path / "other").mkdir()
    other = Backed(tmp_path / "other")
    other.backups = store.backups
    assert "contains backups of another database" in refusal(other)


def test_two_backups_at_once_the_second_is_told_so(store: Backed) -> None:
    store.back_up()
    with locks.hold_file(store.backups / MARK):
        assert "another backup is being made there" in refusal(store)
    store.back_up()


def test_without_room_one_line_says_so_and_nothing_is_left(store: Backed, monkeypatch: pytest.MonkeyPatch) -> None:
    store.send(store.add_group())
    monkeypatch.setattr(making, "free_bytes", lambda _: 1000)
    assert "not enough space for a backup" in refusal(store)
    assert [path.name for path in store.backups.iterdir()] == [MARK]


def test_the_copy_is_given_up_if_the_write_ahead_log_becomes_too_large(
    store: Backed, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.send(store.add_group(), 30, size=300_000)
    with closing(sqlite.connect(store.config.database)) as other:
        other.execute("PRAGMA wal_autocheckpoint = 0")
        other.execute("UPDATE users SET alias = 'in the log'")
        monkeypatch.setattr(database_copy, "MAX_LOG_BYTES", 1)
        monkeypatch.setattr(database_copy, "CHECK_STEPS", 100)
        assert "the copy was aborted" in refusal(store)
    monkeypatch.undo()
    store.back_up()


def test_a_database_and_an_archive_of_two_times_are_not_backed_up(archived: tuple[Backed, int]) -> None:
    store, _ = archived
    store.mover.execute("UPDATE archive_state SET turn = 5, former_turn = 4")
    assert "is older than the database" in refusal(store)
    store.mover.execute("UPDATE archive_state SET turn = 0, former_turn = 0")
    store.mover.hide()
    assert str(store.config.archive_path) in refusal(store)


def test_a_backup_is_one_state_however_much_is_sent_meanwhile(
    archived: tuple[Backed, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, group = archived
    store.send(group, 20, size=300_000)
    before = store.served()

    def send_and_look(folder: Path) -> int:
        store.send(group)
        return free_bytes(folder)

    with monkeypatch.context() as patch:
        patch.setattr(database_copy, "CHECK_STEPS", 200)
        patch.setattr(database_copy, "free_bytes", send_and_look)
        made: BackupResult = store.back_up()
    assert len(store.served()) > len(before) + 3
    assert store.restored(made.path)[0].served() == before


def test_a_database_that_is_damaged_is_no_backup(store: Backed, monkeypatch: pytest.MonkeyPatch) -> None:
    store.send(store.add_group(), 50, size=3000)
    copy = database_copy.copy

    def damage(database: Path, target: Path) -> None:
        copy(database, target)
        with sqlite3.connect(target) as connection:
            page = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'messages'").fetchone()[0]
        connection.close()
        with target.open("r+b") as file:
            file.seek((page - 1) * 4096)
            file.write(b"\xff" * 64)

    monkeypatch.setattr(database_copy, "copy", damage)
    refusal(store)
    assert list(backups_in(store.backups)) == []
