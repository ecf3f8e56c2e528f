"""The marshmallow fields of requests and responses, for JSON and protobuf.

They load text from JSON and bytes from protobuf. They dump bytes, which either format writes.
"""

import base64
import binascii
import re
from collections.abc import Callable
from typing import Any

from marshmallow import ValidationError, fields, missing, validate

from conclave.retention.durations import MAX_SECONDS
from conclave.strict_fields import Text
from conclave.wire.text_rules import TextRule

REQUIRED = "required, and must not be empty"
"""One of the two messages for broken constraints (code 100 instead of 101)."""

TOO_MANY = "too many: at most {}"
"""The other message for broken constraints (code 100)."""

MAX_LIST_ITEMS = 1_000
"""The most items in a list of a request."""

MAX_PAGE_ITEMS = 1_000
"""The most items on a page of a list."""

ID_BYTES = 16

_UUID = re.compile(r"[0-9a-fA-F]{32}|[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", re.ASCII)
_INTEGER = re.compile(r"-?[0-9]+", re.ASCII)

NAME_RULE = validate.Regexp(
    r"[a-zA-Z0-9][a-zA-Z0-9_]{0,63}\Z", error="must be 1 to 64 letters, digits or _, and not begin with _"
)
PASSWORD_RULE = validate.Length(min=8, error="must have at least 8 characters")
ALIAS_RULE = TextRule(
    64, "must have at most 64 characters, none of them invisible or changing the direction of writing"
)
PATTERN_RULE = TextRule(None, "must have no characters that are invisible or change the direction of writing")
FINGERPRINT_RULE = TextRule(
    256, "must have at most 256 characters, none of them invisible or changing the direction of writing"
)
HEX_RULE = validate.Regexp(r"[0-9a-fA-F]{0,1024}\Z", error="must be hexadecimal, at most 1,024 digits")
EXPIRY_RULE = validate.Range(
    -1, MAX_SECONDS, error=f"must be -1 (inherit), 0 (delete-after-fetch) or 1 to {MAX_SECONDS}"
)
MAX_SELF_DESTRUCT_SECONDS = 31_536_000
SELF_DESTRUCT_RULE = validate.Range(
    1,
    MAX_SELF_DESTRUCT_SECONDS,
    error=f"must be 1 to {MAX_SELF_DESTRUCT_SECONDS}, or absent for none",
)
MIN_LIFETIME_RULE = validate.Range(-1, MAX_SECONDS, error=f"must be -1 (inherit), 0 (none) or 1 to {MAX_SECONDS}")

KEY_PACKAGE_BYTES = (4, 16_384)
"""The minimum and maximum bytes of a key package."""

KEY_PACKAGE_START = bytes([0, 1, 0, 5])
"""The first bytes of a key package: an MLSMessage of MLS 1.0 that contains one (RFC 9420 section 6)."""

CLOCK_IN_DOUBT = "X-Clock-In-Doubt"
"""The header of every response while the server's clock is in doubt, instead of Date."""


class _KeyPackageRule(validate.Length):
    """Checks the length and the first bytes of a key package."""

    def __call__(self, value: Any) -> Any:
        if not value.startswith(KEY_PACKAGE_START):
            raise ValidationError(str(self.error))
        return super().__call__(value)


KEY_PACKAGE_RULE = _KeyPackageRule(
    *KEY_PACKAGE_BYTES,
    error="must have {} to {} bytes and begin with {}".format(*KEY_PACKAGE_BYTES, KEY_PACKAGE_START.hex(" ")),
)


def parse_id(text: str) -> bytes:
    """Return the 16 bytes of a UUID, written with hyphens or as 32 hex digits. Raises ValueError."""
    if not _UUID.fullmatch(text):
        raise ValueError("must be a UUID")
    return bytes.fromhex(text.replace("-", ""))


class Id(bytes):
    """An id in a response: in JSON a UUID string, unlike other bytes."""

    __slots__ = ()


class Identifier(Text):
    """A 16-byte id: a UUID string in JSON, bytes in protobuf."""

    def _serialize(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        return Id(value)

    def _deserialize(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(value, bytes):
            if len(value) != ID_BYTES:
                raise ValidationError(f"must have {ID_BYTES} bytes")
            return value
        try:
            return parse_id(super()._deserialize(value, *args, **kwargs))
        except ValueError as error:
            raise ValidationError(str(error)) from error


class Bytes(Text):
    """Opaque bytes: standard base64 with padding in JSON, bytes in protobuf."""

    def _serialize(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        return value

    def _deserialize(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(value, bytes):
            return value
        text = super()._deserialize(value, *args, **kwargs)
        try:
            return base64.b64decode(text.encode("ascii"), validate=True)
        except (binascii.Error, UnicodeEncodeError) as error:
            raise ValidationError("must be standard base64 with padding") from error


class QueryInteger(fields.Integer):
    """An integer in a query string. Values above ``most`` are reduced to ``most``."""

    default_error_messages = {"invalid": "must be an integer"}

    def __init__(self, *, least: int, most: int, default: int | None = None) -> None:
        """``least``: smaller values are errors. ``default``: None: an absent value stays absent."""
        rule = validate.Range(min=least, error="must be at least {min}")
        super().__init__(load_default=missing if default is None else default, validate=rule)
        self.most = most

    def _deserialize(self, value: Any, *args: Any, **kwargs: Any) -> int:
        if not _INTEGER.fullmatch(value):
            raise self.make_error("invalid")
        try:
            return min(int(value), self.most)
        except ValueError as error:  # thousands of digits
            raise self.make_error("invalid") from error


class QueryBoolean(fields.Boolean):
    """``true`` or ``false`` in a query string."""

    default_error_messages = {"invalid": "must be true or false"}

    def _deserialize(self, value: Any, *args: Any, **kwargs: Any) -> bool:
        if value not in ("true", "false"):
            raise self.make_error("invalid")
        return bool(value == "true")


class NotEmpty(validate.Validator):
    """Checks that a value is not empty, and then its ``rule``."""

    def __init__(self, rule: Callable[[Any], Any] | None = None) -> None:
        self.rule = rule

    def __call__(self, value: Any) -> Any:
        """Return ``value``. Raises ValidationError."""
        if not value:
            raise ValidationError(REQUIRED)
        if self.rule:
            self.rule(value)
        return value


class BoundedList(fields.List[Any]):
    """A list of at most ``most`` items. The items of a longer list are not checked."""

    def __init__(self, inner: fields.Field[Any], *, most: int = MAX_LIST_ITEMS, **kwargs: Any) -> None:
        """``most``: at most MAX_LIST_ITEMS."""
        super().__init__(inner, **kwargs)
        self.most = most

    def _deserialize(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(value, list) and len(value) > self.most:
            raise ValidationError(TOO_MANY.format(self.most))
        return super()._deserialize(value, *args, **kwargs)


def breaks_constraint(message: str) -> bool:
    """Return whether a field's error is a broken constraint (code 100), not an invalid value."""
    return message == REQUIRED or message.startswith(TOO_MANY.format(""))


def required(field: Callable[..., fields.Field[Any]], rule: Callable[[Any], Any] | None = None) -> fields.Field[Any]:
    """Return a required ``field`` that must not be empty and has to satisfy ``rule``."""
    return field(required=True, error_messages={"required": REQUIRED}, validate=NotEmpty(rule))
