"""A connection comes back from each function that had it without an open statement: no later read sees the past."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import structlog

from conclave.store.engine import sqlite
from conclave.store.engine.connection_thread import ConnectionThread
from conclave.store.engine.database import READERS, Database
from conclave.store.engine.faults import StoreError


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Database]:
    opened = await Database.open(tmp_path / "hot.db")
    await opened.write(lambda connection: connection.execute("CREATE TABLE t (x)").fetchall())
    for number in range(10):
        await opened.write(insert, number)
    yield opened
    await opened.close()


def insert(connection: sqlite3.Connection, value: int) -> None:
    connection.execute("INSERT INTO t VALUES (?)", (value,))


def count(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT count(*) FROM t").fetchone()[0])


async def on_every_reader(store: Database, fn: Callable[[sqlite3.Connection], Any]) -> list[Any]:
    """Run ``fn`` on all pooled connections at the same time, so that each of them has it once."""
    together = threading.Barrier(READERS)

    def meet(connection: sqlite3.Connection) -> Any:
        together.wait()
        return fn(connection)

    return await asyncio.gather(*(store.read(meet) for _ in range(READERS)))


class BrokenError(Exception):
    """Raised in the middle of a read."""


def leave_the_loop(connection: sqlite3.Connection) -> None:
    rows = connection.execute("SELECT x FROM t")
    for _ in rows:
        raise BrokenError


def leave_a_generator(connection: sqlite3.Connection) -> None:
    def doubled(rows: Iterator[Any]) -> Iterator[int]:
        for row in rows:
            yield row[0] * 2

    for _ in doubled(connection.execute("SELECT x FROM t")):
        raise BrokenError


def leave_a_second_transaction(connection: sqlite3.Connection) -> None:
    connection.execute("ROLLBACK")
    connection.execute("BEGIN")
    rows = connection.execute("SELECT x FROM t")
    next(rows)
    raise BrokenError


LEAVING = [leave_the_loop, leave_a_generator, leave_a_second_transaction]


@pytest.mark.parametrize("leave", LEAVING)
async def test_a_read_that_was_left_in_its_middle_makes_no_later_read_see_the_past(
    store: Database, leave: Callable[[sqlite3.Connection], None]
) -> None:
    kept = []
    for _ in range(READERS):
        with pytest.raises(BrokenError) as raised:
            await store.read(leave)
        kept.append(raised.value)  # its traceback keeps what the function had
    await store.write(insert, 11)
    assert await on_every_reader(store, count) == [11] * READERS


async def test_what_a_read_returns_keeps_no_statement_open(store: Database) -> None:
    rows = [await store.read(lambda connection: connection.execute("SELECT x FROM t")) for _ in range(READERS)]
    assert len(rows) == READERS
    await store.write(insert, 11)
    assert await on_every_reader(store, count) == [11] * READERS


async def test_a_connection_is_kept_as_long_as_nothing_is_left_open_on_it(store: Database) -> None:
    before = {id(each) for each in await on_every_reader(store, lambda connection: connection)}
    with pytest.raises(sqlite3.OperationalError):
        await store.read(lambda connection: connection.execute("SELECT nothing"))
    assert {id(each) for each in await on_every_reader(store, lambda connection: connection)} == before


async def test_a_new_connection_has_what_the_former_one_had(store: Database) -> None:
    def state(connection: sqlite3.Connection) -> Any:
        own: Any = connection
        pragmas = ("query_only", "cache_size", "secure_delete", "foreign_keys", "synchronous", "temp_store")
        return [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in pragmas], own.former_policies, own.keys

    before = await on_every_reader(store, state)
    kept = []
    for _ in range(READERS):
        with pytest.raises(BrokenError) as raised:
            await store.read(leave_the_loop)
        kept.append(raised.value)
    assert await on_every_reader(store, state) == before


@pytest.mark.parametrize("leave", [leave_the_loop, leave_a_generator])
async def test_a_write_that_was_left_in_its_middle_does_not_keep_the_writer_in_the_past(
    store: Database, leave: Callable[[sqlite3.Connection], None]
) -> None:
    """A write on an old snapshot would fail for good, as soon as another process has written."""
    with pytest.raises(BrokenError) as kept:
        await store.write(leave)
    with closing(sqlite.connect(store.path)) as another, sqlite.write_transaction(another):
        insert(another, 11)
    assert await store.write(count) == 11
    await store.write(insert, 12)
    assert await store.read(count) == 12
    assert kept.value


async def test_a_joint_write_that_was_left_in_its_middle_does_not_keep_the_writer_in_the_past(store: Database) -> None:
    kept: list[Exception] = []

    def joint(connection: sqlite3.Connection, items: Sequence[Any]) -> list[Any]:
        try:
            leave_the_loop(connection)
        except BrokenError as error:
            kept.append(error)
            raise
        return list(items)

    with pytest.raises(BrokenError):
        await store.write_joint(joint, 1)
    assert kept
    with closing(sqlite.connect(store.path)) as another, sqlite.write_transaction(another):
        insert(another, 11)
    assert await store.write(count) == 11


async def test_the_writer_writes_as_before_on_a_new_connection(store: Database) -> None:
    def pragmas(connection: sqlite3.Connection) -> list[int]:
        names = ("cache_spill", "wal_autocheckpoint", "query_only")
        return [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names]

    before = await store.write(pragmas)
    with pytest.raises(BrokenError) as kept:
        await store.write(leave_the_loop)
    assert await store.write(pragmas) == before
    assert kept.value


async def test_what_cannot_be_replaced_is_not_used_and_is_replaced_once_that_works(tmp_path: Path) -> None:
    path, away = tmp_path / "some.db", tmp_path / "away.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (x)")
        connection.execute("INSERT INTO t VALUES (1), (2), (3)")
        connection.commit()

    def leave_without_the_file(connection: sqlite3.Connection) -> None:
        path.rename(away)
        leave_the_loop(connection)

    owner = ConnectionThread(path)
    async with owner:
        with structlog.testing.capture_logs() as logged, pytest.raises(BrokenError) as kept:
            await owner.run(leave_without_the_file)
        assert [each["event"] for each in logged] == ["connection_replaced"]
        with pytest.raises(StoreError, match=r"some\.db"):
            await owner.run(count)
        with pytest.raises(StoreError, match="could not be replaced"):
            _ = owner.connection
        away.rename(path)
        assert await owner.run(count) == 3
        assert kept.value
