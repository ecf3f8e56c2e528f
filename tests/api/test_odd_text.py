"""Text that is none, or that programs stumble over, wherever a request can have some."""

import asyncio
import json
import re
from typing import Any

import pytest

from conclave.server.routes import ROUTES
from conclave.wire.exchange import Endpoint
from conclave.wire.openapi.examples import example
from conclave.wire.schemas.base import schema_instance
from tests.api.test_transport import JSON, ask
from tests.conftest import Running
from tests.support.client import PASSWORD, Client, expect
from tests.support.protobuf import PROTOBUF, ProtobufClient
from tests.support.sample import some
from tests.support.server import PATIENCE

IN_URLS = {
    "NUL": b"%00",
    "NUL behind a name": b"alice%00",
    "a line's end": b"%0d%0a",
    "not UTF-8, escaped": b"%ff%fe",
    "a surrogate, escaped": b"%ed%a0%80",
    "a half escape": b"%",
    "no escape": b"%zz",
    "beyond the first plane": b"%f0%9f%98%80",
    "from right to left": b"%e2%80%ae",
}

IN_TEXTS = ["\0", "a\0b", "\x7f", "\u2028", "\ufeff", "\uffff", "\U0001f600", "a\u0300", "\u202e", "%", "'", '"', "\\"]


async def get(running: Running, path: bytes, token: str) -> tuple[int, dict[str, Any]]:
    """Send a path as it is."""
    reader, writer = await asyncio.open_connection("127.0.0.1", running.server.port)
    writer.write(
        b"GET /api/v1%s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer %s\r\n\r\n"
        % (path, token.encode())
    )
    head, _, body = (await asyncio.wait_for(reader.read(), PATIENCE)).partition(b"\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    return int(head.split()[1]), json.loads(body)


@pytest.mark.parametrize("what", IN_URLS)
async def test_no_user_has_an_odd_name(running: Running, what: str) -> None:
    alice = await running.user("alice")
    status, body = await get(running, b"/users/" + IN_URLS[what], alice.token)
    assert (status, body["error_code"]) == (404, 300)
    status, body = await get(running, b"/users/by-id/" + IN_URLS[what], alice.token)
    assert (status, body["error_code"]) == (400, 101)


@pytest.mark.parametrize("what", IN_URLS)
async def test_an_odd_pattern_finds_nothing_or_is_refused(running: Running, what: str) -> None:
    alice = await running.user("alice")
    await alice.create_group("alice")
    status, body = await get(running, b"/groups/public?pattern=" + IN_URLS[what], alice.token)
    if status == 200:
        assert body == {"groups": [], "more": False}
    else:
        assert (status, body["error_code"], list(body["errors"])) == (400, 101, ["pattern"])
    assert (status == 400) == (what in REFUSED)


REFUSED = {"NUL", "NUL behind a name", "a line's end", "from right to left"}


@pytest.mark.parametrize("text", ["\x9b31m", "a\x85b", "\u202egnp.exe", "a\u2028b", "\ufeffadmin", "a\U000e0041"])
@pytest.mark.parametrize("kind", [Client, ProtobufClient])
async def test_no_alias_has_what_is_unseen_or_turns_the_direction(
    running: Running, kind: type[Client], text: str
) -> None:
    alice = await kind.register(running.http, running.url, "alice")
    group = await alice.create_group("friends")
    bob = Client(running.http, running.url)
    for request in (
        alice.call("PATCH", "/me", json={"alias": text}),
        alice.patch(group, alias=text),
        alice.post("/groups", group_name="others", alias=text),
        bob.post("/register", username="bob", password=PASSWORD, alias=text),
    ):
        await expect(request, 400, 101)
    assert (await alice.get("/me"))["alias"] == ""


@pytest.mark.parametrize("what", IN_URLS)
async def test_other_values_of_a_query_are_refused_too(running: Running, what: str) -> None:
    alice = await running.user("alice")
    group = await alice.create_group("friends")
    for path in (f"/groups/{group}/messages?limit=", f"/groups/{group}/messages?after=1", "/events?format=json"):
        status, body = await get(running, path.encode() + IN_URLS[what], alice.token)
        assert (status, body["error_code"]) == (400, 101), path


@pytest.mark.parametrize("text", some(IN_TEXTS, 4, "texts in bodies"))
async def test_no_text_in_a_body_is_a_failure(running: Running, text: str) -> None:
    for number, route in enumerate(route for route in ROUTES if route.body):
        # Of her own for each, since a route may end her session or the group.
        alice = await running.user(f"alice{number}")
        group = await alice.create_group(f"friends{number}")
        await send_in_each_field(running, route, text, re.sub(r"\{\w+\}", group, route.path), alice.token)


async def send_in_each_field(running: Running, route: Endpoint, text: str, path: str, token: str) -> None:
    assert route.body
    fields = (
        example(schema_instance(route.body)) | {"password": "wrong password"} if route.path.endswith("account") else {}
    )
    for name in schema_instance(route.body).fields:
        data = json.dumps(fields | {name: text})
        status, _, _ = await ask(
            running, route.method, path, data=data, headers=JSON, token="" if route.public else token
        )
        assert status < 429, f"{route.method} {path} with {name}"


@pytest.mark.parametrize("text", [rb"\ud800", rb"\udc00", rb"\ud800\ud800", b"\xed\xa0\x80", b"\xff", b"\xc0\x80"])
async def test_half_a_character_is_no_text(running: Running, text: bytes) -> None:
    for name in (b"username", b"password", b"mistyped"):
        for body in (b'{"%s": "%s"}' % (name, text), b'{"%s": 1}' % text):
            status, answer, _ = await ask(running, "POST", "/api/v1/login", data=body, headers=JSON)
            assert (status, answer["error_code"]) == (400, 100)
    body = b"\x0a" + bytes([len(text)]) + text + b"\x12\x01a"
    status, answer, _ = await ask(running, "POST", "/api/v1/login", data=body, headers=PROTOBUF)
    assert (status, answer["error_code"]) == ((400, 100) if text[0] >= 0x80 else (401, 202))


@pytest.mark.parametrize("text", IN_TEXTS)
async def test_a_password_counts_as_it_is(running: Running, text: str) -> None:
    alice = Client(running.http, running.url)
    await alice.post("/register", username="alice", password=PASSWORD + text)
    await alice.post("/login", username="alice", password=PASSWORD + text)
    await expect(alice.post("/login", username="alice", password=PASSWORD), 401, 202)
    await expect(alice.post("/login", username="alice" + text, password=PASSWORD + text), 401, 202)
