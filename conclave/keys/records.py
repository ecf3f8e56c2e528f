"""Records of the key file: each has the cover of one block, with checksums, in units of 64 bytes. Pure functions.

A unit never crosses a disk sector, so the head of a record is written completely or not at all.
"""

import re
import struct
from collections.abc import Iterator
from enum import Enum, auto
from hashlib import blake2b
from mmap import mmap
from typing import NamedTuple

from conclave.keys.tree import Cover, Node

UNIT_BYTES = 64
"""The size of a record is a multiple of 64 bytes: the head, then the nodes."""

MIN_RECORD_BYTES = 2 * UNIT_BYTES
"""A record with a single node, such as that of a new block, has 128 bytes."""

ID_BYTES = 16
"""The ids of groups and key files have 16 bytes."""

Data = bytes | mmap
"""The bytes of a key file."""

_COVER, _ERASED, _FILE = b"key+", b"key-", b"keys"
"""The kinds of heads: of a cover, of an erased record, of the file."""

_HEAD = struct.Struct("<4sIQQ24s8s8s")
"""Kind, units of the record, serial number, begin, name, checksum of the nodes, checksum of the head."""

_NODE = struct.Struct("<I32s")
"""Position, secret."""

_FILLED = re.compile(rb"[^\0]")
_SUM_BYTES = 8
_NO_NAME, _NO_SUM = bytes(24), bytes(_SUM_BYTES)


class RecordState(Enum):
    """The state of a record in the file."""

    VALID = auto()
    ERASED = auto()
    """Overwritten completely."""
    PARTLY_ERASED = auto()
    """The head was overwritten, but not all nodes."""
    INVALID = auto()
    """Altered, or not written completely."""


class FoundRecord(NamedTuple):
    """A record found in the file.

    ``size``: bytes, with the head. ``serial``: the number of the change that wrote it, greater than earlier ones; 0 if
    unknown. ``begin``: the offset of the first record of that change. ``name``: see ``block_name``; zeros if unknown.
    ``is_empty``: the block was removed.
    """

    state: RecordState
    offset: int
    size: int
    serial: int
    begin: int
    name: bytes
    is_empty: bool = False


def block_name(group_id: bytes, block: int) -> bytes:
    """Return the name of a block of a group: 24 bytes."""
    return group_id + block.to_bytes(8, "big")


def parse_block_name(name: bytes) -> tuple[bytes, int]:
    """Return the group id and block number of a block name."""
    return name[:ID_BYTES], int.from_bytes(name[ID_BYTES:], "big")


def encode(name: bytes, serial: int, begin: int, cover: Cover) -> bytes:
    """Return the record of a cover. An empty cover means that the block was removed. ``begin``: see FoundRecord."""
    nodes = b"".join(_NODE.pack(*node) for node in cover)
    nodes += bytes(-len(nodes) % UNIT_BYTES)
    return _head(_COVER, UNIT_BYTES + len(nodes), serial, begin, name, _sum(nodes)) + nodes


def decode(record: bytes, name: bytes) -> Cover | None:
    """Return the cover of a record; None unless it is valid and has that name. More bytes may follow it."""
    head = _parse(record, 0)
    if head is None or head[0] != _COVER or head[4] != name:
        return None
    nodes = record[UNIT_BYTES : head[1] * UNIT_BYTES]
    if len(nodes) != (head[1] - 1) * UNIT_BYTES or _sum(nodes) != head[5]:
        return None
    rows = _NODE.iter_unpack(nodes[: len(nodes) - len(nodes) % _NODE.size])
    return tuple(Node(position, secret) for position, secret in rows if position)


def erased_record(size: int) -> bytes:
    """Return the bytes with which a record of ``size`` bytes is overwritten."""
    return _head(_ERASED, size, 0, 0, _NO_NAME, _NO_SUM) + bytes(size - UNIT_BYTES)


def file_head(serial: int, keys_id: bytes) -> bytes:
    """Return the first unit of a key file. ``serial``: greater than those of the file's initial records.

    ``keys_id``: identifies the keys of one database, 16 bytes.
    """
    return _head(_FILE, UNIT_BYTES, serial, 0, block_name(keys_id, 0), _NO_SUM)


def parse_file_head(data: bytes) -> tuple[int, bytes] | None:
    """Return the serial number and id from the first unit of a key file; None if it is not a key file."""
    head = _parse(data, 0)
    return (head[2], parse_block_name(head[4])[0]) if head and head[0] == _FILE else None


def scan(data: Data, offset: int) -> Iterator[FoundRecord]:
    """Yield the records of a key file from ``offset`` on, in order. Units of zeros are skipped."""
    while match := _FILLED.search(data, offset):
        offset = match.start() // UNIT_BYTES * UNIT_BYTES
        record = _read(data, offset)
        yield record
        offset += record.size


def _read(data: Data, offset: int) -> FoundRecord:
    head = _parse(data, offset)
    if head is None or head[0] == _FILE or not head[1]:
        return FoundRecord(RecordState.INVALID, offset, UNIT_BYTES, 0, 0, _NO_NAME)
    kind, units, serial, begin, name, nodes_sum = head
    size = units * UNIT_BYTES
    nodes = data[offset + UNIT_BYTES : offset + size]
    if kind == _ERASED:
        return FoundRecord(
            RecordState.PARTLY_ERASED if any(nodes) else RecordState.ERASED, offset, size, 0, 0, _NO_NAME
        )
    if len(nodes) == size - UNIT_BYTES and _sum(nodes) == nodes_sum:
        return FoundRecord(RecordState.VALID, offset, size, serial, begin, name, is_empty=units == 1)
    readable_bytes = UNIT_BYTES + len(nodes) + -len(nodes) % UNIT_BYTES  # the file may end within it
    return FoundRecord(RecordState.INVALID, offset, readable_bytes, serial, begin, name)


def _head(kind: bytes, size: int, serial: int, begin: int, name: bytes, nodes_sum: bytes) -> bytes:
    values = (kind, size // UNIT_BYTES, serial, begin, name, nodes_sum)
    return _HEAD.pack(*values, _sum(_HEAD.pack(*values, _NO_SUM)))


def _parse(data: Data, offset: int) -> tuple[bytes, int, int, int, bytes, bytes] | None:
    """Return kind, units, serial number, begin, name and checksum of the nodes; None unless the head is valid."""
    if len(data) < offset + UNIT_BYTES:
        return None
    *values, own_sum = _HEAD.unpack_from(data, offset)
    if values[0] not in (_COVER, _ERASED, _FILE) or own_sum != _sum(_HEAD.pack(*values, _NO_SUM)):
        return None
    kind, units, serial, begin, name, nodes_sum = values
    return kind, units, serial, begin, name, nodes_sum


def _sum(data: bytes) -> bytes:
    return blake2b(data, digest_size=_SUM_BYTES).digest()
