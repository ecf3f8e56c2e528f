"""The hot store as the archive's part of a run sees it: each step opens it and closes it again.

Between two steps this process has no ``sqlite3`` connection to the store, so that ADBC may read it.
"""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Concatenate, ParamSpec, Self, TypeVar

from conclave.policy import PolicySettings
from conclave.store import database
from spark.apply import Pacer, Step

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

    def write(self, fn: Callable[Concatenate[sqlite3.Connection, P], None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Run ``fn`` in one short transaction. Raises RunTooLongError, and what ``require`` raises."""

        def step(connection: sqlite3.Connection) -> bool:
            fn(connection, *args, **kwargs)
            return False

        self.write_steps(lambda connection: iter([lambda: step(connection)]))

    def write_steps(self, steps: Callable[[sqlite3.Connection], Iterator[Step]]) -> None:
        """Run short steps, in as many transactions as it takes. Raises as ``write`` does."""
        with closing(database.connect(self.path)) as connection:
            Pacer(connection, self.deadline, require=lambda: self.require(connection)).run(steps(connection))
