"""Sending and fetching messages."""

import base64
import re
from dataclasses import dataclass
from functools import lru_cache

import orjson
from google.protobuf.message import DecodeError
from marshmallow import validate

from conclave.strict_fields import StrictInteger, Text
from conclave.wire import conclave_pb2, formats
from conclave.wire.fields import (
    ID_BYTES,
    MAX_SELF_DESTRUCT_SECONDS,
    SELF_DESTRUCT_RULE,
    Bytes,
    Identifier,
    QueryBoolean,
    QueryInteger,
    required,
)
from conclave.wire.formats import Format
from conclave.wire.schemas.base import QuerySchema, RequestSchema

MAX_SEQUENCE_NUM = 2**63 - 1
MAX_MESSAGES = 500

NEXT = "next"
"""The value of ``confirm`` with which a page counts as fetched only by the client's next fetch."""

_MLS_MESSAGE = {"mls_message"}
_NUMBER = re.compile(r"[0-9]{1,18}", re.ASCII)
_DEFAULT_LIMIT = 100
_ODD = frozenset("%+;#")
"""Characters with a special meaning in query strings, which need full parsing."""


@dataclass(frozen=True)
class SendMessage:
    """A message to send. ``self_destruct_seconds``: how long each reader sees it after reading; 0: for ever.

    ``send_id``: the client's id of the send, by which the server recognises a retry; b"" if absent.
    """

    mls_message: bytes
    self_destruct_seconds: int
    send_id: bytes


def _quick_send(written_in: Format, body: bytes) -> SendMessage | None:
    """Parse a simple body: in JSON, one with only the message. None for any other."""
    try:
        if written_in is Format.PROTOBUF:
            request = conclave_pb2.SendMessageRequest.FromString(body)
            message, seconds, send_id = request.mls_message, request.self_destruct_seconds, request.send_id
            is_valid = message and seconds <= MAX_SELF_DESTRUCT_SECONDS and len(send_id) in (0, ID_BYTES)
            return SendMessage(message, seconds, send_id) if is_valid else None
        if formats.count_values(body) != 1:  # more values
            return None
        values = orjson.loads(body)
        if type(values) is not dict or values.keys() != _MLS_MESSAGE or type(values["mls_message"]) is not str:
            return None
        message = base64.b64decode(values["mls_message"].encode("ascii"), validate=True)
    except (DecodeError, ValueError):  # the schema reports the error
        return None
    return SendMessage(message, 0, b"") if message else None


class SendMessageRequest(RequestSchema):
    """An opaque MLS message. ``self_destruct_seconds``: how long each reader sees it after reading.

    ``send_id``: an id that the client generates, so that a retry after a lost response does not store it twice.
    """

    result_class = SendMessage

    drop_zero = ("self_destruct_seconds",)

    mls_message = required(Bytes)
    # A function, so that the OpenAPI document does not show this default, which is not a valid value.
    self_destruct_seconds = StrictInteger(load_default=lambda: 0, validate=SELF_DESTRUCT_RULE)
    send_id = Identifier(load_default=b"")

    quick = staticmethod(_quick_send)


def write_number(written_in: Format, sequence_num: int) -> bytes:
    """Write a SendMessageResponse, with the same bytes as its schema."""
    if written_in is Format.PROTOBUF:
        return conclave_pb2.SendMessageResponse(sequence_num=sequence_num).SerializeToString()
    return b'{"sequence_num":%d}' % sequence_num


@dataclass(frozen=True)
class GetMessages:
    """The messages to fetch. ``include_redacted``: include redacted ones, without their bodies.

    ``confirm``: NEXT if they count as fetched only by the next fetch; "": the operator's setting applies.
    """

    after: int
    limit: int
    include_redacted: bool
    confirm: str

    @property
    def next_confirms(self) -> bool:
        """Whether they count as fetched only by the next fetch, whatever the operator has set."""
        return self.confirm == NEXT


@lru_cache(4096)
def _quick_get(query: str) -> GetMessages | None:
    """Parse a simple, valid query string. None for any other."""
    values: dict[str, str] = {}
    for each in query.split("&"):
        name, _, value = each.partition("=")
        values.setdefault(name, value)
    after, limit = values.get("after", "0"), values.get("limit", str(_DEFAULT_LIMIT))
    redacted = values.get("include_redacted", "false")
    if not _NUMBER.fullmatch(after) or not _NUMBER.fullmatch(limit) or redacted not in ("true", "false"):
        return None
    if _ODD.intersection(query) or int(limit) < 1 or values.get("confirm", NEXT) != NEXT:
        return None
    confirm = NEXT if "confirm" in values else ""
    return GetMessages(int(after), min(int(limit), MAX_MESSAGES), include_redacted=redacted == "true", confirm=confirm)


class GetMessagesQuery(QuerySchema):
    """The messages to fetch: the first ``limit`` with numbers above ``after``.

    Without ``include_redacted`` redacted messages are omitted. With ``confirm=next`` they count as fetched only by the
    ``after`` of the caller's next fetch.
    """

    result_class = GetMessages

    after = QueryInteger(least=0, most=MAX_SEQUENCE_NUM, default=0)
    limit = QueryInteger(least=1, most=MAX_MESSAGES, default=_DEFAULT_LIMIT)
    include_redacted = QueryBoolean(load_default=False)
    confirm = Text(load_default="", validate=validate.OneOf([NEXT], error='must be "next"'))

    quick = staticmethod(_quick_get)


@dataclass(frozen=True)
class TakeBack:
    """How to take a message back. ``dry_run``: only check whether it is possible."""

    dry_run: bool


class TakeBackQuery(QuerySchema):
    """How to take a message back: with ``dry_run`` nothing changes, and the response is the same."""

    result_class = TakeBack

    dry_run = QueryBoolean(load_default=False)


@dataclass(frozen=True)
class ReadReceipt:
    """Messages up to this number, inclusive, were read."""

    sequence_num: int


class ReadReceiptRequest(RequestSchema):
    """The caller has read all messages up to this number, inclusive."""

    result_class = ReadReceipt

    sequence_num = required(StrictInteger, validate.Range(min=1, error="must be at least 1"))
