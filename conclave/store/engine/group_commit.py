"""Group commit: runs many writes in one transaction; one that fails is undone alone."""

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
"""A write of its own kind."""

JointWrite = Callable[[sqlite3.Connection, Sequence[Any]], Sequence[Any]]
"""A write that does for many items at once what each of them asks for.

It returns a result for each item, or the exception by which it refuses it: then it has changed nothing for that item.
It must not invalidate anything, nor depend on what another write of the same transaction does. If it
raises, everything is undone, and it is called again for each item alone. While it ``is_on_event_loop`` it raises
NotCachedError rather than read much: then it is called again where it may.
"""


class NotCachedError(Exception):
    """A joint write needs more from the store than it may read on the event loop."""


@dataclass(frozen=True)
class PendingWrite:
    """What one caller waits for."""

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
    """The bytes that the items of joint writes have together."""

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
    """Run the joint writes of ``batch``, each kind by one call; return for each item a _Result or an exception.

    They run first in their transaction, so they see nothing but what is committed. Raises what a call raises.
    """
    outcomes: list[Any] = []
    for joint, writes in batch.joint.items():
        reach("writer.begun")
        results = joint(connection, [write.item for write in writes])
        reach("writer.applied")
        outcomes += [each if isinstance(each, Exception) else _Result(each) for each in results]
    return outcomes


def run_joint_one_by_one(batch: GroupCommit, connection: StoreConnection) -> list[Any]:
    """Run the joint writes of ``batch`` for each item alone; return what ``run_together`` does."""
    outcomes = []
    for joint, writes in batch.joint.items():
        for write in writes:
            outcome = _alone(lambda held, joint=joint, write=write: joint(held, [write.item])[0], connection)  # type: ignore[misc]  # mypy infers no lambda with defaults
            refused = isinstance(outcome, _Result) and isinstance(outcome.value, Exception)
            outcomes.append(outcome.value if refused else outcome)
    return outcomes


def run_singles(batch: GroupCommit, connection: StoreConnection) -> list[Any]:
    """Run the other writes of ``batch``; return for each a _Result or the exception that it raised."""
    return [_alone(write.single, connection) for write in batch.singles if write.single]


def _alone(fn: SingleWrite, connection: StoreConnection) -> Any:
    """Run ``fn`` in a savepoint. If it raises, it announces nothing, and the room that it took is free again."""
    connection.execute("SAVEPOINT one_write")
    reach("writer.begun")
    room, announced = connection.room, len(connection.announced)
    outcome: Any
    try:
        outcome = _Result(fn(connection))
        reach("writer.applied")
    except Exception as error:
        if connection.keys:
            connection.keys.undo()
        if not connection.in_transaction:
            # SQLite gave up the whole transaction (disk full, I/O error): none of the writes is applied.
            raise
        connection.execute("ROLLBACK TO one_write")
        connection.room = room
        del connection.announced[announced:]
        # Its traceback holds this batch, which will hold it: a circle, and in it the bodies of all its requests. Of an
        # error that a client gets, its origin does not matter.
        outcome = error.with_traceback(None) if isinstance(error, ApiError) else error
    connection.execute("RELEASE one_write")
    return outcome


def settle(done: "asyncio.Future[Any]", outcome: Any) -> None:
    """Give a caller the result or the exception of its write."""
    if done.cancelled():
        return
    if isinstance(outcome, _Result):
        done.set_result(outcome.value)
    else:
        done.set_exception(outcome)


def snapshot(connection: sqlite3.Connection, fn: Callable[[], T]) -> T:
    """Run ``fn`` in a read transaction and return its result."""
    connection.execute("BEGIN")
    try:
        return fn()
    finally:
        if connection.in_transaction:  # SQLite may have ended it after an error: a ROLLBACK would hide that error
            connection.execute("ROLLBACK")
