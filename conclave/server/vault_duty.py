"""Checks the vault while the server runs, keeps its copies up to date, and writes its ledger.

At the start, the ledger is replayed on a restored database.
"""

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

from aiohttp import web

from conclave import app_keys
from conclave.actions.replay import IncompleteError, ReplayResult, replay, require_complete
from conclave.clock import Clock
from conclave.health import background
from conclave.health.parts import HealthPart
from conclave.keys.file import KeyFileError
from conclave.keys.store import KeyStore
from conclave.logs.setup import get_logger
from conclave.store import keyring, unreadable
from conclave.store.engine.database import Database
from conclave.store.engine.faults import StoreError
from conclave.store.keyring import VaultError
from conclave.store.ledger import book, changes
from conclave.store.ledger.book import LedgerError

log = get_logger(__name__)

CHECK_INTERVAL_SECONDS = 1.0
"""The server checks every second whether the vault exists and its copies are current."""

RECHECK_SECONDS = 60.0
"""Every minute the copies are checked even without a change: one, or its disk, may be missing."""

REST_FACTOR = 10
"""The pause after a renewal is ten times its duration, since each writes the whole key file."""


class VaultCopies:
    """The copies of a vault, renewed after each change."""

    def __init__(self, app: web.Application) -> None:
        self._keys, self._config = app[app_keys.STORE].open_keys(), app[app_keys.CONFIG]
        self._renewed_version: object = None
        self._paused_until = self._recheck_at = 0.0
        self._last_error: VaultError | None = None
        self._renewal: asyncio.Future[None] | None = None

    async def renew(self, *, is_last: bool = False) -> None:
        """Renew all copies if the vault has changed and the pause is over. Raises VaultError."""
        version = self._keys.serial, book.file_stamp(self._config.ledger_path)
        is_current = version == self._renewed_version and time.monotonic() < self._recheck_at
        if is_current or not self._config.vault_copies:
            return
        if not is_last and time.monotonic() < self._paused_until:
            if self._last_error:
                raise self._last_error
            return
        if self._renewal and not self._renewal.done():  # the duty was cancelled, but its thread still runs
            await asyncio.wait({self._renewal})
            version = self._keys.serial, book.file_stamp(self._config.ledger_path)
        began_at, self._last_error = time.monotonic(), None
        arguments = self._keys, self._config.ledger_path, self._config.vault_copies
        self._renewal = asyncio.ensure_future(asyncio.to_thread(keyring.update_copies, *arguments))
        try:
            await asyncio.shield(self._renewal)
        except VaultError as error:
            self._last_error = error
            raise
        finally:
            ended_at = time.monotonic()
            self._paused_until, self._recheck_at = (
                ended_at + REST_FACTOR * (ended_at - began_at),
                ended_at + RECHECK_SECONDS,
            )
        self._renewed_version = version


async def keep_vault(app: web.Application) -> AsyncIterator[None]:
    """Check the vault and renew its copies. A clean stop renews them too, unless the last renewal failed."""
    health, keys, copies = app[app_keys.HEALTH], app[app_keys.STORE].open_keys(), VaultCopies(app)

    async def check() -> None:
        try:
            await asyncio.to_thread(keys.refresh)
        except KeyFileError as error:
            raise VaultError(f"vault.path: {error}") from error

    async with contextlib.AsyncExitStack() as stack:
        for part, duty in ((HealthPart.VAULT, check), (HealthPart.VAULT_COPIES, copies.renew)):
            await stack.enter_async_context(background.every(health, part, CHECK_INTERVAL_SECONDS, duty))
        yield
    if HealthPart.VAULT_COPIES not in health.faults:
        with health.duty(HealthPart.VAULT_COPIES):
            await copies.renew(is_last=True)


ADVICE = (
    ": restore the newest vault, or a copy of it; with --accept-older-vault deleted messages may come back;"
    " see docs/operations/vault.md#if-it-is-lost-or-older"
)
"""The end of each error message."""

LEDGER_INTERVAL_SECONDS = 1.0
"""New entries are written to the ledger every second."""

LEDGER_HEARTBEAT_SECONDS = 60.0
"""Every minute the ledger records that the store is in use, even without other entries."""


async def keep_ledger(app: web.Application) -> AsyncIterator[None]:
    """Write new entries to the purge ledger; first replay it if the database was restored.

    No request waits for the ledger: pending entries are in the database. Raises StoreError at the start if the ledger
    is missing or unusable, or if the database is an older copy and the ledger does not reach back to it.
    """
    store, health, clock = app[app_keys.STORE], app[app_keys.HEALTH], app[app_keys.CLOCK]
    path, next_heartbeat = app[app_keys.CONFIG].ledger_path, 0.0
    await _prepare_ledger(store, path, clock, accepts_older=app[app_keys.ACCEPTS_OLDER])

    async def write(*, is_stopping: bool = False) -> None:
        nonlocal next_heartbeat
        is_heartbeat_due = is_stopping or time.monotonic() >= next_heartbeat
        if is_heartbeat_due or await store.read(changes.has_pending):
            state = await store.write(changes.claim, is_alive=is_heartbeat_due)
            next_heartbeat = time.monotonic() + LEDGER_HEARTBEAT_SECONDS
            while entries := await store.read(changes.pending_entries, state.claimed, clock.now()):
                last = await asyncio.to_thread(book.append, path, state.ledger_id, state.written, entries)
                changes.require_own(await store.read(changes.ledger_state), path, last)
                await store.write(changes.forget_written, entries)

    with health.duty(HealthPart.LEDGER):
        await write()
    async with background.every(health, HealthPart.LEDGER, LEDGER_INTERVAL_SECONDS, write):
        yield
    with health.duty(HealthPart.LEDGER):
        await write(is_stopping=True)


def require_ledger(connection: sqlite3.Connection, path: Path) -> None:
    """Raise StoreError if a start would fail because of the ledger. It changes nothing."""
    try:
        _require_usable(path, connection)
    except LedgerError as error:
        raise StoreError(f"{error}{ADVICE}") from error


def _require_usable(path: Path, connection: sqlite3.Connection) -> bool:
    """Return whether the database is an older copy. Raises LedgerError if the ledger is incomplete."""
    tip, state = book.tip(path), changes.ledger_state(connection)
    is_older = changes.is_older(state, tip)
    if is_older:
        require_complete(connection, path)
    else:
        book.require_sound(path, state.ledger_id, state.written)
    return is_older


def _replay(
    connection: sqlite3.Connection, path: Path, now: int, keys: KeyStore, *, accept_incomplete: bool
) -> ReplayResult:
    """Replay the ledger on an older copy of the database, in one transaction."""
    result = replay(connection, path, now, keys.blocks(), accept_incomplete=accept_incomplete)
    result.counts["messages_erased"] = unreadable.remove_all(connection, keys)
    return result


def _is_older(path: Path, connection: sqlite3.Connection) -> bool | LedgerError:
    """Return the result of ``_require_usable``, or its error: raised in a read, it would count as a database fault."""
    try:
        return _require_usable(path, connection)
    except LedgerError as error:
        return error


async def _prepare_ledger(store: Database, path: Path, clock: Clock, *, accepts_older: bool) -> None:
    """Replay the ledger if the database was restored. Raises StoreError.

    ``accepts_older``: accept a ledger that is missing, unusable, or does not reach back far enough.
    """
    keys = store.open_keys()
    found = await store.read(partial(_is_older, path))
    if found is False:
        with contextlib.suppress(StoreError):  # the first write reports it
            state = await store.read(changes.ledger_state)
            ledger_number = await asyncio.to_thread(changes.resume_history, state, path, clock.now())
            await store.write(changes.note_restored, ledger_number)
        return
    if isinstance(found, LedgerError):
        if not accepts_older:
            raise StoreError(f"{found}{ADVICE}") from found
        log.warning("older_ledger_accepted", reason=str(found))
        if not isinstance(found, IncompleteError):
            await asyncio.to_thread(book.rename_unusable, path)
    result = await store.write(partial(_replay, accept_incomplete=accepts_older), path, clock.now(), keys)
    log.warning("ledger_replayed", **result.counts)
    await store.write(keyring.settle, keys)
