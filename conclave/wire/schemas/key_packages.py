"""Key packages, and what a group's admin gets of them."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from marshmallow import ValidationError, fields, validates_schema

from conclave.fields import StrictBoolean, Text
from conclave.wire.fields import FINGERPRINT_RULE, KEY_PACKAGE_RULE, REQUIRED, Bytes, Identifier, required
from conclave.wire.schemas.base import RequestSchema, ResponseSchema


class KeyPackageEntry(RequestSchema):
    """A key package, regular unless said otherwise."""

    data = required(Bytes, KEY_PACKAGE_RULE)
    is_last_resort = StrictBoolean(load_default=False)


class UploadKeyPackageRequest(RequestSchema):
    """Key packages: one regular one in the single form, or any number of entries; at least one."""

    key_package_data = Bytes(validate=KEY_PACKAGE_RULE)
    entries = fields.List(fields.Nested(KeyPackageEntry), load_default=list)
    signing_key_fingerprint = Text(load_default="", validate=FINGERPRINT_RULE)

    @validates_schema(pass_original=True, skip_on_field_errors=False)
    def _require_one(self, data: Mapping[str, Any], original: Mapping[str, Any], **_: Any) -> None:
        if not (original.get("entries") or original.get("key_package_data")):
            raise ValidationError(REQUIRED, "entries")


class GetKeyPackageResponse(ResponseSchema):
    """A key package of the user."""

    key_package_data = Bytes()


class InviteToGroupRequest(RequestSchema):
    """Whom to invite."""

    user_ids = required(partial(fields.List, Identifier()))


class MemberKeyPackage(ResponseSchema):
    """A key package of one user."""

    user_id = Identifier()
    key_package_data = Bytes()


class InviteToGroupResponse(ResponseSchema):
    """What it takes to make the commit and the welcome, one for each user but the caller."""

    member_key_packages = fields.List(fields.Nested(MemberKeyPackage))
