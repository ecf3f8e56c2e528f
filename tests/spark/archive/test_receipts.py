"""Receipts have each message that was erased once: wherever a run fails, and in whichever tier the message was."""

from pathlib import Path

import pytest

from conclave.retention import marks
from tests.support.archived import DAY, USERS, Store
from tests.support.cleaner import Cleaner

pytestmark = pytest.mark.system


@pytest.fixture
def store(tmp_path: Path, cleaner: Cleaner) -> Store:
    return Store(tmp_path, cleaner)


def purge(store: Store, group_key: int) -> None:
    """Hide what a group has by now."""
    with store.opened() as connection:
        marks.hide_before(connection, group_key, store.now)


def receipts(store: Store) -> set[tuple[int, str, int, int, int]]:
    """Return group, rule, messages, the greatest number and the newest time of the receipts, each rule added up."""
    keys = {group_id: key for key, group_id in store.group_ids.items()}
    rows = store.query("SELECT group_id, rule, sum(messages), max(last_seq), max(newest) FROM receipts GROUP BY 1, 2")
    assert store.query("SELECT count(*) FROM erasures") == [(0,)]
    return {(keys[group_id], *rest) for group_id, *rest in rows}


@pytest.mark.parametrize("point", ["part_erased", "erased_by_keys", "parts_dropped", "rewritten"])
def test_what_a_run_that_failed_has_erased_from_the_archive_has_its_receipt(store: Store, point: str) -> None:
    sent_at = store.now
    timed, purged, left, kept = store.add_group(20 * DAY), store.add_group(), store.add_group(), store.add_group()
    for group_key in (timed, purged, kept):
        store.send(group_key, 3)
    store.send(left, 2)
    store.send(left, 2, sender=USERS[1])
    store.now += 8 * DAY
    assert store.run()["archived"] == 13
    store.now += 13 * DAY
    purge(store, purged)
    store.delete_account(USERS[1])
    assert store.try_run(f"archive.{point}=io")["error"], f"{point} was reached"
    store.run()
    expected = {(timed, "expired", 3), (purged, "expired", 3), (left, "deleted_account", 2)}
    numbers = {timed: 3, purged: 3, left: 4}
    assert receipts(store) == {(*each, numbers[each[0]], sent_at) for each in expected}
    store.expect_served({(kept, seq) for seq in (1, 2, 3)} | {(left, seq) for seq in (1, 2)})


@pytest.mark.parametrize("point", ["verified", "group_switched", "finished"])
def test_what_is_in_both_tiers_as_it_is_erased_has_one_receipt(store: Store, point: str) -> None:
    sent_at = store.now
    purged, deleted, left, kept = (store.add_group() for _ in range(4))
    for group_key in (purged, deleted, kept):
        store.send(group_key, 3)
    store.send(left, 3, sender=USERS[1])
    store.now += 8 * DAY
    assert store.try_run(f"archive.{point}=io")["error"], f"{point} was reached"
    purge(store, purged)
    store.delete_group(deleted)
    store.delete_account(USERS[1])
    store.run()
    expected = {(purged, "expired"), (deleted, "deleted_group"), (left, "deleted_account")}
    assert receipts(store) == {(*each, 3, 3, sent_at) for each in expected}
    store.expect_served({(kept, seq) for seq in (1, 2, 3)})


def test_a_restored_group_that_is_deleted_has_one_receipt(store: Store) -> None:
    deleted, kept = store.add_group(), store.add_group()
    for group_key in (deleted, kept):
        store.send(group_key, 3)
    sent_at = store.now
    store.now += 8 * DAY
    assert store.run()["archived"] == 6
    assert store.restore(deleted) == {"restored": 3}
    store.delete_group(deleted)
    store.run()
    assert receipts(store) == {(deleted, "deleted_group", 3, 3, sent_at)}
