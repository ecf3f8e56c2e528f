"""The archive: older messages move there, and every rule reaches them there, down to the bytes on disk."""

from pathlib import Path

import pytest
from deltalake import DeltaTable

from conclave.retention import marks
from tests.support.archived import DAY, USERS, Store
from tests.support.cleaner import Cleaner
from tests.support.failpoints import ARCHIVE_POINTS
from tests.support.sample import some

pytestmark = pytest.mark.system


@pytest.fixture
def store(tmp_path: Path, cleaner: Cleaner) -> Store:
    return Store(tmp_path, cleaner)


def keys(group_key: int, numbers: range) -> set[tuple[int, int]]:
    return {(group_key, number) for number in numbers}


def test_a_dry_run_counts_each_message_where_the_run_puts_it(store: Store) -> None:
    """What the run deletes from the database first does not move."""
    lasting, timed = store.add_group(), store.add_group(20 * DAY)
    for group_key in (lasting, timed):
        store.send(group_key, 5)
    store.now += 10 * DAY
    for group_key in (lasting, timed):
        store.send(group_key, 4)
    store.now += 12 * DAY
    with store.opened() as connection:
        marks.hide_before(connection, lasting, store.now - 15 * DAY)
    told, done = store.dry_run(), store.run()
    assert (told["deleted"]["expired"], told["archived"]) == (10, 8)
    assert (done["deleted"], done["archived"]) == (told["deleted"], told["archived"])


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


def test_whole_parts_go_with_their_files_when_all_in_them_has_expired(store: Store) -> None:
    groups = [store.add_group(20 * DAY) for _ in range(3)]
    store.send_daily(*groups)
    store.now += 8 * DAY
    assert store.run()["archived"] == 24
    everything = set(store.made)
    store.now += 10 * DAY  # of four days, two are over
    assert store.run()["deleted"]["expired"] == 12
    gone = {key for key in everything if key[1] <= 4}
    store.expect_served(everything - gone)
    store.expect_erased(gone)
    store.expect_sound()
    operations = [entry["operation"] for entry in DeltaTable(str(store.config.archive_path)).history()]
    assert "MERGE" not in operations, "whole days of one class need no rewriting"
    assert len(list(store.config.archive_path.glob("lifetime=*/span=*/*.parquet"))) == 2
    store.now += 10 * DAY
    store.run()
    store.expect_served(set())
    store.expect_erased(everything)
    assert store.query("SELECT count(*) FROM archive_senders") == [(0,)]
    assert not list(store.config.archive_path.glob("lifetime=*")), "and no folder is left"


def test_a_policy_that_changes_is_followed_row_by_row(store: Store) -> None:
    kept, changed, lengthened = (store.add_group(expiry) for expiry in (-1, -1, 30 * DAY))
    store.send_daily(kept, changed, lengthened)
    store.now += 10 * DAY
    store.run()
    store.set_expiry(changed, 12 * DAY)
    store.set_expiry(lengthened, -1)
    hidden = keys(changed, range(1, 5))  # 14 and 13 days old
    store.expect_served(set(store.made) - hidden)
    assert store.run()["deleted"]["expired"] == len(hidden)
    store.expect_served(set(store.made) - hidden)
    store.expect_erased(hidden)
    store.expect_sound()
    store.now += 40 * DAY
    assert store.run()["deleted"]["expired"] == 4, "what is no longer timed has stayed"
    store.expect_served(keys(kept, range(1, 9)) | keys(lengthened, range(1, 9)))


def test_archived_messages_of_a_group_that_becomes_delete_after_fetch_go_when_all_have_fetched(store: Store) -> None:
    kept, fetched = store.add_group(), store.add_group()
    for group_key in (kept, fetched):
        store.send(group_key, 6)
    store.now += 8 * DAY
    store.run()
    store.set_expiry(fetched, 0)
    assert store.run()["deleted"]["fetched"] == 0
    store.fetch_all(fetched)
    assert store.run()["deleted"]["fetched"] == 6
    store.expect_served(keys(kept, range(1, 7)))
    store.expect_erased(keys(fetched, range(1, 7)))
    store.expect_sound()


def test_a_deleted_group_leaves_nothing_in_the_archive(store: Store) -> None:
    kept, deleted, alone = store.add_group(), store.add_group(), store.add_group(90 * DAY)
    for group_key in (kept, deleted, alone):
        store.send(group_key, 6)
    store.now += 8 * DAY
    store.send(deleted, 2)
    store.run()
    store.delete_group(deleted)
    store.delete_group(alone)
    assert store.run()["deleted"]["deleted_group"] == 14
    store.expect_served(keys(kept, range(1, 7)))
    store.expect_erased(keys(deleted, range(1, 9)) | keys(alone, range(1, 7)))
    store.expect_sound()
    assert store.query("SELECT count(*) FROM tombstones") == [(0,)]


def test_a_deleted_account_leaves_only_its_commits_in_the_archive(store: Store) -> None:
    first, second = store.add_group(), store.add_group(90 * DAY)
    for group_key in (first, second):
        store.send(group_key, 2, sender=USERS[1])
        store.send(group_key, 1, sender=USERS[1], is_commit=True)
        store.send(group_key, 2, sender=USERS[2])
    store.now += 8 * DAY
    store.run()
    store.delete_account(USERS[1])
    gone = keys(first, range(1, 3)) | keys(second, range(1, 3))
    store.expect_served(set(store.made) - gone)
    assert store.run()["deleted"]["deleted_account"] == 4
    store.expect_served(set(store.made) - gone)
    store.expect_erased(gone)
    store.expect_sound()
    assert store.query("SELECT count(*) FROM user_tombstones") == [(0,)]
    assert {row[0] for row in store.query("SELECT sender_id FROM archive_senders")} == {USERS[2]}


MOVING = [
    "archive.turn_noted",
    "archive.turn_begun",
    "archive.fixed",
    "archive.written",
    "archive.appended",
    "archive.verified",
    "archive.group_switched",
    "archive.group_switched=io@2",
    "archive.copies_chunk_deleted",
    "archive.copies_chunk_deleted=io@3",
    "archive.copies_deleted",
    "archive.finished",
    "archive.before_erase",
    "archive.erased",
]


IN_A_ROW = 5
"""So many failures have one store: less than a policy's time goes by meanwhile."""


ROWS = [MOVING[at : at + IN_A_ROW] for at in range(0, len(MOVING), IN_A_ROW)]


@pytest.mark.parametrize("points", [some(row, 1, f"point of {row}") for row in some(ROWS, 1, "rows of points")])
def test_a_move_that_fails_anywhere_goes_on_in_the_next_run(store: Store, points: list[str]) -> None:
    groups = [store.add_group(), store.add_group(60 * DAY)]
    archived = 0
    for point in points:
        for group_key in groups:
            store.send(group_key, 300)
        store.now += 8 * DAY
        due = len(store.made)
        assert store.try_run(point if "=" in point else f"{point}=io")["error"], f"{point} was reached"
        store.expect_served(set(store.made))
        for group_key in groups:
            store.send(group_key)
        report = store.run()
        assert report["archived"] in (0, due - archived), point
        store.expect_served(set(store.made))
        store.expect_sound()
        assert store.query("SELECT sum(message_count) FROM archive_parts") == [(due,)], point
        archived = due


def test_what_expires_between_a_crash_and_the_next_run_is_not_moved_back_to_life(store: Store) -> None:
    group_key, other = store.add_group(20 * DAY), store.add_group()
    store.send(group_key, 5)
    store.now += 5 * DAY
    store.send(group_key, 5)
    store.send(other, 5)
    store.now += 10 * DAY
    assert store.try_run("archive.appended=io")["error"]
    store.now += 6 * DAY
    report = store.run()
    gone = keys(group_key, range(1, 6))
    assert report["deleted"]["expired"] in (5, 10), "the copy in the archive may count too"
    store.expect_served(set(store.made) - gone)
    store.expect_erased(gone)
    store.expect_sound()


def test_a_batch_that_breaks_off_twice_counts_only_what_has_keys(store: Store) -> None:
    """What expires between the crashes is erased where the batch was not verified yet, and lies in the table."""
    group_key = store.add_group(20 * DAY)
    store.send(group_key, 5)
    store.now += 5 * DAY
    store.send(group_key, 5)
    store.now += 10 * DAY
    assert store.try_run("archive.appended=io")["error"]
    store.now += 6 * DAY
    assert store.try_run("archive.verified=io")["error"]
    assert store.run()["deleted"]["expired"] == 0, "they were counted by the run before"
    gone = keys(group_key, range(1, 6))
    store.expect_served(set(store.made) - gone)
    store.expect_erased(gone)
    store.expect_sound()
    assert store.query("SELECT sum(messages) FROM receipts") == [(5,)]


EXPIRING = [
    "archive.turn_noted",
    "archive.turn_begun",
    "archive.part_erased",
    "archive.erased_by_keys",
    "archive.forgotten",
    "archive.parts_dropped",
    "archive.rewritten",
    "archive.space_noted",
    "archive.before_erase",
    "archive.file_removed",
    "archive.erased",
]


def test_every_failpoint_of_the_archive_is_tried() -> None:
    tried = {point.partition("=")[0] for point in (*MOVING, *EXPIRING)}
    assert tried == set(ARCHIVE_POINTS)


def test_expiry_that_fails_anywhere_goes_on_in_the_next_run(store: Store) -> None:
    """What expires at one point has been archived by the run that followed on the point before."""
    kept = store.add_group()
    timed, changed = send_what_expires(store, kept)
    store.now += 10 * DAY
    store.run()
    gone: set[tuple[int, int]] = set()
    for point in some(EXPIRING, 2, "points of expiry"):
        store.set_expiry(changed, 9 * DAY)
        gone |= keys(timed, range(1, 6)) | keys(changed, range(1, 6))
        store.now += DAY
        timed, changed = send_what_expires(store, kept)
        store.now += 10 * DAY
        assert store.try_run(f"{point}=io")["error"], f"{point} was reached"
        store.expect_served(set(store.made) - gone)
        store.run()
        store.expect_served(set(store.made) - gone)
        store.expect_erased(gone)
        store.expect_sound()
        assert store.query("SELECT unerased FROM archive_state") == [(0,)], point


def send_what_expires(store: Store, kept: int) -> tuple[int, int]:
    """Send to a group whose messages expire after 20 days, one that is to be changed, and ``kept``; return the two."""
    timed, changed = store.add_group(20 * DAY), store.add_group()
    for group_key in (timed, kept, changed):
        store.send(group_key, 5)
    return timed, changed
