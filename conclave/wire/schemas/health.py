"""How the server is."""

from marshmallow import validate

from conclave.fields import Text
from conclave.wire.schemas.base import ResponseSchema


class HealthResponse(ResponseSchema):
    """How the server is: degraded while cleanup does not work or the clock is wrong."""

    status = Text(validate=validate.OneOf(["ok", "degraded"]))
