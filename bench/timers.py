"""Timers of self-destructing messages: very many that run, and many that end in the same second."""

import asyncio
import time
from contextlib import closing
from pathlib import Path

import uvloop
from aiohttp import ClientSession

from bench.figures import Figure, single
from bench.process import Server, cpu_seconds, resident_mb
from bench.streams import Stream
from conclave.config.cleanup import CleanupConfig
from conclave.config.settings import Config
from conclave.store.engine import sqlite
from tests.support.client import Client

PENDING, ENDING = 100_000, 1_000
"""Timers that run; timers that end in the same second, of one reader."""

IDLE_SECONDS, SETTLE_SECONDS = 15, 5
SECONDS = 5
PATIENCE_SECONDS = 30.0
SENT_AT_ONCE = 20


class Reader(Stream):
    """A stream that notes when each event of a redaction came, by the wall clock."""

    def listen(self) -> None:
        """Forget what was heard before."""
        super().listen()
        self.times: list[float] = []
        self.all_heard: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        """Note the events."""
        self.times += [time.time()] * data.count(b"event: message_redacted")
        if len(self.times) == ENDING and not self.all_heard.done():
            self.all_heard.set_result(None)
        super().data_received(data)


def many(folder: Path) -> list[Figure]:
    """Compare an idle server with and without timers, and see how late the events of one second come."""
    return uvloop.run(_many(folder))


async def _many(folder: Path) -> list[Figure]:
    config = Config(
        database_path=str(folder / "conclave.db"), cleanup=CleanupConfig(engine="sql"), cleanup_interval=86_400
    )
    with Server(config) as server:
        worst = await _end_together(server, config.database)
    used = []
    for count in (0, PENDING):
        _plant(config.database, count)
        with Server(config) as server:
            server.wait_for("cleanup_run")
            await asyncio.sleep(SETTLE_SECONDS)
            before = cpu_seconds(server.process.pid)
            await asyncio.sleep(IDLE_SECONDS)
            percent = (cpu_seconds(server.process.pid) - before) * 100 / IDLE_SECONDS
            used.append((resident_mb(server.process.pid), percent))
    (without, idle), (with_timers, busy) = used
    return [
        single(f"{ENDING:,} timers that end in one second: the last event after the end", worst, "s", most=1),
        single(f"resident: what {PENDING:,} timers add to an idle server", with_timers - without, "MB", most=50),
        single("CPU of an idle server without timers", idle, "%"),
        single(f"CPU of an idle server with {PENDING:,} timers", busy, "%"),
    ]


async def _end_together(server: Server, database: Path) -> float:
    """Return how long after the end of its timers a reader has heard of all of them."""
    async with ClientSession() as http:
        alice, bob = [await Client.register(http, server.url, name) for name in ("alice", "bob")]
        group = await alice.create_group("friends")
        await bob.join(group)
        for _ in range(0, ENDING, SENT_AT_ONCE):
            await asyncio.gather(*(alice.send(group, seconds=3600) for _ in range(SENT_AT_ONCE)))
        reader = await Reader.open(server, bob)
        with closing(sqlite.connect(database)) as connection, sqlite.write_transaction(connection):
            connection.execute("UPDATE self_destructing SET seconds = ?", (SECONDS,))
        await bob.read(group, ENDING)
        with closing(sqlite.connect(database, readonly=True)) as connection:
            [end] = [row[0] for row in connection.execute("SELECT DISTINCT redact_at FROM timers WHERE seconds = 5")]
        await asyncio.wait_for(reader.all_heard, PATIENCE_SECONDS)
        reader.transport.close()
        return max(reader.times) - float(end)


def _plant(database: Path, count: int) -> None:
    """Have timers that run for long, of a member, in the place of all others."""
    with closing(sqlite.connect(database)) as connection, sqlite.write_transaction(connection):
        connection.execute("DELETE FROM timers")
        connection.execute("DELETE FROM self_destructing")
        of_whom = connection.execute("SELECT group_key, member_id FROM members LIMIT 1").fetchone()
        rows = [(of_whom[0], 10_000 + number) for number in range(count)]
        connection.executemany("INSERT INTO self_destructing VALUES (?, ?, 3600, 0)", rows)
        ends = int(time.time()) + 86_400
        connection.executemany(
            "INSERT INTO timers (group_key, sequence_num, member_id, seconds, redact_at) VALUES (?, ?, ?, 3600, ?)",
            [(*row, of_whom[1], ends) for row in rows],
        )
