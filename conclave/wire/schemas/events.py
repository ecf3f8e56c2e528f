"""How to listen to events."""

from dataclasses import dataclass

from marshmallow import validate

from conclave.strict_fields import Text
from conclave.wire.schemas.base import QuerySchema


@dataclass(frozen=True)
class Listen:
    """How to listen. A ``format`` of "" is the format of the session."""

    format: str


class EventsQuery(QuerySchema):
    """The format in which to write the events. Without it they have the format of the session."""

    result_class = Listen

    format = Text(load_default="", validate=validate.OneOf(["json", "protobuf"], error='must be "json" or "protobuf"'))
