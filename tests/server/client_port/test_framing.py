"""Where requests end is found out as aiohttp's own parser finds it."""

import asyncio
import random
from collections.abc import Iterator

import pytest
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpRequestParser, HttpVersion11, RawRequestMessage
from aiohttp.http_exceptions import HttpProcessingError

from conclave.server.client_port import framing
from conclave.server.client_port.framing import (
    END,
    MAX_HEAD_BYTES,
    MAX_PLAIN_BYTES,
    MalformedRequestError,
    RequestScanner,
    is_plain,
    measure,
    messages_line,
    read_head,
)
from tests.support import sample

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
STRICTER = ("Empty Transfer-Encoding", "a transfer coding other than chunked")
"""What is refused here though aiohttp's llhttp, which is another version, takes it. No client means anything by it."""
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


async def refuses(text: bytes) -> bool:
    """Tell whether aiohttp refuses a text outright."""
    loop = asyncio.get_running_loop()
    parser = HttpRequestParser(BaseProtocol(loop), loop, 2**16, auto_decompress=False)
    try:
        parser.feed_data(text)
    except HttpProcessingError:
        return True
    return False


def agrees(read_fields: dict[bytes, bytes], message: RawRequestMessage) -> bool:
    """Tell whether aiohttp, too, has found a request that is plain, with the same headers."""
    is_plain = message.version == HttpVersion11 and not message.should_close and not message.upgrade
    fields = {name.lower(): value for name, value in message.raw_headers}
    same = {name: value.rstrip(b" \t") for name, value in read_fields.items()} == fields
    return is_plain and same and not message.chunked and not message.compression


async def test_aiohttp_ends_every_request_where_it_is_ended_here_and_reads_plain_ones_alike() -> None:
    plain = framed = refused = 0
    for seed in sample.some(range(200), 20, "framing"):
        for each in texts(random.Random(seed), 1000):
            text = each.lstrip(b"\r\n")  # as between requests
            end = text.find(END) + len(END)
            try:
                head = read_head(text[:end]) if end >= len(END) else None
            except MalformedRequestError as error:
                refused, reason = refused + 1, str(error)
            else:
                reason = ""
            if reason:
                assert reason in STRICTER or await parsed(text[:end]) is None, text
                continue
            if head is None or head.length is None or len(text) < end + head.length:
                continue
            framed += 1
            found = await parsed(text[: end + head.length])
            if found is None:
                assert await refuses(text[: end + head.length]), text
                continue
            message, body = found
            assert len(body) == head.length, text
            line = messages_line(text[:end])
            if line and is_plain(line, head):
                plain += 1
                assert agrees(head.fields, message), text
                assert message.method == line[1].decode(), text
                assert message.path.encode() == text.split(b"\r\n")[0].split(b" ")[1], text
    assert min(plain, framed, refused) > 50, "enough of each kind"


async def test_what_is_not_parsed_ends_where_it_ends_for_aiohttp_or_is_refused_by_it() -> None:
    """For what is behind the head there is no second opinion: aiohttp must take one request, and all of it."""
    measured = refused = 0
    for seed in sample.some(range(200), 20, "measured"):
        for each in texts(random.Random(seed), 1000):
            text = each.lstrip(b"\r\n")  # as between requests
            end = text.find(END) + len(END)
            if end < len(END) or (length := unparsed(text[:end])) is None or len(text) < end + length:
                continue
            measured += 1
            found = await parsed(text[: end + length])
            if found is None:
                refused += 1
                assert await refuses(text[:end]), text
            else:
                assert len(found[1]) == length, text
    assert min(measured, refused) > 50, "enough of each kind"


def unparsed(head: bytes) -> int | None:
    """Return the length of the body if it is measured without parsing the head; else None."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(framing, "read_head", lambda _: None)
        found = measure(head)
    return found.length if found else None


@pytest.mark.parametrize(
    ("fields", "length"),
    [
        *(("", 0), ("Content-Length: 5\r\n", 5), ("Accept: a\r\ncontent-LENGTH: 0123\r\nX: y\r\n", 123)),
        *(("Content-Length:5\r\n", None), ("Content-Length: 5 \r\n", None), ("Content-Length: +5\r\n", None)),
        *(("Content-Length: 5\r\nContent-Length: 5\r\n", None), ("X: content-length: 5\r\n", None)),
        *(("X: a\r\n content-length: 5\r\n", None), ("Content-Length : 5\r\n", None)),
        *(("Transfer-Encoding: chunked\r\n", None), ("TRANSFER-ENCODING : x\r\n", None), ("Upgrade: h2c\r\n", None)),
        *(("Connection: upgrade\r\n", None), ("X: a\nb\r\n", None), ("X: a\n\nb\r\n", None)),
        (f"X: {'x' * MAX_HEAD_BYTES}\r\n", None),
    ],
)
def test_what_is_not_plain_to_see_is_parsed(fields: str, length: int | None) -> None:
    for line in ("POST /api/v1/login HTTP/1.1", "GET / HTTP/1.0"):
        assert unparsed(f"{line}\r\nHost: x\r\n{fields}\r\n".encode()) == length


@pytest.mark.parametrize("line", ["CONNECT x:1 HTTP/1.1", "connect x:1 HTTP/1.1", "PRI * HTTP/2.0"])
def test_what_may_begin_another_protocol_is_parsed(line: str) -> None:
    assert unparsed(f"{line}\r\nHost: x\r\n\r\n".encode()) is None


def test_what_is_usual_is_plain() -> None:
    found = read_head(USUAL)
    line = messages_line(USUAL)
    assert line
    assert is_plain(line, found)
    assert line.groups() == (b"GET", b"0a-1", b"after=1")
    assert found.fields == {b"host": b"x", b"authorization": b"Bearer abc"}


@pytest.mark.parametrize("cut", range(1, len(USUAL)))
def test_a_head_is_followed_to_its_end_in_whatever_pieces_it_comes(cut: int) -> None:
    scanner = RequestScanner()
    scanner.feed(USUAL[:cut])
    assert not scanner.is_complete
    scanner.feed(USUAL[cut:])
    assert scanner.is_complete


def test_a_body_in_chunks_is_followed_to_its_end() -> None:
    text = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n8\r\na\r\n\r\nb\r\n\r\n0\r\nX: y\r\n\r\n"
    for cut in range(1, len(text)):
        scanner = RequestScanner()
        assert scanner.feed(text[:cut]) == cut
        assert not scanner.is_complete
        assert scanner.feed(text[cut:] + b"no HTTP, but behind it") == len(text) - cut
        assert scanner.is_complete
    with pytest.raises(MalformedRequestError):
        RequestScanner().feed(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n")


def test_what_is_too_long_is_not_plain_and_then_no_request() -> None:
    def plain(text: bytes) -> bool:
        line = messages_line(text)
        return bool(line and is_plain(line, read_head(text)))

    filled = USUAL[:-2] + b"X: %b\r\n\r\n"
    for longest, of in ((MAX_PLAIN_BYTES, plain), (MAX_HEAD_BYTES, read_head)):
        room = longest - len(filled % b"")
        assert of(filled % (b"x" * room))
        if longest == MAX_PLAIN_BYTES:
            assert not of(filled % (b"x" * (room + 1)))
    with pytest.raises(MalformedRequestError):
        read_head(filled % (b"x" * (room + 1)))


@pytest.mark.parametrize("length", [b"+3", b"-3", b"3,3", b"0x3", b"3_0", b"", b"9" * 19, b"\xb2"])
def test_a_length_that_is_no_number_is_refused(length: bytes) -> None:
    with pytest.raises(MalformedRequestError):
        read_head(b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: %b\r\n\r\n" % length)
