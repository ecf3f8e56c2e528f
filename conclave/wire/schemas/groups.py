"""Creating, listing and changing groups."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from marshmallow import ValidationError, validate, validates_schema

from conclave.strict_fields import StrictBoolean, StrictInteger, Text
from conclave.wire.fields import (
    ALIAS_RULE,
    EXPIRY_RULE,
    MIN_LIFETIME_RULE,
    NAME_RULE,
    PATTERN_RULE,
    REQUIRED,
    required,
)
from conclave.wire.schemas.base import ListQuery, Paging, RequestSchema


@dataclass(frozen=True)
class CreateGroup:
    """The name and the alias of a new group."""

    group_name: str
    alias: str


class CreateGroupRequest(RequestSchema):
    """A new group."""

    result_class = CreateGroup

    alias = Text(load_default="", validate=ALIAS_RULE)
    group_name = required(Text, NAME_RULE)


@dataclass(frozen=True, kw_only=True)
class FindPublicGroups(Paging):
    """The text to search in the names of public groups, and the page."""

    pattern: str


class PublicGroupsQuery(ListQuery):
    """Public groups whose name contains ``pattern``, and the page as in other lists."""

    result_class = FindPublicGroups

    pattern = Text(load_default="", validate=PATTERN_RULE)


@dataclass(frozen=True)
class UpdateGroup:
    """Changes to a group. None: unchanged. ``alias``: "" clears it."""

    update_message_expiry: bool
    update_min_lifetime: bool
    dry_run: bool
    alias: str | None = None
    group_name: str | None = None
    message_expiry_seconds: int | None = None
    visibility: str | None = None
    min_lifetime_seconds: int | None = None


class UpdateGroupRequest(RequestSchema):
    """Changes to a group. An absent field means no change.

    ``message_expiry_seconds`` is used only with ``update_message_expiry``, which requires it; likewise
    ``min_lifetime_seconds``. With ``dry_run`` nothing changes.
    """

    result_class = UpdateGroup

    alias = Text(validate=ALIAS_RULE)
    group_name = Text(validate=NAME_RULE)
    message_expiry_seconds = StrictInteger(validate=EXPIRY_RULE)
    update_message_expiry = StrictBoolean(load_default=False)
    visibility = Text(validate=validate.OneOf(["private", "public"], error='must be "private" or "public"'))

    min_lifetime_seconds = StrictInteger(validate=MIN_LIFETIME_RULE)
    update_min_lifetime = StrictBoolean(load_default=False)
    dry_run = StrictBoolean(load_default=False)

    @validates_schema(pass_original=True, skip_on_field_errors=False)
    def _require_lifetimes(self, data: Mapping[str, Any], original: Mapping[str, Any], **_: Any) -> None:
        counts = {"update_message_expiry": "message_expiry_seconds", "update_min_lifetime": "min_lifetime_seconds"}
        missing = [name for update, name in counts.items() if data.get(update) and original.get(name) is None]
        if missing:
            raise ValidationError({name: [REQUIRED] for name in missing})
