"""Looks after the vault while the server runs: whether it is there, and whether its copies are up to date."""

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

LOOK_SECONDS = 1.0
"""Every second the server looks whether the vault is there, and whether its copies lack a change."""

RECHECK_SECONDS = 60.0
"""Every minute it looks at the copies although nothing has changed: one may be gone, or its disk away."""

REST_FACTOR = 10
"""After a renewal of the copies they rest ten times as long as it took: the whole key file is written each time."""


class VaultCopies:
    """The copies of a vault, which are renewed once it has changed."""

    def __init__(self, app: web.Application) -> None:
        """Nothing is known of them yet."""
        self._keys, self._config = app[app_keys.STORE].open_keys(), app[app_keys.CONFIG]
        self._renewed: object = None
        self._rests_until = self._again = 0.0
        self._failed: VaultError | None = None
        self._under_way: asyncio.Future[None] | None = None

    async def renew(self, *, is_last: bool = False) -> None:
        """Renew all copies, if the vault has changed, and they have rested. Raises VaultError."""
        current = self._keys.serial, book.file_stamp(self._config.ledger_path)
        is_known = current == self._renewed and time.monotonic() < self._again
        if is_known or not self._config.vault_copies:
            return
        if not is_last and time.monotonic() < self._rests_until:
            if self._failed:
                raise self._failed
            return
        if self._under_way and not self._under_way.done():  # the duty was cancelled, and its thread goes on
            await asyncio.wait({self._under_way})
            current = self._keys.serial, book.file_stamp(self._config.ledger_path)
        began, self._failed = time.monotonic(), None
        values = self._keys, self._config.ledger_path, self._config.vault_copies
        self._under_way = asyncio.ensure_future(asyncio.to_thread(keyring.update_copies, *values))
        try:
            await asyncio.shield(self._under_way)
        except VaultError as error:
            self._failed = error
            raise
        finally:
            ended = time.monotonic()
            self._rests_until, self._again = ended + REST_FACTOR * (ended - began), ended + RECHECK_SECONDS
        self._renewed = current


async def keep_vault(app: web.Application) -> AsyncIterator[None]:
    """Look after the vault and its copies. A clean stop renews these too, unless they could not be renewed before."""
    health, keys, copies = app[app_keys.HEALTH], app[app_keys.STORE].open_keys(), VaultCopies(app)

    async def look() -> None:
        try:
            await asyncio.to_thread(keys.refresh)
        except KeyFileError as error:
            raise VaultError(f"vault.path: {error}") from error

    async with contextlib.AsyncExitStack() as stack:
        for part, duty in ((HealthPart.VAULT, look), (HealthPart.VAULT_COPIES, copies.renew)):
            await stack.enter_async_context(background.every(health, part, LOOK_SECONDS, duty))
        yield
    if HealthPart.VAULT_COPIES not in health.faults:
        with health.duty(HealthPart.VAULT_COPIES):
            await copies.renew(is_last=True)
