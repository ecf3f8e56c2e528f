"""What explain says of archived messages is what the next run does to them."""

from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from conclave.archive import queries
from conclave.retention.jobs import schedule
from conclave.store.engine import sqlite
from conclave.store.views import overdue
from conclave.store.views.explain import explain
from tests.support.archived import DAY, USERS, Store
from tests.support.cleaner import Cleaner

pytestmark = pytest.mark.system

ALICE, BOB, CAROL, DAVE = USERS


@pytest.fixture
def store(tmp_path: Path, cleaner: Cleaner) -> Store:
    return Store(tmp_path, cleaner)


def going(store: Store, numbers: dict[int, int]) -> dict[tuple[int, int], tuple[str, bool]]:
    """Return the place of each message, and whether explain says that the next run erases it."""
    look = partial(queries.find, store.config)
    told = {}
    with closing(sqlite.connect(store.config.database, readonly=True)) as connection:
        for key, last in numbers.items():
            for number in range(1, last + 1):
                runs = schedule((), 3600)
                group_id = store.group_ids[key]
                explained = explain(connection, store.config.policy, runs, store.now, group_id, number, look)
                assert explained
                found = explained.message
                assert found
                told[key, number] = found.place, bool(found.fate and found.fate.is_next)
    return told


def left(store: Store) -> set[tuple[int, int]]:
    hot = store.query("SELECT group_key, sequence_num FROM messages")
    return {(row["group_key"], row["sequence_num"]) for row in store.table().to_pylist()} | {*hot}


def hold(store: Store, group_key: int | None, user_id: bytes | None) -> None:
    with store.opened() as connection:
        connection.execute(
            "INSERT INTO holds (group_key, user_id, subject_id, name, reason, added_by, added_at)"
            " VALUES (?, ?, ?, '', 'case', 'operator o', 0)",
            (group_key, user_id, user_id or store.group_ids[group_key or 0]),
        )


def test_what_goes_from_the_archive_is_what_explain_has_said(store: Store) -> None:
    timed, held, kept, deleted = (store.add_group(expiry) for expiry in (60 * DAY, 60 * DAY, -1, -1))
    for _ in range(4):
        for key in (timed, held, kept, deleted):
            for sender, is_commit in ((ALICE, False), (BOB, False), (BOB, True), (CAROL, False), (CAROL, True)):
                store.send(key, sender=sender, is_commit=is_commit)
        store.now += 5 * DAY
    store.now += 10 * DAY
    store.run()
    numbers = dict.fromkeys((timed, held, kept, deleted), 20)
    before = left(store)
    assert {place for place, _ in going(store, numbers).values()} == {"archived"}
    assert not any(goes for _, goes in going(store, numbers).values())
    store.now += 35 * DAY
    hold(store, held, None)
    hold(store, None, CAROL)
    store.delete_account(BOB)
    store.delete_group(deleted)
    told = going(store, numbers)
    due = {key for key, (_, goes) in told.items() if goes}
    assert {key for key, _ in due} == {timed, kept, deleted}
    store.run()
    assert before - left(store) == due
    assert not any(goes for _, goes in going(store, dict.fromkeys((timed, held, kept), 20)).values())
    gone = {place for key, (place, _) in going(store, {timed: 20}).items() if key in due}
    assert gone == {"gone"}
    with closing(sqlite.connect(store.config.database, readonly=True)) as connection:
        assert overdue.find(connection, store.now) == {}
