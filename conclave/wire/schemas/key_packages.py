"""Uploading key packages, and taking the key packages of users to invite."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from marshmallow import ValidationError, fields, validates_schema

from conclave.strict_fields import StrictBoolean, Text
from conclave.wire.fields import (
    FINGERPRINT_RULE,
    KEY_PACKAGE_RULE,
    REQUIRED,
    TOO_MANY,
    BoundedList,
    Bytes,
    Identifier,
    required,
)
from conclave.wire.schemas.base import RequestSchema

MAX_PACKAGES = 100
"""The most key packages in a request, in both forms together: ten times the number that the server stores."""


@dataclass(frozen=True)
class UploadedKeyPackage:
    """A key package. ``is_last_resort``: whether it is kept when it is handed out."""

    data: bytes
    is_last_resort: bool


class KeyPackageEntry(RequestSchema):
    """A key package, regular by default."""

    result_class = UploadedKeyPackage

    data = required(Bytes, KEY_PACKAGE_RULE)
    is_last_resort = StrictBoolean(load_default=False)


@dataclass(frozen=True)
class UploadKeyPackages:
    """Key packages in both forms. ``signing_key_fingerprint``: "" if absent."""

    entries: Sequence[UploadedKeyPackage]
    signing_key_fingerprint: str
    key_package_data: bytes | None = None

    @property
    def regular(self) -> list[bytes]:
        """The regular packages of both forms."""
        packages = [each.data for each in self.entries if not each.is_last_resort]
        return [self.key_package_data, *packages] if self.key_package_data else packages

    @property
    def last_resorts(self) -> list[bytes]:
        """The last-resort packages."""
        return [each.data for each in self.entries if each.is_last_resort]


class UploadKeyPackageRequest(RequestSchema):
    """Key packages: a regular one in the single form, or entries; 1 to 100 in both forms together."""

    result_class = UploadKeyPackages

    key_package_data = Bytes(validate=KEY_PACKAGE_RULE)
    entries = BoundedList(fields.Nested(KeyPackageEntry), most=MAX_PACKAGES, load_default=list)
    signing_key_fingerprint = Text(load_default="", validate=FINGERPRINT_RULE)

    @validates_schema(pass_original=True, skip_on_field_errors=False)
    def _require_one(self, data: Mapping[str, Any], original: Mapping[str, Any], **_: Any) -> None:
        if not (original.get("entries") or original.get("key_package_data")):
            raise ValidationError(REQUIRED, "entries")
        if "key_package_data" in data and len(data.get("entries", ())) == MAX_PACKAGES:
            raise ValidationError(TOO_MANY.format(MAX_PACKAGES), "entries")


@dataclass(frozen=True)
class InviteToGroup:
    """The users to invite."""

    user_ids: Sequence[bytes]


class InviteToGroupRequest(RequestSchema):
    """The users to invite."""

    result_class = InviteToGroup

    user_ids = required(partial(BoundedList, Identifier()))
