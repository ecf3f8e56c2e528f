"""How long the messages of a group live."""

from marshmallow import fields

from conclave.wire.schemas.base import ResponseSchema


class GetRetentionPolicyResponse(ResponseSchema):
    """Both layers of retention: -1 for off or inherit, 0 for delete-after-fetch, or seconds."""

    server_retention_seconds = fields.Integer()
    group_expiry_seconds = fields.Integer()
