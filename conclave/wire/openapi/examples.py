"""Creates an example of each message, from values by field name."""

import base64
from typing import Any

from marshmallow import Schema, fields, validate

from conclave.wire.fields import Bytes, Identifier, NotEmpty


def _bytes(value: bytes) -> str:
    return base64.b64encode(value).decode()


_KEY_PACKAGE = _bytes(b"\x00\x01\x00\x05a key package")
_FINGERPRINT = "9f86d081884c7d659a2feaa0c55ad015"

ID = "3f0c9a52-6d1e-4b7a-9c58-2e1f7a4d8b60"

_VALUES: dict[str, Any] = {
    "alias": "The Readers",
    "banned_at": 1_767_225_600,
    "commit_message": _bytes(b"a commit"),
    "created_at": 1_767_225_600,
    "current_password": "correct horse",
    "data": _KEY_PACKAGE,
    "error": "input_validation",
    "error_code": 101,
    "errors": {"alias": ["must be a string"]},
    "dry_run": False,
    "effective_expiry_seconds": 86_400,
    "expires_at": 1_769_817_600,
    "format": "json",
    "group_alias": "The Readers",
    "group_expiry_seconds": 86_400,
    "group_id": "8d5b1c7e-0f42-4a69-b1d3-6c9e5f20a874",
    "group_info": _bytes(b"group info"),
    "group_name": "book_club",
    "hidden_before": 1_767_225_600,
    "include_redacted": False,
    "invite_id": "b4a1f6d2-93c5-4e0b-8f27-d15e60c3a9b4",
    "invitee_id": "5e97c0d3-2b84-4f16-a6e9-70d1b8f4c325",
    "inviter_username": "alice",
    "key_package_data": _KEY_PACKAGE,
    "last_used_at": 1_767_225_600,
    "legal_hold": False,
    "limit": 100,
    "limits": {"max_lifetime": {"min": 86_400_000, "max": 31_536_000_000}},
    "member_count": 2,
    "message": "alias: must be a string",
    "message_expiry_seconds": 86_400,
    "messages_expiring": 12,
    "min_lifetime_seconds": 3_600,
    "mls_group_id": "0aff",
    "mls_message": _bytes(b"hello"),
    "more": False,
    "new_password": "battery staple",
    "oldest_expiring": 1_767_139_200,
    "password": "correct horse",
    "pattern": "book",
    "policies": {"*": {"max_lifetime": 31_536_000_000}},
    "policy_source": "group",
    "redacted": False,
    "registration_token": "let-me-in",
    "role": "member",
    "self_destruct_seconds": 3_600,
    "send_id": "0f6c2b1e-7a5d-4c3f-9e80-1b2a3c4d5e6f",
    "sequence_num": 1,
    "server_retention_seconds": -1,
    "signing_key_fingerprint": _FINGERPRINT,
    "taken_back": 17,
    "taken_back_after": 0,
    "token": "5c" * 32,
    "update_type": "commit",
    "username": "alice",
    "visibility": "public",
    "welcome_id": "c27e4b95-e8a0-4d63-9f1c-84b3d0567fa1",
    "welcome_message": _bytes(b"a welcome"),
}
"""Example values by field name. Other fields get an example of their type."""

_OMITTED_FIELDS = {"UploadKeyPackageRequest": {"key_package_data"}}
"""Fields that an example omits, since it has the alternative fields."""


def example(schema: Schema) -> dict[str, Any]:
    """Return an example of a message in JSON."""
    omitted_fields = _OMITTED_FIELDS.get(type(schema).__name__, ())
    return {name: example_of(name, field) for name, field in schema.fields.items() if name not in omitted_fields}


def example_of(name: str, field: fields.Field[Any] | None = None) -> Any:
    """Return an example of the field ``name``. Without ``field`` an unknown name gets an id."""
    if isinstance(field, fields.Nested):
        return example(field.schema)
    if isinstance(field, fields.List):
        return [example_of(name, field.inner)]
    return _VALUES[name] if name in _VALUES else _by_type(field)


def _by_type(field: fields.Field[Any] | None) -> Any:
    if field is None or isinstance(field, Identifier):
        return ID
    if isinstance(field, Bytes):
        return _bytes(b"some bytes")
    if isinstance(field, fields.Boolean):
        return True
    if isinstance(field, fields.Integer):
        return 1
    rules = [rule.rule if isinstance(rule, NotEmpty) else rule for rule in field.validators]
    return next((next(iter(rule.choices)) for rule in rules if isinstance(rule, validate.OneOf)), "some text")
