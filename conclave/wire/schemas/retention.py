"""How long the messages of a group live, and what the operator has set about it."""

from typing import Any

from marshmallow import fields, validate

from conclave.fields import Text
from conclave.retention.policy import Source
from conclave.wire.fields import Identifier
from conclave.wire.schemas.base import ResponseSchema


class GetRetentionPolicyResponse(ResponseSchema):
    """Both layers of retention, and what follows: -1 for off or inherit, 0 for delete-after-fetch, or seconds.

    ``policy_source``: what the effective expiry comes from. ``min_lifetime_seconds``: nothing younger is erased; 0 for
    no bound. ``legal_hold``: whether the operator keeps everything of the group from being erased. ``held_by``: for
    admins, the members whose missing fetch holds messages back, at most 100. ``hidden_before``: what was created before
    this Unix second is hidden for ever, whatever the policy becomes; 0 for nothing.
    """

    server_retention_seconds = fields.Integer()
    group_expiry_seconds = fields.Integer()
    effective_expiry_seconds = fields.Integer()
    min_lifetime_seconds = fields.Integer()
    policy_source = Text(validate=validate.OneOf([each.value for each in Source]))
    legal_hold = fields.Boolean()
    held_by = fields.List(Identifier())
    hidden_before = fields.Integer()


def _milliseconds(*names: str) -> fields.Field[Any]:
    return fields.Dict(Text(validate=validate.OneOf(names)), fields.Integer(validate=validate.Range(0)))


class RetentionConfigurationResponse(ResponseSchema):
    """What the operator has set, in milliseconds; what is not set has no key. A lifetime of 0 is delete-after-fetch.

    ``policies``: that of groups without one of their own at `*`, if there is any, and the operator's for groups of the
    caller by their id. ``limits``: the bounds within which admins can set `min_lifetime` and `max_lifetime`.
    """

    policies = fields.Dict(Text(), _milliseconds("min_lifetime", "max_lifetime"))
    limits = fields.Dict(Text(validate=validate.OneOf(["min_lifetime", "max_lifetime"])), _milliseconds("min", "max"))
