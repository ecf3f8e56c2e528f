"""``[archive]``: where older messages move, and when."""

from dataclasses import dataclass

from marshmallow import validate

from conclave.config.section import PATH, Section
from conclave.fields import Duration, Text
from conclave.retention.policy import AFTER_FETCH, KEEP


@dataclass(frozen=True)
class ArchiveConfig:
    """``[archive]``: where older messages move, and when. All in seconds.

    ``after``: the age at which they move, or KEEP: none does. ``erase_delay``: how long replaced files may stay.
    """

    after: int = KEEP
    path: str | None = None
    margin: int = 604_800
    erase_delay: int = 0

    @property
    def least_lifetime(self) -> int:
        """Seconds that messages have to outlive for a move of theirs to be worth it."""
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
    erase_delay = Duration(words=True, validate=validate.NoneOf([KEEP], error='must be a duration or "0"'))
