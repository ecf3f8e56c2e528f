"""Converts marshmallow schemas to JSON Schema, with support for this server's fields."""

import copy
import inspect
from typing import Any

from apispec.ext.marshmallow import MarshmallowPlugin
from apispec.ext.marshmallow.openapi import OpenAPIConverter
from google.protobuf.descriptor import FieldDescriptor
from marshmallow import Schema, fields, missing, validate

from conclave.wire import conclave_pb2
from conclave.wire.fields import BoundedList, Bytes, Identifier, NotEmpty, QueryInteger
from conclave.wire.openapi.examples import example_of
from conclave.wire.protobuf import words
from conclave.wire.schemas.base import QuerySchema, RequestSchema, ResponseSchema

BASE64 = "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"

_MAY_BE_EMPTY = ("banned_by", "expiry_set_by")
"""Ids in responses that are "" once the account is deleted."""

_LONG = (FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_UINT64)
_UNSIGNED = (FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_UINT64)


def docstring_text(kind: Any) -> str:
    """Return a docstring as one line of Markdown."""
    return " ".join((inspect.getdoc(kind) or "").split()).replace("``", "`")


class _Converter(OpenAPIConverter):
    """Writes a schema as JSON Schema."""

    def schema2jsonschema(self, schema: Schema) -> dict[str, Any]:
        """Convert a schema. A response has every field. Clients have to ignore unknown ones."""
        converted: dict[str, Any] = super().schema2jsonschema(schema)  # type: ignore[no-untyped-call]
        converted["description"] = docstring_text(type(schema))
        if isinstance(schema, ResponseSchema):
            del converted["additionalProperties"]
            converted["required"] = sorted(converted["properties"])
            _refine(converted["properties"], type(schema).__name__)
        return converted

    def field2property(self, field: fields.Field[Any]) -> dict[str, Any]:
        """Convert a field."""
        plain_field = copy.copy(field)
        not_empty_rules = [rule for rule in field.validators if isinstance(rule, NotEmpty)]
        plain_field.validators = [rule for rule in field.validators if rule not in not_empty_rules]
        plain_field.validators += [rule.rule for rule in not_empty_rules if rule.rule]
        plain_field.allow_none = False
        if not isinstance(field.load_default, int):
            plain_field.load_default = missing  # an empty default is omitted
        converted: dict[str, Any] = super().field2property(plain_field)
        _write_text(converted, plain_field)
        if isinstance(field, QueryInteger):
            converted["description"] = f"More than {field.most} counts as {field.most}."
        if isinstance(field.parent, QuerySchema):
            converted["examples"] = [example_of(str(field.name), field)]
        if not_empty_rules:
            minimum_keyword = "minItems" if isinstance(field, fields.List) else "minLength"
            converted[minimum_keyword] = max(converted.get(minimum_keyword, 0), 1)
        if isinstance(field, BoundedList):
            converted["maxItems"] = field.most
        if isinstance(field.parent, RequestSchema) and not field.required:
            _allow_null(converted)
        return converted


class Plugin(MarshmallowPlugin):
    """Names schemas after their classes, which have the names of the messages."""

    Converter = _Converter

    def __init__(self) -> None:
        super().__init__(schema_name_resolver=lambda schema: type(schema).__name__)


def _write_text(json_schema: dict[str, Any], field: fields.Field[Any]) -> None:
    """Add the rules of texts, ids and other bytes."""
    if isinstance(field, Bytes):
        # The rules count bytes. Base64 has four characters for three bytes.
        lengths = {name: -(-json_schema[name] // 3) * 4 for name in ("minLength", "maxLength") if name in json_schema}
        # Not format byte, which OpenAPI 3.1 has removed: generators would decode it to text.
        json_schema |= {"contentEncoding": "base64", "pattern": BASE64} | lengths
    elif isinstance(field, Identifier):
        json_schema["format"] = "uuid"
    elif "pattern" in json_schema:
        json_schema["pattern"] = _ecma(json_schema["pattern"])
    for rule in field.validators:
        if isinstance(rule, validate.Regexp | validate.Length | validate.Range) and "{" not in (rule.error or "{"):
            json_schema["description"] = f"{str(rule.error)[0].upper()}{str(rule.error)[1:]}."


def _ecma(pattern: str) -> str:
    """Convert a Python pattern, which matches from the beginning, to JSON Schema."""
    ecma_pattern = pattern.replace(r"\Z", "$")
    return f"^(?:{ecma_pattern})" if "|" in ecma_pattern else f"^{ecma_pattern}"


def _allow_null(json_schema: dict[str, Any]) -> None:
    if "$ref" in json_schema:
        json_schema["anyOf"] = [{"$ref": json_schema.pop("$ref")}, {"type": "null"}]
        return
    json_schema["type"] = [json_schema["type"], "null"]
    if "enum" in json_schema:
        json_schema["enum"] = [*json_schema["enum"], None]


def _refine(properties: dict[str, Any], message: str) -> None:
    """Add enum words and integer sizes from the protobuf message to a response's fields."""
    descriptor = conclave_pb2.DESCRIPTOR.message_types_by_name.get(message)
    for name, found in properties.items():
        field = descriptor.fields_by_name.get(name) if descriptor else None
        if field and field.enum_type and found["type"] == "string":
            found["enum"] = [word for number, word in words(field.enum_type).items() if number]
        number = found.get("items", found)  # the items of a list
        if field and field.type in _LONG:
            number["format"] = "int64"
        if field and field.type in _UNSIGNED:
            number["minimum"] = 0
        if name in _MAY_BE_EMPTY:
            properties[name] = {"anyOf": [found, {"const": ""}]}
