"""Sizes: what they say is so, and what cannot be measured delays nobody."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conclave import app_keys
from conclave.admin import sizes
from conclave.health.parts import Phase
from conclave.store.engine.sqlite import connect
from tests.admin.conftest import Operators


async def test_sizes_are_those_of_the_files(operators: Operators) -> None:
    running = operators.running
    alice = await running.user("alice")
    group = await alice.create_group("friends")
    await alice.send(group, b"x" * 100_000)
    archive = running.config.archive_path
    (archive / "_delta_log").mkdir(parents=True)
    (archive / "a.parquet").write_bytes(b"x" * 1000)
    (archive / "_delta_log" / "0.json").write_bytes(b"x" * 24)
    await operators.measured()
    found = await operators.scrape()
    assert found.one("conclave_database_bytes") == running.config.database.stat().st_size
    assert found.one("conclave_archive_bytes") == 1024
    assert found.one("conclave_wal_bytes") == Path(f"{running.config.database}-wal").stat().st_size
    free, whole = found["conclave_disk_free_bytes"], found["conclave_disk_size_bytes"]
    assert free.keys() == whole.keys() == {("database",), ("data",), ("archive",)}
    assert all(0 < free[each] < whole[each] for each in free)
    assert found.one("conclave_sizes_age_seconds") >= 0
    assert found.one("conclave_database_free_bytes") % 4096 == 0


async def test_without_an_archive_there_is_none_to_tell_of(operators: Operators) -> None:
    await operators.measured()
    found = await operators.scrape()
    assert not found["conclave_archive_bytes"]
    assert ("archive",) not in found["conclave_disk_free_bytes"]


async def test_numbers_are_told_again_for_a_while(operators: Operators, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    look = operators.sizes._measure_files

    def counted(worker: int | None) -> dict[str, Any]:
        nonlocal looks
        looks += 1
        return look(worker)

    monkeypatch.setattr(operators.sizes, "_measure_files", counted)
    await asyncio.gather(*(operators.scrape() for _ in range(10)))
    for _ in range(5):
        await operators.scrape()
    assert looks == 1
    monkeypatch.setattr(sizes, "FRESH_SECONDS", 0)
    await operators.scrape()
    assert looks == 2


async def test_a_disk_that_does_not_answer_delays_nobody_and_is_told(
    operators: Operators, monkeypatch: pytest.MonkeyPatch
) -> None:
    await operators.measured()
    before = await operators.scrape()
    hangs, goes_on = threading.Event(), threading.Event()

    def hang(_: Path) -> None:
        hangs.set()
        goes_on.wait(30)

    monkeypatch.setattr(sizes, "_disk", hang)
    monkeypatch.setattr(sizes, "FRESH_SECONDS", 0)
    monkeypatch.setattr(sizes, "WAIT_SECONDS", 0.01)
    try:
        for _ in range(3):
            found = await operators.scrape()
            assert found["conclave_disk_size_bytes"] == before["conclave_disk_size_bytes"], "the last numbers stand"
        assert hangs.is_set()
        assert found.one("conclave_sizes_age_seconds") >= before.one("conclave_sizes_age_seconds")
        assert (await operators.ask("/healthz"))[0] == 200
    finally:
        goes_on.set()


async def test_an_archive_that_is_slow_is_looked_at_less_often(
    operators: Operators, monkeypatch: pytest.MonkeyPatch
) -> None:
    operators.running.config.archive_path.mkdir(parents=True)
    monkeypatch.setattr(sizes, "FRESH_SECONDS", 0)
    walks: list[Path] = []

    def walk(folder: Path) -> list[int]:
        walks.append(folder)
        return [5]

    monkeypatch.setattr(sizes, "_file_sizes", walk)
    for _ in range(4):
        await operators.scrape()
    assert len(walks) == 1
    assert (await operators.scrape()).one("conclave_archive_bytes") == 5
    monkeypatch.setattr(operators.sizes, "_next_walk", 0.0)
    await operators.scrape()
    assert len(walks) == 2


async def test_a_scrape_of_a_store_that_is_closed_is_answered(operators: Operators) -> None:
    """As at the end of a stop, when the operators' listener is the last that is there."""
    await operators.measured()
    operators.health.phase = Phase.STOPPING
    store = operators.running.app[app_keys.STORE]
    monkey = pytest.MonkeyPatch()
    monkey.setattr(sizes, "FRESH_SECONDS", 0)
    read, asked = store.read, []

    async def noted(function: Callable[..., Any], *args: Any) -> Any:
        asked.append(function.__module__)
        return await read(function, *args)

    try:
        with monkey.context() as patch:
            patch.setattr(store, "read", noted)
            found = await operators.scrape()
    finally:
        monkey.undo()
    assert sizes.__name__ not in asked, "a closed store is not asked"
    assert found.one("conclave_ready") == 0
    assert found.one("conclave_database_bytes") > 0


async def test_a_database_that_cannot_be_read_is_no_fault_of_the_scrape(
    operators: Operators, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def closed(*_: object) -> None:
        raise ValueError("no active connection")

    monkeypatch.setattr(operators.running.app[app_keys.STORE], "read", closed)
    found = await operators.scrape()
    assert found.one("conclave_database_bytes") > 0
    assert not found["conclave_database_free_bytes"]


async def test_pages_that_nothing_uses_are_told(operators: Operators, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "FRESH_SECONDS", 0)
    with connect(operators.running.config.database) as other:
        other.executescript("CREATE TABLE filler (body BLOB); INSERT INTO filler VALUES (zeroblob(1000000))")
        other.executescript("DROP TABLE filler")
    other.close()
    found = await operators.scrape()
    assert found.one("conclave_database_free_bytes") > 900_000


def test_the_memory_of_a_group_of_processes_is_told_apart(tmp_path: Path) -> None:
    """The worker leads the group, and its Java process is in it."""
    java = tmp_path / "java"
    java.symlink_to(sys.executable)
    script = "import subprocess, sys; subprocess.run([sys.argv[1], '-c', 'print(1, flush=True); input()'])"
    with subprocess.Popen(
        [sys.executable, "-c", script, java], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"1\n"
        found = sizes.group_memory(worker.pid)
        assert found.keys() == {"worker", "java"}
        assert all(1_000_000 < each < 1_000_000_000 for each in found.values())
        worker.communicate(b"\n")
    assert sizes.group_memory(worker.pid) == {}
    assert sizes.group_memory(os.getpid() + 10_000_000) == {}
