"""``[log]``: what the log has, and how its lines look."""

from dataclasses import dataclass

from marshmallow import validate

from conclave.config.fields import Section
from conclave.strict_fields import Text

AUTO, CONSOLE, JSON = "auto", "console", "json"
"""How lines look: as for people on a terminal and as JSON elsewhere, always as for people, always as JSON."""

ALL, ERRORS, NONE = "all", "errors", "none"
"""Which requests have a line: all, those that were answered with a status of 400 or above, none.

By ``AUTO``, all in JSON, which programs read, and at the level debug; otherwise those that failed, so that people can
read the rest as it comes.
"""

LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True)
class LogConfig:
    """``[log]``: what the log has, and how its lines look."""

    level: str = "info"
    """The least that is written. Lines of requests have the level info."""
    format: str = AUTO
    requests: str = AUTO


class LogSchema(Section):
    """What ``[log]`` may say."""

    level = Text(validate=validate.OneOf(LEVELS, error='must be "debug", "info", "warning" or "error"'))
    format = Text(validate=validate.OneOf([AUTO, CONSOLE, JSON], error='must be "auto", "console" or "json"'))
    requests = Text(
        validate=validate.OneOf([AUTO, ALL, ERRORS, NONE], error='must be "auto", "all", "errors" or "none"')
    )
