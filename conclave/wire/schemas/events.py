"""The query of the event stream."""

from dataclasses import dataclass

from marshmallow import validate

from conclave.strict_fields import Text
from conclave.wire.schemas.base import QuerySchema


@dataclass(frozen=True)
class Listen:
    """The format of the events. ``format``: "" for the session's format."""

    format: str


class EventsQuery(QuerySchema):
    """The format of the events. Default: the session's format."""

    result_class = Listen

    format = Text(load_default="", validate=validate.OneOf(["json", "protobuf"], error='must be "json" or "protobuf"'))
