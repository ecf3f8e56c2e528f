"""`make demo`: users talk in groups of each policy, Spark cleans up, a table shows what went and why.

Everything is real: the server and its cleanup worker in processes of their own, HTTP over loopback, SQLite in a
temporary directory, and time that really passes. Exits with 1 if anything differs from what the policy says.
"""

import asyncio
import base64
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import ClientSession
from rich.console import Console
from rich.table import Table

from conclave.store import runs
from conclave.store.sqlite import connect

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


@dataclass
class User:
    """A user of the demo's server."""

    http: ClientSession
    url: str
    name: str
    token: str = ""

    async def call(self, method: str, path: str, **body: Any) -> dict[str, Any]:
        """Send a request and return the answer. Raises RuntimeError unless it is a success."""
        headers = {"Authorization": f"Bearer {self.token}"}
        url = f"{self.url}/api/v1{path}"
        async with self.http.request(method, url, json=body or None, headers=headers) as response:
            answer: dict[str, Any] = await response.json()
            if response.status >= 400:
                raise RuntimeError(f"{self.name}: {method} {path}: {answer}")
            return answer

    async def begin(self) -> None:
        """Register and log in."""
        await self.call("POST", "/register", username=self.name, password="a long password")  # noqa: S106 - of a demo
        self.token = (await self.call("POST", "/login", username=self.name, password="a long password"))["token"]  # noqa: S106 - of a demo

    async def send(self, group: str, text: str) -> None:
        """Send a message; a client would encrypt it first."""
        await self.call("POST", f"/groups/{group}/messages", mls_message=base64.b64encode(text.encode()).decode())

    async def read(self, group: str, limit: int = 100) -> list[str]:
        """Fetch the messages of a group."""
        page = await self.call("GET", f"/groups/{group}/messages?limit={limit}")
        return [base64.b64decode(each["mls_message"]).decode() for each in page["messages"]]


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
        async with _server(Path(folder)) as url, ClientSession() as http:
            console.print(f"A server on {url}, a database in {folder}.")
            users = [User(http, url, name) for name in ("alice", "bob", "carol")]
            groups = await _talk(users)
            console.print("Three users have talked in four groups; time passes, and Spark cleans up.")
            await _clean_up(database, users[1], groups["expiring"])
            served = {name: await users[0].read(group) for name, group in groups.items() if name != "deleted"}
        stored = _bytes_under(Path(folder))
        return _show(console, served, stored)


async def _talk(users: list[User]) -> dict[str, str]:
    """Let everybody talk in a group of each policy; return the groups' ids by name."""
    alice, bob, carol = users
    for user in users:
        await user.begin()
    groups = {}
    for name in ("keep", "expiring", "fetched", "deleted"):
        group = groups[name] = (await alice.call("POST", "/groups", group_name=name))["group_id"]
        await alice.call("POST", f"/groups/{group}/commit", group_info=base64.b64encode(b"MLS group info").decode())
        await alice.call("PATCH", f"/groups/{group}", visibility="public")
        for user in (bob, carol):
            await user.call("POST", f"/groups/{group}/join")
    for name, expiry in (("expiring", EXPIRY_SECONDS), ("fetched", 0)):
        settings = {"message_expiry_seconds": expiry, "update_message_expiry": True}
        await alice.call("PATCH", f"/groups/{groups[name]}", **settings)
    for message in EXPECTED:
        if message.text != "fresh news":
            await bob.send(groups[message.group], message.text)
    await alice.read(groups["fetched"])
    await bob.read(groups["fetched"])
    await carol.read(groups["fetched"], limit=1)
    await alice.call("POST", f"/groups/{groups['deleted']}/delete")
    return groups


async def _clean_up(database: Path, bob: User, expiring: str) -> None:
    """Let the old news expire, send fresh news, and wait for a run after that."""
    await asyncio.sleep(EXPIRY_SECONDS + 1)
    await _wait_for_run(database, began_after=0)  # Spark is warm from here on
    await bob.send(expiring, "fresh news")
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
