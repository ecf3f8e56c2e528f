"""Schemas of answers and events: made from the classes into which clients read them."""

import dataclasses
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints
from uuid import UUID

from marshmallow import fields

from conclave.strict_fields import StrictBoolean, Text
from conclave.wire.fields import Bytes, Identifier
from conclave.wire.results import WireMessage
from conclave.wire.schemas.base import ResponseSchema

_BY_TYPE: dict[Any, type[fields.Field[Any]]] = {
    UUID: Identifier,
    bytes: Bytes,
    str: Text,
    int: fields.Integer,
    bool: StrictBoolean,
}


_MADE: dict[type[WireMessage], ResponseSchema] = {}


def schema_of(kind: type[WireMessage]) -> ResponseSchema:
    """Return the one schema that writes ``kind``: with its message's name, its docstring, and its fields.

    A field is of its type, or as its metadata has it (``field``).
    """
    if kind not in _MADE:
        hints = get_type_hints(kind)
        made: dict[str, Any] = {"__doc__": kind.__doc__}
        for each in dataclasses.fields(kind):  # type: ignore[arg-type]  # all of them are dataclasses
            made[each.name] = each.metadata.get("field") or _field(hints[each.name])
        _MADE[kind] = type(kind.wire, (ResponseSchema,), made)()
    return _MADE[kind]


def _field(hint: Any) -> fields.Field[Any]:
    """Return a field of a type: a list of a tuple, a message of a class; of ``UUID | None`` an id that may be empty."""
    if get_origin(hint) is tuple:
        return fields.List(_field(get_args(hint)[0]))
    if isinstance(hint, UnionType):
        return _field(get_args(hint)[0])
    return _BY_TYPE[hint]() if hint in _BY_TYPE else fields.Nested(schema_of(hint))
