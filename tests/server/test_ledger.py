"""The server and the purge ledger: told at once, red but never in the way, and read before anybody is served."""

import asyncio
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from conclave import app_keys
from conclave.actions.command_runner import CommandRunner, CommandRunnerError
from conclave.actions.replay import NUMBERS, replay
from conclave.clock import FakeClock
from conclave.config.settings import Config
from conclave.health import background
from conclave.health.parts import HealthPart
from conclave.server import vault_duty
from conclave.store.engine import sqlite
from conclave.store.engine.faults import StoreError
from conclave.store.ledger import book, changes
from conclave.store.ledger.book import LedgerEntry
from conclave.store.ledger.changes import drain
from spark.environment import RunEnvironment
from spark.run import clean_up
from tests.conftest import Running, StartServer
from tests.support import ledgers
from tests.support.cleaner import Cleaner
from tests.support.client import PASSWORD, Client, expect
from tests.support.server import until

DAY = 86_400


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write to the ledger, and try again, ten times a second."""
    monkeypatch.setattr(vault_duty, "LEDGER_INTERVAL_SECONDS", 0.1)
    monkeypatch.setattr(background, "RETRY_SECONDS", 0.1)


@pytest.fixture
def config(config: Config) -> Config:
    config.data.mkdir(exist_ok=True)
    return replace(config, cleanup=replace(config.cleanup, engine="sql"))


async def told(server: Running) -> None:
    """Wait until nothing is left to tell."""

    async def nothing_waits() -> bool:
        return await server.query("SELECT 1 FROM ledger_changes") == []

    await until(nothing_waits)


async def health(server: Running, *, red: bool) -> str:
    """Wait until the part of health is as it should be, and return what it says."""

    async def is_so() -> bool:
        return (HealthPart.LEDGER in server.app[app_keys.HEALTH].faults) is red

    await until(is_so)
    return server.app[app_keys.HEALTH].faults.get(HealthPart.LEDGER, "")


def entries(config: Config, kind: str) -> list[LedgerEntry]:
    return [each for each in book.entries(config.ledger_path, 0) if each.kind == kind]


async def friends(server: Running) -> tuple[Client, Client, str]:
    """Two users in a group with a message."""
    alice, bob = await server.users("alice", "bob")
    group = await alice.create_group("friends")
    await bob.join(group)
    await alice.send(group, b"hello")
    return alice, bob, group


async def test_what_ends_is_told_while_the_server_runs(running: Running) -> None:
    _, bob, group = await friends(running)
    await bob.leave(group)
    await told(running)
    assert [each.state for each in entries(running.config, "member")] == [None]
    assert running.app[app_keys.HEALTH].faults == {}


async def test_what_ends_last_is_told_when_the_server_stops(start_server: StartServer, config: Config) -> None:
    async with start_server(config) as server:
        _, bob, group = await friends(server)
        await bob.leave(group)
    assert [each.state for each in entries(config, "member")] == [None]
    assert entries(config, "alive")


async def test_a_copy_put_in_place_by_hand_is_not_served_as_it_is(start_server: StartServer, config: Config) -> None:
    copy = config.database.with_name("copy.db")
    async with start_server(config) as server:
        alice, bob, group = await friends(server)
        with closing(sqlite.connect(config.database)) as connection:
            connection.execute("VACUUM INTO ?", (str(copy),))
        await alice.act("remove", group, bob)
        lost = await alice.send(group, b"lost")
        other = await bob.create_group("other")
        await bob.post(f"/groups/{other}/delete")
    for suffix in ("-wal", "-shm"):
        config.database.with_name(config.database.name + suffix).unlink(missing_ok=True)
    shutil.copy(copy, config.database)
    async with start_server(config) as server:
        for client, name in ((alice, "alice"), (bob, "bob")):
            client.url, client.http = server.url, server.http
            await expect(client.get("/me"), 401, 202)
            await client.login(name)
        await expect(bob.fetch(group), 401, 400)
        assert [each.body for each in await alice.fetch(group)] == [b"hello"]
        assert await alice.send(group, b"new") > lost
        assert server.app[app_keys.HEALTH].faults == {}
    async with start_server(config) as server:
        alice.url, alice.http = server.url, server.http
        assert len(await alice.fetch(group)) == 2, "no second replay: the session lives"


async def test_a_copy_put_in_place_by_hand_is_served_without_the_keys_of_what_was_lost_with_the_database(
    start_server: StartServer, config: Config
) -> None:
    """A later backup may still have the bodies. A proof must see that their keys are gone."""
    copy = config.database.with_name("copy.db")
    async with start_server(config) as server:
        alice, bob, group = await friends(server)
        with closing(sqlite.connect(config.database)) as connection:
            connection.execute("VACUUM INTO ?", (str(copy),))
        lost = await alice.send(group, b"lost")
        other = await alice.create_group("other")
        await alice.send(other, b"lost too")
        await bob.leave(group)
    put(config, copy)
    async with start_server(config) as server:
        keys = server.app[app_keys.STORE].open_keys()
        assert keys.have_keys(UUID(group).bytes, [lost - 1, lost]) == [True, False]
        assert keys.have_keys(UUID(other).bytes, [1]) == [False]
        assert await server.query("SELECT settled FROM key_state") == [(1,)]


async def test_a_run_that_tells_the_ledger_of_changes_while_the_server_starts_makes_no_copy_of_the_database(
    start_server: StartServer, config: Config, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with start_server(config) as server:
        alice, bob, group = await friends(server)
    tip = book.tip

    def told_meanwhile(path: Path) -> tuple[str, int] | None:
        with closing(sqlite.connect(config.database)) as connection, sqlite.write_transaction(connection):
            connection.execute("DELETE FROM members WHERE user_id = ?", (bytes.fromhex(bob.user_id.replace("-", "")),))
        drain(config.database, path, clock.now())
        return tip(path)

    monkeypatch.setattr(book, "tip", told_meanwhile)
    async with start_server(config) as server:
        alice.url, alice.http = server.url, server.http
        assert len(await alice.fetch(group)) == 1, "no session has ended"
        assert await server.query("SELECT restored FROM ledger_state") == [(0,)]
    assert [each.state for each in entries(config, "member")] == [None]


def put(config: Config, copy: Path) -> None:
    """Put a copy in the place of the database."""
    for suffix in ("-wal", "-shm"):
        config.database.with_name(config.database.name + suffix).unlink(missing_ok=True)
    shutil.copy(copy, config.database)


async def test_no_command_changes_a_copy_before_it_has_learnt_what_it_must_not_bring_back(
    start_server: StartServer, config: Config, clock: FakeClock
) -> None:
    """What it changed would count as what the copy has to learn."""
    copy = config.database.with_name("copy.db")
    async with start_server(config) as server:
        bob = await server.user("bob")
    shutil.copy(config.database, copy)
    async with start_server(config) as server:
        await Client(server.http, server.url, bob.token, bob.user_id).post("/delete-account", password=PASSWORD)
        await told(server)
    put(config, copy)
    outside = CommandRunner(config, clock)
    with pytest.raises(CommandRunnerError, match=r"to which the deletions in .* have not been applied yet"):
        outside.write(changes.ledger_state)
    async with start_server(config) as server:
        assert await server.query("SELECT 1 FROM users") == []
    outside.write(changes.ledger_state)


async def test_a_database_that_was_given_up_does_not_lose_what_ended_only_on_the_restored_one(
    start_server: StartServer, config: Config
) -> None:
    """A group of members who came after the backup went with the others, who left: its keys too, in that vault."""
    copy, own = config.database.with_name("copy.db"), config.database.with_name("own.db")
    async with start_server(config) as server:
        alice, bob, group = await friends(server)
        with closing(sqlite.connect(config.database)) as connection:
            connection.execute("VACUUM INTO ?", (str(copy),))
        [carol] = await server.users("carol")
        await carol.join(group)
        for client in (alice, bob):
            await client.leave(group)
        await carol.send(group, b"mine")
    shutil.copy(config.database, own)
    keys = config.keys_path.read_bytes()
    put(config, copy)
    async with start_server(config) as server:
        assert await server.query("SELECT 1 FROM groups") == []
    put(config, own)
    config.keys_path.write_bytes(keys)
    with pytest.raises(StoreError, match=r"an older backup was restored and used since.*; see docs/operations/vault"):
        async with start_server(config):
            pass
    async with start_server(config, accepts_older=True) as server:
        carol.url, carol.http = server.url, server.http
        await carol.login("carol")
        assert [each.body for each in await carol.fetch(group)] == [b"hello", b"mine"]


async def test_a_database_goes_on_after_a_backup_was_only_tried_out(start_server: StartServer, config: Config) -> None:
    copy = config.database.with_name("copy.db")
    async with start_server(config) as server:
        alice, _, group = await friends(server)
        with closing(sqlite.connect(config.database)) as connection:
            connection.execute("VACUUM INTO ?", (str(copy),))
    with closing(sqlite.connect(copy)) as connection:
        replay(connection, config.ledger_path, 0)
    [restore] = entries(config, "restore")
    begun = (restore.state or {})["from"]
    for _ in range(2):
        async with start_server(config) as server:
            alice.url, alice.http = server.url, server.http
            assert len(await alice.fetch(group)) == 1, "no session has ended"
            assert await server.query("SELECT restored FROM ledger_state") == [(1,)]
            await told(server)
    [restore] = entries(config, "restore")
    assert restore.state is not None
    assert restore.state["from"] > begun, "that it counts for nothing"


async def test_a_copy_is_not_served_if_the_ledger_cannot_tell_all(start_server: StartServer, config: Config) -> None:
    copy = config.database.with_name("copy.db")
    async with start_server(config) as server:
        await friends(server)
    shutil.copy(config.database, copy)
    async with start_server(config):
        pass
    path = config.ledger_path
    ledgers.alter_last(path, "alive")
    shutil.copy(copy, config.database)
    with pytest.raises(StoreError, match=r"the ledger is damaged in the entry of change .*, so deletions since the"):
        async with start_server(config):
            pass
    async with start_server(config, accepts_older=True) as server:
        assert await health(server, red=False) == "", "by the operator's will"


async def test_nobody_waits_for_a_ledger_that_cannot_be_written(running: Running, cleaner: Cleaner) -> None:
    alice, bob, group = await friends(running)
    await alice.set_expiry(group, 1)
    await told(running)
    path = running.config.ledger_path
    away = path.rename(path.with_name("away"))
    path.mkdir()
    await bob.leave(group)
    assert "is not a file" in await health(running, red=True)
    assert await alice.send(group, b"still") == 2
    running.clock.advance(10)
    report = await asyncio.to_thread(cleaner.try_run, running.config, running.clock.now())
    assert report["error"].startswith("ledger: ")
    assert report["deleted"]["expired"] == 2, "what has expired goes"
    assert await running.query("SELECT 1 FROM messages") == []
    path.rmdir()
    away.rename(path)
    await health(running, red=False)
    await told(running)
    assert [each.state for each in entries(running.config, "member")] == [None], "and is told later"


async def test_a_run_tells_what_it_hides_before_it_erases(running: Running, cleaner: Cleaner) -> None:
    """A run that dies as soon as it has erased something."""
    alice, bob, group = await friends(running)
    await alice.set_expiry(group, 0)
    for client in (alice, bob):
        await client.fetch(group)
    await told(running)
    running.clock.advance(1)
    await running.settle()
    config = running.config
    report = await asyncio.to_thread(
        cleaner.try_run, config, running.clock.now(), failpoint="apply.messages_deleted=io"
    )
    assert report["error"]
    assert entries(config, "group")[-1].state["gone_below"] == 1  # type: ignore[index]  # it is there


async def test_a_wrong_clock_does_not_make_the_ledger_forget(running: Running, clock: FakeClock) -> None:
    """What was read since a backup is told by the ledger alone: without it a restore would show it again."""
    alice, bob, group = await friends(running)
    number = await alice.send(group, b"secret", 60)
    await bob.read(group, number)
    await told(running)
    kinds = [each.kind for each in book.entries(running.config.ledger_path, 0)]
    assert book.READ in kinds
    clock.set_wrong(400 * DAY)
    report = await asyncio.to_thread(clean_up, RunEnvironment(running.config, FakeClock(clock.now(), clock.set_by)))
    assert "ClockWrongError" in report.error
    assert set(kinds) <= {each.kind for each in book.entries(running.config.ledger_path, 0)}
    clock.set_wrong(-400 * DAY)
    clock.advance(400 * DAY)
    report = await asyncio.to_thread(clean_up, RunEnvironment(running.config, clock), accept_clock=True)
    assert report.error == ""
    assert book.READ not in {each.kind for each in book.entries(running.config.ledger_path, 0)}, "it is old by now"


def remove(path: Path, early: bytes) -> None:
    path.unlink()


def damage(path: Path, early: bytes) -> None:
    ledgers.alter_last(path, "alive")


def put_an_older_one(path: Path, early: bytes) -> None:
    path.write_bytes(early)


def write_something_else(path: Path, early: bytes) -> None:
    path.write_bytes(b"no ledger" * 1000)


HARMS = (remove, damage, put_an_older_one, write_something_else)


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
async def test_a_ledger_that_does_not_tell_all_is_refused_until_that_is_accepted(
    start_server: StartServer, config: Config, harm: Callable[[Path, bytes], None]
) -> None:
    path = config.ledger_path
    async with start_server(config) as server:
        await told(server)
        early = path.read_bytes()
        alice, _, group = await friends(server)
    harm(path, early)
    with pytest.raises(StoreError, match=r"ledger.*with --accept-older-vault deleted messages may come back"):
        async with start_server(config):
            pass
    async with start_server(config, accepts_older=True) as server:
        assert (path.with_name(f"ledger{book.UNUSABLE}")).exists() is (harm is not remove)
        alice.url, alice.http = server.url, server.http
        await expect(alice.get("/me"), 401, 202)
        await alice.login("alice")
        assert [each.body for each in await alice.fetch(group)] == [b"hello"]
        assert await alice.send(group) > NUMBERS, "as after a restore"
        await alice.post("/delete-account", password=PASSWORD)
        await told(server)
        assert entries(config, "account")
        assert server.app[app_keys.HEALTH].faults == {}
    async with start_server(config) as server:
        assert server.app[app_keys.HEALTH].faults == {}


async def test_a_ledger_of_another_database_is_left_alone(start_server: StartServer, config: Config) -> None:
    async with start_server(config):
        pass
    other = replace(config, database_path=str(config.database.with_name("other.db")))
    other.vault_path.mkdir()
    shutil.copy(config.ledger_path, other.ledger_path)
    with pytest.raises(StoreError, match="belongs to another database"):
        async with start_server(other):
            pass
    assert other.ledger_path.read_bytes() == config.ledger_path.read_bytes()
