"""Reads messages from the archive with DataFusion, without Spark.

The archive is a Delta Lake table that cleanup writes from another process. The table's handle stays open, and knows the
table as of one version. It is refreshed when the hot store knows of a later version, and when a read fails: cleanup
removes files that it has replaced, and a later version names the new ones. The table is opened again for each run that
changes it, since after a power failure a run may take back versions that were seen here.

Each message is compared with the checksum with which it was archived before it is served.

A stretch is read from the version that the table has then, which is not earlier than the stretch's own. That version
has all messages of the stretch, except those that cleanup has deleted since.
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
from conclave.archive.layout import DamagedError
from conclave.archive.scan import CONCURRENT_READS, amount, batches, facts, load, parts_between, reach
from conclave.archive.snapshot import MovedOnError, Snapshot, UnsoundError, find_fault, open_table
from conclave.archive.window import Found, Window
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

MOST_DAMAGED = 8
"""At most 8 faults of files are looked at again every 10 seconds."""

TRIES = 5
"""A read is tried at most 5 times.

It fails if cleanup removes files that it reads. Cleanup does not rewrite files faster than they can be read.
"""

PAUSE_SECONDS = 0.01
"""Before the third try a read waits for 0.04 s, and then for twice as long each time: 0.28 s in all."""

_QUERY_SETTINGS = {
    "datafusion.execution.target_partitions": str(CONCURRENT_READS),
    # Bodies are decoded only for the rows that match, not for the whole data pages that have them.
    "datafusion.execution.parquet.pushdown_filters": "true",
    # At most this many rows are handed over at once: bodies may be large.
    "datafusion.execution.batch_size": "256",
}

T = TypeVar("T")


class ArchiveError(Exception):
    """The archive cannot be read. The message says why."""


class _MismatchError(Exception):
    """The table is not the one that the hot store knows, or a run is changing both just now."""


@dataclass(frozen=True)
class _Open:
    """The table, opened when ``turn`` was the last that the hot store knew of."""

    snapshot: Snapshot
    turn: int

    def is_behind(self, version: int, turn: int) -> bool:
        """Return whether the hot store knows of a later state of the table, with ``version`` and ``turn``."""
        return self.snapshot.version < version or self.turn < turn


class Archive:
    """The archive of one server process. Before the first read, nothing is opened and no library is loaded."""

    def __init__(self, folder: Path, hot: Path, health: Health, keys: KeyStore | None = None) -> None:
        """Take where the table is, ``folder``, and the file of the hot store, ``hot``.

        ``health`` hears when a read fails, and when one works again. ``keys``: those of the store's messages.
        """
        self._keys = keys
        self._folder = folder
        self._hot = hot
        self._health = health
        self._threads = ThreadPoolExecutor(CONCURRENT_READS, thread_name_prefix="archive")
        self.turns = asyncio.Semaphore(2 * CONCURRENT_READS)
        """Held while a page is read of which a part is here: so few are in memory, whatever they wait for."""
        self._refreshing = threading.Lock()
        self._table: DeltaTable | None = None
        self._open: _Open | None = None
        self._damaged: dict[str, Window] = {}
        """What is not as it was archived, by what health tells of it: what to read to look at it again."""

    async def read(self, stretch: Stretch, limit: int, taken: int = 0) -> Found:
        """Return the first ``limit`` messages of ``stretch``, ascending.

        ``taken``: how many bytes of bodies the page has already. Fewer messages are returned if the page would
        have more than PAGE_BYTES; but at least one if ``taken`` is 0. Raises ArchiveError.
        """
        return await self._in_thread(self._read, stretch, limit, taken)

    async def find(self, stretch: Stretch) -> MessageFacts | None:
        """Return what is known of the only message of ``stretch``, but its body; None: it is gone.

        Raises ArchiveError.
        """
        return await self._in_thread(self._find, stretch)

    async def tally(self, sought: ArchiveCount) -> MessageTotals:
        """Count the messages of ``sought``. Raises ArchiveError."""
        return await self._in_thread(self._tally, sought)

    async def warm_up(self) -> None:
        """Open the table now, so that the first read is not slow. Raises ArchiveError."""
        await self._in_thread(self._try_out)

    async def is_away(self) -> bool:
        """Return whether there is no table in the archive's folder, so that its disk may be away. Reads nothing."""
        return not await asyncio.get_running_loop().run_in_executor(self._threads, self._has_log)

    async def close(self) -> None:
        """Wait for the reads under way, and begin no new ones."""
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
        """Have health tell of all damage that is known, and of further faults."""
        reason = "; ".join(dict.fromkeys((*self._damaged, *faults)))
        if self._health.faults.get(HealthPart.ARCHIVE) != reason:
            log.error("archive_unreadable", reason=reason)
        self._health.set_fault(HealthPart.ARCHIVE, reason)

    def _has_log(self) -> bool:
        return (self._folder / LOG).is_dir()

    def _try_out(self) -> None:
        if not self._has_log():  # a table that is open would do without it for a while
            raise ArchiveError(f"{self._folder}: there is no table; is its disk mounted?")
        state = self._known()
        self._asking(state.version, state.turn, lambda _: None)
        left = ""
        for fault, window in [*self._damaged.items()]:
            try:
                found = self._ask_window(window, partial(window.read, room=messages.PAGE_BYTES, least=1))
            except ArchiveError as error:
                left = left or str(error)
            else:
                if not found.were_passed_over:
                    self._damaged.pop(fault, None)  # the file was brought back, or the messages were erased
        if left:
            raise ArchiveError(left)

    def _read(self, stretch: Stretch, limit: int, taken: int) -> Found:
        found: list[MessageRow] = []
        after, room, effort = stretch.after, max(0, messages.PAGE_BYTES - taken), 1
        while after < stretch.border and len(found) < limit:
            last = reach(stretch.parts, after, stretch.border, effort * (limit - len(found)), effort * room)
            window = Window(stretch, parts_between(stretch.parts, after, last), after, last, limit - len(found))
            if window.parts:
                least = 0 if taken or found else 1
                more = self._ask_window(window, partial(window.read, room=room, least=least))
                found += self._opened(stretch, more.messages)
                room -= sum(len(message.mls_message) for message in more.messages)
                if more.full and (found or taken):
                    return Found(found, full=True)
                if more.full or len(more.messages) == window.limit:  # some of these were erased meanwhile: look further
                    last = more.messages[-1].sequence_num
            # The index counts hidden messages too, which fill no page: look further each time.
            after, effort = last, effort * 2
        return Found(found, full=len(found) == limit)

    def _opened(self, stretch: Stretch, found: list[MessageRow]) -> list[MessageRow]:
        """Decrypt messages as they were archived. One without a key was erased meanwhile, and is left out."""
        shown = [each for each in found if each.sequence_num not in stretch.taken_back]  # the others have no body
        numbers, stored = [each.sequence_num for each in shown], [each.mls_message for each in shown]
        try:
            bodies_of = bodies.decrypt_archived(self._keys, stretch.group_id, numbers, stored)
        except (AlteredError, KeyFileError) as error:
            raise ArchiveError(f"{self._folder}: {error}") from error
        of: dict[int, bytes | None] = {each.sequence_num: b"" for each in found}
        of |= zip(numbers, bodies_of, strict=True)
        return [each._replace(mls_message=body) for each in found if (body := of[each.sequence_num]) is not None]

    def _ask_window(self, window: Window, ask: Callable[[Snapshot], Found]) -> Found:
        """Read a window. What is not as it was archived stays a fault until it is read and right, or gone."""
        stretch = window.stretch
        try:
            found = self._asking(stretch.version, stretch.turn, ask)
        except DamagedError as error:
            reason = f"message {error} of the group {self._id_of(stretch.group_key)} is not as it was archived"
            around = _around(stretch, error.sequence_num)
            raise ArchiveError(self._note_damage(around, f"{self._folder}: {reason}")) from error
        except UnsoundError as error:
            raise ArchiveError(self._note_damage(window, str(error))) from error
        if found.were_passed_over:
            where = ", ".join(sorted({f"lifetime={part.lifetime}/span={part.span}" for part in window.parts}))
            reason = f"what a file says of messages of the group {self._id_of(stretch.group_key)} is not so"
            self._note_damage(window, f"{self._folder}: {reason}, in {where}; they are served")
        return found

    def _note_damage(self, window: Window, fault: str) -> str:
        """Have health tell of a fault until the window is read and right. Return the fault with what to do about it."""
        fault = fault if fault.endswith(ADVICE) else f"{fault}{ADVICE}"
        if len(self._damaged) < MOST_DAMAGED:
            self._damaged[fault] = window
        self._open = None  # or it would remember what the file says of itself, when a whole one is there
        return fault

    def _id_of(self, group_key: int) -> str:
        query = "SELECT group_id FROM groups WHERE group_key = ?"
        row = self._of_hot(lambda connection: connection.execute(query, (group_key,)).fetchone())
        return str(UUID(bytes=row[0])) if row else f"with the key {group_key}"

    def _find(self, stretch: Stretch) -> MessageFacts | None:
        window = Window(stretch, stretch.parts, stretch.after, stretch.border, 1)

        def ask(table: Snapshot) -> MessageFacts | None:
            table.count(window.place(window.last))
            rows = [row for batch in batches(table.by_rows(), facts(stretch)) for row in batch.to_pylist()]
            return MessageFacts(rows[0]["created_at"], rows[0]["sender_id"], rows[0]["is_commit"]) if rows else None

        try:
            return self._asking(stretch.version, stretch.turn, ask)
        except UnsoundError as error:
            raise ArchiveError(self._note_damage(window, str(error))) from error

    def _tally(self, sought: ArchiveCount) -> MessageTotals:
        return self._asking(sought.stretch.version, sought.stretch.turn, lambda table: amount(table.quick, sought))

    def _asking(self, version: int, turn: int, ask: Callable[[Snapshot], T]) -> T:
        """Call ``ask`` with the table as of ``version`` or later, and again after a refresh if that fails.

        The last try uses exactly ``version``: later versions may be unreadable after a power failure. ``turn``: the
        last turn that the hot store knew of when it named the version. Raises ArchiveError.
        """
        failures: tuple[type[Exception], ...] = (_MismatchError, MovedOnError, *load())
        reason, is_mismatch = "", False
        for attempt in range(TRIES):
            exact = attempt == TRIES - 1 and not is_mismatch
            if attempt > 1:
                time.sleep(PAUSE_SECONDS * 2**attempt)
            try:
                return ask(self._refreshed(version, turn, failed=attempt > 0, exact=exact))
            except failures as error:
                log.info("archive_read_again", reason=str(error))
                if not exact:
                    reason, is_mismatch = one_line(error), isinstance(error, _MismatchError)
        raise ArchiveError(reason if is_mismatch else f"{self._folder}: {reason}")

    def _refreshed(self, version: int, turn: int, *, failed: bool, exact: bool) -> Snapshot:
        """Return the table as of ``version`` or later.

        ``failed``: a read has failed, so the table is opened again. ``exact``: then exactly ``version`` is opened, not
        the latest one.
        """
        known = self._open
        if known is None or known.is_behind(version, turn) or failed:
            with self._refreshing:
                known = self._refresh(version, turn, failed=failed, exact=exact)
        return known.snapshot

    def _refresh(self, version: int, turn: int, *, failed: bool, exact: bool) -> _Open:
        known, table = self._open, self._table
        if known and not known.is_behind(version, turn) and not failed:
            return known  # another thread has refreshed it meanwhile
        may_go_on = table is not None and known is not None and known.turn >= turn and not failed
        if table is not None and may_go_on:
            table.update_incremental()
        if table is None or not may_go_on or table.version() < version:
            # Opened again, not updated: later entries of the log may be gone, or the folder may be another one.
            table = open_table(self._folder, version if exact else None)
        if fault := find_fault(self._folder, table, self._known()):
            raise _MismatchError(fault)
        self._table = table
        self._open = _Open(Snapshot(self._folder, table, _QUERY_SETTINGS), turn)
        return self._open

    def _known(self) -> ArchiveState:
        """Return what the hot store knows of the archive now. Raises ArchiveError if it knows of none."""
        state = self._of_hot(moves.find_state)
        if state is None:
            raise ArchiveError(f"{self._hot}: knows of no archive")
        return state

    def _of_hot(self, fn: Callable[[sqlite3.Connection], T]) -> T:
        """Read the hot store over a connection of its own. Raises StoreError."""
        try:
            with closing(sqlite.connect(self._hot, readonly=True)) as connection:
                return fn(connection)
        except sqlite3.Error as error:
            raise store_error(self._hot, error) from error


def _around(stretch: Stretch, number: int) -> Window:
    """Return what to read to look at a damaged message again."""
    # Its number may be what was altered, and in no part.
    parts = parts_between(stretch.parts, number - 1, number) or stretch.parts
    return Window(stretch, parts, number - 1, number, 1)
