"""Records of the key file: the cover of one block each, with checksums, in units of 64 bytes. Pure.

A unit of 64 bytes never lies in two sectors of a disk, so that the head of a record is written whole or not at all.
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
"""A record has some times 64 bytes: its head, and the nodes."""

LEAST_BYTES = 2 * UNIT_BYTES
"""A record of one node, as each new block has, has 128 bytes."""

ID_BYTES = 16
"""Groups, and the keys of a database, are named by 16 bytes."""

Data = bytes | mmap
"""What is read from a key file."""

_LIVE, _DEAD, _FILE = b"key+", b"key-", b"keys"
"""What a head is of: a cover, a record that was overwritten, the file."""

_HEAD = struct.Struct("<4sIQQ24s8s8s")
"""Kind, units of the record, serial number, begin, name, sum of what follows the head, sum of the head."""

_NODE = struct.Struct("<I32s")
"""Position, secret."""

_FILLED = re.compile(rb"[^\0]")
_SUM_BYTES = 8
_NO_NAME, _NO_SUM = bytes(24), bytes(_SUM_BYTES)


class RecordState(Enum):
    """What was found at a place of the file."""

    SOUND = auto()
    DEAD = auto()
    """It was overwritten as a whole."""
    HALF_DEAD = auto()
    """Its head was overwritten, and its nodes not all."""
    UNSOUND = auto()
    """It is not as it was written, or not written as a whole."""


class FoundRecord(NamedTuple):
    """What was found at a place of the file.

    ``size``: bytes, with the head. ``serial``: the number of the change that wrote it, greater than those before; 0 if
    that is not known. ``begin``: where the records of that change began. ``name``: see ``name``; zeros if that is not
    known. ``is_empty``: the block is gone.
    """

    state: RecordState
    offset: int
    size: int
    serial: int
    begin: int
    name: bytes
    is_empty: bool = False


def name(group_id: bytes, block: int) -> bytes:
    """Return the name of a block of a group: 24 bytes."""
    return group_id + block.to_bytes(8, "big")


def parts(named: bytes) -> tuple[bytes, int]:
    """Return the id of the group and the block that a name is of."""
    return named[:ID_BYTES], int.from_bytes(named[ID_BYTES:], "big")


def encode(named: bytes, serial: int, begin: int, cover: Cover) -> bytes:
    """Return the record of a cover. One without nodes says that the block is gone. ``begin``: see Found."""
    nodes = b"".join(_NODE.pack(*node) for node in cover)
    nodes += bytes(-len(nodes) % UNIT_BYTES)
    return _head(_LIVE, UNIT_BYTES + len(nodes), serial, begin, named, _sum(nodes)) + nodes


def decode(record: bytes, named: bytes) -> Cover | None:
    """Return the cover of a record; None unless it is a sound one of that name. More bytes may follow it."""
    head = _parse(record, 0)
    if head is None or head[0] != _LIVE or head[4] != named:
        return None
    nodes = record[UNIT_BYTES : head[1] * UNIT_BYTES]
    if len(nodes) != (head[1] - 1) * UNIT_BYTES or _sum(nodes) != head[5]:
        return None
    rows = _NODE.iter_unpack(nodes[: len(nodes) - len(nodes) % _NODE.size])
    return tuple(Node(position, secret) for position, secret in rows if position)


def dead(size: int) -> bytes:
    """Return what a record of ``size`` bytes is overwritten with."""
    return _head(_DEAD, size, 0, 0, _NO_NAME, _NO_SUM) + bytes(size - UNIT_BYTES)


def file_head(serial: int, keys_id: bytes) -> bytes:
    """Return the first unit of a key file. ``serial``: greater than those of the records with which it is begun.

    ``keys_id``: 16 bytes that name the keys of one database.
    """
    return _head(_FILE, UNIT_BYTES, serial, 0, name(keys_id, 0), _NO_SUM)


def of_file(data: bytes) -> tuple[int, bytes] | None:
    """Return serial number and id in the first unit of a key file; None if it is none."""
    head = _parse(data, 0)
    return (head[2], parts(head[4])[0]) if head and head[0] == _FILE else None


def walk(data: Data, offset: int) -> Iterator[FoundRecord]:
    """Yield what lies in a key file from ``offset`` on, in its order. Units of zeros are passed over."""
    while filled := _FILLED.search(data, offset):
        offset = filled.start() // UNIT_BYTES * UNIT_BYTES
        found = _look(data, offset)
        yield found
        offset += found.size


def _look(data: Data, offset: int) -> FoundRecord:
    head = _parse(data, offset)
    if head is None or head[0] == _FILE or not head[1]:
        return FoundRecord(RecordState.UNSOUND, offset, UNIT_BYTES, 0, 0, _NO_NAME)
    kind, units, serial, begin, named, nodes_sum = head
    size = units * UNIT_BYTES
    nodes = data[offset + UNIT_BYTES : offset + size]
    if kind == _DEAD:
        return FoundRecord(RecordState.HALF_DEAD if any(nodes) else RecordState.DEAD, offset, size, 0, 0, _NO_NAME)
    if len(nodes) == size - UNIT_BYTES and _sum(nodes) == nodes_sum:
        return FoundRecord(RecordState.SOUND, offset, size, serial, begin, named, is_empty=units == 1)
    written = UNIT_BYTES + len(nodes) + -len(nodes) % UNIT_BYTES  # the file may end within it
    return FoundRecord(RecordState.UNSOUND, offset, written, serial, begin, named)


def _head(kind: bytes, size: int, serial: int, begin: int, named: bytes, nodes_sum: bytes) -> bytes:
    values = (kind, size // UNIT_BYTES, serial, begin, named, nodes_sum)
    return _HEAD.pack(*values, _sum(_HEAD.pack(*values, _NO_SUM)))


def _parse(data: Data, offset: int) -> tuple[bytes, int, int, int, bytes, bytes] | None:
    """Return kind, units, serial number, begin, name and sum of the nodes from a sound head; None if there is none."""
    if len(data) < offset + UNIT_BYTES:
        return None
    *values, own_sum = _HEAD.unpack_from(data, offset)
    if values[0] not in (_LIVE, _DEAD, _FILE) or own_sum != _sum(_HEAD.pack(*values, _NO_SUM)):
        return None
    kind, units, serial, begin, named, nodes_sum = values
    return kind, units, serial, begin, named, nodes_sum


def _sum(data: bytes) -> bytes:
    return blake2b(data, digest_size=_SUM_BYTES).digest()
