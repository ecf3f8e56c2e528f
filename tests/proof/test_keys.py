"""The proof of the key file: what lives accounts for every node, a planted one is found, and so is what copies tell."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from conclave.clock import FakeClock
from conclave.config.settings import KEYS
from conclave.keys import records, tree
from conclave.keys.file import KeyFile
from conclave.keys.replacing import FORMER, NEW, sibling
from conclave.keys.tree import Node
from conclave.proof import keys
from conclave.proof.findings import ProofPart
from conclave.proof.keys import BackupFolder, Examined
from conclave.system import locks
from spark import run
from spark.environment import RunEnvironment
from tests.support.archived import DAY
from tests.support.keyed import KeyedBackups, clean


@pytest.fixture
def store(tmp_path: Path) -> KeyedBackups:
    made = KeyedBackups(tmp_path)
    made.begin_keys()
    return made


def examined(store: KeyedBackups) -> ProofPart:
    part = ProofPart("key file")
    keys.examine(part, store.config)
    return part


def of_copies(store: KeyedBackups, *backups: Path) -> ProofPart:
    part = ProofPart("all")
    found = keys.examine(part, store.config)
    keys.examine_copies(part, BackupFolder(store.backups, lambda: backups), found)
    return part


def test_a_backup_that_is_removed_meanwhile_is_no_finding(store: KeyedBackups) -> None:
    store.send(store.add_group(), 1)
    kept, removed = store.back_up().path, store.backups / "2023-11-14T22-13-20Z"
    found, listed = ProofPart("copies"), iter([[removed, kept], [kept]])
    keys.examine_copies(found, BackupFolder(store.backups, lambda: next(listed)), Examined([], {}))
    assert found.findings == []
    assert found.looked_at["backups"] == 1
    shutil.copytree(kept, removed)
    (removed / "database.db").unlink()
    [finding] = of_copies(store, removed, kept).findings
    assert "cannot be examined" in finding.told


def test_each_node_leads_to_what_lives_or_is_still_to_come(store: KeyedBackups) -> None:
    kept, fading, doomed = store.add_group(), store.add_group(DAY), store.add_group()
    for group in (kept, fading, doomed):
        store.send(group, 5)
    assert examined(store).findings == []
    store.now += 2 * DAY
    store.send(fading, 1)
    store.delete_group(doomed)
    assert examined(store).findings == [], "what is due and not erased yet is not dead here"
    clean(store)
    found = examined(store)
    assert found.findings == []
    assert found.looked_at["covers"] == 3, "of two groups, and of other bodies"


@pytest.mark.parametrize("has_end", [False, True], ids=["it lives", "it was erased"])
def test_after_a_restore_numbers_begin_above_one_that_none_was_given(
    store: KeyedBackups,
    tmp_path: Path,
    has_end: bool,
) -> None:
    """Its key is below the same root as those of the messages that follow, as that of number 0 is in a new group."""
    group = store.add_group(DAY)
    store.send(group, 3)
    made = store.back_up().path
    store.write_ledger()
    store.elsewhere = tmp_path / "restored"
    there, _ = store.restored(made)
    there.start()
    there.send(group, 5)
    assert examined(there).findings == []
    if has_end:
        there.delete_group(group)
        assert examined(there).findings == []


def erased_again(store: KeyedBackups, group_id: bytes) -> None:
    """Put the root of a block back, as an old copy of the file would have it."""
    opened = KeyFile(store.config.keys_path)
    with opened.locked() as write:
        write([(records.block_name(group_id, 0), (Node(tree.ROOT, store.roots[group_id, 0]),))])
    opened.close()


def of_no_group(store: KeyedBackups, _: bytes) -> None:
    opened = KeyFile(store.config.keys_path)
    with opened.locked() as write:
        write([(records.block_name(b"x" * 16, 0), (Node(tree.ROOT, b"y" * 32),))])
    opened.close()


def beside_the_covers(store: KeyedBackups, group_id: bytes) -> None:
    with store.config.keys_path.open("ab") as file:
        file.write(store.roots[group_id, 0].ljust(64, b"\1"))


@pytest.mark.parametrize("plant", [erased_again, of_no_group, beside_the_covers])
def test_a_planted_node_is_found(store: KeyedBackups, plant: Callable[[KeyedBackups, bytes], None]) -> None:
    fading = store.add_group(DAY)
    store.send(fading, 5)
    store.now += 2 * DAY
    store.send(fading, 1)
    clean(store)
    assert examined(store).findings == []
    plant(store, store.group_ids[fading])
    assert [each.kind for each in examined(store).findings] == ["keys"]


def test_of_backups_it_is_told_what_can_be_read_and_that_nothing_erased_can(tmp_path: Path) -> None:
    store, copy = KeyedBackups(tmp_path), tmp_path / "copy"
    store.begin_keys(copy)
    kept, fading = store.add_group(), store.add_group(DAY)
    store.send(kept, 5)
    store.send(fading, 5)
    clean(store)
    older, first = (copy / KEYS).read_bytes(), store.back_up().path
    store.now += 2 * DAY
    clean(store)
    (copy / KEYS).write_bytes(older)
    found = of_copies(store, first)
    assert [each.told for each in found.findings] == [
        f"5 of group {store.group_ids[fading].hex()} that are erased today can be read"
    ], "by the copy of the vault, which has them still"
    assert found.kept == [f"{copy / KEYS}: is an older copy, with the keys of 5 numbers that were erased since"]
    clean(store)
    found = of_copies(store, first, store.back_up().path)
    assert found.findings == []
    assert found.kept == []
    assert found.looked_at["bodies"] == 15
    assert found.looked_at["of these erased today"] == 5


def test_what_another_process_writes_from_then_on_is_not_taken_for_left_over(
    store: KeyedBackups, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = locks.hold_file

    @contextmanager
    def held(path: Path, wait: locks.Wait | None = None) -> Iterator[None]:
        with hold(path, wait):
            yield
        sibling(store.config.keys_path, NEW).touch()  # whose turn it is writes the file anew

    monkeypatch.setattr(locks, "hold_file", held)
    assert examined(store).findings == []


def altered(copy: Path) -> None:
    data = bytearray(copy.read_bytes())
    data[-10] ^= 1
    copy.write_bytes(data)


def unreadable(copy: Path) -> None:
    copy.write_bytes(b"not keys at all")


def half_written(copy: Path) -> None:
    sibling(copy, NEW).write_bytes(b"half a file")


def half_overwritten(copy: Path) -> None:
    sibling(copy, FORMER).write_bytes(bytes(64))


@pytest.mark.parametrize("plant", [altered, unreadable, half_written, half_overwritten])
def test_a_copy_that_cannot_be_accounted_for_is_found(tmp_path: Path, plant: Callable[[Path], None]) -> None:
    store, copy = KeyedBackups(tmp_path), tmp_path / "copy"
    store.begin_keys(copy)
    group = store.add_group()
    store.send(group, 5)
    clean(store)
    backup = store.back_up().path
    assert of_copies(store, backup).findings == []
    plant(copy / KEYS)
    found = of_copies(store, backup)
    assert [(path.parent, path.name.partition("-")[0]) for each in found.findings if (path := Path(each.path))] == [
        (copy, KEYS)
    ]


def test_a_copy_of_the_keys_that_is_away_is_told(tmp_path: Path) -> None:
    store, copy = KeyedBackups(tmp_path), tmp_path / "disk" / "copy"
    copy.parent.mkdir()
    store.begin_keys(copy)
    fading = store.add_group(DAY)
    store.send(fading, 5)
    clean(store)
    assert of_copies(store).kept == []
    away = copy.parent.rename(tmp_path / "away")
    store.now += 2 * DAY
    with closing(RunEnvironment(store.config, FakeClock(store.now))) as engine:
        assert str(copy) in run.clean_up(engine).error
    told = f"{copy / KEYS}: does not exist: it may be elsewhere, with keys that were erased since"
    assert of_copies(store, store.back_up().path).kept == [told]
    away.rename(copy.parent)
    [told] = of_copies(store).kept
    assert told.startswith(f"{copy / KEYS}: is an older copy, with the keys of ")
