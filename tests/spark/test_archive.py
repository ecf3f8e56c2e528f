"""The archive: older messages move there, and every rule reaches them there, down to the bytes on disk."""

from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from conclave.config import ArchiveConfig, CleanupConfig
from tests.cleaner import Cleaner
from tests.spark.archived import DAY, USERS, Store


@pytest.fixture
def store(tmp_path: Path, cleaner: Cleaner) -> Store:
    return Store(tmp_path, cleaner)


def keys(group_key: int, numbers: range) -> set[tuple[int, int]]:
    return {(group_key, number) for number in numbers}


def test_older_messages_move_and_nothing_else_changes(store: Store) -> None:
    kept, timed, short, fetched = (store.add_group(expiry) for expiry in (-1, 60 * DAY, 8 * DAY, 0))
    for group_key in (kept, timed, short, fetched):
        store.send(group_key, 5)
    store.now += 7 * DAY + 1
    store.send(kept, 3)
    before = store.served()
    report = store.run()
    assert report["archived"] == 10
    assert report["deleted"] == dict.fromkeys(report["deleted"], 0)
    assert store.served() == before
    assert {row["group_key"] for row in store.table().to_pylist()} == {kept, timed}, "8 days are within the margin"
    store.expect_sound()
    moved = {store.made[key] for key in keys(kept, range(1, 6)) | keys(timed, range(1, 6))}
    hot = store.search.numbers_in_files(*store.folder.glob("hot.db*"))
    assert not hot & moved, "the hot store has no copies left"
    again = store.run()
    assert (again["archived"], again["deleted"]) == (0, report["deleted"])
    assert store.served() == before
