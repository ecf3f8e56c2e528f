"""What is repeated and what is not, how long is waited, and what an answer means that is none of this protocol."""

import asyncio
import contextlib
import gzip
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given, strategies as st

from conclave.client import (
    AnswerError,
    AnswerTooLongError,
    Backoff,
    BusyError,
    Client,
    ClientError,
    Format,
    NoAnswerError,
    RefusedError,
    ServerError,
    Timeouts,
)
from conclave.client.errors import error_for
from conclave.client.retry import MAX_REPEAT_SECONDS
from conclave.client.transport import Call
from conclave.wire import conclave_pb2
from conclave.wire.results import UserInfo
from tests.support.certificate import make_certificate

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
GROUP = UUID(int=1)
QUICK = Backoff(first=0.001, most=0.002, tries=4)


class Stub:
    """A server that answers as a test wants, one answer after the other; the last one again and again."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, str, bytes]] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request.method, request.path, await request.read()))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return await answer(request)


@asynccontextmanager
async def stub(*answers: Answer) -> AsyncIterator[tuple[Stub, Client]]:
    handler = Stub(*answers)
    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", handler.handle)
    server = TestServer(app)
    await server.start_server(shutdown_timeout=1)
    try:
        async with Client(str(server.make_url("/")), backoff=QUICK, timeouts=Timeouts(request=5)) as client:
            client.transport.token = "5c" * 32
            yield handler, client
    finally:
        await server.close()


async def lost(request: web.Request) -> web.StreamResponse:
    assert request.transport
    request.transport.abort()
    return web.Response()


def says(status: int, code: int = 0, **headers: str) -> Answer:
    async def answer(_: web.Request) -> web.StreamResponse:
        values = {"message": "no", "error_code": code, "error": "x", "errors": {}}
        return web.json_response(values, status=status, headers={k.replace("_", "-"): v for k, v in headers.items()})

    return answer


async def number_one(_: web.Request) -> web.StreamResponse:
    return web.json_response({"sequence_num": 1})


async def no_groups(_: web.Request) -> web.StreamResponse:
    return web.json_response({"groups": []})


async def test_a_send_is_repeated_with_the_same_id() -> None:
    async with stub(lost, lost, number_one) as (server, client):
        assert await client.send(GROUP, b"x") == 1
    assert len(server.asked) == 3
    assert len(set(server.asked)) == 1
    assert b"send_id" in server.asked[0][2]


async def test_a_send_is_not_repeated_once_the_server_may_have_forgotten_its_id() -> None:
    """As after a night and a day asleep between two tries."""
    now = iter([0.0, MAX_REPEAT_SECONDS])
    async with stub(lost, number_one) as (server, client):
        client.transport._clock = lambda: next(now)
        with pytest.raises(NoAnswerError):
            await client.send(GROUP, b"x")
    assert len(server.asked) == 1


async def test_two_sends_have_different_ids_unless_the_caller_gives_one() -> None:
    given_id = uuid4()
    async with stub(number_one) as (server, client):
        for send_id in (None, None, given_id, given_id):
            await client.send(GROUP, b"x", send_id=send_id)
    bodies = [body for _, _, body in server.asked]
    assert len(set(bodies)) == 3
    assert bodies[2] == bodies[3]


async def test_what_may_not_happen_twice_is_not_repeated() -> None:
    async with stub(lost) as (server, client):
        for call in (client.accept_invite, client.take_key_package, client.commit):
            before = len(server.asked)
            with pytest.raises(NoAnswerError):
                await call(GROUP)
            assert len(server.asked) == before + 1


async def test_the_number_of_tries_is_bounded() -> None:
    async with stub(lost) as (server, client):
        with pytest.raises(NoAnswerError):
            await client.groups()
    assert len(server.asked) == QUICK.tries


@pytest.mark.parametrize("status", [429, 503])
async def test_a_busy_server_has_done_nothing_so_anything_is_repeated(status: int) -> None:
    async with stub(says(status, Retry_After="0"), number_one) as (server, client):
        await client.accept_invite(GROUP)
    assert len(server.asked) == 2


async def test_a_server_that_wants_to_be_left_alone_for_long_is() -> None:
    async with stub(says(429, 100, Retry_After="3600")) as (server, client):
        with pytest.raises(BusyError) as error:
            await client.groups()
    assert (len(server.asked), error.value.retry_after, error.value.code) == (1, 3600, 100)


async def test_a_failure_of_the_server_is_not_repeated() -> None:
    async with stub(says(500)) as (server, client):
        with pytest.raises(ServerError):
            await client.groups()
    assert len(server.asked) == 1


async def test_a_gateway_without_a_server_is_no_answer() -> None:
    async def gateway(_: web.Request) -> web.StreamResponse:
        return web.Response(status=502, text="<html>", content_type="text/html")

    async with stub(gateway, no_groups) as (server, client):
        assert await client.groups() == ()
        server.answers = [gateway]
        with pytest.raises(RefusedError, match="gateway"):
            await client.accept_invite(GROUP)


@pytest.mark.parametrize("status", [200, 302, 404])
async def test_another_server_is_recognised_and_gets_no_token_elsewhere(status: int) -> None:
    async def page(_: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text="<html>", content_type="text/html", headers={"Location": "/elsewhere"})

    async with stub(page) as (server, client):
        with pytest.raises(AnswerError):
            await client.groups()
    assert len(server.asked) == 1


async def test_fields_of_a_newer_server_are_left_out_and_those_of_an_older_one_have_defaults() -> None:
    async def page(_: web.Request) -> web.StreamResponse:
        return web.json_response(
            {"messages": [{"sequence_num": 1, "sender_id": str(GROUP), "mls_message": "QQ==", "created_at": 2, "x": 3}]}
        )

    async with stub(page) as (_, client):
        [message] = await client.fetch(GROUP)
    assert (message.mls_message, message.expires_at, message.redacted) == (b"A", 0, False)


MESSAGE = {"sequence_num": 1, "sender_id": str(GROUP), "mls_message": "QQ==", "created_at": 2}


WRONG: dict[str, tuple[object, ...]] = {
    "sequence_num": ("1", None, 1.5, True, 2**63, -(2**63), [1]),
    "sender_id": (5, "", "x", None, ["x"]),
    "created_at": ("now", 2**64 - 1, {}),
    "mls_message": (5, "é", "QQ", None),
}


@pytest.mark.parametrize("wrong", [{name: value} for name, values in WRONG.items() for value in values], ids=str)
async def test_a_value_that_is_none_of_the_protocol_is_an_error_of_the_answer(wrong: dict[str, object]) -> None:
    """And none of the program: an application that goes by ClientError goes on."""

    async def page(_: web.Request) -> web.StreamResponse:
        return web.json_response({"messages": [MESSAGE | wrong]})

    async with stub(page) as (_, client):
        with pytest.raises(AnswerError):
            await client.fetch(GROUP)


@pytest.mark.parametrize("body", [b"[]", b"5", b"null", b'"x"', b'{"messages": 5}', b'{"messages": [[]]}', b"[" * 9000])
async def test_a_body_that_is_none_of_the_protocol_is_an_error_of_the_answer(body: bytes) -> None:
    async def page(_: web.Request) -> web.StreamResponse:
        return web.Response(body=body, content_type="application/json")

    async with stub(page) as (_, client):
        with pytest.raises(AnswerError):
            await client.fetch(GROUP)


@pytest.mark.parametrize("far", [2**64 - 1, 2**63])
async def test_a_number_out_of_range_is_an_error_of_the_answer_in_protobuf_too(far: int) -> None:
    async def page(_: web.Request) -> web.StreamResponse:
        message = conclave_pb2.StoredMessage(sequence_num=1, sender_id=GROUP.bytes, mls_message=b"A", created_at=far)
        body = conclave_pb2.GetMessagesResponse(messages=[message]).SerializeToString()
        return web.Response(body=body, content_type="application/x-protobuf")

    async with stub(page) as (_, client):
        client.transport.written_in = Format.PROTOBUF
        with pytest.raises(AnswerError):
            await client.fetch(GROUP)


@pytest.mark.parametrize("errors", [None, 5, [], "x", {"name": 5}, {"name": ["no", 5]}], ids=str)
async def test_a_refusal_says_what_it_can_and_not_more_than_can_be_shown(errors: object) -> None:
    async def no(_: web.Request) -> web.StreamResponse:
        return web.json_response({"message": "no " * 300_000, "error_code": 101, "errors": errors}, status=400)

    async with stub(no) as (_, client):
        with pytest.raises(RefusedError) as error:
            await client.groups()
    assert len(str(error.value)) <= 1_000
    assert {name: [*faults] for name, faults in error.value.fields.items()} in ({}, {"name": ["no", "5"]})


@pytest.mark.parametrize(
    "lines",
    [
        b"data: \xff\xfe\n\n",
        b"event: new_message\ndata: " + b"x" * 1_000_000 + b"\n\n",
        *(
            b"event: new_message\ndata: " + each + b"\n\n"
            for each in (
                *(b"x", b"5", b"[]", b"{}", b'{"group_id": 5, "sequence_num": 1, "sender_id": 5}'),
                *(b'{"group_id": "%s", "sequence_num": "1", "sender_id": "%s"}' % (2 * (str(GROUP).encode(),)),),
            )
        ),
        b"event: lagged\ndata: many\n\n",
    ],
    ids=["no UTF-8", "no end", "no JSON", "number", "list", "empty", "no ids", "no number", "lagged"],
)
async def test_a_stream_with_what_is_no_event_is_an_error_of_the_answer(lines: bytes) -> None:
    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(lines)
        return response

    async with stub(stream) as (_, client), client.listen() as events:
        with pytest.raises(AnswerError):
            await anext(events)


MIB = 1024 * 1024


async def endless(request: web.Request) -> web.StreamResponse:
    """Answer without an end."""
    kind = "text/event-stream" if request.path.endswith("/events") else "application/json"
    response = web.StreamResponse(headers={"Content-Type": kind})
    await response.prepare(request)
    with contextlib.suppress(ConnectionError):
        while True:
            await response.write(b"[" * MIB)
    return response


async def endless_refusal(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(status=400, headers={"Content-Type": "application/json"})
    await response.prepare(request)
    with contextlib.suppress(ConnectionError):
        while True:
            await response.write(b" " * MIB)
    return response


async def packed(_: web.Request) -> web.Response:
    """Answer with little that becomes much."""
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    return web.Response(body=gzip.compress(b" " * (80 * MIB), 1), headers=headers)


@pytest.mark.parametrize("answer", [endless, endless_refusal, packed])
async def test_an_answer_without_an_end_is_not_read_to_its_end(answer: Answer) -> None:
    async with stub(answer, answer, answer) as (_, client):
        client.transport._timeouts = Timeouts()  # however long the machine takes to make so much
        for ask in (client.groups, client.me, partial(client.fetch, GROUP)):
            with pytest.raises(AnswerTooLongError, match="longer than"):
                await ask()


async def test_a_line_of_a_stream_without_an_end_is_not_read_to_its_end() -> None:
    async with stub(endless) as (_, client), client.listen() as events:
        with pytest.raises(AnswerTooLongError, match="too long"):
            await anext(events)


async def test_an_error_of_a_stream_without_an_end_is_not_read_to_its_end() -> None:
    async with stub(endless_refusal) as (_, client):
        client.transport._timeouts = Timeouts()
        with pytest.raises(AnswerTooLongError, match="longer than"):
            async with client.listen():
                pass


async def test_a_page_of_large_messages_is_read() -> None:
    message = {"sequence_num": 1, "sender_id": str(GROUP), "mls_message": "eHh4" * (5 * MIB), "created_at": 1}

    async def page(_: web.Request) -> web.Response:
        return web.json_response({"messages": [message]})

    async with stub(page) as (_, client):
        client.transport._timeouts = Timeouts()
        [found] = await client.fetch(GROUP)
    assert len(found.mls_message) == 15 * MIB


async def test_an_answer_that_takes_too_long_is_none() -> None:
    async def slow(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(60)
        return web.Response()

    handler = Stub(slow)
    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", handler.handle)
    server = TestServer(app)
    await server.start_server(shutdown_timeout=0.1)
    hasty = Timeouts(request=0.05)
    async with Client(str(server.make_url("/")), backoff=Backoff(tries=1), timeouts=hasty) as client:
        with pytest.raises(NoAnswerError):
            await client.groups()
    await server.close()


async def test_nothing_listens() -> None:
    async with Client("http://127.0.0.1:1", backoff=QUICK) as client:
        with pytest.raises(NoAnswerError):
            await client.transport.request(Call("GET", "/me"), UserInfo)
        with pytest.raises(NoAnswerError):
            async with client.listen():
                pass


async def test_a_certificate_is_checked_and_a_file_of_authorities_is_trusted(tmp_path: Path) -> None:
    make_certificate(tmp_path)
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    app = web.Application()
    app.router.add_get("/api/v1/groups", no_groups)
    server = TestServer(app, scheme="https", host="localhost")
    await server.start_server(ssl=context)
    url = f"https://localhost:{server.port}"
    try:
        async with Client(url, backoff=Backoff(tries=1)) as client:
            with pytest.raises(NoAnswerError, match="certificate"):
                await client.groups()
        async with Client(url, ca=certificate) as client:
            assert await client.groups() == ()
    finally:
        await server.close()


@given(st.integers(1, 10**6), st.floats(0, 1))
def test_the_wait_grows_and_is_bounded(failures: int, chance: float) -> None:
    backoff = Backoff()
    assert 0 < backoff.delay(failures, chance) <= backoff.most
    assert backoff.delay(1, 1.0) < backoff.delay(2, 1.0) <= backoff.delay(failures + 2, 1.0)


@pytest.mark.parametrize("tries", [1, 3])
def test_only_what_helps_is_waited_for(tries: int) -> None:
    backoff = Backoff(tries=tries)
    wait: float | None = backoff.wait_after(ClientError(), 1, 0.5, repeatable=True)
    assert wait is None
    assert backoff.wait_after(NoAnswerError(), tries, 0.5, repeatable=True) is None
    busy = error_for(503, 0, "later", {}, 2.0)
    assert backoff.wait_after(busy, 1, 0.0, repeatable=False) == (2.0 if tries > 1 else None)


async def test_trouble_is_told_with_the_first_try_that_fails_and_its_end_with_the_next_answer() -> None:
    told: list[NoAnswerError | None] = []
    async with stub(lost, lost, no_groups, no_groups) as (_, client):
        client.transport.on_trouble = told.append
        await client.groups()
        await client.groups()
    assert [type(each) for each in told] == [NoAnswerError, type(None)]


async def test_a_login_under_a_name_that_no_user_can_have_is_none() -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        values = {"token": "5c" * 32, "user_id": str(uuid4()), "username": "al\x1b]0;x\x07ice"}
        return web.json_response(values)

    async with stub(answer) as (_, client):
        with pytest.raises(AnswerError, match="an invalid username"):
            await client.login("alice", "correct horse")
        with pytest.raises(RuntimeError, match="log in"):
            _ = client.session
