"""What no memory helps with: pages that were not read lately, passwords, a start; and what memory that takes."""

import os
import random
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from bench import requests, stores
from bench.figures import Figure, latencies, single, spread
from bench.hot import BODY_BYTES, PAGE, ROUND_SECONDS, ROUNDS, every
from bench.load import Load, Outcome, generator, run
from bench.process import Server, resident_mb
from conclave.auth.passwords import CONCURRENT_CHECKS, hash_password
from conclave.store.engine import sqlite
from conclave.wire.conclave_pb2 import GetMessagesResponse, StoredMessage
from conclave.wire.formats import Format

USERS, GROUPS, MEMBERS = 128, 256, 8
PAGES = 20
"""In each group: 500 MiB of messages in all, several times what a server remembers."""

CONNECTIONS = (1, 32)
LOOKED_INTO = 16
"""Pages whose messages are looked into. They are not asked for again."""

STARTS = 3
QUIET_SECONDS = 3.0
LOGINS = 8
"""Users who log in at once, over and over again."""

PASSWORD = "correct horse"


def reading(folder: Path) -> list[Figure]:
    """Each page is asked for once, in no order, by a member whose watermark it does not move."""
    now = int(time.time())
    body = os.urandom(BODY_BYTES)
    store = stores.build(folder, "sql", now, stores.Shape(USERS, GROUPS, MEMBERS, body=body), [now] * PAGE * PAGES)
    _prepare(store)
    starts = [_start(store) for _ in range(STARTS)]
    with Server(store.config) as server, generator() as process:
        server.wait_for("cleanup_run")
        time.sleep(QUIET_SECONDS)
        port, pid = int(server.url.rpartition(":")[2]), server.process.pid
        before = resident_mb(pid)
        first, *chunks = _chunks(store)
        requests.require_pages(port, [first], Format.PROTOBUF, [body] * PAGE)
        rounds = _read(process, port, chunks, body, now)
        after = resident_mb(pid)
        logins, alone = _log_in(process, port)
    size = sum(map(len, chunks)) * PAGE * BODY_BYTES / 1024**2
    return [
        spread(f"start to the first answer, {GROUPS * PAGES * PAGE:,} messages stored", starts, "s", most=1.5),
        single("resident: server, idle", before, "MB", most=80),
        *_shown(rounds),
        single(f"resident: server, after {size:,.0f} MiB of pages", after, "MB", most=220),
        spread(f"logins, {LOGINS} connections", [each.rate for each in logins], "/s"),
        spread(f"Argon2id alone, {CONCURRENT_CHECKS} at once", alone, "/s"),
        single(
            "logins / Argon2id alone",
            statistics.median(each.rate for each in logins) / statistics.median(alone),
            "times",
        ),
        latencies(f"login, {LOGINS} connections", every(logins)),
    ]


def _prepare(store: stores.Store) -> None:
    """Everybody has fetched everything, and some users have a password."""
    with closing(sqlite.connect(store.config.database)) as connection, sqlite.write_transaction(connection):
        connection.execute(
            "UPDATE members SET watermark = (SELECT last_seq FROM groups WHERE group_key = members.group_key)"
        )
        connection.executemany(
            "UPDATE users SET password_hash = ? WHERE username = ?",
            [(hash_password(PASSWORD), f"user{n}") for n in range(LOGINS)],
        )


def _start(store: stores.Store) -> float:
    began = time.monotonic()
    with Server(store.config) as server:
        requests.ask(int(server.url.rpartition(":")[2]), requests.get("/healthz", Format.JSON))
        return time.monotonic() - began


def _chunks(store: stores.Store) -> list[list[bytes]]:
    """All pages in no order: some to look into, then as many for each round of each number of connections."""
    reader = {group: user for user, groups in enumerate(store.groups_of) for group in groups}
    asked = [
        requests.fetch(store, reader[group], group, Format.PROTOBUF, n * PAGE, PAGE)
        for group in range(GROUPS)
        for n in range(PAGES)
    ]
    random.shuffle(asked)
    parts = ROUNDS * len(CONNECTIONS)
    return [asked[:LOOKED_INTO], *(asked[LOOKED_INTO + n :: parts] for n in range(parts))]


def _read(
    process: ProcessPoolExecutor, port: int, chunks: Sequence[Sequence[bytes]], body: bytes, now: int
) -> dict[int, list[Outcome]]:
    rounds: dict[int, list[Outcome]] = {each: [] for each in CONNECTIONS}
    for n, chunk in enumerate(chunks):
        connections = CONNECTIONS[n % len(CONNECTIONS)]
        load = Load(port, [chunk[each::connections] for each in range(connections)], seconds=None)
        rounds[connections].append(process.submit(run, load).result())
    found = {each for outcomes in rounds.values() for outcome in outcomes for each in outcome.lengths}
    if wrong := found - _lengths(body, now):
        raise RuntimeError(f"answers of {wrong} bytes are no pages of {PAGE}")
    return rounds


def _lengths(body: bytes, now: int) -> set[int]:
    """The lengths that pages of this store have, by the places where they begin."""
    return {
        GetMessagesResponse(
            messages=[
                StoredMessage(sequence_num=number, sender_id=bytes(16), mls_message=body, created_at=now)
                for number in range(n * PAGE + 1, (n + 1) * PAGE + 1)
            ]
        ).ByteSize()
        for n in range(PAGES)
    }


def _shown(rounds: dict[int, list[Outcome]]) -> list[Figure]:
    shown = []
    for connections, outcomes in rounds.items():
        what = f"page of {PAGE} x 1 KiB from the store, {connections} at once, protobuf"
        shown += [spread(what, [each.rate for each in outcomes], "/s"), latencies(what, every(outcomes))]
    return shown


def _log_in(process: ProcessPoolExecutor, port: int) -> tuple[list[Outcome], list[float]]:
    """Return what came of logins, and how many passwords a second are hashed without a server, in turn."""
    asked = [[requests.login(f"user{n}", PASSWORD)] for n in range(LOGINS)]
    logins, alone = [], []
    for _ in range(ROUNDS):
        logins.append(process.submit(run, Load(port, asked, ROUND_SECONDS)).result())
        alone.append(process.submit(checks, ROUND_SECONDS).result())
    return logins, alone


def checks(seconds: float) -> float:
    """Return how many passwords a second this process hashes, as many at once as the server checks."""
    end = time.perf_counter() + seconds

    def check(_: int) -> int:
        done = 0
        while time.perf_counter() < end:
            hash_password(PASSWORD)
            done += 1
        return done

    with ThreadPoolExecutor(CONCURRENT_CHECKS) as threads:
        return sum(threads.map(check, range(CONCURRENT_CHECKS))) / seconds
