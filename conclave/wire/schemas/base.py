"""What all request and response schemas share."""

from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar

from marshmallow import EXCLUDE, RAISE, Schema, ValidationError, pre_load

from conclave.wire.negotiate import Format

MOST_FAULTS = 20
"""An answer names at most 20 fields at fault."""

MORE = object()
"""Stands in the place of a field's name among faults; its value is how many more faults there are."""

_UNKNOWN = "unknown field"


@cache
def the(kind: type[Schema]) -> Schema:
    """Return the one instance of a schema: making one costs more than most uses of it."""
    return kind()


class _MakingSchema(Schema):
    """A schema that loads into a frozen dataclass with the same fields."""

    makes: ClassVar[type]
    """The dataclass. A field that is absent is None there, unless the schema has a default for it."""

    def load(self, data: Any, **options: Any) -> Any:
        """Return what ``makes`` makes of ``data``. Raises ValidationError."""
        try:
            loaded = super().load(data, **options)
        except ValidationError as error:
            # marshmallow's frame, which the traceback holds, holds the error: a circle, and in it the whole body, which
            # would stay in memory until Python looks for circles.
            raise error.with_traceback(None)  # noqa: B904 - it is the same error
        # A hook of marshmallow's would do the same, and cost each send more.
        return self.makes(**loaded)


class RequestSchema(_MakingSchema):
    """A request message. null is the same as absent, and an unknown field is an error."""

    class Meta:
        """A mistyped field must not be ignored silently."""

        unknown = RAISE

    error_messages = {"unknown": _UNKNOWN}

    empty_counts: ClassVar[tuple[str, ...]] = ()
    """Fields whose empty value means something. Protobuf cannot tell it from an absent one: both count."""

    zero_is_absent: ClassVar[tuple[str, ...]] = ()
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
        if len(unknown) > MOST_FAULTS:
            # The answer names nothing else beside them. A list for each would keep Python busy collecting.
            named = {name: [_UNKNOWN] for name in unknown[:MOST_FAULTS]}
            raise ValidationError({**named, MORE: len(unknown) - MOST_FAULTS})
        return {name: value for name, value in data.items() if value is not None or name not in self.fields}


class QuerySchema(_MakingSchema):
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
