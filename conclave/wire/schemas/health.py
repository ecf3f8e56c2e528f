"""The health of the server."""

from marshmallow import validate

from conclave.fields import Text
from conclave.wire.schemas.base import ResponseSchema


class HealthResponse(ResponseSchema):
    """The health of the server: degraded while a part does not work, such as cleanup or the clock."""

    status = Text(validate=validate.OneOf(["ok", "degraded"]))


class ReadyResponse(ResponseSchema):
    """Whether the server serves. While it does not, the answer is an error."""

    status = Text(validate=validate.OneOf(["ready"]))
