"""What can go wrong for a client: no answer, or an answer that refuses. A class for each family of codes."""

import sqlite3
from collections.abc import Mapping, Sequence

from conclave.errors import ErrorCode

TOO_MANY_REQUESTS, UNAVAILABLE = 429, 503

_SERVER_FAULTS = 500
"""From this status on it is the server that fails, or a proxy before it."""


class ClientError(Exception):
    """The base of all that this library raises. No text of it has a token or a password."""


class DiskError(ClientError, sqlite3.OperationalError):
    """Nothing can be written here: the disk is full, or read-only, or fails. Nothing was changed: try again later."""


class NoAnswerError(ClientError):
    """There was no answer, or only a part: the server is out of reach, or the connection broke.

    The server may have done what it was asked for.
    """


class AnswerError(ClientError):
    """The answer is none of this protocol: something else answers at this address."""


class AnswerTooLongError(AnswerError):
    """The answer is longer than any of this protocol. It is not read to its end, and takes no memory."""


class EncryptionError(ClientError):
    """Something cannot be encrypted, or what is needed for it is not what it seems; the text says why, in a line."""


class NotReadyError(EncryptionError):
    """The keys of a group are not there yet: it goes on by itself, so try again later."""


class ReplacedError(EncryptionError):
    """Another device of the account has taken this one's place in a group: nothing goes on until ``Sync.reset``."""


class KeyInDoubtError(EncryptionError):
    """A member's key has changed, and the user has not judged it: ``Codec.verify`` or ``Codec.accept`` does."""


class RefusedError(ClientError):
    """An answer that is not a success.

    ``code``: what to decide by, an ErrorCode as far as this version knows it. ``fields``: the fields of the request at
    fault, with what is wrong with each; in protobuf they are not told. ``retry_after``: seconds after which it is worth
    trying again, if the server says so.
    """

    def __init__(
        self,
        status: int,
        code: int,
        text: str,
        fields: Mapping[str, Sequence[str]] | None = None,
        retry_after: float | None = None,
    ) -> None:
        """Say what the answer says."""
        super().__init__(text)
        self.status = status
        self.code = code
        self.fields = fields or {}
        self.retry_after = retry_after


class InputError(RefusedError):
    """The request is wrong (100, 101). Of names that no user can have the library says so before anything is sent."""


class AuthError(RefusedError):
    """The credentials are missing or wrong (200, 201, 203)."""


class WrongPasswordError(AuthError):
    """The password is wrong (203), or at login the username or the password (202): the server does not say which."""


class SessionOverError(AuthError):
    """The token is not known any more (202). The only reason to log out."""


class ResourceError(RefusedError):
    """What the request names is not there, is there already, or is forbidden (300, 301, 302)."""


class GroupError(RefusedError):
    """The caller may not do that in this group: no member, no admin, banned, or it is private (400 to 403)."""


class ServerError(RefusedError):
    """The server has failed, or has no room (0). What it was asked for may be done in part of the cases."""


class BusyError(RefusedError):
    """The server has done nothing, and asks to come back later (429, 503)."""


_FAMILIES = {0: ServerError, 1: InputError, 2: AuthError, 3: ResourceError, 4: GroupError}


def refused(
    status: int, code: int, text: str, fields: Mapping[str, Sequence[str]] | None, retry_after: float | None
) -> RefusedError:
    """Return the error that an answer means."""
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
    """Tell whether the caller is not in the group, or there is none."""
    return error.code == ErrorCode.GROUP_NOT_MEMBER


def is_final(error: RefusedError) -> bool:
    """Tell whether a request was not done, and the same one would be refused again.

    What says that the server, or a proxy before it, cannot now may follow on an answer that was lost: an earlier try
    may have been done. Nor does the end of a session say what was done before it.
    """
    return error.status < _SERVER_FAULTS and not isinstance(error, (BusyError, SessionOverError))


def describe_error(error: Exception) -> str:
    """Say for people what went wrong, with what is wrong with each field, in one line."""
    if isinstance(error, RefusedError) and error.fields:
        return "; ".join(f"{field}: {' '.join(faults)}" for field, faults in error.fields.items())
    return str(error)
