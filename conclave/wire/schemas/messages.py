"""Sending and fetching messages."""

from dataclasses import dataclass

from marshmallow import fields

from conclave.wire.fields import Bytes, Identifier, QueryInteger, required
from conclave.wire.schemas.base import QuerySchema, RequestSchema, ResponseSchema

MAX_SEQUENCE_NUM = 2**63 - 1


@dataclass(frozen=True)
class SendMessage:
    """What to send."""

    mls_message: bytes


class SendMessageRequest(RequestSchema):
    """An opaque MLS message."""

    makes = SendMessage

    mls_message = required(Bytes)


class SendMessageResponse(ResponseSchema):
    """The number that the message got."""

    sequence_num = fields.Integer()


@dataclass(frozen=True)
class GetMessages:
    """Which messages to fetch."""

    after: int
    limit: int


class GetMessagesQuery(QuerySchema):
    """Which messages: those numbered above ``after``, the first ``limit`` of them."""

    makes = GetMessages

    after = QueryInteger(least=0, most=MAX_SEQUENCE_NUM, default=0)
    limit = QueryInteger(least=1, most=500, default=100)


class StoredMessage(ResponseSchema):
    """A message; ``created_at`` in Unix seconds."""

    sequence_num = fields.Integer()
    sender_id = Identifier()
    mls_message = Bytes()
    created_at = fields.Integer()


class GetMessagesResponse(ResponseSchema):
    """A page of messages, ascending."""

    messages = fields.List(fields.Nested(StoredMessage))
