"""How long messages live."""

from marshmallow import fields

from conclave.wire.schemas.base import ResponseSchema


class GetRetentionPolicyResponse(ResponseSchema):
    """Both layers: -1 off or inherit, 0 delete-after-fetch, or seconds."""

    server_retention_seconds = fields.Integer()
    group_expiry_seconds = fields.Integer()
