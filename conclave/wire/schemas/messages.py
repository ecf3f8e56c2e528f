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
"""With this value of ``confirm`` a page counts as fetched only once the client's next fetch says so."""

_MLS_MESSAGE = {"mls_message"}
_NUMBER = re.compile(r"[0-9]{1,18}", re.ASCII)
_DEFAULT_LIMIT = 100
_ODD = frozenset("%+;#")
"""Characters of a query that stand for others, or might end it: another name may be ``after`` by them."""


@dataclass(frozen=True)
class SendMessage:
    """What to send. ``self_destruct_seconds``: how long each reader may see it once it was read; 0: for ever.

    ``send_id``: its sender's own name for it, by which it is known if it is sent again; b"": it has none.
    """

    mls_message: bytes
    self_destruct_seconds: int
    send_id: bytes


def _quick_send(written_in: Format, body: bytes) -> SendMessage | None:
    """Return what an ordinary body makes: in JSON, one with nothing but the message."""
    try:
        if written_in is Format.PROTOBUF:
            parsed = conclave_pb2.SendMessageRequest.FromString(body)
            message, seconds, send_id = parsed.mls_message, parsed.self_destruct_seconds, parsed.send_id
            is_right = message and seconds <= MAX_SELF_DESTRUCT_SECONDS and len(send_id) in (0, ID_BYTES)
            return SendMessage(message, seconds, send_id) if is_right else None
        if formats.count_values(body) != 1:  # more would be more values, which may be very many
            return None
        values = orjson.loads(body)
        if type(values) is not dict or values.keys() != _MLS_MESSAGE or type(values["mls_message"]) is not str:
            return None
        message = base64.b64decode(values["mls_message"].encode("ascii"), validate=True)
    except (DecodeError, ValueError):  # the long way says what is wrong
        return None
    return SendMessage(message, 0, b"") if message else None


class SendMessageRequest(RequestSchema):
    """An opaque MLS message. ``self_destruct_seconds``: how long each reader may see it once it was read.

    ``send_id``: an id that the client makes, so that sending again after a lost answer does not store it twice.
    """

    result_class = SendMessage

    drop_zero = ("self_destruct_seconds",)

    mls_message = required(Bytes)
    # By a function, so that the OpenAPI document does not show a default that no client may send.
    self_destruct_seconds = StrictInteger(load_default=lambda: 0, validate=SELF_DESTRUCT_RULE)
    send_id = Identifier(load_default=b"")

    quick = staticmethod(_quick_send)


def write_number(written_in: Format, sequence_num: int) -> bytes:
    """Write a SendMessageResponse, as its schema would have it written."""
    if written_in is Format.PROTOBUF:
        return conclave_pb2.SendMessageResponse(sequence_num=sequence_num).SerializeToString()
    return b'{"sequence_num":%d}' % sequence_num


@dataclass(frozen=True)
class GetMessages:
    """Which messages to fetch. ``include_redacted``: also those of which the reader sees only that they were there.

    ``confirm``: NEXT if they count as fetched only once the next fetch says so; "": as the operator has set.
    """

    after: int
    limit: int
    include_redacted: bool
    confirm: str

    @property
    def next_confirms(self) -> bool:
        """Whether they count as fetched only once the next fetch says so, whatever the operator has set."""
        return self.confirm == NEXT


@lru_cache(4096)
def _quick_get(query: str) -> GetMessages | None:
    """Return what a query makes in which nothing is wrong, nor written in an odd way: names in any order, or none."""
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
    """Which messages to fetch: the first ``limit`` of those numbered above ``after``.

    Without ``include_redacted`` those are left out that the caller may see only redacted. With ``confirm=next`` they
    count as fetched only once the ``after`` of the caller's next fetch says so.
    """

    result_class = GetMessages

    after = QueryInteger(least=0, most=MAX_SEQUENCE_NUM, default=0)
    limit = QueryInteger(least=1, most=MAX_MESSAGES, default=_DEFAULT_LIMIT)
    include_redacted = QueryBoolean(load_default=False)
    confirm = Text(load_default="", validate=validate.OneOf([NEXT], error='must be "next"'))

    quick = staticmethod(_quick_get)


@dataclass(frozen=True)
class TakeBack:
    """How to take a message back. ``dry_run``: only say whether it can be."""

    dry_run: bool


class TakeBackQuery(QuerySchema):
    """How to take a message back: with ``dry_run`` nothing changes, and the answer is what it would be."""

    result_class = TakeBack

    dry_run = QueryBoolean(load_default=False)


@dataclass(frozen=True)
class ReadReceipt:
    """What was read: everything up to this number, inclusive."""

    sequence_num: int


class ReadReceiptRequest(RequestSchema):
    """What the caller has read: everything up to this number, as far as the group has it."""

    result_class = ReadReceipt

    sequence_num = required(StrictInteger, validate.Range(min=1, error="must be at least 1"))
