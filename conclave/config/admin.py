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
"""A token has at least 32 characters, so that it cannot be guessed. It goes into a header: visible ASCII, no spaces."""

UNFIT = "must have 32 to 1024 visible ASCII characters and no spaces, as `openssl rand -hex 32` makes them"


@dataclass(frozen=True)
class AdminConfig:
    """``[admin]``: the listener for operators, which tells more than clients may know.

    ``token``, or what ``token_file`` holds: what a request has to bring.
    """

    listen_address: str = "127.0.0.1"
    listen_port: int = 9090
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None
    hosts: tuple[str, ...] = ()
    """The names beside those of loopback under which the listener may be asked."""
    allow_actions: bool = False
    """Whether the page has forms that change something."""

    def __post_init__(self) -> None:
        """Take a list too, since TOML and JSON have no tuples."""
        object.__setattr__(self, "hosts", tuple(self.hosts))

    @property
    def is_on_loopback(self) -> bool:
        """Whether only this machine can reach the listener. A name counts as any address, but for ``localhost``."""
        try:
            return ip_address(self.listen_address).is_loopback
        except ValueError:
            return self.listen_address.lower() == "localhost"


def contradictions(admin: AdminConfig) -> Iterator[str]:
    """Yield a line for each setting that does not go with another."""
    if admin.token and admin.token_file:
        yield "admin.token and admin.token_file: set one of them"
    if admin.allow_actions and not (admin.token or admin.token_file):
        yield (
            "admin.allow_actions: users of this machine could do what only operators may: set admin.token"
            " or admin.token_file"
        )
    if not (admin.is_on_loopback or admin.token or admin.token_file):
        yield (
            f'admin.listen_address: "{admin.listen_address}" is not loopback, so others could read what is for'
            " operators: set admin.token or admin.token_file"
        )


class AdminSchema(Section):
    """What ``[admin]`` may say."""

    listen_address = Text(validate=require_host)
    listen_port = StrictInteger(validate=PORT)
    token = Text(validate=validate.Regexp(TOKEN, error=UNFIT))
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
