"""kill -9 where keys are copied by a backup and placed by a restore: nothing is lost, and nothing comes back."""

import shutil
from pathlib import Path

import pytest

from conclave.config.settings import KEYS
from conclave.keys.inspection import Inspection
from tests.processes.test_backup_kills import die, done, expect_whole, run
from tests.support.archived import USERS
from tests.support.failpoints import COPYING_POINTS
from tests.support.keyed import KeyedBackups, Message, clean
from tests.support.sample import some

pytestmark = pytest.mark.system

COPYING = (
    *("backup.database_taken", "backup.manifest_written", *COPYING_POINTS),
    *("keys.linked", "keys.replaced", "keys.former_overwritten", "keys.former_removed"),
)
"""Where a backup may die that also renews a copy of the vault."""

PLACING = (
    *("return.placing", "return.vault_placed", "return.database_placed"),
    *("keys.linked", "keys.replaced", "keys.former_overwritten", "keys.former_removed"),
)
"""Where a restore may die that puts a newer key file in the place of the server's own."""


@pytest.fixture
def store(tmp_path: Path) -> KeyedBackups:
    made = KeyedBackups(tmp_path)
    made.begin_keys()
    (made.folder / "conclave.toml").write_text(
        f'listen_port = 0\ndatabase_path = "{made.config.database}"\n'
        '[cleanup]\nengine = "sql"\ndisk_reserve = "0"\n[admin]\nlisten_port = 0\n'
        f'[vault]\ncopies = ["{copy_of(made)}"]\n'
    )
    return made


def copy_of(store: KeyedBackups) -> Path:
    """Where the copy of the vault is, which the commands know of."""
    return store.backups.with_name("copy")


def back_up(store: KeyedBackups) -> tuple[str | Path, ...]:
    """Return the words that make a backup, and renew the copy of the vault."""
    return "backup", store.backups, "--vault-copy", copy_of(store)


def talk(store: KeyedBackups) -> None:
    """Send to a group that stays, also as somebody who goes, and to one that goes."""
    group = store.add_group()
    for _ in range(4):
        store.send(group, 1, sender=USERS[0])
        store.send(group, 1, sender=USERS[1])


def erase_some(store: KeyedBackups) -> set[Message]:
    """Have an account deleted, and what it sent erased; return what that was."""
    before = set(store.served())
    store.delete_account(USERS[1])
    clean(store)
    gone = before - set(store.served())
    assert gone
    return gone


@pytest.mark.parametrize("point", some(COPYING, 2, "points of copying keys"))
def test_a_backup_that_dies_leaves_a_whole_copy_of_the_vault(store: KeyedBackups, point: str) -> None:
    talk(store)
    done(store, *back_up(store))
    [first] = expect_whole(store)
    gone = erase_some(store)
    talk(store)
    alive = store.served()
    die(store, point, *back_up(store))
    assert store.served() == alive
    assert not Inspection(copy_of(store) / KEYS).flaws
    for number, each in enumerate(expect_whole(store)):
        store.elsewhere = store.backups.with_name(f"there{number}")
        there, _ = store.restored(each)
        early = {key: body for key, body in alive.items() if key[0] == 1}
        assert there.served() == (early if each == first else alive)
    done(store, *back_up(store))
    assert store.derivable(copy_of(store) / KEYS) == store.derivable(store.config.keys_path) == set(alive)
    store.expect_lost(gone, store.backups, copy_of(store), store.folder)
    assert done(store, "verify-erasure", "--read-only", "--copies", str(store.backups))


@pytest.mark.parametrize("point", some(PLACING, 2, "points of placing keys"))
def test_after_a_restore_that_dies_the_next_one_serves_all_and_the_keys_settle(store: KeyedBackups, point: str) -> None:
    talk(store)
    older = store.config.keys_path.read_bytes()
    gone = erase_some(store)
    talk(store)
    alive = store.served()
    done(store, *back_up(store))
    [backup] = expect_whole(store)
    former = store.folder / "former"
    former.mkdir()
    for path in (*store.folder.glob("hot.db*"), store.config.data):
        if path.exists():
            shutil.move(path, former / path.name)
    store.config.keys_path.write_bytes(older)  # brought back by somebody, and not the newest
    die(store, point, "restore", backup)
    shutil.rmtree(former)
    assert run(store, "serve").returncode == 1
    assert "restored to" in done(store, "restore", backup)
    assert store.served() == alive
    store.start()
    assert store.served() == alive
    assert store.derivable(store.config.keys_path) == set(alive)
    store.expect_lost(gone, store.folder, store.backups, copy_of(store))
