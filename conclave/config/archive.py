"""``[archive]``: the folder of the archive, and the age at which messages move there."""

from dataclasses import dataclass

from marshmallow import validate

from conclave.config.fields import PATH, Duration, Section
from conclave.retention.policy import AFTER_FETCH, KEEP
from conclave.strict_fields import Text


@dataclass(frozen=True)
class ArchiveConfig:
    """``[archive]``: the folder of the archive, and the age at which messages move there. Times are in seconds."""

    after: int = KEEP
    """The age at which messages move; KEEP: never."""
    path: str | None = None
    """None for a folder in the data directory."""
    margin: int = 604_800
    """See ``least_lifetime``."""
    reclaim_interval: int = 86_400
    """The interval of runs that reclaim space, which need Spark."""
    reclaim_after: int = 604_800
    """How long an erased message may take space if its partition has few erased messages."""

    @property
    def least_lifetime(self) -> int:
        """The lifetime in seconds above which messages move to the archive."""
        return self.after + self.margin


class ArchiveSchema(Section):
    """The schema of ``[archive]``."""

    after = Duration(words=True, validate=validate.NoneOf([AFTER_FETCH], error='must be a duration or "-1"'))
    path = Text(
        validate=[
            *PATH,
            validate.Regexp(
                r"(?![A-Za-z][A-Za-z0-9+.-]*:)",
                error="must be a local or shared folder, not an address with a scheme",
            ),
        ]
    )
    margin = Duration(words=True, validate=validate.NoneOf([KEEP], error='must be a duration or "0"'))
    reclaim_interval = Duration(words=True, validate=validate.NoneOf([KEEP], error='must be a duration or "0"'))
    reclaim_after = Duration(words=True, validate=validate.NoneOf([KEEP], error='must be a duration or "0"'))
