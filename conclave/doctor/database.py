"""Checks the database and its vault, read-only: schema, clock, keys, runs, overdue messages, write-ahead log."""

import contextlib
import os
import sqlite3
from collections.abc import Iterator

from conclave.clock import Clock
from conclave.config.settings import Config
from conclave.doctor.findings import Finding, note, ok, wrong
from conclave.keys.file import KeyFileError
from conclave.keys.inspection import Inspection
from conclave.retention.durations import duration_text
from conclave.retention.jobs import schedule
from conclave.store import keyring, message_keys
from conclave.store.engine import path_check, schema, sqlite
from conclave.store.engine.database import WAL_KEPT_BYTES
from conclave.store.engine.faults import StoreError, file_size
from conclave.store.resources import state
from conclave.store.views import overdue, runs

_DAMAGED = "stop the server, keep a copy of the files, and restore a backup"

_NOT_OURS = "run this as the server's user, or correct the permissions"

_READ = "read docs/operations/vault.md"

LONG_WAL_BYTES = 4 * WAL_KEPT_BYTES
"""A write-ahead log larger than 64 MiB is worth a note."""


def database(config: Config, clock: Clock, *, is_running: bool | None) -> Iterator[Finding]:
    """Yield findings about the database. ``is_running``: whether a server runs; None: unknown."""
    path = config.database
    if not path_check.is_taken(path):
        yield note(
            "database",
            f"{path}: does not exist",
            "`conclave serve` creates it; check database_path if it should exist",
        )
        return
    yield from path_check.read_undisturbed(
        path, lambda frozen: list(_read(config, clock, is_running=is_running, frozen=frozen))
    )
    yield from _wal(config)


def _read(config: Config, clock: Clock, *, is_running: bool | None, frozen: bool) -> Iterator[Finding]:
    path = config.database
    try:
        with contextlib.closing(sqlite.connect(path, readonly=True, frozen=frozen)) as connection:
            connection.execute("BEGIN")
            yield from _inspect(connection, config, clock, is_running=is_running)
    except (sqlite3.Error, StoreError) as error:
        is_ours = os.access(path, os.R_OK) and os.access(path.parent, os.W_OK)
        yield wrong("database", f"{path}: cannot be read: {error}", _DAMAGED if is_ours else _NOT_OURS)


def _inspect(
    connection: sqlite3.Connection, config: Config, clock: Clock, *, is_running: bool | None
) -> Iterator[Finding]:
    version, newest = connection.execute("PRAGMA user_version").fetchone()[0], schema.migrations()[-1][0]
    if version != newest:
        says = f"{config.database}: its schema version is {version}, this program's is {newest}"
        if version > newest:
            yield wrong("database", says, "use the newer Conclave that created it")
        else:
            yield note("database", says, "make a backup; the next start of this version's server migrates it")
        return
    size = connection.execute("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size").fetchone()[0]
    yield ok("database", f"{config.database}: {size:,} bytes, schema version {version}")
    former = state.stored_policy(connection)
    if former is None:
        yield note("database", "no server has run on it yet", "start `conclave serve`")
        return
    if differing := config.policy.differing(former):
        says = f"{', '.join(differing)}: the file differs from the settings in force"
        yield note("configuration", says, "restart the server; `conclave check-config` shows the effect")
    fault = state.check_clock(connection, clock.read())
    if fault:
        remedy = "set the clock right, then `conclave cleanup run --accept-clock`"
        yield wrong("clock", f"{fault}: nothing is erased", remedy)
    else:
        yield ok("clock", "agrees with the stored time")
    yield from vault(connection, config)
    yield from _runs(connection, config, clock.now(), is_running=is_running)
    if not fault:
        yield from _overdue(connection, config, clock.now())


def vault(connection: sqlite3.Connection, config: Config) -> Iterator[Finding]:
    """Yield findings about the vault and its copies. ``start_check`` finds the reasons that prevent a start."""
    state = message_keys.state(connection)
    if state is None:
        yield ok("vault", "no server has run on this database yet: the first start creates its vault")
        return
    try:
        key_file = Inspection(config.keys_path)
    except KeyFileError as error:
        yield wrong("vault", f"{error}: no message can be read", f"restore the vault or a copy: {_READ}")
        return
    if key_file.keys_id != state.keys_id:
        yield wrong("vault", f"{config.vault_path}: belongs to another database", f"restore the right one: {_READ}")
        return
    if key_file.serial < state.serial:
        yield wrong("vault", f"{config.vault_path}: is older than the database", f"restore the newest: {_READ}")
        return
    count = message_keys.count(connection)
    yield ok("vault", f"{config.vault_path}: {key_file.size:,} bytes of keys; {count:,} messages need them")
    if not config.vault_copies:
        says = "there is no copy of the vault: if it is lost, all messages are"
        yield note("vault", says, "set vault.copies to folders on other disks")
    for each in config.vault_copies:
        if fault := keyring.copy_fault(each, key_file, config.ledger_path):
            yield wrong("vault", fault, "the server renews it when it can: check its disk")
        else:
            yield ok("vault", f"{each}: is an up-to-date copy")


def _runs(connection: sqlite3.Connection, config: Config, now: int, *, is_running: bool | None) -> Iterator[Finding]:
    history = "`conclave cleanup history` has details"
    last = runs.last(connection, 1)
    if not last:
        yield note("cleanup", "there was no run yet", "a running server starts one at once")
        return
    last_success = max(runs.last_successes(connection).values(), default=None)
    ago = "never" if last_success is None else f"{_rounded(max(0, now - last_success))} ago"
    if last[0].outcome != "ok":
        yield wrong(
            "cleanup",
            f"the last run failed: {last[0].error or 'no reason recorded'}; the last successful one: {ago}",
            history,
        )
        return
    longest = max(seconds for _, seconds in schedule(config.retention.purge_jobs, config.cleanup_interval))
    if last_success is None or now - last_success > 2 * longest:
        remedy = f"read the server's log; {history}" if is_running else "start the server, or `conclave cleanup run`"
        yield wrong(
            "cleanup", f"the last successful run began {ago}, and one is due every {duration_text(longest)}", remedy
        )
    else:
        yield ok("cleanup", f"the last successful run began {ago}")


def _overdue(connection: sqlite3.Connection, config: Config, now: int) -> Iterator[Finding]:
    runs_due = schedule(config.retention.purge_jobs, config.cleanup_interval)
    waiting, skipped = overdue.with_late(connection, runs_due, now)
    if skipped.groups:
        since = _rounded(skipped.seconds)
        says = f"two runs should have erased something in {skipped.groups:,} groups, the first {since} ago"
        yield wrong("overdue", says, "`conclave group list --overdue` lists the groups")
    else:
        yield ok("overdue", f"nothing is late ({waiting.groups:,} groups wait for the next run)")


def _wal(config: Config) -> Iterator[Finding]:
    size = file_size(config.database.with_name(config.database.name + "-wal"))
    if size > LONG_WAL_BYTES:
        says = f"the write-ahead log has {size:,} bytes"
        yield note(
            "database", says, "look for a program that reads the database for a long time, such as a backup or a shell"
        )
    else:
        yield ok("database", f"the write-ahead log has {size:,} bytes")


def _rounded(seconds: int) -> str:
    return duration_text(seconds - seconds % 60) if seconds >= 60 else f"{seconds}s"
