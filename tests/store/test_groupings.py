"""The store's work in random groupings of transactions, with processes that die: no byte stays of what was erased."""

import random
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from conclave.store import bodies, compaction
from conclave.store.engine import sqlite
from conclave.store.engine.sqlite import Step
from tests.support import stores
from tests.support.forensics import Search

ROUNDS = 60
"""How many transactions, checkpoints and deaths of a process each store goes through."""


class UndoneError(Exception):
    """Ends a transaction without a commit."""


class World:
    """A store, and what lives in it: numbers of bodies."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.folder, self.chance, self.search = folder / "0", chance, Search()
        self.folder.mkdir()
        stores.prepare(self.folder / "hot.db")
        self.connection = sqlite.connect(self.folder / "hot.db")
        self.count = 0
        self.living: set[int] = set()
        self.steps: Iterator[Step] = iter(())
        self.step: Step | None = None

    def put(self) -> None:
        sizes = [(24, 400), (24, 400), (400, 4_200), (3_900, 4_200), (4_000, 20_000)]
        numbers = range(self.count, self.count + self.chance.choice([1, 3, 20]))
        made = [self.search.body(number, self.chance.randint(*self.chance.choice(sizes))) for number in numbers]
        rows = zip(bodies.put_many(self.connection, made), numbers, strict=True)
        self.connection.executemany("INSERT INTO messages VALUES (?, 1, ?, x'00', 0, 0)", rows)
        self.count = numbers.stop
        self.living.update(numbers)

    def erase(self) -> None:
        most, there = self.chance.choice([1, 3, 30]), sorted(self.living)
        begin = self.chance.randrange(len(there) + 1)
        for number in there[begin : begin + most]:
            row = self.connection.execute("DELETE FROM messages WHERE sequence_num = ? RETURNING message_id", (number,))
            bodies.erase(self.connection, row.fetchone())
            self.living.remove(number)

    def give_back(self) -> None:
        for _ in range(self.chance.randint(1, 12)):
            if self.step is None:
                self.step = next(self.steps, None)
            if self.step is None:
                self.steps = compaction.compact(self.connection)
                compaction.free_pages(self.connection)
                return
            if not self.step():
                self.step = None

    def transaction(self, *, dies: bool = False) -> None:
        before, is_undone = set(self.living), dies or self.chance.random() < 0.1
        with suppress(UndoneError), sqlite.write_transaction(self.connection):
            for _ in range(self.chance.randint(1, 5)):
                act: Callable[[], None] = self.chance.choice([self.put, self.erase, self.give_back])
                act()
            if dies:
                self.copy()
            if is_undone:
                self.living, self.steps, self.step = before, iter(()), None
                raise UndoneError

    def copy(self) -> None:
        """Make a copy of the files. Another process does: closing them here would end SQLite's locks on them."""
        self.copied = self.folder.with_name(f"{int(self.folder.name) + 1}")
        subprocess.run(["cp", "-a", self.folder, self.copied], check=True)
        (self.copied / "hot.db-shm").unlink()

    def die(self) -> None:
        """Go on with the files as they are in the middle of a transaction of which much is in the log already."""
        self.connection.execute("PRAGMA cache_size = 5")
        self.transaction(dies=True)
        self.connection.close()
        self.folder = self.copied
        self.connection = sqlite.connect(self.folder / "hot.db")

    def look(self) -> None:
        assert sqlite.truncate_wal(self.connection)
        assert self.search.numbers_beside_a_server(self.folder) == self.living


@pytest.mark.parametrize("seed", range(12))
def test_of_what_was_erased_no_byte_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(bodies, "SEGMENT_BYTES", chance.choice([3_000, 10_000, 40_000, 150_000]))
    world = World(tmp_path, chance)
    for _ in range(ROUNDS):
        kind = chance.random()
        if kind < 0.9:
            world.transaction()
        elif kind < 0.93:
            world.die()
        else:
            sqlite.checkpoint(world.connection)
    world.look()
    with closing(world.connection):
        assert {row[0] for row in world.connection.execute("SELECT sequence_num FROM messages")} == world.living
