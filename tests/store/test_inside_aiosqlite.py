"""The parts of aiosqlite that are no public ones: which are used, in which module, and what they have to do."""

import asyncio
import contextlib
import inspect
import re
import sqlite3
import threading
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import aiosqlite
import pytest

from conclave.store.engine import connection_thread
from conclave.store.engine.connection_thread import ConnectionThread
from tests.server.client_port.test_delegation import private

PRODUCT = Path(connection_thread.__file__).parents[3]


@contextlib.asynccontextmanager
async def opened(tmp_path: Path) -> AsyncIterator[ConnectionThread]:
    path = tmp_path / "some.db"
    sqlite3.connect(path).close()
    owner = ConnectionThread(path)
    async with owner:
        yield owner


def test_one_module_uses_four_private_parts() -> None:
    assert set(private(Path(connection_thread.__file__))) == set()
    used = set(private(Path(connection_thread.__file__), own=True))
    inside = set(re.findall(r"\b_[a-z]\w*", inspect.getsource(aiosqlite.Connection)))
    assert used & inside == {"_tx", "_conn", "_connection", "_thread"}
    others = {path for top in ("conclave", "spark") for path in (PRODUCT / top).rglob("*.py")}
    assert [path.name for path in others if "import aiosqlite" in path.read_text(encoding="utf-8")] == [
        "connection_thread.py"
    ]


def test_the_version_is_one_that_these_tests_have_seen() -> None:
    assert aiosqlite.__version__.startswith("0.22.")


async def test_what_is_submitted_runs_in_order_on_one_thread_that_ends_with_the_process(tmp_path: Path) -> None:
    order: list[int] = []
    threads: set[threading.Thread] = set()

    def note(number: int, _: sqlite3.Connection) -> int:
        order.append(number)
        threads.add(threading.current_thread())
        return number

    async with opened(tmp_path) as owner:
        waiting = [owner.submit(partial(note, number)) for number in range(50)]
        assert await asyncio.gather(*waiting) == list(range(50)) == order
    [thread] = threads
    assert thread.daemon
    assert thread is not threading.current_thread()


async def test_an_error_reaches_who_asked_and_nobody_else(tmp_path: Path) -> None:
    async with opened(tmp_path) as owner:
        fails = owner.submit(lambda connection: connection.execute("SELECT nothing"))
        works = owner.submit(lambda connection: connection.execute("SELECT 1").fetchone()[0])
        with pytest.raises(sqlite3.OperationalError, match="nothing"):
            await fails
        assert await works == 1


async def test_what_was_submitted_is_done_though_its_caller_is_cancelled_or_the_connection_closed(
    tmp_path: Path,
) -> None:
    release, done = threading.Event(), threading.Event()
    async with opened(tmp_path) as owner:
        blocked = owner.submit(lambda _: release.wait())
        caller = asyncio.ensure_future(owner.run(lambda _: done.set()))
        await asyncio.sleep(0)
        caller.cancel()
        release.set()
        assert await blocked
        last = owner.submit(lambda connection: connection.execute("SELECT 2").fetchone()[0])
    assert done.is_set()
    assert await last == 2


async def test_the_connection_is_the_one_that_runs_what_is_submitted(tmp_path: Path) -> None:
    async with opened(tmp_path) as owner:
        assert await owner.run(lambda connection: connection) is owner.connection
