"""Stores and hands out key packages. Each regular key package is handed out once."""

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from conclave.actions import users
from conclave.actions.authorisation import require_admin, require_invitable
from conclave.actions.context import Context
from conclave.errors import NotFoundError, TooManyRequestsError
from conclave.store.resources import key_packages, users as stored_users


@dataclass(frozen=True)
class OwnedKeyPackage:
    """A key package that was handed out, and the id of its owner."""

    user_id: bytes
    key_package_data: bytes


def upload(
    connection: sqlite3.Connection,
    user_id: bytes,
    regular: Sequence[bytes],
    last_resorts: Sequence[bytes],
    signing_key_fingerprint: str,
) -> None:
    """Store key packages, all or nothing, and the fingerprint unless it is "".

    ``regular`` and ``last_resorts``: the oldest first. A regular package that is already stored is ignored:
    clients repeat lost requests, and no package may be handed out twice. Raises TokenExpiredError if the account was
    deleted.
    """
    users.require(connection, user_id)
    stored_packages = key_packages.regular_packages(connection, user_id)
    # Skip packages that later ones of the same request would displace, even if the later ones are stored already.
    for package in list(dict.fromkeys(regular))[-key_packages.REGULAR_KEPT :]:
        if package not in stored_packages:
            key_packages.add(connection, user_id, package, is_last_resort=False)
    for package in last_resorts[-1:]:
        key_packages.add(connection, user_id, package, is_last_resort=True)
    if signing_key_fingerprint:
        stored_users.set_fingerprint(connection, user_id, signing_key_fingerprint)


def fetch(connection: sqlite3.Connection, context: Context, user_id: bytes) -> OwnedKeyPackage:
    """Take a key package of a user. Raises NotFoundError (no user, or no package left) or TooManyRequestsError."""
    users.by_id(connection, user_id)
    return _hand_out(connection, context, [user_id])[0]


def invite(
    connection: sqlite3.Connection, context: Context, group_id: bytes, inviter_id: bytes, user_ids: Iterable[bytes]
) -> list[OwnedKeyPackage]:
    """Take a key package of each user to invite, all or nothing. The inviter is skipped.

    Raises NotAdminError, and the errors of ``require_invitable`` and ``fetch``.
    """
    group = require_admin(connection, context, group_id, inviter_id).group
    invitee_ids = [each for each in dict.fromkeys(user_ids) if each != inviter_id]
    require_invitable(connection, group, invitee_ids)
    return _hand_out(connection, context, invitee_ids)


def _hand_out(connection: sqlite3.Connection, context: Context, user_ids: Sequence[bytes]) -> list[OwnedKeyPackage]:
    """Take a key package of each user, all or nothing. Raises TooManyRequestsError or NotFoundError.

    The rate limit is per owner, so a caller who drains a user's packages delays all callers.
    """
    handouts, now = context.handouts, context.clock.read().since_boot
    seconds = max((handouts.wait(user_id, now) for user_id in user_ids), default=0)
    if seconds:
        raise TooManyRequestsError("too many key packages of this user were handed out", seconds=seconds)
    packages = key_packages.take(connection, user_ids)
    if packages is None:
        raise NotFoundError("this user has no key package")
    for user_id in user_ids:
        handouts.record(user_id, now)
    return [OwnedKeyPackage(user_id, package) for user_id, package in zip(user_ids, packages, strict=True)]
