"""Web pages of the origins that the operator allows can read every answer, and those of no other."""

import io
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

import pytest
from aiohttp import ClientResponse, web

from conclave.admin.access import Guard
from conclave.admin.app import create_admin_app
from conclave.config.settings import Config
from conclave.config.web import WebConfig
from conclave.server.client_port import ClientPort
from conclave.wire.exchange import MAX_BODY_BYTES
from tests.conftest import ANY_NUMBER, Running, StartServer
from tests.server.client_port.test_fast_path import JSON, PROTOBUF, line_to, poll, send, written
from tests.support.client import API

HERE, THERE = "https://chat.example.org", "http://localhost:3000"
OTHERS = (
    "https://example.org",
    "http://chat.example.org",
    "https://chat.example.org:8443",
    "https://chat.example.org.",
    "null",
)
EXPOSED = {"Retry-After", "Date", "X-Request-ID", "X-Clock-In-Doubt"}

Asked = tuple[str, str, int, dict[str, str], bytes]

ASKED: dict[str, Asked] = {
    "a success": ("GET", "/healthz", 200, {}, b""),
    "one without a body": ("HEAD", "/healthz", 200, {}, b""),
    "a large one": ("GET", f"{API}/openapi.json", 200, {}, b""),
    "a page": ("GET", f"{API}/docs", 200, {}, b""),
    "one of its files": ("GET", f"{API}/docs/swagger-ui.css", 200, {}, b""),
    "no token": ("GET", f"{API}/me", 401, {}, b""),
    "an unknown token": ("GET", f"{API}/groups", 401, {"Authorization": f"Bearer {'a' * 64}"}, b""),
    "no such path": ("GET", f"{API}/nothing", 404, {}, b""),
    "a wrong method": ("PUT", f"{API}/groups", 405, {}, b""),
    "no JSON": ("POST", f"{API}/login", 400, {"Content-Type": JSON}, b"{"),
    "another format": ("POST", f"{API}/login", 415, {"Content-Type": "text/plain"}, b"x"),
    "too large": ("POST", f"{API}/login", 413, {"Content-Type": JSON}, bytes(MAX_BODY_BYTES + 1)),
    "an unknown expectation": ("GET", "/healthz", 400, {"Expect": "200-magic"}, b""),
}


@pytest.fixture
def crossable(config: Config) -> Config:
    return replace(config, web=WebConfig(allowed_origins=(HERE, THERE)))


@pytest.fixture
async def crossing(start_server: StartServer, crossable: Config) -> AsyncIterator[Running]:
    async with start_server(crossable) as running:
        yield running


async def ask(running: Running, asked: Asked, **more: str) -> ClientResponse:
    method, path, status, headers, body = asked
    sent = headers | {name.replace("_", "-"): value for name, value in more.items()}
    async with running.http.request(
        method, running.url + path, headers=sent, data=io.BytesIO(body) if body else None
    ) as answer:
        await answer.read()
    assert answer.status == status, answer
    return answer


def allowed(headers: Mapping[str, str]) -> str | None:
    """Return the origin whose pages can read an answer."""
    assert "Access-Control-Allow-Credentials" not in headers
    assert headers["Vary"] == "Origin"
    found = headers.get("Access-Control-Allow-Origin")
    exposed = headers.get("Access-Control-Expose-Headers", "")
    assert {*exposed.split(", ")} == (EXPOSED if found else {""})
    return found


@pytest.mark.parametrize("which", ASKED)
async def test_every_answer_says_who_may_read_it(crossing: Running, which: str) -> None:
    for origin in (HERE, THERE):
        assert allowed((await ask(crossing, ASKED[which], Origin=origin)).headers) == origin
    for origin in OTHERS:
        assert allowed((await ask(crossing, ASKED[which], Origin=origin)).headers) is None
    assert allowed((await ask(crossing, ASKED[which])).headers) is None


@pytest.mark.parametrize("which", ASKED)
async def test_by_default_no_answer_says_anything_of_it(running: Running, which: str) -> None:
    headers = (await ask(running, ASKED[which], Origin=HERE)).headers
    assert [name for name in headers if name.lower().startswith("access-control") or name == "Vary"] == []


async def test_by_default_options_is_a_wrong_method(running: Running) -> None:
    asked: Asked = ("OPTIONS", f"{API}/groups", 405, {}, b"")
    answer = await ask(running, asked, Origin=HERE, Access_Control_Request_Method="POST")
    assert (answer.headers["Allow"], "Vary" in answer.headers) == ("GET, HEAD, POST", False)


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/groups", "GET, HEAD, POST"),
        ("/groups/x/messages", "GET, POST"),
        ("/groups/x/messages/1", "DELETE"),
        ("/me", "GET, HEAD, PATCH"),
        ("/events", "GET"),
        ("/nothing", "DELETE, GET, PATCH, POST"),
    ],
)
async def test_a_preflight_is_answered_with_what_may_be_sent(crossing: Running, path: str, methods: str) -> None:
    """Also for a path that does not exist: otherwise the page could not read the 404."""
    answer = await ask(
        crossing,
        ("OPTIONS", API + path, 204, {}, b""),
        Origin=THERE,
        Access_Control_Request_Method="POST",
        Access_Control_Request_Headers="authorization,content-type",
    )
    assert allowed(answer.headers) == THERE
    assert answer.headers["Access-Control-Allow-Methods"] == methods
    sent = {*answer.headers["Access-Control-Allow-Headers"].split(", ")}
    assert sent == {"Authorization", "Content-Type", "Content-Encoding", "Accept"}
    assert 0 < int(answer.headers["Access-Control-Max-Age"]) <= 86_400


@pytest.mark.parametrize(("path", "status"), [("/groups", 405), ("/nothing", 404)])
async def test_options_from_elsewhere_are_refused_as_before(crossing: Running, path: str, status: int) -> None:
    for more in ({}, {"Origin": OTHERS[0]}):
        answer = await ask(crossing, ("OPTIONS", API + path, status, more, b""), Access_Control_Request_Method="POST")
        assert allowed(answer.headers) is None
        assert "Access-Control-Allow-Methods" not in answer.headers


async def test_the_header_with_the_token_is_the_one_that_is_set(start_server: StartServer, crossable: Config) -> None:
    async with start_server(replace(crossable, auth_header="X-Token")) as running:
        answer = await ask(running, ("OPTIONS", f"{API}/groups", 204, {}, b""), Origin=HERE)
        assert answer.headers["Access-Control-Allow-Headers"].startswith("X-Token, ")
        assert "Authorization" not in answer.headers["Access-Control-Allow-Headers"]


async def test_the_event_stream_says_it_too(crossing: Running) -> None:
    alice = await crossing.user("alice")
    for origin, reader in ((HERE, HERE), (OTHERS[0], None)):
        headers = {"Authorization": f"Bearer {alice.token}", "Origin": origin}
        async with crossing.http.get(f"{crossing.url}{API}/events", headers=headers) as stream:
            assert (stream.status, stream.content_type) == (200, "text/event-stream")
            assert allowed(stream.headers) == reader


@pytest.mark.parametrize("media", [JSON, PROTOBUF])
async def test_messages_say_it_however_they_are_answered(crossing: Running, media: str) -> None:
    """Most are answered before aiohttp; a name of a header that is there twice has it answer."""
    alice, bob = await crossing.users("alice", "bob")
    group = await alice.create_group("g")
    async with line_to(crossing.server.port) as line:
        for origin, reader in ((HERE, HERE), (OTHERS[0], None), (None, None)):
            more = {"Origin": origin} if origin else {}
            for twice in ({}, {"X-A": "1", "x-a": "2"}):
                sent = await line.ask(send(alice, group, written(media, b"text"), media, **more, **twice))
                page = await line.ask(poll(alice, group, 0, media, **more, **twice))
                refused = await line.ask(send(bob, group, written(media, b"text"), media, **more, **twice))
                statuses = [each.status.split()[1] for each in (sent, page, refused)]
                assert statuses == ["200", "200", "401"]
                for each in (sent, page, refused):
                    assert allowed(titled(each.headers)) == reader


def titled(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.title(): value for name, value in headers.items()}


async def test_what_is_no_request_is_answered_without_an_origin(crossing: Running) -> None:
    for sent in (
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nOrigin: %b\r\nX: %b\r\n\r\n" % (HERE.encode(), b"x" * 9000),
    ):
        async with line_to(crossing.server.port) as line:
            answer = await line.ask(sent)
            assert (answer.status.split()[1], allowed(titled(answer.headers))) == ("400", None)


async def test_the_operators_listener_lets_no_page_read(crossing: Running) -> None:
    runner = web.AppRunner(create_admin_app(crossing.app, Guard(crossing.config.admin)), access_log=None)
    await runner.setup()
    try:
        url = await ClientPort(runner, "127.0.0.1", 0, ANY_NUMBER).listen()
        for method, status in (("GET", 200), ("OPTIONS", 405)):
            async with crossing.http.request(method, f"{url}/healthz", headers={"Origin": HERE}) as answer:
                assert (answer.status, "Access-Control-Allow-Origin" in answer.headers) == (status, False)
    finally:
        await runner.cleanup()
