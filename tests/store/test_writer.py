"""The writer: joint writes, which thread does them, whom a fault concerns, and in which order others hear of it."""

import asyncio
import contextlib
import sqlite3
import subprocess
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from conclave.events import News
from conclave.store.engine import news, sqlite, writer
from conclave.store.engine.database import Database
from conclave.store.engine.faults import StoreError

ALICE = b"a" * 16


class World:
    """A store, and what its writer has done: the calls of ``insert_all``, the threads that made them, the news."""

    def __init__(self) -> None:
        self.calls: list[list[Any]] = []
        self.threads: list[int] = []
        self.published: list[list[News]] = []
        self.store: Database

    def insert_all(self, connection: sqlite3.Connection, items: Sequence[Any]) -> list[Any]:
        """Insert items; refuse what is odd text, and raise at what is an exception: after some was inserted."""
        self.calls.append(list(items))
        self.threads.append(threading.get_ident())
        results: list[Any] = []
        for item in items:
            if isinstance(item, str):
                results.append(LookupError(item))
                continue
            connection.execute("INSERT INTO t VALUES (?)", (item if not isinstance(item, Exception) else b"half",))
            news.announce(connection, {ALICE}, "new_message", number=str(item))
            if isinstance(item, Exception):
                raise item
            results.append(item * 10 if isinstance(item, int) else len(item))
        return results

    async def write(self, *items: Any, weight: int = 0) -> list[Any]:
        tasks = [asyncio.ensure_future(self.store.write_joint(self.insert_all, item, weight)) for item in items]
        return await asyncio.gather(*tasks, return_exceptions=True)

    async def stored(self) -> list[Any]:
        return await self.store.read(lambda connection: [row[0] for row in connection.execute("SELECT x FROM t")])

    def told(self) -> list[str]:
        return [each.event.values["number"] for news in self.published for each in news]  # type: ignore[union-attr]  # nothing else is announced


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World()
    made.store = await Database.open(tmp_path / "hot.db", made.published.append)
    await made.store.write(lambda connection: connection.execute("CREATE TABLE t (x)").fetchall())
    made.published.clear()
    yield made
    await made.store.close()


async def test_joint_writes_that_wait_at_the_same_time_are_one_call(world: World) -> None:
    assert await world.write(1, 2, 3) == [10, 20, 30]
    assert world.calls == [[1, 2, 3]]
    assert await world.stored() == [1, 2, 3]
    assert world.told() == ["1", "2", "3"]


async def test_a_refusal_is_its_callers_alone(world: World) -> None:
    first, refused, last = await world.write(1, "no", 2)
    assert (first, last) == (10, 20)
    assert isinstance(refused, LookupError)
    assert world.calls == [[1, "no", 2]]
    assert await world.stored() == [1, 2]


@pytest.mark.parametrize(
    "error", [KeyError("guilty"), sqlite3.IntegrityError("no code"), sqlite3.ProgrammingError("no code")]
)
async def test_a_call_that_raises_is_done_again_one_by_one_and_only_the_guilty_hears(
    world: World, error: Exception
) -> None:
    single = asyncio.ensure_future(world.store.write(lambda connection: connection.execute("SELECT 7").fetchone()[0]))
    first, guilty, last = await world.write(1, error, 2)
    assert (first, last, await single) == (10, 20, 7)
    assert guilty is error
    assert world.calls == [[1, error, 2], [1], [error], [2]]
    assert await world.stored() == [1, 2], "nothing twice, and nothing of the guilty"
    assert world.told() == ["1", "2"]
    assert await world.write(3) == [30]


async def test_kinds_of_joint_writes_share_a_transaction_and_a_fault_of_one_leaves_the_others(world: World) -> None:
    def other(connection: sqlite3.Connection, items: Sequence[int]) -> list[int]:
        connection.executemany("INSERT INTO t VALUES (?)", [(item,) for item in items])
        return [-item for item in items]

    others = [asyncio.ensure_future(world.store.write_joint(other, item)) for item in (7, 8)]
    assert isinstance((await world.write(KeyError("guilty")))[0], KeyError)
    assert await asyncio.gather(*others) == [-7, -8]
    assert sorted(await world.stored()) == [7, 8]


async def test_light_writes_are_prepared_on_the_loops_thread_and_heavy_ones_are_not(world: World) -> None:
    own = threading.get_ident()
    await world.write(1, 2)
    await world.write(b"x", weight=writer.MAX_LOOP_BYTES + 1)
    single = asyncio.ensure_future(world.store.write(lambda _: threading.get_ident()))
    await world.write(3)
    assert [each == own for each in world.threads] == [True, False, False]
    assert await single != own


async def test_while_another_process_has_the_lock_the_loop_goes_on(world: World) -> None:
    with contextlib.closing(sqlite.connect(world.store.path)) as other:
        sqlite.begin_immediate(other)
        writing = asyncio.create_task(world.write(1, 2))
        for _ in range(20):
            await asyncio.sleep(0.002)
        assert not writing.done()
        other.execute("COMMIT")
    assert await writing == [10, 20]
    assert world.calls == [[1, 2]]
    assert world.threads != [threading.get_ident()]


@pytest.mark.parametrize("weight", [0, writer.MAX_LOOP_BYTES + 1])
async def test_an_error_of_the_disk_reaches_all(world: World, weight: int) -> None:
    owner = world.store._threads[0]
    pages = await owner.run(lambda connection: connection.execute("PRAGMA page_count").fetchone()[0])
    await owner.run(lambda connection: connection.execute(f"PRAGMA max_page_count = {pages}").fetchall())
    outcomes = await world.write(b"small", bytes(100_000), b"small too", weight=weight)
    assert [type(each).__name__ for each in outcomes] == ["StoreFullError"] * 3
    assert all(isinstance(each, StoreError) for each in outcomes)
    assert len(world.calls) == 1, "no other way to do it helps"
    assert await world.stored() == []
    assert world.told() == []
    await owner.run(lambda connection: connection.execute("PRAGMA max_page_count = 1000000").fetchall())
    assert await world.write(b"after") == [5]
    assert await world.stored() == [b"after"]


async def test_a_commit_that_fails_fails_all_who_were_prepared(world: World) -> None:
    def defer(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE parent (id INTEGER PRIMARY KEY)")
        connection.execute("CREATE TABLE child (id REFERENCES parent DEFERRABLE INITIALLY DEFERRED)")

    def orphan(connection: sqlite3.Connection, items: Sequence[int]) -> list[None]:
        connection.executemany("INSERT INTO child VALUES (?)", [(item,) for item in items])
        return [None] * len(items)

    await world.store.write(defer)
    writing = asyncio.ensure_future(world.store.write_joint(orphan, 1))
    outcomes = await world.write(1, 2)
    assert {type(each) for each in outcomes} == {StoreError}
    with pytest.raises(StoreError):
        await writing
    assert await world.stored() == []
    assert world.told() == []
    assert await world.write(3) == [30]


async def test_a_transaction_takes_no_more_than_may_be_in_memory(world: World) -> None:
    assert await world.write(*range(5), weight=writer.MAX_COMMIT_BYTES // 2) == [0, 10, 20, 30, 40]
    assert world.calls == [[0, 1], [2, 3], [4]]


async def test_what_shares_a_transaction_with_a_large_write_that_fails_outlasts_a_crash(
    world: World, tmp_path: Path
) -> None:
    """The large one has more pages than SQLite keeps in memory, and some of them change again before it fails."""

    def fail(connection: sqlite3.Connection) -> None:
        connection.executemany("INSERT INTO t VALUES (?)", [(bytes(4000),)] * 2000)
        connection.execute("UPDATE t SET x = x'00' WHERE rowid BETWEEN 1000 AND 1100")
        connection.executemany("INSERT INTO t VALUES (?)", [(bytes(4000),)] * 1000)
        raise LookupError

    failed, acknowledged = await asyncio.gather(world.store.write(fail), world.write(1), return_exceptions=True)
    later = await world.write(2)
    assert (type(failed), acknowledged, later) == (LookupError, [10], [20])
    copy = tmp_path / "copy"
    copy.mkdir()
    # Another process copies: closing the database's file here would end SQLite's locks on it.
    subprocess.run(["cp", tmp_path / "hot.db", tmp_path / "hot.db-wal", copy], check=True)
    with closing(sqlite.connect(copy / "hot.db")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        assert [row[0] for row in connection.execute("SELECT x FROM t")] == [1, 2]


async def test_a_caller_who_goes_away_leaves_the_others(world: World) -> None:
    tasks = [asyncio.ensure_future(world.store.write_joint(world.insert_all, item)) for item in (1, 2, 3)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    assert await asyncio.gather(*tasks, return_exceptions=True) != []
    assert (tasks[0].result(), tasks[1].cancelled(), tasks[2].result()) == (10, True, 30)
    assert await world.stored() == [1, 2, 3], "what was under way is done: nobody knows whether it was"
    assert world.told() == ["1", "2", "3"]


async def test_a_close_waits_for_what_was_asked_for_and_takes_nothing_more(tmp_path: Path) -> None:
    world = World()
    world.store = await Database.open(tmp_path / "hot.db", world.published.append)
    await world.store.write(lambda connection: connection.execute("CREATE TABLE t (x)").fetchall())
    with contextlib.closing(sqlite.connect(world.store.path)) as other:
        sqlite.begin_immediate(other)
        first = asyncio.create_task(world.write(1))
        await asyncio.sleep(0.01)
        later = asyncio.create_task(world.write(*range(2, 600)))
        await asyncio.sleep(0)
        closing = asyncio.create_task(world.store.close())
        await asyncio.sleep(0.01)
        assert not closing.done()
        assert isinstance((await world.write(1000))[0], StoreError)
        other.execute("COMMIT")
    await closing
    assert await first == [10]
    assert await later == [each * 10 for each in range(2, 600)]
    with contextlib.closing(sqlite3.connect(tmp_path / "hot.db")) as connection:
        assert [row[0] for row in connection.execute("SELECT x FROM t")] == list(range(1, 600))


async def test_news_are_published_before_anybody_is_answered_and_in_order(tmp_path: Path) -> None:
    order: list[str] = []
    world = World()
    world.store = await Database.open(tmp_path / "hot.db", lambda news: order.append(f"published {len(news)}"))
    await world.store.write(lambda connection: connection.execute("CREATE TABLE t (x)").fetchall())
    order.clear()

    async def write(item: int) -> None:
        await world.write(item)
        order.append(f"answered {item}")
        if item < 10:
            await world.write(item + 10)
            order.append(f"answered {item + 10}")

    await asyncio.gather(write(1), write(2))
    assert order == ["published 2", "answered 1", "answered 2", "published 2", "answered 11", "answered 12"]
    await world.store.close()


async def test_what_another_process_has_committed_before_is_told_before(world: World) -> None:
    def of_another(number: str) -> None:
        with closing(sqlite.connect(world.store.path)) as other, sqlite.write_transaction(other):
            news.announce(other, {ALICE}, "new_message", number=number)
            news.add_unblocked(other, "bob")

    of_another("theirs")
    await world.write(1)
    of_another("their next")
    await world.store.write(lambda connection: connection.execute("SELECT 7").fetchone()[0])
    assert world.told() == ["theirs", "1"], "who tells nothing need not tell of others"
    await world.write(2, weight=writer.MAX_LOOP_BYTES + 1)
    assert world.told() == ["theirs", "1", "their next", "2"]
    assert await world.store.write(news.forward) == ["bob"]
    assert await world.store.read(news.is_empty)
