"""The errors that a client can get. Each class has its status, code and default text."""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import ClassVar

FieldErrors = Mapping[str, Sequence[str]]


class ErrorCode(IntEnum):
    """The ``error_code`` of an error response."""

    UNSPECIFIED = 0
    INPUT_BAD_REQUEST = 100
    INPUT_VALIDATION = 101
    AUTH_HEADER_MISSING = 200
    AUTH_HEADER_INVALID = 201
    AUTH_TOKEN_EXPIRED = 202
    AUTH_PASSWORD_WRONG = 203
    RESOURCE_NOT_FOUND = 300
    RESOURCE_CONFLICT = 301
    RESOURCE_FORBIDDEN = 302
    GROUP_NOT_MEMBER = 400
    GROUP_NOT_ADMIN = 401
    GROUP_NOT_PUBLIC = 402
    GROUP_BANNED = 403


class ApiError(Exception):
    """An error response.

    ``fields``: the invalid request fields, each with its errors. ``headers``: additional headers, such as ``Allow`` of
    a 405.
    """

    status: ClassVar[int] = 500
    code: ClassVar[ErrorCode] = ErrorCode.UNSPECIFIED
    text: ClassVar[str] = "internal server error"

    def __init__(self, text: str | None = None, *, fields: FieldErrors | None = None) -> None:
        """``text``: replaces the default text of the class."""
        super().__init__(text or self.text)
        self.fields: FieldErrors = fields or {}
        self.headers: dict[str, str] = {}

    @property
    def message(self) -> str:
        """The text for the client."""
        return str(self.args[0])


class BadRequestError(ApiError):
    """A malformed body, a missing required field, or a broken constraint."""

    status = 400
    code = ErrorCode.INPUT_BAD_REQUEST
    text = "bad request"


class InvalidValueError(ApiError):
    """A field has an invalid value."""

    status = 400
    code = ErrorCode.INPUT_VALIDATION
    text = "invalid value"


class MethodNotAllowedError(BadRequestError):
    """The path exists, but not with this method. ``Allow`` lists the methods that it has."""

    status = 405
    text = "method not allowed"

    def __init__(self, allowed: Sequence[str]) -> None:
        """``allowed``: the methods of the path."""
        super().__init__()
        self.headers["Allow"] = ", ".join(sorted(allowed))


class BodyTooLargeError(BadRequestError):
    """The request body is over the limit."""

    status = 413
    text = "the request body is larger than 1 MiB"


class UnsupportedMediaTypeError(BadRequestError):
    """The server does not support the format of the body."""

    status = 415
    text = "send the body as Content-Type: application/json or application/x-protobuf"


class UnknownEncodingError(UnsupportedMediaTypeError):
    """The server does not support the compression of the body. ``Accept-Encoding`` lists the supported ones."""

    text = "send the body without Content-Encoding, or as gzip or deflate, once"

    def __init__(self) -> None:
        """Add the supported encodings."""
        super().__init__()
        self.headers = {"Accept-Encoding": "gzip, deflate"}


class UnsupportedCodingError(BadRequestError):
    """The request has a Transfer-Encoding other than ``chunked``. The connection is closed."""

    status = 501
    text = "send the body with a Content-Length, or in chunks: the server supports no other Transfer-Encoding"


class TooManyRequestsError(BadRequestError):
    """The caller has to wait. ``Retry-After`` says how long."""

    status = 429
    text = "too many requests"

    def __init__(self, text: str | None = None, *, seconds: int) -> None:
        """``seconds``: how long to wait, at least 1."""
        super().__init__(text)
        self.headers["Retry-After"] = str(seconds)


class UnavailableError(ApiError):
    """The server cannot do this now, but can later. ``Retry-After`` says when to ask again."""

    status = 503
    text = "the server cannot do this now; try again later"

    def __init__(self, text: str | None = None, *, seconds: int) -> None:
        """``seconds``: how long to wait, at least 1."""
        super().__init__(text)
        self.headers["Retry-After"] = str(seconds)


class ClockInDoubtError(UnavailableError):
    """The wall clock is wrong, or was wrong until recently. Irreversible decisions wait for an operator."""

    text = "the server's clock is in doubt: an operator has to check it first"

    def __init__(self) -> None:
        """Clients may retry after a minute."""
        super().__init__(seconds=60)


class UntrustedClockError(ClockInDoubtError):
    """A transaction has found the wall clock wrong."""

    def __init__(self, fault: str) -> None:
        """``fault``: the reason, for the operator."""
        super().__init__()
        self.fault = fault


class StorageFullError(ApiError):
    """The server has no disk space left."""

    status = 507
    text = "the server has no room to store this"


class AuthHeaderMissingError(ApiError):
    """The request carries no credentials."""

    status = 401
    code = ErrorCode.AUTH_HEADER_MISSING
    text = "authentication required"


class AuthHeaderInvalidError(ApiError):
    """The credentials are not written as ``Bearer TOKEN``, or as a token alone in another header."""

    status = 401
    code = ErrorCode.AUTH_HEADER_INVALID
    text = "the header must be Authorization: Bearer TOKEN, or the token alone in the header that replaces it"


class TokenExpiredError(ApiError):
    """The token is unknown, expired or revoked."""

    status = 401
    code = ErrorCode.AUTH_TOKEN_EXPIRED
    text = "unknown or expired token"


class CredentialsWrongError(TokenExpiredError):
    """The username or the password of a login is wrong. The server does not say which."""

    text = "wrong username or password"


class PasswordWrongError(ApiError):
    """The current password is wrong. The session stays valid."""

    status = 401
    code = ErrorCode.AUTH_PASSWORD_WRONG
    text = "the current password is wrong"


class NotFoundError(ApiError):
    """The requested resource does not exist."""

    status = 404
    code = ErrorCode.RESOURCE_NOT_FOUND
    text = "not found"


class ConflictError(ApiError):
    """The request conflicts with the current state."""

    status = 409
    code = ErrorCode.RESOURCE_CONFLICT
    text = "conflict"


class ForbiddenError(ApiError):
    """Registration is closed, or its token is wrong."""

    status = 403
    code = ErrorCode.RESOURCE_FORBIDDEN
    text = "forbidden"


class QuotaError(ApiError):
    """A user or a group has reached a limit of the operator."""

    status = 403
    code = ErrorCode.RESOURCE_FORBIDDEN
    text = "a quota is exhausted"


class NotMemberError(ApiError):
    """The caller is not a member. A group that does not exist looks the same."""

    status = 401
    code = ErrorCode.GROUP_NOT_MEMBER
    text = "not a member of this group"


class NotAdminError(ApiError):
    """The caller is not an admin. A group that does not exist looks the same."""

    status = 401
    code = ErrorCode.GROUP_NOT_ADMIN
    text = "the admin role in this group is needed"


class NotPublicError(ApiError):
    """The group can only be joined by invitation."""

    status = 403
    code = ErrorCode.GROUP_NOT_PUBLIC
    text = "this group is not public"


class NotSenderError(ApiError):
    """The message has another sender, and the caller may not take it back."""

    status = 403
    code = ErrorCode.GROUP_NOT_PUBLIC
    text = "this message is not yours to take back"


class BannedError(ApiError):
    """The user is banned from the group."""

    status = 403
    code = ErrorCode.GROUP_BANNED
    text = "banned from this group"
