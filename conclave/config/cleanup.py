"""``[cleanup]``: how a cleanup run works."""

from dataclasses import dataclass

from marshmallow import validate

from conclave.config.fields import Duration, Size
from conclave.config.section import Section
from conclave.retention.policy import KEEP
from conclave.strict_fields import Text


@dataclass(frozen=True)
class CleanupConfig:
    """``[cleanup]``: how a cleanup run works."""

    engine: str = "spark"
    max_run_time: int = 3600
    """Seconds."""
    disk_reserve: int = 64 * 1024**2
    """Bytes that are kept free for a run; 0 for none."""
    keep_warm: int = 120
    """Seconds: for how long the worker and its Java stay without work; 0: they end with each run."""


class CleanupSchema(Section):
    """What ``[cleanup]`` may say."""

    engine = Text(validate=validate.OneOf(["spark", "sql"], error='must be "spark" or "sql"'))
    max_run_time = Duration()
    disk_reserve = Size()
    keep_warm = Duration(words=True, validate=validate.NoneOf([KEEP], error='must be a duration or "0"'))
