"""Which runs start Java: those that have anything for Spark to do, and no others. None is started here."""

import asyncio
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from conclave.archive.files import LOG
from conclave.config.archive import ArchiveConfig
from conclave.config.cleanup import CleanupConfig
from conclave.config.settings import Config
from conclave.keys.store import KeyStore
from conclave.keys.tree import Range
from conclave.retention.jobs import ALL, PurgeJob, Scope
from conclave.store.archive import moves, reclaiming
from conclave.store.engine import sqlite
from conclave.store.engine.sqlite import write_transaction
from conclave.store.resources import taken_back
from conclave.store.resources.taken_back import TakenBack
from conclave.store.views import runs
from conclave.system.worker_protocol import WorkerState
from spark import environment
from spark.environment import CleanupError, RunEnvironment
from spark.rehearsal import rehearse
from spark.requirements import RequirementError
from spark.run import clean_up, get_ready_ahead
from tests.conftest import Running
from tests.spark.test_holds import Held
from tests.support.client import PASSWORD

HOUR, DAY = 3600, 86_400
HOUSE = Scope("housekeeping", None, is_housekeeping=True)
SHORT_LIVED = Scope("short", PurgeJob(1, longest_max_lifetime=HOUR), is_housekeeping=False)
LONG_LIVED = Scope("long", PurgeJob(1, shortest_max_lifetime=DAY), is_housekeeping=False)


class StartedError(Exception):
    """Spark would have been started."""


class Engine(RunEnvironment):
    """An engine whose Spark says that it was asked for."""

    def _session(self) -> Any:
        raise StartedError


Ask = Callable[..., Any]


@pytest.fixture
def server(running: Running, monkeypatch: pytest.MonkeyPatch) -> Running:
    """A server with the Spark engine; whether there is any Java does not matter."""
    monkeypatch.setattr(environment, "find_java", lambda **_: ("java", "17"))
    monkeypatch.setattr(environment, "find_jars", list)
    return running


def engine_of(server: Running, **settings: Any) -> Engine:
    return Engine(replace(server.config, cleanup=CleanupConfig(engine="spark"), **settings), server.clock)


async def is_asked(server: Running, scope: Scope = ALL, **settings: Any) -> bool:
    """Do a run, and tell whether it would have started Spark. If not, it is in the history as any other."""
    told: list[WorkerState] = []
    try:
        done = await asyncio.to_thread(clean_up, engine_of(server, **settings), scope=scope, tell=told.append)
    except StartedError:
        assert told == [WorkerState.PREPARING], "before it has the lock"
        return True
    assert done.error == ""
    assert told == [WorkerState.PREPARING, WorkerState.BEGAN]
    with sqlite.connect(server.config.database, readonly=True) as connection:
        [last] = runs.last(connection, 1)
    assert (last.engine, last.job, last.outcome) == ("spark", scope.name, "ok")
    return False


async def test_a_store_in_which_nothing_is_due_starts_no_java(server: Running) -> None:
    assert not await is_asked(server)
    alice = await server.user("alice")
    for expiry in (-1, DAY):
        await alice.send(await alice.create_group(f"g{abs(expiry)}", expiry=expiry))
    assert not await is_asked(server)
    planned = await asyncio.to_thread(rehearse, engine_of(server))
    assert planned.counts.total() == 0


async def test_what_has_expired_starts_it_in_the_job_that_covers_it(server: Running) -> None:
    alice = await server.user("alice")
    await alice.send(await alice.create_group("g", expiry=HOUR))
    server.clock.advance(HOUR + 1)
    assert not await is_asked(server, HOUSE)
    assert not await is_asked(server, LONG_LIVED)
    assert await is_asked(server, SHORT_LIVED)
    assert await is_asked(server)
    with pytest.raises(StartedError):
        await asyncio.to_thread(rehearse, engine_of(server))


async def test_what_will_be_due_starts_it_ahead(server: Running) -> None:
    alice = await server.user("alice")
    await alice.send(await alice.create_group("g", expiry=HOUR))

    def ahead(seconds: float) -> bool:
        return get_ready_ahead(engine_of(server), ALL, seconds, lambda _: None)

    assert not await asyncio.to_thread(ahead, HOUR - 60)
    with pytest.raises(StartedError):
        await asyncio.to_thread(ahead, HOUR + 2)


async def test_what_all_have_fetched_and_a_mark_that_rises_start_it(server: Running) -> None:
    alice = await server.user("alice")
    group = await alice.create_group("g", expiry=0)
    await alice.send(group)
    await alice.numbers(group)
    assert await is_asked(server)


async def test_a_deleted_group_starts_it_unless_a_legal_hold_keeps_all_of_it(server: Running) -> None:
    alice = await server.user("alice")
    group = await alice.create_group("g")
    await alice.send(group)
    held = Held(server)
    hold = await held.group(group)
    await alice.post(f"/groups/{group}/delete")
    assert not await is_asked(server)
    await held.release(hold)
    assert await is_asked(server)


async def test_a_deleted_account_starts_it(server: Running) -> None:
    alice, bob = await server.users("alice", "bob")
    group = await alice.create_group("g")
    await bob.join(group)
    await bob.send(group)
    await bob.post("/delete-account", password=PASSWORD)
    assert await is_asked(server)


async def test_dead_sessions_start_it_in_the_housekeeping(server: Running) -> None:
    await server.user("alice")
    server.clock.advance(server.config.token_ttl_seconds + DAY)
    assert await is_asked(server, HOUSE)
    assert not await is_asked(server, SHORT_LIVED)


def ask(server: Running, question: str) -> Any:
    with sqlite.connect(server.config.database, readonly=True) as connection:
        return connection.execute(question).fetchone()[0]


async def archive_three(server: Running, archive: ArchiveConfig) -> tuple[str, str]:
    """Have one message of a group in the archive, and two of another."""
    alice = await server.user("alice")
    one, other = [await alice.create_group(name, expiry=30 * DAY) for name in "gh"]
    for key in (one, other, other):
        await alice.send(key)
    server.clock.advance(7 * DAY + 1)
    assert not await is_asked(server, archive=archive)
    return one, other


async def test_messages_move_without_it(server: Running) -> None:
    archive = ArchiveConfig(after=7 * DAY, margin=0)
    alice = await server.user("alice")
    await alice.send(await alice.create_group("g", expiry=30 * DAY))
    server.clock.advance(7 * DAY + 1)
    assert not await is_asked(server, SHORT_LIVED, archive=archive)
    assert ask(server, "SELECT count(*) FROM archive_moves") == 0
    assert not await is_asked(server, HOUSE, archive=archive)
    assert ask(server, "SELECT archived_seq = last_seq AND last_seq > 0 FROM groups")
    assert not ask(server, "SELECT EXISTS (SELECT 1 FROM messages)")
    assert not await is_asked(server, archive=archive)


async def test_single_messages_go_from_the_archive_without_it(server: Running) -> None:
    archive = ArchiveConfig(after=7 * DAY, margin=0)
    _, other = await archive_three(server, archive)
    with sqlite.connect(server.config.database) as connection, write_transaction(connection):
        find = "SELECT group_key FROM groups WHERE group_id = ?"
        [key] = connection.execute(find, (UUID(other).bytes,)).fetchone()
        taken_back.add(connection, key, 1, TakenBack(server.clock.now(), bytes(16)))
        while taken_back.has_unnotified(connection):
            taken_back.take_unnotified(connection)
    planned = await asyncio.to_thread(rehearse, engine_of(server, archive=archive))
    assert planned.counts["taken_back"] == 1
    assert not await is_asked(server, archive=archive)
    assert ask(server, "SELECT sum(message_count) FROM archive_parts") == 2


async def test_whole_partitions_go_without_it(server: Running) -> None:
    archive = ArchiveConfig(after=7 * DAY, margin=0)
    await archive_three(server, archive)
    server.clock.advance(30 * DAY)
    with sqlite.connect(server.config.database) as connection, write_transaction(connection):
        connection.execute("DELETE FROM sessions")  # they have expired too, but in the database
    planned = await asyncio.to_thread(rehearse, engine_of(server, archive=archive))
    assert planned.counts["expired"] == 3
    assert not await is_asked(server, archive=archive)
    assert not ask(server, "SELECT EXISTS (SELECT 1 FROM archive_parts)")


async def test_an_index_from_a_backup_is_settled_without_it(server: Running) -> None:
    """A message that was erased since the backup has no key, and the index of the backup counts it."""
    archive = ArchiveConfig(after=7 * DAY, margin=0)
    one, _ = await archive_three(server, archive)
    with closing(KeyStore(server.config.keys_path)) as keys:
        keys.erase([(UUID(one).bytes, [Range(1, 1)])])
    with sqlite.connect(server.config.database) as connection, write_transaction(connection):
        reclaiming.note_unsettled(connection)
    assert not await is_asked(server, archive=archive)
    assert ask(server, "SELECT sum(message_count) FROM archive_parts") == 2
    assert ask(server, "SELECT sum(messages) FROM archive_dead") == 1
    assert not ask(server, "SELECT unsettled FROM archive_state")


async def test_erasing_does_without_it_and_giving_space_back_starts_it(server: Running) -> None:
    """The table tells how much it is: the run looks before it decides."""
    archive = ArchiveConfig(after=7 * DAY, margin=0)
    one, _ = await archive_three(server, archive)
    with sqlite.connect(server.config.database) as connection, write_transaction(connection):
        connection.execute("UPDATE groups SET expired_before = ? WHERE group_id = ?", (2**40, UUID(one).bytes))
    assert not await is_asked(server, archive=archive)
    assert ask(server, "SELECT sum(message_count) FROM archive_parts") == 2
    done = await asyncio.to_thread(clean_up, engine_of(server, archive=replace(archive, reclaim_interval=0)))
    assert done.error.startswith("StartedError")


async def test_what_a_run_has_left_in_the_archive_is_done_without_it(server: Running) -> None:
    """Files that were replaced, and a batch that is under way: no message is due by them."""

    def leave(statement: str) -> None:
        with sqlite.connect(server.config.database) as connection, write_transaction(connection):
            moves.begin(connection)
            connection.execute(statement)

    await asyncio.to_thread(leave, "UPDATE archive_state SET unerased = 1")
    assert not await is_asked(server)
    assert ask(server, "SELECT unerased FROM archive_state") == 0
    await asyncio.to_thread(leave, "INSERT INTO archive_moves (fixed_at) VALUES (1)")
    assert not await is_asked(server)
    assert ask(server, "SELECT count(*) FROM archive_moves WHERE finished_at IS NULL") == 0


async def test_what_a_power_failure_has_left_of_a_run_is_taken_back_without_it(server: Running) -> None:
    archive = ArchiveConfig(after=7 * DAY, margin=0)
    alice = await server.user("alice")
    await alice.send(await alice.create_group("g"))
    server.clock.advance(7 * DAY + 1)
    assert not await is_asked(server, archive=archive)
    log, version = server.config.archive_path / LOG, ask(server, "SELECT version FROM archive_state")
    (log / f"{version + 1:020d}.json").write_bytes(bytes(500))
    with sqlite.connect(server.config.database) as connection, write_transaction(connection):
        connection.execute("UPDATE archive_state SET unerased = 1")
    assert not await is_asked(server, archive=archive)
    assert max(path.name for path in log.glob("*.json")) == f"{version:020d}.json"
    assert ask(server, "SELECT unerased FROM archive_state") == 0


async def test_missing_java_is_told_before_it_is_needed(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def find(**_: Any) -> None:
        raise RequirementError("there is none: install it")

    monkeypatch.setattr(environment, "find_java", find)
    with pytest.raises(CleanupError, match="install it"):
        engine_of(server).check()
    with pytest.raises(CleanupError, match="install it"):
        await is_asked(server)
    Engine(Config(database_path=server.config.database_path, cleanup=CleanupConfig(engine="sql")), server.clock).check()
