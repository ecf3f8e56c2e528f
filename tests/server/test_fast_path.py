"""The fast path: requests whose heads are known get the same answers as if they were parsed."""

import asyncio
import contextlib
import gzip
import json
import os
import random
import socket
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import structlog
from aiohttp import web

from conclave import keys
from conclave.errors import BadRequestError, NotMemberError, QuotaError, TooManyRequestsError
from conclave.server import fast_path, listen
from conclave.server.fast_path import Answer, FastPath, Known
from conclave.server.listen import Site
from conclave.store.faults import StoreError, StoreFullError
from conclave.wire import conclave_pb2
from tests.conftest import Running, StartServer
from tests.support import sample
from tests.support.client import API, Client, encode

PROTOBUF = "application/x-protobuf"
JSON = "application/json"
VARYING = ("x-request-id", "date")


@dataclass
class Heard:
    status: str
    headers: dict[str, str]
    body: bytes

    def plain(self) -> tuple[str, dict[str, str], bytes]:
        """All of it, but for what differs each time."""
        return self.status, {name: text for name, text in self.headers.items() if name not in VARYING}, self.body


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
        head = (await asyncio.wait_for(self._reader.readuntil(b"\r\n\r\n"), 20)).decode()
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
        return await asyncio.wait_for(self._reader.read(), 20)

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


@contextlib.asynccontextmanager
async def line_to(port: int, *, limit: int = 2**20, buffer: int | None = None) -> AsyncIterator[Line]:
    """``limit``: bytes that wait in this process. ``buffer``: those that the system takes for it."""
    connection = socket.socket()
    if buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
    line = Line(*await asyncio.open_connection(sock=connection, limit=limit))
    try:
        yield line
    finally:
        await line.close()


@dataclass
class Taken:
    """What came to the fast path, in its order: whether it took it."""

    outcomes: list[bool] = field(default_factory=list)

    def new(self) -> list[bool]:
        found, self.outcomes[:] = list(self.outcomes), []
        return found


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Taken:
    noted, known, take = Taken(), FastPath.known, FastPath.take

    def watched_known(path: FastPath, data: bytes) -> Known | None:
        found = known(path, data)
        if not found:
            noted.outcomes.append(False)
        return found

    def watched_take(path: FastPath, request: Known, answer: Answer) -> bool:
        noted.outcomes.append(take(path, request, answer))
        return noted.outcomes[-1]

    monkeypatch.setattr(FastPath, "known", watched_known)
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
async def test_polls_and_sends_after_the_first_take_it_and_are_answered_the_same(
    running: Running, line: Line, alice: Client, group: str, taken: Taken, media: str
) -> None:
    first = await line.ask(poll(alice, group, 0, media))
    again = [await line.ask(poll(alice, group, 0, media)) for _ in range(3)]
    assert taken.new() == [False, True, True, True]
    assert {repr(each.plain()) for each in again} == {repr(first.plain())}
    assert len({each.headers["x-request-id"] for each in (first, *again)}) == 4
    texts = [written(media, b"message %d" % each) for each in (1, 22, 333, 4444)]
    sent = [await line.ask(send(alice, group, text, media)) for text in texts]
    assert taken.new() == [False, True, True, True], "their lengths differ"
    assert [number(each) for each in sent] == [1, 2, 3, 4]
    assert len({repr(each.plain()[:2]) for each in sent}) == 1
    assert [each.body for each in await alice.fetch(group)] == [
        b"message 1",
        b"message 22",
        b"message 333",
        b"message 4444",
    ]
    async with line_to(running.server.port) as another:
        assert number(await another.ask(send(alice, group, texts[0], media))) == 5
    assert taken.new() == [True], "a head is known on every connection"


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
    assert taken.new() == [False]
    assert json.loads((await line.ask(poll(bob, group, 1))).body) == {"messages": []}
    assert taken.new() == [True]
    marks = await running.query("SELECT watermark FROM members ORDER BY member_id")
    assert marks[1] == (1,)


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
    assert running.app[keys.BUDGET].used == 0


async def test_a_client_that_takes_a_page_slowly_holds_memory_for_it_and_gets_all_in_order(
    running: Running, alice: Client, group: str, taken: Taken
) -> None:
    body = os.urandom(150_000)
    await alice.send(group, body)
    asked, budget = poll(alice, group, 0, PROTOBUF), running.app[keys.BUDGET]
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
    async with asyncio.timeout(20):
        while budget.used:
            await asyncio.sleep(0.02)


async def test_a_client_that_goes_while_a_page_waits_for_it_leaves_no_memory_held(
    running: Running, alice: Client, group: str, taken: Taken
) -> None:
    budget = running.app[keys.BUDGET]
    async with page_waiting(running, alice, group, taken):
        assert budget.used
    async with asyncio.timeout(20):
        while budget.used:
            await asyncio.sleep(0.02)


async def test_a_stop_ends_the_wait_for_a_client_that_takes_nothing(
    running: Running, alice: Client, group: str, taken: Taken
) -> None:
    budget = running.app[keys.BUDGET]
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
    assert taken.new()[-3:] == [True, False, True]
    await alice.act("remove", group, bob)
    refused = await line.ask(poll(bob, group, 2))
    assert (refused.status, json.loads(refused.body)["error"]) == ("HTTP/1.1 401 Unauthorized", "group_not_member")
    await line.ask(poll(alice, group, 0))  # whole, and of the busiest
    taken.new()
    quick = await line.ask(send(bob, group, text))
    assert taken.new() == [True], "it finds out while it writes"
    async with line_to(running.server.port) as another:
        long = await another.ask(send(bob, group, text)[:60], send(bob, group, text)[60:])
    assert taken.new() == [False]
    assert quick.plain() == long.plain()
    await bob.post("/logout")
    await line.ask(poll(alice, group, 0))
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
    "another header": lambda alice, group: (poll(alice, group, 0, X_More="1"),),
    "an expectation": lambda alice, group: (poll(alice, group, 0, Expect="100-continue"),),
    "HTTP/1.0": lambda alice, group: (
        poll(alice, group, 0, Connection="keep-alive").replace(b"HTTP/1.1", b"HTTP/1.0"),
    ),
    "another query": lambda alice, group: (poll(alice, group, 0, query="limit=10&after=0"),),
    "with what is redacted": lambda alice, group: (
        poll(alice, group, 0, query="after=0&limit=9&include_redacted=true"),
    ),
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
    "a long head": lambda alice, group: (poll(alice, group, 0, X_Long="x" * 3000),),
    "no token": lambda alice, group: (
        poll(alice, group, 0).replace(f"Authorization: Bearer {alice.token}\r\n".encode(), b""),
    ),
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
        if answer.headers.get("connection") == "close":
            assert await line.rest() == b""
            line = await lines.enter_async_context(line_to(running.server.port))
        await line.ask(poll(alice, group, last))
        assert json.loads((await line.ask(poll(alice, group, last))).body) == {"messages": []}


async def ask_until_one_waits(running: Running, line: Line, asked: bytes) -> int:
    """Ask for a page again and again, without taking any, until the system takes no more. Return how often."""
    count, budget = 0, running.app[keys.BUDGET]
    async with asyncio.timeout(20):
        while not budget.used:
            await line.say(asked)
            await asyncio.sleep(0.05)
            count += 1
    return count


@contextlib.asynccontextmanager
async def page_waiting(running: Running, alice: Client, group: str, taken: Taken) -> AsyncIterator[None]:
    """Have a client there that takes nothing, and for which a page on the fast path waits."""
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
    """A port of the same server on which everything is parsed."""
    site = Site(running.server.runner, "127.0.0.1", 0, 65_536)
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
    assert (refused.status, taken.new()) == ("HTTP/1.1 400 Bad Request", [False]), "one request, whose body is no JSON"
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
    assert not any(taken.new())


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
        assert taken.new() == [False, True], "the others have to wait"
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
    assert taken.new() == [False, True]
    async with asyncio.timeout(20):
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
    assert taken.new() == [False, True]


async def test_a_stop_right_after_a_request_has_come_waits_for_it(
    running: Running, line: Line, alice: Client, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it turns out then that it has to be parsed."""
    for _ in range(2):
        await line.ask(poll(alice, group, 0))
    await alice.send(group, b"new")
    known = FastPath.known

    def known_before_a_stop(path: FastPath, data: bytes) -> Known | None:
        asyncio.get_running_loop().call_soon(server_of(running).pre_shutdown)
        return known(path, data)

    monkeypatch.setattr(FastPath, "known", known_before_a_stop)
    page = json.loads((await line.ask(poll(alice, group, 0))).body)
    assert [each["sequence_num"] for each in page["messages"]] == [1]
    assert await line.rest() == b""


async def test_a_request_that_has_come_keeps_its_connection_alive(
    running: Running, line: Line, alice: Client, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        await line.ask(poll(alice, group, 0))
    known = FastPath.known

    def known_in_the_last_moment(path: FastPath, data: bytes) -> Known | None:
        for each in server_of(running).connections:
            each._next_keepalive_close_time = 0.0
            asyncio.get_running_loop().call_soon(each._process_keepalive)
        return known(path, data)

    monkeypatch.setattr(FastPath, "known", known_in_the_last_moment)
    assert json.loads((await line.ask(poll(alice, group, 0))).body) == {"messages": []}


def server_of(running: Running) -> web.Server:
    assert running.server.runner.server
    return running.server.runner.server


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
        patch.setattr(running.app[keys.FETCHING], "at_hand", fail)
        assert json.loads((await line.ask(poll(alice, group, 0))).body) == {"messages": []}
        patch.setattr(running.app[keys.FRESHNESS], "look", fail)
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
    monkeypatch.setattr(running.app[keys.SENDING], "begin", lambda _: failed)
    with structlog.testing.capture_logs([structlog.contextvars.merge_contextvars]) as logs:
        answer = await line.ask(send(alice, group, text))
    assert answer.status == "HTTP/1.1 500 Internal Server Error"
    assert taken.new() == [False, True]
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
        return Counter({key: sum(each.counts) for key, each in running.app[keys.REQUESTS].taken().items()})

    async with plain_port(running) as port, line_to(port) as plain:
        for error in ERRORS:
            failed: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            failed.set_exception(error)
            with monkeypatch.context() as patch:
                patch.setattr(running.app[keys.STORE], "begin_joint", lambda *_, failed=failed: failed)
                start = counts()
                quick = await line.ask(text)
                middle = counts()
                assert quick.plain() == (await plain.ask(text)).plain()
                assert middle - start == counts() - middle
    assert taken.new() == [True] * len(ERRORS)


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


async def test_heads_that_never_come_again_are_hardly_looked_at(
    line: Line, alice: Client, group: str, taken: Taken
) -> None:
    for each in range(4 * listen.TRIED_IN_VAIN):
        await line.say(poll(alice, group, 0, X_Each=str(each)))
        await line.hear()
    assert not any(taken.new()[listen.TRIED_IN_VAIN + 4 :])
    while not any(taken.new()):
        await line.ask(poll(alice, group, 0))
    for _ in range(3):
        await line.ask(poll(alice, group, 0))
    assert taken.new() == [True, True, True]


async def test_who_asks_for_nothing_but_pages_is_hardly_looked_at(
    line: Line, alice: Client, group: str, taken: Taken
) -> None:
    await alice.send(group, bytes(200_000))
    for _ in range(4 * listen.TRIED_IN_VAIN):
        await line.say(poll(alice, group, 0))
        assert json.loads((await line.hear()).body)["messages"], "too large to be written in one go"
    assert 0 < len(taken.new()) < listen.TRIED_IN_VAIN + 8
    while not any(taken.new()):
        await line.ask(poll(alice, group, 1))
    for _ in range(3):
        await line.ask(poll(alice, group, 1))
    assert taken.new() == [True, True, True]


@contextlib.contextmanager
def lock_of(running: Running) -> Iterator[None]:
    """Hold the write lock of the database, as another process would."""
    with contextlib.closing(sqlite3.connect(running.config.database, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


async def test_few_heads_are_known_at_a_time(
    running: Running, alice: Client, group: str, taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fast_path, "MOST_HEADS", 2)
    users = [alice, await running.user("bob"), await running.user("carol")]
    for each in users[1:]:
        await each.join(group)
    async with line_to(running.server.port) as line:
        for user in (*users, *users[1:], alice):
            assert json.loads((await line.ask(poll(user, group, 0))).body) == {"messages": []}
    assert taken.new() == [False, False, False, True, True, False]


async def test_bytes_in_any_pieces_get_the_same_answers_as_when_all_are_parsed(
    start_server: StartServer, running: Running, alice: Client
) -> None:
    """Random requests, known ones among them, in random pieces: to one group by the fast path, to another without."""
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
