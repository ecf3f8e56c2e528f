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
        found: dict[str, Any] = super().schema2jsonschema(schema)  # type: ignore[no-untyped-call]
        found["description"] = docstring_text(type(schema))
        if isinstance(schema, ResponseSchema):
            del found["additionalProperties"]
            found["required"] = sorted(found["properties"])
            _refine(found["properties"], type(schema).__name__)
        return found

    def field2property(self, field: fields.Field[Any]) -> dict[str, Any]:
        """Convert a field."""
        shown = copy.copy(field)
        not_empty = [rule for rule in field.validators if isinstance(rule, NotEmpty)]
        shown.validators = [rule for rule in field.validators if rule not in not_empty]
        shown.validators += [rule.rule for rule in not_empty if rule.rule]
        shown.allow_none = False
        if not isinstance(field.load_default, int):
            shown.load_default = missing  # an empty default need not be shown
        found: dict[str, Any] = super().field2property(shown)
        _write_text(found, shown)
        if isinstance(field, QueryInteger):
            found["description"] = f"More than {field.most} counts as {field.most}."
        if isinstance(field.parent, QuerySchema):
            found["examples"] = [example_of(str(field.name), field)]
        if not_empty:
            least = "minItems" if isinstance(field, fields.List) else "minLength"
            found[least] = max(found.get(least, 0), 1)
        if isinstance(field, BoundedList):
            found["maxItems"] = field.most
        if isinstance(field.parent, RequestSchema) and not field.required:
            _allow_null(found)
        return found


class Plugin(MarshmallowPlugin):
    """Names schemas after their classes, which have the names of the messages."""

    Converter = _Converter

    def __init__(self) -> None:
        super().__init__(schema_name_resolver=lambda schema: type(schema).__name__)


def _write_text(found: dict[str, Any], field: fields.Field[Any]) -> None:
    """Add the rules of texts, ids and other bytes."""
    if isinstance(field, Bytes):
        # The rules count bytes. Base64 has four characters for three bytes.
        lengths = {name: -(-found[name] // 3) * 4 for name in ("minLength", "maxLength") if name in found}
        # Not format byte, which OpenAPI 3.1 has removed: generators would decode it to text.
        found |= {"contentEncoding": "base64", "pattern": BASE64} | lengths
    elif isinstance(field, Identifier):
        found["format"] = "uuid"
    elif "pattern" in found:
        found["pattern"] = _ecma(found["pattern"])
    for rule in field.validators:
        if isinstance(rule, validate.Regexp | validate.Length | validate.Range) and "{" not in (rule.error or "{"):
            found["description"] = f"{str(rule.error)[0].upper()}{str(rule.error)[1:]}."


def _ecma(pattern: str) -> str:
    """Convert a Python pattern, which matches from the beginning, to JSON Schema."""
    written = pattern.replace(r"\Z", "$")
    return f"^(?:{written})" if "|" in written else f"^{written}"


def _allow_null(found: dict[str, Any]) -> None:
    if "$ref" in found:
        found["anyOf"] = [{"$ref": found.pop("$ref")}, {"type": "null"}]
        return
    found["type"] = [found["type"], "null"]
    if "enum" in found:
        found["enum"] = [*found["enum"], None]


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
