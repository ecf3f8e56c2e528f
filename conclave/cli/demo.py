"""`make demo`: users chat in groups with each policy, cleanup runs, and a table shows the result.

It uses real processes for server and worker, HTTP on the loopback interface, a temporary SQLite database, and real
time. On a slow machine it retries with longer lifetimes. Exit status 1 if anything differs from the policy.
"""

import asyncio
import contextlib
import json
import math
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
from conclave.client.membership import MembershipManager
from conclave.config.settings import KEYS
from conclave.keys.inspection import Inspection
from conclave.store.engine.sqlite import connect
from conclave.store.views import runs

NAMES = ("alice", "bob", "carol")
CODEC = PlaintextCodec()
EXPIRY_SECONDS = 6
CLEANUP_INTERVAL_SECONDS = 1
RUN_TIMEOUT_SECONDS = 1800.0
"""The longest wait for a run; Spark may have to start first."""

MAX_FAILURES = 3
"""The demo gives up after three failed runs."""

CONFIG = """
listen_address = "127.0.0.1"
listen_port = 0
cleanup_interval = "{interval}s"
[admin]
listen_port = 0
"""


@dataclass(frozen=True)
class Expected:
    """The expected result for a message."""

    group: str
    text: str
    stays: bool
    why: str


FRESH = "fresh news"


def expected(lifetime: int = EXPIRY_SECONDS) -> list[Expected]:
    """Return the expected results. ``lifetime``: the last expiry of the group "expiring", in seconds."""
    fresh = f"younger than {lifetime} seconds when cleanup ran"
    return [
        Expected("keep", "kept for good", stays=True, why="no expiry is set"),
        Expected("expiring", "old news", stays=False, why=f"older than {EXPIRY_SECONDS} seconds"),
        Expected("expiring", FRESH, stays=True, why=fresh),
        Expected("fetched", "read by all", stays=False, why="all three have fetched it"),
        Expected("fetched", "not read by carol", stays=True, why="carol has not fetched it yet"),
        Expected("deleted", "in a deleted group", stays=False, why="its group was deleted"),
    ]


class DemoError(Exception):
    """The demo cannot continue. The message is one line."""


@dataclass
class _Observed:
    """The state after a run."""

    served: dict[str, list[str]]
    keys: dict[str, bool]
    """Whether the vault has the key of a message, by its text. Without the key only ciphertext is left."""
    lifetime: int
    """The expiry of the group "expiring", in seconds."""

    def of(self, message: Expected) -> tuple[bool, bool]:
        """Return whether a message is served, and whether its key exists."""
        return message.text in self.served.get(message.group, []), self.keys[message.text]

    def is_right(self) -> bool:
        """Whether everything matches the policies."""
        return all(self.of(message) == (message.stays, message.stays) for message in expected(self.lifetime))


async def main() -> int:
    """Run the demo, and return the exit status."""
    console = Console(width=110)
    with tempfile.TemporaryDirectory(prefix="conclave-demo-") as folder:
        async with _server(Path(folder)) as server, contextlib.AsyncExitStack() as stack:
            console.print(f"Server: {server.url}, database in {folder}.")
            users = [await stack.enter_async_context(Client(server.url)) for _ in NAMES]
            groups, sent = await _send_messages(users)
            console.print("Three users have sent messages in four groups. Waiting for cleanup by Spark.")
            shown = await _clean_up(server, users, groups, sent, console)
    return _show(console, shown)


SentMessages = dict[str, tuple[UUID, int]]
"""Group id and sequence number of messages, by text."""


async def _send_messages(users: list[Client]) -> tuple[dict[str, UUID], SentMessages]:
    """Create a group for each policy, and send messages. Return group ids by name, and the messages."""
    alice, bob, carol = users
    for user, name in zip(users, NAMES, strict=True):
        await user.register(name, "a long password")
        await user.login(name, "a long password")
    groups = {}
    for name in ("keep", "expiring", "fetched", "deleted"):
        group = groups[name] = await MembershipManager(alice, CODEC).create(name, public=True)
        for user in (bob, carol):
            await user.join(group)
    for name, expiry in (("expiring", EXPIRY_SECONDS), ("fetched", 0)):
        await alice.update_group(groups[name], expiry=expiry)
    sent: SentMessages = {}
    for message in expected():
        if message.text != FRESH:
            sent[message.text] = await _send(bob, groups[message.group], message.text)
    for user, limit in ((alice, 100), (bob, 100), (carol, 1)):
        page = await user.fetch(groups["fetched"], limit=limit)
        await user.fetch(groups["fetched"], page[-1].sequence_num, limit)  # confirms that the user has it
    await alice.delete_group(groups["deleted"])
    return groups, sent


async def _send(user: Client, group: UUID, text: str) -> tuple[UUID, int]:
    """Send a message in plaintext; a real client would encrypt it."""
    return group, await user.send(group, CODEC.encode(group, text))


async def _texts(user: Client, group: UUID) -> list[str]:
    """Fetch the messages of a group."""
    return [each.text or "" for each in CODEC.decode(group, await user.fetch(group))]


async def _clean_up(
    server: "_Server", users: list[Client], groups: dict[str, UUID], sent: SentMessages, console: Console
) -> _Observed:
    """Wait for old messages to expire and be erased, send new ones, and observe a run. Raises DemoError."""
    alice, bob, _ = users
    await asyncio.sleep(EXPIRY_SECONDS + 1)
    await server.wait_for_run(int(time.time()) - 1)  # everything is due by then, and Spark is warm afterwards
    lifetime = EXPIRY_SECONDS
    while True:
        began = time.time()
        sent[FRESH] = await _send(bob, groups["expiring"], FRESH)
        await server.wait_for_run(int(time.time()))
        served = {name: await _texts(alice, group) for name, group in groups.items() if name != "deleted"}
        shown = _Observed(served, _keys_of(server.folder, sent), lifetime)
        needed = math.ceil(time.time() - began) + 1  # times of messages are whole seconds, rounded down
        if shown.is_right() or needed < lifetime:
            return shown
        console.print(
            f"This machine is slow: a run took {needed} seconds, and fresh news expired meanwhile. Retrying with an"
            f' expiry of {2 * needed} seconds for "expiring".'
        )
        lifetime = 2 * needed
        await alice.update_group(groups["expiring"], expiry=lifetime)


def _keys_of(folder: Path, sent: SentMessages) -> dict[str, bool]:
    """Return whether the vault has the keys of messages, by text."""
    keys = Inspection(folder / "conclave.vault" / KEYS)
    return {text: keys.have_keys(group.bytes, [number]) == [True] for text, (group, number) in sent.items()}


def _show(console: Console, shown: _Observed) -> int:
    """Print the table. Return 1 if anything differs from the policy."""
    table = Table(title="What cleanup did")
    for heading in ("group", "message", "policy says", "served", "key", "why", ""):
        table.add_column(heading)
    for message in expected(shown.lifetime):
        is_served, has_key = shown.of(message)
        table.add_row(
            message.group,
            message.text,
            "kept" if message.stays else "gone",
            "yes" if is_served else "no",
            "there" if has_key else "destroyed",
            message.why,
            "ok" if is_served == has_key == message.stays else "WRONG",
        )
    console.print(table)
    return 0 if shown.is_right() else 1


class _Server:
    """A server process, whose log is read."""

    def __init__(self, folder: Path, log: asyncio.StreamReader) -> None:
        """``folder``: has all its files. ``log``: its standard error."""
        self.folder = folder
        self.url = ""
        self._log = log
        self._fault = self._words = self._unavailable = ""
        self._listens = asyncio.Event()

    async def read_log(self) -> None:
        """Read the log, and record its URL and failures."""
        async for line in self._log:
            try:
                entry = json.loads(line)
            except ValueError:
                self._words = line.decode(errors="replace").strip()  # an error at the start
                continue
            if entry["event"] == "listening":
                self.url = entry["url"]
                self._listens.set()
            elif entry["event"] in ("cleanup_unavailable", "cleanup_worker_ended"):
                self._unavailable = f": {entry['reason']}"
        self._fault = self._words or "the server has ended"
        self._listens.set()

    async def start(self) -> None:
        """Wait until the server listens. Raises DemoError."""
        await self._listens.wait()
        if not self.url:
            raise DemoError(self._fault)

    async def wait_for_run(self, second: int) -> None:
        """Wait for a successful run that started after ``second``. Raises DemoError."""
        deadline = time.monotonic() + RUN_TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            if self._fault:
                raise DemoError(self._fault)
            with contextlib.closing(connect(self.folder / "conclave.db", readonly=True)) as connection:
                later = [run for run in runs.last(connection, runs.HISTORY_ROWS) if run.started_at > second]
            if any(run.outcome == "ok" for run in later):
                return
            if len(later) >= MAX_FAILURES:
                raise DemoError(f"cleanup runs fail: {later[0].error}")
            await asyncio.sleep(0.2)
        raise DemoError(f"no cleanup run has ended within {RUN_TIMEOUT_SECONDS:.0f} seconds{self._unavailable}")


@contextlib.asynccontextmanager
async def _server(folder: Path) -> AsyncIterator[_Server]:
    """Run a server in ``folder``. Raises DemoError."""
    config = folder / "conclave.toml"
    config.write_text(CONFIG.format(interval=CLEANUP_INTERVAL_SECONDS))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "conclave", "serve", "--config", str(config)),
        cwd=folder,
        stderr=asyncio.subprocess.PIPE,
    )
    if process.stderr is None:
        raise RuntimeError("stderr is not a pipe")
    server = _Server(folder, process.stderr)
    reading = asyncio.create_task(server.read_log())
    try:
        await server.start()
        yield server
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
        await reading


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(main()))
    except DemoError as error:
        sys.exit(f"make demo: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
