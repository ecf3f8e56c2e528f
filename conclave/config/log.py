"""``[log]``: what the log has, and how its lines look."""

from dataclasses import dataclass

from marshmallow import validate

from conclave.config.section import Section
from conclave.fields import Text

AUTO, CONSOLE, JSON = "auto", "console", "json"
"""How lines look: as for people on a terminal and as JSON elsewhere, always as for people, always as JSON."""

ALL, ERRORS, NONE = "all", "errors", "none"
"""Which requests have a line: all, those that were answered with a status of 400 or above, none."""

LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True)
class LogConfig:
    """``[log]``: what the log has, and how its lines look.

    ``level``: the least that is written. Lines of requests have the level info.
    """

    level: str = "info"
    format: str = AUTO
    requests: str = ALL


class LogSchema(Section):
    """What ``[log]`` may say."""

    level = Text(validate=validate.OneOf(LEVELS, error='must be "debug", "info", "warning" or "error"'))
    format = Text(validate=validate.OneOf([AUTO, CONSOLE, JSON], error='must be "auto", "console" or "json"'))
    requests = Text(validate=validate.OneOf([ALL, ERRORS, NONE], error='must be "all", "errors" or "none"'))
