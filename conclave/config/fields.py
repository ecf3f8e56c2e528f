"""Marshmallow fields for durations, sizes and networks, and the base of all sections."""

import re
from typing import Any

from marshmallow import RAISE, Schema, ValidationError, fields, validate

from conclave.config.addresses import covers_internet, parse_network
from conclave.retention.durations import InvalidDurationError, parse_duration
from conclave.strict_fields import Text

_SIZE = re.compile(r"0|([1-9][0-9]{0,5})(m|g|MiB|GiB)", re.ASCII)
_SIZE_UNITS = {"m": 1024**2, "MiB": 1024**2, "g": 1024**3, "GiB": 1024**3}
_MAX_MEMORY = 999 * 1024**3
"""The greatest size of memory."""


class Duration(Text):
    """A duration, loaded as whole seconds. With ``words``, "-1" and "0" are valid too."""

    default_error_messages = {"invalid": 'must be a duration in quotes, as in "30d"'}

    def __init__(self, *, words: bool = False, **kwargs: Any) -> None:
        """``words``: as in ``parse_duration``."""
        super().__init__(**kwargs)
        self.words = words

    def _deserialize(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        text = super()._deserialize(value, *args, **kwargs)
        try:
            return parse_duration(text, words=self.words)
        except InvalidDurationError as error:
            raise ValidationError(str(error)) from error


class Size(Text):
    """A size, loaded as bytes: a whole number and m or MiB, or g or GiB; or "0"."""

    default_error_messages = {"invalid": 'must be a size in quotes, as in "64m"'}

    def _deserialize(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        return _bytes(super()._deserialize(value, *args, **kwargs), ', or "0"')


class Memory(Text):
    """A size of memory, loaded as text in Java's format: a whole number and m (MiB) or g (GiB)."""

    default_error_messages = {"invalid": 'must be a size in quotes, as in "1g"'}

    def __init__(self, *, least: int, **kwargs: Any) -> None:
        """``least``: the minimum, in MiB."""
        super().__init__(**kwargs)
        self.least = least

    def _deserialize(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        text = super()._deserialize(value, *args, **kwargs)
        if not self.least * 1024**2 <= _bytes(text) <= _MAX_MEMORY:
            raise ValidationError(f'must be a size of at least "{self.least}m", as in "1g"')
        return text.replace("MiB", "m").replace("GiB", "g")


def _bytes(text: str, also: str = "") -> int:
    """Return the bytes of a size. ``also``: other valid values, for the error. Raises ValidationError."""
    match = _SIZE.fullmatch(text)
    if not match:
        raise ValidationError(f'must be a size, a whole number and m or MiB, g or GiB, as in "64m"{also}')
    return int(match[1]) * _SIZE_UNITS[match[2]] if match[2] else 0


class Networks(fields.Field[list[str]]):
    """A list of addresses and networks, loaded as text."""

    def _deserialize(self, value: Any, *args: Any, **kwargs: Any) -> list[str]:
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise ValidationError("must be a list of strings")
        invalid = [each for each in value if not _is_network(each)]
        if invalid:
            texts = ", ".join(map(repr, invalid))
            raise ValidationError(f'{texts}: not an address, as "127.0.0.1", nor a network, as "10.0.0.0/8"')
        if covers_internet(map(parse_network, value)):
            raise ValidationError(
                "these are at least half of the Internet, so any client could forge its address: list the addresses of"
                " your own proxies"
            )
        return value


def _is_network(text: str) -> bool:
    try:
        parse_network(text)
    except ValueError:
        return False
    return True


NOT_EMPTY = validate.Length(min=1, error="must not be empty")
PATH = [NOT_EMPTY, validate.ContainsNoneOf("\0", error="must not contain a zero byte")]
PORT = validate.Range(0, 65535, error="must be between 0 and 65535")


def require_host(text: str) -> None:
    """Raise ValidationError unless the text is an address or a valid host name."""
    NOT_EMPTY(text)
    try:
        text.encode("idna")
    except UnicodeError as error:
        raise ValidationError("is neither an address nor a host name") from error


class Section(Schema):
    """A table of settings. Unknown names are errors."""

    error_messages = {"type": "must be a table"}

    class Meta:
        """Reject unknown settings, so that typos are reported."""

        unknown = RAISE
