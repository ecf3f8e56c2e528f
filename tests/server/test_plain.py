"""What is read as a plain request, aiohttp's own parser reads as the same request."""

import asyncio
import random
from collections.abc import Iterator

import pytest
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpRequestParser, HttpVersion11, RawRequestMessage
from aiohttp.http_exceptions import HttpProcessingError

from conclave.server.plain import LONGEST_HEAD, Cut, cut, fields_of
from tests.support import sample

MOST_BODY = 1000

FIELDS = [
    *(b"Host: x", b"Host:x", b"host: \xc3\xbc", b"Accept: application/json", b"ACCEPT: a/b, c/d;q=0"),
    *(b"Authorization: Bearer abc", b"Content-Type: application/json", b"User-Agent: x/1.0 (y; z)", b"Cookie: a=b"),
    *(b"Content-Length: 0", b"Content-Length: 3", b"content-length: 03", b"Content-Length: +3", b"Content-Length: 3,3"),
    *(b"Content-Length: 99999999999999999999999", b"Content-Length: 3 ", b"Content-Length:\t3", b"Content-Length: 3_0"),
    *(b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity", b"Transfer-Encoding : chunked", b"TE: trailers"),
    *(
        b"Connection: keep-alive",
        b"Connection: close",
        b"Connection: Upgrade",
        b"Connection: x, close",
        b"Upgrade: h2c",
    ),
    *(
        b"Proxy-Connection: close",
        b"Keep-Alive: timeout=5",
        b"Expect: 100-continue",
        b"Trailer: x",
        b"Content-Encoding: gzip",
    ),
    *(b"Sec-WebSocket-Key1: 1", b"X-Empty:", b"X-Space : 1", b"X-Fold: 1\r\n 2", b"X-Fold: 1\r\n\t2", b" X: leading"),
    *(
        b"X-Null: \x00",
        b"X-Bell: \x07",
        b"X-Tab: a\tb",
        b"X-High: \xff\xfe",
        b"X-Return: a\rb",
        b"X-Line: a\nb",
        b"X@Y: 1",
    ),
    *(b"X: 1", b"x: 2", b": 1", b"no colon", b"X-Long: " + bytes(b"x" * 7000), b"X-Longer: " + bytes(b"x" * 9000)),
]
LINES = [
    *(b"GET /api/v1/groups/0a-1/messages?after=1 HTTP/1.1", b"POST /api/v1/groups/0a-1/messages HTTP/1.1"),
    *(
        b"GET / HTTP/1.1",
        b"DELETE /a%20b?c=%00#d HTTP/1.1",
        b"PUT //x HTTP/1.1",
        b"PATCH /x HTTP/1.1",
        b"GET  / HTTP/1.1",
    ),
    *(
        b"GET / HTTP/1.0",
        b"get / HTTP/1.1",
        b"GET http://x/ HTTP/1.1",
        b"CONNECT x:1 HTTP/1.1",
        b"GET /\xc3\xbc HTTP/1.1",
    ),
    *(b"\r\nGET / HTTP/1.1", b"GET /[ HTTP/1.1", b"GET / HTTP/1.1 ", b"GET /?a b HTTP/1.1", b"OPTIONS * HTTP/1.1"),
]
ODD = (b"\r", b"\n", b"\r\n", b" ", b"\t", b":", b"\x00", b"\xff", b"0", b"A", b"\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n")
USUAL = b"GET /api/v1/groups/0a-1/messages?after=1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer abc\r\n\r\n"


def texts(dice: random.Random, count: int) -> Iterator[bytes]:
    """Requests of parts that are usual or not, most of them with some bytes put in, cut out or changed."""
    for _ in range(count):
        fields = dice.sample(FIELDS, dice.randrange(6))
        if dice.random() < 0.9:
            fields.insert(0, b"Host: x")
        body = dice.choice((b"", b"", b"abc", b"0\r\n\r\n", b"3\r\nabc\r\n0\r\n\r\n"))
        line = dice.choice(LINES[:3] if dice.random() < 0.8 else LINES)
        text = b"\r\n".join([line, *fields, b"", body])
        for _ in range(dice.choice((0, 0, 1, 2))):
            at = dice.randrange(len(text) + 1)
            text = text[:at] + dice.choice((b"", *ODD)) + text[at + dice.randrange(3) :]
        yield text


def read(text: bytes, most_body: int) -> tuple[Cut, dict[bytes, bytes]] | None:
    """Return the plain request that a text is, and its headers."""
    found = cut(text, most_body)
    fields = fields_of(found) if found else None
    return (found, fields) if found and fields is not None else None


async def parsed(text: bytes) -> tuple[RawRequestMessage, bytes] | None:
    """Return the one request that aiohttp reads in a text, and its body; None if it reads another number of them."""
    loop = asyncio.get_running_loop()
    parser = HttpRequestParser(BaseProtocol(loop), loop, 2**16, auto_decompress=False)
    try:
        messages, is_upgraded, rest = parser.feed_data(text)
    except HttpProcessingError:
        return None
    if len(messages) != 1 or is_upgraded or rest:
        return None
    [(message, body)] = messages
    return (message, body.read_nowait() if body.total_bytes else b"") if body.is_eof() else None


def agrees(read_fields: dict[bytes, bytes], message: RawRequestMessage) -> bool:
    """Tell whether aiohttp, too, has found a request that is plain, with the same headers."""
    is_plain = message.version == HttpVersion11 and not message.should_close and not message.upgrade
    fields = {name.lower(): value for name, value in message.raw_headers}
    same = {name: value.rstrip(b" \t") for name, value in read_fields.items()} == fields
    return is_plain and same and not message.chunked and not message.compression


async def test_what_is_read_as_plain_aiohttp_reads_alike() -> None:
    count = 0
    for seed in sample.some(range(200), 20, "plain"):
        for text in texts(random.Random(seed), 1000):
            plain = read(text, MOST_BODY)
            if plain is None:
                continue
            count += 1
            found = await parsed(text)
            assert found, text
            message, body = found
            request, fields = plain
            assert agrees(fields, message), text
            assert (message.method.encode(), body) == (request.method, request.body), text
            line = text.split(b"\r\n")[0].split(b" ")
            assert message.path.encode() == line[1], text
    assert count > 500, "enough of them were plain"


def test_what_is_usual_is_plain() -> None:
    plain = read(USUAL, MOST_BODY)
    assert plain
    request, fields = plain
    assert (request.method, request.group, request.query, request.body) == (b"GET", b"0a-1", b"after=1", b"")
    assert fields == {b"host": b"x", b"authorization": b"Bearer abc"}


@pytest.mark.parametrize("cut", range(len(USUAL)))
def test_a_part_of_a_request_is_none(cut: int) -> None:
    assert read(USUAL[:cut], MOST_BODY) is None


def test_what_is_too_long_is_not_plain() -> None:
    filled = USUAL[:-2] + b"X: %b\r\n\r\n"
    room = LONGEST_HEAD - len(filled % b"")
    assert read(filled % (b"x" * room), MOST_BODY)
    assert read(filled % (b"x" * (room + 1)), MOST_BODY) is None
    sent = b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b"
    assert read(sent % (MOST_BODY, bytes(MOST_BODY)), MOST_BODY)
    assert read(sent % (MOST_BODY + 1, bytes(MOST_BODY + 1)), MOST_BODY) is None


@pytest.mark.parametrize("behind", [USUAL, b"\r\n", b"x"])
def test_what_has_something_behind_it_is_not_plain(behind: bytes) -> None:
    assert read(USUAL + behind, MOST_BODY) is None
