"""What a transaction announces: handed on in one place, with its commit or not at all."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from conclave.events import Announcement, Event, News, SessionEnded
from conclave.store.engine import news, sqlite
from conclave.store.engine.database import Database
from tests.support import stores

ALICE = b"a" * 16
TOLD = Announcement(frozenset({ALICE}), Event("group_deleted", {"group_id": b"g" * 16}))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    stores.prepare(tmp_path / "hot.db")
    return tmp_path / "hot.db"


@pytest.fixture
def connection(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite.connect(path)) as opened:
        yield opened


def tell(connection: sqlite3.Connection) -> None:
    news.announce(connection, TOLD.recipients, TOLD.event.name, **TOLD.event.values)
    news.end_streams(connection, ALICE, 7)


def fail(connection: sqlite3.Connection) -> None:
    tell(connection)
    raise KeyError


def test_what_a_process_without_clients_announces_goes_to_the_outbox_with_its_commit(
    connection: sqlite3.Connection,
) -> None:
    with sqlite.write_transaction(connection):
        tell(connection)
    with sqlite.write_transaction(connection):
        pass
    assert news.take(connection) == [TOLD, SessionEnded(ALICE, 7)]


def test_a_transaction_that_fails_tells_nothing_nor_does_the_next_one_for_it(connection: sqlite3.Connection) -> None:
    with pytest.raises(KeyError), sqlite.write_transaction(connection):
        fail(connection)
    with sqlite.write_transaction(connection):
        pass
    assert news.is_empty(connection)


async def test_the_server_tells_its_own_streams_and_what_others_have_left_but_nothing_that_was_undone(
    path: Path,
) -> None:
    with closing(sqlite.connect(path)) as other, sqlite.write_transaction(other):
        tell(other)
    published: list[News] = []
    store = await Database.open(path, published.extend)
    try:
        with pytest.raises(KeyError):
            await store.write(fail)
        assert published == []
        await store.write(news.forward)
        assert published == [TOLD, SessionEnded(ALICE, 7)]
        assert await store.read(news.is_empty)
        await store.write(tell)
        assert published == [TOLD, SessionEnded(ALICE, 7)] * 2
    finally:
        await store.close()
