"""The JSON Schema of a message refuses what its schema refuses."""

from typing import Any

import jsonschema_rs
import pytest
from apispec import APISpec
from marshmallow import Schema, ValidationError, fields, validate

from conclave.strict_fields import StrictBoolean, StrictInteger, Text
from conclave.wire.fields import (
    ALIAS_RULE,
    EXPIRY_RULE,
    HEX_RULE,
    NAME_RULE,
    PASSWORD_RULE,
    Bytes,
    Identifier,
    NotEmpty,
    QueryInteger,
    required,
)
from conclave.wire.openapi.examples import example
from conclave.wire.openapi.json_schema import Plugin
from conclave.wire.schemas.base import QuerySchema, RequestSchema, ResponseSchema

ID = "00000000-0000-4000-8000-000000000000"


class Part(RequestSchema):
    """A part."""

    result_class = dict

    data = required(Bytes, validate.Length(min=4, max=6))
    last = StrictBoolean(load_default=False)


class Request(RequestSchema):
    """A request with each kind of field.

    Also ``parts``.
    """

    result_class = dict

    name = required(Text, NAME_RULE)
    password = Text(validate=PASSWORD_RULE)
    alias = Text(load_default="", validate=ALIAS_RULE)
    digits = Text(validate=HEX_RULE)
    seconds = StrictInteger(validate=EXPIRY_RULE)
    friends = fields.List(Identifier(), validate=NotEmpty(validate.Length(max=2)))
    kind = Text(validate=validate.OneOf(["private", "public"]))
    user_id = Identifier()
    ids = fields.List(Identifier())
    body = Bytes(load_default=b"")
    parts = fields.List(fields.Nested(Part))
    part = fields.Nested(Part)
    maybe_id = Identifier(load_default=None)
    some_ids = fields.List(Identifier(), load_default=list)


class Query(QuerySchema):
    """A query."""

    result_class = dict

    limit = QueryInteger(least=1, most=500, default=100)


class StoredMessage(ResponseSchema):
    """Named as a message in protobuf, which says what kinds of numbers they are."""

    sequence_num = fields.Integer()
    banned_by = Identifier()


class GroupInfo(ResponseSchema):
    """Named as a message in protobuf, which says the words."""

    visibility = Text()
    message_expiry_seconds = fields.Integer()


def described(kind: type[Schema]) -> dict[str, Any]:
    spec = APISpec("", "", "3.1.0", plugins=[Plugin()])
    spec.components.schema("Shown", schema=kind())
    components = spec.to_dict()["components"]
    return {"components": components, **components["schemas"]["Shown"]}


def agrees(kind: type[Schema], value: dict[str, Any]) -> bool:
    """Return whether a schema takes a value, if its JSON Schema says the same."""
    try:
        kind().load(value)
        loads = True
    except ValidationError:
        loads = False
    valid: bool = jsonschema_rs.Draft202012Validator(described(kind), validate_formats=True).is_valid(value)
    assert valid == loads
    return loads


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("name", ["a", "a" * 64, "A_9"], ["", "_a", "a" * 65, "a b", "a\n", "ä", None, 1]),
        ("password", ["12345678", "\u2603" * 8, None], ["1234567", 12345678]),
        ("alias", ["", "a" * 64, "\U0001f600" * 64, None], ["a" * 65, "a\nb", "a\n", "\x7f"]),
        ("digits", ["", "0aFF", None], ["0g", "0" * 1025]),
        ("seconds", [-1, 0, 2**53 - 1, None], [-2, 2**53, "5", True, 1.5]),
        ("kind", ["private", "public", None], ["", "secret", 1]),
        ("user_id", [ID, None], ["", "x", ID[:-1], 1]),
        ("ids", [[], [ID, ID], None], [["x"], ID, [None]]),
        ("friends", [[ID], [ID, ID], None], [[], [ID, ID, ID]]),
        ("body", ["", "YQ==", "YWI=", "YWJj", None], ["Y", "YQ", "YQ=", "YQ==YQ==", "Y Q=", "YQ==\n", "Y-_=", 1]),
        ("parts", [[], [{"data": "YWJjZA==", "last": True}], [{"data": "YWJjZGVm", "last": None}]], [[{}], [1]]),
        ("parts", [], [[{"data": ""}], [{"data": "YQ=="}], [{"data": "YWJjZGVmZ2hp"}], [{"data": "YWJjZA==", "x": 1}]]),
        ("part", [{"data": "YWJjZA=="}, None], [{}, 1]),
        ("maybe_id", [ID, None], ["x"]),
        ("unknown", [], [1]),
    ],
)
def test_a_request_is_refused_alike(name: str, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        assert agrees(Request, {"name": "a"} | {name: value}), value
    for value in bad:
        assert not agrees(Request, {"name": "a"} | {name: value}), value


def test_a_required_field_has_to_be_there() -> None:
    assert not agrees(Request, {})


def test_the_example_of_a_request_is_valid() -> None:
    """But for what only an example of that name could show."""
    shown = example(Request())
    assert shown["parts"][0].keys() == {"data", "last"}
    fitting: dict[str, Any] = {"name": "a", "digits": "00", "password": "a password", "parts": [], "part": None}
    assert agrees(Request, shown | fitting)


def test_a_docstring_is_a_description() -> None:
    assert described(Request)["description"] == "A request with each kind of field. Also `parts`."


def test_a_default_is_shown_where_it_says_something() -> None:
    shown = described(Request)["properties"]
    assert not [name for name in ("name", "alias", "body") if "default" in shown[name]]
    assert described(Part)["properties"]["last"]["default"] is False


def test_a_number_of_a_query_is_capped_not_refused() -> None:
    limit = described(Query)["properties"]["limit"]
    assert (limit["minimum"], limit["default"], limit.get("maximum")) == (1, 100, None)
    assert "500" in limit["description"]


def test_every_field_of_a_response_is_present_and_further_ones_may_come() -> None:
    shown = described(StoredMessage)
    assert shown["required"] == ["banned_by", "sequence_num"]
    assert "additionalProperties" not in shown


def test_a_response_says_what_its_message_in_protobuf_says() -> None:
    shown = described(GroupInfo)["properties"]
    assert shown["visibility"]["enum"] == ["private", "public"]
    assert shown["message_expiry_seconds"] == {"type": "integer", "format": "int64"}
    assert described(StoredMessage)["properties"]["sequence_num"]["minimum"] == 0


def test_an_id_of_an_account_that_is_gone_may_be_empty() -> None:
    check = jsonschema_rs.Draft202012Validator(described(StoredMessage), validate_formats=True)
    assert check.is_valid({"banned_by": "", "sequence_num": 1})
    assert check.is_valid({"banned_by": ID, "sequence_num": 1})
    assert not check.is_valid({"banned_by": "x", "sequence_num": 1})
