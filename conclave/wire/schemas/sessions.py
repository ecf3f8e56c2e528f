"""The caller's sessions."""

from marshmallow import fields

from conclave.wire.fields import Identifier
from conclave.wire.schemas.base import ResponseSchema


class SessionInfo(ResponseSchema):
    """A session. Times are in Unix seconds. ``current``: whether the caller uses this one now."""

    id = Identifier()
    created_at = fields.Integer()
    last_used_at = fields.Integer()
    expires_at = fields.Integer()
    current = fields.Boolean()


class ListSessionsResponse(ResponseSchema):
    """The caller's sessions, the newest first."""

    sessions = fields.List(fields.Nested(SessionInfo))
