"""A bit of the archive is another one, and no file has become shorter: no backup calls that whole."""

import json
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from conclave.backup import checking, manifest
from conclave.backup.checking import ArchiveCheck
from conclave.backup.destination import backups_in
from conclave.backup.files import duplicate, share
from conclave.backup.making import BackupResult
from conclave.backup.manifest import BackupError
from conclave.cli import backup
from tests.support.archived import DAY
from tests.support.backups import Backed
from tests.support.damage import flip, flip_at


@pytest.fixture
def store(tmp_path: Path) -> Backed:
    """A store with ten messages of two groups in one file of the archive, and one in the database."""
    store = Backed(tmp_path)
    for _ in range(2):
        group = store.add_group()
        store.send(group, 5)
        store.move(group, 5)
    store.mover.rewrite()
    store.mover.execute("UPDATE archive_state SET version = ?, unerased = 0", store.mover.version())
    store.send(group)
    return store


def damage(store: Backed, folder: Path | None = None) -> Path:
    """Flip a bit of the third message of the first group."""
    return flip(folder or store.config.archive_path, store.at_rest[2])


def data_file(folder: Path) -> Path:
    [path] = folder.rglob("lifetime=*/span=*/*.parquet")
    return path


def separate(store: Backed) -> None:
    """Have the server's files be files of their own, as where the backups are on another disk."""
    path = data_file(store.config.archive_path)
    shutil.copy(path, path.with_suffix(".new"))
    path.with_suffix(".new").rename(path)


def next_day(store: Backed, keep: int | None = None) -> BackupResult:
    store.now += DAY
    return store.back_up(keep)


def command(store: Backed, *args: str) -> Result:
    path = store.folder / "conclave.toml"
    path.write_text(f'database_path = "{store.config.database}"\n[cleanup]\nengine = "sql"\n')
    made = [*args, "--config", str(path)] if args[0] not in ("list", "verify") else list(args)
    return CliRunner().invoke(backup.backup, made)


def test_a_backup_of_a_damaged_archive_is_made_and_marked(store: Backed) -> None:
    path = damage(store)
    made = store.back_up()
    group = store.query("SELECT hex(group_id) FROM groups ORDER BY group_key LIMIT 1")[0][0].lower()
    [(name, fault)] = made.manifest.faults.items()
    assert name.endswith(path.name)
    assert fault.startswith("1 message is damaged, of group ")
    assert fault.replace("-", "").endswith(group)
    assert manifest.read(made.path).faults == made.manifest.faults
    [told] = checking.find_faults(made.path, made.manifest)
    assert "was damaged when it was backed up: 1 message is" in told.text


def test_the_commands_say_it_and_end_with_status_1(store: Backed) -> None:
    path = damage(store)
    done = command(store, str(store.backups))
    assert done.exit_code == 1
    assert f"{path.name}: 1 message is damaged, of group" in done.stderr
    assert "no backup here has an intact copy" in done.stderr
    assert "marked as damaged" in done.stderr
    [kept] = backups_in(store.backups)
    assert command(store, "verify", str(kept.path)).exit_code == 1
    told: dict[str, Any] = json.loads(command(store, "list", "--json", str(store.backups)).stdout)
    assert [path.name in line for line in told["damaged"]] == [True]
    assert "damaged" in command(store, "list", str(store.backups)).stdout


def test_damage_of_a_file_that_an_earlier_backup_shares_is_noticed(store: Backed) -> None:
    """They are one file: the earlier one, made while it was whole, does not have it whole any more either."""
    first = store.back_up()
    assert not first.manifest.faults
    assert data_file(first.path).samefile(path := data_file(store.config.archive_path))
    damage(store)
    second = next_day(store)
    assert list(second.manifest.faults) == [path.relative_to(store.config.archive_path.parent).as_posix()]
    assert [fault.is_damage for fault in checking.find_faults(first.path, first.manifest)] == [True]


def test_what_an_earlier_backup_has_whole_is_taken_from_there_and_told(store: Backed) -> None:
    first = store.back_up()
    separate(store)
    path = damage(store)
    second = next_day(store)
    assert second.manifest.faults == {}
    assert checking.find_faults(second.path, second.manifest) == []
    assert data_file(second.path).samefile(data_file(first.path))
    [note] = second.notes
    assert note.startswith(f"{path}: 1 message is damaged, of group ")
    assert note.endswith(f"; {data_file(second.path)} is undamaged")
    store.now += DAY
    assert command(store, str(store.backups)).exit_code == 1, "each night, until it is mended"
    shutil.copy(data_file(second.path), path)
    assert next_day(store).notes == []


@pytest.mark.parametrize(("of", "asked"), [(Path, "samefile"), (checking, "entry_of"), (checking, "fault_of")])
def test_a_file_that_a_run_removes_while_it_is_looked_at_is_no_damage(
    store: Backed, monkeypatch: pytest.MonkeyPatch, of: Any, asked: str
) -> None:
    """A run may go on as soon as the backup has all of the archive; what was linked is looked at after that."""
    store.back_up()
    separate(store)
    path, look, ask = data_file(store.config.archive_path), ArchiveCheck.run, getattr(of, asked)

    def meanwhile(looked_at: Path, *others: Any) -> Any:
        if looked_at == path:
            path.unlink()
        return ask(looked_at, *others)

    def watched(check: ArchiveCheck, names: Collection[str]) -> checking.ArchiveCheckResult:
        with monkeypatch.context() as patch:
            patch.setattr(of, asked, meanwhile)
            if asked == "fault_of":  # which is asked where what the former backup knows is not enough
                damage(store)
            return look(check, names)

    monkeypatch.setattr(ArchiveCheck, "run", watched)
    made = next_day(store)
    assert (made.notes, made.manifest.faults, path.exists()) == ([], {}, False)


def test_an_older_backup_that_has_it_whole_is_found_behind_a_damaged_one(store: Backed) -> None:
    first = store.back_up()
    separate(store)
    damage(store)
    whole = data_file(first.path)
    aside = whole.rename(store.backups.parent / "aside")
    assert next_day(store).manifest.faults
    aside.rename(whole)
    third = next_day(store)
    assert third.manifest.faults == {}
    assert third.notes[0].endswith(f"{data_file(first.path)} is undamaged")


def test_what_a_run_removes_while_it_takes_the_place_of_a_damaged_file_is_taken_from_an_older_backup(
    store: Backed, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = store.back_up()
    separate(store)
    whole = data_file(store.backups)
    aside = store.backups.parent / "aside"
    shutil.copy(whole, aside)
    second = next_day(store)
    damage(store, second.path)  # of both: they share it
    shutil.copy(aside, whole.with_suffix(".new"))
    whole.with_suffix(".new").rename(whole)

    def meanwhile(source: Path, target: Path) -> bool:
        source.unlink()
        return share(source, target)

    monkeypatch.setattr(checking, "share", meanwhile)
    third = next_day(store)
    assert third.manifest.faults == {}
    assert third.notes[0].endswith(f"{data_file(first.path)} is undamaged")
    assert checking.find_faults(third.path, third.manifest) == []


def test_a_damaged_file_of_an_earlier_backup_is_copied_anew(store: Backed) -> None:
    first = store.back_up()
    separate(store)
    damage(store, first.path)

    second = next_day(store)
    assert second.manifest.faults == {}
    assert checking.find_faults(first.path, manifest.read(first.path))
    assert checking.find_faults(second.path, second.manifest) == []


def test_damage_without_any_message_in_it_is_noticed_by_what_an_earlier_backup_knows(store: Backed) -> None:
    store.back_up()
    path = data_file(store.config.archive_path)
    place = path.read_bytes().rindex(b"delta-rs")  # the name of the program that wrote it
    flip_at(path, place)
    assert not checking.fault_of(path, store.config.database)
    assert list(next_day(store).manifest.faults.values()) == ["has changed since it was backed up"]


def test_messages_that_are_missing_are_noticed_by_the_index(store: Backed) -> None:
    store.mover.delete("group_key = 1 AND sequence_num = 2")
    store.mover.execute("UPDATE archive_state SET version = ?", store.mover.version())
    made = store.back_up()
    [(name, fault)] = made.manifest.faults.items()
    assert name == "archive"
    assert "4 messages, but the index has 5" in fault
    store.mover.execute("UPDATE archive_state SET unerased = 1")
    assert next_day(store).manifest.faults == {}, "a run has not come to its end: the next one sees to it"


def test_what_was_erased_and_still_takes_space_is_no_damage(store: Backed) -> None:
    """A run that erases in the archive changes the index, and leaves the files to a later one."""
    [(lifetime, span)] = store.mover.execute("DELETE FROM archive_parts WHERE group_key = 1 RETURNING lifetime, span")
    store.mover.execute("INSERT INTO archive_dead VALUES (?, ?, 5, ?)", lifetime, span, store.now)
    assert store.back_up().manifest.faults == {}
    store.mover.delete("group_key = 1 AND sequence_num = 2")
    store.mover.execute("UPDATE archive_state SET version = ?", store.mover.version())
    [fault] = next_day(store).manifest.faults.values()
    assert "has 4 messages that are not in the index, but 5 were erased or moved back" in fault


def test_a_file_that_cannot_be_read_does_not_keep_from_a_backup(store: Backed) -> None:
    path = data_file(store.config.archive_path)
    content = path.read_bytes()
    path.write_bytes(b"\0" * len(content))
    made = store.back_up()
    [fault] = made.manifest.faults.values()
    assert "cannot be read: " in fault


def test_a_damaged_backup_has_no_whole_one_removed(store: Backed) -> None:
    whole = [store.back_up().path, next_day(store).path]
    separate(store)
    for each in whole:
        data_file(each).unlink()  # so that there is nowhere to take it from
    for each in whole:
        shutil.copy(data_file(store.config.archive_path), each / "archive" / _in_archive(store))
    damage(store)
    for each in whole:
        flip(each, store.at_rest[2])
    damaged = [next_day(store, keep=2) for _ in range(4)]
    assert all(made.manifest.faults for made in damaged)
    assert [made.removed for made in damaged] == [[], [], [damaged[0].path.name], [damaged[1].path.name]]
    assert {each.path for each in backups_in(store.backups)} == {*whole, damaged[2].path, damaged[3].path}
    path = data_file(store.config.archive_path)
    flip_at(path, _flipped(store, path))
    mended = [next_day(store, keep=2) for _ in range(2)]
    assert not any(made.manifest.faults for made in mended)
    assert mended[0].removed == [whole[0].name]
    assert mended[1].removed == [whole[1].name, damaged[2].path.name, damaged[3].path.name]


def _in_archive(store: Backed) -> Path:
    return data_file(store.config.archive_path).relative_to(store.config.archive_path)


def _flipped(store: Backed, path: Path) -> int:
    """Return where the bit was flipped."""
    return path.read_bytes().index(store.at_rest[2][:100]) + len(store.at_rest[2]) // 2


def test_a_damaged_backup_is_restored_only_if_that_is_accepted(store: Backed) -> None:
    damage(store)
    made = store.back_up()
    with pytest.raises(BackupError, match=r"was damaged when it was backed up.*#a-damaged-archive"):
        store.restored(made.path)
    assert not list(store.elsewhere.iterdir())
    there, done = store.restored(made.path, damaged=True)
    assert there.query("SELECT count(*) + ? FROM messages", len(there.table())) == [(11,)]
    assert any("these messages are not served" in note for note in done.notes)
    assert data_file(there.config.archive_path).read_bytes() == data_file(made.path).read_bytes()


def test_only_damage_of_messages_is_accepted(store: Backed) -> None:
    made = store.back_up()
    path = made.path / manifest.DATABASE
    flip_at(path, path.stat().st_size // 2)
    with pytest.raises(BackupError, match="is damaged: its checksum differs"):
        store.restored(made.path, damaged=True)


@pytest.mark.parametrize("name", [manifest.DATABASE, "parquet"])
def test_a_restored_copy_is_read_again_and_one_that_differs_is_not_put_in_place(
    store: Backed, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    made = store.back_up()

    def badly(source: Path, target: Path) -> None:
        duplicate(source, target)
        if source.name.endswith(name):
            flip_at(target, target.stat().st_size // 2)

    monkeypatch.setattr("conclave.backup.restoring.duplicate", badly)
    with pytest.raises(BackupError, match="differs from the backup although it was just copied"):
        store.restored(made.path)
    assert not [
        path for path in store.elsewhere.rglob("*") if path.is_file() and "hot.db" in path.name and path.stat().st_size
    ]
    monkeypatch.undo()
    assert len(store.restored(made.path)[0].served()) == 11
