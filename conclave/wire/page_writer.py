"""Writes pages of messages: each message as a piece that can be kept, and pieces as a page.

A page is what ``GetMessagesResponse`` would be written as. Its messages are written one by one, so that each is written
once for all readers: pieces that follow each other are a message in protobuf, and a list in JSON with commas between.
"""

import base64
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING
from uuid import UUID

from conclave.wire import conclave_pb2
from conclave.wire.negotiate import Format
from conclave.wire.protobuf import varint

if TYPE_CHECKING:
    from conclave.store.resources.messages import WriteMessage

_FIELD = bytes([conclave_pb2.GetMessagesResponse.MESSAGES_FIELD_NUMBER << 3 | 2])
"""What stands before the length of a message in protobuf: its field's number, and that a length follows."""

_BEGIN, _BETWEEN, _END = b'{"messages":[', b",", b"]}"


def writer(written_in: Format) -> "WriteMessage":
    """Return what writes messages in a format."""
    return _in_protobuf if written_in is Format.PROTOBUF else _in_json


def join(written_in: Format, pieces: Sequence[bytes]) -> bytes:
    """Return ``pieces`` as one."""
    return (b"" if written_in is Format.PROTOBUF else _BETWEEN).join(pieces)


def whole(written_in: Format, pieces: list[bytes]) -> list[bytes]:
    """Return the parts of a page."""
    return pieces if written_in is Format.PROTOBUF else [_BEGIN, join(written_in, pieces), _END]


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
    message = conclave_pb2.StoredMessage(
        sequence_num=sequence_num, sender_id=sender_id, mls_message=body, created_at=created_at, expires_at=expires_at
    )
    if self_destruct_seconds or redacted:
        message.self_destruct_seconds, message.redacted = self_destruct_seconds, redacted
    text = message.SerializeToString()
    return _FIELD + varint(len(text)) + text


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
    # orjson leaves most of 4 KiB unused behind each of them: so what is remembered took five times its size.
    return (
        f'{{"sequence_num":{sequence_num},"sender_id":"{_id_text(sender_id)}","mls_message":"'
        f'{base64.b64encode(body).decode()}","created_at":{created_at},"self_destruct_seconds":{self_destruct_seconds},'
        f'"redacted":{"true" if redacted else "false"},"expires_at":{expires_at}}}'
    ).encode()


@lru_cache(4096)
def _id_text(value: bytes) -> str:
    return str(UUID(bytes=value))
