"""``[admin]``: the listener for operators."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import ip_address

from marshmallow import validate
from marshmallow.fields import List

from conclave.config.fields import PATH, PORT, Section, require_host
from conclave.strict_fields import StrictBoolean, StrictInteger, Text

TOKEN = re.compile(r"[!-~]{32,1024}\Z")
"""A token is long enough not to be guessed, and valid in a header."""

FORMAT_FAULT = "must have 32 to 1024 visible ASCII characters and no spaces, as from `openssl rand -hex 32`"


@dataclass(frozen=True)
class AdminConfig:
    """``[admin]``: the listener for operators.

    ``token``, or the contents of ``token_file``: the bearer token of requests.
    """

    listen_address: str = "127.0.0.1"
    listen_port: int = 9090
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None
    hosts: tuple[str, ...] = ()
    """The host names of the listener, besides those of loopback."""
    allow_actions: bool = False
    """Whether the page has forms that change something."""

    def __post_init__(self) -> None:
        """Convert a list from TOML or JSON to a tuple."""
        object.__setattr__(self, "hosts", tuple(self.hosts))

    @property
    def is_on_loopback(self) -> bool:
        """Whether only this machine can reach the listener. Host names except ``localhost`` count as public."""
        try:
            return ip_address(self.listen_address).is_loopback
        except ValueError:
            return self.listen_address.lower() == "localhost"


def contradictions(admin: AdminConfig) -> Iterator[str]:
    """Yield a line for each contradiction between settings."""
    if admin.token and admin.token_file:
        yield "admin.token and admin.token_file: set one of them"
    if admin.allow_actions and not (admin.token or admin.token_file):
        yield ("admin.allow_actions: any user of this machine could use them: set admin.token or admin.token_file")
    if not (admin.is_on_loopback or admin.token or admin.token_file):
        yield (
            f'admin.listen_address: "{admin.listen_address}" is not loopback, so anyone could read it: set admin.token'
            " or admin.token_file"
        )


class AdminSchema(Section):
    """The schema of ``[admin]``."""

    listen_address = Text(validate=require_host)
    listen_port = StrictInteger(validate=PORT)
    token = Text(validate=validate.Regexp(TOKEN, error=FORMAT_FAULT))
    token_file = Text(validate=PATH)
    allow_actions = StrictBoolean()
    hosts = List(
        Text(
            validate=validate.Regexp(
                r"[A-Za-z0-9_.-]{1,253}\Z|\[[0-9A-Fa-f:.]{2,45}\]\Z",
                error='must be a host name or an address without a port, as in "conclave.example.org" or "[fd00::1]"',
            )
        ),
        error_messages={"invalid": "must be a list of strings"},
    )
