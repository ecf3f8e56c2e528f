"""Runs of one purge job: in the archive they erase what belongs to them, and leave to other jobs what is theirs."""

from pathlib import Path

import pytest

from conclave.retention import marks
from conclave.retention.jobs import HOUSEKEEPING, Scope
from tests.support.archived import DAY, Store
from tests.support.cleaner import Cleaner

pytestmark = pytest.mark.system

HOUSE = Scope(HOUSEKEEPING, None, is_housekeeping=True)


@pytest.fixture
def store(tmp_path: Path, cleaner: Cleaner) -> Store:
    return Store(tmp_path, cleaner)


def test_what_another_job_purges_stays_in_a_part_that_a_run_rewrites_for_others(store: Store) -> None:
    """Of ``purged`` two messages are past a mark, which any run erases; more have expired, which are another job's."""
    purged, deleted, other = (store.add_group(20 * DAY) for _ in range(3))
    begin = store.now
    store.send_daily(purged, deleted, other)
    store.now += 8 * DAY
    store.run()
    store.now = begin + 21 * DAY + DAY // 2
    store.delete_group(deleted)
    with store.opened() as connection:
        marks.hide_before(connection, purged, begin + DAY // 2)
    report = store.cleaner.run(store.config, store.now, scope=HOUSE)
    assert report["deleted"]["deleted_group"] == 8
    assert report["deleted"]["expired"] == 2
    store.expect_sound()
    assert sum(row[0] for row in store.query("SELECT messages FROM receipts")) == 10
    assert store.run()["deleted"]["expired"] == 6
    store.expect_sound()
    assert sum(row[0] for row in store.query("SELECT messages FROM receipts")) == 16
