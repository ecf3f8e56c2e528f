"""The key store, compared with a plain model: what lives has its key, and nothing leads to the others."""

import random
from pathlib import Path

import pytest

from conclave.keys import file, records, store as store_module, tree
from conclave.keys.file import KeyFileError
from conclave.keys.store import LAST_NUMBER, KeyStore
from conclave.keys.tree import Range
from tests.support import sample
from tests.support.forgetting import JUMP, Memory, ranges

GROUPS = [bytes([letter]) * 16 for letter in b"abcde"]
A, B = GROUPS[:2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "keys").mkdir()
    file.create(tmp_path / "keys" / "keys")
    return tmp_path / "keys" / "keys"


@pytest.fixture
def memory() -> Memory:
    return Memory(1)


@pytest.mark.parametrize("seed", range(40 if sample.is_all() else 4))
def test_whatever_comes_and_goes_exactly_what_lives_has_a_key(path: Path, seed: int) -> None:
    """In any order, with the jumps that restores make, by what is dead or by what lives."""
    memory = Memory(seed)
    store = KeyStore(path, memory.draw)
    for _ in range(40):
        group_id = memory.random.choice(GROUPS)
        memory.give(store, group_id, memory.random.randint(1, 30), jump=memory.random.random() < 0.2)
        numbers = sorted(memory.living[group_id])
        gone = memory.random.choice(
            (
                [],
                numbers[: memory.random.randint(0, len(numbers))],
                memory.random.sample(numbers, len(numbers) // 3),
                numbers,
            )
        )
        dead = memory.forget(group_id, gone)
        if memory.random.random() < 0.5:
            store.erase([(group_id, dead)])
        else:
            store.retain_only(memory.told())
        memory.require_living(store)
        memory.require_lost(store, path.parent)
        assert store.keys(group_id, [memory.last[group_id] + 1]) != [None] or memory.last[group_id] % tree.BLOCK == 0


def test_what_was_kept_by_its_numbers_is_what_is_left_by_erasing(path: Path, memory: Memory) -> None:
    store = KeyStore(path, memory.draw)
    memory.give(store, A, 200)
    dead = memory.forget(A, random.Random(1).sample(range(1, 201), 90))
    store.retain_only(memory.told())
    assert store.erase([(A, dead)]) == 0
    assert store.retain_only(memory.told()) == 0
    found = KeyStore(path)
    assert found.erase([(A, [Range(1, 200)])]) == 1
    assert found.keys(A, [200, 201]) == [None, memory.key(A, 201)]


def test_a_block_that_is_given_to_its_end_and_erased_leaves_nothing(path: Path, memory: Memory) -> None:
    store = KeyStore(path, memory.draw)
    memory.give(store, A, 1)
    memory.give(store, A, 3, jump=True)
    memory.last[A] = 2 * JUMP - 2
    memory.give(store, A, 3)
    memory.require_living(store)
    memory.forget(A, [number for number in memory.living[A] if number < JUMP])
    store.erase([(A, [Range(0, JUMP - 1)])])
    assert records.block_name(A, 0) not in file.KeyFile(path).names()
    memory.require_living(store)
    memory.require_lost(store, path.parent)


def test_a_deleted_group_loses_all_its_keys_and_others_keep_theirs(path: Path, memory: Memory) -> None:
    store = KeyStore(path, memory.draw)
    for group_id in GROUPS:
        memory.give(store, group_id, 10)
        memory.give(store, group_id, 10, jump=True)
    memory.forget(A, list(memory.living[A]))
    del memory.living[A]
    store.retain_only(memory.told())
    assert not [each for each in file.KeyFile(path).names() if each.startswith(A)]
    memory.require_living(store)
    memory.require_lost(store, path.parent)
    assert memory.roots[records.block_name(A, 0)] not in path.read_bytes()


def test_a_group_that_was_begun_since_is_not_taken_for_gone(path: Path, memory: Memory) -> None:
    """What lives is told while the server goes on: a group that it makes meanwhile is not among what is told."""
    store = KeyStore(path, memory.draw)
    memory.give(store, A, 10)

    def told() -> list[tuple[bytes, list[Range]]]:
        return [(A, [Range(1, LAST_NUMBER)])]

    class Late(list[tuple[bytes, list[Range]]]):
        def __iter__(self):  # type: ignore[no-untyped-def]
            memory.give(KeyStore(path, memory.draw), B, 1)
            return iter(told())

    store.retain_only(Late())
    memory.require_living(store)


def test_a_root_is_drawn_once_for_each_block(path: Path, memory: Memory) -> None:
    """By whichever process: what is encrypted under the first could not be read any more."""
    one, other = KeyStore(path, memory.draw), KeyStore(path, random.Random(2).randbytes)
    memory.give(one, A, 5)
    other.prepare([(A, 1), (A, 6), (B, 1)])
    one.prepare([(B, 1)])
    assert one.keys(A, [6]) == other.keys(A, [6]) == [memory.key(A, 6)]
    assert one.keys(B, [1]) == other.keys(B, [1]) != [None]


def test_a_number_that_was_never_given_has_no_key(path: Path, memory: Memory) -> None:
    store = KeyStore(path, memory.draw)
    memory.give(store, A, 1)
    assert store.keys(A, [1, tree.BLOCK, JUMP]) == [memory.key(A, 1), None, None]
    assert store.keys(B, [1]) == [None]


def test_without_its_file_no_number_may_be_given(path: Path, memory: Memory) -> None:
    store = KeyStore(path, memory.draw)
    memory.give(store, A, 1)
    path.unlink()
    with pytest.raises(KeyFileError, match="No such file"):
        store.prepare([(B, 1)])
    with pytest.raises(KeyFileError, match="No such file"):
        store.keys(A, [1])


def test_neighbours_of_what_was_erased_have_their_own_keys(path: Path, memory: Memory) -> None:
    """Keys are derived sixteen at a time, also where one of the sixteen is gone."""
    store = KeyStore(path, memory.draw)
    memory.give(store, A, 64)
    memory.require_living(store)
    for number in (17, 30, 31, 5, 40):
        store.erase([(A, memory.forget(A, [number]))])
        memory.require_living(store)
        memory.require_lost(store, path.parent)


def test_what_is_cached_runs_is_bounded_and_forgotten_with_its_message(
    path: Path, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "MAX_CACHED_RUNS", 8)
    store = KeyStore(path, memory.draw)
    memory.give(store, A, 600)
    memory.give(store, B, 16)
    memory.require_living(store)
    assert len(store._cached_runs) == 8
    KeyStore(path).erase([(A, memory.forget(A, [599, 600]))])
    store.keys(B, [1])
    assert {named for named, _ in store._cached_runs} == {records.block_name(B, 0)}


def test_very_many_groups_change_in_writes_of_a_bounded_size(
    path: Path, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "BLOCKS_PER_WRITE", 7)
    store = KeyStore(path, memory.draw)
    groups = [number.to_bytes(16, "big") for number in range(50)]
    for group_id in groups:
        memory.give(store, group_id, 3)
    assert store.erase([(each, memory.forget(each, [1, 3])) for each in groups]) == 50
    memory.require_living(store)
    memory.require_lost(store, path.parent)


def test_the_ranges_of_a_block_are_those_within_it() -> None:
    numbers = [0, 5, tree.BLOCK - 1, tree.BLOCK, tree.BLOCK + 7, 3 * tree.BLOCK]
    whole = ranges(numbers)
    for block in range(4):
        chosen = store_module._within(whole, block)
        inside = {number % tree.BLOCK for number in numbers if number // tree.BLOCK == block}
        assert {number for first, last in chosen for number in range(first, last + 1)} == inside
    assert store_module._within([Range(10, LAST_NUMBER)], 2**40) == [Range(0, tree.BLOCK - 1)]
    assert tree.restrict_to((), [Range(0, 1)]) == ()
