"""Measures what takes time or may hang: files, free disk space, the memory of the cleanup worker and its Java process.

It is measured in a thread, when it is asked for and the last time is some seconds ago. A disk that does not answer,
such as an archive over a network, delays no request for longer than a second: then the last numbers stand, and say how
old they are.
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
"""Numbers are told again for 5 seconds."""

WAIT_SECONDS = 1.0
"""Who asks waits at most a second for new numbers."""

WALK_SECONDS = 15.0
"""The files of the archive are looked at every 15 seconds at most."""

WALK_SHARE = 100
"""Such looks take at most a hundredth of the time: after one that was slow the next one comes later."""

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Measurements:
    """What was found, in bytes."""

    taken_at: float = 0.0
    """By the monotonic clock; 0 before the first time."""
    files: dict[str, int] = field(default_factory=dict)
    """By what they are."""
    disks: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Free and all bytes of the file system of a place."""
    memory: dict[str, int] = field(default_factory=dict)
    """What the cleanup worker and its Java process have in memory."""
    free_pages: int | None = None
    vault_copies: Mapping[str, str] | None = None
    """Why a copy of the vault would not do, by its folder, "" for one that would; None before the first look."""
    dead: int | None = None
    """How many archived messages are erased, and take space until it is reclaimed; None before the first look."""
    backup_at: int | None = None
    """When the last backup was made, Unix seconds; 0 for none that is known, None before the first look."""


_OF_STORE = ("free_pages", "vault_copies", "dead", "backup_at")
"""What the store tells, not the files."""


class Sizes:
    """Measures for one server. ``last`` is what was found last."""

    def __init__(self, served: web.Application) -> None:
        """``served``: the clients' application."""
        self.last = Measurements()
        self._served = served
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sizes")
        self._task: asyncio.Task[None] | None = None
        self._next_walk = 0.0
        self._archive = 0

    @property
    def age(self) -> float:
        """For how many seconds the numbers have been known."""
        return time.monotonic() - self.last.taken_at

    async def refresh(self) -> None:
        """Measure anew if the last time is too long ago; wait for it at most WAIT_SECONDS."""
        if self._task is None or self._task.done():
            if time.monotonic() < self.last.taken_at + FRESH_SECONDS:
                return
            self._task = asyncio.create_task(self._measure())
        await asyncio.wait({self._task}, timeout=WAIT_SECONDS)
        if self._task.done():
            self._task.result()

    async def close(self) -> None:
        """Measure no more. A look that hangs is not waited for."""
        if self._task:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _measure(self) -> None:
        loop, worker = asyncio.get_running_loop(), self._served[app_keys.HEALTH].worker
        found = await loop.run_in_executor(self._thread, self._look, worker)
        former = self.last
        self.last = replace(
            found,
            **{name: getattr(former, name) for name in _OF_STORE},
        )
        if self._served[app_keys.HEALTH].phase is Phase.SERVING:
            # Health tells of what fails in the store. ValueError: the store has been closed meanwhile.
            with suppress(StoreError, sqlite3.Error, ValueError):
                told = await self._served[app_keys.STORE].read(_of_store)
                copies = await loop.run_in_executor(self._thread, self._copies)
                self.last = replace(self.last, vault_copies=copies, **told)

    def _copies(self) -> dict[str, str]:
        config, keys = self._served[app_keys.CONFIG], self._served[app_keys.STORE].open_keys()
        return {str(each): keyring.copy_fault(each, keys, config.ledger_path) for each in config.vault_copies}

    def _look(self, worker: int | None) -> Measurements:
        config = self._served[app_keys.CONFIG]
        database = config.database
        files = {"database": file_size(database), "wal": file_size(database.with_name(f"{database.name}-wal"))}
        places = {"database": database.parent, "data": config.data, "archive": config.archive_path}
        disks = {name: found for name, folder in places.items() if (found := _disk(folder))}
        if "archive" in disks:
            files["archive"] = self._archive_bytes(config.archive_path)
        return Measurements(time.monotonic(), files, disks, group_memory(worker) if worker else {})

    def _archive_bytes(self, folder: Path) -> int:
        began = time.monotonic()
        if began >= self._next_walk:
            self._archive = sum(_file_sizes(folder))
            ended = time.monotonic()
            self._next_walk = ended + max(WALK_SECONDS, WALK_SHARE * (ended - began))
        return self._archive


def group_memory(leader: int) -> dict[str, int]:
    """Return the resident bytes of the processes in a process group: those of Java, and of all others.

    ``leader``: the id of the group, which the cleanup worker leads. Elsewhere than on Linux nothing is known.
    """
    found: dict[str, int] = {}
    with suppress(OSError):
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                command, group, resident = _process(folder)
                if group == leader:
                    kind = "java" if command == "java" else "worker"
                    found[kind] = found.get(kind, 0) + resident
    return found


def _process(folder: Path) -> tuple[str, int, int]:
    """Return the command, the process group and the resident bytes of a process; no group if it has ended."""
    try:
        head, _, tail = (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")
    except OSError:
        return "", 0, 0
    values = tail.split()
    return head.partition("(")[2], int(values[2]), int(values[21]) * _PAGE_BYTES


def _of_store(connection: sqlite3.Connection) -> dict[str, Any]:
    """Return what the store tells of itself."""
    return {
        "free_pages": _free_bytes(connection),
        "dead": reclaiming.dead(connection).messages,
        "backup_at": audit.last_at(connection, AuditAction.BACKUP_MADE),
    }


def _free_bytes(connection: sqlite3.Connection) -> int:
    """Return the bytes in the database's file that nothing uses."""
    [pages] = connection.execute("PRAGMA freelist_count").fetchone()
    [size] = connection.execute("PRAGMA page_size").fetchone()
    return int(pages) * int(size)


def _disk(folder: Path) -> tuple[int, int] | None:
    """Return how many bytes are free for this user, and how many there are, where a folder is; None if it is not."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


def _file_sizes(folder: Path) -> Iterator[int]:
    """Yield the size of every file below ``folder``. What goes meanwhile does not count."""
    for root, _, names in os.walk(folder):
        for name in names:
            yield file_size(Path(root, name))
