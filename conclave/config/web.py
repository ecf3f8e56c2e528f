"""``[web]``: the chat for browsers, and the origins whose web pages may read answers."""

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
    """Return an origin as browsers write it: in lower case, without the default port of its scheme.

    Raises ValueError or ValidationError for anything but a scheme, a host and perhaps a port. A wildcard is no host.
    """
    found = _ORIGIN.fullmatch(text)
    if not found:
        raise ValueError("is not a scheme, a host and perhaps a port")
    url = URL(text).origin()
    if found[1].startswith("["):
        IPv6Address(url.raw_host or "")
    else:
        require_host(url.raw_host or "")
    return str(url)


@dataclass(frozen=True)
class WebConfig:
    """``[web]``: whether the chat for browsers is served, and the origins whose web pages may read answers."""

    enabled: bool = True
    allowed_origins: tuple[str, ...] = ()
    """As browsers write them in ``Origin``."""

    def __post_init__(self) -> None:
        """Take a list too, since TOML and JSON have no tuples."""
        object.__setattr__(self, "allowed_origins", tuple(self.allowed_origins))


class Origins(fields.Field[list[str]]):
    """A list of origins, loaded as browsers write them."""

    def _deserialize(self, value: Any, *args: Any, **kwargs: Any) -> list[str]:
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise ValidationError("must be a list of strings")
        found, wrong = [], []
        for each in value:
            try:
                found.append(parse_origin(each))
            except (ValueError, ValidationError):
                wrong.append(each)
        if wrong:
            raise ValidationError(
                f'{", ".join(map(repr, wrong))}: not an origin, as "https://chat.example.org" or'
                ' "http://localhost:3000": a scheme, a host, perhaps a port, no path, no wildcard'
            )
        return found


class WebSchema(Section):
    """What ``[web]`` may say."""

    enabled = StrictBoolean()
    allowed_origins = Origins()
