"""Fixtures: a clock, servers over real sockets, cleanup by either engine."""

import asyncio
import contextlib
import gc
import os
import shutil
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakSet

import hypothesis
import pytest
import structlog
from aiohttp import ClientSession, web

from conclave import app_keys
from conclave.auth import passwords
from conclave.clock import FakeClock
from conclave.config.cleanup import CleanupConfig
from conclave.config.settings import Config
from conclave.server.app import create_app
from conclave.server.client_port import ClientPort, ConnectionLimits, FastPath
from conclave.store import bodies
from conclave.system import signals
from tests.support import forensics, java_classes, sample, stores
from tests.support.cleaner import Cleaner
from tests.support.client import Client
from tests.support.open_keys import OpenKeys

TESTS = Path(__file__).parent

SYSTEM = (TESTS / "processes", TESTS / "deploy")
"""All tests in these folders are system tests; elsewhere those with Spark, and what `pytest.mark.system` names."""

SYSTEM_WORDS = ("mark.system", "cleaner: Cleaner", "cleanup: Cleanup")
"""A module outside these folders that has none of these words has no system tests."""

SLOW_SECONDS = 3.0
"""What takes longer than 3 seconds on a quiet machine is a system test."""

MEMORY = Path("/dev/shm")
"""Where Linux has a file system in memory; in a container it is often too small."""

MEMORY_BYTES = 2 << 30
"""What the tests of a few workers need there at a time, many times over: what one that passed has written goes."""

LONGEST = (
    "test_archive_kills",
    "test_erasure",
    "test_deaths",
    "test_backup",
    "test_working_directory",
    "test_kills",
    "test_operating",
)
"""Modules with tests that take 20 seconds or more: one that began last would be waited for by all workers."""


# How long an example takes, or is made for, is the machine's affair.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")

# structlog's default draws each traceback with what is in every frame, which takes half a second.
structlog.configure(
    processors=[
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.dev.set_exc_info,
        structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
    ]
)


def pytest_configure(config: pytest.Config) -> None:
    """Before xdist starts its workers: they are to have the same sample, and to learn how their processes end."""
    if config.getoption("markexpr") == "not system":
        _write_in_memory()
    signals.reset_inherited()
    sample.choose()
    java_classes.use()


def _write_in_memory() -> None:
    """Have no test wait for a disk, where memory suffices. System tests write to the disk."""
    if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    _name_slow(terminalreporter)
    if not sample.is_all():
        terminalreporter.write_line(f"{sample.VARIABLE}={sample.seed()} has the same sample again; make test-all, all")


def _name_slow(terminalreporter: pytest.TerminalReporter) -> None:
    """Name what may have to become a system test. A busy machine names more: it is printed, never asserted."""
    seconds: dict[str, float] = defaultdict(float)
    for report in chain.from_iterable(terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport) and "system" not in report.keywords:
            seconds[report.nodeid] += report.duration
    slow = sorted((took, name) for name, took in seconds.items() if took > SLOW_SECONDS)
    if slow:
        terminalreporter.section(f"over {SLOW_SECONDS:.0f} s, and no system tests")
        for took, name in reversed(slow):
            terminalreporter.write_line(f"{took:6.1f}s {name}")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect without looking for garbage, and never look for any in what was collected: it stays to the end."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no module that has none of the tests that are asked for: collecting takes each worker many seconds."""
    if not (collection_path.name.startswith("test_") and collection_path.suffix == ".py"):
        return None
    asked = config.getoption("markexpr")
    if any(folder in collection_path.parents for folder in SYSTEM):
        return True if asked == "not system" else None
    return True if asked == "system" and not _may_have_system_tests(collection_path) else None


def _may_have_system_tests(module: Path) -> bool:
    text = module.read_text()
    return any(word in text for word in SYSTEM_WORDS)


def pytest_itemcollected(item: pytest.Item) -> None:
    if any(folder in item.path.parents for folder in SYSTEM):
        item.add_marker(pytest.mark.system)
    elif _is_with_spark(item):
        item.add_marker(pytest.mark.system)
        if not _may_have_system_tests(item.path):
            raise pytest.UsageError(f"{item.nodeid} would never run: its module has none of {SYSTEM_WORDS}")


@pytest.hookimpl(trylast=True)  # only what the command line chooses is shared out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have the workers of xdist end together: each begins with its share of the list, and takes from others' ends.

    One begins with all that needs Spark, so that one session is enough for most of it; the next with what needs
    processes. What is short comes last.
    """
    _sample_engines(items)
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))
    spark = [item for item in items if _needs_spark(item)]
    processes = [item for item in items if TESTS / "processes" in item.path.parents and not _needs_spark(item)]
    first = {*spark, *processes}
    others = [item for item in items if item not in first]
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    filling = max(0, len(items) // workers - len(spark))
    items[:] = [*spark, *others[:filling], *processes, *others[filling:]]


def _sample_engines(items: list[pytest.Item]) -> None:
    """Leave with Spark only a sample of the tests that are there with either engine."""
    with_spark = [item for item in items if "cleanup" in getattr(item, "fixturenames", ()) and _needs_spark(item)]
    chosen = sample.some(with_spark, 4, "tests of both engines, with Spark")
    left = {*with_spark} - {*chosen}
    items[:] = [item for item in items if item not in left]


def _is_with_spark(item: pytest.Item) -> bool:
    return "cleaner" in getattr(item, "fixturenames", ()) and "[spark" in item.name


def _needs_spark(item: pytest.Item) -> bool:
    if "cleaner" not in getattr(item, "fixturenames", ()):
        return False
    return not (isinstance(item, pytest.Function) and "[sql" in item.name)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Have the test fail that leaves a store open, and not any later one, in which Python happens to find it."""
    yield
    threads = {each for each in threading.enumerate() if "_connection_worker_thread" in each.name}
    for each in threads.difference(_left_open):
        each.join(1)  # one that has closed its connection takes a moment to end
    if left := {each for each in threads.difference(_left_open) if each.is_alive()}:
        _left_open.update(left)
        pytest.fail(f"{item.nodeid} leaves a store open", pytrace=False)


_left_open: WeakSet[threading.Thread] = WeakSet()


@pytest.fixture(autouse=True, scope="session")
def template() -> None:
    """Made before any test, which may want to hear itself of each database that is made, or has changed how."""
    stores.template()


@pytest.fixture(autouse=True)
def same_umask() -> Iterator[None]:
    """A command that runs in this process sets the umask, as it may in one of its own."""
    before = os.umask(0o077)
    os.umask(before)
    yield
    os.umask(before)


@pytest.fixture(autouse=True, scope="module")
def keys_of_module() -> Iterator[OpenKeys]:
    """A connection that a test opens itself has the keys of its database, as a server's connections have."""
    opened = OpenKeys()
    with pytest.MonkeyPatch.context() as patch, opened.closing():  # a test may undo what it has patched
        patch.setattr(bodies, "open_keys", opened.of)
        forensics.begin(patch)
        yield opened


@pytest.fixture(autouse=True)
def keys_at_hand(keys_of_module: OpenKeys) -> Iterator[None]:
    with keys_of_module.closing(), forensics.of_test():
        yield


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def password_memory() -> int:
    """What hashing a password takes in memory, KiB: little, or it would be most of the time of most tests."""
    return 8


@pytest.fixture(autouse=True)
def cheap_passwords(monkeypatch: pytest.MonkeyPatch, password_memory: int) -> None:
    monkeypatch.setattr(passwords, "MEMORY_KIB", password_memory)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    # Nothing in reserve, or the disk would fill with those of all tests.
    return Config(database_path=str(tmp_path / "hot.db"), cleanup=CleanupConfig(disk_reserve=0))


@pytest.fixture
def next_fetch(config: Config) -> Config:
    """Settings by which a client has a message once its next fetch says so."""
    return replace(config, retention=replace(config.retention, fetch_confirmation="next_fetch"))


ANY_NUMBER = ConnectionLimits(65_536)
"""More connections than a test opens."""


class Listening:
    """An application that listens as it does in a process of its own, but waits for less at its end."""

    host = "127.0.0.1"

    def __init__(self, app: web.Application) -> None:
        self.app = app
        self.runner = web.AppRunner(app, access_log=None, shutdown_timeout=1, auto_decompress=False)

    async def start(self) -> None:
        await self.runner.setup()
        self.site = ClientPort(self.runner, self.host, 0, ANY_NUMBER, fast_path=FastPath(self.app))
        self.url = await self.site.listen()
        self.port = int(self.url.rpartition(":")[2])

    async def close(self) -> None:
        await self.runner.cleanup()


class Running:
    """A server that runs in this process, on a clock of the test's."""

    def __init__(self, server: Listening, http: ClientSession, config: Config, clock: FakeClock) -> None:
        self.server = server
        self.http = http
        self.config = config
        self.clock = clock
        self.app: web.Application = server.app

    @property
    def url(self) -> str:
        return self.server.url

    async def user(self, username: str) -> Client:
        return await Client.register(self.http, self.url, username)

    async def users(self, *usernames: str) -> list[Client]:
        return [await self.user(username) for username in usernames]

    async def settle(self) -> None:
        """Wait until the server has finished what follows on the responses that were received so far.

        A watermark moves only after its response has left; the connection takes its next request after that. So each
        connection that has had one is asked.
        """
        assert self.http.connector
        idle = sum(map(len, self.http.connector._conns.values()))
        await asyncio.gather(*(self._ask_for_health() for _ in range(max(1, idle))))

    async def _ask_for_health(self) -> None:
        async with self.http.get(f"{self.url}/healthz") as response:
            await response.read()

    async def query(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Look into the store."""
        return await self.app[app_keys.STORE].read(
            lambda connection: [tuple(row) for row in connection.execute(sql, values).fetchall()]
        )


class StartServer(Protocol):
    """Starts a server with a configuration; ``async with`` stops it."""

    def __call__(
        self, config: Config, *, accepts_change: bool = False, accepts_older: bool = False
    ) -> contextlib.AbstractAsyncContextManager[Running]:
        """``accepts_change``, ``accepts_older``: see ``create_app``."""
        ...


@pytest.fixture
def start_server(clock: FakeClock) -> StartServer:
    """Start a server with a configuration; ``async with`` stops it."""

    @contextlib.asynccontextmanager
    async def start(
        config: Config, *, accepts_change: bool = False, accepts_older: bool = False
    ) -> AsyncIterator[Running]:
        if config.database.parent.is_dir() and not os.path.lexists(config.database):
            stores.prepare(config.database)
        app = create_app(config, clock, accepts_change=accepts_change, accepts_older=accepts_older)
        server = Listening(app)
        try:
            await server.start()
            async with ClientSession() as http:
                yield Running(server, http, config, clock)
        finally:
            await server.close()

    return start


@pytest.fixture
async def running(config: Config, start_server: StartServer) -> AsyncIterator[Running]:
    async with start_server(config) as server:
        yield server


@pytest.fixture(scope="session")
def cleaner() -> Iterator[Cleaner]:
    cleaning = Cleaner()
    yield cleaning
    cleaning.close()


Cleanup = Callable[[Running], Awaitable[dict[str, Any]]]


@pytest.fixture(params=["sql", "spark"])
def engine(request: pytest.FixtureRequest) -> str:
    """What does the runs; every test that asks for it has it with both."""
    return str(request.param)


@pytest.fixture
def cleanup(engine: str, cleaner: Cleaner) -> Cleanup:
    """Do one run on a running server's store, at its clock's time; every test has it in both engines."""

    async def run(server: Running) -> dict[str, Any]:
        await server.settle()
        config = replace(server.config, cleanup=replace(server.config.cleanup, engine=engine))
        report = await asyncio.to_thread(cleaner.run, config, server.clock.now(), server.clock.set_by)
        deleted: dict[str, Any] = report["deleted"]
        return deleted

    return run
