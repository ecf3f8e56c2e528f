"""`make demo`: users talk in groups of each policy, Spark cleans up, a table shows what went and why.

Everything is real: the server and its cleanup worker in processes of their own, HTTP over loopback, SQLite in a
temporary directory, and time that really passes. Exits with 1 if anything differs from what the policy says.
"""

import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from rich.console import Console
from rich.table import Table

from conclave.client import Client, PlaintextCodec
from conclave.client.membership import Membership
from conclave.store import runs
from conclave.store.sqlite import connect

NAMES = ("alice", "bob", "carol")
CODEC = PlaintextCodec()
EXPIRY_SECONDS = 6
CLEANUP_INTERVAL_SECONDS = 1
PATIENCE_SECONDS = 90.0
"""At most 90 seconds of waiting for a run. Spark may have to start first, on a slow machine."""

CONFIG = """
listen_address = "127.0.0.1"
listen_port = 0
cleanup_interval = "{interval}s"
[admin]
listen_port = 0
"""


@dataclass(frozen=True)
class Expected:
    """What the policy says about one message."""

    group: str
    text: str
    stays: bool
    why: str


EXPECTED = [
    Expected("keep", "kept for good", stays=True, why="no expiry is set"),
    Expected("expiring", "old news", stays=False, why=f"older than {EXPIRY_SECONDS} seconds"),
    Expected("expiring", "fresh news", stays=True, why=f"younger than {EXPIRY_SECONDS} seconds when cleanup ran"),
    Expected("fetched", "read by all", stays=False, why="all three have fetched it"),
    Expected("fetched", "not read by carol", stays=True, why="carol has not fetched it yet"),
    Expected("deleted", "in a deleted group", stays=False, why="its group was deleted"),
]


async def main() -> int:
    """Run the demo and return its exit status."""
    console = Console(width=110)
    with tempfile.TemporaryDirectory(prefix="conclave-demo-") as folder:
        database = Path(folder) / "conclave.db"
        async with _server(Path(folder)) as url, contextlib.AsyncExitStack() as stack:
            console.print(f"A server on {url}, a database in {folder}.")
            users = [await stack.enter_async_context(Client(url)) for _ in NAMES]
            groups = await _talk(users)
            console.print("Three users have talked in four groups; time passes, and Spark cleans up.")
            await _clean_up(database, users[1], groups["expiring"])
            served = {name: await _texts(users[0], group) for name, group in groups.items() if name != "deleted"}
        stored = _bytes_under(Path(folder))
        return _show(console, served, stored)


async def _talk(users: list[Client]) -> dict[str, UUID]:
    """Let everybody talk in a group of each policy; return the groups' ids by name."""
    alice, bob, carol = users
    for user, name in zip(users, NAMES, strict=True):
        await user.register(name, "a long password")
        await user.login(name, "a long password")
    groups = {}
    for name in ("keep", "expiring", "fetched", "deleted"):
        group = groups[name] = await Membership(alice, CODEC).create(name, public=True)
        for user in (bob, carol):
            await user.join(group)
    for name, expiry in (("expiring", EXPIRY_SECONDS), ("fetched", 0)):
        await alice.update_group(groups[name], expiry=expiry)
    for message in EXPECTED:
        if message.text != "fresh news":
            await _send(bob, groups[message.group], message.text)
    await alice.fetch(groups["fetched"])
    await bob.fetch(groups["fetched"])
    await carol.fetch(groups["fetched"], limit=1)
    await alice.delete_group(groups["deleted"])
    return groups


async def _send(user: Client, group: UUID, text: str) -> None:
    """Send a message; a real client would encrypt it."""
    await user.send(group, CODEC.encode(group, text))


async def _texts(user: Client, group: UUID) -> list[str]:
    """Fetch the texts of a group."""
    return [CODEC.decode(group, each.sender_id, each.mls_message) or "" for each in await user.fetch(group)]


async def _clean_up(database: Path, bob: Client, expiring: UUID) -> None:
    """Let the old news expire, send fresh news, and wait for a run after that."""
    await asyncio.sleep(EXPIRY_SECONDS + 1)
    await _wait_for_run(database, began_after=0)  # Spark is warm from here on
    await _send(bob, expiring, "fresh news")
    await _wait_for_run(database, began_after=int(time.time()))


async def _wait_for_run(database: Path, began_after: int) -> None:
    """Wait until a run has ended that began after ``began_after``, Unix seconds. Raises RuntimeError."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not any(began > began_after for began in _runs(database)):
        if time.monotonic() > deadline:
            raise RuntimeError("no cleanup run has ended in time")
        await asyncio.sleep(0.2)


def _runs(database: Path) -> list[int]:
    """Return when the finished cleanup runs began, Unix seconds."""
    with contextlib.closing(connect(database, readonly=True)) as connection:
        return [run.started_at for run in runs.last(connection, runs.HISTORY_ROWS) if run.outcome == "ok"]


def _bytes_under(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def _show(console: Console, served: dict[str, list[str]], stored: bytes) -> int:
    """Print what was kept and what went; return 1 if anything is not as expected."""
    table = Table(title="What cleanup did")
    for heading in ("group", "message", "policy says", "served", "bytes on disk", "why", ""):
        table.add_column(heading)
    wrong = 0
    for message in EXPECTED:
        is_served = message.text in served.get(message.group, [])
        is_stored = message.text.encode() in stored
        right = is_served == is_stored == message.stays
        wrong += not right
        table.add_row(
            message.group,
            message.text,
            "kept" if message.stays else "gone",
            "yes" if is_served else "no",
            "yes" if is_stored else "none",
            message.why,
            "ok" if right else "WRONG",
        )
    console.print(table)
    return 1 if wrong else 0


@contextlib.asynccontextmanager
async def _server(folder: Path) -> AsyncIterator[str]:
    """Run a server in ``folder``, as a process of its own. Yields its URL."""
    config = folder / "conclave.toml"
    config.write_text(CONFIG.format(interval=CLEANUP_INTERVAL_SECONDS))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "conclave", "serve", "--config", str(config)),
        cwd=folder,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        if process.stderr is None:
            raise RuntimeError("asked for as a pipe")
        url = ""
        async for line in process.stderr:
            with contextlib.suppress(ValueError):
                url = json.loads(line).get("url", "")
            if url:
                break
        else:
            raise RuntimeError("the server did not start")
        rest = asyncio.create_task(_discard(process.stderr))
        yield url
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
    await rest


async def _discard(stream: asyncio.StreamReader) -> None:
    while await stream.read(65_536):
        pass


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
