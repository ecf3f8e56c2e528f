"""Examines the body segments: every page of their tables as the file has it, and who refers to their bodies.

A living body is one that a row of the store refers to. Of every other body there must be nothing: its row has NULL in
its place, and no page of the segment has anything where nothing belongs.
"""

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from conclave.proof import pages, remains
from conclave.proof.findings import Finding, Kind, ProofPart
from conclave.proof.frozen import Frozen
from conclave.proof.pages import ByteRange, MalformedError
from conclave.store import bodies
from conclave.store.engine import sqlite
from conclave.store.engine.faults import is_of_the_disk

LOOKED_UP = 4096
"""4,096 bodies are looked up at a time, so that no read lasts."""

REST = 0.5
"""After each moment that was held, and each look, the command rests for half as long as it took."""

Hold = Callable[[], AbstractContextManager[Frozen]]
"""Holds a moment for a block: see ``frozen``."""

_LOWEST = -(2**63) - 1


@dataclass(frozen=True)
class Segment:
    """A segment. ``has_table`` and ``is_listed``: one may be missing, where a program was at fault."""

    number: int
    has_table: bool
    is_listed: bool
    is_dropped: bool


def segments_of(connection: sqlite3.Connection) -> list[Segment]:
    """Return all segments, by their numbers."""
    rows = connection.execute(  # one statement, one snapshot: the server may begin a segment at any time
        "SELECT segment, dropped FROM body_segments UNION ALL SELECT substr(name, 14), NULL FROM sqlite_schema"
        " WHERE type = 'table' AND name GLOB 'body_segment_[0-9]*'"
    ).fetchall()
    listed = {row[0]: bool(row[1]) for row in rows if row[1] is not None}
    stored = {int(row[0]) for row in rows if row[1] is None and row[0].isdecimal()}
    return [
        Segment(number, number in stored, number in listed, listed.get(number, False))
        for number in sorted(listed.keys() | stored)
    ]


def examine_segments(part: ProofPart, path: Path, hold: Hold) -> None:
    """Examine every page of every segment, also of those that come into being meanwhile.

    Raises NotFrozenError, StoreError, sqlite3.Error, and MalformedError if the file is no database.
    """
    seen: set[int] = set()
    while True:
        with closing(sqlite.connect(path, readonly=True)) as connection:
            new = [each for each in segments_of(connection) if each.number not in seen]
        if not new:
            return
        for each in new:
            seen.add(each.number)
            if _is_whole(part, path, each):
                part.count("segments")
                _Walk(part, path, each.number).run(hold)


def examine_references(part: ProofPart, path: Path) -> None:
    """Find living bodies that nothing refers to. Raises StoreError and sqlite3.Error."""
    with closing(sqlite.connect(path, readonly=True)) as connection:
        for each in segments_of(connection):
            if each.has_table and not each.is_dropped:
                try:
                    _look_up(part, path, connection, each.number)
                except sqlite3.DatabaseError as error:
                    if not is_of_the_disk(error):
                        raise
                    told = f"body_segment_{each.number}: its rows cannot be read: {error}"
                    part.add(Finding(Kind.MALFORMED, str(path), told))


def _is_whole(part: ProofPart, path: Path, segment: Segment) -> bool:
    """Tell whether a segment has to be examined; otherwise add why it is a finding as a whole."""
    name = f"body_segment_{segment.number}"
    if segment.is_dropped:
        told = f"{name}: its bodies are dead, and a run was stopped before it had removed them; the next run does"
        part.add(Finding(Kind.DROPPED_SEGMENT, str(path), told))
    elif not (segment.has_table and segment.is_listed):
        missing = "is not listed in body_segments" if segment.has_table else "is listed, but there is no such table"
        part.add(Finding(Kind.UNLISTED_SEGMENT, str(path), f"{name}: {missing}"))
    return segment.has_table and segment.is_listed and not segment.is_dropped


def _look_up(part: ProofPart, path: Path, connection: sqlite3.Connection, segment: int) -> None:
    unowned = " AND ".join(
        f"NOT EXISTS (SELECT 1 FROM {table} WHERE {table}.{column} = body_id)" for table, column in bodies.OWNERS
    )
    batch = f"SELECT body_id FROM body_segment_{segment:d} WHERE body_id > ? ORDER BY body_id LIMIT {LOOKED_UP}"
    last, count = _LOWEST + 1, LOOKED_UP
    while count == LOOKED_UP:
        began = time.monotonic()
        first = last
        counted = connection.execute(f"SELECT count(*), ifnull(max(body_id), 0) FROM ({batch})", (first,))
        count, last = counted.fetchone()
        found = connection.execute(
            f"SELECT body_id FROM body_segment_{segment:d} WHERE body_id > ? AND body_id <= ? AND body IS NOT NULL"
            f" AND {unowned}",
            (first, last),
        ).fetchall()
        part.count("rows", count)
        for (body_id,) in found:
            told = f"body_segment_{segment}: nothing refers to the body {body_id}, which was not erased"
            part.add(Finding(Kind.ORPHAN, str(path), told))
        time.sleep(REST * (time.monotonic() - began))


class _Walk:
    """Walks through one segment's table, a moment after the other, in the order of the rows.

    Rows are only ever added at its end. So what was walked through stays behind, also if pages move.
    """

    def __init__(self, part: ProofPart, path: Path, segment: int) -> None:
        self._part = part
        self._path = path
        self._segment = segment
        self._after: int | None = _LOWEST
        self._interiors: set[int] = set()

    def run(self, hold: Hold) -> None:
        while self._after is not None:
            began = time.monotonic()
            with hold() as view:
                self._examine(view)
            time.sleep(REST * (time.monotonic() - began))

    def _examine(self, view: Frozen) -> None:
        """Go on for as long as the moment may be held, but by at least one page."""
        row = view.connection.execute(
            "SELECT rootpage FROM sqlite_schema WHERE name = ?", (f"body_segment_{self._segment}",)
        ).fetchone()
        if row is None:  # only a run drops a segment, and this command holds the lock of runs
            self._after = None
            return
        for page, data, bound in self._leaves(view, row[0], None, set()):
            with self._told(view, page):
                self._leaf(view, page, data)
            self._after = bound
            if bound is not None and view.is_over():
                return
        self._after = None

    def _leaves(
        self, view: Frozen, page: int, bound: int | None, above: set[int]
    ) -> Iterator[tuple[int, bytes, int | None]]:
        """Yield the leaves under ``page`` that are not done: page, bytes, and the greatest row that it may have.

        ``above``: the inner pages that were passed at this moment. In a table that is whole, none is passed twice.
        """
        with self._told(view, page):
            data = view.read(view.layout.require_page(page, "a page of the table"))
            if pages.is_leaf(data):
                yield page, data, bound
                return
            if page in above:
                raise MalformedError("the table is a circle")
            above.add(page)
            found = pages.read_interior(data, view.layout)
            self._interior(view, page, data, found)
            for child, key in [*found.children, (found.last_child, bound)]:
                if key is None or self._after is None or key > self._after:
                    yield from self._leaves(view, child, key, above)

    def _interior(self, view: Frozen, page: int, data: bytes, found: pages.Interior) -> None:
        if page not in self._interiors:
            self._interiors.add(page)
            self._part.count("pages")
            judge = partial(remains.in_interior, segment=self._segment)
            for stretch in found.unused:
                self._judge(view, page, data, stretch, judge)

    def _leaf(self, view: Frozen, page: int, data: bytes) -> None:
        found = pages.read_leaf(data, view.layout)
        self._part.count("pages")
        self._part.count("living bodies", found.living)
        self._part.count("erased bodies", found.erased)
        for stretch in found.unused:
            self._judge(view, page, data, stretch, remains.in_leaf)
        for first, left in found.overflows:
            self._overflow(view, first, left)

    def _overflow(self, view: Frozen, page: int, left: int) -> None:
        for _ in range(view.layout.pages):
            with self._told(view, page):
                data = view.read(page)
                following, left, unused = pages.read_overflow(data, view.layout, left)
                self._part.count("pages")
                self._judge(view, page, data, unused, remains.in_free_page)
                if left:
                    page = following
                    continue
            return

    def _judge(
        self,
        view: Frozen,
        page: int,
        data: bytes,
        stretch: ByteRange,
        judge: Callable[[bytes, ByteRange, pages.Layout], int],
    ) -> None:
        self._part.count("unused bytes", stretch.end - stretch.begin)
        offset = judge(data, stretch, view.layout)
        if offset >= 0:
            told = f"body_segment_{self._segment}: bytes that belong to no row, in the {stretch.kind}"
            begin = view.layout.begin_of(page) + offset
            self._part.add(Finding(Kind.REMAINS, str(self._path), told, page, begin))

    def _told(self, view: Frozen, page: int) -> "_Malformed":
        return _Malformed(self._part, self._path, f"body_segment_{self._segment}", page, view.layout.begin_of(page))


class _Malformed(AbstractContextManager[None]):
    """Makes a finding of a page that cannot be read, and goes on behind the block."""

    def __init__(self, part: ProofPart, path: Path, table: str, page: int, offset: int) -> None:
        self._part = part
        self._path = path
        self._table = table
        self._page = page
        self._offset = offset

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> bool:
        if not isinstance(error, MalformedError):
            return False
        told = f"{self._table}: a page cannot be read: {error}"
        self._part.add(Finding(Kind.MALFORMED, str(self._path), told, self._page, self._offset))
        return True
