"""Cleanup of a large hot store: the run, the space that is left, and who sends and reads meanwhile.

``CONCLAVE_BENCH_SCALE`` sets how many messages there are. Each case works on a copy of one store.
"""

import asyncio
import json
import os
import shutil
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import uvloop
from aiohttp import ClientSession

from bench import stores
from bench.figures import Figure, latencies, percentile, single, spread
from bench.process import Cleaning, Server
from conclave.config.cleanup import CleanupConfig
from conclave.keys import tree
from conclave.keys.cipher import OVERHEAD_BYTES
from conclave.retention import marks
from conclave.store import bodies, keyring
from conclave.store.engine import sqlite
from conclave.store.resources.messages import COLUMNS
from tests.support.client import Client

MESSAGES = int(os.environ.get("CONCLAVE_BENCH_SCALE", "3000000"))
SMALLER = 10
"""What is compared with the whole has ten times fewer messages."""

GROUPS = 1_000
DUE_SHARE, FEW_SHARE = 7 / 15, 1 / 100
"""Of 3 million messages 1.4 million are due, or 30,000."""

HOUR, DAY = 3_600, 86_400
FEW_AGE, MOST_AGE = 16 * HOUR, 12 * HOUR
"""How long ago the oldest hundredth of each group was sent, and the rest of what is due. All else is sent now."""

PAUSE_SECONDS = 0.005
QUIET_SECONDS = 20.0
PAGE = 100
WARM_UPS, RUNS = 4, 9

MOST_SECONDS, MOST_WAIT_MS, MOST_SLOWER, MOST_LARGER, MOST_DEARER = 240, 40, 2, 1.2, 1.2


@dataclass
class Latencies:
    """How long each request of a steady sender and of a steady reader took, in seconds."""

    sends: list[float]
    reads: list[float]


@dataclass(frozen=True)
class Case:
    """A run on a copy of the store. ``later``: how many seconds after now, when nothing is due, it takes place.

    ``apart``: the groups of which all is due lie among others that keep. Otherwise all groups lose their oldest.
    """

    name: str
    later: int
    due: int
    apart: bool = False


def runs(folder: Path) -> list[Figure]:
    """Much due, little, nothing; by age in all groups, and in some groups whose bodies lie among those of others."""
    now = int(time.time())
    figures: list[Figure] = []
    large, few = MESSAGES, MESSAGES // SMALLER
    built: dict[int, stores.Store] = {}
    for count in (few, large):
        began = time.monotonic()
        built[count] = build(folder / str(count), now, count)
        figures.append(single(f"building {count:,} messages", time.monotonic() - began, "s"))
    for engine in ("sql", "spark"):
        took = _nothing_due(built, engine, now)
        figures += [spread(f"{engine}: {count:,}, nothing due", took[count], "s") for count in built]
        dearer = statistics.median(took[large]) / statistics.median(took[few])
        figures.append(single(f"{engine}: nothing due, {large:,} / {few:,}", dearer, "times", most=MOST_DEARER))
    for count, store in built.items():
        for case in _cases(count):
            figures += _measure(store, case, now, count)
        shutil.rmtree(folder / str(count))
    return figures


_NUMBERS = "WITH RECURSIVE numbers (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n + 1 < :stored)"


def _cases(count: int) -> list[Case]:
    each = count // GROUPS
    whole_groups = round(GROUPS * DUE_SHARE)
    return [
        Case("1% due", DAY - FEW_AGE + HOUR, GROUPS * round(each * FEW_SHARE)),
        Case("47% due, the oldest", DAY - MOST_AGE + HOUR, GROUPS * round(each * DUE_SHARE)),
        Case("47% due, whole groups", DAY - HOUR, whole_groups * each, apart=True),
    ]


def build(folder: Path, now: int, count: int) -> stores.Store:
    """Make a store with ``count`` messages in GROUPS groups, sent in turn; the last group is empty, and keeps."""
    folder.mkdir()
    shape = stores.Shape(users=2, groups=GROUPS + 1, members=2, expiries=(*[DAY] * GROUPS, -1))
    store = stores.build(folder, "sql", now, shape, [])
    each = count // GROUPS
    few, most = round(each * FEW_SHARE), round(each * DUE_SHARE)
    with closing(sqlite.connect(store.config.database)) as connection:
        for pragma in ("journal_mode = OFF", "synchronous = OFF", "locking_mode = EXCLUSIVE", "cache_size = -500000"):
            connection.execute(f"PRAGMA {pragma}").fetchall()
        connection.execute("BEGIN")
        sender = store.creators[0].user_id
        values = {"stored": each * GROUPS, "sender": sender, "now": now}
        connection.execute(
            f"{_NUMBERS} INSERT INTO messages ({COLUMNS})"
            f" SELECT 1 + n / {each}, 1 + n % {each}, :sender, 0, :now - CASE WHEN n % {each} < {few}"
            f" THEN {FEW_AGE} WHEN n % {each} < {most} THEN {MOST_AGE} ELSE 0 END, {len(stores.BODY)} FROM numbers",
            values,
        )
        size = len(stores.BODY) + OVERHEAD_BYTES
        connection.execute(
            f"INSERT INTO message_bodies SELECT message_id, randomblob({size}) FROM messages ORDER BY message_id"
        )
        connection.execute("UPDATE groups SET last_seq = ? WHERE group_key <= ?", (each, GROUPS))
        connection.execute("UPDATE members SET watermark = ? WHERE group_key <= ?", (each, GROUPS))
        connection.execute("COMMIT")
    with closing(sqlite.connect(store.config.database)) as connection:
        connection.execute("PRAGMA journal_mode = WAL").fetchall()
        groups = [row[0] for row in connection.execute("SELECT group_id FROM groups WHERE group_key <= ?", (GROUPS,))]
    with closing(keyring.open_to_serve(store.config.database, store.config.keys_path)) as keys:
        keys.prepare((group_id, number) for group_id in groups for number in range(1, each + tree.BLOCK, tree.BLOCK))
    _make_readable(store, range(each - PAGE + 1, each + 1))
    return store


def _make_readable(store: stores.Store, numbers: Sequence[int]) -> None:
    """Encrypt the bodies that the reader fetches. All others are random bytes, which nothing decrypts."""
    group_id = UUID(store.groups[-2]).bytes
    with stores.opened(store.config) as connection:
        placed = [(group_id, number) for number in numbers]
        stored = bodies.encrypt(connection, placed, [stores.BODY for _ in numbers])
        connection.executemany(
            "UPDATE message_bodies SET body = ? WHERE message_id = ?",
            [(body, bodies.message_id(GROUPS, number)) for body, number in zip(stored, numbers, strict=True)],
        )


@contextmanager
def _copied(store: stores.Store, engine: str) -> Iterator[stores.Store]:
    """Yield a copy of the store, which is removed at the end of the block."""
    folder = store.config.database.parent / "copy"
    folder.mkdir()
    database = Path(shutil.copy(store.config.database, folder))
    config = replace(store.config, database_path=str(database), cleanup=CleanupConfig(engine=engine))
    shutil.copytree(store.config.vault_path, config.vault_path)
    try:
        yield replace(store, config=config)
    finally:
        shutil.rmtree(folder)


def _nothing_due(built: Mapping[int, stores.Store], engine: str, now: int) -> dict[int, list[float]]:
    """Return how long runs take over each store, in turn: a Spark session gets faster for dozens of runs."""
    with ExitStack() as opened:
        copies = {count: opened.enter_context(_copied(store, engine)) for count, store in built.items()}
        cleaning = {count: opened.enter_context(Cleaning(copy.config)) for count, copy in copies.items()}
        rounds = [{count: each.run(now + n) for count, each in cleaning.items()} for n in range(WARM_UPS + RUNS)]
    took: dict[int, list[float]] = {}
    for count in built:
        reports = [each[count] for each in rounds]
        _require_deleted(reports, 0)
        took[count] = [report["seconds"] for report in reports[WARM_UPS:]]
    return took


def _measure(store: stores.Store, case: Case, now: int, count: int) -> list[Figure]:
    with _copied(store, "sql") as copy:
        if case.apart:
            whole_groups = round(GROUPS * DUE_SHARE)
            with closing(sqlite.connect(copy.config.database)) as connection:
                connection.execute(
                    "UPDATE groups SET message_expiry_seconds = iif(group_key <= ?, ?, -1)",
                    (whole_groups, FEW_AGE + HOUR),
                )
                marks.write(connection, copy.config.policy)
        database = copy.config.database
        before = database.stat().st_size
        with Server(copy.config) as server, Cleaning(copy.config) as cleaning:
            server.wait_for("cleanup_run")
            quiet, busy, report = uvloop.run(_beside(server, copy, cleaning, now + case.later, count // GROUPS))
            server.stop()
        _require_deleted([report], case.due)
        after = database.stat().st_size
        fresh = database.with_name("fresh.db")
        with closing(sqlite.connect(database)) as connection:
            connection.execute("VACUUM INTO ?", (str(fresh),))
        larger = after / fresh.stat().st_size
    what = f"{count:,}, {case.name}"
    slower = percentile(busy.sends, 0.99) / percentile(quiet.sends, 0.99)
    return [
        single(f"{what}: the run", report["seconds"], "s", most=MOST_SECONDS),
        single(f"{what}: erased", case.due / report["seconds"], "messages/s"),
        Figure(f"{what}: database file before, after", f"{before / 1e6:,.0f} MB, {after / 1e6:,.0f} MB"),
        single(f"{what}: file after / fresh copy", larger, "times", most=MOST_LARGER),
        latencies(f"{what}: send, before", quiet.sends),
        latencies(f"{what}: send, meanwhile", busy.sends),
        single(f"{what}: p99 of sends, meanwhile / before", slower, "times", most=MOST_SLOWER),
        single(f"{what}: the longest that a send waited", max(busy.sends) * 1000, "ms", most=MOST_WAIT_MS),
        latencies(f"{what}: page of {PAGE}, before", quiet.reads),
        latencies(f"{what}: page of {PAGE}, meanwhile", busy.reads),
    ]


async def _beside(
    server: Server, store: stores.Store, cleaning: Cleaning, now: int, each: int
) -> tuple[Latencies, Latencies, dict[str, Any]]:
    """Send and read all the time, 5 ms after each answer; let a run take place meanwhile.

    The reader fetches the newest page of a group with ``each`` messages.
    """
    async with ClientSession() as http:
        sender, reader = (Client(http, server.url, token) for token in store.tokens)
        kept, read = store.groups[-1], store.groups[-2]
        phases = [Latencies([], []), Latencies([], [])]
        phase, ended = 0, False

        async def send() -> None:
            while not ended:
                began = time.perf_counter()
                await sender.send(kept, stores.BODY)
                phases[phase].sends.append(time.perf_counter() - began)
                await asyncio.sleep(PAUSE_SECONDS)

        async def fetch() -> None:
            while not ended:
                began = time.perf_counter()
                await reader.get(f"/groups/{read}/messages", after=each - PAGE, limit=PAGE)
                phases[phase].reads.append(time.perf_counter() - began)
                await asyncio.sleep(PAUSE_SECONDS)

        tasks = [asyncio.create_task(send()), asyncio.create_task(fetch())]
        await asyncio.sleep(QUIET_SECONDS)
        phase = 1
        report = await asyncio.to_thread(cleaning.run, now)
        ended = True
        await asyncio.gather(*tasks)
    return phases[0], phases[1], report


def _require_deleted(reports: list[dict[str, Any]], count: int) -> None:
    for report in reports:
        if sum(report["deleted"].values()) != count:
            raise RuntimeError(f"{count:,} were due: {json.dumps(report)}")
