"""Sending and fetching messages."""

import base64
import re
from dataclasses import dataclass

import orjson
from google.protobuf.message import DecodeError
from marshmallow import fields

from conclave.wire import conclave_pb2, json_text
from conclave.wire.fields import Bytes, Identifier, QueryInteger, required
from conclave.wire.negotiate import Format
from conclave.wire.schemas.base import QuerySchema, RequestSchema, ResponseSchema

MAX_SEQUENCE_NUM = 2**63 - 1
MOST_MESSAGES = 500

_MLS_MESSAGE = {"mls_message"}
_AFTER_LIMIT = re.compile(r"after=([0-9]{1,18})&limit=([1-9][0-9]{0,3})", re.ASCII)


@dataclass(frozen=True)
class SendMessage:
    """What to send."""

    mls_message: bytes


def _quick_send(written_in: Format, body: bytes) -> SendMessage | None:
    """Return what a body with the one field makes."""
    try:
        if written_in is Format.PROTOBUF:
            message = conclave_pb2.SendMessageRequest.FromString(body).mls_message
        else:
            if json_text.marks(body) != 1:  # more would be more values, which may be very many
                return None
            values = orjson.loads(body)
            if type(values) is not dict or values.keys() != _MLS_MESSAGE or type(values["mls_message"]) is not str:
                return None
            message = base64.b64decode(values["mls_message"].encode("ascii"), validate=True)
    except (DecodeError, ValueError):  # the long way says what is wrong
        return None
    return SendMessage(message) if message else None


class SendMessageRequest(RequestSchema):
    """An opaque MLS message."""

    makes = SendMessage

    mls_message = required(Bytes)

    quick = staticmethod(_quick_send)


class SendMessageResponse(ResponseSchema):
    """The number that the message got."""

    sequence_num = fields.Integer()


def write_number(written_in: Format, sequence_num: int) -> bytes:
    """Write a SendMessageResponse, as its schema would have it written."""
    if written_in is Format.PROTOBUF:
        return conclave_pb2.SendMessageResponse(sequence_num=sequence_num).SerializeToString()
    return b'{"sequence_num":%d}' % sequence_num


@dataclass(frozen=True)
class GetMessages:
    """Which messages to fetch."""

    after: int
    limit: int


def _quick_get(query: str) -> GetMessages | None:
    """Return what a query makes that has ``after`` and ``limit``, in this order."""
    found = _AFTER_LIMIT.fullmatch(query)
    return GetMessages(int(found[1]), min(int(found[2]), MOST_MESSAGES)) if found else None


class GetMessagesQuery(QuerySchema):
    """Which messages to fetch: the first ``limit`` of those numbered above ``after``."""

    makes = GetMessages

    after = QueryInteger(least=0, most=MAX_SEQUENCE_NUM, default=0)
    limit = QueryInteger(least=1, most=MOST_MESSAGES, default=100)

    quick = staticmethod(_quick_get)


class StoredMessage(ResponseSchema):
    """A message; times in Unix seconds. ``expires_at``: the first second at which it is not served; 0 for none."""

    sequence_num = fields.Integer()
    sender_id = Identifier()
    mls_message = Bytes()
    created_at = fields.Integer()
    expires_at = fields.Integer()


class GetMessagesResponse(ResponseSchema):
    """A page of messages, ascending."""

    messages = fields.List(fields.Nested(StoredMessage))
