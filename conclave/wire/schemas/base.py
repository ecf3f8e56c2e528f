"""What all schemas share, the query of a part of a list, and schemas made from the classes of answers and events."""

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

MAX_FAULTS = 20
"""An answer names at most 20 fields at fault."""

MORE = object()
"""Stands in the place of a field's name among faults; its value is how many more faults there are."""

_UNKNOWN = "unknown field"


@cache
def schema_instance(kind: type[Schema]) -> Schema:
    """Return the one instance of a schema: making one costs more than most uses of it."""
    return kind()


class _LoadingSchema(Schema):
    """A schema that loads into a frozen dataclass with the same fields."""

    result_class: ClassVar[type]
    """The dataclass. A field that is absent is None there, unless the schema has a default for it."""

    def load(self, data: Any, **options: Any) -> Any:
        """Return what ``result_class`` makes of ``data``. Raises ValidationError."""
        try:
            loaded = super().load(data, **options)
        except ValidationError as error:
            # marshmallow's frame, which the traceback holds, holds the error: a circle, and in it the whole body, which
            # would stay in memory until Python looks for circles.
            raise error.with_traceback(None)  # noqa: B904 - it is the same error
        # A hook of marshmallow's would do the same, and cost each send more.
        return self.result_class(**loaded)


class RequestSchema(_LoadingSchema):
    """A request message. null is the same as absent, and an unknown field is an error."""

    class Meta:
        """A mistyped field must not be ignored silently."""

        unknown = RAISE

    error_messages = {"unknown": _UNKNOWN}

    keep_empty: ClassVar[tuple[str, ...]] = ()
    """Fields whose empty value means something. Protobuf cannot tell it from an absent one: both count."""

    drop_zero: ClassVar[tuple[str, ...]] = ()
    """Numbers that are not 0 where they are given. Protobuf cannot tell 0 from an absent one: neither counts."""

    quick: ClassVar["staticmethod[[Format, bytes], Any] | None"] = None
    """Returns what an ordinary body makes, or None for one that has to be looked at closely, as any body may be.

    The busiest messages do without a schema by this. It must not take what the schema refuses, nor read it otherwise.
    """

    @pre_load
    def _drop_nulls(self, data: Any, **_: Any) -> Any:
        if not isinstance(data, Mapping):
            return data  # inside another message a value may be of any type
        unknown = [name for name in data if name not in self.fields]
        if len(unknown) > MAX_FAULTS:
            # The answer names nothing else beside them. A list for each would keep Python busy collecting.
            named = {name: [_UNKNOWN] for name in unknown[:MAX_FAULTS]}
            raise ValidationError({**named, MORE: len(unknown) - MAX_FAULTS})
        return {name: value for name, value in data.items() if value is not None or name not in self.fields}


class QuerySchema(_LoadingSchema):
    """The fields of a query string. Unknown names are ignored, as on the web."""

    class Meta:
        """Proxies and caches add names of their own, unlike in a body."""

        unknown = EXCLUDE

    quick: ClassVar["staticmethod[[str], Any] | None"] = None
    """Returns what an ordinary query string makes, or None as in ``RequestSchema``."""


class ResponseSchema(Schema):
    """A response message. Every field is always present."""

    def get_attribute(self, obj: Any, attr: str, default: Any) -> Any:
        """Return a value of what is written, a dict or an object. marshmallow tries both, at each field."""
        return obj.get(attr, default) if isinstance(obj, dict) else getattr(obj, attr, default)


class Empty(ResponseSchema):
    """A response without fields."""


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


@dataclass(frozen=True)
class Paging:
    """Which page of a list is asked for: at most ``limit`` items after the one with the id ``after``."""

    limit: int | None = None
    after: bytes | None = None

    @property
    def is_given(self) -> bool:
        """Whether a page is asked for, and not just the list."""
        return self.limit is not None or self.after is not None


class ListQuery(QuerySchema):
    """Which page of a list: at most ``limit`` items, those after the item with the id ``after``."""

    result_class: ClassVar[type] = Paging

    limit = QueryInteger(least=1, most=MAX_PAGE_ITEMS)
    after = Identifier()
