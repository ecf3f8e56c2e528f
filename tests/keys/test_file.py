"""The key file: a process may die between any two writes, and a write be torn: nothing is missing, nothing stays."""

import os
import random
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from conclave import failpoints
from conclave.keys import file, records, tree
from conclave.keys.file import KeyFile, KeyFileError
from conclave.keys.store import KeyStore
from conclave.keys.tree import Node, Range
from tests.support import sample
from tests.support.failpoints import KEY_POINTS
from tests.support.forgetting import Memory

A, B, C = (bytes([letter]) * 16 for letter in b"abc")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "keys").mkdir()
    file.create(tmp_path / "keys" / "keys")
    return tmp_path / "keys" / "keys"


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoints.arm("")


def root(number: int) -> Node:
    return Node(tree.ROOT, bytes([number]) * 32)


def names_in(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def test_what_was_written_is_there_again_and_only_its_owner_may_read_it(path: Path) -> None:
    covers = {records.block_name(A, 0): (root(1),), records.block_name(A, 2**40): (root(2), Node(5, b"x" * 32))}
    with KeyFile(path).locked() as write:
        write(list(covers.items()))
    found = KeyFile(path)
    assert {each: found.read(each) for each in found.names()} == covers
    assert {stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()} == {0o600}


def test_a_missing_key_file_is_not_begun_anew_by_itself(path: Path) -> None:
    path.unlink()
    with pytest.raises(KeyFileError, match="No such file"):
        KeyFile(path)


@pytest.mark.parametrize("data", [b"", b"x" * 64, bytes(64), b"key"])
def test_what_is_no_key_file_is_left_alone(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with pytest.raises(KeyFileError, match="is not a key file"):
        KeyFile(path)
    assert path.read_bytes() == data


def test_a_key_file_that_is_there_is_not_replaced_by_an_empty_one(path: Path) -> None:
    with pytest.raises(KeyFileError, match="exists already"):
        file.create(path)


def test_a_block_that_is_gone_has_no_cover_any_more(path: Path) -> None:
    keys = KeyFile(path)
    with keys.locked() as write:
        write([(records.block_name(A, 0), (root(1),)), (records.block_name(B, 0), (root(2),))])
        write([(records.block_name(A, 0), ())])
    for each in (keys, KeyFile(path)):
        assert each.names() == [records.block_name(B, 0)]
        assert each.read(records.block_name(A, 0)) is None
    assert root(1).secret not in path.read_bytes()


def test_the_file_stays_small_however_often_its_covers_change(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "MIN_DEAD_BYTES", 4_000)
    memory = Memory(1)
    store = KeyStore(path, memory.draw)
    memory.give(store, A, 2_000)
    for number in range(1, 300):
        store.erase([(A, memory.forget(A, [number]))])
        assert path.stat().st_size < 6_000
    memory.require_living(store)
    memory.require_lost(store, path.parent)


def history(path: Path, seed: int, point: str) -> bool:
    """Let messages come and go, and one change fail at a point. Returns whether it was reached."""
    memory = Memory(seed)
    store = KeyStore(path, memory.draw)
    for group_id in (A, B, C):
        memory.give(store, group_id, 40, jump=memory.random.random() < 0.5)
    failpoints.arm(f"{point}=io@{memory.random.randint(1, 8)}")
    for _ in range(30):
        group_id = memory.random.choice([A, B, C])
        gone = memory.random.sample(range(50), memory.random.randint(1, 20))
        numbers = sorted(memory.living[group_id])
        dead = memory.forget(group_id, [numbers[index] for index in gone if index < len(numbers)])
        try:
            store.erase([(group_id, dead)])
            memory.give(store, group_id, memory.random.randint(0, 9), jump=memory.random.random() < 0.1)
        except sqlite3.OperationalError:
            store.close()
            failpoints.arm("")
            store = KeyStore(path, memory.draw)
            memory.require_living(store)
            store.retain_only(memory.told())
            memory.require_lost(store, path.parent)
            assert names_in(path.parent) == ["keys", "keys-lock"]
            return True
    memory.require_living(store)
    memory.require_lost(store, path.parent)
    return False


@pytest.mark.parametrize("point", KEY_POINTS)
def test_whichever_write_is_the_last_no_key_is_missing_and_none_is_left(
    tmp_path: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "MIN_DEAD_BYTES", 2_000)
    reached = 0
    for seed in range(100 if sample.is_all() else 10):
        folder = tmp_path / str(seed)
        folder.mkdir()
        file.create(folder / "keys")
        reached += history(folder / "keys", seed, point)
    assert reached, f"{point} was not reached"


KILLED = """
import sys
from pathlib import Path
from conclave.keys import file
from conclave.keys.tree import Range
from conclave.keys.store import KeyStore
file.MIN_DEAD_BYTES = 2_000
store = KeyStore(Path(sys.argv[1]))
store.erase([(b"a" * 16, [Range(1, int(sys.argv[2]))])])
for number in range(100, 200, 2):
    store.erase([(b"b" * 16, [Range(number, number)])])
"""


@pytest.mark.parametrize("point", KEY_POINTS)
def test_killed_between_two_writes_the_next_run_erases_the_rest(path: Path, point: str) -> None:
    memory = Memory(2)
    store = KeyStore(path, memory.draw)
    memory.give(store, A, 300)
    memory.give(store, B, 300)
    store.close()
    done = subprocess.run(
        [sys.executable, "-P", "-c", dedent(KILLED), path, "100"],
        env=os.environ | {"CONCLAVE_FAILPOINT": f"{point}=kill@2"},
    )
    assert done.returncode == -9, f"{point} was not reached"
    memory.forget(A, range(1, 101))
    memory.forget(B, range(100, 200, 2))
    store = KeyStore(path)
    memory.require_living(store)
    store.retain_only(memory.told())
    memory.require_lost(store, path.parent)
    assert names_in(path.parent) == ["keys", "keys-lock"]


def change_of_two(path: Path) -> tuple[Memory, bytes, bytes, bytes]:
    """Erase of two groups at once. Returns the file before, after what is new was appended, and after it all."""
    memory = Memory(3)
    store = KeyStore(path, memory.draw)
    for group_id in (A, B, C):
        memory.give(store, group_id, 30)
    before = path.read_bytes()
    dead = [(each, memory.forget(each, [3, 4, 20])) for each in (A, B)]
    failpoints.arm("keys.synced=io")
    with pytest.raises(sqlite3.OperationalError):
        store.erase(dead)
    failpoints.arm("")
    appended = path.read_bytes()
    path.write_bytes(before)
    store = KeyStore(path, memory.draw)
    store.erase(dead)
    store.close()
    assert len(path.read_bytes()) == len(appended)
    return memory, before, appended, path.read_bytes()


def require_settled(memory: Memory, path: Path) -> None:
    """Whatever was left: no key is missing, and the next run erases the rest, also where more was written since."""
    store = KeyStore(path, memory.draw)
    memory.require_living(store)
    store.prepare([(b"d" * 16, 1)])
    KeyStore(path).retain_only([*memory.told(), (b"d" * 16, [Range(1, 9)])])
    memory.require_living(store)
    memory.require_lost(store, path.parent)
    assert KeyStore(path).damage == 0
    assert store.keys(b"d" * 16, [1, 9]) == KeyStore(path).keys(b"d" * 16, [1, 9]) != [None, None]


def test_an_append_that_was_torn_anywhere_is_taken_back_or_done(path: Path) -> None:
    memory, before, appended, _ = change_of_two(path)
    cuts = sample.some(range(len(before), len(appended) + 1), 60, "cuts")
    for cut in cuts:
        path.write_bytes(appended[:cut])
        require_settled(memory, path)


def test_an_append_of_which_only_some_sectors_were_written_is_taken_back_or_done(path: Path) -> None:
    memory, before, appended, _ = change_of_two(path)
    sectors = range(len(before) // 512, len(appended) // 512 + 1)
    for lost in sectors:
        data = bytearray(appended)
        begin = max(512 * lost, len(before))
        data[begin : 512 * (lost + 1)] = bytes(len(data[begin : 512 * (lost + 1)]))
        path.write_bytes(data)
        require_settled(memory, path)


def test_what_was_overwritten_in_part_is_overwritten_when_the_file_is_opened(path: Path) -> None:
    """A disk writes units of 64 bytes whole, in any order."""
    memory, _, appended, after = change_of_two(path)
    chance = random.Random(4)
    for _ in range(60):
        units = range(0, len(appended), 64)
        path.write_bytes(b"".join(chance.choice((appended, after))[each : each + 64] for each in units))
        memory.require_lost(KeyStore(path), path.parent)
        assert len(path.read_bytes()) == len(after)
        require_settled(memory, path)


def test_what_a_disk_has_altered_is_told_and_never_taken_for_erased(path: Path) -> None:
    memory = Memory(5)
    store = KeyStore(path, memory.draw)
    for group_id in (A, B, C):
        memory.give(store, group_id, 3)
    for group_id in (A, B, C):
        store.erase([(group_id, memory.forget(group_id, [1]))])
    store.close()
    data = bytearray(path.read_bytes())
    place = data.rindex(b"b" * 16)
    for bit in range(8 * place, 8 * (place + 200), 11):
        altered = bytearray(data)
        altered[bit // 8] ^= 1 << bit % 8
        path.write_bytes(altered)
        store = KeyStore(path)
        if store.damage:
            with pytest.raises(KeyFileError, match="is damaged: keys are missing"):
                store.keys(B, [2])
            with pytest.raises(KeyFileError, match="is damaged: keys are missing"):
                store.prepare([(b"d" * 16, 1)])
            store.prepare([(A, 4)])
        else:
            assert store.keys(B, [2]) == [memory.key(B, 2)]  # a bit of the padding, which nobody reads
        assert store.keys(A, [2, 3]) == [memory.key(A, 2), memory.key(A, 3)]
        store.close()


def test_the_last_change_that_a_disk_has_altered_is_not_taken_for_torn(path: Path) -> None:
    """What it replaced was overwritten, so it was written as a whole."""
    memory = Memory(8)
    store = KeyStore(path, memory.draw)
    for group_id in (A, B):
        memory.give(store, group_id, 3)
    store.erase([(A, memory.forget(A, [1]))])
    store.close()
    data = bytearray(path.read_bytes())
    data[data.rindex(b"a" * 16) + 100] ^= 1
    path.write_bytes(data)
    for _ in range(2):
        store = KeyStore(path)
        assert store.damage == 1
        with pytest.raises(KeyFileError, match="is damaged: keys are missing"):
            store.keys(A, [2])
        assert store.keys(B, [2]) == [memory.key(B, 2)]
        store.close()
    assert path.read_bytes() == data, "nothing is overwritten that a copy may mend"


def test_a_damaged_file_is_not_written_anew_so_that_it_can_be_looked_at(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "MIN_DEAD_BYTES", 0)
    memory = Memory(6)
    store = KeyStore(path, memory.draw)
    for group_id in (A, B):
        memory.give(store, group_id, 50)
    store.close()
    data = bytearray(path.read_bytes())
    data[data.index(b"a" * 16) + 60] ^= 1
    path.write_bytes(data)
    store = KeyStore(path)
    for number in range(1, 50):
        store.erase([(B, memory.forget(B, [number]))])
    assert store.damage == KeyStore(path).damage == 1
    assert memory.roots[records.block_name(A, 0)][20:] in path.read_bytes()
    memory.living.pop(A)
    memory.require_living(store)
    memory.require_lost(store, path.parent)


def test_two_processes_see_what_the_other_has_changed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One draws and reads, the other erases, as a server and its cleanup do."""
    monkeypatch.setattr(file, "MIN_DEAD_BYTES", 2_000)
    memory = Memory(7)
    server, cleanup = KeyStore(path, memory.draw), KeyStore(path)
    for _ in range(60):
        group_id = memory.random.choice([A, B, C])
        memory.give(server, group_id, memory.random.randint(1, 30), jump=memory.random.random() < 0.1)
        memory.require_living(server)
        numbers = sorted(memory.living[group_id])
        cleanup.erase([(group_id, memory.forget(group_id, memory.random.sample(numbers, len(numbers) // 2)))])
        memory.require_living(server)
        memory.require_lost(server, path.parent)
    memory.require_living(cleanup)


def test_a_reader_never_misses_a_key_while_another_process_changes_the_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "MIN_DEAD_BYTES", 1_000)
    memory = Memory(8)
    server, cleanup = KeyStore(path, memory.draw), KeyStore(path)
    memory.give(server, A, 3_000)
    memory.give(server, B, 100)
    expected = [memory.key(A, 3_000)]
    faults: list[object] = []
    is_over = threading.Event()

    def read() -> None:
        while not is_over.is_set():
            try:
                found = server.keys(A, [3_000])
            except KeyFileError as error:
                found = [str(error).encode()]
            if found != expected:
                faults.append(found)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(1, 200):
        cleanup.erase([(A, memory.forget(A, [number]))])
    is_over.set()
    reader.join()
    assert faults == []


def test_an_older_key_file_that_is_written_over_a_shorter_newer_one_is_told_and_not_changed(path: Path) -> None:
    """A file that was rewritten is shorter than it was before: its size alone does not tell that it is older."""
    store = KeyStore(path)
    group_ids = [number.to_bytes(16, "big") for number in range(1_000)]
    store.prepare([(each, 1) for each in group_ids])
    older = path.read_bytes()
    store.retain_only([(A, [Range(1, 1)])])
    newer = path.read_bytes()
    assert len(newer) < len(older)
    path.write_bytes(older)
    with pytest.raises(KeyFileError, match="was replaced by an older key file"):
        store.refresh()
    with pytest.raises(KeyFileError, match="was replaced by an older key file"):
        store.prepare([(B, 1)])
    assert path.read_bytes() == older
    path.write_bytes(newer)
    store.refresh()
    assert store.blocks() == []


def test_the_key_file_of_another_database_in_its_place_is_told_and_not_changed(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    file.create(other, bytes(range(16)))
    store, others = KeyStore(path), KeyStore(other)
    store.prepare([(A, 1)])
    for group_id in (A, B, C):  # it has more changes
        others.prepare([(group_id, 1)])
    data = other.read_bytes()
    away = path.rename(tmp_path / "away")
    other.rename(path)
    for _ in range(2):
        with pytest.raises(KeyFileError, match="was replaced by the key file of another database"):
            store.keys(A, [1])
    with pytest.raises(KeyFileError, match="was replaced by the key file of another database"):
        store.prepare([(B, 2)])
    assert path.read_bytes() == data
    away.rename(path)
    assert store.have_keys(A, [1]) == [True]
    store.prepare([(B, 2)])


def test_a_failed_write_leaves_the_store_usable(path: Path) -> None:
    memory = Memory(9)
    store = KeyStore(path, memory.draw)
    memory.give(store, A, 20)
    dead = memory.forget(A, [1, 2])
    failpoints.arm("keys.appended=io")
    with pytest.raises(sqlite3.OperationalError):
        store.erase([(A, dead)])
    memory.require_living(store)
    store.erase([(A, dead)])
    memory.require_lost(store, path.parent)
