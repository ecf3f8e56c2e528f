"""``[archive]``: where older messages move, and when."""

from dataclasses import dataclass

from marshmallow import validate

from conclave.config.fields import PATH, Duration, Section
from conclave.retention.policy import AFTER_FETCH, KEEP
from conclave.strict_fields import Text


@dataclass(frozen=True)
class ArchiveConfig:
    """``[archive]``: where older messages move, and when. Times are in seconds."""

    after: int = KEEP
    """The age at which messages move; with KEEP none moves."""
    path: str | None = None
    """None for a folder in the data directory."""
    margin: int = 604_800
    """See ``least_lifetime``."""
    reclaim_interval: int = 86_400
    """How long after space was given back it is given back again: by a run, which needs Spark then."""
    reclaim_after: int = 604_800
    """How long a message that was erased may take space, if few others of its partition were."""

    @property
    def least_lifetime(self) -> int:
        """A message moves only if it lives for longer than these seconds. Otherwise a move is not worth it."""
        return self.after + self.margin


class ArchiveSchema(Section):
    """What ``[archive]`` may say."""

    after = Duration(words=True, validate=validate.NoneOf([AFTER_FETCH], error='must be a duration or "-1"'))
    path = Text(
        validate=[
            *PATH,
            validate.Regexp(
                r"(?![A-Za-z][A-Za-z0-9+.-]*:)",
                error="must be a folder, on this machine or shared; an address with a scheme is refused",
            ),
        ]
    )
    margin = Duration(words=True, validate=validate.NoneOf([KEEP], error='must be a duration or "0"'))
    reclaim_interval = Duration(words=True, validate=validate.NoneOf([KEEP], error='must be a duration or "0"'))
    reclaim_after = Duration(words=True, validate=validate.NoneOf([KEEP], error='must be a duration or "0"'))
