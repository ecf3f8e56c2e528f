"""Writes requests and reads answers, in JSON and in protobuf."""

import base64
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from functools import cache
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints
from uuid import UUID

import orjson
from google.protobuf.message import DecodeError, Message

from conclave.client.errors import AnswerError, InputError
from conclave.errors import ErrorCode
from conclave.wire import conclave_pb2, formats, protobuf
from conclave.wire.formats import Format
from conclave.wire.schemas.base import RequestSchema, schema_instance

MAX_NUMBER = 2**60
"""Bound of the numbers in answers. The greatest valid one is a time, 2**53 - 1."""

DECODE_ERRORS = (DecodeError, ValueError, TypeError, KeyError, AttributeError, OverflowError)
"""Exceptions raised by decoding a malformed value."""

T = TypeVar("T")
Convert = Callable[[Any], Any]


def write(written_in: Format, schema: type[RequestSchema], request: Any) -> bytes:
    """Encode a request, an object of the class that ``schema`` loads. None values are omitted. Raises InputError."""
    request_fields = {name: value for name, value in vars(request).items() if value is not None}
    values: Mapping[str, Any] = schema_instance(schema).dump(request_fields)
    # A missing id is empty, and a missing number 0: both formats omit them.
    defaults = dict.fromkeys(schema.drop_zero, 0)
    encoded_fields = {name: value for name, value in values.items() if value != defaults.get(name, b"")}
    try:
        return (
            protobuf.write(schema.__name__, encoded_fields)
            if written_in is Format.PROTOBUF
            else formats.write(encoded_fields)
        )
    except (TypeError, UnicodeError) as error:
        text = "a text of the request cannot be encoded in UTF-8: it has an unpaired surrogate"
        raise InputError(400, ErrorCode.INPUT_VALIDATION, text) from error


def read(written_in: Format, kind: type[T], body: bytes) -> T:
    """Decode an answer. Unknown fields are ignored. Raises AnswerError."""
    try:
        if written_in is Format.PROTOBUF:
            return from_protobuf(kind, getattr(conclave_pb2, kind.wire).FromString(body))  # type: ignore[attr-defined]  # all kinds have it
        return from_json(kind, orjson.loads(body))
    except DECODE_ERRORS as error:
        raise AnswerError(f"the answer is not a valid {kind.wire}: {error}") from error  # type: ignore[attr-defined]  # as above


def _readers_of(kind: Any) -> dict[str, tuple[Convert, Convert]]:
    return _readers(kind)


def from_json(kind: type[T], values: Mapping[str, Any]) -> T:
    """Return an object from decoded JSON."""
    arguments = {
        name: convert(values[name])
        for name, (convert, _) in _readers_of(kind).items()
        if name in values or name in _required(kind)
    }
    return kind(**arguments)


def from_protobuf(kind: type[T], message: Message) -> T:
    """Return an object from a protobuf message."""
    enums = {each.name: each.enum_type for each in message.DESCRIPTOR.fields if each.enum_type}
    values = {}
    for name, (_, convert) in _readers_of(kind).items():
        value = getattr(message, name)
        is_word = name in enums and name != "error_code"
        values[name] = protobuf.words(enums[name]).get(value, "") if is_word else convert(value)
    return kind(**values)


@cache
def _readers(kind: type[Any]) -> dict[str, tuple[Convert, Convert]]:
    """Return the converters of each field of a class, from JSON and from protobuf."""
    hints = get_type_hints(kind)
    return {
        each.name: (_converter(hints[each.name], _JSON), _converter(hints[each.name], _PROTOBUF))
        for each in fields(kind)
    }


def _required(kind: Any) -> set[str]:
    return {each.name for each in fields(kind) if each.default is MISSING}


def _converter(hint: Any, by_type: Mapping[Any, Convert]) -> Convert:
    """Return the converter for a type: UUID, bytes, int, str, a wire class, or a tuple of these."""
    if get_origin(hint) is tuple:
        each = _converter(get_args(hint)[0], by_type)
        return lambda values: tuple(each(value) for value in values)
    if isinstance(hint, UnionType):  # UUID | None: None is encoded as empty
        convert = _converter(get_args(hint)[0], by_type)
        return lambda value: convert(value) if value else None
    if hint in by_type:
        return by_type[hint]
    if isinstance(hint, type) and hasattr(hint, "wire"):
        return lambda values: by_type[Message](hint, values)  # type: ignore[call-arg]  # converters of messages take two
    return lambda value: value


def _base64(text: str) -> bytes:
    return base64.b64decode(text.encode("ascii"), validate=True)


def _read_int(value: Any) -> int:
    """Return an int that fits into 64 bits, with room for sums."""
    if type(value) is not int or abs(value) >= MAX_NUMBER:
        raise ValueError("a value is not an integer, or is out of range")
    return value


def _read_text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a value is not a string")  # noqa: TRY004 - the answer is wrong, not the call
    return value


_BOTH: dict[Any, Any] = {int: _read_int, str: _read_text}
_JSON: dict[Any, Any] = _BOTH | {UUID: UUID, bytes: _base64, Message: from_json}
_PROTOBUF: dict[Any, Any] = _BOTH | {UUID: lambda value: UUID(bytes=value), Message: from_protobuf}
