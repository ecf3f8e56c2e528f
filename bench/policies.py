"""What many policies cost: cleanup runs with little due, and pages of groups with an override or a legal hold."""

import sqlite3
import statistics
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench import stores
from bench.figures import Figure, single, spread
from bench.process import Cleaning
from bench.stores import Store
from conclave.clock import FakeClock
from conclave.config.cleanup import CleanupConfig
from conclave.config.retention import RetentionConfig
from conclave.config.settings import Config
from conclave.retention import marks
from conclave.retention.resolve import LifetimeLimits, LifetimeRange, Lifetimes
from conclave.store.engine import sqlite
from conclave.store.resources import messages, state
from conclave.wire import page_writer
from conclave.wire.formats import Format

GROUPS, MEMBERS, MESSAGES = 25_000, 8, 4
EXPIRIES = (-1, 0, *(86_400 * days for days in range(30, 48)))
LEAST = (-1, 3600)
OVERRIDES, HOLDS = 100, 100
WARM_UPS, RUNS = 2, 9
PAGES, ROUNDS = 300, 7


def nothing_due(folder: Path) -> list[Figure]:
    """40 policies, 100 overrides and 100 legal holds; then pages of groups with and without them.

    In each run a session is due, without which the Spark engine would not plan by Spark.
    """
    now = int(time.time())
    shape = stores.Shape(users=2_000, groups=GROUPS, members=MEMBERS, expiries=EXPIRIES)
    store = stores.build(folder, "spark", now, shape, [now] * MESSAGES)
    config = _governed(store, now)
    warm: dict[str, list[float]] = {}
    for engine in ("spark", "sql"):
        with Cleaning(replace(config, cleanup=CleanupConfig(engine=engine))) as cleaning:
            reports = [_run(cleaning, config, now + n) for n in range(WARM_UPS + RUNS)]
        warm[engine] = [report["seconds"] for report in reports[WARM_UPS:]]
    what = f"{GROUPS:,} groups of {MEMBERS}, {len(EXPIRIES) * len(LEAST)} policies, a session due"
    return [
        spread(f"Spark, warm: {what}", warm["spark"], "s", most=2),
        spread(f"SQL: {what}", warm["sql"], "s", most=0.2),
        *_reads(store, config, now),
    ]


def _run(cleaning: Cleaning, config: Config, now: int) -> dict[str, Any]:
    stores.expire_session(config.database)
    report = cleaning.run(now)
    if sum(report["deleted"].values()) != 1:
        raise RuntimeError(f"a session was due, and {report['deleted']} went")
    return report


def _governed(store: Store, now: int) -> Config:
    """Set least lifetimes, overrides and legal holds; return the configuration that knows them."""
    overrides = {group_id: Lifetimes(max_lifetime=86_400 * 90) for group_id in store.groups[:OVERRIDES]}
    limits = LifetimeLimits(max_lifetime=LifetimeRange(min=3600))
    config = replace(store.config, retention=RetentionConfig(groups=overrides, limits=limits))
    with closing(sqlite.connect(config.database)) as connection, sqlite.write_transaction(connection):
        state.begin_serving(connection, config.policy, FakeClock(now).read())
        keys = [creator.group.group_key for creator in store.creators]
        connection.executemany(
            "UPDATE groups SET min_lifetime_seconds = ? WHERE group_key = ?",
            [(LEAST[(n // len(EXPIRIES)) % len(LEAST)], key) for n, key in enumerate(keys)],
        )
        marks.write(connection, config.policy)
        connection.executemany(
            "INSERT INTO holds (group_key, subject_id, name, reason, added_by, added_at)"
            " VALUES (?, x'', '', '', '', 0)",
            [(key,) for key in keys[OVERRIDES : OVERRIDES + HOLDS]],
        )
    return config


def _reads(store: Store, config: Config, now: int) -> list[Figure]:
    """Read pages from the store in turn: of plain groups, of those with an override, of those with a hold."""
    places = {"an override": 0, "a legal hold": OVERRIDES, "neither": OVERRIDES + HOLDS}
    taken: dict[str, list[float]] = {name: [] for name in places}
    with closing(sqlite.connect(config.database, readonly=True)) as connection:
        for _ in range(ROUNDS):
            for name, first in places.items():
                began = time.perf_counter()
                for n in range(PAGES):
                    _page(store, connection, first + n % OVERRIDES, now)
                taken[name].append(time.perf_counter() - began)
    plain = statistics.median(taken["neither"])
    return [
        single(
            f"a page of a group with {name} / with neither", statistics.median(taken[name]) / plain, "times", most=1.1
        )
        for name, each in taken.items()
        if name != "neither"
    ]


def _page(store: Store, connection: sqlite3.Connection, group: int, now: int) -> None:
    creator = store.creators[group]
    messages.read_page(
        *(connection, creator.group.group_id, creator.user_id, 0, 100, FakeClock(now)),
        page_writer.message_writer(Format.JSON),
    )
