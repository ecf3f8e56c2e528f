"""Writes pages of messages: each message as a piece that can be cached, and pieces as a page.

A page is a ``GetMessagesResponse``. Each message is written once for all readers: concatenated pieces are a message in
protobuf, and a list in JSON with commas between.
"""

import base64
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING
from uuid import UUID

from conclave.wire import conclave_pb2
from conclave.wire.formats import Format
from conclave.wire.protobuf import varint

if TYPE_CHECKING:
    from conclave.store.resources.messages import EncodeMessage

_MESSAGE = conclave_pb2.StoredMessage


def _tag(field: int, *, has_length: bool = False) -> bytes:
    """Return the tag of a number field, or with ``has_length`` of a field of bytes or messages."""
    return varint(field << 3 | 2 * has_length)


_FIELD = _tag(conclave_pb2.GetMessagesResponse.MESSAGES_FIELD_NUMBER, has_length=True)
"""The tag before the length of a message."""

_NUMBER = _tag(_MESSAGE.SEQUENCE_NUM_FIELD_NUMBER)
_SENDER = _tag(_MESSAGE.SENDER_ID_FIELD_NUMBER, has_length=True) + varint(16)
_BODY = _tag(_MESSAGE.MLS_MESSAGE_FIELD_NUMBER, has_length=True)
_CREATED = _tag(_MESSAGE.CREATED_AT_FIELD_NUMBER)
_SELF_DESTRUCTS = _tag(_MESSAGE.SELF_DESTRUCT_SECONDS_FIELD_NUMBER)
_REDACTED = _tag(_MESSAGE.REDACTED_FIELD_NUMBER) + varint(1)
_EXPIRES = _tag(_MESSAGE.EXPIRES_AT_FIELD_NUMBER)

_BEGIN, _BETWEEN, _END = b'{"messages":[', b",", b"]}"


def message_writer(written_in: Format) -> "EncodeMessage":
    """Return the function that writes messages in a format."""
    return _in_protobuf if written_in is Format.PROTOBUF else _in_json


def join_messages(written_in: Format, pieces: Sequence[bytes]) -> bytes:
    """Return ``pieces`` as one piece."""
    return (b"" if written_in is Format.PROTOBUF else _BETWEEN).join(pieces)


def page_parts(written_in: Format, pieces: list[bytes]) -> list[bytes]:
    """Return the parts of the body of a page."""
    return pieces if written_in is Format.PROTOBUF else [_BEGIN, join_messages(written_in, pieces), _END]


def _in_protobuf(
    sequence_num: int,
    sender_id: bytes,
    body: bytes,
    created_at: int,
    expires_at: int,
    self_destruct_seconds: int = 0,
    *,
    redacted: bool = False,
) -> bytes:
    # The same bytes as SerializeToString, in a third of the time. Empty and zero fields are omitted.
    head = _NUMBER + varint(sequence_num) + _SENDER + sender_id
    if body:
        head += _BODY + varint(len(body))
    tail = _CREATED + varint(created_at) if created_at else b""
    if self_destruct_seconds:
        tail += _SELF_DESTRUCTS + varint(self_destruct_seconds)
    if redacted:
        tail += _REDACTED
    if expires_at:
        tail += _EXPIRES + varint(expires_at)
    return b"".join((_FIELD, varint(len(head) + len(body) + len(tail)), head, body, tail))


def _in_json(
    sequence_num: int,
    sender_id: bytes,
    body: bytes,
    created_at: int,
    expires_at: int,
    self_destruct_seconds: int = 0,
    *,
    redacted: bool = False,
) -> bytes:
    # Not by orjson, whose results keep a buffer of 4 KiB: cached pieces would take five times their size.
    return (
        f'{{"sequence_num":{sequence_num},"sender_id":"{_id_text(sender_id)}","mls_message":"'
        f'{base64.b64encode(body).decode()}","created_at":{created_at},"self_destruct_seconds":{self_destruct_seconds},'
        f'"redacted":{"true" if redacted else "false"},"expires_at":{expires_at}}}'
    ).encode()


@lru_cache(4096)
def _id_text(value: bytes) -> str:
    return str(UUID(bytes=value))
