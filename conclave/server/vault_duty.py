"""Checks the vault while the server runs, and keeps its copies up to date."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from aiohttp import web

from conclave import app_keys
from conclave.health import background
from conclave.health.parts import HealthPart
from conclave.keys.file import KeyFileError
from conclave.store import keyring
from conclave.store.keyring import VaultError
from conclave.store.ledger import book

CHECK_INTERVAL_SECONDS = 1.0
"""The server checks every second whether the vault exists and its copies are current."""

RECHECK_SECONDS = 60.0
"""Every minute the copies are checked even without a change: one, or its disk, may be missing."""

REST_FACTOR = 10
"""The pause after a renewal is ten times its duration, since each writes the whole key file."""


class VaultCopies:
    """The copies of a vault, renewed after each change."""

    def __init__(self, app: web.Application) -> None:
        """Start without a renewal."""
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
