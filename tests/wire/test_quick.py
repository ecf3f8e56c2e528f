"""The quick ways of the busiest messages agree with the schemas."""

import base64
from typing import Any

import orjson
import pytest
from aiohttp import web
from hypothesis import example, given, settings, strategies as st
from marshmallow import ValidationError
from yarl import URL

from conclave.errors import BadRequestError
from conclave.wire import conclave_pb2, exchange, formats, page_writer, protobuf
from conclave.wire.formats import Format
from conclave.wire.results import FetchedMessages, MessageSent
from conclave.wire.schemas.base import schema_instance, schema_of
from conclave.wire.schemas.messages import (
    GetMessages,
    GetMessagesQuery,
    SendMessage,
    SendMessageRequest,
    write_number,
)

many = settings(max_examples=400, derandomize=True, database=None)


def slowly(written_in: Format, body: bytes) -> SendMessage | None:
    """What the schema makes of a body; None for one that it refuses."""
    try:
        if written_in is Format.PROTOBUF:
            schema = SendMessageRequest
            values = protobuf.parse("SendMessageRequest", body, schema.keep_empty, schema.drop_zero)
        else:
            values = formats.parse(body) if body else {}
        made: SendMessage = schema_instance(SendMessageRequest).load(values)
    except (BadRequestError, ValidationError):
        return None
    return made


def expect_agreement(written_in: Format, body: bytes) -> bool:
    """Whatever the quick way takes, the schema reads in the same way. Tell whether it was taken."""
    quick = SendMessageRequest.quick(written_in, body)
    if quick is not None:
        assert quick == slowly(written_in, body)
    return quick is not None


@pytest.mark.parametrize(("seconds", "is_right"), [(0, False), (None, True), (1, True), (-1, False)])
def test_a_timer_of_no_time_is_refused_in_json(seconds: int | None, *, is_right: bool) -> None:
    body = orjson.dumps({"mls_message": "QQ==", "self_destruct_seconds": seconds})
    assert (slowly(Format.JSON, body) is not None) == is_right
    expect_agreement(Format.JSON, body)


@pytest.mark.parametrize("send_id", [b"", bytes(16)])
def test_a_timer_of_no_time_is_none_in_protobuf_even_if_its_zero_is_written(send_id: bytes) -> None:
    body = conclave_pb2.SendMessageRequest(mls_message=b"A", send_id=send_id).SerializeToString()
    expected = SendMessage(b"A", 0, send_id)
    assert slowly(Format.PROTOBUF, body) == slowly(Format.PROTOBUF, body + b"\xa0\x06\x00") == expected
    assert expect_agreement(Format.PROTOBUF, body + b"\xa0\x06\x00")


TEXTS = st.binary(max_size=40).map(lambda body: base64.b64encode(body).decode())
DAMAGED = st.text('AQgw=+/-_ \n\\"é,[{', max_size=12) | st.tuples(TEXTS, st.text("=A \n", max_size=3)).map("".join)
VALUES = TEXTS | DAMAGED | st.none() | st.integers(-(2**63), 2**63 - 1) | st.booleans() | st.lists(TEXTS, max_size=2)
BODIES = st.dictionaries(st.sampled_from(["mls_message", "mls_message ", "send_id", "x", ""]), VALUES, max_size=3)


@many
@given(
    BODIES.map(orjson.dumps)
    | st.binary(max_size=60)
    | st.text('{}[]":,mls_eagQ= \n\\u0041', max_size=40).map(str.encode)
)
@example(b'{"mls_message":"QQ==","mls_message":"Qg=="}')
@example(b'{"mls_message":"QQ=="}{')
@example(b'{"mls_message":"QR=="}')
@example(b'{"mls_message":"QQ==QQ=="}')
@example(b'{"mls_message":"QQ"}')
@example(b'{"mls_message":"=QQ="}')
@example(b'{"mls_messag\\u0065":"\\u0051Q=="}')
@example(b'\xef\xbb\xbf{"mls_message":"QQ=="}')
def test_quick_json_is_the_schemas(body: bytes) -> None:
    expect_agreement(Format.JSON, body)


def _sent(body: bytes) -> bytes:
    written: bytes = conclave_pb2.SendMessageRequest(mls_message=body).SerializeToString()
    return written


FIELDS = st.lists(
    st.tuples(st.integers(1, 4), st.sampled_from([0, 1, 2, 3, 5]), st.binary(max_size=20)).map(
        lambda field: bytes([field[0] << 3 | field[1], len(field[2])]) + field[2]
    ),
    max_size=4,
).map(b"".join)


@many
@given(FIELDS | st.binary(max_size=60) | st.binary(max_size=60).map(_sent))
@example(b"")
@example(b"\x0a\x00")
@example(b"\x0a\x01A\x0a\x01B")
@example(b"\x0a\x01A\x12\x01B")
@example(b"\x0a\x01A\x0a\x00")
@example(b"\x0a\x01A\xaa\x06\x10" + bytes(16))
@example(b"\x0a\x01A\xaa\x06\x00")
@example(b"\x0a\x01A\xaa\x06\x03abc")
def test_quick_protobuf_is_the_schemas(body: bytes) -> None:
    expect_agreement(Format.PROTOBUF, body)


@many
@given(st.binary(min_size=1, max_size=500))
def test_ordinary_bodies_are_read_quickly(body: bytes) -> None:
    assert expect_agreement(Format.PROTOBUF, _sent(body))
    assert expect_agreement(Format.JSON, orjson.dumps({"mls_message": base64.b64encode(body).decode()}))


NUMBERS = st.integers(-3, 10**22).map(str) | st.integers(0, 600).map(str) | st.text("0159+-_ %.٣", max_size=4)
NAMES = ["after", "limit", "include_redacted", "confirm"]
VALUES_OF_QUERIES = NUMBERS | st.sampled_from(
    ["true", "false", "True", "1", "", "true%20", "next", "Next", "response", "next%20"]
)
PAIRS = st.tuples(st.sampled_from([*NAMES, "aft%65r", "x", ""]), VALUES_OF_QUERIES).map("=".join)
QUERIES = st.lists(PAIRS, max_size=5).map("&".join) | st.text("afterlimncudox_=&;0159%+#", max_size=40)


@many
@given(QUERIES)
@example("")
@example("after=000&limit=500")
@example("after=999999999999999999&limit=501")
@example("after=1&limit=9999")
@example("after=1&limit=0")
@example("after=1&after=2")
@example("after&limit=3")
@example("after=1&&limit=3")
@example("after=1;limit=3")
@example("include_redacted=true&limit=0007")
@example("after=1&confirm=next")
@example("confirm=next&after=1&confirm=response")
@example("confirm=response")
@example("confirm=")
@example("confirm")
def test_quick_queries_are_the_schemas(text: str) -> None:
    url = URL(f"/messages?{text}", encoded=True)
    quick = GetMessagesQuery.quick(url.raw_query_string)
    if quick is None:
        return
    assert quick == schema_instance(GetMessagesQuery).load(
        {name: url.query[name] for name in NAMES if name in url.query}
    )


USUAL = {
    "after": st.integers(0, 10**18 - 1),
    "limit": st.integers(1, 9999),
    "include_redacted": st.booleans(),
    "confirm": st.just("next"),
}


@many
@given(st.fixed_dictionaries({}, optional=USUAL).flatmap(lambda values: st.permutations(list(values.items()))))
def test_every_usual_query_is_read_quickly(values: list[tuple[str, Any]]) -> None:
    query = "&".join(f"{name}={value}".lower() for name, value in values)
    asked = {"after": 0, "limit": 100, "include_redacted": False, "confirm": "", **dict(values)}
    expected = GetMessages(**{**asked, "limit": min(asked["limit"], 500)})
    assert GetMessagesQuery.quick(query) == expected


@many
@given(st.integers(1, 2**63 - 1), st.sampled_from(list(Format)))
def test_the_number_of_a_message_is_written_as_its_schema_would(number: int, written_in: Format) -> None:
    values = schema_of(MessageSent).dump({"sequence_num": number})
    assert write_number(written_in, number) == exchange.write(written_in, "SendMessageResponse", values)


MESSAGES = st.lists(
    st.tuples(
        st.integers(0, 2**63 - 1) | st.integers(0, 300),
        st.binary(min_size=16, max_size=16),
        st.binary(max_size=300),
        st.integers(0, 2**40) | st.just(0),
        st.integers(0, 2**54) | st.just(0),
        st.integers(1, 31_536_000) | st.just(0),
        st.booleans(),
    ),
    max_size=6,
)


class _Asked(dict[Any, Any]):
    """As much of a request as a page needs."""

    version, keep_alive, method = None, False, "GET"


@many
@given(MESSAGES, st.sampled_from(list(Format)))
def test_a_page_of_pieces_is_what_the_schema_makes(
    messages: list[tuple[int, bytes, bytes, int, int, int, bool]], written_in: Format
) -> None:
    names = (
        *("sequence_num", "sender_id", "mls_message", "created_at", "expires_at"),
        *("self_destruct_seconds", "redacted"),
    )
    values = [dict(zip(names, each, strict=True)) for each in messages]
    dumped = schema_of(FetchedMessages).dump({"messages": values})
    told = exchange.write(written_in, "GetMessagesResponse", dumped)
    found = _body(exchange.reply_page(_Asked({exchange.FORMAT: written_in}), _pieces(written_in, messages)))  # type: ignore[arg-type]  # it needs no more
    if written_in is Format.JSON:
        assert found == told
    else:
        assert conclave_pb2.GetMessagesResponse.FromString(found) == conclave_pb2.GetMessagesResponse.FromString(told)


def _pieces(written_in: Format, messages: list[tuple[int, bytes, bytes, int, int, int, bool]]) -> list[bytes]:
    write = page_writer.message_writer(written_in)
    return [write(*each[:6], redacted=each[6]) for each in messages]


def _body(response: web.StreamResponse) -> bytes:
    assert isinstance(response, web.Response)
    assert isinstance(response.body, bytes)
    return response.body
