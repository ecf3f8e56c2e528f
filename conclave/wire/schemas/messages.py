"""Sending and fetching messages."""

from marshmallow import fields

from conclave.wire.fields import Bytes, Identifier, required
from conclave.wire.schemas.base import RequestSchema, ResponseSchema


class SendMessageRequest(RequestSchema):
    """An opaque MLS message."""

    mls_message = required(Bytes)


class SendMessageResponse(ResponseSchema):
    """The number that the message got."""

    sequence_num = fields.Integer()


class StoredMessage(ResponseSchema):
    """A message; ``created_at`` in Unix seconds."""

    sequence_num = fields.Integer()
    sender_id = Identifier()
    mls_message = Bytes()
    created_at = fields.Integer()


class GetMessagesResponse(ResponseSchema):
    """A page of messages, ascending."""

    messages = fields.List(fields.Nested(StoredMessage))
