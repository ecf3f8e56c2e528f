"""What other processes have to tell: it comes out as it went in, once, and not out of its time."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from conclave.config.settings import Config
from conclave.events import Announcement, Event, News, SessionEnded
from conclave.store.engine import news, sqlite
from tests.conftest import StartServer
from tests.support import stores
from tests.support.client import Client
from tests.support.listening import listening

ALICE, BOB, GROUP = b"a" * 16, b"b" * 16, b"g" * 16


@pytest.fixture
def connection(tmp_path: Path) -> sqlite3.Connection:
    stores.prepare(tmp_path / "hot.db")
    return sqlite.connect(tmp_path / "hot.db")


def test_what_goes_in_comes_out_once_and_in_order(connection: sqlite3.Connection) -> None:
    given: list[News] = [
        SessionEnded(ALICE, 7),
        Announcement(frozenset({ALICE, BOB}), Event("group_update", {"group_id": GROUP, "update_type": "commit"})),
        Announcement(frozenset({BOB}), Event("member_removed", {"group_id": GROUP, "removed_user_id": ALICE})),
        SessionEnded(ALICE, 8),
    ]
    to_nobody = Announcement(frozenset(), Event("group_deleted", {"group_id": GROUP}))
    with closing(connection):
        news.add_all(connection, [*given, to_nobody])
        assert not news.is_empty(connection)
        assert news.take(connection) == given
        assert news.is_empty(connection)
        assert news.take(connection) == []


async def test_what_was_told_while_no_server_ran_is_heard_after_the_start(
    config: Config, start_server: StartServer
) -> None:
    async with start_server(config) as server:
        alice = await server.user("alice")
    with closing(sqlite.connect(config.database)) as connection, sqlite.write_transaction(connection):
        news.announce(connection, [bytes.fromhex(alice.user_id.replace("-", ""))], "group_deleted", group_id=GROUP)
    async with (
        start_server(config) as server,
        listening(Client(server.http, server.url, alice.token, alice.user_id)) as events,
    ):
        assert (await events.next())[0] == "group_deleted"
