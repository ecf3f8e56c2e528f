"""Measures file sizes, free disk space, and the memory of the cleanup worker and its Java process.

Measuring may be slow or hang, so it is done in a thread, on request, at most every few seconds. If a disk does not
respond within a second, the last values are used, with their age.
"""

import asyncio
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from aiohttp import web

from conclave import app_keys
from conclave.health.parts import Phase
from conclave.store import keyring
from conclave.store.archive import reclaiming
from conclave.store.engine.faults import StoreError, file_size
from conclave.store.resources import audit
from conclave.store.resources.audit import AuditAction

FRESH_SECONDS = 5.0
"""How long values are reused."""

WAIT_SECONDS = 1.0
"""The longest wait for new values."""

WALK_SECONDS = 15.0
"""The shortest interval between walks through the archive's files."""

WALK_PAUSE_FACTOR = 100
"""After a walk, the next one is delayed by at least 100 times its duration."""

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Measurements:
    """The measured values, in bytes."""

    taken_at: float = 0.0
    """Seconds of the monotonic clock; 0 before the first measurement."""
    files: dict[str, int] = field(default_factory=dict)
    """Sizes by kind of file."""
    disks: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Free and total bytes of the file system of each place."""
    memory: dict[str, int] = field(default_factory=dict)
    """The resident memory of the cleanup worker and its Java process."""
    free_pages: int | None = None
    """Unused bytes in the database file; None: unknown."""
    vault_copies: Mapping[str, str] | None = None
    """The faults of the vault's copies by folder, "" for a current one; None: unknown."""
    dead: int | None = None
    """The number of erased messages that use space in the archive; None: unknown."""
    backup_at: int | None = None
    """When the last backup was made, Unix seconds; 0: none; None: unknown."""


class Sizes:
    """Measures for one server. ``last``: the last values."""

    def __init__(self, client_app: web.Application) -> None:
        """``client_app``: the clients' application."""
        self.last = Measurements()
        self._client_app = client_app
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sizes")
        self._task: asyncio.Task[None] | None = None
        self._next_walk = 0.0
        self._archive = 0

    @property
    def age(self) -> float:
        """The age of the values in seconds."""
        return time.monotonic() - self.last.taken_at

    async def refresh(self) -> None:
        """Measure again if the values are too old; wait at most WAIT_SECONDS."""
        if self._task is None or self._task.done():
            if time.monotonic() < self.last.taken_at + FRESH_SECONDS:
                return
            self._task = asyncio.create_task(self._measure())
        await asyncio.wait({self._task}, timeout=WAIT_SECONDS)
        if self._task.done():
            self._task.result()

    async def close(self) -> None:
        """Stop measuring, without waiting for a hanging disk."""
        if self._task:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _measure(self) -> None:
        loop, worker = asyncio.get_running_loop(), self._client_app[app_keys.HEALTH].worker
        measured = await loop.run_in_executor(self._thread, self._measure_files, worker)
        self.last = replace(self.last, **measured)
        if self._client_app[app_keys.HEALTH].phase is Phase.SERVING:
            # Health reports errors of the store. ValueError: the store has been closed.
            with suppress(StoreError, sqlite3.Error, ValueError):
                store_values = await self._client_app[app_keys.STORE].read(_read_store)
                vault_copies = await loop.run_in_executor(self._thread, self._copy_faults)
                self.last = replace(self.last, vault_copies=vault_copies, **store_values)

    def _copy_faults(self) -> dict[str, str]:
        config, keys = self._client_app[app_keys.CONFIG], self._client_app[app_keys.STORE].open_keys()
        return {str(each): keyring.copy_fault(each, keys, config.ledger_path) for each in config.vault_copies}

    def _measure_files(self, worker: int | None) -> dict[str, Any]:
        """Measure all but the values of the store."""
        config = self._client_app[app_keys.CONFIG]
        database = config.database
        files = {"database": file_size(database), "wal": file_size(database.with_name(f"{database.name}-wal"))}
        places = {"database": database.parent, "data": config.data, "archive": config.archive_path}
        disks = {name: found for name, folder in places.items() if (found := _disk(folder))}
        if "archive" in disks:
            files["archive"] = self._archive_bytes(config.archive_path)
        memory = group_memory(worker) if worker else {}
        return {"taken_at": time.monotonic(), "files": files, "disks": disks, "memory": memory}

    def _archive_bytes(self, folder: Path) -> int:
        start = time.monotonic()
        if start >= self._next_walk:
            self._archive = sum(_file_sizes(folder))
            end = time.monotonic()
            self._next_walk = end + max(WALK_SECONDS, WALK_PAUSE_FACTOR * (end - start))
        return self._archive


def group_memory(leader: int) -> dict[str, int]:
    """Return the resident bytes of a process group, separately for Java and all other processes.

    ``leader``: the id of the group, which is the process id of the cleanup worker. Empty on systems
    other than Linux.
    """
    resident_bytes: dict[str, int] = {}
    with suppress(OSError):
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                command, group, resident = _process(folder)
                if group == leader:
                    kind = "java" if command == "java" else "worker"
                    resident_bytes[kind] = resident_bytes.get(kind, 0) + resident
    return resident_bytes


def _process(folder: Path) -> tuple[str, int, int]:
    """Return the command, the process group and the resident bytes of a process; group 0 if it has ended."""
    try:
        head, _, tail = (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")
    except OSError:
        return "", 0, 0
    values = tail.split()
    return head.partition("(")[2], int(values[2]), int(values[21]) * _PAGE_BYTES


def _read_store(connection: sqlite3.Connection) -> dict[str, Any]:
    """Read the values of the store."""
    return {
        "free_pages": _free_bytes(connection),
        "dead": reclaiming.dead(connection).messages,
        "backup_at": audit.last_at(connection, AuditAction.BACKUP_MADE),
    }


def _free_bytes(connection: sqlite3.Connection) -> int:
    """Return the unused bytes in the database's file."""
    [pages] = connection.execute("PRAGMA freelist_count").fetchone()
    [size] = connection.execute("PRAGMA page_size").fetchone()
    return int(pages) * int(size)


def _disk(folder: Path) -> tuple[int, int] | None:
    """Return the free and total bytes of a folder's file system; None if the folder does not exist."""
    try:
        status = os.statvfs(folder)
    except OSError:
        return None
    return status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize


def _file_sizes(folder: Path) -> Iterator[int]:
    """Yield the size of every file below ``folder``; 0 for files that were deleted in between."""
    for root, _, names in os.walk(folder):
        for name in names:
            yield file_size(Path(root, name))
