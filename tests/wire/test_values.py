"""What a request says, as handlers see it: each schema makes a value with the same fields."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
from marshmallow import Schema, fields, missing

from conclave.server.routes import ROUTES
from conclave.wire.fields import BoundedList, Bytes, Identifier
from conclave.wire.schemas.base import QuerySchema, RequestSchema, schema_instance


def schemas(kind: type[Schema]) -> Iterator[type[Any]]:
    for each in kind.__subclasses__():
        yield each
        yield from schemas(each)


OURS = "conclave.wire.schemas."

ALL = sorted(
    {each for kind in (RequestSchema, QuerySchema) for each in schemas(kind) if each.__module__.startswith(OURS)},
    key=lambda each: each.__name__,
)


def type_of(field: fields.Field[Any]) -> type:
    """The type of what a field loads, as far as it tells; of a list's items it does not."""
    known = {fields.String: str, fields.Boolean: bool, fields.Integer: int, fields.List: list}
    if isinstance(field, Identifier | Bytes):
        return bytes
    return next(made for kind, made in known.items() if isinstance(field, kind))


def may_be(annotation: Any, made: type) -> bool:
    return str(annotation).startswith("collections.abc.Sequence[") if made is list else annotation == made


def test_every_body_and_every_query_is_among_them() -> None:
    used = {each for route in ROUTES for each in (route.body, route.query) if each}
    nested = {
        field.inner.nested
        for each in used
        for field in schema_instance(each).fields.values()
        if isinstance(field, BoundedList) and isinstance(field.inner, fields.Nested)
    }
    assert used | nested == set(ALL)


@pytest.mark.parametrize("schema", ALL, ids=lambda each: each.__name__)
def test_a_request_and_its_value_have_the_same_fields(schema: type[RequestSchema]) -> None:
    """None stands for what is absent, in those fields and only in those that have to have nothing in their place."""
    assert dataclasses.is_dataclass(schema.result_class)
    assert schema.result_class.__dataclass_params__.frozen  # type: ignore[attr-defined]  # there, but not in typeshed
    made = {each.name: each for each in dataclasses.fields(schema.result_class)}
    assert made.keys() == schema_instance(schema).fields.keys()
    for name, field in schema_instance(schema).fields.items():
        always = field.required or field.load_default is not missing
        assert made[name].default is (dataclasses.MISSING if always else None), name
        kind: Any = type_of(field)
        assert may_be(made[name].type, kind if always else kind | None), name
