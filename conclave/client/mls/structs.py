"""Structures whose fields follow one another. Each field says once, in its annotation, how it is written and read."""

from collections.abc import Callable
from dataclasses import fields
from enum import IntEnum
from functools import cache
from operator import methodcaller
from typing import Annotated, Any, NamedTuple, Self, TypeAlias, get_args, get_type_hints

from conclave.client.mls.codec import (
    Reader,
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


class Form(NamedTuple):
    """How a value goes over the wire."""

    encode: Callable[[Any], bytes]
    decode: Callable[[Reader], Any]


Uint16: TypeAlias = Annotated[int, Form(uint16, Reader.uint16)]
Uint32: TypeAlias = Annotated[int, Form(uint32, Reader.uint32)]
Uint64: TypeAlias = Annotated[int, Form(uint64, Reader.uint64)]
Epoch: TypeAlias = Annotated[int, Form(uint64, Reader.epoch)]
Opaque: TypeAlias = Annotated[bytes, Form(opaque, Reader.opaque)]
Short: TypeAlias = Annotated[bytes, Form(opaque, Reader.short)]
Uint16s: TypeAlias = Annotated[tuple[int, ...], Form(uint16s, Reader.uint16s)]
Flag: TypeAlias = Annotated[bool, Form(uint8, lambda reader: bool(reader.uint8()))]


def fixed(length: int) -> Form:
    """Return the form of so many bytes."""
    return Form(bytes, lambda reader: reader.fixed(length))


def numbers(at_most: int) -> Form:
    """Return the form of a vector of up to ``at_most`` numbers of 32 bits."""
    return Form(uint32s, lambda reader: reader.uint32s(at_most))


def named(kind: type[IntEnum]) -> Form:
    """Return the form of a number of 8 bits that has a name."""
    return Form(uint8, lambda reader: reader.enum(kind, reader.uint8()))


def many(kind: type[Any], at_most: int) -> Form:
    """Return the form of a vector of up to ``at_most`` structures."""
    return Form(vector, lambda reader: reader.vector(kind.decode, at_most))


def maybe(kind: type[Any]) -> Form:
    """Return the form of a structure that may be missing."""
    return Form(optional, lambda reader: reader.optional(kind.decode))


class Struct:
    """A structure; its classes are dataclasses. A field without a Form is itself a structure."""

    def encode(self) -> bytes:
        """Encode."""
        return self.encode_first(None)

    def encode_first(self, count: int | None) -> bytes:
        """Encode the first fields alone, ``count`` as in a slice: what is signed or authenticated is often these."""
        return b"".join([form.encode(getattr(self, name)) for name, form in _forms(type(self))[:count]])

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """Decode."""
        make: Callable[..., Self] = cls
        return make(*[form.decode(reader) for _, form in _forms(cls)])


def _read_forms(kind: Any) -> tuple[tuple[str, Form], ...]:
    hints = get_type_hints(kind, include_extras=True)
    return tuple((field.name, _form(hints[field.name])) for field in fields(kind))


def _form(hint: Any) -> Form:
    given = next((each for each in get_args(hint) if isinstance(each, Form)), None)
    return given or Form(methodcaller("encode"), hint.decode)


_forms: Callable[[type], tuple[tuple[str, Form], ...]] = cache(_read_forms)
"""Returns the fields of a structure, in their order, with their forms."""
