"""A restore: only where nothing is, whole or not at all, and with nothing that has expired since."""

import hashlib
import json
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conclave.actions.replay import NUMBERS
from conclave.backup import checking, manifest, restoring
from conclave.backup.files import sum_of
from conclave.backup.manifest import BackupError, FileEntry, Manifest
from conclave.clock import FakeClock
from conclave.config.settings import LOCK
from conclave.retention import marks
from conclave.store.engine import path_check, schema, sqlite
from conclave.store.engine.faults import StoreError
from conclave.store.ledger import book, changes
from conclave.store.ledger.book import LedgerEntry, LedgerError
from conclave.store.resources import sessions, state
from conclave.store.resources.audit import AuditAction
from conclave.system import data_folder, locks
from tests.proof.stores import examined
from tests.support import ledgers
from tests.support.archived import DAY, USERS
from tests.support.backups import Backed, everything_in
from tests.support.failpoints import RETURN_POINTS


@pytest.fixture
def store(tmp_path: Path) -> Backed:
    made = Backed(tmp_path)
    made.start()
    return made


@pytest.fixture
def archived(store: Backed) -> tuple[Backed, int]:
    """A store with three messages in the archive and two in the database."""
    group = store.add_group()
    store.send(group, 3)
    store.move(group, 3)
    store.send(group, 2)
    return store, group


def refusal(store: Backed, backup: Path, vault: Path | None = None) -> str:
    with pytest.raises(BackupError) as refused:
        store.restored(backup, vault=vault)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def fail(*_: object) -> None:
    raise OSError(28, "No space left on device", "somewhere")


def test_what_has_expired_since_is_erased_before_anything_is_served(store: Backed) -> None:
    kept, fading = store.add_group(), store.add_group(DAY)
    for _ in range(20):
        store.send(kept, size=900)
        store.send(fading, size=900)
    made = store.back_up()
    gone = {number for (group, _), number in store.made.items() if group == fading}
    store.now += 2 * DAY
    there, done = store.restored(made.path)
    assert done.notes == []
    assert {group for group, _ in there.served()} == {kept}
    there.start()
    assert store.search.numbers_in(there.folder) == set(store.made.values()) - gone
    assert len(there.served()) == 20
    with closing(sqlite.connect(there.config.database, readonly=True)) as connection:
        assert state.clock_state(connection).floor.acted_until == store.now, "what has expired stays expired"
    assert examined(there.config) == [], "the proof finds nothing either"


def delete_the_group(store: Backed, group: int) -> None:
    store.delete_group(group)


def purge_the_group(store: Backed, group: int) -> None:
    with store.opened() as connection:
        marks.hide_before(connection, group, store.now + 1)


def shorten_and_lengthen(store: Backed, group: int) -> None:
    store.set_expiry(group, DAY)
    store.now += 2 * DAY
    store.set_expiry(group, -1)


def have_all_fetch(store: Backed, group: int) -> None:
    store.set_expiry(group, 0)
    store.fetch_all(group)
    store.clean()


SINCE = (delete_the_group, purge_the_group, shorten_and_lengthen, have_all_fetch)


@pytest.mark.parametrize("happen", SINCE, ids=lambda happen: happen.__name__)
def test_what_was_hidden_since_is_not_served_and_is_in_no_file(
    store: Backed, happen: Callable[[Backed, int], None]
) -> None:
    kept, over = store.add_group(), store.add_group()
    store.send(kept, 10, size=900)
    store.send(over, 10, size=900)
    made = store.back_up()
    store.now += 60
    happen(store, over)
    store.write_ledger()
    there, done = store.restored(made.path)
    assert done.notes == []
    assert {group for group, _ in there.served()} == {kept}
    gone = {number for (group, _), number in store.made.items() if group == over}
    there.start()
    assert there.search.left_of(gone, there.folder) == set(), "no key of it is there any more"
    assert len(there.served()) == 10


def test_what_was_purged_since_from_the_archive_is_hidden(archived: tuple[Backed, int]) -> None:
    store, group = archived
    made = store.back_up()
    purge_the_group(store, group)
    store.write_ledger()
    there, done = store.restored(made.path)
    assert there.served() == {}
    assert "the archive has due messages" in done.notes[0]


@pytest.mark.parametrize("damage", ["missing", "damaged", "older"])
def test_without_a_whole_ledger_nothing_is_restored_unless_that_is_accepted(store: Backed, damage: str) -> None:
    group, other = store.add_group(), store.add_group()
    store.send(group, 3)
    store.send(other, 3)
    store.write_ledger()
    ledger = store.config.ledger_path
    older = ledger.read_bytes()
    store.delete_group(store.add_group())
    store.write_ledger()
    made = store.back_up()
    store.delete_group(group)
    store.delete_group(other)
    store.write_ledger()
    if damage == "missing":
        ledger.unlink()
    elif damage == "damaged":
        ledgers.alter_last(ledger, "group")
    else:
        ledger.write_bytes(older)
    told = refusal(store, made.path)
    assert "ledger" in told
    assert told.endswith("to restore nevertheless, use --accept-older-vault")
    assert not (store.elsewhere / "hot.db").exists()
    assert not path_check.restoring(store.elsewhere / "hot.db").exists()
    there, _ = store.restored(made.path, accepts_older=True)
    assert there.served(), "what it does not tell is back"
    [(details,)] = there.query("SELECT details FROM audit WHERE action = 'backup_restored'")
    assert '"accepts_older_vault": true' in details


def test_what_to_accept_an_older_vault_does_not_help_against_is_not_said_to_be_mended_by_it(
    store: Backed, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, vault = store.back_up(), store.config.vault_path

    def full(*_: object) -> None:
        raise LedgerError("ledger: No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(book, "append", full)
        assert refusal(store, made.path, vault) == "ledger: No space left on device"
    store.config.ledger_path.unlink()
    book.append(store.config.ledger_path, "0b" * 16, 0, [LedgerEntry(1, 0, "group", 1, None)])
    assert refusal(store, made.path, vault).endswith("move it away")
    unmounted = store.folder / "unmounted"
    assert refusal(store, made.path, unmounted / "vault").endswith(f"no folder {unmounted}; is its disk mounted?")


def test_a_restore_that_fails_late_does_not_make_a_copy_of_the_database_that_was_moved_away(
    store: Backed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is put back, and goes on as if nothing had been."""
    group = store.add_group()
    store.set_expiry(group, 0)
    store.send(group, 3)
    made = store.back_up()
    store.fetch_all(group)
    store.delete_group(store.add_group())
    store.write_ledger()
    store.now += 60
    with monkeypatch.context() as patch:
        patch.setattr(restoring._RestoreJob, "_put_in_place", lambda _: fail())
        assert "the disk is full: nothing was restored" in refusal(store, made.path, store.config.vault_path)
    with store.opened() as connection:
        assert not changes.is_older(changes.ledger_state(connection), book.tip(store.config.ledger_path))
    there, _ = store.restored(made.path, vault=store.config.vault_path)
    with there.opened() as connection:
        assert changes.has_pending(connection), "whoever goes on with it tells it"


def test_without_the_ledger_nothing_is_erased_before_an_operator_could_hold_it(store: Backed) -> None:
    store.send(store.add_group(DAY), 3)
    made = store.back_up()
    store.now += 2 * DAY
    store.config.ledger_path.unlink()
    there, done = store.restored(made.path, accepts_older=True)
    assert there.served() == {}, "it is hidden all the same"
    assert there.query("SELECT count(*) FROM messages") == [(3,)]
    assert done.notes[0].startswith("there is no ledger")
    assert "legal holds that were added since are missing" in done.notes[0]


def test_sessions_end_and_numbers_go_on_where_none_was_given(store: Backed) -> None:
    group = store.add_group()
    store.send(group, 3)
    with store.opened() as connection:
        sessions.add(connection, USERS[0], "", b"token", store.now, DAY)
    made = store.back_up()
    store.send(group, 5)
    store.write_ledger()
    there, done = store.restored(made.path)
    assert done.replayed["sessions"] == 1
    assert there.query("SELECT count(*) FROM sessions") == [(0,)]
    there.send(group)
    assert there.query("SELECT max(sequence_num) FROM messages") == [(NUMBERS + 1,)]


def test_a_backup_can_be_restored_again_and_an_older_one_after_it(store: Backed, tmp_path: Path) -> None:
    group, other = store.add_group(), store.add_group()
    store.send(group, 2)
    store.send(other, 2)
    older = store.back_up()
    store.now += 60
    store.delete_group(other)
    store.write_ledger()
    newer = store.back_up()
    for number, made in enumerate((newer, newer, older)):
        store.elsewhere = tmp_path / str(number)
        there, _ = store.restored(made.path, vault=store.config.vault_path)
        assert {key for key, _ in there.served()} == {group}
        there.send(group)
        assert there.query("SELECT max(sequence_num) FROM messages") == [(NUMBERS * (number + 1) + 1,)]


def test_settings_that_changed_since_are_those_that_it_erases_by(store: Backed) -> None:
    store.send(store.add_group(), 3)
    made = store.back_up()
    shorter = replace(store.config, message_retention=DAY)
    with store.opened() as connection:
        state.begin_serving(connection, shorter.policy, FakeClock(store.now).read(), accepts_change=True)
    store.write_ledger()
    store.now += 2 * DAY
    there, done = store.restored(made.path, message_retention=DAY)
    assert done.notes == []
    assert there.query("SELECT count(*) FROM messages") == [(0,)]


def test_what_is_due_in_the_archive_is_hidden_and_told(store: Backed) -> None:
    group = store.add_group(DAY)
    store.send(group, 3)
    store.move(group, 3, DAY)
    made = store.back_up()
    store.now += 3 * DAY
    there, done = store.restored(made.path)
    assert there.served() == {}
    [note] = done.notes
    assert "the archive has due messages" in note
    assert "the first run of the server erases" in note


def test_a_restore_is_a_copy_that_changes_nothing_of_the_backup(archived: tuple[Backed, int]) -> None:
    store, group = archived
    made = store.back_up()
    before = everything_in(made.path)
    there, _ = store.restored(made.path)
    for path in there.config.archive_path.rglob("*.parquet"):
        assert path.stat().st_nlink == 1
    there.send(group, 5)
    there.mover.rewrite()
    assert everything_in(made.path) == before
    assert checking.find_faults(made.path, made.manifest) == []


def test_the_restored_files_are_for_the_operator_alone_and_nothing_else_is_left(archived: tuple[Backed, int]) -> None:
    store, _ = archived
    store.write_ledger()
    there, _ = store.restored(store.back_up().path)
    for path in there.folder.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
    names = {path.name for path in there.folder.iterdir()}
    assert names == {"hot.db", "hot.vault", "hot.db.server-lock", "hot.data"}
    assert {path.name for path in there.config.data.iterdir()} == {"archive", data_folder.MARKER}


def test_a_database_may_lie_in_the_data_directory(archived: tuple[Backed, int]) -> None:
    store, _ = archived
    store.elsewhere.mkdir(mode=0o700)
    (store.elsewhere / data_folder.MARKER).touch()
    shutil.copytree(store.config.vault_path, store.elsewhere / "hot.vault")
    there, _ = store.restored(store.back_up().path, data_path=str(store.elsewhere))
    assert len(there.served()) == 5
    assert path_check.restoring(there.config.database).exists() is False


def test_a_restore_is_in_the_audit_log(store: Backed) -> None:
    there, _ = store.restored(store.back_up().path)
    [(actor, action)] = there.query("SELECT actor, action FROM audit")
    assert action == AuditAction.BACKUP_RESTORED
    assert actor.startswith("operator ")


def test_by_other_settings_nothing_is_erased_until_the_server_has_taken_them(store: Backed) -> None:
    group = store.add_group()
    store.send(group, 3)
    made = store.back_up()
    store.now += 2 * DAY
    there, done = store.restored(made.path, message_retention=DAY)
    [note] = done.notes
    assert note.startswith("message_retention: the configuration differs from that of the backup")
    assert len(there.served()) == 3
    with closing(sqlite.connect(there.config.database)) as connection, sqlite.write_transaction(connection):
        begun = state.begin_serving(connection, there.config.policy, FakeClock(store.now).read(), accepts_change=True)
    assert begun.former == store.config.policy, "the start settles the change, as any other"


def test_by_a_wrong_clock_nothing_is_erased(store: Backed) -> None:
    store.send(store.add_group(DAY), 3)
    made = store.back_up()
    store.now -= 30 * DAY
    there, done = store.restored(made.path)
    assert "seconds behind what is already stored" in done.notes[0]
    assert there.query("SELECT count(*) FROM messages") == [(3,)]


def test_a_database_of_an_older_schema_is_migrated(store: Backed, monkeypatch: pytest.MonkeyPatch) -> None:
    made, steps = store.back_up(), schema.migrations()
    monkeypatch.setattr(schema, "migrations", lambda: [*steps, (len(steps) + 1, "CREATE TABLE new (x);\n")])
    there, _ = store.restored(made.path)
    schema.require_current(there.config.database)
    assert there.query("SELECT count(*) FROM new") == [(0,)]


def test_a_backup_of_a_newer_program_is_refused(store: Backed) -> None:
    made = store.back_up()
    rewrite(made.path, schema=99)
    assert "newer version" in refusal(store, made.path)
    (made.path / manifest.NAME).write_text('{"format": 3}')
    assert "has the format 3 instead of 1" in refusal(store, made.path)


def rewrite(backup: Path, **changed: object) -> None:
    """Write another manifest, with a sum that is right."""
    told = manifest.read(backup)
    (backup / manifest.NAME).write_text(Manifest(**(vars(told) | changed)).to_json())


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def a_parquet(backup: Path) -> Path:
    return next((backup / "archive").glob("lifetime=*/span=*/*"))


def link_away(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/null")


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "database": (lambda backup: flip(backup / manifest.DATABASE), "database.db: is damaged: its checksum differs"),
    "archive": (lambda backup: flip(a_parquet(backup)), "parquet: is damaged"),
    "log": (lambda backup: flip(backup / "archive/_delta_log/00000000000000000000.json"), "json: is damaged"),
    "cut": (lambda backup: a_parquet(backup).write_bytes(b""), "has 0 bytes instead of"),
    "missing": (lambda backup: a_parquet(backup).unlink(), "parquet: is missing"),
    "added": (lambda backup: (backup / "archive" / "other").touch(), "other: is not in the manifest"),
    "linked": (lambda backup: link_away(a_parquet(backup)), "is not a file"),
    "manifest": (
        lambda backup: (backup / manifest.NAME).write_text((backup / manifest.NAME).read_text().replace(" 5", " 6")),
        "manifest.json: was changed or damaged",
    ),
    "no manifest": (lambda backup: (backup / manifest.NAME).unlink(), "is not a backup: it has no manifest.json"),
    "no text": (lambda backup: (backup / manifest.NAME).write_bytes(b"\xff\xfe"), "manifest.json: "),
}


def remove_when(module: object, name: str, backup: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove a backup, as another one that is made with --keep does, before a function is called for the first time."""
    function = getattr(module, name)

    def called(*args: object) -> object:
        if backup.exists():
            backup.rename(backup.with_name(".removed"))
        return function(*args)

    monkeypatch.setattr(module, name, called)


@pytest.mark.parametrize(("module", "name"), [(checking, "sum_of"), (restoring, "duplicate")])
def test_a_backup_that_is_removed_meanwhile_is_said_to_be(
    archived: tuple[Backed, int], monkeypatch: pytest.MonkeyPatch, module: object, name: str
) -> None:
    store, _ = archived
    made = store.back_up()
    remove_when(module, name, made.path, monkeypatch)
    assert refusal(store, made.path).endswith(
        "was removed meanwhile, for example by `conclave backup --keep`: use a newer backup"
    )
    assert not (store.elsewhere / "hot.db").exists()


@pytest.mark.parametrize("name", DAMAGES)
def test_what_is_damaged_is_found_and_nothing_is_restored(archived: tuple[Backed, int], name: str) -> None:
    store, _ = archived
    made = store.back_up()
    damage, told = DAMAGES[name]
    damage(made.path)
    assert told in refusal(store, made.path)
    assert list(store.elsewhere.iterdir()) == []


def test_a_database_and_an_archive_of_two_backups_are_no_backup(archived: tuple[Backed, int]) -> None:
    """Even if somebody has made a manifest for them."""
    store, _ = archived
    first = store.back_up()
    store.mover.begin_turn(7)
    store.now += 60
    second = store.back_up()
    shutil.copy(first.path / manifest.DATABASE, second.path / manifest.DATABASE)
    entry = FileEntry((path := second.path / manifest.DATABASE).stat().st_size, sum_of(path))
    rewrite(second.path, files={**second.manifest.files, manifest.DATABASE: entry})
    assert "is newer than the database" in refusal(store, second.path)


@pytest.mark.parametrize("name", ["../hot.db", "archive/../../x", "/etc/passwd", "archive//x", "archive", "other"])
def test_a_manifest_that_names_other_places_is_refused(store: Backed, name: str) -> None:
    made = store.back_up()
    rewrite(made.path, files={**made.manifest.files, name: FileEntry(1, "00")})
    assert "has a file that cannot belong to a backup" in refusal(store, made.path)


STRANGE: list[dict[str, Any]] = [
    *({"schema": "x"}, {"number": None}, {"made_at": -1}, {"made_at": 2**60}, {"made_at": 1.5}, {"product": 1}),
    *({"rows": [1]}, {"rows": {"messages": "x"}}, {"rows": {"\n": 1}}, {"archive": ["x"]}, {"archive": {"rows": 1}}),
    *({"archive": {"archive_id": 1, "version": 1, "rows": 1}}, {"files": [1]}, {"colour": 1}, {"number": True}),
    {"files": {manifest.DATABASE: {"bytes": "x", "sha256": "00"}}},
    {"files": {manifest.DATABASE: {"bytes": 1, "sha256": 1}}},
    {"files": {manifest.DATABASE: {"bytes": 1, "sha256": "00"}, "archive/\udcff": {"bytes": 1, "sha256": "00"}}},
]


@pytest.mark.parametrize("changed", STRANGE, ids=str)
def test_a_manifest_that_somebody_has_written_is_refused_in_a_line(store: Backed, changed: dict[str, Any]) -> None:
    """Its sum is right, so whoever wrote it meant it."""
    made = store.back_up()
    path = made.path / manifest.NAME
    told = json.loads(path.read_text()) | changed
    told.pop("sha256")
    told["sha256"] = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps(told))
    assert refusal(store, made.path).startswith(f"{path}: ")
    path.write_text("[" * 100_000)
    assert refusal(store, made.path).startswith(f"{path}: ")


THERE = {
    "hot.db": "exists: move the database and its log away first",
    "hot.db-wal": "exists",
    "hot.db-journal": "exists",
    "hot.data/archive/part": "is not empty: it contains archive",
    "hot.data/work/1/spill": "is not empty: it contains work",
}


@pytest.mark.parametrize("name", THERE)
def test_where_something_is_nothing_is_restored(store: Backed, name: str) -> None:
    made = store.back_up()
    (store.elsewhere / name).parent.mkdir(parents=True)
    (store.elsewhere / name).write_text("precious")
    if name.startswith("hot.data"):
        (store.elsewhere / "hot.data" / data_folder.MARKER).touch()
    assert THERE[name] in refusal(store, made.path)
    assert (store.elsewhere / name).read_text() == "precious"
    assert not path_check.restoring(store.elsewhere / "hot.db").exists()


@pytest.mark.parametrize(
    ("vault", "told"),
    [("file", "is not a folder"), ("away/vault", "there is no folder"), ("file/vault", "there is no")],
)
def test_where_no_vault_can_be_nothing_is_restored(store: Backed, tmp_path: Path, vault: str, told: str) -> None:
    made = store.back_up()
    (tmp_path / "file").touch()
    assert f"vault.path: {tmp_path}/{vault}: {told}" in refusal(store, made.path, tmp_path / vault)


def test_a_backup_is_not_tried_out_with_the_vault_of_a_server_that_runs(store: Backed) -> None:
    """What the two of them tell would be taken for the same."""
    made, vault = store.back_up(), store.config.vault_path
    before = everything_in(vault)
    with locks.hold_file(vault / LOCK):
        told = refusal(store, made.path, vault)
    assert "is used by a server: stop that server; or, to test a backup, set vault.path to a copy of the vault" in told
    assert everything_in(vault) == before | {LOCK: b""}


@pytest.mark.parametrize("where", ["data", "archive"])
def test_a_place_may_be_a_disk_of_its_own(
    archived: tuple[Backed, int], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """The data directory may; the archive's folder could not be moved there, and that is told before anything is."""
    store, _ = archived
    made = store.back_up()
    mounted = store.elsewhere / "hot.data" / ("" if where == "data" else "archive")
    (mounted / "lost+found" / "found").mkdir(parents=True)
    (store.elsewhere / "hot.data" / data_folder.MARKER).touch()
    monkeypatch.setattr(Path, "is_mount", lambda path: path == mounted)
    if where == "data":
        there, _ = store.restored(made.path)
        assert len(there.served()) == 5
        return
    assert "archive: is a mount point, which a restore cannot replace" in refusal(store, made.path)


def test_the_folder_of_all_backups_is_told_from_one_of_them(store: Backed) -> None:
    store.back_up()
    assert "contains backups: choose one of them" in refusal(store, store.backups)
    assert "is not a backup: it has no manifest.json" in refusal(store, store.backups / "none")


def test_while_a_server_runs_there_nothing_is_restored(store: Backed) -> None:
    made = store.back_up()
    store.elsewhere.mkdir()
    with locks.hold_name(store.elsewhere / "hot.db", locks.SERVER):
        assert "a server is running, or another restore" in refusal(store, made.path)


def test_a_failure_leaves_nothing_and_the_restore_can_be_repeated(
    archived: tuple[Backed, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = archived
    made = store.back_up()

    for name in ("sync_tree", "duplicate", "write", "schema.prepare"):
        with monkeypatch.context() as patch:
            patch.setattr(f"conclave.backup.restoring.{name}", fail)
            assert "the disk is full: nothing was restored" in refusal(store, made.path)
        assert not path_check.restoring(store.elsewhere / "hot.db").exists()
        assert [each.name for each in (store.elsewhere / "hot.data").iterdir()] == [data_folder.MARKER]
    assert len(store.restored(made.path)[0].served()) == 5


@pytest.mark.parametrize("point", RETURN_POINTS)
def test_a_restore_that_is_broken_off_leaves_nothing_or_all_and_then_says_so(
    archived: tuple[Backed, int], monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """By Ctrl-C, say: it still has the time to tidy up."""
    store, _ = archived
    made = store.back_up()
    database = store.elsewhere / "hot.db"

    def break_off(reached: str) -> None:
        if reached == point:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(restoring, "reach", break_off)
        with pytest.raises(KeyboardInterrupt):
            store.restored(made.path)
    if point == "return.placed":
        with pytest.raises(StoreError, match="repeat `conclave restore`"):
            path_check.require_restored(database)
        assert "the former restore has completed: start the server" in refusal(store, made.path)
        assert database.exists()
    else:
        assert not database.exists()
    path_check.require_restored(database)


@pytest.mark.parametrize("point", ["return.settled", "return.archive_placed", "return.database_placed"])
def test_if_the_archive_is_set_elsewhere_before_a_restore_is_repeated_only_what_the_former_one_put_goes(
    archived: tuple[Backed, int], monkeypatch: pytest.MonkeyPatch, point: str, tmp_path: Path
) -> None:
    """The former one was killed. Somebody's archive may be where the new settings lead."""
    store, _ = archived
    made = store.back_up()
    (tmp_path / "disk").mkdir()

    def die(reached: str) -> None:
        if reached == point:
            raise KeyboardInterrupt

    first = replace(store.config.archive, path=str(tmp_path / "disk" / "first"))
    with monkeypatch.context() as patch:
        patch.setattr(restoring, "reach", die)
        patch.setattr(restoring._RestoreJob, "_clear_leftovers", lambda _: None)  # it is dead
        with pytest.raises(KeyboardInterrupt):
            store.restored(made.path, archive=first)
    assert list((tmp_path / "disk").iterdir())
    (tmp_path / "disk" / "other").mkdir()
    (tmp_path / "disk" / "other" / "precious").touch()
    elsewhere = replace(store.config.archive, path=str(tmp_path / "disk" / "other"))
    with pytest.raises(BackupError, match="is not empty: it contains precious: move it away first, and keep it"):
        store.restored(made.path, archive=elsewhere)
    assert [path.name for path in (tmp_path / "disk").iterdir()] == ["other"]
    assert [path.name for path in (tmp_path / "disk" / "other").iterdir()] == ["precious"]
    (tmp_path / "disk" / "other" / "precious").unlink()
    there, _ = store.restored(made.path, archive=elsewhere)
    assert len(there.served()) == 5


@pytest.mark.parametrize("point", ["return.placing", "return.archive_placed", "return.database_placed"])
def test_what_was_put_in_place_by_others_before_a_restore_is_repeated_stays(
    archived: tuple[Backed, int], monkeypatch: pytest.MonkeyPatch, point: str, tmp_path: Path
) -> None:
    """The former one was killed, and its files were moved away: the database from before was put back, say."""
    store, _ = archived
    made = store.back_up()
    database, archive = store.elsewhere / "hot.db", tmp_path / "disk" / "archive"
    archive.parent.mkdir()
    there = replace(store.config.archive, path=str(archive))

    def die(reached: str) -> None:
        if reached == point:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(restoring, "reach", die)
        patch.setattr(restoring._RestoreJob, "_clear_leftovers", lambda _: None)  # it is dead
        with pytest.raises(KeyboardInterrupt):
            store.restored(made.path, archive=there)
    shutil.rmtree(archive, ignore_errors=True)
    archive.mkdir()
    database.unlink(missing_ok=True)
    precious = [database, database.with_name("hot.db-wal"), archive / "precious"]
    for each in precious:
        each.write_text("precious")
    with pytest.raises(BackupError, match=r"hot\.db: exists: move the database and its log away first"):
        store.restored(made.path, archive=there)
    assert [each.read_text() for each in precious] == ["precious"] * 3
    database.unlink()
    with pytest.raises(BackupError, match=r"hot\.db-wal: exists"):
        store.restored(made.path, archive=there)
    precious.pop(1).unlink()
    with pytest.raises(BackupError, match="is not empty: it contains precious"):
        store.restored(made.path, archive=there)
    precious[-1].unlink()
    assert len(store.restored(made.path, archive=there)[0].served()) == 5


def test_a_folder_with_the_name_of_a_restores_is_removed_only_if_a_restore_has_made_it(store: Backed) -> None:
    made = store.back_up()
    folder = path_check.restoring(store.elsewhere / "hot.db")
    folder.mkdir(parents=True)
    there = made.path.rename(folder / "backup")
    assert "is in the working folder of a restore: move it elsewhere first" in refusal(store, there)
    there.rename(made.path)
    (folder / "letter").touch()
    assert "was not made by a restore: move it away first, and keep it" in refusal(store, made.path)
    (folder / "letter").unlink()
    store.restored(made.path)
    assert not folder.exists()


def test_a_server_does_not_start_where_a_restore_did_not_end(store: Backed) -> None:
    path_check.restoring(store.config.database).mkdir()
    with pytest.raises(StoreError, match="repeat `conclave restore`"):
        path_check.require_restored(store.config.database)


def test_no_command_works_on_what_a_restore_has_placed_that_did_not_end(store: Backed) -> None:
    """The next restore removes it, and what the command has done."""
    path_check.restoring(store.config.database).mkdir()
    with pytest.raises(StoreError, match="repeat `conclave restore`"):
        schema.require_current(store.config.database, writing=True)
    with pytest.raises(BackupError, match="repeat `conclave restore`"):
        store.back_up()
