"""The power fails at any moment: what was acknowledged is on the disk, and what was told to be lost is lost."""

import copy
import os
from pathlib import Path

import pytest

from conclave.keys import file
from conclave.keys.store import KeyStore
from tests.support import sample
from tests.support.forgetting import Memory
from tests.support.power import Disk

A, B, C = (bytes([letter]) * 16 for letter in b"abc")


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    monkeypatch.setattr(file, "MIN_DEAD_BYTES", 2_000)
    (tmp_path / "real").mkdir()
    file.create(tmp_path / "real" / "keys")
    return Disk(tmp_path / "real", monkeypatch)


def changes(disk: Disk) -> None:
    """Let messages come and go; note after each change what whoever waited for it knows."""
    memory = Memory(1)
    store = KeyStore(disk.folder / "keys", memory.draw)
    for step in range(30):
        group_id = memory.random.choice([A, B, C])
        memory.give(store, group_id, memory.random.randint(1, 12), jump=step % 5 == 0)
        disk.tell(copy.deepcopy(memory))
        numbers = sorted(memory.living[group_id])
        store.erase([(group_id, memory.forget(group_id, memory.random.sample(numbers, len(numbers) // 2)))])
        disk.tell(copy.deepcopy(memory))
    memory.require_living(store)


@pytest.mark.system
def test_the_power_may_fail_at_any_moment(disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk.tell(Memory(1))
    changes(disk)
    monkeypatch.undo()
    kinds = {each.kind for each in disk.events}
    assert kinds == {"told", "write", "sync", "sync names", "name", "unname"}, "the file was written anew, too"
    chance = sample.chance("power")
    moments = range(1, len(disk.events))
    for number, moment in enumerate(sample.some(moments, 250, "moments of the power")):
        folder = tmp_path / f"after-{number}"
        disk.fail(moment, chance, folder)
        known, wanted = disk.told(moment), disk.told_next(moment)
        assert known.remains(folder) == [], "what was told to be lost was on the disk"
        store = KeyStore(folder / "keys", wanted.draw)
        assert store.damage == 0
        for group_id, living in known.living.items():
            asked = sorted(living & wanted.living[group_id])
            assert store.keys(group_id, asked) == [known.key(group_id, each) for each in asked]
        store.retain_only(wanted.told())
        wanted.require_lost(store, folder)
        store.close()


def test_what_the_former_file_had_is_overwritten_on_the_disk_before_its_name_goes(disk: Disk) -> None:
    changes(disk)
    gone = [number for number, each in enumerate(disk.events) if (each.kind, each.name) == ("unname", "keys-former")]
    assert gone
    for number in gone:
        zeros, synced = disk.events[number - 2 : number]
        assert (zeros.kind, synced.kind) == ("write", "sync")
        assert zeros.file == synced.file
        assert not any(zeros.data)


def test_the_former_file_is_overwritten_before_its_name_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever still has it open, or finds its blocks on the disk, finds no key there."""
    monkeypatch.setattr(file, "MIN_DEAD_BYTES", 0)
    path = tmp_path / "keys"
    file.create(path)
    memory = Memory(2)
    store = KeyStore(path, memory.draw)
    memory.give(store, A, 20)
    descriptor = os.open(path, os.O_RDONLY)
    for number in range(1, 20):
        store.erase([(A, memory.forget(A, [number]))])
    assert os.fstat(descriptor).st_nlink == 0
    assert not any(os.pread(descriptor, 100_000, 0))
    os.close(descriptor)
    memory.require_lost(store, tmp_path)
