"""How long it takes until messages of an archive under keys cannot be read, where files are overwritten later."""

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
from conclave.retention.jobs import ALL
from conclave.store import keyring
from conclave.store.engine import sqlite
from spark.environment import RunEnvironment
from spark.hot_store import Hot
from spark.lost_keys import lose_first
from spark.report import Report

MESSAGES = int(os.environ.get("CONCLAVE_BENCH_MESSAGES", "10000000"))
A_HUNDREDTH = archives.DAYS // 100
"""Of messages of 400 days, those of four days."""

ROUNDS = 5


def soon(folder: Path) -> list[Figure]:
    """Purge the oldest hundredth of every group, again and again. Their bodies are no ciphertext; none is looked at."""
    now = int(time.time())
    store = stores.build(folder, "spark", now, stores.Shape(8, GROUPS, 4), [])
    config = replace(store.config, archive=ArchiveConfig(after=DAY, rewrite_after=7 * DAY))
    keys = keyring.open_to_serve(config.database, config.keys_path)
    assert keys
    with closing(sqlite.connect(config.database, readonly=True)) as connection:
        groups = [row[0] for row in connection.execute("SELECT group_id FROM groups")]
    keys.begin((each, 1) for each in groups)
    keys.close()
    archives.Archive(replace(store, config=config), [MESSAGES // GROUPS] * GROUPS, now).build()
    took, cpu = [], []
    with closing(RunEnvironment(config, FakeClock(now))) as engine:
        for turn in range(1, ROUNDS + 1):
            oldest = now - archives.DAYS * DAY
            with closing(sqlite.connect(config.database)) as connection, sqlite.write_transaction(connection):
                connection.execute("UPDATE groups SET expired_before = ?", (oldest + turn * A_HUNDREDTH * DAY,))
            done, began, worked = Report("spark", now), time.perf_counter(), time.process_time()
            lose_first(engine, Hot(config.database, config.policy, now), done, set(), ALL)
            took.append(time.perf_counter() - began)
            cpu.append(time.process_time() - worked)
            if done.error or not 0.9 < done.counts["expired"] * 100 / MESSAGES < 1.1:
                raise RuntimeError(f"{done.counts} of {MESSAGES:,}; {done.error}")
    what = f"1% of {MESSAGES:,} archived messages, of all {GROUPS:,} groups"
    return [
        single(f"{what}: unreadable, the first time", took[0], "s"),
        spread(f"{what}: unreadable", took, "s", most=2),
        spread("its processor time", cpu, "s"),
    ]
