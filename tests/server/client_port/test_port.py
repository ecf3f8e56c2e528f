"""What aiohttp refuses by itself is answered and logged in this server's words."""

import asyncio
import contextlib
import gc
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
import structlog
import uvloop
from aiohttp import ClientSession, web

from conclave.admin.access import Guard
from conclave.admin.app import create_admin_app
from conclave.clock import FakeClock
from conclave.config.settings import Config
from conclave.server.app import create_app
from conclave.server.client_port import ClientPort, ConnectionLimits, admission, connection, port
from conclave.server.client_port.admission import CLOSED, IDLE
from conclave.server.client_port.connection import ClientConnection
from conclave.server.client_port.framing import RequestHead
from tests.support.client import Client
from tests.support.server import PATIENCE, until

POST = b"POST /api/v1/login HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n"

MALFORMED = {
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello\r\n\r\n",
    "a line of one word": b"hello\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "an unknown version": b"GET /healthz HTTP/9.9\r\nHost: x\r\n\r\n",
    "a path that is not ASCII": b"GET /api/v1/users/\xff HTTP/1.1\r\nHost: x\r\n\r\n",
    "a long line": b"GET /" + b"a" * 10_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    "a long header": b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Secret: " + b"a" * 10_000 + b"\r\n\r\n",
    "many headers": b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"X-Secret: a\r\n" * 200 + b"\r\n",
    "a header without a name": b"GET /healthz HTTP/1.1\r\nHost: x\r\n: secret\r\n\r\n",
    "a header without a colon": b"GET /healthz HTTP/1.1\r\nHost: x\r\nsecret\r\n\r\n",
    "a header with NUL": b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Secret: \0\r\n\r\n",
    "a length that is no number": POST + b"Content-Length: secret\r\n\r\n{}",
    "a negative length": POST + b"Content-Length: -1\r\n\r\n{}",
    "two lengths": POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "length and chunks": CHUNKED + b"Content-Length: 2\r\n\r\n{}",
    "an unknown transfer encoding": POST + b"Transfer-Encoding: secret\r\n\r\n{}",
    "chunks not last": POST + b"Transfer-Encoding: chunked, gzip\r\n\r\n{}",
    "a first chunk without a size": CHUNKED + b"\r\nsecret\r\n{}\r\n0\r\n\r\n",
    "a later chunk without a size": CHUNKED + b"\r\n1\r\n{\r\nsecret\r\n}\r\n0\r\n\r\n",
    "a chunk that is longer than it says": CHUNKED + b"\r\n1\r\n{secret}\r\n0\r\n\r\n",
    "a huge chunk": CHUNKED + b"\r\n" + b"f" * 40 + b"\r\n{}\r\n0\r\n\r\n",
    "an unknown expectation": POST + b"Expect: secret\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}",
    "an expectation that is not UTF-8": POST + b"Expect: secret\xff\r\nContent-Length: 2\r\n\r\n{}",
    "no host": b"GET /healthz HTTP/1.1\r\n\r\n",
}


class Listening:
    """An application behind this server's own way to listen."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.url = f"http://127.0.0.1:{port}"

    async def say(self, *parts: bytes) -> bytes:
        """Send bytes, some a moment after the others; return all that is answered."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        for part in parts:
            writer.write(part)
            await asyncio.sleep(0.05 if len(parts) > 1 else 0)
        try:
            return await asyncio.wait_for(reader.read(), PATIENCE)
        finally:
            writer.close()
            await writer.wait_closed()

    @contextlib.asynccontextmanager
    async def line(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            yield reader, writer
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def leave(self, *parts: bytes) -> None:
        """Send bytes, each part a moment after the other, and go."""
        _, writer = await asyncio.open_connection("127.0.0.1", self._port)
        for part in parts:
            writer.write(part)
            await asyncio.sleep(0.05)
        writer.close()
        await writer.wait_closed()
        await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def serving(app: web.Application) -> AsyncIterator[Listening]:
    runner = web.AppRunner(app, shutdown_timeout=1)
    try:
        await runner.setup()
        url = await ClientPort(runner, "127.0.0.1", 0, ConnectionLimits(1000)).listen()
        yield Listening(int(url.rpartition(":")[2]))
    finally:
        await runner.cleanup()


@pytest.fixture
async def listening(config: Config, clock: FakeClock) -> AsyncIterator[Listening]:
    async with serving(create_app(config, clock)) as listening:
        yield listening


def parse(answer: bytes) -> tuple[int, dict[str, str], dict[str, Any]]:
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    assert int(headers["content-length"]) == len(body), "one answer, and nothing after it"
    return int(status.split()[1]), headers, json.loads(body)


@pytest.mark.parametrize("what", MALFORMED)
async def test_what_is_not_http_is_answered_as_every_error_is(listening: Listening, what: str) -> None:
    with structlog.testing.capture_logs() as lines:
        answer = await listening.say(MALFORMED[what])
    assert answer.startswith(b"HTTP/1.1 "), "whichever parser refuses"
    status, headers, body = parse(answer)
    assert (status, body["error_code"], body["error"]) == (400, 100, "input_bad_request")
    assert headers["content-type"].startswith("application/json")
    assert (headers["server"], headers["cache-control"]) == ("conclave", "no-store")
    logged = [line for line in lines if line["event"] in ("request_malformed", "request_refused", "request")]
    assert len(logged) == 1
    assert re.fullmatch("[0-9a-f]{32}", headers["x-request-id"])
    assert logged[0]["event"] == "request" or logged[0]["request_id"] == headers["x-request-id"]
    assert not any("exc_info" in line for line in lines)
    assert "secret" not in repr((lines, body, headers)).lower()


@pytest.mark.parametrize(
    "codings",
    [
        "gzip, chunked",
        "identity, chunked",
        "gzip\r\nTransfer-Encoding: chunked",
        "x , gzip,\r\ntransfer-encoding: Chunked",
    ],
)
async def test_chunks_of_what_is_coded_are_not_read_as_plain_ones(
    listening: Listening, config: Config, clock: FakeClock, codings: str
) -> None:
    """RFC 9112 section 6.1: 501 for a transfer coding that the server does not know."""
    sent = POST + f"Transfer-Encoding: {codings}\r\n\r\n2\r\n{{}}\r\n0\r\n\r\n".encode()
    async with serving(create_admin_app(create_app(config, clock), Guard(config.admin))) as operators:
        for each in (listening, operators):
            status, headers, body = parse(await each.say(sent + GET))
            assert (status, body["error_code"], headers["connection"]) == (501, 100, "close")


async def test_operators_are_answered_the_same(config: Config, clock: FakeClock) -> None:
    nothing = GET.replace(b"/healthz", b"/nothing").replace(b"Host: x", b"Host: localhost")
    async with serving(create_admin_app(create_app(config, clock), Guard(config.admin))) as listening:
        for sent, expected in ((MALFORMED["no HTTP"], (400, 100)), (nothing, (404, 300))):
            status, headers, body = parse(await listening.say(sent))
            assert (status, body["error_code"]) == expected
            assert (headers["server"], headers["cache-control"]) == ("conclave", "no-store")


async def test_a_chunk_that_is_malformed_in_the_middle_of_a_body_is_answered_once(listening: Listening) -> None:
    """Whoever reads the body does not wait for what cannot come any more."""
    first, later = CHUNKED + b"\r\n1\r\n{\r\n", b"secret\r\n"
    with structlog.testing.capture_logs() as lines:
        status, headers, body = parse(await listening.say(first, later, b"GET /healthz HTTP/1.1\r\n\r\n"))
    assert (status, body["error_code"], headers["server"]) == (400, 100, "conclave")
    assert [line["event"] for line in lines] in (["request"], []), "none if both pieces arrive at once"


async def test_what_is_no_http_behind_a_request_does_not_spoil_that(listening: Listening) -> None:
    answers = await listening.say(GET.replace(b"Connection: close\r\n", b""), MALFORMED["a line of one word"])
    first, second = (b"HTTP/" + each for each in answers.split(b"HTTP/")[1:])
    assert (parse(first)[0], parse(second)[0]) == (200, 400)


async def test_a_client_that_goes_in_the_middle_of_a_body_is_one_line_of_the_log(listening: Listening) -> None:
    with structlog.testing.capture_logs() as lines:
        await listening.leave(POST + b"Content-Length: 10\r\n\r\n{")
    assert [line["event"] for line in lines] == ["client_gone"]


async def test_a_client_that_goes_in_the_same_moment_is_no_error(
    listening: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """aiohttp began the request, had nothing left to make it of, and its task failed."""
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    delegate = ClientConnection._delegate

    def delegate_as_it_goes(each: ClientConnection, data: bytes, head: RequestHead, size: int) -> bytes:
        rest = delegate(each, data, head, size)
        assert each.transport
        each.transport.abort()
        each.connection_lost(None)
        return rest

    with monkeypatch.context() as patch:
        patch.setattr(ClientConnection, "_delegate", delegate_as_it_goes)
        with contextlib.suppress(ConnectionError):
            await listening.say(GET)
    gc.collect()
    assert not failures
    assert (await listening.say(GET)).startswith(b"HTTP/1.1 200 ")


HALF = b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Secret: a\r\n"
WHOLE = GET.replace(b"Connection: close\r\n", b"")


@pytest.mark.parametrize("before", [b"", WHOLE], ids=["at first", "behind a request"])
async def test_a_head_that_does_not_come_to_its_end_is_answered_and_the_connection_ends(
    listening: Listening, monkeypatch: pytest.MonkeyPatch, before: bytes
) -> None:
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.3)
    with structlog.testing.capture_logs() as lines:
        *answers, last = (await listening.say(before + HALF, b"X-More: b\r\n")).split(b"HTTP/")[1:]
    assert [parse(b"HTTP/" + each)[0] for each in answers] == [200] * bool(before)
    status, _, body = parse(b"HTTP/" + last)
    assert (status, body["error_code"]) == (400, 100)
    assert "has not arrived within" in body["message"]
    assert [line["reason"] for line in lines if line["event"] == "request_malformed"] == ["TimeoutError"]


@pytest.mark.parametrize(
    "parts",
    [
        (HALF, b"\r\n"),
        (WHOLE, b"\r\n"),
        (POST + b"Content-Length: 10\r\n\r\n{", b"}       ", b" "),
        (CHUNKED + b"\r\n1\r\n{\r\n", b"1\r\n}\r\n", b"0\r\n\r\n"),
    ],
    ids=["a head in two pieces", "an empty line behind a request", "a body in pieces", "chunks in pieces"],
)
async def test_a_connection_on_which_no_head_is_under_way_stays_open(
    listening: Listening, monkeypatch: pytest.MonkeyPatch, parts: tuple[bytes, ...]
) -> None:
    made: list[ClientConnection] = []
    begin = ClientConnection.connection_made

    def begin_and_note(each: ClientConnection, transport: asyncio.BaseTransport) -> None:
        made.append(each)
        begin(each, transport)

    monkeypatch.setattr(ClientConnection, "connection_made", begin_and_note)
    monkeypatch.setattr(connection, "HEAD_SECONDS", 3600.0)
    async with listening.line() as (_, writer):
        for part in parts:
            writer.write(part)
            await asyncio.sleep(0.05)
        await until(lambda: bool(made))
        await until(lambda: made[0].state in (IDLE, CLOSED) and made[0]._timer is None)


UPGRADE = WHOLE.replace(b"Host: x", b"Host: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c")
UPGRADE_WITH_BODY = POST + b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\n{}"


@pytest.mark.parametrize("first", [UPGRADE, UPGRADE_WITH_BODY], ids=["without a body", "with a body"])
async def test_what_follows_in_one_piece_on_a_request_for_another_protocol_is_answered(
    listening: Listening, first: bytes
) -> None:
    """aiohttp alone drops it: whoever sent it would wait for ever, or get somebody else's answer."""
    for pieces in ((first + GET,), (first + GET[:20], GET[20:]), (first + b"\r\n\r\n" + GET,)):
        answers = (await listening.say(*pieces)).split(b"HTTP/")[1:]
        assert [parse(b"HTTP/" + each)[0] for each in answers] == [200 if first is UPGRADE else 400, 200]


@pytest.mark.parametrize("first", [UPGRADE, UPGRADE_WITH_BODY], ids=["without a body", "with a body"])
async def test_a_request_for_another_protocol_that_comes_alone_leaves_its_connection_open(
    listening: Listening, first: bytes
) -> None:
    answers = (await listening.say(first, GET)).split(b"HTTP/")[1:]
    assert [parse(b"HTTP/" + each)[0] for each in answers] == [200 if first is UPGRADE else 400, 200]


async def test_a_connection_that_asks_for_nothing_ends(
    config: Config, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(port, "SWEEP_SECONDS", 0.05)
    monkeypatch.setattr(admission, "SILENT_SECONDS", 0.3)
    monkeypatch.setattr(admission, "IDLE_SECONDS", 0.3)
    async with serving(create_app(config, clock)) as listening:
        assert await listening.say() == b""
        assert (await listening.say(WHOLE)).startswith(b"HTTP/1.1 200 "), "with the end of the connection behind it"


@pytest.mark.parametrize("sent", [GET[:-2] + b"X: " + b"x" * 20_000, b"x" * 20_000, b"GET /" + b"x: y\r\n" * 4_000])
async def test_a_head_is_refused_as_soon_as_it_is_too_long_or_cannot_become_one(
    listening: Listening, sent: bytes
) -> None:
    assert parse(await listening.say(sent))[0] == 400
    assert parse(await listening.say(*(sent[each : each + 5_000] for each in range(0, len(sent), 5_000))))[0] == 400


def test_a_stream_keeps_nothing_of_the_connection_that_it_has_taken_over(config: Config, clock: FakeClock) -> None:
    """By the event loop that serves: it keeps the methods of a protocol."""

    def given_up() -> list[ClientConnection]:
        gc.collect()
        return [each for each in gc.get_objects() if type(each) is ClientConnection and each.transport is None]

    async def left() -> list[ClientConnection]:
        others = given_up()
        async with serving(create_app(config, clock)) as listening, ClientSession() as http:
            alice = await Client.register(http, listening.url, "alice")
            async with listening.line() as (reader, writer):
                writer.write(alice.raw_get("/events"))
                await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
                await asyncio.wait_for(reader.read(1), PATIENCE)
                return [each for each in given_up() if each not in others]

    assert uvloop.run(left()) == []


@pytest.mark.parametrize(
    ("sent", "begins"),
    [
        (POST + b": secret\r\nContent-Length: 5\r\n\r\n", b"HTTP/1.1 400 "),
        (POST + b"Content-Length: 5\r\n\r\n{", b""),
        (CHUNKED + b"\r\n5\r\n{", b""),
    ],
    ids=["a head that is none", "a body that is cut off", "chunks that are cut off"],
)
def test_an_end_that_comes_with_what_it_ends_is_heard(
    config: Config, clock: FakeClock, sent: bytes, begins: bytes
) -> None:
    """By the event loop that serves."""

    async def answer() -> bytes:
        async with serving(create_app(config, clock)) as listening, listening.line() as (reader, writer):
            writer.write(sent)
            writer.write_eof()
            return await asyncio.wait_for(reader.read(), PATIENCE)

    found = uvloop.run(answer())
    assert found.startswith(begins)
    assert begins or not found
