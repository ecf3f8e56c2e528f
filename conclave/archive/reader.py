"""Reads messages from the archive with DataFusion, without Spark.

The archive is a Delta Lake table that cleanup writes in another process. The table stays open at one version. It is
updated when the hot store has a later version, and when a read fails because cleanup has removed replaced files. It is
opened again after each run that has changed the table, since a run after a power failure may roll back versions.

The checksum of each message is verified before it is served.

A stretch is read from the table's current version, which is at least the stretch's version. It has all messages of the
stretch, except those that cleanup has deleted since.
"""

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from conclave.archive.faults import ADVICE, one_line
from conclave.archive.files import LOG
from conclave.archive.layout import DamagedMessageError
from conclave.archive.scan import CONCURRENT_READS, batches, estimate_last, facts, load, parts_between, totals
from conclave.archive.snapshot import DamagedFileError, Snapshot, StaleSnapshotError, find_fault, open_table
from conclave.archive.window import Window, WindowResult
from conclave.health.parts import Health, HealthPart
from conclave.keys.cipher import AlteredError
from conclave.keys.file import KeyFileError
from conclave.keys.store import KeyStore
from conclave.logs.setup import get_logger
from conclave.retention.fate import MessageFacts
from conclave.retention.hidden import ArchiveCount, MessageTotals
from conclave.retention.stretches import Stretch
from conclave.store import bodies
from conclave.store.archive import moves
from conclave.store.archive.moves import ArchiveState
from conclave.store.engine import sqlite
from conclave.store.engine.faults import store_error
from conclave.store.resources import messages
from conclave.store.resources.messages import MessageRow

if TYPE_CHECKING:
    from deltalake import DeltaTable

log = get_logger(__name__)

MAX_DAMAGED = 8
"""The maximum number of damaged files that are checked again every 10 seconds."""

TRIES = 5
"""How many times to try a read. A try fails if cleanup removes files at the same time, which happens less often."""

PAUSE_SECONDS = 0.01
"""The third try waits for 0.04 s, and each further try twice as long: 0.28 s in total."""

_QUERY_SETTINGS = {
    "datafusion.execution.target_partitions": str(CONCURRENT_READS),
    # Decode bodies only of matching rows, not of whole data pages.
    "datafusion.execution.parquet.pushdown_filters": "true",
    # The maximum rows of a batch: bodies may be large.
    "datafusion.execution.batch_size": "256",
}

T = TypeVar("T")


class ArchiveError(Exception):
    """The archive cannot be read. The message says why."""


class _MismatchError(Exception):
    """The table does not match the hot store, or a run is changing both at the moment."""


@dataclass(frozen=True)
class _OpenTable:
    """A snapshot, with the last turn in the hot store at the time it was opened."""

    snapshot: Snapshot
    turn: int

    def is_outdated(self, version: int, turn: int) -> bool:
        """Return whether the hot store has a later state of the table: ``version`` and ``turn``."""
        return self.snapshot.version < version or self.turn < turn


class Archive:
    """The archive of one server process. Opens the table and loads libraries on the first read."""

    def __init__(self, folder: Path, hot: Path, health: Health, keys: KeyStore | None = None) -> None:
        """``folder``: the table's folder. ``hot``: the file of the hot store. ``health``: gets faults of reads.

        ``keys``: the keys of the messages; None if they are not open, so that no message can be read.
        """
        self._keys = keys
        self._folder = folder
        self._hot = hot
        self._health = health
        self._threads = ThreadPoolExecutor(CONCURRENT_READS, thread_name_prefix="archive")
        self.turns = asyncio.Semaphore(2 * CONCURRENT_READS)
        """Limits how many pages from the archive are in memory."""
        self._refreshing = threading.Lock()
        self._table: DeltaTable | None = None
        self._open: _OpenTable | None = None
        self._damaged: dict[str, Window] = {}
        """The window to read to check each damage again, by its text in the health report."""

    async def read(self, stretch: Stretch, limit: int, page_bytes: int = 0) -> WindowResult:
        """Return the first ``limit`` messages of ``stretch``, ascending.

        ``page_bytes``: the bytes of bodies that the page already has. Returns fewer messages if the page would exceed
        PAGE_BYTES, but at least one if ``page_bytes`` is 0. Raises ArchiveError.
        """
        return await self._in_thread(self._read, stretch, limit, page_bytes)

    async def find(self, stretch: Stretch) -> MessageFacts | None:
        """Return the only message of ``stretch`` without its body; None if it is erased. Raises ArchiveError."""
        return await self._in_thread(self._find, stretch)

    async def tally(self, archive_count: ArchiveCount) -> MessageTotals:
        """Count the messages of ``archive_count``. Raises ArchiveError."""
        return await self._in_thread(self._tally, archive_count)

    async def warm_up(self) -> None:
        """Open the table, so that the first read is fast, and check known damage again. Raises ArchiveError."""
        await self._in_thread(self._warm_up)

    async def is_missing(self) -> bool:
        """Return whether the archive's folder has no table, perhaps because its disk is not mounted."""
        return not await asyncio.get_running_loop().run_in_executor(self._threads, self._has_log)

    async def close(self) -> None:
        """Wait for running reads, and start no new reads."""
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)

    async def _in_thread(self, fn: Callable[..., T], *args: Any) -> T:
        try:
            result = await asyncio.get_running_loop().run_in_executor(self._threads, fn, *args)
        except ArchiveError as error:
            self._report(str(error))
            raise
        if self._damaged:
            self._report()
        else:
            self._health.clear_fault(HealthPart.ARCHIVE)
        return result

    def _report(self, *faults: str) -> None:
        """Report all known damage, and further faults, to health."""
        reason = "; ".join(dict.fromkeys((*self._damaged, *faults)))
        if self._health.faults.get(HealthPart.ARCHIVE) != reason:
            log.error("archive_unreadable", reason=reason)
        self._health.set_fault(HealthPart.ARCHIVE, reason)

    def _has_log(self) -> bool:
        return (self._folder / LOG).is_dir()

    def _warm_up(self) -> None:
        if not self._has_log():  # an open table would work without it for a while
            raise ArchiveError(f"{self._folder}: there is no table; is its disk mounted?")
        state = self._known()
        self._with_table(state.version, state.turn, lambda _: None)
        first_error = ""
        for fault, window in [*self._damaged.items()]:
            try:
                window_result = self._read_window(window, partial(window.read, room=messages.PAGE_BYTES, least=1))
            except ArchiveError as error:
                first_error = first_error or str(error)
            else:
                if not window_result.has_skipped_rows:
                    self._damaged.pop(fault, None)  # the file was restored, or the messages were erased
        if first_error:
            raise ArchiveError(first_error)

    def _read(self, stretch: Stretch, limit: int, page_bytes: int) -> WindowResult:
        rows: list[MessageRow] = []
        after, room, effort = stretch.after, max(0, messages.PAGE_BYTES - page_bytes), 1
        while after < stretch.border and len(rows) < limit:
            last = estimate_last(stretch.parts, after, stretch.border, effort * (limit - len(rows)), effort * room)
            window = Window(stretch, parts_between(stretch.parts, after, last), after, last, limit - len(rows))
            if window.parts:
                least = 0 if page_bytes or rows else 1
                window_result = self._read_window(window, partial(window.read, room=room, least=least))
                rows += self._decrypted(stretch, window_result.messages)
                room -= sum(len(message.mls_message) for message in window_result.messages)
                if window_result.full and (rows or page_bytes):
                    return WindowResult(rows, full=True)
                # Continue after the last message: some may have been erased in between.
                if window_result.full or len(window_result.messages) == window.limit:
                    last = window_result.messages[-1].sequence_num
            # The index also counts hidden messages, so search a larger range each time.
            after, effort = last, effort * 2
        return WindowResult(rows, full=len(rows) == limit)

    def _decrypted(self, stretch: Stretch, rows: list[MessageRow]) -> list[MessageRow]:
        """Return the messages decrypted, without those whose key has been erased."""
        with_body = [each for each in rows if each.sequence_num not in stretch.taken_back]  # the others have no body
        numbers, stored = [each.sequence_num for each in with_body], [each.mls_message for each in with_body]
        try:
            plaintexts = bodies.decrypt_archived(self._keys, stretch.group_id, numbers, stored)
        except (AlteredError, KeyFileError) as error:
            raise ArchiveError(f"{self._folder}: {error}") from error
        body_by_number: dict[int, bytes | None] = {each.sequence_num: b"" for each in rows}
        body_by_number |= zip(numbers, plaintexts, strict=True)
        return [
            each._replace(mls_message=body) for each in rows if (body := body_by_number[each.sequence_num]) is not None
        ]

    def _read_window(self, window: Window, read: Callable[[Snapshot], WindowResult]) -> WindowResult:
        """Read a window. Damage stays a fault until the window is read without damage."""
        stretch = window.stretch
        try:
            window_result = self._with_table(stretch.version, stretch.turn, read)
        except DamagedMessageError as error:
            reason = f"message {error} of the group {self._id_of(stretch.group_key)} is damaged"
            around = _around(stretch, error.sequence_num)
            raise ArchiveError(self._note_damage(around, f"{self._folder}: {reason}")) from error
        except DamagedFileError as error:
            raise ArchiveError(self._note_damage(window, str(error))) from error
        if window_result.has_skipped_rows:
            where = ", ".join(sorted({f"lifetime={part.lifetime}/span={part.span}" for part in window.parts}))
            reason = f"a file has damaged statistics for messages of the group {self._id_of(stretch.group_key)}"
            self._note_damage(window, f"{self._folder}: {reason}, in {where}; the messages are served")
        return window_result

    def _note_damage(self, window: Window, fault: str) -> str:
        """Report a fault to health until the window is read without damage. Return the fault with ADVICE."""
        fault = fault if fault.endswith(ADVICE) else f"{fault}{ADVICE}"
        if len(self._damaged) < MAX_DAMAGED:
            self._damaged[fault] = window
        self._open = None  # it caches file metadata, which may be damaged
        return fault

    def _id_of(self, group_key: int) -> str:
        query = "SELECT group_id FROM groups WHERE group_key = ?"
        row = self._read_hot_store(lambda connection: connection.execute(query, (group_key,)).fetchone())
        return str(UUID(bytes=row[0])) if row else f"with the key {group_key}"

    def _find(self, stretch: Stretch) -> MessageFacts | None:
        window = Window(stretch, stretch.parts, stretch.after, stretch.border, 1)

        def read(table: Snapshot) -> MessageFacts | None:
            table.count(window.range_to(window.last))
            rows = [row for batch in batches(table.by_rows(), facts(stretch)) for row in batch.to_pylist()]
            return MessageFacts(rows[0]["created_at"], rows[0]["sender_id"], rows[0]["is_commit"]) if rows else None

        try:
            return self._with_table(stretch.version, stretch.turn, read)
        except DamagedFileError as error:
            raise ArchiveError(self._note_damage(window, str(error))) from error

    def _tally(self, archive_count: ArchiveCount) -> MessageTotals:
        return self._with_table(
            archive_count.stretch.version, archive_count.stretch.turn, lambda table: totals(table.quick, archive_count)
        )

    def _with_table(self, version: int, turn: int, read: Callable[[Snapshot], T]) -> T:
        """Call ``read`` with the table at ``version`` or later, and retry after a refresh if that fails.

        The last try uses exactly ``version``, since later versions may be unreadable after a power failure. ``turn``:
        the last turn in the hot store with that version. Raises ArchiveError.
        """
        failures: tuple[type[Exception], ...] = (_MismatchError, StaleSnapshotError, *load())
        reason, is_mismatch = "", False
        for attempt in range(TRIES):
            exact = attempt == TRIES - 1 and not is_mismatch
            if attempt > 1:
                time.sleep(PAUSE_SECONDS * 2**attempt)
            try:
                return read(self._refreshed(version, turn, failed=attempt > 0, exact=exact))
            except failures as error:
                log.info("archive_read_again", reason=str(error))
                if not exact:
                    reason, is_mismatch = one_line(error), isinstance(error, _MismatchError)
        raise ArchiveError(reason if is_mismatch else f"{self._folder}: {reason}")

    def _refreshed(self, version: int, turn: int, *, failed: bool, exact: bool) -> Snapshot:
        """Return the table at ``version`` or later.

        ``failed``: a read has failed, so open the table again. ``exact``: open exactly ``version`` in that case.
        """
        current = self._open
        if current is None or current.is_outdated(version, turn) or failed:
            with self._refreshing:
                current = self._refresh(version, turn, failed=failed, exact=exact)
        return current.snapshot

    def _refresh(self, version: int, turn: int, *, failed: bool, exact: bool) -> _OpenTable:
        current, table = self._open, self._table
        if current and not current.is_outdated(version, turn) and not failed:
            return current  # another thread has already refreshed it
        can_update = table is not None and current is not None and current.turn >= turn and not failed
        if table is not None and can_update:
            table.update_incremental()
        if table is None or not can_update or table.version() < version:
            # Open it again: later log entries may be gone, or the folder may have been replaced.
            table = open_table(self._folder, version if exact else None)
        if fault := find_fault(self._folder, table, self._known()):
            raise _MismatchError(fault)
        self._table = table
        self._open = _OpenTable(Snapshot(self._folder, table, _QUERY_SETTINGS), turn)
        return self._open

    def _known(self) -> ArchiveState:
        """Return the current state of the archive in the hot store. Raises ArchiveError if there is none."""
        state = self._read_hot_store(moves.find_state)
        if state is None:
            raise ArchiveError(f"{self._hot}: the database has no archive")
        return state

    def _read_hot_store(self, fn: Callable[[sqlite3.Connection], T]) -> T:
        """Read the hot store over a new connection. Raises StoreError."""
        try:
            with closing(sqlite.connect(self._hot, readonly=True)) as connection:
                return fn(connection)
        except sqlite3.Error as error:
            raise store_error(self._hot, error) from error


def _around(stretch: Stretch, number: int) -> Window:
    """Return the window to read to check a damaged message again."""
    # If the damaged value is its number, no part may contain that number.
    parts = parts_between(stretch.parts, number - 1, number) or stretch.parts
    return Window(stretch, parts, number - 1, number, 1)
