"""Groups: creating, listing, changing."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from marshmallow import ValidationError, fields, validate, validates_schema

from conclave.fields import StrictBoolean, StrictInteger, Text
from conclave.wire.fields import (
    ALIAS_RULE,
    EXPIRY_RULE,
    MIN_LIFETIME_RULE,
    NAME_RULE,
    PATTERN_RULE,
    REQUIRED,
    Identifier,
    required,
)
from conclave.wire.schemas.base import QuerySchema, RequestSchema, ResponseSchema
from conclave.wire.schemas.users import UserInfoResponse


@dataclass(frozen=True)
class CreateGroup:
    """The name and the alias of a new group."""

    group_name: str
    alias: str


class CreateGroupRequest(RequestSchema):
    """A new group."""

    makes = CreateGroup

    alias = Text(load_default="", validate=ALIAS_RULE)
    group_name = required(Text, NAME_RULE)


class CreateGroupResponse(ResponseSchema):
    """The new group's id."""

    group_id = Identifier()


class GroupMember(UserInfoResponse):
    """A member of a group."""

    role = Text()


class GroupInfo(ResponseSchema):
    """A group as its members see it."""

    group_id = Identifier(attribute="group.group_id")
    alias = Text(attribute="group.alias")
    members = fields.List(fields.Nested(GroupMember))
    group_name = Text(attribute="group.group_name")
    mls_group_id = Text(attribute="group.mls_group_id")
    message_expiry_seconds = fields.Integer(attribute="group.message_expiry_seconds")
    visibility = Text(attribute="group.visibility")


class ListGroupsResponse(ResponseSchema):
    """The caller's groups."""

    groups = fields.List(fields.Nested(GroupInfo))


@dataclass(frozen=True)
class FindPublicGroups:
    """The text to look for in the names of public groups."""

    pattern: str


class PublicGroupsQuery(QuerySchema):
    """Which public groups: those whose name contains ``pattern``."""

    makes = FindPublicGroups

    pattern = Text(load_default="", validate=PATTERN_RULE)


class PublicGroupInfo(ResponseSchema):
    """A public group as anybody sees it."""

    group_id = Identifier()
    group_name = Text()
    alias = Text()
    member_count = fields.Integer()


class ListPublicGroupsResponse(ResponseSchema):
    """The public groups that match."""

    groups = fields.List(fields.Nested(PublicGroupInfo))


@dataclass(frozen=True)
class UpdateGroup:
    """Changes to a group. None changes nothing, "" clears the alias."""

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

    ``message_expiry_seconds`` counts only with ``update_message_expiry``, which needs it; likewise
    ``min_lifetime_seconds``. With ``dry_run`` nothing changes.
    """

    makes = UpdateGroup

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


class UpdateGroupResponse(ResponseSchema):
    """What expires at once by the change: how many messages, and when the oldest was stored, Unix seconds; 0 and 0."""

    messages_expiring = fields.Integer()
    oldest_expiring = fields.Integer()
