"""What holds for every endpoint: formats, errors, limits, headers."""

import asyncio
import contextlib
import io
import json
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from conclave import app_keys
from conclave.config.settings import Config
from conclave.server.client_port import connection
from conclave.server.routes import ROUTES
from conclave.wire import exchange
from tests.conftest import Running, StartServer
from tests.support.client import PASSWORD
from tests.support.protobuf import PROTOBUF, ProtobufClient, decode, encode
from tests.support.server import PATIENCE

JSON = {"Content-Type": "application/json"}


async def ask(
    running: Running,
    method: str,
    path: str,
    *,
    data: Any = None,
    headers: dict[str, str] | None = None,
    token: str = "",
) -> tuple[int, dict[str, Any], Mapping[str, str]]:
    """Send a raw request; return status, body and headers. In protobuf only errors have a body here."""
    sent = (headers or {}) | ({"Authorization": f"Bearer {token}"} if token else {})
    async with running.http.request(
        method, running.url + path, data=data, headers=sent, skip_auto_headers=["Content-Type"]
    ) as response:
        body = await response.read()
        if response.content_type == PROTOBUF["Content-Type"]:
            return response.status, decode("ErrorResponse", body) if response.status >= 400 else {}, response.headers
        return response.status, json.loads(body) if body else {}, response.headers


async def test_an_unknown_path_is_404_with_the_error_body(running: Running) -> None:
    status, body, headers = await ask(running, "GET", "/api/v1/nothing")
    assert (status, body["error_code"], body["error"]) == (404, 300, "resource_not_found")
    assert headers["Cache-Control"] == "no-store"
    assert "aiohttp" not in headers["Server"]


async def test_a_wrong_method_is_405_with_those_allowed(running: Running) -> None:
    status, body, headers = await ask(running, "DELETE", "/api/v1/groups")
    assert (status, body["error_code"], headers["Allow"]) == (405, 100, "GET, HEAD, POST")


async def test_a_head_on_messages_is_405_without_a_body(running: Running) -> None:
    alice = await running.user("alice")
    group = await alice.create_group("friends")
    status, body, _ = await ask(running, "HEAD", f"/api/v1/groups/{group}/messages", token=alice.token)
    assert (status, body) == (405, {})
    assert (await ask(running, "HEAD", "/api/v1/me", token=alice.token))[0] == 200


async def test_every_route_but_the_public_ones_needs_a_token_before_anything_else(running: Running) -> None:
    for route in ROUTES:
        if not route.public:
            path = re.sub(r"\{\w+\}", "not an id", route.path)
            status, body, _ = await ask(running, route.method, path, data=b"{", headers={"Content-Type": "text/plain"})
            assert (status, body["error_code"]) == (401, 200), f"{route.method} {path}"


@pytest.mark.parametrize(
    "bad", ["x", "123", "{00000000-0000-4000-8000-000000000000}", "0" * 31, "urn:uuid:" + "0" * 32]
)
async def test_a_malformed_id_is_400_before_content_type_and_body(running: Running, bad: str) -> None:
    alice = await running.user("alice")
    for route in ROUTES:
        if "_id}" in route.path:
            path = re.sub(r"\{\w+\}", lambda _: bad, route.path)
            status, body, _ = await ask(
                running, route.method, path, data=b"{", headers={"Content-Type": "text/plain"}, token=alice.token
            )
            assert (status, body["error_code"]) == (400, 101), f"{route.method} {path}"


@pytest.mark.parametrize("content_type", [None, "text/plain", "application/x-www-form-urlencoded", "application/jsonx"])
async def test_another_content_type_is_415(running: Running, content_type: str | None) -> None:
    headers = {"Content-Type": content_type} if content_type else {}
    status, body, _ = await ask(running, "POST", "/api/v1/login", data=b"{}", headers=headers)
    assert (status, body["error_code"]) == (415, 100)
    assert "application/json" in body["message"]
    assert "application/x-protobuf" in body["message"]


@pytest.mark.parametrize("headers", [{}, {"Content-Type": "text/plain"}, JSON, PROTOBUF], ids=str)
@pytest.mark.parametrize("chunked", [False, True])
async def test_an_empty_body_is_an_empty_message_whatever_its_type(
    running: Running, headers: dict[str, str], chunked: bool
) -> None:
    alice = await running.user("alice")
    group = await alice.create_group("friends")

    async def nothing() -> AsyncIterator[bytes]:
        await asyncio.sleep(0.05)
        yield b""

    path = f"/api/v1/groups/{group}/commit"
    data = nothing() if chunked else None
    assert (await ask(running, "POST", path, data=data, headers=headers, token=alice.token))[0] == 200


async def test_chunks_of_another_content_type_are_415(running: Running) -> None:
    status, body, _ = await ask(running, "POST", "/api/v1/login", data=io.BytesIO(b"{}"))
    assert (status, body["error_code"]) == (415, 100)

    async def chunks() -> AsyncIterator[bytes]:
        yield b"{}"

    status, body, _ = await ask(running, "POST", "/api/v1/login", data=chunks())
    assert (status, body["error_code"]) == (415, 100)


@pytest.mark.parametrize("content_type", ["application/X-Protobuf", "application/x-protobuf;a=b"])
async def test_case_and_parameters_of_a_content_type_do_not_matter(running: Running, content_type: str) -> None:
    await running.user("alice")
    data = encode("LoginRequest", {"username": "alice", "password": PASSWORD})
    headers = {"Content-Type": content_type}
    status, _, answered = await ask(running, "POST", "/api/v1/login", data=data, headers=headers)
    assert (status, answered["Content-Type"]) == (200, "application/x-protobuf")


async def test_a_post_without_any_length_is_answered_at_once(running: Running) -> None:
    """Neither Content-Length nor Transfer-Encoding, on a connection that stays open."""
    alice = await ProtobufClient.register(running.http, running.url, "alice")
    group = await alice.create_group("friends")
    reader, writer = await asyncio.open_connection("127.0.0.1", running.server.port)
    for path, status in (
        (f"/groups/{group}/leave", 200),
        (f"/groups/{group}/delete", 401),
        ("/logout", 204),
        ("/logout", 401),
    ):
        head = f"POST /api/v1{path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {alice.token}\r\n\r\n"
        writer.write(head.encode())
        answer = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)).decode()
        assert answer.startswith(f"HTTP/1.1 {status} "), answer
        lines = dict(line.lower().split(": ", 1) for line in answer.strip().split("\r\n")[1:])
        assert status == 204 or lines["content-type"] == "application/x-protobuf"
        await reader.readexactly(int(lines.get("content-length", "0")))
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("header", [b"Bearer", b"Bearer ", b"Bearer \xff\xfe", b"\xff", b"Bearer " + b"1" * 8000])
async def test_strange_credentials_are_401_and_an_empty_token_is_told_in_json(running: Running, header: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", running.server.port)
    writer.write(b"GET /api/v1/me HTTP/1.1\r\nhost: x\r\nauthorization: " + header + b"\r\n\r\n")
    answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert (b"application/json" in answer) == (not header.endswith(b"1"))
    writer.close()
    await writer.wait_closed()


async def test_a_raw_token_in_a_header_of_the_operators_decides_the_format(
    config: Config, start_server: StartServer
) -> None:
    async with start_server(replace(config, auth_header="X-Conclave")) as running:
        alice = await ProtobufClient.register(running.http, running.url, "alice")
        for token, status in ((alice.token, 200), ("1" * 64, 401)):
            answered = await ask(running, "GET", "/api/v1/me", headers={"X-Conclave": token})
            assert (answered[0], answered[2]["Content-Type"]) == (status, "application/x-protobuf")
        status, _, headers = await ask(running, "GET", "/api/v1/me", token=alice.token)
        assert (status, headers["Content-Type"]) == (401, "application/json"), "not the header that counts"


async def test_a_charset_does_no_harm(running: Running) -> None:
    headers = {"Content-Type": "application/json; charset=utf-8"}
    status, body, _ = await ask(running, "POST", "/api/v1/login", data=b"{}", headers=headers)
    assert (status, set(body["errors"])) == (400, {"username", "password"})


async def test_an_endpoint_without_a_body_ignores_the_content_type(running: Running) -> None:
    alice = await running.user("alice")
    status, _, _ = await ask(
        running, "POST", "/api/v1/logout", data=b"<x>", headers={"Content-Type": "text/xml"}, token=alice.token
    )
    assert status == 204


@pytest.mark.parametrize(
    "data", [b"{", b"[]", b"null", b'"x"', b'{"username": "\xff"}', b"\x00", b"{} {}", b'{"a": NaN}']
)
async def test_a_malformed_body_is_400(running: Running, data: bytes) -> None:
    status, body, _ = await ask(running, "POST", "/api/v1/login", data=data, headers=JSON)
    assert (status, body["error_code"]) == (400, 100)


async def test_a_body_over_1_mib_is_413_and_the_connection_is_not_reset(running: Running) -> None:
    status, body, _ = await ask(running, "POST", "/api/v1/login", data=io.BytesIO(b" " * 1_048_577), headers=JSON)
    assert (status, body["error_code"]) == (413, 100)

    async def chunks() -> Any:
        for _ in range(20):
            yield b" " * 65_536

    status, body, _ = await ask(running, "POST", "/api/v1/login", data=chunks(), headers=JSON)
    assert (status, body["error_code"]) == (413, 100)
    status, body, _ = await ask(
        running, "POST", "/api/v1/login", data=io.BytesIO(b" " * 1_048_574 + b"{}"), headers=JSON
    )
    assert status == 400, "1 MiB is within the limit"


@pytest.mark.system
async def test_a_body_that_trickles_in_is_400_and_the_connection_ends(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "BODY_SECONDS", 0.5)
    reader, writer = await asyncio.open_connection("127.0.0.1", running.server.port)
    head = "POST /api/v1/login HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 1000000\r\n\r\n"
    writer.write(head.encode())
    answered = asyncio.create_task(reader.readuntil(b"\r\n\r\n"))
    async with asyncio.timeout(PATIENCE):
        while not answered.done():
            writer.write(b" " * 100)
            await asyncio.sleep(0.05)
        assert (await answered).startswith(b"HTTP/1.1 400 ")
        assert (await reader.read()).endswith(b"}"), "nothing follows, and the connection is closed"
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def test_a_stop_does_not_wait_for_those_who_were_refused(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they still send is taken for a while: with anybody's nonsense a stop would take that while."""
    monkeypatch.setattr(connection, "LINGER_SECONDS", 3600.0)
    monkeypatch.setattr(running.server.runner, "_shutdown_timeout", 3600.0)
    reader, writer = await asyncio.open_connection("127.0.0.1", running.server.port)
    with contextlib.closing(writer):
        writer.write(b"nonsense\r\n\r\n")
        async with asyncio.timeout(PATIENCE):
            assert b" 400 " in await reader.read(), "the answer has its end at once"
            await running.server.close()


async def test_a_body_that_cannot_be_decompressed_is_400(running: Running) -> None:
    headers = JSON | {"Content-Encoding": "gzip"}
    status, body, _ = await ask(running, "POST", "/api/v1/login", data=b"not gzip", headers=headers)
    assert (status, body["error_code"]) == (400, 100)


async def test_a_failure_inside_tells_nothing(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    alice = await running.user("alice")

    async def fail(*_: object) -> None:
        raise RuntimeError("SELECT secret FROM /var/lib")

    monkeypatch.setattr(running.app[app_keys.STORE], "read", fail)
    status, body, _ = await ask(running, "GET", "/api/v1/me", token=alice.token)
    assert status == 500
    assert body == {"message": "internal server error", "error_code": 0, "error": "unspecified", "errors": {}}


async def test_health_says_only_ok_or_degraded(running: Running) -> None:
    assert (await ask(running, "GET", "/healthz"))[:2] == (200, {"status": "ok"})
    running.app[app_keys.HEALTH].set_fault("cleanup", "no Java")
    assert (await ask(running, "GET", "/healthz"))[:2] == (200, {"status": "degraded"})
    running.app[app_keys.HEALTH].clear_fault("cleanup")
    assert (await ask(running, "GET", "/healthz"))[:2] == (200, {"status": "ok"})
