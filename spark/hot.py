"""The hot store as the archive's part of a run sees it: each step has a connection of its own, in any thread."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Concatenate, ParamSpec, Self, TypeVar

from conclave.retention.policy import PolicySettings
from conclave.store import database
from conclave.store.database import Step
from spark.pacer import Pacer

P = ParamSpec("P")
T = TypeVar("T")


class ArchiveError(Exception):
    """The archive is not as it should be; the message says what was found."""


@dataclass(frozen=True)
class Hot:
    """One store, and what the run goes by.

    ``now``: the second of the run; ``deadline``: its end, on the monotonic clock; ``require`` is called at the
    beginning of each transaction, and raises if the run must not go on.
    """

    path: Path
    settings: PolicySettings
    now: int
    deadline: float = float("inf")
    require: Callable[[sqlite3.Connection], None] = lambda _: None

    def unhurried(self) -> Self:
        """Return the same for what has to be done at the end, however the run went."""
        return replace(self, deadline=float("inf"), require=lambda _: None)

    def read(self, fn: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``fn`` on one snapshot and return its result."""
        with closing(database.connect(self.path, readonly=True)) as connection:
            connection.execute("BEGIN")
            return fn(connection, *args, **kwargs)

    def write(self, fn: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``fn`` in one short transaction, return its result. Raises RunTooLongError, or as ``require``."""
        results: list[T] = []

        def step(connection: sqlite3.Connection) -> bool:
            results.append(fn(connection, *args, **kwargs))
            return False

        self._run(lambda connection: iter([lambda: step(connection)]), is_durable=True)
        return results[0]

    def write_steps(self, steps: Callable[[sqlite3.Connection], Iterator[Step]]) -> None:
        """Run short steps, in as many transactions as it takes; Pacer says how durable. Raises as ``write`` does."""
        self._run(steps, is_durable=False)

    def _run(self, steps: Callable[[sqlite3.Connection], Iterator[Step]], *, is_durable: bool) -> None:
        with closing(database.connect(self.path)) as connection:
            pacer = Pacer(connection, self.deadline, require=lambda: self.require(connection), is_durable=is_durable)
            pacer.run(steps(connection))
