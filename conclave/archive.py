"""Reads the archive, a Delta Lake table that cleanup writes from another process: by DataFusion, without Spark.

The table's handle stays open, and knows the table as of one version. It is refreshed when the hot store knows of a
later one, and when a read fails: cleanup takes files away that it has replaced, and a later version says by which.

A stretch is read from whatever version the table has then, not earlier than the stretch's own. All messages of the
stretch are in that one, but for those that cleanup has deleted since: they may be gone.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from conclave.archive_query import MESSAGE_COLUMNS, SIZE_COLUMNS, parts_between, reach, select
from conclave.health import Health
from conclave.logs import get_logger
from conclave.store import messages
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

_ENVIRONMENT = {"TOKIO_WORKER_THREADS": str(CONCURRENT_READS)}
_QUERY_SETTINGS = {
    "datafusion.execution.target_partitions": str(CONCURRENT_READS),
    # Bodies are decoded for the rows that match, and not for the whole of the pages that these lie in.
    "datafusion.execution.parquet.pushdown_filters": "true",
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

    async def read(self, stretch: Stretch, limit: int, taken: int = 0) -> Found:
        """Return the first ``limit`` messages of ``stretch``, ascending.

        Fewer if their bodies, and ``taken`` bytes, are more than PAGE_BYTES; but at least one if nothing is taken.
        Raises ArchiveError.
        """
        return await self._in_thread(self._read, stretch, limit, taken)

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

    def _read(self, stretch: Stretch, limit: int, taken: int) -> Found:
        found: list[StoredMessage] = []
        after, wanted = stretch.after, limit
        while after < stretch.border and len(found) < limit:
            last = reach(stretch.parts, after, stretch.border, wanted)
            window = _Window(stretch, parts_between(stretch.parts, after, last), after, last, limit - len(found))
            if window.parts:
                more = self._asking(stretch.version, partial(window.read, taken=taken))
                found += more.messages
                taken += sum(len(message.mls_message) for message in more.messages)
                if more.full:
                    return Found(found, full=True)
            # What is hidden counts in the parts, but fills no page: look further each time.
            after, wanted = last, wanted * 2
        return Found(found, full=len(found) == limit)

    def _asking(self, version: int, ask: Callable[["QueryBuilder"], T]) -> T:
        """Have the table, of ``version`` or later, asked; again after a refresh where that fails."""
        failures = _failures()
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


@dataclass(frozen=True)
class _Window:
    """The numbers greater than ``after`` and at most ``last``: what one query looks at."""

    stretch: Stretch
    parts: Sequence[Part]
    after: int
    last: int
    limit: int

    def read(self, query: "QueryBuilder", taken: int) -> Found:
        """Return the messages that there is room for."""
        room, last, full = messages.PAGE_BYTES - taken, self.last, False
        if sum(part.body_bytes for part in self.parts) > room:
            # DataFusion would hold a page of the largest messages in memory before it hands out the first.
            fitting, full = _fitting(self._select(query, SIZE_COLUMNS, last), room, least=0 if taken else 1)
            if not fitting:
                return Found([], full)
            last = fitting[-1]
        rows = self._select(query, MESSAGE_COLUMNS, last)
        found = [StoredMessage(number, sender, body, created_at) for number, sender, body, created_at in rows]
        return Found(found, full)

    def _select(self, query: "QueryBuilder", columns: str, last: int) -> list[tuple[Any, ...]]:
        return _rows(query, select(columns, self.stretch, self.parts, self.after, last, self.limit))


def _rows(query: "QueryBuilder", sql: str) -> list[tuple[Any, ...]]:
    """Run ``sql``. By pyarrow: deltalake's own reader would hold the interpreter for as long as DataFusion works."""
    import pyarrow  # noqa: PLC0415 - as deltalake

    with pyarrow.RecordBatchReader.from_stream(query.execute(sql)) as reader:
        return [row for batch in reader for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)]


def _fitting(sizes: list[tuple[Any, ...]], room: int, least: int) -> tuple[list[int], bool]:
    """Return the first numbers whose bodies have ``room``, but at least ``least``; and whether any are left over."""
    fitting: list[int] = []
    for number, size in sizes:
        room -= size
        if room < 0 and len(fitting) >= least:
            return fitting, True
        fitting.append(number)
    return fitting, False


def _failures() -> tuple[type[Exception], ...]:
    """Import what reads the archive, and return the errors by which it tells that it could not."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import pyarrow  # noqa: PLC0415 - a server without an archive does not pay for it
    from deltalake.exceptions import DeltaError  # noqa: PLC0415 - as above

    return DeltaError, pyarrow.ArrowException, OSError
