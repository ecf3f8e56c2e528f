"""``[log]``: the level and format of the log, and the requests that it records."""

from dataclasses import dataclass

from marshmallow import validate

from conclave.config.fields import Section
from conclave.strict_fields import Text

AUTO, CONSOLE, JSON = "auto", "console", "json"
"""The formats: for people on a terminal and JSON elsewhere, always for people, always JSON."""

ALL, ERRORS, NONE = "all", "errors", "none"
"""Which requests are logged: all, those with a status of 400 or above, none.

``AUTO``: all in JSON, and at the level debug; otherwise those with errors.
"""

LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True)
class LogConfig:
    """``[log]``: the level and format of the log, and the requests that it records."""

    level: str = "info"
    """The minimum level. Requests are logged at the level info."""
    format: str = AUTO
    requests: str = AUTO


class LogSchema(Section):
    """The schema of ``[log]``."""

    level = Text(validate=validate.OneOf(LEVELS, error='must be "debug", "info", "warning" or "error"'))
    format = Text(validate=validate.OneOf([AUTO, CONSOLE, JSON], error='must be "auto", "console" or "json"'))
    requests = Text(
        validate=validate.OneOf([AUTO, ALL, ERRORS, NONE], error='must be "auto", "all", "errors" or "none"')
    )
