"""Structures of consecutive fields, whose annotations define their encoding."""

from collections.abc import Callable
from dataclasses import fields
from enum import IntEnum
from functools import cache
from operator import methodcaller
from typing import Annotated, Any, NamedTuple, Self, TypeAlias, get_args, get_type_hints

from conclave.client.mls.codec import (
    ByteReader,
    opaque,
    optional,
    uint8,
    uint16,
    uint16s,
    uint32,
    uint32s,
    uint64,
    vector,
)


class FieldEncoding(NamedTuple):
    """The encoder and decoder of a value."""

    encode: Callable[[Any], bytes]
    decode: Callable[[ByteReader], Any]


Uint16: TypeAlias = Annotated[int, FieldEncoding(uint16, ByteReader.uint16)]
Uint32: TypeAlias = Annotated[int, FieldEncoding(uint32, ByteReader.uint32)]
Uint64: TypeAlias = Annotated[int, FieldEncoding(uint64, ByteReader.uint64)]
Epoch: TypeAlias = Annotated[int, FieldEncoding(uint64, ByteReader.epoch)]
Opaque: TypeAlias = Annotated[bytes, FieldEncoding(opaque, ByteReader.opaque)]
Short: TypeAlias = Annotated[bytes, FieldEncoding(opaque, ByteReader.short)]
Uint16s: TypeAlias = Annotated[tuple[int, ...], FieldEncoding(uint16s, ByteReader.uint16s)]
Flag: TypeAlias = Annotated[bool, FieldEncoding(uint8, lambda reader: bool(reader.uint8()))]


def fixed(length: int) -> FieldEncoding:
    """Return the encoding of ``length`` bytes."""
    return FieldEncoding(bytes, lambda reader: reader.fixed(length))


def numbers(at_most: int) -> FieldEncoding:
    """Return the encoding of a vector of up to ``at_most`` uint32 values."""
    return FieldEncoding(uint32s, lambda reader: reader.uint32s(at_most))


def named(kind: type[IntEnum]) -> FieldEncoding:
    """Return the encoding of an 8-bit enum."""
    return FieldEncoding(uint8, lambda reader: reader.enum(kind, reader.uint8()))


def vector_of(kind: type[Any], at_most: int) -> FieldEncoding:
    """Return the encoding of a vector of up to ``at_most`` structures."""
    return FieldEncoding(vector, lambda reader: reader.vector(kind.decode, at_most))


def optional_of(kind: type[Any]) -> FieldEncoding:
    """Return the encoding of an optional structure."""
    return FieldEncoding(optional, lambda reader: reader.optional(kind.decode))


class Struct:
    """The base class of structures, which are dataclasses. A field without a FieldEncoding is itself a structure."""

    def encode(self) -> bytes:
        """Encode."""
        return self.encode_first(None)

    def encode_first(self, count: int | None) -> bytes:
        """Encode only the first fields, which signatures often cover. ``count``: the end of a slice."""
        return b"".join([encoding.encode(getattr(self, name)) for name, encoding in _encodings(type(self))[:count]])

    @classmethod
    def decode(cls, reader: ByteReader) -> Self:
        """Decode."""
        create: Callable[..., Self] = cls
        return create(*[encoding.decode(reader) for _, encoding in _encodings(cls)])


def _read_encodings(kind: Any) -> tuple[tuple[str, FieldEncoding], ...]:
    hints = get_type_hints(kind, include_extras=True)
    return tuple((field.name, _encoding_of(hints[field.name])) for field in fields(kind))


def _encoding_of(hint: Any) -> FieldEncoding:
    annotation = next((each for each in get_args(hint) if isinstance(each, FieldEncoding)), None)
    return annotation or FieldEncoding(methodcaller("encode"), hint.decode)


_encodings: Callable[[type], tuple[tuple[str, FieldEncoding], ...]] = cache(_read_encodings)
"""Returns the fields of a structure, in order, with their encodings."""
