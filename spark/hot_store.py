"""The hot store for the archive's work in a run: each step opens its own connection, in any thread."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Concatenate, ParamSpec, Self, TypeVar

from conclave.retention.resolve import PolicySettings
from conclave.store.archive import moves
from conclave.store.archive.moves import ArchiveState
from conclave.store.engine import sqlite
from conclave.store.engine.sqlite import Step
from spark.pacer import Pacer

P = ParamSpec("P")
T = TypeVar("T")


class ArchiveError(Exception):
    """The archive is not as it should be. The message says what was found."""


@dataclass(frozen=True)
class Hot:
    """One store, with the settings and the time of a run.

    ``now``: the Unix second of the run. ``deadline``: when the run must end, seconds of the monotonic clock.
    ``require`` is called at the beginning of each transaction, and raises if the run must not continue. ``prepare`` is
    called at the beginning of each snapshot: a dry run looks at the store as it would be.
    """

    path: Path
    settings: PolicySettings
    now: int
    deadline: float = float("inf")
    require: Callable[[sqlite3.Connection], None] = lambda _: None
    prepare: Callable[[sqlite3.Connection], object] = lambda _: None

    def seen_through(self, prepare: Callable[[sqlite3.Connection], object]) -> Self:
        """Return the same with each snapshot prepared by ``prepare``, which writes to temporary tables only."""
        return replace(self, prepare=prepare)

    def without_deadline(self) -> Self:
        """Return the same without deadline and ``require``, for the work that must be done at the end of every run."""
        return replace(self, deadline=float("inf"), require=lambda _: None)

    def read(self, fn: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``fn`` on one snapshot and return its result."""
        with closing(sqlite.connect(self.path, readonly=True)) as connection:
            connection.execute("BEGIN")
            self.prepare(connection)
            return fn(connection, *args, **kwargs)

    def archive_state(self) -> ArchiveState:
        """Return what the store knows of its archive as a whole. Raises ArchiveError if it has none."""
        state = self.read(moves.find_state)
        if state is None:
            raise ArchiveError("the store knows of no archive")
        return state

    def write(self, fn: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``fn`` in one short, durable transaction and return its result.

        Raises RunTooLongError, or what ``require`` raises.
        """
        results: list[T] = []

        def step(connection: sqlite3.Connection) -> bool:
            results.append(fn(connection, *args, **kwargs))
            return False

        self._run(lambda connection: iter([lambda: step(connection)]), is_durable=True)
        return results[0]

    def write_steps(self, steps: Callable[[sqlite3.Connection], Iterator[Step]]) -> None:
        """Run short steps in as many transactions as they need. Raises as ``write`` does.

        A power failure may undo the last transactions, see Pacer.
        """
        self._run(steps, is_durable=False)

    def _run(self, steps: Callable[[sqlite3.Connection], Iterator[Step]], *, is_durable: bool) -> None:
        with closing(sqlite.connect(self.path)) as connection:
            pacer = Pacer(connection, self.deadline, require=lambda: self.require(connection), is_durable=is_durable)
            pacer.run(steps(connection))
