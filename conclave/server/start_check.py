"""Checks whether the server can start, by its configuration and its files.

Used by the start before it changes anything, by a reload for the new file, and by `check-config`, `doctor` and `status`
for the next start.
"""

import errno
import os
import socket
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from conclave.admin.access import TokenError, token_of
from conclave.clock import Clock
from conclave.config.settings import Config
from conclave.server import vault_duty
from conclave.server.tls import TlsError, load_context
from conclave.store import keyring
from conclave.store.archive import moves
from conclave.store.engine import path_check, schema, sqlite
from conclave.store.engine.faults import StoreError
from conclave.store.engine.path_check import NotWritableError
from conclave.store.resources import state
from conclave.store.resources.state import PolicyChangeError, PolicyFrozenError
from conclave.system import data_folder
from conclave.system.data_folder import DataFolderError

_LISTENING = "0A"
"""The state of a listening socket in /proc/net/tcp."""

FIRST_UNPRIVILEGED_PORT = 1024
"""Ports below 1024 need a privilege."""


class Refusal(NamedTuple):
    """Why the server would not start, in one line; and whether this user lacks a permission."""

    says: str
    is_of_user: bool = False


class AddressError(Exception):
    """The server cannot listen on an address. The message is one line for the operator."""


def find_refusals(config: Config, clock: Clock | None, *, accepts_older: bool = False) -> list[Refusal]:
    """Return the reasons why a start with ``config`` would fail; empty if it would succeed.

    It changes nothing and takes no lock, so a server may be running. Running servers and used ports are not checked.
    ``clock``: None skips the check of policy changes, which a start does in its own transaction. ``accepts_older``:
    accept a vault that is older than the database.
    """
    refusals = []
    for check in (load_context, lambda config: token_of(config.admin), _require_address, _require_folders):
        refusals += _run_check(check, config)
    if refusals or not path_check.is_taken(config.database):
        return refusals
    return _check_store(config, clock, accepts_older=accepts_older)


def _check_store(config: Config, clock: Clock | None, *, accepts_older: bool) -> list[Refusal]:
    """Return the reasons why the database or the vault prevents a start. Leaves no files beside an unused database."""

    def read(is_frozen: bool) -> list[Refusal]:  # noqa: FBT001 - a callable's parameter has no name
        refusals: list[Refusal] = []

        def check(config: Config) -> None:
            with closing(sqlite.connect(config.database, readonly=True, frozen=is_frozen)) as connection:
                connection.execute("BEGIN")
                refusals.extend(_check_connection(connection, config, clock, accepts_older=accepts_older))

        return _run_check(check, config) or refusals

    return path_check.read_undisturbed(config.database, read)


def _check_connection(
    connection: sqlite3.Connection, config: Config, clock: Clock | None, *, accepts_older: bool
) -> list[Refusal]:
    if not schema.is_current(connection, config.database):
        return []  # the start checks it after the migration
    checks: list[Callable[[Config], object]] = [
        partial(_require_vault, connection, accepts_older=accepts_older),
        partial(_require_archive, connection),
    ]
    if clock:
        checks.append(partial(_require_policy, connection, clock))
    return [refusal for check in checks for refusal in _run_check(check, config)]


def _run_check(check: Callable[[Config], object], config: Config) -> list[Refusal]:
    try:
        check(config)
    except PermissionError as error:
        remedy = f"the server runs as user {os.geteuid()}: let it read and write there"
        return [Refusal(f"{error.filename}: {error.strerror}: {remedy}", is_of_user=True)]
    except OSError as error:
        return [Refusal(f"{error.filename}: {error.strerror}")]
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
    require_address(config.listen_address, config.port)


def _require_folders(config: Config) -> None:
    data_folder.require_own(config.data, config.database, config.archive_path)
    path_check.require_restored(config.database)
    if path_check.is_taken(config.database):
        path_check.require_writable(config.database)
    else:
        _require_room(config)
    data_folder.require_parent(config.data)


def _require_room(config: Config) -> None:
    """Raise StoreError or PermissionError unless the first start can create the database and the vault."""
    keyring.require_unused(config.database, config.keys_path)
    vault = config.vault_path
    for folder in (config.database.parent, vault if vault.exists() else vault.parent):
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, "cannot be written to", str(folder))


def _require_vault(connection: sqlite3.Connection, config: Config, *, accepts_older: bool) -> None:
    """Raise StoreError for the keys, or otherwise for the ledger. A missing or older vault is reported only once."""
    database, path, copies = config.database, config.keys_path, config.vault_copies
    keyring.require_usable(connection, database, path, copies, accepts_older=accepts_older)
    if not accepts_older:
        vault_duty.require_ledger(connection, config.ledger_path)


def _require_archive(connection: sqlite3.Connection, config: Config) -> None:
    """Raise StoreError if the engine cannot erase messages in the archive."""
    if config.cleanup.engine != "spark" and moves.is_in_use(connection):
        raise StoreError(f'cleanup.engine: {config.database} has messages in the archive, which only "spark" can erase')


def _require_policy(connection: sqlite3.Connection, clock: Clock, config: Config) -> None:
    state.require_change_allowed(connection, config.policy, clock.read())


def require_address(address: str, port: int) -> None:
    """Raise AddressError unless this machine has ``address``. It does not check whether ``port`` is free."""
    try:
        for family, socket_type, protocol, _, sockaddr in socket.getaddrinfo(
            address, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            with socket.socket(family, socket_type, protocol) as probe:
                probe.bind(sockaddr)
    except OSError as error:
        raise AddressError(f"cannot listen on {address} port {port}: {explain_bind_error(error, port)}") from error


def explain_bind_error(error: OSError, port: int) -> str:
    """Return one line: why the server cannot listen on ``port``, and what to do."""
    if isinstance(error, socket.gaierror):
        return f"{error.strerror}: name an address of this machine"
    reason = os.strerror(error.errno or 0)
    if error.errno == errno.EADDRINUSE:
        return f"{reason}{_listener_name(port)}: stop that process, or set another port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f'{reason}: name an address of this machine, or "0.0.0.0" for all of them'
    if error.errno == errno.EACCES and port < FIRST_UNPRIVILEGED_PORT:
        return (
            f"{reason}: a port below {FIRST_UNPRIVILEGED_PORT} needs a privilege: set another port, or give the server"
            " AmbientCapabilities=CAP_NET_BIND_SERVICE in systemd"
        )
    return reason


def _listener_name(port: int) -> str:
    """Return the name of the process that listens on ``port``, for a message; "" if unknown."""
    sockets = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    for folder in Path("/proc").glob("[0-9]*/fd") if sockets else ():
        with suppress(OSError):  # it has ended, or belongs to another user
            if any(_link_target(each) in sockets for each in folder.iterdir()):
                name = folder.with_name("comm").read_text().strip()
                return f" by process {folder.parent.name} ({name})"
    return ""


def _link_target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:  # it is closed by now
        return ""


def _listening_inodes(port: int) -> list[str]:
    """Return the inodes of the sockets that listen on ``port``, as text."""
    inodes = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                cells = line.split()
                if cells[3] == _LISTENING and int(cells[1].rpartition(":")[2], 16) == port:
                    inodes.append(cells[9])
    return inodes
