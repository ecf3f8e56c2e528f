"""A server that may have few files open, beside connections on which nothing is said."""

import asyncio
import contextlib
import socket
from pathlib import Path

import pytest
from aiohttp import ClientSession, TCPConnector

from tests.support.certificate import TLS, make_certificate
from tests.support.client import Client
from tests.support.server import PATIENCE, ServerProcess

SQL = '[cleanup]\nengine = "sql"\n'
FILES = 300
LIMITED = f"""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({FILES}, {FILES}))
from conclave.cli.main import main
main()
"""

SAID = {
    "nothing": b"",
    "half a head": b"GET /healthz HTTP/1.1\r\nHost: x\r\n",
    "a request of a stranger": b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
}


@pytest.mark.parametrize("said", SAID)
@pytest.mark.parametrize("is_secured", [False, True], ids=["plain", "tls"])
async def test_four_hundred_connections_that_say_nothing_keep_nobody_out(
    tmp_path: Path, is_secured: bool, said: str
) -> None:
    """Of those over TLS the handshakes do not come to their end."""
    if is_secured:
        make_certificate(tmp_path)
    with ServerProcess(tmp_path, (TLS if is_secured else "") + SQL, command=("-c", LIMITED)) as server:
        host, port = server.url.split("//")[1].split(":")
        async with ClientSession(connector=TCPConnector(ssl=False)) as http, asyncio.timeout(PATIENCE):
            with contextlib.ExitStack() as ends:
                for each in range(2):
                    for _ in range(200):
                        end = ends.enter_context(contextlib.closing(socket.create_connection((host, int(port)))))
                        with contextlib.suppress(ConnectionError):
                            end.sendall(SAID[said])
                    bob = await Client.register(http, server.url, f"bob{each}")
                    assert (await bob.get("/me"))["user_id"] == bob.user_id
                async with http.get(server.wait_for("listening")["admin_url"] + "/healthz") as response:
                    assert response.status == 200
                taken = sum(1 for _ in Path(f"/proc/{server.process.pid}/fd").iterdir())
                assert taken < FILES - 64
            assert (await bob.get("/me"))["user_id"] == bob.user_id
        assert server.stop()[0] == 0


async def test_the_operators_listener_answers_beside_silent_connections_to_it(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, SQL, command=("-c", LIMITED)) as server:
        url = server.wait_for("listening")["admin_url"]
        host, port = url.split("//")[1].split(":")
        async with ClientSession() as http, asyncio.timeout(PATIENCE):
            with contextlib.ExitStack() as ends:
                for _ in range(400):
                    ends.enter_context(contextlib.closing(socket.create_connection((host, int(port)))))
                async with http.get(f"{url}/healthz") as response:
                    assert response.status == 200
                assert (await Client.register(http, server.url, "alice")).token
