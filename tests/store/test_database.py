"""The store itself: batches, snapshots, locks, migrations."""

import asyncio
import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from conclave.store import bodies
from conclave.store.engine import database, schema, sqlite
from conclave.store.engine.database import Database
from conclave.store.engine.faults import StoreError, StoreFullError, Watch


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Database]:
    opened = await Database.open(tmp_path / "hot.db")
    await opened.write(lambda connection: connection.execute("CREATE TABLE t (x)").fetchall())
    yield opened
    await opened.close()


def insert(connection: sqlite3.Connection, value: object) -> None:
    connection.execute("INSERT INTO t VALUES (?)", (value,))


def values(connection: sqlite3.Connection) -> list[object]:
    return [row[0] for row in connection.execute("SELECT x FROM t ORDER BY rowid")]


async def test_a_write_that_fails_undoes_its_own_changes_only(store: Database) -> None:
    def fail(connection: sqlite3.Connection) -> None:
        insert(connection, "half done")
        raise LookupError("no")

    outcomes = await asyncio.gather(
        store.write(insert, 1), store.write(fail), store.write(insert, 2), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes] == [type(None), LookupError, type(None)]
    assert await store.read(values) == [1, 2]


async def test_writes_that_wait_at_the_same_time_share_a_transaction(store: Database) -> None:
    def transactions(connection: sqlite3.Connection) -> int:
        return int(connection.execute("PRAGMA data_version").fetchone()[0])

    before = await store.read(transactions)
    await asyncio.gather(*(store.write(insert, number) for number in range(100)))
    assert await store.read(values) == list(range(100)), "in the order in which they were asked for"
    assert await store.read(transactions) - before <= 2


async def test_a_commit_that_fails_fails_the_whole_batch_and_the_store_goes_on(store: Database) -> None:
    writer = store._threads[0]
    pages = await writer.run(lambda connection: connection.execute("PRAGMA page_count").fetchone()[0])
    await writer.run(lambda connection: connection.execute(f"PRAGMA max_page_count = {pages}").fetchall())
    big = [store.write(insert, bytes(3000)) for _ in range(20)]
    outcomes = await asyncio.gather(*big, return_exceptions=True)
    stored = len(await store.read(values))
    assert stored == sum(outcome is None for outcome in outcomes), (
        "acknowledged is what is stored, neither more nor less"
    )
    assert stored < 20
    await writer.run(lambda connection: connection.execute("PRAGMA max_page_count = 1000000").fetchall())
    await store.write(insert, "after")
    assert (await store.read(values))[-1] == "after"


async def test_a_batch_that_sqlite_gives_up_is_not_half_applied(store: Database) -> None:
    def give_up(connection: sqlite3.Connection) -> None:
        connection.execute("ROLLBACK")  # as SQLite does by itself on some I/O errors
        raise sqlite3.OperationalError("disk I/O error")

    outcomes = await asyncio.gather(
        store.write(insert, 1), store.write(give_up), store.write(insert, 2), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes] == [StoreError] * 3
    assert await store.read(values) == []


async def test_a_read_sees_one_snapshot(store: Database) -> None:
    began, written = threading.Event(), threading.Event()

    def read_twice(connection: sqlite3.Connection) -> tuple[list[object], list[object]]:
        first = values(connection)
        began.set()
        assert written.wait(5)
        return first, values(connection)

    reading = asyncio.create_task(store.read(read_twice))
    await asyncio.to_thread(began.wait, 5)
    await store.write(insert, 1)
    written.set()
    assert await reading == ([], [])
    assert await store.read(values) == [1]


async def test_a_reader_cannot_write(store: Database) -> None:
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        await store.read(insert, 1)


async def test_a_write_waits_for_the_lock_of_another_process_and_no_longer(store: Database) -> None:
    with contextlib.closing(sqlite.connect(store.path)) as other:
        sqlite.begin_immediate(other)
        writing = asyncio.create_task(store.write(insert, 1))
        await asyncio.sleep(0.2)
        assert not writing.done()
        began = time.monotonic()
        other.execute("COMMIT")
        await writing
        assert time.monotonic() - began < 5


async def test_closing_answers_what_waits_and_leaves_one_file(tmp_path: Path) -> None:
    store = await Database.open(tmp_path / "hot.db")
    await store.write(lambda connection: connection.execute("CREATE TABLE t (x)").fetchall())
    writes = [asyncio.create_task(store.write(insert, number)) for number in range(10)]
    await asyncio.sleep(0)
    await store.close()
    await asyncio.gather(*writes)
    with pytest.raises(StoreError):
        await store.write(insert, 11)
    assert [path.name for path in tmp_path.iterdir()] == ["hot.db"]
    with contextlib.closing(sqlite3.connect(tmp_path / "hot.db")) as connection:
        assert values(connection) == list(range(10))


async def test_a_long_wal_is_emptied_while_the_server_runs(store: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "WAL_KEPT_BYTES", 100_000)
    await store.write(insert, bytes(300_000))
    wal = store.path.with_name("hot.db-wal")
    for _ in range(50):
        if wal.stat().st_size == 0:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(wal.stat().st_size)


async def test_a_wal_is_emptied_although_somebody_is_always_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "WAL_KEPT_BYTES", 100_000)
    monkeypatch.setattr(database, "CHECKPOINT_INTERVAL_SECONDS", 0.05)
    store = await Database.open(tmp_path / "read.db")
    await store.write(lambda connection: connection.execute("CREATE TABLE t (x)").fetchall())

    def slow_read(connection: sqlite3.Connection) -> None:
        values(connection)
        time.sleep(0.02)

    async def read_on() -> None:
        while True:
            await store.read(slow_read)

    reading = [asyncio.create_task(read_on()) for _ in range(2 * database.READERS)]
    wal, sizes = tmp_path / "read.db-wal", [0]
    while sizes[-1] >= sizes[-2:][0]:
        await store.write(insert, bytes(50_000))
        sizes.append(wal.stat().st_size)
        assert len(sizes) < 300, sizes
        await asyncio.sleep(0.03)
    for task in reading:
        task.cancel()
    await asyncio.gather(*reading, return_exceptions=True)
    await store.close()


async def test_a_store_that_cannot_be_opened_leaves_no_thread(tmp_path: Path) -> None:
    (tmp_path / "hot.db").write_text("not a database, but long enough to look like a file of one" * 100)
    before = threading.active_count()
    with pytest.raises(StoreError):
        await Database.open(tmp_path / "hot.db")
    assert threading.active_count() <= before + 1, "at most the pool's, which ends by itself"


@pytest.mark.parametrize("pragma", ["secure_delete", "foreign_keys"])
def test_every_connection_has_the_pragmas(tmp_path: Path, pragma: str) -> None:
    schema.prepare(tmp_path / "hot.db")
    with contextlib.closing(sqlite.connect(tmp_path / "hot.db")) as connection:
        assert connection.execute(f"PRAGMA {pragma}").fetchone()[0] == 1
        assert connection.execute("PRAGMA synchronous").fetchone()[0] == 2
        assert connection.execute("PRAGMA temp_store").fetchone()[0] == 2
        assert connection.execute("PRAGMA auto_vacuum").fetchone()[0] == 2
        assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"


def test_migrations_are_numbered_without_a_gap() -> None:
    assert [number for number, _ in schema.migrations()] == list(range(1, len(schema.migrations()) + 1))


def test_preparing_twice_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "hot.db"
    schema.prepare(path)
    before = path.read_bytes()
    schema.prepare(path)
    assert path.read_bytes() == before


def test_a_database_of_a_former_schema_is_brought_to_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "hot.db"
    schema.prepare(path)
    steps = schema.migrations()
    later = [(len(steps) + n, f"CREATE TABLE new{n} (x);\n") for n in (1, 2)]
    monkeypatch.setattr(schema, "migrations", lambda: [*steps, *later])
    with pytest.raises(StoreError, match=rf"its schema version is {len(steps)}, this program's is {len(steps) + 2}"):
        schema.require_current(path)
    schema.prepare(path)
    schema.require_current(path)
    with contextlib.closing(sqlite.connect(path)) as connection:
        found = connection.execute("SELECT count(*) FROM sqlite_schema WHERE name IN ('new1', 'new2')").fetchone()[0]
    assert found == 2
    monkeypatch.undo()
    for refusing in (schema.prepare, schema.require_current):
        with pytest.raises(
            StoreError, match=f"schema version is {len(steps) + 2}, this program knows up to {len(steps)}"
        ):
            refusing(path)


def test_a_database_of_another_program_is_refused_whatever_its_version(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript("CREATE TABLE t (x); PRAGMA user_version = 1;")
    for refusing in (schema.prepare, schema.require_current):
        with pytest.raises(StoreError, match="is a database of schema version 1, but not one of Conclave's"):
            refusing(path)


def test_a_database_may_lie_in_a_folder_whose_name_is_no_utf8(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"\xff")
    folder.mkdir()
    schema.prepare(folder / "hot.db")
    with contextlib.closing(sqlite.connect(folder / "hot.db")) as opened:
        assert opened.execute("PRAGMA user_version").fetchone()[0] == schema.migrations()[-1][0]


def test_a_failed_migration_leaves_the_former_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "hot.db"
    schema.prepare(path)
    broken = [
        *schema.migrations(),
        (len(schema.migrations()) + 1, "CREATE TABLE new (x);\nCREATE TABLE new (x);\n"),
    ]
    monkeypatch.setattr(schema, "migrations", lambda: broken)
    with pytest.raises(StoreError, match="already exists"):
        schema.prepare(path)
    with contextlib.closing(sqlite.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone()[0] == len(broken) - 1
        assert connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'new'").fetchone() is None


def test_a_copy_without_a_write_ahead_log_gets_one(tmp_path: Path) -> None:
    """As a backup by `VACUUM INTO` is: its readers and its writer would wait for each other."""
    path, copy = tmp_path / "a.db", tmp_path / "b.db"
    schema.prepare(path)
    for open_it in (schema.prepare, lambda path: schema.require_current(path, writing=True)):
        with contextlib.closing(sqlite.connect(path)) as connection:
            connection.execute("VACUUM INTO ?", (str(copy),))
        open_it(copy)
        with contextlib.closing(sqlite.connect(copy)) as connection:
            assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
            assert connection.execute("PRAGMA auto_vacuum").fetchone()[0] == 2
        copy.unlink()


class Room(Watch):
    """Says that there is room for so many bytes of bodies."""

    def __init__(self, size: float) -> None:
        self.size = size

    def room(self) -> float:
        return self.size


@pytest.fixture
async def tight(tmp_path: Path) -> AsyncIterator[Database]:
    """A store with room for 1,000 bytes of bodies in each batch."""
    opened = await Database.open(tmp_path / "tight.db", watch=Room(1000))
    yield opened
    await opened.close()


async def test_a_body_that_is_refused_leaves_the_rest_of_its_batch_the_room(tight: Database) -> None:
    def put_two(connection: sqlite3.Connection) -> None:
        bodies.put(connection, bytes(900))
        bodies.put(connection, bytes(900))

    outcomes = await asyncio.gather(
        tight.write(bodies.put, bytes(1001)),
        tight.write(put_two),
        tight.write(bodies.put, bytes(1000)),
        tight.write(bodies.put, b"x"),
        return_exceptions=True,
    )
    assert [isinstance(each, StoreFullError) for each in outcomes] == [True, True, False, True]
    assert f"{tight.path}: no disk space for client data (" in str(outcomes[0])
    assert " bytes are free)" in str(outcomes[0])


async def test_what_lets_something_else_go_has_a_little_room_beyond_that_of_others(tight: Database) -> None:
    def spare(connection: sqlite3.Connection, size: int) -> None:
        with bodies.extra_room(connection):
            bodies.put(connection, bytes(size))

    outcomes = await asyncio.gather(
        tight.write(spare, 1000 + bodies.EXTRA_ROOM_BYTES + 1),
        tight.write(spare, 1000 + bodies.EXTRA_ROOM_BYTES),
        tight.write(bodies.put, b"x"),
        tight.write(spare, bodies.EXTRA_ROOM_BYTES),
        return_exceptions=True,
    )
    assert [isinstance(each, StoreFullError) for each in outcomes] == [True, False, True, False]


async def test_what_lets_something_else_go_leaves_half_of_the_slack_to_what_has_no_body(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await Database.open(tmp_path / "tight.db", watch=Room(0))

    def spare(connection: sqlite3.Connection) -> None:
        with bodies.extra_room(connection):
            bodies.put(connection, b"x")

    monkeypatch.setattr(bodies, "free_bytes", lambda _: bodies.MIN_FREE_BYTES)
    await store.write(spare)
    monkeypatch.setattr(bodies, "free_bytes", lambda _: bodies.MIN_FREE_BYTES - 1)
    with pytest.raises(StoreFullError):
        await store.write(spare)
    await store.close()
