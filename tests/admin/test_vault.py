"""What operators are told of the vault: whether it is there and current, and whether its copies would do."""

from contextlib import closing
from pathlib import Path

import pytest

from conclave.backup import vault as backup_vault
from conclave.cli.status import Samples, _vault
from conclave.config.settings import KEYS
from conclave.doctor import database
from conclave.doctor.findings import Level
from conclave.store.engine import sqlite
from tests.support.keyed import KeyedBackups

NONE = frozenset[tuple[str, str]]()


@pytest.fixture
def store(tmp_path: Path) -> KeyedBackups:
    return KeyedBackups(tmp_path)


def found(store: KeyedBackups) -> list[tuple[Level, str]]:
    with closing(sqlite.connect(store.config.database, readonly=True)) as connection:
        return [(each.level, each.says) for each in database.vault(connection, store.config)]


def test_doctor_tells_whether_the_vault_and_its_copies_would_do(store: KeyedBackups, tmp_path: Path) -> None:
    [(level, says)] = found(store)
    assert (level, says.partition(":")[0]) == (Level.OK, "no server has run on this database yet")
    store.begin_keys()
    store.send(store.add_group(), 3)
    (level, says), (copies, told) = found(store)
    assert (level, copies) == (Level.OK, Level.NOTE)
    assert "3 messages need them" in says
    assert told.startswith("there is no copy of the vault")
    copy = tmp_path / "copy"
    store.begin_keys(copy)
    assert found(store)[1] == (Level.WRONG, f"{copy}: the copy is missing")
    backup_vault.copy(store.config, copy)
    assert found(store)[1] == (Level.OK, f"{copy}: is an up-to-date copy")
    older = store.config.keys_path.read_bytes()
    store.send(store.add_group(), 3)
    assert found(store)[1] == (Level.WRONG, f"{copy}: is outdated: it lacks the newest changes")
    store.config.keys_path.write_bytes(older)
    assert found(store) == [(Level.WRONG, f"{store.config.vault_path}: is older than the database")]
    store.config.keys_path.rename(store.folder / "away")
    [(level, says)] = found(store)
    assert level is Level.WRONG
    assert says.endswith("no message can be read")


def test_a_copy_without_the_newest_of_the_ledger_is_late(store: KeyedBackups, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    store.begin_keys(copy)
    store.send(store.add_group(), 3)
    backup_vault.copy(store.config, copy)
    store.write_ledger()
    assert found(store)[1] == (Level.WRONG, f"{copy}: is outdated: it lacks the newest changes")


def test_a_copy_of_another_vault_is_told(store: KeyedBackups, tmp_path: Path) -> None:
    copy, other = tmp_path / "copy", tmp_path / "other"
    store.begin_keys(copy)
    other.mkdir()
    another = KeyedBackups(other)
    another.begin_keys()
    backup_vault.copy(another.config, copy)
    assert found(store)[1] == (Level.WRONG, f"{copy}: is a copy of another vault")
    (copy / KEYS).unlink()
    (copy / KEYS).mkdir()
    assert found(store)[1][0] is Level.WRONG


def test_status_says_how_many_copies_would_do() -> None:
    def told(current: int, faulty: int) -> list[tuple[str, str]]:
        samples = {frozenset({("state", "current")}): float(current), frozenset({("state", "faulty")}): float(faulty)}
        return list(_vault(Samples({"conclave_vault_copies": samples})))

    assert told(2, 0) == [("vault", "up-to-date copies: 2")]
    assert told(1, 1) == [("vault", "up-to-date copies: 1; late or missing: 1")]
    assert told(0, 0) == [("vault", "no copy: if the vault is lost, so are all messages")]
    dead = list(_vault(Samples({"conclave_archive_dead_messages": {NONE: 7.0}})))
    assert dead == [("  erased", "7 messages in the archive, space not reclaimed yet")]
    assert list(_vault(Samples())) == []
