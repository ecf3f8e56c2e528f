"""Group commit: runs many writes in one transaction. If one fails, only that one is rolled back."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from conclave.errors import ApiError
from conclave.failpoints import reach
from conclave.store.engine.connection import StoreConnection

T = TypeVar("T")

SingleWrite = Callable[[sqlite3.Connection], Any]
"""A write that runs by itself, in a savepoint."""

JointWrite = Callable[[sqlite3.Connection, Sequence[Any]], Sequence[Any]]
"""A write that handles many items at once.

It returns a result for each item, or an exception if it rejects the item without changing anything for it. It must not
invalidate anything, nor depend on other writes of the same transaction. If it raises, everything is rolled back, and it
is called again for each item separately. While the connection ``is_on_event_loop``, it raises NotCachedError instead of
reading a lot: then it is called again on the writer's thread.
"""


class NotCachedError(Exception):
    """A joint write would read more than is allowed on the event loop."""


@dataclass(frozen=True)
class PendingWrite:
    """A write for which a caller waits."""

    done: "asyncio.Future[Any]"
    item: Any = None
    single: SingleWrite | None = None


@dataclass
class GroupCommit:
    """The writes that share a transaction."""

    joint: dict[JointWrite, list[PendingWrite]] = field(default_factory=dict)
    singles: list[PendingWrite] = field(default_factory=list)
    count: int = 0
    weight: int = 0
    """The total bytes of the items of joint writes."""

    def add(self, write: PendingWrite, joint: JointWrite | None = None, weight: int = 0) -> None:
        """Add a write. ``weight``: the bytes of its item."""
        (self.singles if joint is None else self.joint.setdefault(joint, [])).append(write)
        self.count += 1
        self.weight += weight

    def __iter__(self) -> Iterator[PendingWrite]:
        """Yield all writes in the order of their outcomes."""
        for writes in self.joint.values():
            yield from writes
        yield from self.singles


@dataclass
class _Result:
    value: Any


def run_together(batch: GroupCommit, connection: StoreConnection) -> list[Any]:
    """Run the joint writes of ``batch``, one call for each kind; return for each item a _Result or an exception.

    They run first in the transaction, so they see only committed data. Raises the exceptions of the calls.
    """
    outcomes: list[Any] = []
    for joint, writes in batch.joint.items():
        reach("writer.begun")
        results = joint(connection, [write.item for write in writes])
        reach("writer.applied")
        outcomes += [each if isinstance(each, Exception) else _Result(each) for each in results]
    return outcomes


def run_joint_one_by_one(batch: GroupCommit, connection: StoreConnection) -> list[Any]:
    """Run the joint writes of ``batch`` for each item separately; return what ``run_together`` does."""
    outcomes = []
    for joint, writes in batch.joint.items():
        for write in writes:
            outcome = _in_savepoint(lambda held, joint=joint, write=write: joint(held, [write.item])[0], connection)  # type: ignore[misc]  # mypy infers no lambda with defaults
            is_rejected = isinstance(outcome, _Result) and isinstance(outcome.value, Exception)
            outcomes.append(outcome.value if is_rejected else outcome)
    return outcomes


def run_singles(batch: GroupCommit, connection: StoreConnection) -> list[Any]:
    """Run the other writes of ``batch``; return for each a _Result or the exception that it raised."""
    return [_in_savepoint(write.single, connection) for write in batch.singles if write.single]


def _in_savepoint(fn: SingleWrite, connection: StoreConnection) -> Any:
    """Run ``fn`` in a savepoint. If it raises, its changes, its news and the room that it claimed are rolled back."""
    connection.execute("SAVEPOINT one_write")
    reach("writer.begun")
    room, announced = connection.room, len(connection.announced)
    outcome: Any
    try:
        outcome = _Result(fn(connection))
        reach("writer.applied")
    except Exception as error:
        if connection.keys:
            connection.keys.roll_back()
        if not connection.in_transaction:
            # SQLite rolled back the whole transaction (disk full, I/O error).
            raise
        connection.execute("ROLLBACK TO one_write")
        connection.room = room
        del connection.announced[announced:]
        # The traceback refers to this batch, which refers to the error: a reference cycle that keeps the bodies of all
        # its requests. The traceback of an error for a client is not needed.
        outcome = error.with_traceback(None) if isinstance(error, ApiError) else error
    connection.execute("RELEASE one_write")
    return outcome


def resolve(future: "asyncio.Future[Any]", outcome: Any) -> None:
    """Set the result or the exception of a write."""
    if future.cancelled():
        return
    if isinstance(outcome, _Result):
        future.set_result(outcome.value)
    else:
        future.set_exception(outcome)


def snapshot(connection: sqlite3.Connection, fn: Callable[[], T]) -> T:
    """Run ``fn`` in a read transaction and return its result."""
    connection.execute("BEGIN")
    try:
        return fn()
    finally:
        if connection.in_transaction:  # after an error SQLite may have ended it, and ROLLBACK would hide the error
            connection.execute("ROLLBACK")
