"""Stores with bodies that live and bodies that were erased, and the command's answer about them."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from conclave.clock import FakeClock
from conclave.config.settings import Config
from conclave.proof import pages
from conclave.proof.findings import ProofPart
from conclave.proof.pages import Layout
from conclave.proof.verify import verify
from conclave.store import bodies, compaction
from conclave.store.engine import sqlite
from spark.pacer import Pacer, empty_wal
from tests.support import stores
from tests.support.forensics import Search
from tests.support.server import conclave

PLANTED = b"\xa7" * 24

SIZES = (24, 100, 300, 1000, 3900, 8200, 20_000)
"""Of a body of 8,200 bytes the last page is not full: SQLite fills it where it can."""


class Bodies:
    """A store with bodies of many sizes, every third of which was erased."""

    def __init__(self, folder: Path, count: int = 700) -> None:
        self.config = Config(database_path=str(folder / "hot.db"))
        self.path = self.config.database
        self.search = Search()
        stores.prepare(self.path)
        self.ids: list[int] = []
        with self.opened() as connection:
            self.add(connection, count)
            for number in range(0, count, 3):
                self.erase(connection, number)
            with sqlite.write_transaction(connection):
                compaction.free_pages(connection)

    def opened(self) -> Any:
        return _Opened(self.path)

    def add(self, connection: sqlite3.Connection, count: int) -> None:
        with sqlite.write_transaction(connection):
            for number in range(len(self.ids), len(self.ids) + count):
                body_id = bodies.put(connection, self.search.body(number, SIZES[number % len(SIZES)]))
                connection.execute("INSERT INTO messages VALUES (?, 1, ?, x'00', 0, 0)", (body_id, number))
                self.ids.append(body_id)

    def erase(self, connection: sqlite3.Connection, number: int) -> None:
        with sqlite.write_transaction(connection):
            connection.execute("DELETE FROM messages WHERE message_id = ?", (self.ids[number],))
            bodies.erase(connection, [self.ids[number]])

    def give_space_back(self) -> None:
        with self.opened() as connection:
            Pacer(connection).run(compaction.compact(connection))
            empty_wal(connection)

    def examine(self) -> dict[str, ProofPart]:
        return examined(self.config)


class File:
    """The database's file, to look into and to plant in, while nobody has it open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = bytearray(path.read_bytes())
        self.layout: Layout = pages.read_layout(bytes(self.data[:100]))

    def page(self, number: int) -> bytes:
        begin = self.layout.begin_of(number)
        return bytes(self.data[begin : begin + self.layout.page_bytes])

    def plant(self, page: int, offset: int, what: bytes = PLANTED) -> int:
        begin = self.layout.begin_of(page) + offset
        self.data[begin : begin + len(what)] = what
        self.path.write_bytes(self.data)
        return begin

    def leaves(self, path: Path) -> Iterator[tuple[int, pages.Leaf]]:
        with closing(sqlite.connect(path, readonly=True)) as connection:
            roots = [
                row[0]
                for row in connection.execute(
                    "SELECT rootpage FROM sqlite_schema WHERE name GLOB 'body_segment_[0-9]*'"
                )
            ]
        while roots:
            number = roots.pop()
            data = self.page(number)
            if pages.is_leaf(data):
                yield number, pages.read_leaf(data, self.layout)
            else:
                inner = pages.read_interior(data, self.layout)
                roots += [inner.last_child, *(child for child, _ in inner.children)]

    def last_of(self, page: int, left: int) -> tuple[int, int]:
        """The last page of a body, and how many bytes it has there."""
        while left > self.layout.usable - 4:
            page, left, _ = pages.read_overflow(self.page(page), self.layout, left)
        return page, left

    def inner(self, path: Path) -> int:
        with closing(sqlite.connect(path, readonly=True)) as connection:
            root: int = connection.execute(
                "SELECT rootpage FROM sqlite_schema WHERE name = 'body_segment_1'"
            ).fetchone()[0]
        assert not pages.is_leaf(self.page(root))
        return root


class _Opened(closing[sqlite3.Connection]):
    def __init__(self, path: Path) -> None:
        super().__init__(sqlite.connect(path))


def examined(config: Config, now: int = 2_000_000_000) -> dict[str, ProofPart]:
    """Examine a store in this process; return the parts by their names."""

    def waiting() -> None:
        raise AssertionError("no run is under way")

    return {part.name: part for part in verify(config, FakeClock(now), emptied, waiting)}


def emptied(connection: sqlite3.Connection) -> bool:
    """Empty the log; it is not tried for as long as the command does."""
    return sqlite.truncate_wal(connection)


def kinds(parts: dict[str, ProofPart]) -> dict[str, set[str]]:
    """What kinds of findings each part has, without those that have none."""
    return {name: {str(each.kind) for each in part.findings} for name, part in parts.items() if part.findings}


def command(config: Path, folder: Path, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """Run the command with ``--json``; return its exit status, what it found, and its standard error."""
    done = conclave("verify-erasure", "--json", "--config", config, *arguments, cwd=folder)
    return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr


def findings(told: dict[str, Any]) -> list[tuple[str, str]]:
    return [(part["name"], each["kind"]) for part in told["parts"] for each in part["findings"]]
