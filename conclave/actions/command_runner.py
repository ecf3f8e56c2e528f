"""Runs actions in a process without clients, such as an operator's command.

The server may run at the same time, or be stopped.
"""

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


class OutsideError(Exception):
    """The store cannot be used. Nothing was done, or the message says what. It is one line for the operator."""


class Outside:
    """Runs actions on one store. An action that fails has changed nothing.

    Raises OutsideError, or what the action raises. Each action has a connection of its own, so that none is open while
    an operator thinks. What an action announces waits in the outbox for the server.
    """

    def __init__(self, config: Config, clock: Clock, *, with_keys: bool = False) -> None:
        """``config``: its database has to exist. ``clock``: tells the time.

        ``with_keys``: actions read or store messages, which may be under keys.
        """
        self.config = config
        self._clock = clock
        self._with_keys = with_keys

    def context(self) -> Context:
        """Return the context of actions. Its time is not behind what the server, or a run, has acted on."""
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
        """Return once no cleanup run is under way that may still erase from the archive what it planned earlier.

        In the database each step of a run looks again whether it may erase. In the archive it goes by its plan. So
        without an archive there is nothing to wait for. ``wait``: called before a wait, at most once.
        """
        if not self.read(moves.is_in_use):
            return
        try:
            # No connection of this process is open meanwhile, as ``locks`` wants it.
            with locks.hold(self.config.database, locks.CLEANUP, wait):
                pass
        except OSError as error:
            raise OutsideError(
                f"{error.filename}: {error.strerror}; so it is not known whether a run is still erasing what it planned"
                " before: the change itself is done"
            ) from error

    @contextmanager
    def without_runs(self, wait: Wait) -> Iterator[None]:
        """Let no cleanup run take place while the block lasts. ``wait``: called before a wait for one, at most once."""
        with ExitStack() as held:
            try:
                # No connection of this process is open yet, nor when it lets go: as ``locks`` wants it.
                lock = held.enter_context(closing(locks.DatabaseLock(self.config.database, locks.CLEANUP)))
                held.enter_context(lock.hold(wait))
            except OSError as error:
                raise OutsideError(f"{error.filename}: {error.strerror}") from error
            yield

    @contextmanager
    def keys(self) -> Iterator[KeyStore | None]:
        """Open the keys while the block lasts, if they are wanted and there are any. Raises OutsideError."""
        try:
            keys = keyring.open_to_read(self.config.database, self.config.keys_path) if self._with_keys else None
        except StoreError as error:
            raise OutsideError(str(error)) from error
        with closing(keys) if keys else nullcontext():
            yield keys

    def _require_no_copy(self, connection: sqlite3.Connection) -> None:
        """Refuse to change an older copy, unless a server runs on it, which has made it learn."""
        if fault := changes.older_copy_fault(connection, self.config.database, self.config.ledger_path):
            with suppress(LockedError), locks.hold_name(self.config.database, locks.SERVER):
                raise OutsideError(fault)

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
            raise OutsideError(str(store_error(path, error) if is_expected else error)) from error
