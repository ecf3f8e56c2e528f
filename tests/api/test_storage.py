"""Storage that fails under a running server: what clients are told, and what health says."""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from conclave import app_keys
from conclave.config.cleanup import CleanupConfig
from conclave.health import background, storage
from conclave.server import duties
from conclave.store import bodies
from conclave.store.engine import database, sqlite
from conclave.store.resources import members
from conclave.system import locks, reserve
from spark.environment import RunEnvironment
from spark.run import clean_up
from tests.conftest import Running, StartServer
from tests.support.client import RefusedError, encode
from tests.support.server import until


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ALIVE", "OUTBOX", "STORAGE"):
        monkeypatch.setattr(duties, f"{name}_INTERVAL_SECONDS", 0.02)
    monkeypatch.setattr(background, "RETRY_SECONDS", 0.02)
    monkeypatch.setattr(duties, "session_lag", lambda _: 0.02)
    monkeypatch.setattr(database, "CHECKPOINT_INTERVAL_SECONDS", 0.02)
    monkeypatch.setattr(storage, "PLENTY_SECONDS", 0)


def faults(running: Running) -> dict[str, str]:
    return running.app[app_keys.HEALTH].faults


async def rename(running: Running, before: str, after: str) -> None:
    await running.app[app_keys.STORE].write(
        lambda connection: connection.execute(f"ALTER TABLE {before} RENAME TO {after}").fetchall()
    )


@pytest.mark.parametrize(
    ("table", "part"), [("server_state", "alive"), ("sessions", "session_activity"), ("outbox", "outbox")]
)
async def test_a_duty_that_fails_is_a_fault_until_it_succeeds(running: Running, table: str, part: str) -> None:
    await running.user("alice")
    await rename(running, table, "elsewhere")
    running.app[app_keys.ACTIVITY].extend(1, running.clock.now())
    await until(lambda: part in faults(running))
    assert "no such table" in faults(running)[part]
    async with running.http.get(f"{running.url}/healthz") as response:
        assert await response.json() == {"status": "degraded"}
    await rename(running, "elsewhere", table)
    await until(lambda: not faults(running))


async def test_a_checkpoint_that_fails_is_a_fault_until_one_succeeds(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: sqlite3.Connection) -> bool:
        raise ZeroDivisionError("whatever it is")

    monkeypatch.setattr(database, "WAL_KEPT_BYTES", 0)
    with monkeypatch.context() as patch:
        patch.setattr(sqlite, "truncate_wal", fail)
        await running.user("alice")
        await until(lambda: "whatever it is" in faults(running).get("checkpoints", ""))
    await until(lambda: not faults(running))


async def test_a_database_that_is_moved_away_takes_no_changes_until_it_is_back(running: Running) -> None:
    alice = await running.user("alice")
    group = await alice.create_group("g")
    await alice.send(group, b"before")
    path = running.config.database
    for _ in range(2):
        path.rename(path.with_name("moved.db"))
        with pytest.raises(RefusedError) as refused:
            await alice.send(group, b"lost")
        assert (refused.value.status, refused.value.headers["Retry-After"]) == (503, "5")
        assert f"{path}: was moved or replaced" in faults(running)["storage"]
        assert [message.body for message in await alice.fetch(group)] == [b"before"], "reads go on"
        path.with_name("moved.db").rename(path)
        await until(lambda: "storage" not in faults(running))
    assert await alice.send(group, b"after") == 2


@pytest.mark.parametrize(
    ("code", "status"), [(sqlite3.SQLITE_IOERR_READ, 503), (sqlite3.SQLITE_CORRUPT, 503), (sqlite3.SQLITE_ERROR, 500)]
)
async def test_a_read_that_the_disk_fails_is_a_fault_until_one_succeeds(
    running: Running, monkeypatch: pytest.MonkeyPatch, code: int, status: int
) -> None:
    alice = await running.user("alice")
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = code

    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        # Every reader.
        for name in ("resources.users.find", "resources.state.stored_policy", "engine.news.is_empty"):
            patch.setattr(f"conclave.store.{name}", fail)
        with pytest.raises(RefusedError) as refused:
            await alice.get("/me")
        assert refused.value.status == status
        assert ("storage" in faults(running)) is (status == 503)
        assert status == 500 or str(running.config.database) in faults(running)["storage"]
    await until(lambda: not faults(running))
    assert (await alice.get("/me"))["username"] == "alice"


async def test_an_answer_that_has_left_is_not_followed_by_another(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client's next request on the connection would be answered with that."""
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("g")
    await bob.join(group)
    await alice.send(group, b"hello")
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(members, "confirm_fetched", fail)
    reader, writer = await asyncio.open_connection("127.0.0.1", running.server.port)
    with contextlib.closing(writer):
        for _ in range(2):
            writer.write(bob.raw_get(f"/groups/{group}/messages"))
            headers = (await reader.readuntil(b"\r\n\r\n")).decode()
            assert headers.startswith("HTTP/1.1 200")
            length = int(headers.lower().split("content-length: ")[1].split("\r\n")[0])
            assert encode(b"hello") in (await reader.readexactly(length)).decode()


@pytest.fixture
async def small(running: Running, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[[int], None]]:
    """Let the disk seem to have so many bytes free."""

    def set_free(count: int) -> None:
        monkeypatch.setattr(storage, "free_bytes", lambda _: count)

    yield set_free
    monkeypatch.undo()


async def test_a_disk_without_room_refuses_what_has_a_body_and_nothing_else(
    running: Running, small: Callable[[int], None]
) -> None:
    alice, bob = await running.users("alice", "bob")
    group, other = await alice.create_group("g"), await alice.create_group("h")
    for each in (group, other):
        await bob.join(each)
    await alice.send(group, b"before")
    small(reserve.SLACK_BYTES)
    for request in (
        lambda: alice.send(group, b"x"),
        lambda: alice.post(f"/groups/{group}/commit", commit_message=encode(b"x")),
        lambda: alice.upload(b"\x00\x01\x00\x05 package"),
    ):
        with pytest.raises(RefusedError) as refused:
            await request()
        assert (refused.value.status, refused.value.code) == (507, 0)
        assert "no room for messages" in faults(running)["storage"]
    assert [message.body for message in await bob.fetch(group)] == [b"before"]
    await running.settle()
    assert await running.query("SELECT max(watermark) FROM members JOIN users USING (user_id) WHERE username = 'bob'")
    await bob.post(f"/groups/{group}/leave", commit_message=encode(b"goodbye"))
    await alice.post(f"/groups/{other}/delete")
    assert "storage" in faults(running), "small things that succeed do not make room"
    small(10**9)
    await until(lambda: not faults(running))
    await alice.send(group, b"after")


@pytest.mark.parametrize("how", ["leave", "remove", "ban"])
async def test_without_room_a_small_commit_still_takes_a_member_out_and_a_large_one_does_not(
    running: Running, small: Callable[[int], None], how: str
) -> None:
    alice, bob = await running.users("alice", "bob")
    group, other = await alice.create_group("g"), await alice.create_group("h")
    for each in (group, other):
        await bob.join(each)

    async def take_out(each: str, size: int) -> None:
        commit = {"commit_message": encode(bytes(size)), "group_info": encode(bytes(size))} if size else {}
        if how == "leave":
            await bob.post(f"/groups/{each}/leave", **commit)
        else:
            await alice.act(how, each, bob, **commit)

    small(reserve.SLACK_BYTES)
    with pytest.raises(RefusedError) as refused:
        await take_out(group, bodies.EXTRA_ROOM_BYTES // 2 + 1)
    assert refused.value.status == 507
    assert await alice.roles(group) == {"alice": "admin", "bob": "member"}
    await take_out(group, bodies.EXTRA_ROOM_BYTES // 2)
    assert await alice.roles(group) == {"alice": "admin"}
    await take_out(other, 0)
    assert await alice.roles(other) == {"alice": "admin"}


async def test_bodies_take_no_more_than_the_room_that_there_is(running: Running, small: Callable[[int], None]) -> None:
    """Many at once: what one transaction takes in has to fit the disk twice, in the log and in the database."""
    alice = await running.user("alice")
    group = await alice.create_group("g")
    wal = running.config.database.with_name("hot.db-wal").stat().st_size
    small(wal + reserve.SLACK_BYTES + 2 * 1024**2 + 10_000)
    outcomes = await asyncio.gather(*(alice.send(group, bytes(700_000)) for _ in range(6)), return_exceptions=True)
    refused = [each for each in outcomes if isinstance(each, RefusedError)]
    assert {each.status for each in refused} == {507}
    assert 1 <= len(outcomes) - len(refused) == len(await alice.fetch(group))


async def test_the_reserve_is_made_at_the_start_and_nothing_large_is_stored_without_it(
    running: Running, start_server: StartServer
) -> None:
    path = running.config.database.with_name("other.db")
    config = replace(running.config, database_path=str(path), cleanup=CleanupConfig(disk_reserve=1024**2))
    kept = reserve.reserves(config)[0].path
    async with start_server(config) as server:
        assert kept.stat().st_size == 1024**2
        alice = await server.user("alice")
        group = await alice.create_group("g")
        with reserve.released_reserve(config):  # as a run has it, so that it is not made anew
            kept.write_bytes(b"")
            with pytest.raises(RefusedError) as refused:
                await alice.send(group)
            assert refused.value.status == 507
            await until(lambda: f"{kept}: the reserve of 1,048,576 bytes" in faults(server).get("storage", ""))
        await until(lambda: not faults(server))
        assert await alice.send(group) == 1
        assert kept.stat().st_size == 1024**2


@pytest.mark.parametrize(
    ("hinder", "reason"),
    [(lambda kept: kept.mkdir(), "Is a directory"), (lambda kept: kept.symlink_to("x"), "symbolic links")],
    ids=["folder", "link"],
)
async def test_a_reserve_that_cannot_be_made_is_a_fault_and_its_room_is_left_free_instead(
    running: Running,
    start_server: StartServer,
    monkeypatch: pytest.MonkeyPatch,
    hinder: Callable[[Path], None],
    reason: str,
) -> None:
    path = running.config.database.with_name("other.db")
    config = replace(running.config, database_path=str(path), cleanup=CleanupConfig(disk_reserve=64 * 1024**2))
    kept = reserve.reserves(config)[0].path
    hinder(kept)
    async with start_server(config) as server:
        alice = await server.user("alice")
        group = await alice.create_group("g")
        await alice.send(group)
        told = faults(server)["storage"]
        assert told.startswith(f"{kept}: 67,108,864 bytes cannot be reserved for cleanup: ")
        assert reason in told
        with monkeypatch.context() as patch:
            patch.setattr(storage, "free_bytes", lambda _: 64 * 1024**2 + reserve.SLACK_BYTES)
            with pytest.raises(RefusedError) as refused:
                await alice.send(group)
            assert refused.value.status == 507
        if kept.is_symlink():
            kept.unlink()
        else:
            kept.rmdir()
        await until(lambda: not faults(server))
        assert kept.stat().st_size == 64 * 1024**2


async def test_a_disk_without_an_inode_is_told_and_clients_are_served(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice = await running.user("alice")
    group = await alice.create_group("g")
    with monkeypatch.context() as patch:
        patch.setattr(storage, "has_inodes", lambda _: False)
        await until(lambda: "no inode is left" in faults(running).get("storage", ""))
        await alice.send(group, b"hello")
        assert "no inode is left" in faults(running)["storage"], "a write that works does not mend it"
    await until(lambda: not faults(running))


async def test_what_is_told_of_a_reserve_that_is_not_whole_names_what_it_needs(
    running: Running, start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = running.config.database.with_name("other.db")
    config = replace(running.config, database_path=str(path), cleanup=CleanupConfig(disk_reserve=1024**2))
    free = 1024**2 + reserve.SLACK_BYTES - 1
    for module in (storage, reserve):
        monkeypatch.setattr(module, "free_bytes", lambda _: free)
    async with start_server(config) as server:
        needs = (
            "the reserve of 1,048,576 bytes for cleanup is incomplete:"
            " 5,242,880 bytes have to be free, but only 5,242,879 are"
        )
        assert needs in faults(server)["storage"]


async def test_a_run_that_waits_for_another_does_not_keep_the_reserve_from_being_made(
    running: Running, start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = running.config.database.with_name("other.db")
    config = replace(running.config, database_path=str(path), cleanup=CleanupConfig("sql", disk_reserve=1024**2))
    async with start_server(config):
        pass
    [kept] = reserve.reserves(config)
    with contextlib.ExitStack() as another:
        another.enter_context(locks.hold(path, locks.CLEANUP))
        told: list[tuple[str, int]] = []

        def tell(what: str) -> None:
            told.append((what, kept.missing()))
            if what == "waiting":
                monkeypatch.setattr(reserve, "free_bytes", lambda _: 10**9)
                kept.refill()
                monkeypatch.setattr(reserve, "free_bytes", lambda _: 0)
                another.close()

        monkeypatch.setattr(reserve, "free_bytes", lambda _: 0)
        engine = RunEnvironment(config, running.clock)
        assert clean_up(engine, tell=tell).error == ""
        engine.close()
    states = ["preparing", "waiting", "began"]
    assert told == [(each, 1024**2) for each in states], "and has its room when it is at work"
