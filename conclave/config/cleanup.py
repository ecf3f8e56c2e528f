"""``[cleanup]`` and ``[spark]``: how a cleanup run works, and the Spark session of the cleanup worker."""

from dataclasses import dataclass

from marshmallow import validate

from conclave.config.fields import Duration, Memory, Section, Size
from conclave.retention.policy import KEEP
from conclave.strict_fields import Text


@dataclass(frozen=True)
class CleanupConfig:
    """``[cleanup]``: how a cleanup run works."""

    engine: str = "spark"
    max_run_time: int = 3600
    """Seconds."""
    disk_reserve: int = 64 * 1024**2
    """Bytes to keep free for runs; 0: no reserve."""
    keep_warm: int = 120
    """Seconds for which the idle worker and its Java keep running; 0: they exit after each run."""


class CleanupSchema(Section):
    """The schema of ``[cleanup]``."""

    engine = Text(validate=validate.OneOf(["spark", "sql"], error='must be "spark" or "sql"'))
    max_run_time = Duration()
    disk_reserve = Size()
    keep_warm = Duration(words=True, validate=validate.NoneOf([KEEP], error='must be a duration or "0"'))


@dataclass(frozen=True)
class SparkConfig:
    """``[spark]``: the session of the cleanup worker."""

    master: str = "local[2]"
    driver_memory: str = "1g"


class SparkSchema(Section):
    """The schema of ``[spark]``."""

    master = Text(
        validate=validate.Regexp(
            r"(local\[[1-9][0-9]*\]|spark://[A-Za-z0-9._-]+:[1-9][0-9]{0,4})\Z",
            error='must be "local[N]", N worker threads, or "spark://HOST:PORT"',
        )
    )
    driver_memory = Memory(least=500)
