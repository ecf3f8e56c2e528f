"""Checks the machine: SQLite, disk space, sync time, open files, ports."""

import contextlib
import errno
import http.client
import os
import resource
import socket
import sqlite3
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from conclave.config.settings import Config
from conclave.doctor.findings import Finding, Level, note, ok, wrong
from conclave.store.engine.faults import free_bytes, free_text, has_inodes
from conclave.store.engine.schema import OLDEST_SQLITE
from conclave.system.data_folder import existing_folder
from conclave.system.reserve import reserves

CRITICAL_FREE_BYTES = 64 * 1024 * 1024
"""Less free space is an error, since cleanup needs some."""

LOW_FREE_BYTES = 1024**3
"""Less free space is worth a note."""

SLOW_SYNC_MS = 20.0
"""A slower sync is worth a note: each group commit waits for one."""

LOW_FILE_LIMIT = 4096
"""A lower limit of open files is worth a note: each client needs two."""

ANSWER_SECONDS = 3.0
"""The time for a listening program to answer, and for a starting server to listen."""

RETRY_SECONDS = 0.1
"""The pause before a faulty port is checked again, within ANSWER_SECONDS."""

_OPTIONS = ("DEFAULT_SYNCHRONOUS", "DEFAULT_WAL", "MAX_VARIABLE_NUMBER", "SECURE_DELETE", "TEMP_STORE", "THREADSAFE")
"""The SQLite options to show. Conclave sets most of them on each connection."""


def sqlite_library() -> Iterator[Finding]:
    """Yield the version and the options of SQLite."""
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        options = sorted(row[0] for row in connection.execute("PRAGMA compile_options"))
    shown_options = [each for each in options if each.startswith(_OPTIONS)]
    says = f"version {sqlite3.sqlite_version}, compiled with {', '.join(shown_options)}"
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        yield wrong("sqlite", says, "use a Python with SQLite 3.37 or newer")
    elif "THREADSAFE=0" in options:
        yield wrong("sqlite", says, "use a Python whose SQLite was compiled with threads")
    else:
        yield ok("sqlite", says)


def disk(config: Config) -> Iterator[Finding]:
    """Yield findings about free space, the reserves for cleanup, and sync time."""
    checked_devices = set()
    for folder in map(existing_folder, (config.database.parent, config.data, config.archive_path)):
        if (device := folder.stat().st_dev) in checked_devices:
            continue
        checked_devices.add(device)
        free, says = free_bytes(folder), f"{folder}: {free_text(folder)}"
        if free < CRITICAL_FREE_BYTES:
            yield wrong("disk", says, "free some space, or let messages expire sooner")
        elif not has_inodes(folder):
            yield wrong("disk", says, "remove files that are not Conclave's: each uses an inode")
        elif free < LOW_FREE_BYTES:
            yield note("disk", says, "free some space before it is full")
        else:
            yield ok("disk", says)
    for reserve in reserves(config):
        if reserve.missing() and config.database.exists():
            says = f"{reserve.path}: {reserve.missing():,} of {reserve.size:,} bytes for cleanup are missing"
            yield note("disk", says, "a running server creates it as soon as there is space")
    yield from _sync(existing_folder(config.database.parent))


def _sync(folder: Path) -> Iterator[Finding]:
    """Yield the duration of a 4 KiB sync, measured with an unnamed temporary file."""
    try:
        descriptor = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
    except (AttributeError, OSError) as error:
        says = f"{folder}: the time of a sync cannot be measured: {getattr(error, 'strerror', error)}"
        yield note("disk", says, "use a local file system that this user may write to")
        return
    try:
        os.write(descriptor, bytes(4096))
        start = time.perf_counter()
        os.fsync(descriptor)
        milliseconds = 1000 * (time.perf_counter() - start)
    finally:
        os.close(descriptor)
    says = f"{folder}: a sync takes {milliseconds:.1f} ms"
    if milliseconds > SLOW_SYNC_MS:
        yield note("disk", says, "each send waits for a sync: use a faster disk, or find out what else writes to it")
    else:
        yield ok("disk", says)


def open_files() -> Iterator[Finding]:
    """Yield a finding about the limit of open files."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        yield ok("open files", "no limit")
    elif hard < LOW_FILE_LIMIT:
        yield note(
            "open files", f"at most {hard:,}, and each client needs two", "LimitNOFILE=65536 in systemd's [Service]"
        )
    else:
        yield ok("open files", f"at most {hard:,}")


def ports(config: Config, runs: Callable[[], bool | None]) -> Iterator[Finding]:
    """Yield whether the ports are free or used by our server. ``runs``: returns whether it runs, or None if unknown."""
    deadline = time.monotonic() + ANSWER_SECONDS
    for name, address, port, tls in (
        ("clients", config.listen_address, config.port, bool(config.tls_cert_path)),
        ("operators", config.admin.listen_address, config.admin.listen_port, False),
    ):
        finding = _port(name, address, port, runs, tls=tls)
        while finding.level is Level.WRONG and time.monotonic() < deadline:  # the server may be starting or stopping
            time.sleep(RETRY_SECONDS)
            finding = _port(name, address, port, runs, tls=tls)
        yield finding


def _port(name: str, address: str, port: int, runs: Callable[[], bool | None], *, tls: bool) -> Finding:
    about = f"port {port}"
    if port == 0:
        return ok(about, f"for {name}: the server uses any free port")
    is_running, fault = runs(), _bind_errno(address, port)
    if fault == 0 and not is_running:
        return ok(about, f"for {name}: free")
    if fault == 0:
        remedy = "read its log: whether it still starts, no_admin_listener, or another configuration"
        return wrong(about, f"for {name}: a server runs, but does not listen at {address}", remedy)
    if fault != errno.EADDRINUSE:
        says = f"for {name}: cannot listen at {address}: {os.strerror(fault) if fault > 0 else 'no such address'}"
        return wrong(about, says, "set a listen_address that this machine has, and a port that this user may use")
    if is_ours := _is_ours(address, port, tls=tls):
        return ok(about, f"for {name}: the server listens")
    if is_running is False:
        remedy = f"stop that program (ss -ltnp sport = :{port}), or set another port"
        return wrong(about, f"for {name}: another program uses it", remedy)
    if is_ours is None:
        says = f"for {name}: the program there has not answered within {ANSWER_SECONDS:g} seconds"
        remedy = "if it is the server, it hangs, is suspended (kill -CONT), or the machine is overloaded: read its log"
        return wrong(about, says, remedy)
    says = f"for {name}: the program there does not answer as Conclave does"
    return wrong(about, says, f"find out which it is: ss -ltnp sport = :{port}")


def _bind_errno(address: str, port: int) -> int:
    """Return the errno of an attempt to listen there: 0 on success, -1 for an unknown address."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    except OSError:
        return -1
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(place)
        except OSError as error:
            return error.errno or -1
    return 0


def _is_ours(address: str, port: int, *, tls: bool) -> bool | None:
    """Return whether a Conclave server answers there; None if there is no answer in time."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)  # noqa: S104 - nothing is bound here
    connection = (
        http.client.HTTPSConnection(host, port, timeout=ANSWER_SECONDS, context=_any_certificate())
        if tls
        else http.client.HTTPConnection(host, port, timeout=ANSWER_SECONDS)
    )
    with contextlib.closing(connection):
        try:
            connection.request("GET", "/healthz")
            return b'"status"' in connection.getresponse().read(1024 * 1024)
        except TimeoutError:
            return None
        except (OSError, http.client.HTTPException):
            return False


def _any_certificate() -> ssl.SSLContext:
    """Return a TLS context that accepts any certificate: the server is local, and nothing secret is sent."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
