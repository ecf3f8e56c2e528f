"""What operators are told of the keys: how many copies of the key file there are, and how old the newest is."""

from contextlib import closing
from pathlib import Path

import pytest
from conclave.doctor.keys import keys

from conclave.admin.sizes import _of_store, _there
from conclave.cli.status import Samples, _keys
from conclave.config.settings import Config
from conclave.doctor.findings import Level
from conclave.store.engine import sqlite
from tests.support.keyed import KeyedBackups

NONE = frozenset[tuple[str, str]]()


@pytest.fixture
def store(tmp_path: Path) -> KeyedBackups:
    return KeyedBackups(tmp_path)


def found(store: KeyedBackups, config: Config | None = None) -> list[tuple[str, Level]]:
    with closing(sqlite.connect(store.config.database, readonly=True)) as connection:
        return [(each.says, each.level) for each in keys(connection, config or store.config, store.now)]


def test_doctor_tells_whether_there_are_keys_and_copies_of_them(store: KeyedBackups) -> None:
    [(says, level)] = found(store)
    assert (says.partition(":")[0], level) == ("no server has run on this database yet", Level.OK)
    store.begin_keys()
    store.send(store.add_group(), 3)
    (_, well), (says, level) = found(store)
    assert well is Level.OK
    assert (says.partition(" that")[0], level) == ("there is no copy of the key file", Level.NOTE)
    store.back_up()
    assert [level for _, level in found(store)] == [Level.OK, Level.OK]
    assert "3 messages are under keys" in found(store)[0][0]
    store.now += 3 * 86_400
    assert [level for _, level in found(store)] == [Level.OK, Level.NOTE]
    store.config.keys_path.rename(store.folder / "away")
    [(says, level)] = found(store)
    assert level is Level.WRONG
    assert says.endswith("no message can be read")


def test_metrics_count_the_copies_that_are_there(store: KeyedBackups) -> None:
    with closing(sqlite.connect(store.config.database, readonly=True)) as connection:
        assert _there(_of_store(connection)[1]) is None
    store.begin_keys()
    store.send(store.add_group(), 3)
    store.back_up()
    with closing(sqlite.connect(store.config.database, readonly=True)) as connection:
        copies = _of_store(connection)[1]
    assert _there(copies) == {str(store.backups / "keys"): store.now}
    (store.backups / "keys").unlink()
    assert _there(copies) == {}


def test_status_says_how_many_copies_there_are_and_how_old() -> None:
    told = Samples({"conclave_key_copies": {NONE: 2.0}, "conclave_key_copy_timestamp_seconds": {NONE: 1000.0}})
    assert list(_keys(told, 1090)) == [("keys", "2 copies, the newest of 90s ago")]
    assert list(_keys(Samples({"conclave_key_copies": {NONE: 0.0}}), 0)) == [
        ("keys", "no copy: if the key file is lost, all messages are")
    ]
    told = Samples({"conclave_key_copies": {NONE: 2.0}, "conclave_archive_dead_messages": {NONE: 7.0}})
    erased = ("  erased", "7 messages of the archive, whose space is not reclaimed yet")
    assert list(_keys(told, 0)) == [("keys", "2 copies"), erased]
    assert list(_keys(Samples(), 0)) == []
