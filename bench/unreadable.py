"""How long a run takes that erases messages of an archive, without Java; and the daily run that gives space back."""

import contextlib
import os
import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from bench import archives, stores
from bench.archive import GROUPS
from bench.figures import Figure, single, spread
from bench.process import descendants, name, resident_mb
from conclave.archive.layout import DAY
from conclave.clock import FakeClock
from conclave.config.archive import ArchiveConfig
from conclave.config.settings import Config
from conclave.store import keyring
from conclave.store.engine import sqlite
from spark.environment import RunEnvironment
from spark.run import clean_up

MESSAGES = int(os.environ.get("CONCLAVE_BENCH_MESSAGES", "10000000"))
ROUNDS = 4
WATCH_SECONDS = 0.2
OF_GROUPS = 20
"""One of 20 groups has something due."""

DAYS_DUE = archives.DAYS * OF_GROUPS // 100
"""Of these groups, a fifth of the days: a hundredth of all messages."""


def soon(folder: Path) -> list[Figure]:
    """Purge a fifth of every twentieth group, of others each time. No body is looked at."""
    now = int(time.time())
    store = stores.build(folder, "spark", now, stores.Shape(8, GROUPS, 4), [])
    config = replace(store.config, archive=ArchiveConfig(after=DAY, reclaim_interval=1000 * DAY))
    keys = keyring.open_to_serve(config.database, config.keys_path)
    assert keys
    with closing(sqlite.connect(config.database, readonly=True)) as connection:
        groups = [row[0] for row in connection.execute("SELECT group_id FROM groups")]
    keys.prepare((each, 1) for each in groups)
    keys.close()
    archives.Archive(replace(store, config=config), [MESSAGES // GROUPS] * GROUPS, now).build()
    took, cpu = [], []
    with closing(RunEnvironment(config, FakeClock(now))) as engine:
        for turn in range(ROUNDS):
            before = now - (archives.DAYS - DAYS_DUE) * DAY
            with closing(sqlite.connect(config.database)) as connection, sqlite.write_transaction(connection):
                connection.execute(
                    "UPDATE groups SET expired_before = ? WHERE group_key % ? = ?", (before, OF_GROUPS, turn)
                )
            began, worked = time.perf_counter(), time.process_time()
            done = clean_up(engine)
            took.append(time.perf_counter() - began)
            cpu.append(time.process_time() - worked)
            if done.error or engine.is_warm or not 0.9 < done.counts["expired"] * 100 / MESSAGES < 1.1:
                raise RuntimeError(f"{done.counts} of {MESSAGES:,}; {done.error}")
    reclaimed, returned, memory = _reclaim(replace(config, archive=ArchiveConfig(after=DAY, reclaim_after=DAY)), now)
    what = f"1% of {MESSAGES:,} archived messages, in {GROUPS // OF_GROUPS:,} of {GROUPS:,} groups"
    return [
        single(f"{what}: erased, the first time", took[0], "s"),
        spread(f"{what}: erased", took, "s", most=2),
        spread("its processor time", cpu, "s"),
        single(f"the daily run that gives their space back, by Spark: {returned / 1e6:,.0f} MB", reclaimed, "s"),
        *(single(f"{each} in memory, at most", most, "MB") for each, most in memory.items()),
    ]


def _reclaim(config: Config, now: int) -> tuple[float, int, dict[str, float]]:
    """Do the run of two days later. Return its seconds, the bytes given back, and the most memory in MB."""
    memory: dict[str, float] = {}
    over = threading.Event()

    def watch() -> None:
        while not over.wait(WATCH_SECONDS):
            found = {"Python": resident_mb(os.getpid())}
            for pid in descendants(os.getpid()):
                with contextlib.suppress(OSError, StopIteration):  # it has just ended
                    kind = "Java" if name(pid) == "java" else "Python"
                    found[kind] = found.get(kind, 0) + resident_mb(pid)
            for kind, megabytes in found.items():
                memory[kind] = max(memory.get(kind, 0), megabytes)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        with closing(RunEnvironment(config, FakeClock(now + 2 * DAY))) as engine:
            began = time.perf_counter()
            done = clean_up(engine)
            took = time.perf_counter() - began
    finally:
        over.set()
        watching.join()
    if done.error or not done.archive_bytes_returned:
        raise RuntimeError(f"{done.archive_bytes_returned} bytes given back; {done.error}")
    return took, done.archive_bytes_returned, memory
