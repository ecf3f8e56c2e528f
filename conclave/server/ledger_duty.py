"""Keeps the purge ledger while the server runs, and has a restored database learn from it at the start."""

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import AsyncIterator
from pathlib import Path

from aiohttp import web

from conclave import app_keys
from conclave.actions.replay import IncompleteError, replay, require_complete
from conclave.clock import Clock
from conclave.config.settings import Config
from conclave.health import background
from conclave.health.parts import HealthPart
from conclave.logs.setup import get_logger
from conclave.store.engine.database import Database
from conclave.store.engine.faults import StoreError
from conclave.store.ledger import book, branches, changes
from conclave.store.ledger.book import LedgerError
from conclave.system import ledger_mark

log = get_logger(__name__)

ADVICE = "; see docs/operations/ledger.md#if-it-cannot-be-written"
"""What a refusal ends with."""

LEDGER_INTERVAL_SECONDS = 1.0
"""Every second the purge ledger learns what was hidden, ended or deleted."""

LEDGER_ALIVE_SECONDS = 60.0
"""Every minute the ledger learns that the store is in use, also if nothing else has happened."""


async def keep_ledger(app: web.Application) -> AsyncIterator[None]:
    """Write to the purge ledger what was hidden, ended or deleted; first have a restored database learn of it.

    No request waits for the ledger: what cannot be written yet waits in the database. Raises StoreError at the start if
    the database is an older copy, and the ledger is not there, or cannot tell all that it must not bring back.
    """
    store, health, clock = app[app_keys.STORE], app[app_keys.HEALTH], app[app_keys.CLOCK]
    config, next_alive = app[app_keys.CONFIG], 0.0
    path, data = config.ledger_path, config.data
    await store.read(_require_ledger_of_copy, config.database, path, data)
    flaw, flawed_file = await _begin_with_ledger(store, path, clock), book.identity(path)

    async def write(*, is_stopping: bool = False) -> None:
        nonlocal next_alive
        is_alive = is_stopping or time.monotonic() >= next_alive
        if is_alive or await store.read(changes.are_waiting):
            claimed = await store.write(changes.claim, is_alive=is_alive)
            next_alive = time.monotonic() + LEDGER_ALIVE_SECONDS
            await asyncio.to_thread(ledger_mark.note, data, claimed.ledger_id, claimed.claimed)
            while entries := await store.read(changes.waiting, claimed.claimed, clock.now()):
                last = await asyncio.to_thread(book.append, path, claimed.ledger_id, claimed.written, entries)
                changes.require_own(await store.read(changes.standing), path, last)
                await store.write(changes.were_written, entries)
        if flaw and book.identity(path) == flawed_file:
            raise LedgerError(str(flaw))  # it goes on, but what it had is not what it should have

    with health.duty(HealthPart.LEDGER):
        await write()
    async with background.every(health, HealthPart.LEDGER, LEDGER_INTERVAL_SECONDS, write):
        yield
    with health.duty(HealthPart.LEDGER):
        await write(is_stopping=True)


def require_known(connection: sqlite3.Connection, config: Config) -> None:
    """Raise StoreError if a start would not serve the database for what its ledger tells, or cannot tell.

    Nothing is changed.
    """
    path = config.ledger_path
    try:
        tip = book.tip(path)
    except LedgerError:
        tip = None  # health tells of it, unless the database is an older copy
    standing = changes.standing(connection)
    _require_ledger_of_copy(connection, config.database, path, config.data)
    if branches.is_older(standing, tip):
        try:
            require_complete(connection, path)
        except IncompleteError as error:
            raise StoreError(f"{error}{ADVICE}") from error
        except LedgerError:
            return  # as at the start, health tells of it


def _require_ledger_of_copy(connection: sqlite3.Connection, database: Path, path: Path, data: Path) -> None:
    """Raise StoreError if the database is an older copy of the one that was served here, and its ledger is not there.

    A database that is no copy is served without its ledger: clients do not wait for that.
    """
    standing = changes.standing(connection)
    if ledger_mark.noted(data, standing.ledger_id) <= standing.counter:
        return
    try:
        tip = book.tip(path)
        reason = "" if tip and tip[0] == standing.ledger_id else f"{path}: that is not there"
    except LedgerError as error:
        reason = str(error)
    if reason:
        raise StoreError(
            f"{database}: is an older copy of the database that was served here, and the purge ledger, which tells"
            f" what must not come back, is away: {reason}. Bring it back; or remove {data / ledger_mark.NAME}, and what"
            " was deleted since is served again"
        )


async def _begin_with_ledger(store: Database, path: Path, clock: Clock) -> LedgerError | None:
    """Have a restored database learn from the ledger; return what is wrong with the file. Raises StoreError."""
    try:
        tip = await asyncio.to_thread(book.tip, path)
        standing = await store.read(changes.standing)
        if not branches.is_older(standing, tip):
            await asyncio.to_thread(book.require_sound, path, standing.ledger_id, standing.written)
            with contextlib.suppress(StoreError):  # the first write tells of what is wrong
                number = await asyncio.to_thread(branches.take_up, standing, path, clock.now())
                await store.write(changes.know_restored, number)
            return None
    except LedgerError as error:
        return error
    try:
        done = await store.write(replay, path, clock.now())
    except IncompleteError as error:
        raise StoreError(f"{error}{ADVICE}") from error
    log.warning("ledger_replayed", **done.counts)
    return None
