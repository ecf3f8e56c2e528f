"""Base classes of schemas, the query of lists, and schemas derived from the classes of responses and events."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import UnionType
from typing import Any, ClassVar, get_args, get_origin, get_type_hints
from uuid import UUID

from marshmallow import EXCLUDE, RAISE, Schema, ValidationError, fields, pre_load

from conclave.strict_fields import StrictBoolean, Text
from conclave.wire.fields import MAX_PAGE_ITEMS, Bytes, Identifier, QueryInteger
from conclave.wire.formats import Format
from conclave.wire.results import WireMessage

MAX_FIELD_ERRORS = 20
"""A response names at most 20 invalid fields."""

MORE_ERRORS = object()
"""Replaces a field's name among errors; its value is the number of further errors."""

_UNKNOWN = "unknown field"


@cache
def schema_instance(kind: type[Schema]) -> Schema:
    """Return the cached instance of a schema, since creating one is expensive."""
    return kind()


class _LoadingSchema(Schema):
    """A schema that loads into a frozen dataclass with the same fields."""

    result_class: ClassVar[type]
    """The dataclass. Absent fields are None, unless the schema has a default."""

    def load(self, data: Any, **options: Any) -> Any:
        """Load ``data`` into a ``result_class``. Raises ValidationError."""
        try:
            values = super().load(data, **options)
        except ValidationError as error:
            # The traceback references marshmallow's frame, and that the error: a cycle that would keep the whole body
            # in memory until garbage collection.
            raise error.with_traceback(None)  # noqa: B904 - the same error
        # A hook of marshmallow would do the same, but slower.
        return self.result_class(**values)


class RequestSchema(_LoadingSchema):
    """A request message. null is the same as absent, and an unknown field is an error."""

    class Meta:
        """Reject unknown fields, since they may be mistyped."""

        unknown = RAISE

    error_messages = {"unknown": _UNKNOWN}

    keep_empty: ClassVar[tuple[str, ...]] = ()
    """Fields whose empty value has a meaning. In protobuf an absent field counts as empty."""

    drop_zero: ClassVar[tuple[str, ...]] = ()
    """Numbers that must not be 0. In protobuf 0 counts as absent."""

    quick: ClassVar["staticmethod[[Format, bytes], Any] | None"] = None
    """Parses a simple body without the schema, for the most frequent messages; returns None for any other body.

    It must not accept a body that the schema rejects, and must return the same value.
    """

    @pre_load
    def _drop_nulls(self, data: Any, **_: Any) -> Any:
        if not isinstance(data, Mapping):
            return data  # a nested value of the wrong type
        unknown = [name for name in data if name not in self.fields]
        if len(unknown) > MAX_FIELD_ERRORS:
            # The response names only these. An error list for each field would be slow.
            errors = {name: [_UNKNOWN] for name in unknown[:MAX_FIELD_ERRORS]}
            raise ValidationError({**errors, MORE_ERRORS: len(unknown) - MAX_FIELD_ERRORS})
        return {name: value for name, value in data.items() if value is not None or name not in self.fields}


class QuerySchema(_LoadingSchema):
    """The fields of a query string. Unknown names are ignored."""

    class Meta:
        """Ignore unknown names: proxies and caches add some."""

        unknown = EXCLUDE

    quick: ClassVar["staticmethod[[str], Any] | None"] = None
    """Parses a simple query string, or returns None, see ``RequestSchema.quick``."""


class ResponseSchema(Schema):
    """A response message. Every field is always present."""

    def get_attribute(self, obj: Any, attr: str, default: Any) -> Any:
        """Return a value of a dict or an object. Faster than marshmallow, which tries both for each field."""
        return obj.get(attr, default) if isinstance(obj, dict) else getattr(obj, attr, default)


_BY_TYPE: dict[Any, type[fields.Field[Any]]] = {
    UUID: Identifier,
    bytes: Bytes,
    str: Text,
    int: fields.Integer,
    bool: StrictBoolean,
}


_SCHEMAS: dict[type[WireMessage], ResponseSchema] = {}


def schema_of(kind: type[WireMessage]) -> ResponseSchema:
    """Return the schema that writes ``kind``, with its message's name, docstring and fields. Cached.

    A field is derived from its type, unless its metadata has one (``field``).
    """
    if kind not in _SCHEMAS:
        hints = get_type_hints(kind)
        attributes: dict[str, Any] = {"__doc__": kind.__doc__}
        for each in dataclasses.fields(kind):  # type: ignore[arg-type]  # all of them are dataclasses
            attributes[each.name] = each.metadata.get("field") or _field(hints[each.name])
        _SCHEMAS[kind] = type(kind.wire, (ResponseSchema,), attributes)()
    return _SCHEMAS[kind]


def _field(hint: Any) -> fields.Field[Any]:
    """Return a field for a type: a list for a tuple, a nested message for a class; ``UUID | None`` is an id."""
    if get_origin(hint) is tuple:
        return fields.List(_field(get_args(hint)[0]))
    if isinstance(hint, UnionType):
        return _field(get_args(hint)[0])
    return _BY_TYPE[hint]() if hint in _BY_TYPE else fields.Nested(schema_of(hint))


@dataclass(frozen=True)
class Paging:
    """The requested page of a list: at most ``limit`` items after the one with the id ``after``."""

    limit: int | None = None
    after: bytes | None = None

    @property
    def is_given(self) -> bool:
        """Whether a page was requested, not the whole list."""
        return self.limit is not None or self.after is not None


class ListQuery(QuerySchema):
    """The page of a list: at most ``limit`` items after the one with the id ``after``."""

    result_class: ClassVar[type] = Paging

    limit = QueryInteger(least=1, most=MAX_PAGE_ITEMS)
    after = Identifier()
