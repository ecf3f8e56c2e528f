"""How long a run takes that erases messages of an archive: until nothing can read them. It starts no Java."""

import os
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from bench import archives, stores
from bench.archive import GROUPS
from bench.figures import Figure, single, spread
from conclave.archive.layout import DAY
from conclave.clock import FakeClock
from conclave.config.archive import ArchiveConfig
from conclave.store import keyring
from conclave.store.engine import sqlite
from spark.environment import RunEnvironment
from spark.run import clean_up

MESSAGES = int(os.environ.get("CONCLAVE_BENCH_MESSAGES", "10000000"))
ROUNDS = 4
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
    keys.begin((each, 1) for each in groups)
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
    what = f"1% of {MESSAGES:,} archived messages, in {GROUPS // OF_GROUPS:,} of {GROUPS:,} groups"
    return [
        single(f"{what}: erased, the first time", took[0], "s"),
        spread(f"{what}: erased", took, "s", most=2),
        spread("its processor time", cpu, "s"),
    ]
