"""A real server behind the real nginx and the real Caddy, with the configurations of deploy/."""

import asyncio
import base64
import io
import json
import os
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientError, ClientResponse, ClientSession, TCPConnector

from conclave.client import Client as LibraryClient
from conclave.wire.exchange import MAX_BODY_BYTES
from tests.conftest import Running
from tests.support.client import Client, encode
from tests.support.proxies import KINDS, Proxy, proxy
from tests.support.server import PATIENCE, ServerProcess, waiting

SETTINGS = """
[cleanup]
engine = "sql"
disk_reserve = "0"
[limits]
trusted_proxies = ["127.0.0.1"]
login_failures_per_address = 3
"""

LARGE = 700_000
"""Bytes of a large body, which base64 makes 933,336. A page has two of them."""

CURL = ("curl", "--http2", "--insecure", "--silent", "--show-error", "--noproxy", "*")
with_curl = pytest.mark.skipif(not shutil.which("curl"), reason="needs curl")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    (tmp_path / "server").mkdir()
    with ServerProcess(tmp_path / "server", SETTINGS) as found:
        yield found


@pytest.fixture(params=KINDS)
def front(request: pytest.FixtureRequest, tmp_path: Path, server: ServerProcess) -> Iterator[Proxy]:
    with proxy(request.param, tmp_path / request.param, server.url) as found:
        yield found


def _socket(address: tuple[Any, ...]) -> socket.socket:
    """Make a socket for which the system holds little: what its client does not take stays with the proxy."""
    made = socket.socket(*address[:3])
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 * 1024)
    return made


@asynccontextmanager
async def connection(address: str = "127.0.0.1") -> AsyncIterator[ClientSession]:
    connector = TCPConnector(ssl=False, limit=0, local_addr=(address, 0), socket_factory=_socket)
    async with ClientSession(connector=connector) as http:
        yield http
        await connector.close(abort_ssl=True)
    await asyncio.sleep(0.25)  # a connection that was closed before may not have ended yet


def cut(stream: ClientResponse) -> None:
    """End a stream's connection at once. Closed within TLS, it would wait for the other end."""
    assert stream.connection
    assert stream.connection.transport
    stream.connection.transport.abort()


def bodies() -> tuple[bytes, list[bytes]]:
    """A word that is in no file yet, and large bodies that have it all over, as they are sent in base64."""
    word = base64.b64encode(os.urandom(18))
    return word, [base64.b64decode(word) * (LARGE // 18) for _ in range(12)]


async def test_pages_of_megabytes_pass_and_leave_nothing_in_a_file(front: Proxy) -> None:
    word, sent = bodies()
    async with connection() as http:
        alice = await Client.register(http, front.url, "alice")
        group = await alice.create_group("g")
        for body in sent:
            await alice.send(group, body)
        assert [message.body for message in await alice.fetch_all(group)] == sent
        headers = {"Authorization": f"Bearer {alice.token}"}
        async with http.get(f"{front.url}/api/v1/groups/{group}/messages", headers=headers) as page:
            await asyncio.sleep(1)  # a client that takes nothing: a proxy that buffers would by now
            assert (await page.read()).count(word) == 2 * (LARGE // 18)
        too_large = io.BytesIO(json.dumps({"mls_message": encode(bytes(MAX_BODY_BYTES * 3 // 4))}).encode())
        headers["Content-Type"] = "application/json"
        async with http.post(f"{front.url}/api/v1/groups/{group}/messages", data=too_large, headers=headers) as answer:
            assert (answer.status, bool((await answer.json())["error_code"])) == (413, True), "the server's own words"
    assert not [path for path, written in front.written().items() if word in written or b"[crit]" in written]


async def test_a_body_that_the_proxy_refuses_itself_is_refused_in_the_words_of_the_api(front: Proxy) -> None:
    as_json = {"Content-Type": "application/json"}
    async with connection() as http:
        async with http.post(f"{front.url}/api/v1/login", data=io.BytesIO(b" " * (2 << 20)), headers=as_json) as answer:
            assert (answer.status, answer.content_type) == (413, "application/json")
            told = await answer.json()
        async with http.post(
            f"{front.url}/api/v1/login", data=io.BytesIO(b" " * ((1 << 20) + 1)), headers=as_json
        ) as answer:
            assert (answer.status, await answer.json()) == (413, told), "as the server says it"
    assert told["error_code"] == 100


@with_curl
async def test_http2_passes_and_leaves_nothing_in_a_file(front: Proxy) -> None:
    """Also bodies whose length nobody has said."""
    word, sent = bodies()
    async with connection() as http:
        alice = await Client.register(http, front.url, "alice")
        group = await alice.create_group("g")
    url, token = f"{front.url}/api/v1/groups/{group}/messages", ("-H", f"Authorization: Bearer {alice.token}")
    for body in sent[:3]:
        request = json.dumps({"mls_message": encode(body)})
        ran = curl(*token, "-H", "Content-Type: application/json", "-X", "POST", "-T", "-", url, given=request)
        assert json.loads(ran)["sequence_num"]
    pages = [curl(*token, f"{url}?after={after}") for after in (0, 2)]
    assert [page.count(word.decode()) for page in pages] == [2 * (LARGE // 18), LARGE // 18]
    assert not [path for path, written in front.written().items() if word in written or b"[crit]" in written]


def curl(*arguments: str, given: str = "") -> str:
    """Ask by HTTP/2, and return the answer."""
    told = ("--fail-with-body", "--write-out", "%{stderr}%{http_version}")
    ran = subprocess.run([*CURL, *told, *arguments], input=given, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "2"), ran.stdout
    return ran.stdout


async def test_a_stream_is_passed_on_at_once_and_stays_open(front: Proxy) -> None:
    async with connection() as http:
        alice = await Client.register(http, front.url, "alice")
        bob = await Client.register(http, front.url, "bob")
        group = await alice.create_group("g")
        await bob.join(group)
        headers = {"Authorization": f"Bearer {bob.token}"}
        async with http.get(f"{front.url}/api/v1/events", headers=headers, timeout=None) as stream:
            assert stream.status == 200
            for text in (b"one", b"two"):
                number = await alice.send(group, text)
                # A proxy that buffers would hold it back until there are kilobytes of them.
                while not (line := await stream.content.readline()).startswith(b"data:"):
                    assert line
                assert json.loads(line.removeprefix(b"data:"))["sequence_num"] == number
                while not (line := await stream.content.readline()).startswith(b":"):  # 10 seconds without an event
                    assert line, "it has ended"
            cut(stream)


@with_curl
async def test_the_end_of_the_server_ends_streams_and_no_log_has_ids(front: Proxy, server: ServerProcess) -> None:
    async with connection() as http:
        alice = await Client.register(http, front.url, "alice")
        group = await alice.create_group("g")
        headers = {"Authorization": f"Bearer {alice.token}"}
        # Not by aiohttp: a stream that is cut within TLS leaves it half a minute of waiting.
        listening = (*CURL, "--no-buffer", "-H", f"Authorization: Bearer {alice.token}", f"{front.url}/api/v1/events")
        with subprocess.Popen(listening, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as stream:
            for _ in waiting("the stream"):
                if any(event.get("route") == "/api/v1/events" for event in server.events()):
                    break
            assert stream.poll() is None
            assert server.stop()[0] == 0
            stream.wait(PATIENCE)
        async with http.get(f"{front.url}/api/v1/groups/{group}/messages", headers=headers) as answer:
            assert answer.status == 502
            assert (await answer.json())["message"] == "the server does not answer"
            assert answer.headers["Retry-After"] == "10"
            assert answer.headers["Strict-Transport-Security"]
        front.process.terminate()
        front.process.wait()
    told = [word.encode() for word in (group, alice.user_id, alice.token)]
    assert not [path for path, written in front.written().items() if any(word in written for word in told)]


async def test_clients_count_by_their_own_addresses(front: Proxy) -> None:
    async with connection("127.0.0.2") as bad, connection("127.0.0.3") as good:
        await Client.register(good, front.url, "alice")
        for number in range(3):
            assert await login(bad, front, f"user{number}") == 401
        assert await login(bad, front, "alice") == 429
        assert await login(bad, front, "alice", "127.0.0.3") == 429, "what the client writes there itself"
        assert await login(good, front, "alice") == 401


async def login(http: ClientSession, front: Proxy, name: str, forwarded: str = "") -> int:
    headers = {"X-Forwarded-For": forwarded} if forwarded else {}
    body = {"username": name, "password": "wrong horse"}
    async with http.post(f"{front.url}/api/v1/login", json=body, headers=headers) as answer:
        return answer.status


async def test_without_tls_nothing_is_served(front: Proxy) -> None:
    async with connection() as http, http.get(f"{front.plain_url}/healthz", allow_redirects=False) as answer:
        assert answer.status == 403


async def test_nginx_limits_the_connections_of_an_address(tmp_path: Path, server: ServerProcess) -> None:
    with proxy(
        "nginx", tmp_path / "nginx", server.url, lambda text: text.replace("clients 2000", "clients 2")
    ) as front:
        async with connection("127.0.0.2") as http, connection("127.0.0.3") as other:
            alice = await Client.register(http, front.url, "alice")
            headers = {"Authorization": f"Bearer {alice.token}"}
            async with (
                http.get(f"{front.url}/api/v1/events", headers=headers, timeout=None) as first,
                http.get(f"{front.url}/api/v1/events", headers=headers, timeout=None) as second,
            ):
                assert (first.status, second.status) == (200, 200)
                for session, status in ((http, 429), (other, 200)):
                    async with session.get(f"{front.url}/healthz") as answer:
                        assert answer.status == status
                        if status == 429:
                            assert ((await answer.json())["error_code"], answer.headers["Retry-After"]) == (100, "10")
                cut(first)
                cut(second)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("client_body_buffer_size 1200k", "client_body_buffer_size 8k"),
        ("proxy_buffering off;\n    proxy_max_temp_file_size 0", "proxy_buffering on"),
    ],
)
async def test_the_trap_finds_bodies_that_nginx_writes(
    tmp_path: Path, server: ServerProcess, before: str, after: str
) -> None:
    """Without these settings the tests above would fail."""

    def change(text: str) -> str:
        assert before in text
        return text.replace(before, after)

    _, sent = bodies()
    async with connection() as http:
        direct = await Client.register(http, server.url, "alice")
        group = await direct.create_group("g")
        for body in sent:
            await direct.send(group, body)
        with proxy("nginx", tmp_path / "nginx", server.url, change) as front:
            headers = {"Authorization": f"Bearer {direct.token}"}
            url = f"{front.url}/api/v1/groups/{group}/messages"
            try:
                async with http.get(url, headers=headers) as page:
                    await asyncio.sleep(1)
                    await page.read()
                async with http.post(url, headers=headers, json={"mls_message": encode(sent[0])}) as answer:
                    await answer.read()
            except ClientError:
                pass
            assert b"[crit]" in front.written()[str(front.folder / "conclave.log")]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_proxy_hands_on_that_the_clock_is_in_doubt(kind: str, running: Running, tmp_path: Path) -> None:
    """Each writes a Date of its own beside it."""
    with proxy(kind, tmp_path / kind, running.url) as front:
        running.clock.set_wrong(10 * 86_400)
        async with connection() as http, http.get(f"{front.url}/api/v1/groups") as answer:
            assert answer.headers["X-Clock-In-Doubt"] == "true"
            assert "Date" in answer.headers


async def test_a_date_that_a_proxy_puts_in_is_no_time_for_clients(running: Running, tmp_path: Path) -> None:
    with proxy("nginx", tmp_path / "nginx", running.url) as front:
        url = front.url.replace("127.0.0.1", "localhost")  # for which the certificate is
        async with LibraryClient(url, ca=front.folder / "cert.pem") as alice:
            await alice.register("alice", "correct horse")
            await alice.login("alice", "correct horse")
            heard: list[int | None] = []
            alice.transport.on_time = heard.append
            await alice.me()
            async with alice.listen():
                assert len(heard) == 2
                assert None not in heard
            running.clock.set_wrong(10 * 86_400)
            heard.clear()
            await alice.me()
            async with alice.listen():
                assert heard == [None, None]
