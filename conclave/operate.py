"""What operators do to accounts, in a process of its own, while the server runs or while it is stopped."""

import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from marshmallow import ValidationError

from conclave.auth.passwords import hash_password
from conclave.clock import Clock
from conclave.errors import NotFoundError
from conclave.logs import get_logger
from conclave.store import accounts, database, state, users
from conclave.store.accounts import Account
from conclave.store.connection import StoreConnection
from conclave.store.faults import StoreError
from conclave.store.users import User
from conclave.wire.fields import PASSWORD_RULE

log = get_logger(__name__)

_LETTERS = "abcdefghijkmnpqrstuvwxyz23456789"
"""Those that are not taken for one another when they are read out."""


class OperateError(Exception):
    """Nothing was done; the message is one line for the operator."""


def new_password() -> str:
    """Return a new random password of 100 bits: 20 letters and digits, in groups of five."""
    return "-".join("".join(secrets.choice(_LETTERS) for _ in range(5)) for _ in range(4))


class Operator:
    """Acts on the accounts of one store. Whatever fails raises OperateError, and has changed nothing.

    Each method has a connection of its own, so that none is open while an operator thinks.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        """``path``: of the database, which must be there."""
        self._path = path
        self._clock = clock

    def find(self, username: str) -> User:
        """Return the account of that name."""
        with self._connected(readonly=True) as connection:
            try:
                return users.by_name(connection, username)
            except (NotFoundError, UnicodeEncodeError) as error:  # the latter: an argument that is not UTF-8
                raise OperateError(f"{username}: no such user") from error

    def list_accounts(self, like: str = "") -> list[Account]:
        """List the accounts whose name or alias contains ``like``, whatever its case, by name.

        All of them at once: a snapshot that lasts as long as a reader of the list would hold cleanup up.
        """
        sought = like.casefold()
        with self._connected(readonly=True) as connection:
            listed = accounts.list_all(connection, state.time_now(connection, self._clock.read()))
        return [each for each in listed if sought in each.username.casefold() or sought in each.alias.casefold()]

    def reset_password(self, user_id: bytes, password: str) -> None:
        """Set a password, by the rule of the protocol, and end the user's sessions and streams."""
        try:
            PASSWORD_RULE(password)
        except ValidationError as error:
            raise OperateError(f"the password {' '.join(map(str, error.messages))}") from error
        hashed = hash_password(password)  # before the write lock is taken, which others wait for
        with self._changing("reset-password") as connection:
            accounts.reset_password(connection, user_id, hashed)

    def disable(self, user_id: bytes) -> None:
        """End the user's sessions and streams, and allow no new ones."""
        with self._changing("disable") as connection:
            accounts.disable(connection, user_id)

    def enable(self, user_id: bytes) -> None:
        """Let a disabled user log in again."""
        with self._changing("enable") as connection:
            accounts.enable(connection, user_id)

    def delete(self, user_id: bytes) -> None:
        """Delete an account, as its user can."""
        with self._changing("delete") as connection:
            users.by_id(connection, user_id)
            accounts.delete(connection, user_id, state.time_now(connection, self._clock.read()))

    @contextmanager
    def _changing(self, action: str) -> Iterator[StoreConnection]:
        """Have the block in one transaction. The log learns what was done, but not to whom."""
        with self._connected() as connection:
            with database.write_transaction(connection):
                yield connection
            log.info("account_changed", action=action)

    @contextmanager
    def _connected(self, *, readonly: bool = False) -> Iterator[StoreConnection]:
        try:
            database.require_current(self._path, writing=not readonly)
            with closing(database.connect(self._path, readonly=readonly)) as connection:
                yield connection
        except (StoreError, sqlite3.Error, OSError, NotFoundError) as error:
            raise OperateError(str(error)) from error
