"""Runs actions outside the server, for commands. The server may be running or stopped."""

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from typing import ParamSpec, TypeVar

from conclave.actions.context import Action, Context
from conclave.clock import Clock
from conclave.clock.steady import SteadyClock
from conclave.config.settings import Config
from conclave.keys.store import KeyStore
from conclave.store import keyring
from conclave.store.archive import moves
from conclave.store.engine import schema, sqlite
from conclave.store.engine.faults import StoreError, is_busy, is_disk_error, store_error
from conclave.store.ledger import changes
from conclave.store.resources import state
from conclave.system import locks
from conclave.system.locks import LockedError, Wait

P = ParamSpec("P")
T = TypeVar("T")


class CommandRunnerError(Exception):
    """The store cannot be used. Nothing was changed, unless the one-line message says otherwise."""


class CommandRunner:
    """Runs actions on one store. A failed action changes nothing.

    Raises CommandRunnerError, or the errors of the action. Each action opens its own connection, so none is open while
    the command waits for input. The server delivers announcements from the outbox.
    """

    def __init__(self, config: Config, clock: Clock, *, with_keys: bool = False) -> None:
        """``config``: its database must exist. ``with_keys``: load the keys, for actions that use message bodies."""
        self.config = config
        self._clock = clock
        self._with_keys = with_keys

    def context(self) -> Context:
        """Return the context of actions. Its time is not earlier than the last time the server or a run acted on."""
        clock = SteadyClock(self._clock)
        clock.resume(self.read(state.clock_state).floor, None)
        return Context(self.config.policy, clock)

    def read(self, action: Action[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``action`` on one snapshot and return its result."""
        with self._connected(readonly=True) as connection:
            connection.execute("BEGIN")
            return action(connection, *args, **kwargs)

    def write(self, action: Action[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``action`` in one transaction and return its result."""
        with self._connected() as connection, sqlite.write_transaction(connection):
            return action(connection, *args, **kwargs)

    def wait_for_run(self, wait: Wait) -> None:
        """Wait until no cleanup run is active that may still erase planned messages from the archive.

        A run checks again before it erases from the database, but not in the archive. Returns at once if there is no
        archive. ``wait``: called at most once, before waiting.
        """
        if not self.read(moves.is_in_use):
            return
        try:
            # ``locks`` requires that this process has no open connection.
            with locks.hold(self.config.database, locks.CLEANUP, wait):
                pass
        except OSError as error:
            raise CommandRunnerError(
                f"{error.filename}: {error.strerror}; a run may still be erasing messages that it planned before; the"
                " change itself is done"
            ) from error

    @contextmanager
    def without_runs(self, wait: Wait) -> Iterator[None]:
        """Context manager that excludes cleanup runs. ``wait``: called at most once, before waiting for a run."""
        with ExitStack() as stack:
            try:
                # ``locks`` requires that this process has no open connection now, or at release.
                lock = stack.enter_context(closing(locks.DatabaseLock(self.config.database, locks.CLEANUP)))
                stack.enter_context(lock.hold(wait))
            except OSError as error:
                raise CommandRunnerError(f"{error.filename}: {error.strerror}") from error
            yield

    @contextmanager
    def keys(self) -> Iterator[KeyStore | None]:
        """Context manager for the open key store, or None if not requested or absent. Raises CommandRunnerError."""
        try:
            keys = keyring.open_to_read(self.config.database, self.config.keys_path) if self._with_keys else None
        except StoreError as error:
            raise CommandRunnerError(str(error)) from error
        with closing(keys) if keys else nullcontext():
            yield keys

    def _require_no_copy(self, connection: sqlite3.Connection) -> None:
        """Raise if the database is an older copy, unless a server runs on it, which has replayed the ledger."""
        if fault := changes.older_copy_fault(connection, self.config.database, self.config.ledger_path):
            with suppress(LockedError), locks.hold_name(self.config.database, locks.SERVER):
                raise CommandRunnerError(fault)

    @contextmanager
    def _connected(self, *, readonly: bool = False) -> Iterator[sqlite3.Connection]:
        path = self.config.database
        try:
            schema.require_current(path, writing=not readonly)
            with closing(sqlite.connect(path, readonly=readonly)) as connection, self.keys() as keys:
                if not readonly:
                    self._require_no_copy(connection)
                connection.keys = keys
                yield connection
        except (StoreError, sqlite3.Error, OSError) as error:
            is_expected = is_busy(error) or is_disk_error(error)
            raise CommandRunnerError(str(store_error(path, error) if is_expected else error)) from error
