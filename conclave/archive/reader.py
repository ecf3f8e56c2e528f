"""Reads the archive, a Delta Lake table that cleanup writes from another process: by DataFusion, without Spark.

The table's handle stays open, and knows the table as of one version. It is refreshed when the hot store knows of a
later one, and when a read fails: cleanup takes files away that it has replaced, and a later version says by which. It
is opened anew for each run that changes the table: after a power failure a run may have taken versions back that were
seen here.

A stretch is read from whatever version the table has then, not earlier than the stretch's own. All messages of the
stretch are in that one, but for those that cleanup has deleted since: they may be gone.
"""

import asyncio
import math
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from conclave.archive.age import find_fault
from conclave.archive.faults import one_line
from conclave.archive.query import parts_between, reach, select
from conclave.budget import Share, cost
from conclave.health.parts import Health, HealthPart
from conclave.logs import get_logger
from conclave.store import bodies, database, messages
from conclave.store.archive import moves
from conclave.store.archive.moves import ArchiveState
from conclave.store.archive.stretches import Part, Stretch
from conclave.store.messages import StoredMessage

if TYPE_CHECKING:
    from deltalake import DeltaTable, QueryBuilder

log = get_logger(__name__)

CONCURRENT_READS = 2
"""The others wait in line: so many that reading the archive leaves the machine to those who read what is new."""

TRIES = 5
"""How often a read is begun. It fails when files vanish under it; cleanup does not rewrite faster than one can read."""

_ENVIRONMENT = {
    "TOKIO_WORKER_THREADS": str(CONCURRENT_READS),
    # What one read needed goes back to the system soon after it, rather than after 10 s, and from few heaps.
    "_RJEM_MALLOC_CONF": "dirty_decay_ms:500,muzzy_decay_ms:0,narenas:2",
}
"""For the library only, while it is loaded."""

_QUERY_SETTINGS = {
    "datafusion.execution.target_partitions": str(CONCURRENT_READS),
    # Bodies are decoded for the rows that match, and not for the whole of the pages that these lie in.
    "datafusion.execution.parquet.pushdown_filters": "true",
    # Rows that are handed over at once, at most: bodies may be large.
    "datafusion.execution.batch_size": "256",
}

T = TypeVar("T")


class ArchiveError(Exception):
    """The archive cannot be read; the message says why."""


class _MismatchError(Exception):
    """The table is not the one that the hot store knows, or both are changing just now."""


@dataclass(frozen=True)
class Found:
    """The first messages of a stretch. ``full``: there is no room for more; otherwise these are all."""

    messages: list[StoredMessage]
    full: bool


@dataclass(frozen=True)
class _Open:
    """The table as of ``version``, opened when ``turn`` was the last that the hot store knew of."""

    version: int
    turn: int
    query: "QueryBuilder"

    def is_behind(self, version: int, turn: int) -> bool:
        """Tell whether the hot store has known of more when it knew of ``version`` and ``turn``."""
        return self.version < version or self.turn < turn


class Archive:
    """The archive of one server process. Nothing is opened, and nothing imported for it, before the first read."""

    def __init__(self, folder: Path, hot: Path, health: Health) -> None:
        """``hot``: the file of the hot store. ``health`` is told when a read fails, and when one works again."""
        self._folder = folder
        self._hot = hot
        self._health = health
        self._threads = ThreadPoolExecutor(CONCURRENT_READS, thread_name_prefix="archive")
        self._refreshing = threading.Lock()
        self._table: DeltaTable | None = None
        self._open: _Open | None = None

    async def read(self, stretch: Stretch, limit: int, share: Share, taken: int = 0) -> Found:
        """Return the first ``limit`` messages of ``stretch``, ascending.

        Fewer if their bodies, and ``taken`` bytes, are more than PAGE_BYTES, or if memory is short; but at least one if
        nothing is taken. Raises NoRoomError or ArchiveError.
        """
        before = share.claimed
        found = await self._in_thread(self._read, stretch, limit, share, taken)
        share.hold(before + cost(sum(len(message.mls_message) for message in found.messages), len(found.messages)))
        return found

    async def warm_up(self) -> None:
        """Open the table, so that the first read need not. Raises ArchiveError."""
        await self._in_thread(self._try_out)

    async def close(self) -> None:
        """Wait for the reads under way, and begin no others."""
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)

    async def _in_thread(self, fn: Callable[..., T], *args: Any) -> T:
        try:
            result = await asyncio.get_running_loop().run_in_executor(self._threads, fn, *args)
        except ArchiveError as error:
            if self._health.faults.get(HealthPart.ARCHIVE) != str(error):
                log.error("archive_unreadable", reason=str(error))
            self._health.fault(HealthPart.ARCHIVE, str(error))
            raise
        self._health.mend(HealthPart.ARCHIVE)
        return result

    def _try_out(self) -> None:
        state = self._known()
        self._asking(state.version, state.turn, lambda _: None)

    def _read(self, stretch: Stretch, limit: int, share: Share, taken: int) -> Found:
        found: list[StoredMessage] = []
        after, room, effort = stretch.after, _room(stretch, limit, share, taken), 1
        while after < stretch.border and len(found) < limit:
            last = reach(stretch.parts, after, stretch.border, effort * (limit - len(found)), effort * room)
            window = _Window(stretch, parts_between(stretch.parts, after, last), after, last, limit - len(found))
            if window.parts:
                least = 0 if taken or found else 1
                more = self._asking(stretch.version, stretch.turn, partial(window.read, room=room, least=least))
                found += more.messages
                room -= sum(len(message.mls_message) for message in more.messages)
                if more.full:
                    return Found(found, full=True)
            # What is hidden counts in the parts, but fills no page: look further each time.
            after, effort = last, effort * 2
        return Found(found, full=len(found) == limit)

    def _asking(self, version: int, turn: int, ask: Callable[["QueryBuilder"], T]) -> T:
        """Have the table, of ``version`` or later, asked; again after a refresh where that fails.

        The last time it is ``version`` itself: what a power failure has left of later ones may be unreadable.
        ``turn``: the last that the hot store knew of when it named the version.
        """
        failures: tuple[type[Exception], ...] = (_MismatchError, *_load())
        reason, is_mismatch = "", False
        for attempt in range(TRIES):
            exact = attempt == TRIES - 1 and not is_mismatch
            try:
                return ask(self._refreshed(version, turn, failed=attempt > 0, exact=exact))
            except failures as error:
                log.info("archive_read_again", reason=str(error))
                if not exact:
                    reason, is_mismatch = one_line(error), isinstance(error, _MismatchError)
        raise ArchiveError(reason if is_mismatch else f"{self._folder}: {reason}")

    def _refreshed(self, version: int, turn: int, *, failed: bool, exact: bool) -> "QueryBuilder":
        """Return the table as of ``version`` or later; with ``failed``, of the latest, or of ``exact``-ly this one."""
        known = self._open
        if known is None or known.is_behind(version, turn) or failed:
            with self._refreshing:
                known = self._refresh(version, turn, failed=failed, exact=exact)
        return known.query

    def _refresh(self, version: int, turn: int, *, failed: bool, exact: bool) -> _Open:
        from deltalake import DeltaTable, QueryBuilder  # noqa: PLC0415 - a server without an archive does not pay for it

        known, table = self._open, self._table
        if known and not known.is_behind(version, turn) and not failed:
            return known  # by another thread, in the meantime
        may_go_on = table is not None and known is not None and known.turn >= turn and not failed
        if table is not None and may_go_on:
            table.update_incremental()
        if table is None or not may_go_on or table.version() < version:
            # Not from what is known: the log's entries since then may be gone, or the folder be another one.
            table = DeltaTable(str(self._folder), version=version if exact else None)
        if fault := find_fault(self._folder, table, self._known()):
            raise _MismatchError(fault)
        self._table = table
        self._open = _Open(table.version(), turn, QueryBuilder(_QUERY_SETTINGS).register("archive", table))
        return self._open

    def _known(self) -> ArchiveState:
        """Return what the hot store knows now. Raises ArchiveError if it has no archive any more."""
        with closing(database.connect(self._hot, readonly=True)) as connection:
            state = moves.find_state(connection)
        if state is None:
            raise ArchiveError(f"{self._hot}: knows of no archive")
        return state


def _room(stretch: Stretch, limit: int, share: Share, taken: int) -> int:
    """Take memory for what a read may find, and return for how many bytes of bodies that is. Raises NoRoomError.

    Here and not before: so few reads are under way at once that each may take for the worst.
    """
    room = max(0, messages.PAGE_BYTES - taken)
    most = min(room, sum(part.body_bytes for part in stretch.parts))
    least = 0 if taken else min(most, bodies.LONGEST_BYTES)
    given = share.take_up_to(cost(most, limit), cost(least, limit))
    return room if given == cost(most, limit) else (given - cost(0, limit)) * 3 // 4


@dataclass(frozen=True)
class _Window:
    """The numbers greater than ``after`` and at most ``last``: what one query looks at."""

    stretch: Stretch
    parts: Sequence[Part]
    after: int
    last: int
    limit: int

    def read(self, query: "QueryBuilder", room: int, least: int) -> Found:
        """Return the first messages whose bodies have ``room`` bytes together, but at least ``least``."""
        if sum(part.body_bytes for part in self.parts) <= room:
            sql = select(self.stretch, self.parts, self.after, self.last, self.limit)
            return Found([message for batch in _batches(query, sql) for message in _messages(batch)], full=False)
        # DataFusion would hold ``limit`` messages, of any size, before it handed out the first.
        first = _First(self.limit, room, least)
        for batch in _batches(query, select(self.stretch, self.parts, self.after, self.last)):
            first.add(batch)
        return Found(first.messages, first.full)


class _First:
    """The first of messages that come in any order, of which no more is kept than there is room for."""

    def __init__(self, limit: int, room: int, least: int) -> None:
        self._limit = limit
        self._room = room
        self._least = least
        self._end = math.inf
        self.messages: list[StoredMessage] = []

    @property
    def full(self) -> bool:
        """Whether there was no room for some."""
        return self._end < math.inf

    def add(self, batch: Any) -> None:
        if min(batch.column(0).to_pylist(), default=self._end) >= self._end:
            return
        self.messages += (message for message in _messages(batch) if message.sequence_num < self._end)
        self.messages.sort(key=lambda message: message.sequence_num)
        left = self._room
        for count, message in enumerate(self.messages):
            left -= len(message.mls_message)
            if count == self._limit or (left < 0 and count >= self._least):
                # What follows on it has no room either, whatever is still to come.
                self._end = message.sequence_num
                del self.messages[count:]
                return


def _batches(query: "QueryBuilder", sql: str) -> Iterator[Any]:
    """Run ``sql``. By pyarrow: deltalake's own reader would hold the interpreter for as long as DataFusion works."""
    import pyarrow  # noqa: PLC0415 - as deltalake

    with pyarrow.RecordBatchReader.from_stream(query.execute(sql)) as reader:
        yield from reader


def _messages(batch: Any) -> Iterator[StoredMessage]:
    """Read the columns of archive_query.COLUMNS."""
    return map(StoredMessage, *(column.to_pylist() for column in batch.columns))


@cache
def _load() -> tuple[type[Exception], ...]:
    """Load what reads the archive, and return the errors by which it tells that it could not."""
    added = {name: value for name, value in _ENVIRONMENT.items() if name not in os.environ}
    os.environ.update(added)
    try:
        import pyarrow  # noqa: PLC0415 - a server without an archive does not pay for it
        from deltalake import DeltaTable  # noqa: PLC0415 - as above
        from deltalake.exceptions import DeltaError  # noqa: PLC0415 - as above

        DeltaTable.is_deltatable(tempfile.gettempdir())  # begins its threads
    finally:
        for name in added:
            del os.environ[name]
    return DeltaError, pyarrow.ArrowException, OSError
