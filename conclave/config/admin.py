"""``[admin]``: the listener for operators."""

from dataclasses import dataclass

from conclave.config.section import NOT_EMPTY, PORT, Section
from conclave.fields import StrictInteger, Text


@dataclass(frozen=True)
class AdminConfig:
    """``[admin]``: the listener for operators, which tells more than clients may know."""

    listen_address: str = "127.0.0.1"
    listen_port: int = 9090


class AdminSchema(Section):
    """What ``[admin]`` may say."""

    listen_address = Text(validate=NOT_EMPTY)
    listen_port = StrictInteger(validate=PORT)
