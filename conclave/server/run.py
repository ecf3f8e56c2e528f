"""Runs the server from start to clean exit."""

import asyncio
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import uvloop
from aiohttp import web

from conclave import __version__, app_keys
from conclave.admin.access import Guard, TokenError
from conclave.admin.app import create_admin_app
from conclave.config import warnings
from conclave.config.load import BUILT_IN
from conclave.config.settings import LOCK, Config
from conclave.health.parts import Phase
from conclave.logs.setup import get_logger
from conclave.server import start_check
from conclave.server.app import create_app
from conclave.server.client_port import ClientPort, ConnectionLimits, FastPath
from conclave.server.reload import Reloader
from conclave.server.stop_limit import StopLimit
from conclave.server.supervise import Supervisor
from conclave.server.tls import Tls, TlsError, load_context, warn_if_invalid
from conclave.store.engine import path_check, schema
from conclave.store.engine.faults import StoreError
from conclave.store.resources import state
from conclave.store.resources.state import PolicyChangeError, PolicyFrozenError
from conclave.system import data_folder, locks, signals
from conclave.system.notify import ServiceManager
from conclave.system.process_limits import raise_file_limit, set_mmap_threshold
from conclave.system.reserve import release_for_start
from conclave.system.signals import Hangups, ignore_hangup

log = get_logger(__name__)

GC_THRESHOLD = 20_000
"""The threshold of Python's garbage collection, instead of 700: requests leave no reference cycles."""

SWITCH_INTERVAL_SECONDS = 0.0002
"""The interval after which Python switches threads, instead of 5 ms."""

SHUTDOWN_SECONDS = 2.0
"""Requests in progress get 2 seconds to finish, and 2 more after they are cancelled."""


class ServeError(Exception):
    """The server cannot start. The message has a line for each reason."""


def serve(
    config: Config,
    source: Path | None,
    hangups: Hangups,
    *,
    accepts_change: bool = False,
    accepts_older: bool = False,
) -> None:
    """Serve until SIGTERM or SIGINT, then shut down. Raises ServeError.

    ``source``: the configuration file, which SIGHUP reloads; None for the defaults. ``hangups``: has collected SIGHUP
    since before the file was read. ``accepts_change`` and ``accepts_older``: see ``create_app``.
    """
    manager = ServiceManager.from_environment()
    set_mmap_threshold()
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    if refusals := start_check.find_refusals(config, None, accepts_older=accepts_older):
        raise ServeError("\n".join(each.says for each in refusals))
    try:
        context, guard = load_context(config), Guard(config.admin)
    except (TlsError, TokenError) as error:
        raise ServeError(str(error)) from error
    if context:
        warn_if_invalid(context, config)
    tls = Tls(context) if context else None
    with _server_locks(config), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            app = create_app(config, accepts_change=accepts_change, accepts_older=accepts_older)
            runner.run(_serve(app, source, tls, guard, manager, hangups))
        except (StoreError, PolicyFrozenError, PolicyChangeError) as error:
            raise ServeError(str(error)) from error


@contextmanager
def _server_locks(config: Config) -> Iterator[None]:
    """Hold the locks of a server while the block lasts. Raises ServeError.

    Two servers on one database would each serve from their own cache.
    """
    with ExitStack() as stack:
        try:
            _take_locks(config, stack)
        except (StoreError, data_folder.DataFolderError) as error:
            raise ServeError(str(error)) from error
        except PermissionError as error:
            remedy = f"the server runs as user {os.geteuid()}: let it read and write there"
            raise ServeError(f"{error.filename}: {error.strerror}: {remedy}") from error
        except OSError as error:
            raise ServeError(f"{error.filename}: {error.strerror}") from error
        yield


def _take_locks(config: Config, stack: ExitStack) -> None:
    """Take every lock of a server. Existing files are locked before anything is created or changed."""
    exists = path_check.is_taken(config.database)
    with _refuse_if_locked(f"{config.database}: another server is running on this database"):
        stack.enter_context(locks.hold_name(config.database, locks.SERVER))
        if exists:
            stack.enter_context(locks.hold_inode(config.database, locks.SERVER))
    if not exists:
        config.vault_path.mkdir(mode=0o700, exist_ok=True)
    with _refuse_if_locked(f"vault.path: {config.vault_path}: another server, or a restore, uses it"):
        _lock_vault(config, stack)
    data_folder.prepare(config.data, config.database, config.archive_path)
    with _refuse_if_locked(f"data_path: {config.data}: a server on another database uses this folder"):
        stack.enter_context(locks.hold_file(config.data / data_folder.MARKER))
    release_for_start(config)
    if not exists:
        schema.create(config.database)
        stack.enter_context(locks.hold_inode(config.database, locks.SERVER))


def _lock_vault(config: Config, stack: ExitStack) -> None:
    """Lock the vault against servers on a copy of the database. Raises LockedError.

    A missing vault is reported when it is opened.
    """
    with suppress(FileNotFoundError):
        stack.enter_context(locks.hold_file(config.vault_path / LOCK))


@contextmanager
def _refuse_if_locked(refusal: str) -> Iterator[None]:
    try:
        yield
    except locks.LockedError as error:
        raise ServeError(refusal) from error


async def _serve(
    app: web.Application,
    source: Path | None,
    tls: Tls | None,
    guard: Guard,
    manager: ServiceManager,
    hangups: Hangups,
) -> None:
    """Serve until a stop signal."""
    stop, reload = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    config = app[app_keys.CONFIG]
    supervisor = Supervisor(config, app[app_keys.HEALTH])
    limit = StopLimit(supervisor.kill)

    def request_stop() -> None:
        stop.set()
        limit.begin()

    for signal_number in signals.stop_signals():
        loop.add_signal_handler(signal_number, request_stop)
    # Not by the loop: after it is closed, SIGHUP would kill the process.
    hangups.set_handler(lambda: loop.call_soon_threadsafe(reload.set))  # an earlier one is delivered now
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS, handler_cancellation=False)
    operators = web.AppRunner(
        create_admin_app(app, guard, supervisor), access_log=None, shutdown_timeout=SHUTDOWN_SECONDS
    )
    try:
        files = raise_file_limit()
        await operators.setup()
        admin_limits = ConnectionLimits.for_operators()
        admin = ClientPort(operators, config.admin.listen_address, config.admin.listen_port, admin_limits)
        admin_url = await _listen_for_operators(admin)
        await runner.setup()
        limits, context = ConnectionLimits.for_clients(files), tls.context if tls else None
        url = await _listen(ClientPort(runner, config.listen_address, config.port, limits, context, FastPath(app)))
        _freeze_objects()
        log.info(
            "listening", url=url, admin_url=admin_url, database=str(config.database), **_start_facts(config, source)
        )
        async with (
            supervisor,
            manager.watchdog(lambda: app[app_keys.STORE].read(state.stored_policy)),
            Reloader(config, app[app_keys.HEALTH], supervisor, tls, source, reload, manager),
        ):
            manager.ready(f"serving at {url}")
            await stop.wait()
            app[app_keys.HEALTH].phase = Phase.STOPPING  # at once: stopping the worker may take a second
            log.info("stopping")
            manager.stopping()
            app[app_keys.STORE].limit_lock_wait()
    finally:
        limit.begin()  # even if the start failed
        manager.close()
        await runner.cleanup()
        await operators.cleanup()
        ignore_hangup()
    log.info("stopped")


def _start_facts(config: Config, source: Path | None) -> dict[str, str]:
    """Return the facts that the log shows at a start."""
    return {
        "version": __version__,
        "configuration": str(source or BUILT_IN),
        "retention": warnings.retention_in_words(config),
        "cleanup": warnings.cleanup_in_words(config),
        "archive": warnings.archive_in_words(config),
    }


def _freeze_objects() -> None:
    """Exclude the objects of the start from garbage collection."""
    gc.unfreeze()  # objects frozen after the imports
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, *gc.get_threshold()[1:])


async def _listen_for_operators(port: ClientPort) -> str | None:
    """Start to listen, and return the URL; None if that fails: clients are served anyway."""
    try:
        return await _listen(port)
    except ServeError as error:
        log.error("no_admin_listener", reason=str(error))
        return None


async def _listen(port: ClientPort) -> str:
    """Start to listen, and return the URL. Raises ServeError."""
    try:
        return await port.listen()
    except OSError as error:
        raise ServeError(f"cannot listen on {port.name}: {start_check.explain_bind_error(error, port.port)}") from error
