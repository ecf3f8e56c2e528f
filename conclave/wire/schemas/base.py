"""What all request and response schemas share."""

from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar

from marshmallow import EXCLUDE, RAISE, Schema, ValidationError, pre_load

MOST_FAULTS = 20
"""Fields at fault that an answer names."""

MORE = object()
"""In the place of a name among faults: how many more there are."""

_UNKNOWN = "unknown field"


@cache
def the(kind: type[Schema]) -> Schema:
    """Return the one instance of a schema: making one costs more than most uses of it."""
    return kind()


class _MakingSchema(Schema):
    """What is loaded becomes a value of a class of its own, a frozen dataclass with the same fields."""

    makes: ClassVar[type]
    """The class; None stands there for a field that is absent, unless the schema has a default for it."""

    def load(self, data: Any, **options: Any) -> Any:
        """Return what ``makes`` makes of ``data``. Raises ValidationError."""
        # A hook of marshmallow's would do the same, and cost each send more.
        return self.makes(**super().load(data, **options))


class RequestSchema(_MakingSchema):
    """A request message: null is the same as absent, an unknown field is an error."""

    class Meta:
        """A mistyped field must not be ignored silently."""

        unknown = RAISE

    error_messages = {"unknown": _UNKNOWN}

    empty_counts: ClassVar[tuple[str, ...]] = ()
    """Fields whose empty value says something in protobuf too, which cannot tell it from an absent one."""

    @pre_load
    def _drop_nulls(self, data: Any, **_: Any) -> Any:
        if not isinstance(data, Mapping):
            return data  # inside another message anything may stand
        unknown = [name for name in data if name not in self.fields]
        if len(unknown) > MOST_FAULTS:
            # Nothing else would be named beside them; a list for each would keep Python busy collecting.
            named = {name: [_UNKNOWN] for name in unknown[:MOST_FAULTS]}
            raise ValidationError({**named, MORE: len(unknown) - MOST_FAULTS})
        return {name: value for name, value in data.items() if value is not None or name not in self.fields}


class QuerySchema(_MakingSchema):
    """What a query string may say; names that mean nothing are passed over, as on the web."""

    class Meta:
        """Unlike in a body, proxies and caches add names of their own."""

        unknown = EXCLUDE


class ResponseSchema(Schema):
    """A response message: every field is always present."""


class Empty(ResponseSchema):
    """A response without fields."""
