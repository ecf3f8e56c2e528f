"""Clients that ask for much and take little: what that costs a real server."""

import asyncio
import contextlib
import re
import socket
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import ClientSession, TCPConnector

from tests.support.certificate import TLS, make_certificate
from tests.support.client import Client, encode
from tests.support.server import PATIENCE, ServerProcess, waiting

SQL = '[cleanup]\nengine = "sql"\n'
MB = 1_000_000
LARGE, SIZE = 8, 600_000
"""So many messages of so many bytes are some pages: three messages each, which are 2.4 MB in JSON."""

ROUNDS = 15


def memory(server: ServerProcess, which: str) -> int:
    """What the server's process has, or had at most, in bytes: VmRSS or VmHWM."""
    text = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(text.split(f"{which}:")[1].split()[0]) * 1024


async def read_slowly(server: ServerProcess, client: Client, path: str) -> None:
    """Ask again and again for ``path``, and take some 20 KB a second."""
    host, port = server.url.removeprefix("http://").split(":")
    while True:
        end = socket.socket()
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        end.settimeout(0)
        with contextlib.closing(end), contextlib.suppress(ConnectionError):
            loop = asyncio.get_running_loop()
            await loop.sock_connect(end, (host, int(port)))
            await loop.sock_sendall(end, client.raw_get(path))
            while await loop.sock_recv(end, 20_000):
                await asyncio.sleep(1)


@contextlib.asynccontextmanager
async def slow(server: ServerProcess, clients: list[Client], path: str, count: int) -> AsyncIterator[None]:
    """Have ``count`` connections of each client read slowly while the block lasts."""
    tasks = [asyncio.create_task(read_slowly(server, each, path)) for each in clients for _ in range(count)]
    try:
        yield
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def used(http: ClientSession, server: ServerProcess) -> float:
    """Return how much memory responses take, as the operators' listener tells."""
    async with http.get(server.wait_for("listening")["admin_url"] + "/metrics") as response:
        [found] = re.findall(r"^conclave_response_memory_used_bytes (\S+)$", await response.text(), re.MULTILINE)
        return float(found)


@pytest.mark.parametrize(
    ("accounts", "count", "most"), [(1, 150, 8.4), (20, 3, 67.2)], ids=["one account", "20 accounts"]
)
async def test_others_are_served_whatever_slow_readers_do(
    tmp_path: Path, accounts: int, count: int, most: float
) -> None:
    """``most``: MB that these responses may take."""
    limits = '[limits]\nresponse_memory = "64m"\nregistrations_per_address = 1000\n'
    with ServerProcess(tmp_path, SQL + limits) as server:
        async with ClientSession() as http, asyncio.timeout(PATIENCE):
            readers = [await Client.register(http, server.url, f"reader{number}") for number in range(accounts)]
            large = await readers[0].create_group("large")
            for each in readers[1:]:
                await each.join(large)
            for _ in range(LARGE):
                await readers[0].send(large, bytes(SIZE))
            alice = await Client.register(http, server.url, "alice")
            group = await alice.create_group("small")
            await alice.post(f"/groups/{group}/commit", group_info=encode(bytes(700_000)))
            for _ in range(3):
                await alice.send(group, bytes(SIZE))
            before = memory(server, "VmRSS")
            async with slow(server, readers, f"/groups/{large}/messages?limit=500", count):
                for _ in waiting("the slow readers to have what they may"):
                    if await used(http, server) > 0.6 * most * MB:
                        break
                for number in range(ROUNDS):
                    assert len(await alice.group_info(group)) == 700_000
                    assert len(await alice.fetch(group, 0, 3)) == 3, "a page that is as large as theirs"
                    assert await alice.send(group) == 4 + number
                    assert (await alice.another("alice")).token
                    assert await used(http, server) <= most * MB
                assert memory(server, "VmHWM") < before + 200 * MB
            for _ in waiting("the memory to come back"):
                if not await used(http, server):
                    break


async def test_bodies_that_stop_half_way_cost_no_more_than_they_have_and_leave_nothing(tmp_path: Path) -> None:
    sent = 1_000_000
    head = "POST /api/v1/login HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 1048576\r\n\r\n"
    with ServerProcess(tmp_path, SQL) as server:
        host, port = server.url.removeprefix("http://").split(":")
        before = memory(server, "VmRSS")
        async with asyncio.timeout(PATIENCE):
            writers = [(await asyncio.open_connection(host, int(port)))[1] for _ in range(100)]
            for writer in writers:
                writer.write(head.encode() + b" " * sent)
                await writer.drain()
            await asyncio.sleep(1)
            assert memory(server, "VmRSS") < before + 130 * sent
            for writer in writers:
                writer.close()
                await writer.wait_closed()
        # What remains depends on the order in which the pieces came. It does not grow with each hundred bodies.
        for _ in waiting("the memory to come back"):
            if memory(server, "VmRSS") < before + 50 * MB:
                break


async def test_a_large_page_over_tls_arrives_and_counts_as_fetched(tmp_path: Path) -> None:
    make_certificate(tmp_path)
    with ServerProcess(tmp_path, TLS + SQL) as server:
        async with ClientSession(connector=TCPConnector(ssl=False)) as http, asyncio.timeout(PATIENCE):
            alice = await Client.register(http, server.url, "alice")
            bob = await Client.register(http, server.url, "bob")
            group = await alice.create_group("g")
            await bob.join(group)
            for _ in range(10):
                await alice.send(group, bytes(SIZE))
            assert [len(await bob.fetch(group, after)) for after in (0, 3, 6, 9)] == [3, 3, 3, 1], "2 MiB each"
            await bob.get("/me")
    with contextlib.closing(sqlite3.connect(tmp_path / "conclave.db")) as connection:
        assert connection.execute("SELECT min(watermark) FROM members").fetchone() == (10,)
