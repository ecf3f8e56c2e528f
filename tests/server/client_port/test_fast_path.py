"""Requests of the fast path get the answers that aiohttp would give them."""

import asyncio
import contextlib
import gzip
import json
import os
import random
import socket
import sqlite3
import struct
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import structlog

from conclave import app_keys
from conclave.errors import BadRequestError, NotMemberError, QuotaError, TooManyRequestsError, UnavailableError
from conclave.server.client_port import ClientPort, FastPath, fast_path as module, framing, port as port_module
from conclave.server.client_port.fast_path import FastRequest
from conclave.server.client_port.framing import RequestHead
from conclave.server.client_port.responding import RespondingConnection
from conclave.store import invalidation
from conclave.store.engine.faults import StoreError, StoreFullError
from conclave.wire import conclave_pb2
from tests.conftest import ANY_NUMBER, Running, StartServer
from tests.support import sample
from tests.support.client import API, Client, encode
from tests.support.server import PATIENCE, until

PROTOBUF = "application/x-protobuf"
JSON = "application/json"
VARYING = ("x-request-id", "date")

Read = tuple[RequestHead, FastRequest | None]


@dataclass
class Heard:
    status: str
    headers: dict[str, str]
    body: bytes

    def plain(self) -> tuple[str, dict[str, str], bytes]:
        """All of it, but for what differs each time."""
        headers = {name: text for name, text in sorted(self.headers.items()) if name not in VARYING}
        return self.status, headers, self.body


class Line:
    """A connection of which the test writes every byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def say(self, *pieces: bytes) -> None:
        """Send pieces; the server gets each by itself."""
        for each in pieces:
            self._writer.write(each)
            await asyncio.sleep(0.02 if len(pieces) > 1 else 0)

    async def hear(self) -> Heard:
        head = (await asyncio.wait_for(self._reader.readuntil(b"\r\n\r\n"), PATIENCE)).decode()
        status, *lines = head.removesuffix("\r\n\r\n").split("\r\n")
        if status == "HTTP/1.1 100 Continue":
            return await self.hear()
        headers = {name.lower(): text for name, text in (line.split(": ", 1) for line in lines)}
        return Heard(status, headers, await self._reader.readexactly(int(headers["content-length"])))

    async def ask(self, *pieces: bytes) -> Heard:
        await self.say(*pieces)
        answer = await self.hear()
        await asyncio.sleep(0.02)  # what follows on the answer, such as a watermark, comes before the next request
        return answer

    async def rest(self) -> bytes:
        """Send no more; return what still comes until the server ends the connection."""
        if self._writer.can_write_eof():
            self._writer.write_eof()
        return await asyncio.wait_for(self._reader.read(), PATIENCE)

    def reset(self) -> None:
        """Have the connection break when it is closed."""
        self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


@contextlib.asynccontextmanager
async def line_to(port: int, *, limit: int = 2**20, buffer: int | None = None) -> AsyncIterator[Line]:
    """``limit``: bytes that wait in this process. ``buffer``: those that the system takes for it."""
    end = socket.socket()
    if buffer:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    end.setblocking(False)
    await asyncio.get_running_loop().sock_connect(end, ("127.0.0.1", port))
    line = Line(*await asyncio.open_connection(sock=end, limit=limit))
    try:
        yield line
    finally:
        await line.close()


@dataclass
class Taken:
    """Which requests for messages came to be answered before aiohttp, in their order: whether they were."""

    outcomes: list[bool] = field(default_factory=list)

    def new(self) -> list[bool]:
        found, self.outcomes[:] = list(self.outcomes), []
        return found


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Taken:
    noted, read_head, take = Taken(), FastPath.read_head, FastPath.take

    def watched_read_head(fast_path: FastPath, text: bytes, connection: RespondingConnection) -> Read:
        head, request = read_head(fast_path, text, connection)
        if not request and (line := framing.messages_line(text)) and framing.is_plain(line, head):
            noted.outcomes.append(False)
        return head, request

    def watched_take(fast_path: FastPath, request: FastRequest, body: bytes) -> bool:
        noted.outcomes.append(take(fast_path, request, body))
        return noted.outcomes[-1]

    monkeypatch.setattr(FastPath, "read_head", watched_read_head)
    monkeypatch.setattr(FastPath, "take", watched_take)
    return noted


@pytest.fixture
async def alice(running: Running) -> Client:
    return await running.user("alice")


@pytest.fixture
async def group(alice: Client) -> str:
    return await alice.create_group("g")


@pytest.fixture
async def line(running: Running) -> AsyncIterator[Line]:
    async with line_to(running.server.port) as line:
        yield line


def head(client: Client, media: str = JSON, **more: str) -> str:
    headers = {"Host": "x", "Authorization": f"Bearer {client.token}", "Accept": media, **more}
    return "".join(f"{name.replace('_', '-')}: {text}\r\n" for name, text in headers.items())


def poll(client: Client, group: str, after: int, media: str = JSON, query: str = "", **more: str) -> bytes:
    asked = query or f"after={after}&limit=100"
    return f"GET {API}/groups/{group}/messages?{asked} HTTP/1.1\r\n{head(client, media, **more)}\r\n".encode()


def written(media: str, body: bytes, **more: Any) -> bytes:
    if media == JSON:
        return json.dumps({"mls_message": encode(body), **more}).encode()
    return conclave_pb2.SendMessageRequest(mls_message=body, **more).SerializeToString()


def send(client: Client, group: str, text: bytes, media: str = JSON, **more: str) -> bytes:
    fields = head(client, media, **{"Content-Type": media, "Content-Length": str(len(text)), **more})
    return f"POST {API}/groups/{group}/messages HTTP/1.1\r\n{fields}\r\n".encode() + text


def number(answer: Heard) -> int:
    assert answer.status == "HTTP/1.1 200 OK", answer
    if answer.headers["content-type"] == JSON:
        return int(json.loads(answer.body)["sequence_num"])
    return conclave_pb2.SendMessageResponse.FromString(answer.body).sequence_num


@pytest.mark.parametrize("media", [JSON, PROTOBUF])
async def test_polls_and_sends_take_it_and_are_answered_the_same(
    running: Running, line: Line, alice: Client, group: str, taken: Taken, media: str
) -> None:
    async with plain_port(running) as port, line_to(port) as parsed:
        expected = await parsed.ask(poll(alice, group, 0, media))
    again = [await line.ask(poll(alice, group, 0, media)) for _ in range(3)]
    assert taken.new() == [True, True, True]
    assert {repr(each.plain()) for each in again} == {repr(expected.plain())}
    assert len({each.headers["x-request-id"] for each in (expected, *again)}) == 4
    texts = [written(media, b"message %d" % each) for each in (1, 22, 333, 4444)]
    sent = [await line.ask(send(alice, group, text, media)) for text in texts]
    assert taken.new() == [True, True, True, True]
    assert [number(each) for each in sent] == [1, 2, 3, 4]
    assert len({repr(each.plain()[:2]) for each in sent}) == 1
    assert [each.body for each in await alice.fetch(group)] == [
        b"message 1",
        b"message 22",
        b"message 333",
        b"message 4444",
    ]


HEADERS = {
    "of a proxy": lambda n: {"X_Request_Id": f"{n:032x}", "X_Forwarded_For": "10.1.2.3"},
    "of a browser": lambda _: {"User_Agent": "x/1.0", "Accept_Encoding": "gzip, deflate", "Cookie": "a=b; c=d"},
    "of a web page": lambda _: {"Origin": "https://chat.example.org", "Sec_Fetch_Mode": "cors"},
    "in other letters": lambda _: {"X_Odd": "gr\u00fc\u00df"},
    "that say what is so anyhow": lambda _: {"Connection": "keep-alive"},
    "that are many": lambda _: {f"X_{each}": "x" * 60 for each in range(90)},
}


@pytest.mark.parametrize("which", HEADERS)
async def test_any_usual_headers_take_it(line: Line, alice: Client, group: str, taken: Taken, which: str) -> None:
    for each in range(3):
        more: dict[str, str] = HEADERS[which](each)  # type: ignore[no-untyped-call]
        taken.new()
        assert number(await line.ask(send(alice, group, written(JSON, b"x"), **more))) == each + 1
        assert taken.new() == [True]
        await line.ask(poll(alice, group, 0))
        taken.new()
        assert json.loads((await line.ask(poll(alice, group, each + 1, **more))).body) == {"messages": []}
        assert taken.new() == [True]


async def test_after_any_plain_request_the_next_one_takes_it(
    line: Line, alice: Client, group: str, taken: Taken
) -> None:
    await line.ask(poll(alice, group, 0))
    for _ in range(3):
        await line.ask(f"GET {API}/me HTTP/1.1\r\n{head(alice)}\r\n".encode())
        await line.ask(f"GET {API}/nothing HTTP/1.1\r\n{head(alice)}\r\n".encode())
        taken.new()
        await line.ask(poll(alice, group, 0))
        assert taken.new() == [True]


@pytest.mark.parametrize(
    "query",
    [
        "after=0",
        "limit=10",
        "limit=10&after=0",
        "after=0&include_redacted=true",
        "x=1",
        "after=0&confirm=next",
        "confirm=next",
    ],
)
async def test_every_usual_query_takes_it(line: Line, alice: Client, group: str, taken: Taken, query: str) -> None:
    await line.ask(poll(alice, group, 0))
    await line.ask(poll(alice, group, 0, query=query))
    assert taken.new() == [True, True]


async def test_a_new_message_is_fetched_and_moves_the_watermark(
    running: Running, line: Line, alice: Client, group: str, taken: Taken
) -> None:
    bob = await running.user("bob")
    await bob.join(group)
    for _ in range(2):
        await line.ask(poll(bob, group, 0))
    assert taken.new()[-1]
    await alice.send(group, b"new")
    await running.settle()
    taken.new()
    page = json.loads((await line.ask(poll(bob, group, 0))).body)
    assert [each["sequence_num"] for each in page["messages"]] == [1]
    assert taken.new() == [True], "it is read from the store"
    assert json.loads((await line.ask(poll(bob, group, 1))).body) == {"messages": []}
    assert taken.new() == [True]
    marks = await running.query("SELECT watermark FROM members ORDER BY member_id")
    assert marks[1] == (1,)
    await alice.send(group, b"newer")
    await running.settle()
    taken.new()
    page = json.loads((await line.ask(poll(bob, group, 1))).body)
    assert [each["sequence_num"] for each in page["messages"]] == [2]
    assert taken.new() == [True]
    await line.ask(f"GET {API}/me HTTP/1.1\r\n{head(bob)}\r\n".encode())  # it waits for what follows on the page
    marks = await running.query("SELECT watermark FROM members ORDER BY member_id")
    assert marks[1] == (2,)


@pytest.mark.parametrize("media", [JSON, PROTOBUF])
async def test_a_page_that_is_remembered_is_answered_the_same(
    running: Running, line: Line, alice: Client, group: str, taken: Taken, media: str
) -> None:
    for size in (10, 20_000, 100_000):
        await alice.send(group, bytes(size))
    for asked in ("after=0&limit=1", "after=0&limit=2", "after=0&limit=3", "after=2&limit=100", "after=3&limit=100"):
        async with plain_port(running) as port, line_to(port) as parsed:
            expected = await parsed.ask(poll(alice, group, 0, media, query=asked))
        answers = [await line.ask(poll(alice, group, 0, media, query=asked)) for _ in range(2)]
        assert [each.plain() for each in answers] == [expected.plain()] * 2
        assert taken.new()[-1]
    assert running.app[app_keys.BUDGET].used == 0


@pytest.mark.parametrize("media", [JSON, PROTOBUF])
async def test_a_page_that_has_to_be_read_is_answered_the_same(
    running: Running, line: Line, alice: Client, group: str, taken: Taken, media: str
) -> None:
    await line.ask(poll(alice, group, 0))
    for size in (10, 20_000, 400_000, 700_000, 700_000):
        await alice.send(group, bytes(size))
    async with plain_port(running) as port, line_to(port) as parsed:
        for asked in ("after=0&limit=1", "after=0&limit=3", "include_redacted=true&limit=2", "after=0&limit=100"):
            answers = []
            for each in (parsed, line):
                await forget_groups(running)
                taken.new()
                answers.append((await each.ask(poll(alice, group, 0, media, query=asked))).plain())
            assert answers[0] == answers[1]
            assert taken.new() == [True]
    assert running.app[app_keys.BUDGET].used == 0


async def test_a_stop_gives_up_pages_that_take_too_long_to_read(
    running: Running, line: Line, alice: Client, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await line.ask(poll(alice, group, 0))
    monkeypatch.setattr(port_module, "STOP_SECONDS", 0.1)
    begun, is_given_up = asyncio.Event(), False

    async def endless(*_: object, **__: object) -> None:
        nonlocal is_given_up
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            is_given_up = True

    monkeypatch.setattr(running.app[app_keys.FETCHING], "read_cached", lambda *_, **__: None)
    monkeypatch.setattr(running.app[app_keys.FETCHING], "read", endless)
    await line.say(poll(alice, group, 0))
    await begun.wait()
    await running.server.close()
    assert is_given_up
    assert await line.rest() == b""


async def forget_groups(running: Running) -> None:
    """Have nothing of any group be remembered."""
    for (key,) in await running.query("SELECT group_key FROM groups"):
        await running.app[app_keys.STORE].write(invalidation.invalidate_group, key)


async def test_a_client_that_takes_a_page_slowly_holds_memory_for_it_and_gets_all_in_order(
    running: Running, alice: Client, group: str, taken: Taken
) -> None:
    body = os.urandom(150_000)
    await alice.send(group, body)
    asked, budget = poll(alice, group, 0, PROTOBUF), running.app[app_keys.BUDGET]
    async with line_to(running.server.port, limit=1024, buffer=4096) as line:
        for _ in range(3):
            await line.ask(asked)
        assert taken.new()[-1]
        count = await ask_until_one_waits(running, line, asked)
        for _ in range(5):
            await line.say(asked)  # these come behind it
        for _ in range(count + 5):
            page = conclave_pb2.GetMessagesResponse.FromString((await line.hear()).body)
            assert [each.mls_message for each in page.messages] == [body]
        await line.ask(asked)
    await until(lambda: not budget.used)


async def test_a_client_that_goes_while_a_page_waits_for_it_leaves_no_memory_held(
    running: Running, alice: Client, group: str, taken: Taken
) -> None:
    budget = running.app[app_keys.BUDGET]
    async with page_waiting(running, alice, group, taken):
        assert budget.used
    await until(lambda: not budget.used)


@pytest.mark.system
async def test_a_stop_ends_the_wait_for_a_client_that_takes_nothing(
    running: Running, alice: Client, group: str, taken: Taken
) -> None:
    budget = running.app[app_keys.BUDGET]
    async with page_waiting(running, alice, group, taken):
        await asyncio.sleep(0.5)
        assert budget.used > 0
        await running.server.close()
        assert budget.used == 0


async def test_who_may_not_ask_any_more_is_told(
    running: Running, line: Line, alice: Client, group: str, taken: Taken
) -> None:
    bob = await running.user("bob")
    await bob.join(group)
    text = written(JSON, b"hello")
    for after in (0, 1):
        await line.ask(send(bob, group, text))
        await line.ask(poll(bob, group, after))
    await line.ask(poll(bob, group, 2))
    assert taken.new()[-3:] == [True, True, True]
    await alice.act("remove", group, bob)
    refused = await line.ask(poll(bob, group, 2))
    assert (refused.status, json.loads(refused.body)["error"]) == ("HTTP/1.1 401 Unauthorized", "group_not_member")
    taken.new()
    quick = await line.ask(send(bob, group, text))
    assert taken.new() == [True], "it finds out while it writes"
    async with plain_port(running) as port, line_to(port) as another:
        long = await another.ask(send(bob, group, text))
    assert taken.new() == []
    assert quick.plain() == long.plain()
    await bob.post("/logout")
    for each in (poll(bob, group, 2), send(bob, group, text)):
        assert json.loads((await line.ask(each)).body)["error"] == "auth_token_expired"
    assert [each.body for each in await alice.fetch(group)] == [b"hello", b"hello"]


UNUSUAL = {
    "a head in two pieces": lambda alice, group: (poll(alice, group, 0)[:80], poll(alice, group, 0)[80:]),
    "a body in a second piece": lambda alice, group: (
        send(alice, group, written(JSON, b"x"))[:-5],
        send(alice, group, written(JSON, b"x"))[-5:],
    ),
    "two requests in one piece": lambda alice, group: (poll(alice, group, 0) * 2,),
    "a send with a poll behind it": lambda alice, group: (
        send(alice, group, written(JSON, b"x")) + poll(alice, group, 9),
    ),
    "a header that comes twice": lambda alice, group: (poll(alice, group, 0, X_More="1", **{"x-more": "2"}),),
    "a header without a host": lambda alice, group: (poll(alice, group, 0).replace(b"Host: x\r\n", b""),),
    "a folded header": lambda alice, group: (poll(alice, group, 0, X_More="1\r\n 2"),),
    "lines that end without a return": lambda alice, group: (poll(alice, group, 0, X_More="1\nX-Other: 2"),),
    "more headers than are read": lambda alice, group: (poll(alice, group, 0, **{f"X_{n}": "1" for n in range(140)}),),
    "an upgrade": lambda alice, group: (poll(alice, group, 0, Connection="upgrade", Upgrade="h2c"),),
    "a connection that ends": lambda alice, group: (poll(alice, group, 0, Connection="close"),),
    "an end that a proxy asks for": lambda alice, group: (poll(alice, group, 0, Proxy_Connection="close"),),
    "another length": lambda alice, group: (
        send(alice, group, written(JSON, b"x")).replace(b"Accept", b"Content-Length: 3\r\nAccept"),
    ),
    "a length with a sign": lambda alice, group: (
        send(alice, group, written(JSON, b"x"), **{"Content-Length": f"+{len(written(JSON, b'x'))}"}),
    ),
    "a length and chunks": lambda alice, group: (send(alice, group, written(JSON, b"x"), Transfer_Encoding="chunked"),),
    "an expectation": lambda alice, group: (poll(alice, group, 0, Expect="100-continue"),),
    "HTTP/1.0": lambda alice, group: (
        poll(alice, group, 0, Connection="keep-alive").replace(b"HTTP/1.1", b"HTTP/1.0"),
    ),
    "an encoded query": lambda alice, group: (poll(alice, group, 0, query="limit=10&aft%65r=0"),),
    "a limit of nothing": lambda alice, group: (poll(alice, group, 0, query="after=0&limit=0"),),
    "a poll with a body": lambda alice, group: (poll(alice, group, 0, Content_Length="2") + b"{}",),
    "a packed body": lambda alice, group: (
        send(alice, group, gzip.compress(written(JSON, b"x")), Content_Encoding="gzip"),
    ),
    "a body in chunks": lambda alice, group: (
        send(alice, group, b"", Transfer_Encoding="chunked").replace(b"Content-Length: 0\r\n", b"")
        + b"%x\r\n%b\r\n0\r\n\r\n" % (len(written(JSON, b"x")), written(JSON, b"x")),
    ),
    "no type": lambda alice, group: (
        send(alice, group, written(JSON, b"x")).replace(b"Content-Type: application/json\r\n", b""),
    ),
    "a length with a zero before it": lambda alice, group: (
        send(alice, group, written(JSON, b"x"), **{"Content-Length": f"0{len(written(JSON, b'x'))}"}),
    ),
    "a body that is no JSON": lambda alice, group: (send(alice, group, b"{"),),
    "a group's id that is none": lambda alice, _: (poll(alice, "1234", 0),),
    "a long head": lambda alice, group: (poll(alice, group, 0, X_Long="x" * 8100),),
    "no token": lambda alice, group: (
        poll(alice, group, 0).replace(f"Authorization: Bearer {alice.token}\r\n".encode(), b""),
    ),
}


ANSWERED_ALL_THE_SAME = {
    "a head in two pieces": [True],
    "two requests in one piece": [True, True],
    "a send with a poll behind it": [True, True],
    "a length with a zero before it": [True],
}


@pytest.mark.parametrize("what", UNUSUAL)
async def test_what_is_unusual_is_parsed_and_what_follows_is_right(
    running: Running, line: Line, alice: Client, group: str, taken: Taken, what: str
) -> None:
    pieces = UNUSUAL[what](alice, group)  # type: ignore[no-untyped-call]
    async with plain_port(running) as port, line_to(port) as parsed:
        await parsed.ask(poll(alice, group, 0))
        await parsed.say(*pieces)
        expected = await parsed.hear()
    await alice.send(group)
    numbers = await alice.numbers(group)
    for each in (poll(alice, group, numbers[-1]), send(alice, group, written(JSON, b"known"))):
        await line.ask(each)
        await line.ask(each)
    taken.new()
    await line.say(*pieces)
    answer = await line.hear()
    if what in ANSWERED_ALL_THE_SAME:
        await until(lambda: len(taken.outcomes) == len(ANSWERED_ALL_THE_SAME[what]))
        assert taken.new() == ANSWERED_ALL_THE_SAME[what]
    assert not any(taken.new())
    assert (answer.status, answer.headers.get("content-type")) == (
        expected.status,
        expected.headers.get("content-type"),
    )
    if answer.status.startswith("HTTP/1.1 4"):
        assert answer.plain() == expected.plain()
    if len(pieces) == 1 and what.startswith(("two", "a send with")):
        await line.hear()
    last = (await alice.numbers(group))[-1]
    async with contextlib.AsyncExitStack() as lines:
        if answer.headers.get("connection") == "close" or b"is malformed" in answer.body:
            assert await line.rest() == b""
            line = await lines.enter_async_context(line_to(running.server.port))
        await line.ask(poll(alice, group, last))
        assert json.loads((await line.ask(poll(alice, group, last))).body) == {"messages": []}


async def ask_until_one_waits(running: Running, line: Line, asked: bytes) -> int:
    """Ask for a page again and again, without taking any, until the system takes no more. Return how often."""
    count, budget = 0, running.app[app_keys.BUDGET]
    async with asyncio.timeout(PATIENCE):
        while not budget.used:
            await line.say(asked)
            await asyncio.sleep(0.05)
            count += 1
    return count


@contextlib.asynccontextmanager
async def page_waiting(running: Running, alice: Client, group: str, taken: Taken) -> AsyncIterator[None]:
    """Have a client there that takes nothing, and for which a page waits."""
    await alice.send(group, os.urandom(150_000))
    asked = poll(alice, group, 0, PROTOBUF)
    async with line_to(running.server.port, limit=1024, buffer=4096) as line:
        for _ in range(3):
            await line.ask(asked)
        await ask_until_one_waits(running, line, asked)
        assert all(taken.new()[1:])
        yield


@contextlib.asynccontextmanager
async def plain_port(running: Running) -> AsyncIterator[int]:
    """A port of the same server on which aiohttp answers everything."""
    site = ClientPort(running.server.runner, "127.0.0.1", 0, ANY_NUMBER)
    port = int((await site.listen()).rpartition(":")[2])
    assert port != running.server.port
    try:
        yield port
    finally:
        await site.stop()


async def test_a_known_request_inside_another_is_no_request(
    running: Running, line: Line, alice: Client, group: str, taken: Taken
) -> None:
    """The pieces are those of a body, or of a header's value, that only look like a request."""
    known = poll(alice, group, 0)
    await line.ask(known)
    await line.ask(known)
    taken.new()
    text = written(JSON, b"x")
    begun = send(alice, group, text, **{"Content-Length": str(len(text) + len(known))})
    refused = await line.ask(begun, known)
    assert (refused.status, taken.new()) == ("HTTP/1.1 400 Bad Request", []), "one request, whose body is no JSON"
    stranger = await running.user("stranger")
    inside = poll(stranger, group, 0)[:-2] + b"X-Inside: "
    refused = await line.ask(inside, known)
    assert refused.status.endswith("400 Bad Request"), "two times the same header"
    assert taken.new() == [], "it is not known where a request begins"


async def test_nothing_of_a_head_that_was_taken_in_pieces_is_known(
    running: Running, alice: Client, group: str, taken: Taken
) -> None:
    """Else the end of a head, which has no token, would stand for all of it."""
    whole = poll(alice, group, 0).replace(f"Authorization: Bearer {alice.token}\r\n".encode(), b"")
    before = whole.split(b"\r\n")[0] + f"\r\nAuthorization: Bearer {alice.token}\r\nX-Inside: ".encode()
    async with line_to(running.server.port) as line:
        answer = await line.ask(before, whole)
        assert answer.status == "HTTP/1.1 200 OK", "a header with a strange value, no more"
    async with line_to(running.server.port) as line:
        answer = await line.ask(whole)
        assert json.loads(answer.body)["error"] == "auth_header_missing"
    assert taken.new() == [True, False]


async def test_what_comes_before_an_answer_waits_for_it(
    running: Running, line: Line, alice: Client, group: str, taken: Taken
) -> None:
    text = written(JSON, b"known")
    assert number(await line.ask(send(alice, group, text))) == 1
    with lock_of(running):
        await line.say(send(alice, group, text))
        await asyncio.sleep(0.2)
        await line.say(send(alice, group, text)[:50])
        await asyncio.sleep(0.05)
        await line.say(send(alice, group, text)[50:] + poll(alice, group, 9))
        await asyncio.sleep(0.2)
        assert taken.new() == [True, True], "the others have to wait"
    assert [number(await line.hear()) for _ in range(2)] == [2, 3]
    assert json.loads((await line.hear()).body) == {"messages": []}


async def test_who_goes_before_the_answer_has_sent_all_the_same(
    running: Running, alice: Client, group: str, taken: Taken
) -> None:
    text = written(JSON, b"known")
    async with line_to(running.server.port) as line:
        await line.ask(send(alice, group, text))
        with lock_of(running):
            await line.say(send(alice, group, text))
            await asyncio.sleep(0.2)
            await line.close()
    assert taken.new() == [True, True]
    async with asyncio.timeout(PATIENCE):
        while await alice.numbers(group) != [1, 2]:
            await asyncio.sleep(0.02)


async def test_a_stop_waits_for_what_is_under_way(running: Running, alice: Client, group: str, taken: Taken) -> None:
    text = written(JSON, b"known")
    async with line_to(running.server.port) as line:
        await line.ask(send(alice, group, text))
        with lock_of(running):
            await line.say(send(alice, group, text))
            await asyncio.sleep(0.1)
            stopping = asyncio.create_task(running.server.close())
            await asyncio.sleep(0.2)
        assert number(await line.hear()) == 2
        assert await line.rest() == b""
        await stopping
    assert taken.new() == [True, True]


async def test_a_stop_right_after_a_request_has_come_waits_for_it(
    running: Running, line: Line, alice: Client, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it turns out then that aiohttp has to answer it."""
    for _ in range(2):
        await line.ask(poll(alice, group, 0))
    await alice.send(group, b"new")
    read_head, stopping = FastPath.read_head, []

    def read_before_a_stop(fast_path: FastPath, text: bytes, connection: RespondingConnection) -> Read:
        stopping.append(asyncio.get_running_loop().create_task(running.server.close()))
        return read_head(fast_path, text, connection)

    monkeypatch.setattr(FastPath, "read_head", read_before_a_stop)
    monkeypatch.setattr(running.app[app_keys.FETCHING], "read_cached", lambda *_, **__: None)
    page = json.loads((await line.ask(poll(alice, group, 0))).body)
    assert [each["sequence_num"] for each in page["messages"]] == [1]
    assert await line.rest() == b""
    await stopping[0]


@pytest.mark.parametrize("error", [RuntimeError("unforeseen"), sqlite3.ProgrammingError("unforeseen")])
async def test_an_error_that_nobody_foresaw_is_answered(
    running: Running,
    line: Line,
    alice: Client,
    group: str,
    taken: Taken,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    for _ in range(2):
        await line.ask(poll(alice, group, 0))
    taken.new()

    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(module, "parse_id", fail)
        assert json.loads((await line.ask(poll(alice, group, 0))).body) == {"messages": []}
        patch.setattr(running.app[app_keys.FRESHNESS], "refresh", fail)
        failed = await line.ask(poll(alice, group, 0))
    assert (failed.status, json.loads(failed.body)["error"]) == ("HTTP/1.1 500 Internal Server Error", "unspecified")
    assert json.loads((await line.ask(poll(alice, group, 0))).body) == {"messages": []}
    assert taken.new() == [False, False, True]


async def test_the_log_tells_to_which_request_an_unforeseen_error_belongs(
    running: Running, line: Line, alice: Client, group: str, taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = written(JSON, b"known")
    await line.ask(send(alice, group, text))
    failed: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    failed.set_exception(RuntimeError("unforeseen"))
    monkeypatch.setattr(running.app[app_keys.SENDING], "begin", lambda _: failed)
    with structlog.testing.capture_logs([structlog.contextvars.merge_contextvars]) as logs:
        answer = await line.ask(send(alice, group, text))
    assert answer.status == "HTTP/1.1 500 Internal Server Error"
    assert taken.new() == [True, True]
    [told] = [each for each in logs if each["event"] == "request_failed"]
    assert told["request_id"] == answer.headers["x-request-id"]


ERRORS = [
    StoreFullError("full"),
    StoreError("broken"),
    RuntimeError("unforeseen"),
    NotMemberError(),
    BadRequestError("too many that destroy themselves"),
    TooManyRequestsError(seconds=7),
    QuotaError("as much as one user may"),
]


@pytest.mark.parametrize("media", [JSON, PROTOBUF])
async def test_errors_are_answered_and_counted_the_same(
    running: Running, line: Line, alice: Client, group: str, taken: Taken, monkeypatch: pytest.MonkeyPatch, media: str
) -> None:
    text = send(alice, group, written(media, b"known"), media)
    await line.ask(text)
    taken.new()

    def counts() -> Counter[Any]:
        return Counter({key: sum(each.counts) for key, each in running.app[app_keys.REQUESTS].histograms().items()})

    async with plain_port(running) as port, line_to(port) as plain:
        for error in ERRORS:
            failed: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            failed.set_exception(error)
            with monkeypatch.context() as patch:
                patch.setattr(running.app[app_keys.STORE], "begin_joint", lambda *_, failed=failed: failed)
                start = counts()
                quick = await line.ask(text)
                middle = counts()
                assert quick.plain() == (await plain.ask(text)).plain()
                assert middle - start == counts() - middle
    assert taken.new() == [True] * len(ERRORS)


READING_ERRORS = [StoreError("broken"), RuntimeError("unforeseen"), NotMemberError(), UnavailableError("no", seconds=3)]


@pytest.mark.parametrize("media", [JSON, PROTOBUF])
async def test_errors_of_reading_are_answered_counted_and_told_the_same(
    running: Running, line: Line, alice: Client, group: str, taken: Taken, monkeypatch: pytest.MonkeyPatch, media: str
) -> None:
    await line.ask(poll(alice, group, 0))
    taken.new()
    asked, budget = poll(alice, group, 0, media), running.app[app_keys.BUDGET]

    def counts() -> Counter[Any]:
        return Counter({key: sum(each.counts) for key, each in running.app[app_keys.REQUESTS].histograms().items()})

    async with plain_port(running) as port, line_to(port) as plain:
        for error in READING_ERRORS:

            async def fail(*_: object, error: Exception = error, **__: object) -> None:
                raise error

            with monkeypatch.context() as patch:
                patch.setattr(running.app[app_keys.FETCHING], "read_cached", lambda *_, **__: None)
                patch.setattr(running.app[app_keys.FETCHING], "read", fail)
                start = counts()
                with structlog.testing.capture_logs([structlog.contextvars.merge_contextvars]) as logs:
                    quick = await line.ask(asked)
                middle = counts()
                assert quick.plain() == (await plain.ask(asked)).plain()
                assert middle - start == counts() - middle
                told = [each["request_id"] for each in logs if each["event"] == "request_failed"]
                assert told == ([quick.headers["x-request-id"]] if isinstance(error, RuntimeError) else [])
    assert taken.new() == [True] * len(READING_ERRORS)
    assert budget.used == 0


async def test_headers_behind_a_body_belong_to_no_other_request(
    running: Running, line: Line, alice: Client, group: str
) -> None:
    """A proxy may share a connection between users, and pass on what follows on the last chunk."""
    bob = await running.user("bob")
    text = written(JSON, b"x")
    chunked = send(alice, group, b"", Transfer_Encoding="chunked").replace(b"Content-Length: 0\r\n", b"")
    body = b"%x\r\n%b\r\n0\r\nAuthorization: Bearer %b\r\n\r\n" % (len(text), text, alice.token.encode())
    whose = f"GET {API}/me HTTP/1.1\r\n{head(bob)}\r\n".encode()
    answer = await line.ask(chunked + body + whose)
    assert (number(answer), answer.headers["connection"]) == (1, "close")
    assert await line.rest() == b"", "who asks again is not taken for another"


@contextlib.contextmanager
def lock_of(running: Running) -> Iterator[None]:
    """Hold the write lock of the database, as another process would."""
    with contextlib.closing(sqlite3.connect(running.config.database, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


@pytest.mark.system
async def test_bytes_in_any_pieces_get_the_same_answers_as_when_all_are_parsed(
    start_server: StartServer, running: Running, alice: Client
) -> None:
    """Random requests, known ones among them, in random pieces: to one group before aiohttp, to another by it."""
    for seed in sample.some(range(40), 8, "pieces"):
        dice = random.Random(seed)
        groups = [await alice.create_group(f"{name}{seed}") for name in ("fast", "plain")]
        choice = [dice.randrange(len(REQUESTS)) for _ in range(40)]
        cuts = [dice.random() < 0.25 for _ in choice]
        places = [dice.random() for _ in choice]
        joined = [dice.random() < 0.2 for _ in choice]
        async with plain_port(running) as port:
            heard = []
            for group, where in zip(groups, (running.server.port, port), strict=True):
                async with line_to(where) as line:
                    heard.append(await say_all(line, alice, group, choice, cuts, places, joined))
        assert heard[0] == heard[1], f"seed {seed}"
        both = [[each.body for each in await alice.fetch(group)] for group in groups]
        assert both[0] == both[1]
        assert both[0], "something was sent"


REQUESTS = (
    lambda alice, group, n: poll(alice, group, n // 3),
    lambda alice, group, _: poll(alice, group, 10**6),
    lambda alice, group, _: poll(alice, group, 10**6, PROTOBUF),
    lambda alice, group, n: send(alice, group, written(JSON, b"text %d" % 3**n)),
    lambda alice, group, n: send(alice, group, written(PROTOBUF, b"text %d" % 3**n), PROTOBUF),
    lambda alice, group, _: send(alice, group, b"{}"),
    lambda alice, _group, _: f"GET {API}/me HTTP/1.1\r\n{head(alice)}\r\n".encode(),
)


async def say_all(
    line: Line,
    alice: Client,
    group: str,
    choice: list[int],
    cuts: list[bool],
    places: list[float],
    joined: list[bool],
) -> list[Any]:
    heard: list[Any] = []
    held, expected = b"", 0
    for n, (which, is_cut, place, waits) in enumerate(zip(choice, cuts, places, joined, strict=True)):
        held += REQUESTS[which](alice, group, n)
        expected += 1
        if waits and n < len(choice) - 1:
            continue
        at = int(len(held) * place)
        await line.say(*([held[:at], held[at:]] if is_cut and 0 < at < len(held) else [held]))
        for _ in range(expected):
            answer = await line.hear()
            heard.append((answer.status, sorted(set(answer.headers) - {"connection"}), without_ids(answer)))
        held, expected = b"", 0
    return heard


def without_ids(answer: Heard) -> Any:
    """What is said, but for times."""
    if answer.headers["content-type"] == PROTOBUF:
        page = conclave_pb2.GetMessagesResponse.FromString(answer.body)
        return [(each.sequence_num, each.mls_message) for each in page.messages] or answer.body
    body = json.loads(answer.body)
    return [(each["sequence_num"], each["mls_message"]) for each in body["messages"]] if "messages" in body else body
