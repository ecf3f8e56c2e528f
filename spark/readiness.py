"""Checks the conditions for work on the store: the schema, the server's settings, disk space, and the clock."""

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from conclave.archive.files import DamagedLogError
from conclave.clock.guard import effective_time
from conclave.retention.resolve import PolicySettings
from conclave.store.archive.restore import RestoreError
from conclave.store.engine import schema, sqlite
from conclave.store.engine.faults import StoreError
from conclave.store.ledger import changes
from conclave.store.resources import state
from conclave.system import reserve
from spark.environment import CleanupError, RunEnvironment
from spark.hot_store import ArchiveRunError, Hot, RunTooLongError, WalBusyError

if TYPE_CHECKING:
    from spark.archive.run import ArchiveRun


class ClockWrongError(Exception):
    """The clock is wrong, so nothing is erased."""


EXPECTED = (
    *(CleanupError, ClockWrongError, ArchiveRunError, RestoreError),
    *(RunTooLongError, WalBusyError, DamagedLogError),
)
"""Expected errors of a run, or of an archive command."""

NOT_BEGUN = (CleanupError, OSError, StoreError, sqlite3.Error)
"""Errors that keep a run from starting."""


@contextlib.contextmanager
def ready(
    engine: RunEnvironment, prepare: Callable[[PolicySettings], object], *, writing: bool = True
) -> Iterator[PolicySettings]:
    """Context manager that checks the conditions of a run, calls ``prepare``, and yields the settings.

    Raises CleanupError with one line.
    """
    try:
        with reserve.released_reserve(engine.config) if writing else contextlib.nullcontext():
            schema.require_current(engine.path, writing=writing)
            settings = settings_in_force(engine, writing=writing)
            engine.check()
            prepare(settings)
        # Outside of the block, so that the reserve can be restored while this run waits for another one.
        yield settings
    except OSError as error:
        raise CleanupError(f"{error.filename}: {error.strerror}" if error.filename else str(error)) from error
    except (StoreError, sqlite3.Error) as error:
        raise CleanupError(str(error)) from error


def settings_in_force(engine: RunEnvironment, *, writing: bool) -> PolicySettings:
    """Return the settings that the server last ran with, and resume the clock from its time.

    All runs use these settings. Raises CleanupError if this configuration differs and ``writing``.
    """
    with closing(sqlite.connect(engine.path, readonly=True)) as connection:
        stored = state.stored_policy(connection)
        if writing:
            _require_no_copy(engine, connection)
        engine.clock.resume(state.clock_state(connection).floor, None)
    if stored is None:
        raise CleanupError(f"{engine.path}: has not been used by a server yet: start `conclave serve` first")
    if writing and stored != engine.config.policy:
        raise CleanupError(
            f"{', '.join(stored.differing(engine.config.policy))}: this configuration differs from the one that the"
            " server last ran with; restart the server with it, or use the server's configuration"
        )
    return stored


def _require_no_copy(engine: RunEnvironment, connection: sqlite3.Connection) -> None:
    """Raise CleanupError if the database is an older copy on which the ledger was not replayed."""
    if fault := changes.older_copy_fault(connection, engine.path, engine.config.ledger_path):
        raise CleanupError(fault)


def require_clock(engine: RunEnvironment) -> int:
    """Return the Unix second of the run, and record that the run acts on it. Raises ClockWrongError."""
    with closing(sqlite.connect(engine.path)) as connection, sqlite.write_transaction(connection):
        reading = engine.clock.read()
        clock_state = state.begin_run(connection, reading)
    engine.clock.resume(clock_state.floor, None if clock_state.fault else reading)
    if clock_state.fault:
        raise ClockWrongError(
            f"{clock_state.fault}: nothing is erased until the clock is right and accepted by"
            " `conclave cleanup run --accept-clock`"
        )
    # Use the reading that was checked: the clock may have jumped since.
    return effective_time(reading.wall, clock_state.floor.acted_until)


def open_hot(engine: RunEnvironment, settings: PolicySettings, now: int, deadline: float = float("inf")) -> Hot:
    """Return the store at the Unix second ``now``. ``deadline``: for writes, seconds of the monotonic clock."""
    return Hot(engine.path, settings, now, deadline, requirement(settings))


def requirement(settings: PolicySettings) -> Callable[[sqlite3.Connection], None]:
    """Return a check that raises CleanupError if a server has started with other settings than those of the run.

    It is called in each transaction, while others wait for the lock, so it parses the settings only if they changed.
    """
    checked: str | None = None

    def require(connection: sqlite3.Connection) -> None:
        nonlocal checked
        text = state.stored_text(connection)
        if text is None or text != checked:
            if state.stored_policy(connection) != settings:
                raise CleanupError("the server's settings changed during the run; the next run uses the new ones")
            checked = text

    return require


def spare_bytes(engine: RunEnvironment) -> int:
    """Return the bytes that a restore from the archive must leave free on the disk."""
    return engine.config.cleanup.disk_reserve + reserve.SLACK_BYTES


@contextlib.contextmanager
def archive_at_rest(engine: RunEnvironment) -> Iterator["ArchiveRun"]:
    """Context manager that holds the run lock, and yields the archive. Raises CleanupError if there is none."""
    with ready(engine, lambda _: engine.warm_up()) as settings, engine.only_run():
        archive = engine.archive(open_hot(engine, settings, engine.clock.now()))
        if archive is None:
            raise CleanupError(f"{engine.path}: nothing is archived")
        try:
            yield archive
        finally:
            engine.empty_work()
