"""``[web]``: the browser chat, and the origins whose web pages may read responses."""

import re
from dataclasses import dataclass
from ipaddress import IPv6Address
from typing import Any

from marshmallow import ValidationError, fields
from yarl import URL

from conclave.config.fields import Section, require_host
from conclave.strict_fields import StrictBoolean

_ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://(\[[0-9A-Fa-f:.]+\]|[^\s/?#@*%:\[\]\\]+)(:[0-9]{1,5})?")


def parse_origin(text: str) -> str:
    """Return an origin as browsers send it: in lower case, without the default port of its scheme.

    Raises ValueError or ValidationError unless it is a scheme, a host and an optional port, without wildcards.
    """
    match = _ORIGIN.fullmatch(text)
    if not match:
        raise ValueError("is not a scheme, a host and an optional port")
    url = URL(text).origin()
    if match[1].startswith("["):
        IPv6Address(url.raw_host or "")
    else:
        require_host(url.raw_host or "")
    return str(url)


@dataclass(frozen=True)
class WebConfig:
    """``[web]``: whether the browser chat is served, and the origins whose web pages may read responses."""

    enabled: bool = True
    allowed_origins: tuple[str, ...] = ()
    """In the form of the header ``Origin``."""

    def __post_init__(self) -> None:
        """Convert a list from TOML or JSON to a tuple."""
        object.__setattr__(self, "allowed_origins", tuple(self.allowed_origins))


class Origins(fields.Field[list[str]]):
    """A list of origins, loaded in the form of the header ``Origin``."""

    def _deserialize(self, value: Any, *args: Any, **kwargs: Any) -> list[str]:
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise ValidationError("must be a list of strings")
        origins, invalid = [], []
        for each in value:
            try:
                origins.append(parse_origin(each))
            except (ValueError, ValidationError):
                invalid.append(each)
        if invalid:
            raise ValidationError(
                f'{", ".join(map(repr, invalid))}: not an origin, as "https://chat.example.org" or'
                ' "http://localhost:3000": a scheme, a host, an optional port, no path, no wildcard'
            )
        return origins


class WebSchema(Section):
    """The schema of ``[web]``."""

    enabled = StrictBoolean()
    allowed_origins = Origins()
