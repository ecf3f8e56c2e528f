"""Copies of a key file: whole whenever a process dies, with nothing that is dead, and read as they lie there."""

from pathlib import Path
from typing import Any

import pytest

from conclave import failpoints
from conclave.keys import file, records, replacing
from conclave.keys.file import KeyFile, KeyFileError
from conclave.keys.inspection import Inspection
from conclave.keys.replacing import FORMER, LOCK, NEW, sibling
from conclave.keys.store import KeyStore
from conclave.keys.tree import Range
from conclave.system.locks import hold_file
from tests.support.forgetting import Memory

A, B = b"a" * 16, b"b" * 16
OWN = bytes(range(16))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "keys").mkdir()
    file.create(tmp_path / "keys" / "keys", OWN)
    return tmp_path / "keys" / "keys"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "copies").mkdir()
    return tmp_path / "copies" / "keys"


def test_a_copy_has_what_lives_and_the_newest_replaces_the_former(path: Path, target: Path) -> None:
    memory = Memory(1)
    store = KeyStore(path, memory.draw)
    memory.give(store, A, 40)
    memory.give(store, B, 40)
    serial = store.copy(target)
    assert file.head_of(target) == (serial, OWN)
    memory.require_living(KeyStore(target))
    store.erase([(A, memory.forget(A, range(1, 30))), (B, memory.forget(B, range(1, 41)))])
    assert store.serial > serial, "so an older copy is told"
    store.copy(target)
    found = Inspection(target)
    assert found.keys_id == OWN
    assert found.flaws == []
    assert found.have_keys(A, [29, 30, 40, 41]) == [False, True, True, True]
    assert found.ranges(A, 0)[0] == Range(0, 0), "no number is 0, and none was erased"
    assert memory.remains(target.parent) == []
    assert {each.name for each in target.parent.iterdir()} <= {"keys", "keys-lock"}, "the test has opened it"


@pytest.mark.parametrize("point", ["keys.linked", "keys.replaced", "keys.former_overwritten", "keys.former_removed"])
def test_whenever_copying_breaks_off_one_whole_copy_is_there(
    path: Path, target: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = Memory(2)
    store = KeyStore(path, memory.draw)
    memory.give(store, A, 20)
    store.copy(target)
    dead = memory.forget(A, range(1, 10))
    store.erase([(A, dead)])
    monkeypatch.setattr(failpoints, "_name", "")
    failpoints.arm(f"{point}=io")
    try:
        with pytest.raises(Exception, match="disk I/O error"):
            store.copy(target)
    finally:
        failpoints.arm("")
    assert Inspection(target).have_keys(A, [10, 20]) == [True, True]
    store.copy(target)
    assert memory.remains(target.parent) == []
    assert {each.name for each in target.parent.iterdir()} == {"keys"}


def test_a_file_system_without_links_has_a_whole_copy_too(
    path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", refuse)
    memory = Memory(3)
    store = KeyStore(path, memory.draw)
    memory.give(store, A, 5)
    store.copy(target)
    failpoints.arm("keys.linked=io")
    try:
        with pytest.raises(Exception, match="disk I/O error"):
            store.copy(target)
    finally:
        failpoints.arm("")
    assert not target.exists()
    store.copy(target)
    memory.require_living(KeyStore(target))
    assert not target.with_name(f"keys{FORMER}").exists()
    assert not target.with_name(f"keys{NEW}").exists()


def test_the_key_file_is_no_copy_of_itself(path: Path, tmp_path: Path) -> None:
    """It would be replaced by what it was a moment ago, also under another name of its."""
    store = KeyStore(path)
    (tmp_path / "other name").hardlink_to(path)
    for itself in (path, tmp_path / "other name"):
        with pytest.raises(KeyFileError, match="is the key file itself"):
            store.copy(itself)


def test_the_copy_of_other_keys_is_not_replaced(path: Path, target: Path) -> None:
    file.create(target, bytes(16))
    with pytest.raises(KeyFileError, match="is not a copy of these keys"):
        KeyStore(path).copy(target)


def test_an_older_key_file_that_was_put_back_does_not_take_the_place_of_newer_copies(path: Path, target: Path) -> None:
    memory = Memory(8)
    store = KeyStore(path, memory.draw)
    memory.give(store, A, 5)
    older = target.with_name("older")
    store.copy(older)
    memory.give(store, B, 5)
    store.copy(target)
    store.close()
    newer = target.read_bytes()
    path.write_bytes(older.read_bytes())
    put_back = KeyStore(path)
    with pytest.raises(KeyFileError, match="which was replaced by an older key file"):
        put_back.copy(target)
    assert target.read_bytes() == newer
    put_back.close()
    path.write_bytes(newer)
    memory.require_living(KeyStore(path))


def test_a_copy_that_is_renewed_while_it_is_read_is_read_anew(
    path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The former one is overwritten as soon as it is replaced."""
    memory = Memory(11)
    store = KeyStore(path, memory.draw)
    memory.give(store, A, 5)
    opened, renewed = Path.open, list[int]()

    def meanwhile(itself: Path, mode: str = "r") -> Any:
        found = opened(itself, mode)
        if itself == target and not renewed:
            renewed.append(0)  # to renew the copy opens it, too
            store.erase([(A, memory.forget(A, [min(memory.living[A])]))])
            renewed.append(store.copy(target))
        return found

    store.copy(target)
    monkeypatch.setattr(Path, "open", meanwhile)
    found = Inspection(target)
    assert (found.serial, found.flaws) == (renewed[-1], [])
    renewed.clear()
    assert file.head_of(target) == (renewed[-1], OWN)


def test_nobody_waits_for_the_disk_of_a_copy(path: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one is written, a server draws and cleanup erases; the copy has what there was when it was begun."""
    memory = Memory(9)
    store, server = KeyStore(path, memory.draw), KeyStore(path, memory.draw)
    memory.give(store, A, 5)
    met: list[str] = []

    def meet(point: str) -> None:
        if not met:
            met.append(point)
            with hold_file(sibling(path, LOCK)):
                pass  # it can be had at once
            memory.give(server, B, 5)
            server.erase([(A, memory.forget(A, [1]))])

    monkeypatch.setattr(replacing, "reach", meet)
    serial = store.copy(target)
    assert met == ["keys.linked"]
    assert file.head_of(target) == (serial, OWN)
    assert serial < server.serial, "so it is renewed"
    assert (Inspection(target).blocks(), Inspection(target).have_keys(A, [1, 2])) == ([(A, 0)], [True, True])
    store.copy(target)
    memory.require_living(KeyStore(target))
    assert memory.remains(target.parent) == []


def altered(path: Path, group_id: bytes) -> bytes:
    """Return a key file with a bit of the nodes of the group's first block altered, as a disk may do."""
    data = bytearray(path.read_bytes())
    data[Inspection(path).offset(group_id, 0) + records.UNIT_BYTES + 6] ^= 1
    return bytes(data)


def test_a_damaged_file_does_not_take_the_place_of_whole_copies(path: Path, target: Path) -> None:
    """They have the cover that is lost here."""
    memory = Memory(6)
    store = KeyStore(path, memory.draw)
    for group_id in (A, B):
        memory.give(store, group_id, 5)
    store.copy(target)
    before = target.read_bytes()
    store.close()
    path.write_bytes(altered(path, A))
    store.erase([(B, memory.forget(B, [1]))])
    with pytest.raises(KeyFileError, match="is damaged: its copies are not updated"):
        store.copy(target)
    assert target.read_bytes() == before
    assert [each.name for each in target.parent.iterdir()] == ["keys"]


def test_what_a_disk_has_altered_since_the_file_was_opened_goes_into_no_copy(
    path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor into the file itself when it is written anew."""
    monkeypatch.setattr(file, "MIN_DEAD_BYTES", 0)
    memory = Memory(7)
    store = KeyStore(path, memory.draw)
    for group_id in (A, B):
        memory.give(store, group_id, 60)
    store.copy(target)
    before, whole, inode = target.read_bytes(), path.read_bytes(), path.stat().st_ino
    path.write_bytes(altered(path, A))
    with pytest.raises(KeyFileError, match="is damaged"):
        store.copy(target)
    path.write_bytes(whole)
    memory.require_living(store)
    path.write_bytes(altered(path, A))
    erased = [(B, memory.forget(B, [number])) for number in range(1, 60)]
    with pytest.raises(KeyFileError, match="neither it nor its copies are rewritten"):
        [*map(store.erase, ([each] for each in erased))]
    assert path.stat().st_ino == inode
    assert memory.roots[records.block_name(B, 0)] not in path.read_bytes()
    store.erase([(B, memory.forget(B, [60]))])
    with pytest.raises(KeyFileError, match="is damaged"):
        store.copy(target)
    assert target.read_bytes() == before
    assert [each.name for each in target.parent.iterdir()] == ["keys"]


def test_what_was_not_overwritten_is_found_where_it_lies(path: Path) -> None:
    memory = Memory(4)
    store = KeyStore(path, memory.draw)
    memory.give(store, A, 5)
    store.close()
    (record,) = list(records.scan(path.read_bytes(), records.UNIT_BYTES))
    whole = path.read_bytes()
    path.write_bytes(whole + whole[record.offset : record.offset + record.size])
    assert [flaw.offset for flaw in Inspection(path).flaws] == [record.offset]
    path.write_bytes(whole + b"\1" * 64)
    assert [flaw.offset for flaw in Inspection(path).flaws] == [len(whole)]
    KeyFile(path).close()
    assert Inspection(path).flaws == [], "opening it overwrites what is left over"


def test_a_send_has_its_keys_at_hand_once_they_were_drawn(path: Path) -> None:
    """Without a look at the file, also beyond the neighbours of the first; until the cover has changed."""
    memory = Memory(5)
    store = KeyStore(path, memory.draw)
    assert store.cached_keys([(A, 1)]) is None
    store.new_keys([(A, 1)])
    memory.roots[records.block_name(A, 0)] = memory.roots.get(records.block_name(A, 0)) or memory._drawn
    path.rename(path.with_name("away"))
    expected = [memory.key(A, number) for number in (1, 2, 17, 5000)]
    assert store.cached_keys([(A, number) for number in (1, 2, 17, 5000)]) == expected
    assert store.cached_keys([(A, 1), (B, 1)]) is None
    assert store.cached_keys([(A, 65_536)]) is None, "the next block has a root of its own"
    path.with_name("away").rename(path)
    store.erase([(A, [Range(1, 3)])])
    assert store.cached_keys([(A, 4)]) is None
    assert store.new_keys([(A, 4)]) == [memory.key(A, 4)]
    assert store.cached_keys([(A, 3)]) is None, "it was erased"


def test_numbers_that_were_given_and_erased_are_not_free(path: Path) -> None:
    store = KeyStore(path)
    assert store.are_unused(A, [1, 2, 3]), "of a block without a root"
    store.prepare([(A, 1)])
    store.erase([(A, [Range(1, 2)])])
    assert not store.are_unused(A, [2])
    assert store.are_unused(A, [3, 4])
    assert store.are_unused(A, [65_536, 65_537])
    assert store.have_keys(A, [2, 3]) == [False, True]
