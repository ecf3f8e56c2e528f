"""Parses protobuf into the values that schemas load, and writes the values that they dump.

Messages are found by their schema's name, so a new one needs no code here. Numbers, strings, bytes and lists are
unchanged. Ids are 16 bytes, messages are dicts, enums are lower-case words without the enum's prefix. proto3 does not
distinguish empty and absent values. So empty values are omitted, except numbers and booleans, whose zero may have a
meaning.
"""

import re
from collections.abc import Callable, Collection, Mapping
from functools import cache, lru_cache, partial
from typing import Any

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from conclave.errors import BadRequestError
from conclave.wire import conclave_pb2
from conclave.wire.fields import MAX_LIST_ITEMS

_EMPTY_IS_ABSENT = (FieldDescriptor.CPPTYPE_STRING, FieldDescriptor.CPPTYPE_ENUM)  # "string" includes bytes


def parse(name: str, body: bytes, keep_empty: Collection[str] = (), drop_zero: Collection[str] = ()) -> dict[str, Any]:
    """Parse the message ``name``. Raises BadRequestError.

    ``keep_empty``: fields that are returned even if empty. ``drop_zero``: numbers that are omitted if 0.
    """
    descriptor = conclave_pb2.DESCRIPTOR.message_types_by_name[name]
    try:
        message = GetMessageClass(descriptor).FromString(body)
    except (DecodeError, UnicodeDecodeError) as error:  # either is raised for a string that is not UTF-8
        raise BadRequestError(f"the body is not a {name} in protobuf") from error
    values = {field: getattr(message, field) for field in keep_empty} | _values(descriptor, message)
    for field in drop_zero:
        if values[field] == 0:
            del values[field]
    return values


def write(name: str, values: Mapping[str, Any]) -> bytes:
    """Write ``values`` as the message ``name``. An enum may also be given as its number."""
    descriptor = conclave_pb2.DESCRIPTOR.message_types_by_name[name]
    return GetMessageClass(descriptor)(**_arguments(descriptor, values)).SerializeToString()


def field_prefix(name: str, field: str, size: int) -> bytes:
    """Return the tag and the length before ``size`` bytes of a string, bytes or message field."""
    number = conclave_pb2.DESCRIPTOR.message_types_by_name[name].fields_by_name[field].number
    return varint(number << 3 | 2) + varint(size)


@lru_cache(4096)
def varint(value: int) -> bytes:
    """Return the protobuf encoding of a number: seven bits a byte, lowest first, all but the last marked."""
    low, high = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + varint(high) if high else bytes([low])


def _values(descriptor: Descriptor, message: Message) -> dict[str, Any]:
    return {
        field.name: _value(field, getattr(message, field.name))
        for field in descriptor.fields
        if _is_present(message, field)
    }


def _is_present(message: Message, field: FieldDescriptor) -> bool:
    if field.has_presence:
        return message.HasField(field.name)
    return bool(getattr(message, field.name)) or not (field.is_repeated or field.cpp_type in _EMPTY_IS_ABSENT)


def _value(field: FieldDescriptor, value: Any) -> Any:
    if field.is_repeated:
        # One item above the limit suffices for the error: 1 MiB can hold 500,000 empty ones.
        return [_single(field, each) for each in value[: MAX_LIST_ITEMS + 1]]
    return _single(field, value)


def _single(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type:
        return _values(field.message_type, value)
    if field.enum_type:
        return words(field.enum_type).get(value, str(value))  # the schema rejects unknown numbers
    return value


def _arguments(descriptor: Descriptor, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return ``values`` as a message's constructor expects them: enums as numbers."""
    converters = _converters(descriptor)
    if not converters:
        return values
    return {name: converters[name](value) if name in converters else value for name, value in values.items()}


@cache
def _converters(descriptor: Descriptor) -> dict[str, Callable[[Any], Any]]:
    """Return the converters of the fields that are or contain enums."""
    found: dict[str, Callable[[Any], Any]] = {}
    for field in descriptor.fields:
        convert: Callable[[Any], Any]
        if field.enum_type:
            convert = partial(_number, field.enum_type)
        elif field.message_type and _converters(field.message_type):
            convert = partial(_arguments, field.message_type)
        else:
            continue
        found[field.name] = partial(_each, convert) if field.is_repeated else convert
    return found


def _each(convert: Callable[[Any], Any], values: list[Any]) -> list[Any]:
    return [convert(value) for value in values]


def _number(enum: EnumDescriptor, value: str | int) -> int:
    if isinstance(value, int):
        return value
    return next(number for number, word in words(enum).items() if word == value)


@cache
def words(enum: EnumDescriptor) -> dict[int, str]:
    """Return the words of an enum by number: its names in lower case, without their common prefix."""
    prefix = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", enum.name).upper() + "_"
    return {value.number: value.name.removeprefix(prefix).lower() for value in enum.values}
