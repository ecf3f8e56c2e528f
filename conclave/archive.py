"""Reads the archive, a Delta Lake table that cleanup writes from another process: by DataFusion, without Spark.

The table's handle stays open, and knows the table as of one version. It is refreshed when the hot store knows of a
later one, and when a read fails: cleanup takes files away that it has replaced, and a later version says by which.

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
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from conclave.archive_query import parts_between, reach, select
from conclave.budget import Share, cost
from conclave.health import Health
from conclave.logs import get_logger
from conclave.store import bodies, messages
from conclave.store.archive import Part, Stretch
from conclave.store.messages import StoredMessage

if TYPE_CHECKING:
    from deltalake import DeltaTable, QueryBuilder

log = get_logger(__name__)

PART = "archive"
"""Of health."""

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


@dataclass(frozen=True)
class Found:
    """The first messages of a stretch. ``full``: there is no room for more; otherwise these are all."""

    messages: list[StoredMessage]
    full: bool


@dataclass(frozen=True)
class _Open:
    version: int
    query: "QueryBuilder"


class Archive:
    """The archive of one server process. Nothing is opened, and nothing imported for it, before the first read."""

    def __init__(self, folder: Path, health: Health) -> None:
        """``health`` is told when a read fails, and when one works again."""
        self._folder = folder
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
        before = share.held
        found = await self._in_thread(self._read, stretch, limit, share, taken)
        share.hold(before + cost(sum(len(message.mls_message) for message in found.messages), len(found.messages)))
        return found

    async def warm_up(self) -> None:
        """Open the table, so that the first read need not. Raises ArchiveError."""
        await self._in_thread(self._asking, 0, lambda _: None)

    async def close(self) -> None:
        """Wait for the reads under way, and begin no others."""
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)

    async def _in_thread(self, fn: Callable[..., T], *args: Any) -> T:
        try:
            result = await asyncio.get_running_loop().run_in_executor(self._threads, fn, *args)
        except ArchiveError as error:
            self._health.fault(PART, str(error))
            raise
        self._health.mend(PART)
        return result

    def _read(self, stretch: Stretch, limit: int, share: Share, taken: int) -> Found:
        found: list[StoredMessage] = []
        after, room, effort = stretch.after, _room(stretch, limit, share, taken), 1
        while after < stretch.border and len(found) < limit:
            last = reach(stretch.parts, after, stretch.border, effort * (limit - len(found)), effort * room)
            window = _Window(stretch, parts_between(stretch.parts, after, last), after, last, limit - len(found))
            if window.parts:
                least = 0 if taken or found else 1
                more = self._asking(stretch.version, partial(window.read, room=room, least=least))
                found += more.messages
                room -= sum(len(message.mls_message) for message in more.messages)
                if more.full:
                    return Found(found, full=True)
            # What is hidden counts in the parts, but fills no page: look further each time.
            after, effort = last, effort * 2
        return Found(found, full=len(found) == limit)

    def _asking(self, version: int, ask: Callable[["QueryBuilder"], T]) -> T:
        """Have the table, of ``version`` or later, asked; again after a refresh where that fails."""
        failures = _load()
        for attempt in range(TRIES):
            try:
                return ask(self._refreshed(version, failed=attempt > 0))
            except failures as error:
                log.info("archive_read_again", reason=str(error))
                reason = error
        raise ArchiveError(f"{self._folder}: {reason}") from reason

    def _refreshed(self, version: int, *, failed: bool) -> "QueryBuilder":
        """Return the table as of ``version`` or later; with ``failed``, of the latest. Raises ArchiveError."""
        known = self._open
        if known is None or known.version < version or failed:
            with self._refreshing:
                known = self._refresh(version, failed=failed)
        return known.query

    def _refresh(self, version: int, *, failed: bool) -> _Open:
        from deltalake import DeltaTable, QueryBuilder  # noqa: PLC0415 - a server without an archive does not pay for it

        if self._open and self._open.version >= version and not failed:
            return self._open  # by another thread, in the meantime
        if self._table is not None and not failed:
            self._table.update_incremental()
        if self._table is None or failed or self._table.version() < version:
            # Not from what is known: the log's entries since then may be gone, or the folder be another one.
            self._table = DeltaTable(str(self._folder))
        if self._table.version() < version:
            raise ArchiveError(
                f"{self._folder}: is at version {self._table.version()}, but messages were moved there up to {version}"
            )
        query = QueryBuilder(_QUERY_SETTINGS).register("archive", self._table)
        self._open = _Open(self._table.version(), query)
        return self._open


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
