"""A backup of a large store during sends, one after it that finds most of the work done, and a restore."""

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import uvloop
from aiohttp import ClientSession

from bench import stores
from bench.figures import Figure, latencies, single
from bench.process import Server
from conclave.store.engine.faults import file_size
from tests.support.client import Client

GROUPS, MESSAGES = 100, 10_000
"""Groups, and messages in each of them."""

QUIET_SENDS = 2_000
LOOK_SECONDS = 0.05


def whole(folder: Path) -> list[Figure]:
    """Back up while one sender sends without a pause, and restore elsewhere."""
    now = int(time.time())
    store = stores.build(folder, "sql", now, stores.Shape(users=2, groups=GROUPS, members=2), [])
    for group in range(GROUPS):
        stores.fill(store, group, [now] * MESSAGES)
    with Server(store.config) as server:
        server.wait_for("cleanup_run")
        quiet, busy, (took, said), log_bytes = uvloop.run(_backing_up(server, store, folder))
    size = file_size(store.config.database)
    [backup] = (each for each in (folder / "backups").iterdir() if each.name[0] == "2")
    (folder / "there").mkdir()
    (folder / "there.toml").write_text(
        f'database_path = "{folder}/there/conclave.db"\n[cleanup]\nengine = "sql"\ndisk_reserve = "0"\n'
        f'[vault]\npath = "{store.config.vault_path}"\n'
    )
    restored, _ = _command("restore", str(backup), "--config", str(folder / "there.toml"))
    return [
        single(f"a backup of {GROUPS * MESSAGES:,} messages, {size / 1e6:,.0f} MB", took, "s", most=60),
        latencies("send, before", quiet),
        latencies("send, meanwhile", busy),
        single("the longest that a send waited", max(busy) * 1000, "ms", most=100),
        single("for so long a cleanup run would have waited", _waited(said), "s"),
        single("the write-ahead log at its largest", log_bytes / 1e6, "MB"),
        single("a restore of it", restored, "s"),
    ]


async def _backing_up(
    server: Server, store: stores.Store, folder: Path
) -> tuple[list[float], list[float], tuple[float, str], int]:
    """Return what sends took before and meanwhile, what the backup took and said, and the greatest size of the log."""
    async with ClientSession() as http:
        sender = Client(http, server.url, store.tokens[0])

        async def send() -> float:
            began = time.perf_counter()
            await sender.send(store.groups[-1], stores.BODY)
            return time.perf_counter() - began

        quiet = [await send() for _ in range(QUIET_SENDS)]
        busy = []
        log = store.config.database.with_name(store.config.database.name + "-wal")
        making = asyncio.create_task(
            asyncio.to_thread(_command, "backup", str(folder / "backups"), "--config", str(folder / "conclave.toml"))
        )
        watching = asyncio.create_task(_greatest(log))
        while not making.done():
            busy.append(await send())
        watching.cancel()
        return quiet, busy, await making, await watching


async def _greatest(path: Path) -> int:
    size = 0
    try:
        while True:
            size = max(size, file_size(path))
            await asyncio.sleep(LOOK_SECONDS)
    except asyncio.CancelledError:
        return size


def _command(*words: str) -> tuple[float, str]:
    """Run a command to its end; return the seconds that it took, and what it said."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-P", "-m", "conclave", *words], check=True, stdout=subprocess.PIPE, text=True
    )
    return time.perf_counter() - began, done.stdout


def _waited(said: str) -> float:
    [line] = (each for each in said.splitlines() if each.startswith("cleanup had to wait"))
    return float(line.split()[-2])
