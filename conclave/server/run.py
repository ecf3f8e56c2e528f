"""Runs the server, from its configuration to a clean exit."""

import asyncio
import gc
import os
import signal
import socket
import ssl
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import uvloop
from aiohttp import web

from conclave import keys
from conclave.admin.app import create_admin_app
from conclave.admin.guard import Guard, TokenError
from conclave.config.settings import Config
from conclave.health.parts import Phase
from conclave.logs import get_logger
from conclave.server.app import create_app
from conclave.server.listen import Site, for_clients, raise_file_limit
from conclave.server.shortcut import take_shortcut
from conclave.server.supervise import Supervisor
from conclave.store import place, schema
from conclave.store.faults import StoreError
from conclave.store.state import PolicyChangeError, PolicyFrozenError
from conclave.system import data_folder, locks
from conclave.system.memory import give_back_large
from conclave.system.reserve import give_up_to_start

log = get_logger(__name__)

GARBAGE = 20_000
"""Python looks for garbage after 20,000 more objects than before, not after 700: a request leaves none behind."""

SWITCH_SECONDS = 0.0002
"""A thread that waits for the interpreter beside a busy event loop gets it within 0.2 ms, not 5 ms."""

SHUTDOWN_SECONDS = 2.0
"""Requests under way get 2 seconds to finish. Those that are cut off then get 2 seconds more to end."""


class ServeError(Exception):
    """The server cannot start. The message is one line for the operator."""


def serve(config: Config, *, accepts_change: bool = False) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP, then finish what is under way. Raises ServeError.

    ``accepts_change``: an operator agrees to a large change of the policy.
    """
    give_back_large()
    sys.setswitchinterval(SWITCH_SECONDS)
    tls, guard = _tls(config), _guard(config)
    with _only_server(config), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(_serve(config, tls, guard, accepts_change=accepts_change))
        except (StoreError, PolicyFrozenError, PolicyChangeError) as error:
            raise ServeError(str(error)) from error


@contextmanager
def _only_server(config: Config) -> Iterator[None]:
    """Hold the locks of a server while the block lasts. Raises ServeError.

    Two servers on one database would each trust their own memory.
    """
    with ExitStack() as held:
        try:
            _hold(config, held)
        except (StoreError, data_folder.DataFolderError) as error:
            raise ServeError(str(error)) from error
        except OSError as error:
            raise ServeError(f"{error.filename}: {error.strerror}") from error
        yield


def _hold(config: Config, held: ExitStack) -> None:
    """Take every lock of a server. What is there is looked at and locked before anything is made or changed."""
    data_folder.require_own(config.data, config.database, config.archive_path)
    exists = place.is_taken(config.database)
    if exists:
        place.require_writable(config.database)
    with _unshared(f"{config.database}: another server is running on this database"):
        held.enter_context(locks.hold_name(config.database, locks.SERVER))
        if exists:
            held.enter_context(locks.hold_inode(config.database, locks.SERVER))
    data_folder.prepare(config.data, config.database, config.archive_path)
    with _unshared(f"data_path: {config.data}: a server on another database uses this folder"):
        held.enter_context(locks.hold_file(config.data / data_folder.MARK))
    give_up_to_start(config)
    if not exists:
        schema.create(config.database)
        held.enter_context(locks.hold_inode(config.database, locks.SERVER))


@contextmanager
def _unshared(refusal: str) -> Iterator[None]:
    try:
        yield
    except locks.LockedError as error:
        raise ServeError(refusal) from error


async def _serve(config: Config, tls: ssl.SSLContext | None, guard: Guard, *, accepts_change: bool) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup: it outlives its terminal
            loop.add_signal_handler(number, stop.set)
    app = create_app(config, accepts_change=accepts_change)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS, handler_cancellation=False)
    operators = web.AppRunner(create_admin_app(app, guard), access_log=None, shutdown_timeout=SHUTDOWN_SECONDS)
    try:
        files = raise_file_limit()
        await operators.setup()
        admin = Site(operators, config.admin.listen_address, config.admin.listen_port, files)
        admin_url = await _listen_for_operators(admin)
        await runner.setup()
        take_shortcut(app, runner.server)
        url = await _listen(Site(runner, config.listen_address, config.port, for_clients(files), tls))
        _settle_memory()
        log.info("listening", url=url, admin_url=admin_url, database=str(config.database))
        async with Supervisor(config, app[keys.HEALTH]):
            await stop.wait()
            app[keys.HEALTH].phase = Phase.STOPPING  # at once: ending the worker may take a second
            log.info("stopping")
    finally:
        await runner.cleanup()
        await operators.cleanup()
    log.info("stopped")


def _settle_memory() -> None:
    """Leave alone from here on what the start has made: Python would look through it again and again for garbage."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE, *gc.get_threshold()[1:])


async def _listen_for_operators(site: Site) -> str | None:
    """Begin to listen, and return the URL; clients are served even if that fails."""
    try:
        return await _listen(site)
    except ServeError as error:
        log.error("no_admin_listener", reason=str(error))
        return None


async def _listen(site: Site) -> str:
    """Begin to listen, and return the URL. Raises ServeError."""
    try:
        return await site.listen()
    except OSError as error:
        # gaierror has a useful text of its own. The text of other errors is about address tuples.
        reason = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        raise ServeError(f"cannot listen on {site.name}: {reason}") from error


def _guard(config: Config) -> Guard:
    try:
        return Guard(config.admin)
    except TokenError as error:
        raise ServeError(str(error)) from error


def _tls(config: Config) -> ssl.SSLContext | None:
    if not (config.tls_cert_path and config.tls_key_path):
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    for setting, path in (("tls_cert_path", config.tls_cert_path), ("tls_key_path", config.tls_key_path)):
        try:
            Path(path).open("rb").close()
        except OSError as error:
            raise ServeError(f"{setting}: {path}: {error.strerror}") from error
    try:
        context.load_cert_chain(config.tls_cert_path, config.tls_key_path)
    except (OSError, ssl.SSLError) as error:
        raise ServeError(_tls_fault(config.tls_cert_path, config.tls_key_path, error)) from error
    return context


def _tls_fault(certificate: str, key: str, error: Exception) -> str:
    """Return which of the two readable files cannot be used, and why. OpenSSL does not say which."""
    reason = str(getattr(error, "reason", None) or error).replace("_", " ").lower()
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(certificate)
    except ssl.SSLError:
        return f"tls_cert_path: {certificate}: holds no certificate in PEM"
    if "mismatch" in reason:
        return f"tls_key_path: {key}: is not the key of {certificate}"
    return f"tls_key_path: {key}: cannot be used: {reason}"
