"""What one may ask of the description of the protocol."""

from dataclasses import dataclass

from marshmallow import validate

from conclave.strict_fields import Text
from conclave.wire.schemas.base import QuerySchema


@dataclass(frozen=True)
class Describe:
    """What the document shows. A ``format`` of "" is every format."""

    format: str


class DocumentQuery(QuerySchema):
    """The only format that the document shows. Without it the document shows all."""

    result_class = Describe

    format = Text(load_default="", validate=validate.OneOf(["json"], error='must be "json"'))
