"""The mapping between protobuf messages and the values of schemas."""

import importlib
import json
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from hypothesis import given, settings, strategies as st
from marshmallow import ValidationError, fields

from conclave.errors import BadRequestError, ErrorCode
from conclave.wire import conclave_pb2, exchange, formats, protobuf, schemas
from conclave.wire.events import EVENTS
from conclave.wire.fields import REQUIRED, Bytes, Id, Identifier, required
from conclave.wire.results import (
    HealthStatus,
    ReadyStatus,
    RetentionConfiguration,
    SessionInfo,
    SessionList,
    WireMessage,
)
from conclave.wire.schemas.base import RequestSchema, schema_of
from conclave.wire.schemas.groups import UpdateGroup, UpdateGroupRequest
from tests.support.protobuf import decode, encode, is_id

MESSAGES = conclave_pb2.DESCRIPTOR.message_types_by_name
few = settings(max_examples=25, derandomize=True, database=None)


def subclasses(base: type[Any]) -> Iterator[type[Any]]:
    for found in base.__subclasses__():
        if found.__module__.startswith("conclave.wire."):
            yield found
        yield from subclasses(found)


for module in pkgutil.iter_modules(schemas.__path__):
    importlib.import_module(f"{schemas.__name__}.{module.name}")
REQUESTS = sorted(set(subclasses(RequestSchema)), key=lambda schema: schema.__name__)
JSON_ONLY = {HealthStatus, ReadyStatus, SessionList, RetentionConfiguration, SessionInfo}
"""Never written in protobuf."""

_SENT = {*subclasses(WireMessage), *EVENTS.values()}
RESPONSES = [type(schema_of(kind)) for kind in sorted(_SENT - JSON_ONLY, key=lambda each: each.wire)]

IDS = st.binary(min_size=16, max_size=16).map(Id)
WORDS: dict[str, list[Any]] = {
    "GroupVisibility": ["private", "public"],
    "GroupRole": ["member", "admin"],
    "GroupUpdateType": ["commit", "group_settings", "role_change"],
    "ErrorCode": list(map(int, ErrorCode)),
}
NUMBERS = {
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_INT64: st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 2),
    FieldDescriptor.TYPE_UINT32: st.integers(0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: st.integers(0, 2**64 - 1),
}


def values_of(message: Descriptor) -> Any:
    """Generate values of a message: all of its fields, or one of a oneof's."""
    found = {field.name: field_values(field) for field in message.fields}
    if message.oneofs:
        return st.one_of([st.fixed_dictionaries({name: each}) for name, each in found.items()])
    return st.fixed_dictionaries(found)


def field_values(field: FieldDescriptor) -> Any:
    if field.message_type:
        one = values_of(field.message_type)
    elif field.enum_type:
        one = st.sampled_from(WORDS[field.enum_type.name])
    elif field.type == FieldDescriptor.TYPE_STRING:
        one = st.text(max_size=20)
    elif field.type == FieldDescriptor.TYPE_BYTES:
        one = IDS if is_id(field.name) else st.binary(max_size=20)
    else:
        one = NUMBERS[field.type]
    return st.lists(one, max_size=3) if field.is_repeated else one


def without_empty(value: Any) -> Any:
    """Leave out what proto3 does not tell from absent; numbers stay."""
    if isinstance(value, list):
        return [without_empty(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {name: without_empty(each) for name, each in value.items() if each not in ("", b"", [])}


@pytest.mark.parametrize("schema", [*REQUESTS, *RESPONSES], ids=lambda schema: schema.__name__)
def test_every_schema_has_the_fields_of_the_message_that_it_is_named_after(schema: Any) -> None:
    assert set(schema().fields) == {field.name for field in MESSAGES[schema.__name__].fields}


@pytest.mark.parametrize("name", sorted(set(MESSAGES) - {"ErrorResponse"}))
def test_a_message_is_read_as_it_was_written(name: str) -> None:
    @few
    @given(values_of(MESSAGES[name]))
    def check(values: dict[str, Any]) -> None:
        assert protobuf.parse(name, protobuf.write(name, values)) == without_empty(values)

    check()


@pytest.mark.parametrize("name", sorted(MESSAGES))
def test_both_formats_say_the_same(name: str) -> None:
    @few
    @given(values_of(MESSAGES[name]))
    def check(values: dict[str, Any]) -> None:
        said = decode(name, protobuf.write(name, values))
        assert {field: said[field] for field in values} == json.loads(formats.write(values))

    check()


@pytest.mark.parametrize("schema", REQUESTS, ids=lambda schema: schema.__name__)
def test_a_request_loads_alike_from_both_formats(schema: type[RequestSchema]) -> None:
    """Also what is wrong with it is the same. Empty is absent, as it cannot be told apart in protobuf."""
    name = schema.__name__

    def outcome(values: Any) -> Any:
        try:
            return schema().load(values)
        except ValidationError as error:
            return error.messages_dict

    @few
    @given(values_of(MESSAGES[name]))
    def check(values: dict[str, Any]) -> None:
        said = json.loads(formats.write(without_empty(values)))
        assert outcome(protobuf.parse(name, encode(name, said))) == outcome(formats.parse(json.dumps(said).encode()))

    check()


def test_a_zero_counts_in_a_request_and_an_empty_text_does_not() -> None:
    body = conclave_pb2.UpdateGroupRequest(alias="", group_name="", update_message_expiry=True).SerializeToString()
    expected = UpdateGroup(
        message_expiry_seconds=0,
        update_message_expiry=True,
        min_lifetime_seconds=0,
        update_min_lifetime=False,
        dry_run=False,
    )
    assert UpdateGroupRequest().load(protobuf.parse("UpdateGroupRequest", body)) == expected


def test_an_unknown_field_is_ignored() -> None:
    body = encode("LoginRequest", {"username": "alice"}) + b"\xa0\x06\x01" + b"\xaa\x06\x02hi"
    assert protobuf.parse("LoginRequest", body) == {"username": "alice"}


def test_an_enum_number_without_a_word_is_an_invalid_value() -> None:
    values = protobuf.parse("UpdateGroupRequest", b"\x28\x63")
    with pytest.raises(ValidationError) as refused:
        UpdateGroupRequest().load(values)
    assert list(refused.value.messages_dict) == ["visibility"]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"\xff", id="no tag"),
        pytest.param(b"\x0a\x05ab", id="too short"),
        pytest.param(b"\x0b", id="a group without an end"),
        pytest.param(b"\x0a\x01\xff", id="not UTF-8"),
        pytest.param(b"\x0a\x03\xed\xa0\x80", id="half a surrogate pair"),
        pytest.param(b"\x00\x00", id="field 0"),
        pytest.param(b"\x0b" * 10_000, id="very deep"),
        pytest.param(b'{"username": "alice"}', id="JSON"),
    ],
)
def test_a_malformed_message_is_a_bad_request(body: bytes) -> None:
    with pytest.raises(BadRequestError):
        protobuf.parse("LoginRequest", body)


class InviteToGroupRequest(RequestSchema):
    result_class = dict

    user_ids = fields.List(Identifier())


class KeyPackageEntry(RequestSchema):
    result_class = dict

    data = required(Bytes)
    is_last_resort = fields.Boolean()


class UploadKeyPackageRequest(RequestSchema):
    result_class = dict

    key_package_data = Bytes()
    entries = fields.List(fields.Nested(KeyPackageEntry))
    signing_key_fingerprint = fields.String()


@pytest.mark.parametrize("length", [0, 1, 15, 17, 36])
def test_an_id_of_another_length_is_an_invalid_value_and_named(length: int) -> None:
    body = conclave_pb2.InviteToGroupRequest(user_ids=[bytes(16), bytes(length)]).SerializeToString()
    with pytest.raises(ValidationError) as refused:
        InviteToGroupRequest().load(protobuf.parse("InviteToGroupRequest", body))
    error = exchange._field_errors(refused.value.messages_dict)
    assert (error.code, list(error.fields)) == (ErrorCode.INPUT_VALIDATION, ["user_ids.1"])


def test_what_is_missing_deep_inside_is_named_with_its_place() -> None:
    entries = [conclave_pb2.KeyPackageEntry(data=b"x"), conclave_pb2.KeyPackageEntry(is_last_resort=True)]
    body = conclave_pb2.UploadKeyPackageRequest(entries=entries).SerializeToString()
    with pytest.raises(ValidationError) as refused:
        UploadKeyPackageRequest().load(protobuf.parse("UploadKeyPackageRequest", body))
    error = exchange._field_errors(refused.value.messages_dict)
    assert (error.code, error.fields) == (ErrorCode.INPUT_BAD_REQUEST, {"entries.1.data": [REQUIRED]})
    assert error.message == f"entries.1.data: {REQUIRED}"


def test_an_empty_id_is_an_empty_text_in_json() -> None:
    assert formats.write({"banned_by": Id(), "group_info": b""}) == b'{"banned_by":"","group_info":""}'
