"""``[spark]``: the session of the cleanup worker."""

from dataclasses import dataclass

from marshmallow import validate

from conclave.config.fields import Memory
from conclave.config.section import Section
from conclave.strict_fields import Text


@dataclass(frozen=True)
class SparkConfig:
    """``[spark]``: the session of the cleanup worker."""

    master: str = "local[2]"
    driver_memory: str = "1g"


class SparkSchema(Section):
    """What ``[spark]`` may say."""

    master = Text(
        validate=validate.Regexp(
            r"(local\[[1-9][0-9]*\]|spark://[A-Za-z0-9._-]+:[1-9][0-9]{0,4})\Z",
            error='must be "local[N]", N worker threads, or "spark://HOST:PORT"',
        )
    )
    driver_memory = Memory(least=500)
