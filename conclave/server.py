"""Serving: from the configuration to a clean exit."""

import asyncio
import fcntl
import os
import signal
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

import uvloop
from aiohttp import web

from conclave import keys
from conclave.admin import create_admin_app
from conclave.app import create_app
from conclave.config import Config
from conclave.connections import Site, for_clients, raise_file_limit
from conclave.logs import get_logger
from conclave.memory import give_back_large
from conclave.store.database import StoreError
from conclave.store.state import PolicyFrozenError
from conclave.supervise import Supervisor

log = get_logger(__name__)

SHUTDOWN_SECONDS = 2.0
"""How long requests under way may take to finish; as long again is left for those that are cut off then."""


class ServeError(Exception):
    """The server cannot start; the message is one line for the operator."""


def serve(config: Config) -> None:
    """Serve until SIGTERM or SIGINT, then finish what is under way. Raises ServeError."""
    give_back_large()
    with _only_server(config), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(_serve(config))
        except (StoreError, PolicyFrozenError) as error:
            raise ServeError(str(error)) from error


@contextmanager
def _only_server(config: Config) -> Iterator[None]:
    """Hold the database: two servers on one database would each believe their own memory."""
    try:
        config.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        config.data.chmod(0o700)
        lock = config.database.with_name(f"{config.database.name}.server-lock").open("w")
    except OSError as error:
        raise ServeError(f"{error.filename}: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ServeError(f"{config.database}: another server is running on this database") from error
        yield


async def _serve(config: Config) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    app = create_app(config)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS, handler_cancellation=False)
    operators = web.AppRunner(create_admin_app(app[keys.HEALTH]), access_log=None, shutdown_timeout=SHUTDOWN_SECONDS)
    try:
        files = raise_file_limit()
        await operators.setup()
        admin = Site(operators, config.admin.listen_address, config.admin.listen_port, files)
        admin_url = await _listen_for_operators(admin)
        await runner.setup()
        url = await _listen(Site(runner, config.listen_address, config.port, for_clients(files), _tls(config)))
        log.info("listening", url=url, admin_url=admin_url, database=str(config.database))
        async with Supervisor(config, app[keys.HEALTH]):
            await stop.wait()
            log.info("stopping")
    finally:
        await runner.cleanup()
        await operators.cleanup()
    log.info("stopped")


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
        # A name that does not resolve has a text of its own; that of the rest is about address tuples.
        reason = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        raise ServeError(f"cannot listen on {site.name}: {reason}") from error


def _tls(config: Config) -> ssl.SSLContext | None:
    if not (config.tls_cert_path and config.tls_key_path):
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(config.tls_cert_path, config.tls_key_path)
    except (OSError, ssl.SSLError) as error:
        raise ServeError(f"tls_cert_path, tls_key_path: cannot be used: {error}") from error
    return context
