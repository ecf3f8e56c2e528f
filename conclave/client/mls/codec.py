"""The presentation language (RFC 9420 section 2.1): integers, vectors with variable-size lengths, optional values.

Decoding is bounded: each vector of structures has a maximum length, and all vectors of a message together have at most
``MAX_ELEMENTS`` entries.
"""

import struct
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Protocol, Self, TypeVar

from conclave.client.mls.errors import LimitError, MalformedMessageError

MAX_MESSAGE = 4 * 1024 * 1024
"""Maximum size of a message, in bytes."""
MAX_ELEMENTS = 16_384
"""Maximum number of structures in all vectors of a message together."""
MAX_STATE = 64 * 1024 * 1024
"""Maximum size of a stored state, in bytes."""
MAX_STATE_ELEMENTS = 1_048_576
"""Maximum number of structures in all vectors of a stored state together."""
MAX_EPOCH = (1 << 62) - 1
"""The last epoch: SQLite stores signed 64-bit numbers."""
MAX_SHORT = 255
"""Maximum size of an id, a hash or a nonce, in bytes."""
MAX_NUMBERS = 1_024
"""Maximum length of a vector of numbers, such as a list of capabilities."""
VARINT_LENGTHS = ((1 << 6, 1, 0x00), (1 << 14, 2, 0x40), (1 << 30, 4, 0x80))

T = TypeVar("T")
E = TypeVar("E", bound=IntEnum)


class Encodable(Protocol):
    """A structure of the protocol."""

    def encode(self) -> bytes:
        """Return the encoded structure."""
        ...


def varint(value: int) -> bytes:
    """Encode a length, in the shortest form (section 2.1.2)."""
    for bound, length, prefix in VARINT_LENGTHS:
        if value < bound:
            encoded = bytearray(value.to_bytes(length, "big"))
            encoded[0] |= prefix
            return bytes(encoded)
    raise LimitError("a vector is longer than the protocol allows")


def uint8(value: int) -> bytes:
    """Encode an 8-bit number."""
    return value.to_bytes(1, "big")


def uint16(value: int) -> bytes:
    """Encode a 16-bit number."""
    return value.to_bytes(2, "big")


def uint32(value: int) -> bytes:
    """Encode a 32-bit number."""
    return value.to_bytes(4, "big")


def uint64(value: int) -> bytes:
    """Encode a 64-bit number."""
    return value.to_bytes(8, "big")


def opaque(data: bytes) -> bytes:
    """Encode ``opaque data<V>``."""
    return varint(len(data)) + data


def vector(items: Iterable[Encodable]) -> bytes:
    """Encode a vector of structures."""
    return opaque(b"".join(item.encode() for item in items))


def uint16s(values: Iterable[int]) -> bytes:
    """Encode ``uint16 values<V>``."""
    return opaque(b"".join(map(uint16, values)))


def uint32s(values: Iterable[int]) -> bytes:
    """Encode ``uint32 values<V>``."""
    return opaque(b"".join(map(uint32, values)))


def optional(value: Encodable | None) -> bytes:
    """Encode ``optional<T>`` (section 2.1.1)."""
    return b"\x00" if value is None else b"\x01" + value.encode()


class ByteReader:
    """Decodes a message. Raises MalformedMessageError for invalid data, and LimitError beyond a limit."""

    def __init__(self, data: bytes, at_most: int = MAX_MESSAGE, elements: int = MAX_ELEMENTS) -> None:
        if len(data) > at_most:
            raise LimitError(f"a message has {len(data)} bytes, more than {at_most}")
        self._data = bytes(data)
        self._position = 0
        self._end = len(data)
        self._elements_left = elements

    def fixed(self, length: int) -> bytes:
        """Read ``length`` bytes."""
        start, stop = self._position, self._position + length
        if stop > self._end:
            raise MalformedMessageError("a message ends too early")
        self._position = stop
        return self._data[start:stop]

    def uint8(self) -> int:
        """Read an 8-bit number."""
        return self.fixed(1)[0]

    def uint16(self) -> int:
        """Read a 16-bit number."""
        return int.from_bytes(self.fixed(2), "big")

    def uint32(self) -> int:
        """Read a 32-bit number."""
        return int.from_bytes(self.fixed(4), "big")

    def uint64(self) -> int:
        """Read a 64-bit number."""
        return int.from_bytes(self.fixed(8), "big")

    def epoch(self) -> int:
        """Read the number of an epoch, up to MAX_EPOCH."""
        number = self.uint64()
        if number > MAX_EPOCH:
            raise LimitError(f"an epoch is later than {MAX_EPOCH}")
        return number

    @property
    def position(self) -> int:
        """The number of bytes read so far."""
        return self._position

    def varint(self) -> int:
        """Read a length. Raises MalformedMessageError if it is not in the shortest form (section 2.1.2)."""
        first = self.uint8()
        if first < VARINT_LENGTHS[0][0]:
            return first
        prefix = first >> 6
        if prefix > len(VARINT_LENGTHS) - 1:
            raise MalformedMessageError("a length has an invalid prefix")
        value = int.from_bytes(bytes([first & 0x3F]) + self.fixed((1 << prefix) - 1), "big")
        if value < VARINT_LENGTHS[prefix - 1][0]:
            raise MalformedMessageError("a length is not in the shortest form")
        return value

    def opaque(self) -> bytes:
        """Read ``opaque data<V>``, with a fast path for short data."""
        position = self._position
        if position < self._end and (length := self._data[position]) < VARINT_LENGTHS[0][0]:
            start, stop = position + 1, position + 1 + length
            if stop <= self._end:
                self._position = stop
                return self._data[start:stop]
        return self.fixed(self.varint())

    def short(self) -> bytes:
        """Read ``opaque data<V>`` of up to MAX_SHORT bytes."""
        data = self.opaque()
        if len(data) > MAX_SHORT:
            raise LimitError(f"an id, a hash or a nonce has {len(data)} bytes, more than {MAX_SHORT}")
        return data

    def vector(self, read: Callable[[Self], T], at_most: int) -> tuple[T, ...]:
        """Read a vector of structures by calling ``read`` for each."""
        length = self.varint()
        stop, outer = self._position + length, self._end
        if stop > outer:
            raise MalformedMessageError("a vector is longer than its message")
        self._end = stop
        items: list[T] = []
        while self._position < stop:
            self._count(len(items), at_most)
            items.append(read(self))
        self._end = outer
        return tuple(items)

    def _count(self, length: int, at_most: int) -> None:
        self._elements_left -= 1
        if length >= at_most:
            raise LimitError(f"a vector has more than {at_most} entries")
        if self._elements_left < 0:
            raise LimitError("the vectors of a message have too many entries")

    def uint16s(self, at_most: int = MAX_NUMBERS) -> tuple[int, ...]:
        """Read ``uint16 values<V>``."""
        return self._numbers("H", 2, at_most)

    def uint32s(self, at_most: int = MAX_NUMBERS) -> tuple[int, ...]:
        """Read ``uint32 values<V>``."""
        return self._numbers("I", 4, at_most)

    def _numbers(self, form: str, size: int, at_most: int) -> tuple[int, ...]:
        data = self.opaque()
        if not data:
            return ()
        count, rest = divmod(len(data), size)
        if rest:
            raise MalformedMessageError("a vector of numbers has a truncated number")
        if count > at_most:
            raise LimitError(f"a vector has more than {at_most} numbers")
        return struct.unpack(f">{count}{form}", data)

    def optional(self, read: Callable[[Self], T]) -> T | None:
        """Read ``optional<T>``, with ``read`` if it is present (section 2.1.1)."""
        present = self.uint8()
        if present > 1:
            raise MalformedMessageError("the presence byte of an optional value is invalid")
        return read(self) if present else None

    def enum(self, kind: type[E], value: int) -> E:
        """Return the enum member of a number."""
        try:
            return kind(value)
        except ValueError:
            raise MalformedMessageError(f"{value} is not a known {kind.__name__}") from None

    def rest(self) -> bytes:
        """Read the remaining bytes."""
        return self.fixed(self._end - self._position)

    def finish(self) -> None:
        """Raise MalformedMessageError if bytes remain."""
        if self._position != self._end:
            raise MalformedMessageError("a message has trailing bytes")


def decode(data: bytes, read: Callable[[ByteReader], T], reader_of: Callable[[bytes], ByteReader] = ByteReader) -> T:
    """Decode a structure that fills ``data``. ``reader_of``: creates the reader, with its limits."""
    reader = reader_of(data)
    value = read(reader)
    reader.finish()
    return value


def state_reader(data: bytes) -> ByteReader:
    """Return a reader for a stored state, with larger limits than for messages."""
    return ByteReader(data, MAX_STATE, MAX_STATE_ELEMENTS)
