"""A database and an archive that are not of one time: one of them came from a backup. They say so, and nothing goes."""

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from conclave.actions.replay import replay
from conclave.keys.inspection import Inspection
from conclave.retention.policy import KEEP
from conclave.store import unreadable
from tests.support.archived import DAY, USERS, Store
from tests.support.cleaner import Cleaner
from tests.support.sample import some

pytestmark = pytest.mark.system

NEWER = "is newer than the database; if one of them was restored"
OLDER = "is older than the database; if one of them was restored"


@pytest.fixture
def store(tmp_path: Path, cleaner: Cleaner) -> Store:
    return Store(tmp_path, cleaner)


class Backup:
    """Copies of a store's database and archive, as they were when it was made."""

    def __init__(self, store: Store, name: str = "backup") -> None:
        self._store = store
        self._folder = store.folder / name
        self._folder.mkdir()
        with (
            closing(sqlite3.connect(store.config.database)) as connection,
            closing(sqlite3.connect(self._folder / "hot.db")) as copy,
        ):
            connection.backup(copy)
        shutil.copytree(store.config.archive_path, self._folder / "archive")

    def restore_database(self) -> None:
        for left in self._store.folder.glob("hot.db*"):
            left.unlink()
        shutil.copy(self._folder / "hot.db", self._store.config.database)
        with self._store.opened() as connection:  # as a restore does
            unreadable.remove_all(connection, Inspection(self._store.config.keys_path))
            connection.execute("UPDATE ledger_state SET written = 0")  # these tests are about the archive
        self._store.config.ledger_path.unlink(missing_ok=True)

    def restore_archive(self) -> None:
        shutil.rmtree(self._store.config.archive_path)
        shutil.copytree(self._folder / "archive", self._store.config.archive_path)


def test_a_database_from_an_older_backup_is_served_and_leaves_a_newer_archive_alone(store: Store) -> None:
    group_key, other = store.add_group(), store.add_group()
    store.send(group_key, 3)
    store.send(other, 3)
    store.now += 8 * DAY
    store.send(group_key, 3)
    store.run()
    backup = Backup(store)
    store.now += 8 * DAY
    store.set_expiry(other, 5 * DAY)
    assert store.run()["archived"] == 3
    backup.restore_database()
    store.now += DAY
    store.expect_served({key for key in store.made if key[0] == group_key})
    assert NEWER in store.try_run("")["error"]
    store.expect_served({key for key in store.made if key[0] == group_key})
    backup.restore_archive()
    store.expect_served({key for key in store.made if key[0] == group_key})  # the keys of the others are destroyed
    older = Backup(store, "older")
    assert store.run()["archived"] == 3
    store.expect_served({key for key in store.made if key[0] == group_key})
    store.expect_sound()
    older.restore_archive()
    store.set_expiry(other, 5 * DAY)
    assert OLDER in store.try_run("")["error"]


def test_what_is_made_after_a_restore_is_archived_and_expires_as_anything_else(store: Store) -> None:
    """Its numbers are far greater than those before."""
    before = store.add_group()
    store.send(before, 3)
    with store.opened() as connection:
        replay(connection, store.config.ledger_path, store.now, accept_incomplete=True)
    kept, fading = store.add_group(), store.add_group(20 * DAY)
    for group_key in (before, kept, fading):
        store.send(group_key, 3)
    assert max(number for _, number in store.made) > 2**32
    store.now += 8 * DAY
    assert store.run()["archived"] == 12
    store.expect_served(set(store.made))
    store.now += 13 * DAY
    assert store.run()["deleted"]["expired"] == 3
    store.expect_served({key for key in store.made if key[0] != fading})
    store.expect_sound()


def expire_some(store: Store, kept: int, timed: int) -> None:
    store.now += DAY // 2
    store.set_expiry(kept, 9 * DAY)
    assert store.run()["deleted"]["expired"] == 3


def expire_a_whole_part(store: Store, kept: int, timed: int) -> None:
    store.now += 13 * DAY
    assert store.run()["deleted"]["expired"] == 3


def delete_an_account(store: Store, kept: int, timed: int) -> None:
    store.delete_account(USERS[1])
    assert store.run()["deleted"]["deleted_account"] == 2


def restore_a_group(store: Store, kept: int, timed: int) -> None:
    assert store.restore(kept)["restored"] == 5
    store.run(archive=replace(store.config.archive, after=KEEP))


CHANGES: tuple[Callable[[Store, int, int], None], ...] = (
    expire_some,
    expire_a_whole_part,
    delete_an_account,
    restore_a_group,
)


Filled = tuple[Store, int, int]
"""A store, a group whose messages are kept, and one whose messages have a time."""


@pytest.fixture
def filled(filled_once: Filled, tmp_path: Path) -> Filled:
    store, kept, timed = filled_once
    return store.copied(tmp_path / "store"), kept, timed


@pytest.fixture(scope="module")
def filled_once(tmp_path_factory: pytest.TempPathFactory, cleaner: Cleaner) -> Filled:
    store = Store(tmp_path_factory.mktemp("filled"), cleaner)
    kept, timed = store.add_group(), store.add_group(20 * DAY)
    store.send(kept, 3)
    store.now += DAY
    store.send(kept, 2, sender=USERS[1])
    store.send(timed, 3)
    store.now += 8 * DAY
    store.send(kept, 1)
    store.send(timed, 1)
    assert store.run()["archived"] == 8
    return store, kept, timed


@pytest.mark.parametrize("change", some(CHANGES, 1, "changes of a backup"), ids=lambda change: change.__name__)
def test_a_database_from_before_a_change_of_the_archive_says_so_although_nothing_moved_since(
    filled: Filled, change: Callable[[Store, int, int], None]
) -> None:
    store, kept, timed = filled
    backup, before = Backup(store), store.served()
    change(store, kept, timed)
    later, after = Backup(store, "later"), store.table()
    backup.restore_database()
    store.set_expiry(kept, DAY)  # so that the run has to look
    store.now += DAY
    assert NEWER in store.try_run("")["error"]
    assert NEWER in store.verify()["error"]
    assert NEWER in store.restore(timed)["error"]
    assert NEWER in store.cleaner.dry_run(store.config, store.now).get("error", "")
    assert store.table() == after, "nothing was touched"
    backup.restore_database()
    backup.restore_archive()
    store.now -= DAY
    assert "the next run settles it first" in store.verify()["error"]
    store.run()
    assert store.verify()["differences"] == []
    assert set(store.served()) <= set(before)
    store.set_expiry(kept, DAY)
    store.now += DAY
    store.run()
    store.expect_sound()
    later.restore_archive()
    store.set_expiry(timed, DAY)
    assert store.try_run("")["error"], "the branch that was given up does not belong here any more"


@pytest.mark.parametrize("change", CHANGES[1:2], ids=lambda change: change.__name__)
def test_an_archive_from_before_a_change_says_so_although_nothing_moved_since(
    filled: Filled, change: Callable[[Store, int, int], None]
) -> None:
    store, kept, timed = filled
    backup = Backup(store)
    change(store, kept, timed)
    backup.restore_archive()
    store.delete_group(kept)
    store.delete_group(timed)
    store.send(store.add_group(), 3)
    store.now += 8 * DAY
    before = store.table()
    assert OLDER in store.try_run("")["error"]
    assert OLDER in store.verify()["error"]
    assert store.table() == before


def test_what_a_killed_run_has_changed_does_not_make_the_database_look_older(filled: Filled) -> None:
    store, kept, _ = filled
    store.now += 12 * DAY + DAY // 4
    store.set_expiry(kept, 21 * DAY)
    for point in ("archive.turn_begun", "archive.parts_dropped", "archive.rewritten"):
        assert store.try_run(f"{point}=io")["error"] == "OperationalError: disk I/O error", point
    store.run()
    store.expect_sound()


def test_copies_stay_where_the_archive_no_longer_has_what_they_are_copies_of(filled: Filled) -> None:
    store, kept, _ = filled
    backup = Backup(store)
    store.send(kept, 300)
    store.now += 8 * DAY
    assert store.try_run("archive.copies_chunk_deleted=io@2")["error"], "the point was reached"
    backup.restore_archive()
    before = store.query("SELECT count(*) FROM messages")
    assert before != [(0,)]
    assert OLDER in store.try_run("")["error"]
    assert store.query("SELECT count(*) FROM messages") == before
