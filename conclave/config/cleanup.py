"""``[cleanup]``: how a cleanup run works."""

from dataclasses import dataclass

from marshmallow import validate

from conclave.config.section import Section
from conclave.fields import Duration, Size, Text


@dataclass(frozen=True)
class CleanupConfig:
    """``[cleanup]``: how a cleanup run works.

    ``max_run_time``: seconds. ``disk_reserve``: bytes that are kept free for a run; 0 for none.
    """

    engine: str = "spark"
    max_run_time: int = 3600
    disk_reserve: int = 64 * 1024**2


class CleanupSchema(Section):
    """What ``[cleanup]`` may say."""

    engine = Text(validate=validate.OneOf(["spark", "sql"], error='must be "spark" or "sql"'))
    max_run_time = Duration()
    disk_reserve = Size()
