"""Errors of the client library, one class for each family of error codes."""

import sqlite3
from collections.abc import Mapping, Sequence

from conclave.errors import ErrorCode

TOO_MANY_REQUESTS, UNAVAILABLE = 429, 503

_SERVER_FAULTS = 500
"""The lowest status of a failure of the server, or of a proxy in front of it."""


class ClientError(Exception):
    """The base class of the library's errors. No text contains a token or a password."""


class DiskError(ClientError, sqlite3.OperationalError):
    """The local disk is full, read-only or failing. Nothing was changed: try again later."""


class NoAnswerError(ClientError):
    """No complete answer arrived: the server is unreachable, or the connection broke.

    The server may have executed the request.
    """


class AnswerError(ClientError):
    """The answer does not follow the protocol: another program answers at this address."""


class AnswerTooLongError(AnswerError):
    """The answer exceeds the size limit. Reading was stopped."""


class EncryptionError(ClientError):
    """A message cannot be encrypted, or a key does not belong to its claimed owner. The text says why, in one line."""


class NotReadyError(EncryptionError):
    """The keys of a group have not arrived yet. The library keeps trying: call again later."""


class ReplacedError(EncryptionError):
    """Another device of the account has replaced this one in a group, until ``Sync.reset``."""


class KeyInDoubtError(EncryptionError):
    """A member's key has changed, and the user has not confirmed it by ``Codec.verify`` or ``Codec.accept``."""


class RefusedError(ClientError):
    """The server refused a request.

    ``code``: an ErrorCode if this version knows it; decide by it. ``fields``: the invalid fields of the request, with
    their errors; empty in protobuf. ``retry_after``: seconds to wait before the next attempt, if the server sent them.
    """

    def __init__(
        self,
        status: int,
        code: int,
        text: str,
        fields: Mapping[str, Sequence[str]] | None = None,
        retry_after: float | None = None,
    ) -> None:
        """See the class for the parameters."""
        super().__init__(text)
        self.status = status
        self.code = code
        self.fields = fields or {}
        self.retry_after = retry_after


class InputError(RefusedError):
    """The request is invalid (100, 101). The library checks names itself, before it sends anything."""


class AuthError(RefusedError):
    """The credentials are missing or wrong (200, 201, 203)."""


class WrongPasswordError(AuthError):
    """The password is wrong (203); at login, the username or the password (202): the server does not say which."""


class SessionOverError(AuthError):
    """The token is no longer valid (202). This is the only error after which the application should log out."""


class ResourceError(RefusedError):
    """The resource does not exist, exists already, or is forbidden (300, 301, 302)."""


class GroupError(RefusedError):
    """The caller is not a member, not an admin, or banned, or the group is private (400 to 403)."""


class ServerError(RefusedError):
    """The server has failed, or its disk is full (0). It may have executed the request."""


class BusyError(RefusedError):
    """The server did nothing, and asks to try again later (429, 503)."""


_FAMILIES = {0: ServerError, 1: InputError, 2: AuthError, 3: ResourceError, 4: GroupError}


def error_for(
    status: int, code: int, text: str, fields: Mapping[str, Sequence[str]] | None, retry_after: float | None
) -> RefusedError:
    """Return the exception for an error response."""
    if status in (TOO_MANY_REQUESTS, UNAVAILABLE):
        kind: type[RefusedError] = BusyError
    elif code == ErrorCode.AUTH_TOKEN_EXPIRED:
        kind = SessionOverError
    elif code == ErrorCode.AUTH_PASSWORD_WRONG:
        kind = WrongPasswordError
    else:
        kind = _FAMILIES.get(code // 100, RefusedError)
    return kind(status, code, text, fields, retry_after)


def is_not_member(error: RefusedError) -> bool:
    """Return whether the caller is not in the group, or the group does not exist."""
    return error.code == ErrorCode.GROUP_NOT_MEMBER


def is_final(error: RefusedError) -> bool:
    """Return whether a request was not executed, and would be refused again.

    A failing or busy server, or the end of the session, says nothing about an earlier attempt whose answer was lost.
    """
    return error.status < _SERVER_FAULTS and not isinstance(error, (BusyError, SessionOverError))


def describe_error(error: Exception) -> str:
    """Return an error as one line of text for the user, with the errors of the fields."""
    if isinstance(error, RefusedError) and error.fields:
        return "; ".join(f"{field}: {' '.join(faults)}" for field, faults in error.fields.items())
    return str(error)
