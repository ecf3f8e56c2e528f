"""Decides what a start would refuse, by its configuration and by the files that lie where that leads.

The start asks here before it makes or changes anything, a reload asks of the file that it reads, and `check-config`,
`doctor` and `status` ask of the next start.
"""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import NamedTuple

from conclave.admin.access import TokenError, token_of
from conclave.clock import Clock
from conclave.config.settings import Config
from conclave.server import ledger_duty, ports
from conclave.server.ports import AddressError
from conclave.server.tls import TlsError, context_of
from conclave.store import keyring
from conclave.store.archive import moves
from conclave.store.engine import path_check, schema, sqlite
from conclave.store.engine.faults import StoreError
from conclave.store.engine.path_check import NotWritableError
from conclave.store.resources import state
from conclave.store.resources.state import PolicyChangeError, PolicyFrozenError
from conclave.system import data_folder
from conclave.system.data_folder import DataFolderError


class Refusal(NamedTuple):
    """Why a start would be refused, in one line; and whether only since this user may not use a file."""

    says: str
    is_of_user: bool = False


def refusals(config: Config, clock: Clock | None) -> list[Refusal]:
    """Return why a start with ``config`` would be refused; nothing if it would not.

    It changes nothing and takes no lock, so a server may run meanwhile: that another one runs, or that a port is taken,
    is not looked at. ``clock``: None leaves out whether the policy may change, which a start and a reload decide in the
    transaction that changes it.
    """
    found = []
    for look in (context_of, lambda config: token_of(config.admin), _require_address, _require_folders):
        found += _asked(look, config)
    if found or not path_check.is_taken(config.database):
        return found
    found += _asked(_require_known_schema, config)
    if found or not schema.is_current(config.database):
        return found  # a start that migrates it looks at the rest by itself
    for look in (_require_keys, _require_ledger, _require_archive):
        found += _asked(look, config)
    return found + (_asked(lambda config: _require_policy(config, clock), config) if clock else [])


def _asked(look: Callable[[Config], object], config: Config) -> list[Refusal]:
    try:
        look(config)
    except OSError as error:
        return [Refusal(f"{error.filename}: {error.strerror}", _is_of_user(error))]
    except sqlite3.Error as error:
        return [Refusal(f"{config.database}: {error}")]
    except _EXPECTED as error:
        return [Refusal(str(error), _is_of_user(error))]
    return []


def _is_of_user(error: BaseException | None) -> bool:
    while error and not isinstance(error, PermissionError | NotWritableError):
        error = error.__cause__
    return error is not None


_EXPECTED = (TlsError, TokenError, AddressError, DataFolderError, StoreError, PolicyChangeError, PolicyFrozenError)


def _require_address(config: Config) -> None:
    ports.require_address(config.listen_address, config.port)


def _require_folders(config: Config) -> None:
    data_folder.require_own(config.data, config.database, config.archive_path)
    path_check.require_restored(config.database)
    if path_check.is_taken(config.database):
        path_check.require_writable(config.database)


def _require_known_schema(config: Config) -> None:
    schema.is_current(config.database)


def _require_keys(config: Config) -> None:
    with closing(sqlite.connect(config.database, readonly=True)) as connection:
        keyring.require_fit(connection, config.database, config.keys_path, encrypt=config.keys.encrypt)


def _require_ledger(config: Config) -> None:
    with closing(sqlite.connect(config.database, readonly=True)) as connection:
        ledger_duty.require_known(connection, config)


def _require_archive(config: Config) -> None:
    """Raise StoreError if no run could erase what is in the archive: it would be kept for ever."""
    if config.cleanup.engine != "spark":
        with closing(sqlite.connect(config.database, readonly=True)) as connection:
            if moves.is_in_use(connection):
                raise StoreError(
                    f'cleanup.engine: {config.database} has messages in the archive, which only "spark" can erase'
                )


def _require_policy(config: Config, clock: Clock) -> None:
    with closing(sqlite.connect(config.database, readonly=True)) as connection:
        connection.execute("BEGIN")
        state.require_change_allowed(connection, config.policy, clock.read())
