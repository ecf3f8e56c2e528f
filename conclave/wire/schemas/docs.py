"""The query of the OpenAPI document."""

from dataclasses import dataclass

from marshmallow import validate

from conclave.strict_fields import Text
from conclave.wire.schemas.base import QuerySchema


@dataclass(frozen=True)
class Describe:
    """The formats that the document shows. ``format``: "" for all."""

    format: str


class DocumentQuery(QuerySchema):
    """The only format that the document shows. Default: all."""

    result_class = Describe

    format = Text(load_default="", validate=validate.OneOf(["json"], error='must be "json"'))
