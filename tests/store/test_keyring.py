"""The key file at the start of a server."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from conclave import failpoints
from conclave.clock import FakeClock
from conclave.config.settings import KEYS
from conclave.keys import store as keys_store
from conclave.keys.store import KeyStore
from conclave.store import keyring, message_keys
from conclave.store.engine import sqlite
from conclave.store.engine.faults import StoreError
from spark import run
from spark.environment import RunEnvironment
from tests.support.archived import DAY
from tests.support.keyed import KeyedBackups, clean


def moved_to_the_archive(connection: sqlite3.Connection, key: int) -> None:
    """Do to the database what the end of a run's move does."""
    with sqlite.write_transaction(connection, patience=0):
        connection.execute(
            "INSERT INTO archive_parts SELECT group_key, 0, 0, min(sequence_num), max(sequence_num), 0, 0, count(*), 0,"
            " 0 FROM messages WHERE group_key = ?",
            (key,),
        )
        connection.execute("DELETE FROM messages WHERE group_key = ?", (key,))


def test_what_moves_while_a_start_settles_the_keys_keeps_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is ending has moved messages after their parts were read, and before their rows are."""
    store = KeyedBackups(tmp_path)
    store.begin_keys()
    key = store.add_group()
    store.send(key, 5)
    database = store.config.database
    connect, tries = sqlite.connect, list[str]()

    def spied(path: Path) -> sqlite3.Connection:
        found = connect(path)
        found.set_trace_callback(watch)
        return found

    def watch(statement: str) -> None:
        if statement.startswith("SELECT sequence_num FROM messages") and not tries:
            tries.append(statement)
            with closing(connect(database)) as other:
                try:
                    moved_to_the_archive(other, key)
                except sqlite3.OperationalError as error:
                    tries.append(str(error))

    with closing(connect(database)) as connection:
        message_keys.note_unsettled(connection, 1)
    monkeypatch.setattr(sqlite, "connect", spied)
    keys = keyring.open_to_serve(database, store.config.keys_path)
    assert keys
    with closing(keys):
        assert None not in keys.keys(store.group_ids[key], range(1, 6))
    assert tries[1:] == ["database is locked"], "the run waits"
    with closing(connect(database)) as connection:
        moved_to_the_archive(connection, key)
        state = message_keys.state(connection)
    assert state
    assert state.is_settled
    with closing(KeyStore(store.config.keys_path)) as keys:
        assert None not in keys.keys(store.group_ids[key], range(1, 6))


def test_an_older_key_file_does_not_go_on_beside_a_newer_copy(tmp_path: Path) -> None:
    """With enough changes of its own it would take the copy's place, and with it what only that has.

    The database may be as old as the key file: both were brought back from an image of the machine.
    """
    store, copy = KeyedBackups(tmp_path), tmp_path / "copy"
    store.begin_keys()
    store.send(store.add_group(), 1)
    path, database = store.config.keys_path, store.config.database
    older = path.read_bytes()
    with closing(sqlite.connect(database)) as connection:
        connection.execute("VACUUM INTO ?", (str(tmp_path / "image.db"),))
    store.send(store.add_group(), 1)
    copy.mkdir()
    with closing(KeyStore(path)) as keys:
        keys.copy(copy / KEYS)
    path.write_bytes(older)
    for opens in (keyring.open_to_serve, keyring.open_to_read):
        with pytest.raises(StoreError, match="is older than the database, which has 1 messages without keys"):
            opens(database, path)
    database.write_bytes((tmp_path / "image.db").read_bytes())
    for accepts_older in (False, True):
        with pytest.raises(StoreError, match="is older than the copy"):
            keyring.open_to_serve(database, path, [copy], accepts_older=accepts_older)
    for brought in ((copy / KEYS).read_bytes(), older):
        path.write_bytes(brought)
        keyring.open_to_serve(database, path, [copy]).close()
        (copy / KEYS).unlink(missing_ok=True)


def test_a_key_file_that_was_changed_and_copied_since_it_was_opened_is_not_older_than_its_copy(tmp_path: Path) -> None:
    """As by a server that draws keys and renews the copy, while a command opens both."""
    store, copy = KeyedBackups(tmp_path), tmp_path / "copy"
    store.begin_keys()
    path = store.config.keys_path
    with closing(KeyStore(path)) as opened, closing(KeyStore(path)) as server:
        store.send(store.add_group(), 1)
        copy.mkdir()
        assert server.copy(copy / KEYS) > opened.serial, "it has not heard of that yet"
        keyring._require_newest(path, opened, [copy])


def test_a_key_file_that_gets_back_destroyed_keys_is_refused_and_gives_them_up_once_it_is_accepted(
    tmp_path: Path,
) -> None:
    store = KeyedBackups(tmp_path)
    store.begin_keys()
    fading, kept = store.add_group(DAY), store.add_group()
    for group in (fading, kept):
        store.send(group, 3)
    path, database = store.config.keys_path, store.config.database
    older, lost = path.read_bytes(), {(fading, number) for number in range(1, 4)}
    store.now += 2 * DAY
    clean(store)
    assert not store.derivable(path) & lost
    path.write_bytes(older)
    assert store.derivable(path) >= lost
    store.now += DAY
    with closing(RunEnvironment(store.config, FakeClock(store.now))) as engine:
        assert "is older than the database, which has 0 messages without keys" in run.clean_up(engine).error
    with pytest.raises(StoreError, match="is older than the database"):
        store.start()
    keyring.open_to_serve(database, path, accepts_older=True).close()
    assert store.derivable(path) == {(kept, number) for number in range(1, 4)}
    store.expect_lost(lost, path.parent)
    clean(store)
    before = path.read_bytes()
    store.start()
    assert path.read_bytes() == before, "once is enough"


def test_a_start_that_fails_while_an_older_key_file_gives_up_keys_leaves_it_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some of its changes are enough for the number of the former's last one."""
    store = KeyedBackups(tmp_path)
    store.begin_keys()
    groups = [store.add_group(DAY) for _ in range(4)]
    for group in groups:
        store.send(group, 1)
    path = store.config.keys_path
    older, lost = path.read_bytes(), {(group, 1) for group in groups}
    store.now += 2 * DAY
    clean(store)
    path.write_bytes(older)
    monkeypatch.setattr(keys_store, "BLOCKS_PER_WRITE", 1)
    failpoints.arm("keys.appended=io@2")
    try:
        with pytest.raises(sqlite3.OperationalError, match="disk I/O error"):
            keyring.open_to_serve(store.config.database, path, accepts_older=True)
    finally:
        failpoints.arm("")
    assert store.derivable(path) & lost, "not all are lost"
    store.start()
    assert not store.derivable(path) & lost
