"""Clients that ask for much and take little: what that costs a real server."""

import asyncio
import contextlib
import socket
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

from aiohttp import ClientSession, TCPConnector

from tests.support.certificate import TLS, make_certificate
from tests.support.client import Client
from tests.support.server import PATIENCE, ServerProcess, waiting

SQL = '[cleanup]\nengine = "sql"\n'
MB = 1_000_000
LARGE, SMALL = 45, 740_000
"""So many messages of so many bytes are a page of 32 MiB, about."""


def memory(server: ServerProcess, which: str) -> int:
    """What the server's process has, or had at most, in bytes: VmRSS or VmHWM."""
    text = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(text.split(f"{which}:")[1].split()[0]) * 1024


@contextlib.asynccontextmanager
async def stuck(server: ServerProcess, client: Client, path: str, count: int) -> AsyncIterator[None]:
    """Have ``count`` connections open that ask for ``path`` and take nothing, while the block lasts."""
    host, port = server.url.removeprefix("http://").split(":")
    sockets = []
    try:
        for _ in range(count):
            each = socket.socket()
            sockets.append(each)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            each.connect((host, int(port)))
            each.sendall(client.raw_get(path))
            await asyncio.sleep(0.05)
        await asyncio.sleep(3)
        yield
    finally:
        for each in sockets:
            each.close()


async def test_twenty_readers_that_take_nothing_do_not_fill_the_memory(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, SQL) as server:
        async with ClientSession() as http, asyncio.timeout(PATIENCE):
            alice = await Client.register(http, server.url, "alice")
            large, small = await alice.create_group("large"), await alice.create_group("small")
            for _ in range(LARGE):
                await alice.send(large, bytes(SMALL))
            before = memory(server, "VmRSS")
            async with stuck(server, alice, f"/groups/{large}/messages?limit=500", 20):
                for number in range(1, 101):
                    assert await alice.send(small) == number
                    assert len(await alice.fetch(small)) == min(number, 100)
                assert memory(server, "VmHWM") < 450 * MB
            for _ in waiting("the memory to come back"):
                if memory(server, "VmRSS") < before + 100 * MB:
                    break
            assert len(await alice.fetch(large, 0, 500)) == LARGE, "so does the budget"


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
                await alice.send(group, bytes(SMALL))
            assert len(await bob.fetch(group)) == 10
            await bob.get("/me")
    with contextlib.closing(sqlite3.connect(tmp_path / "conclave.db")) as connection:
        assert connection.execute("SELECT min(watermark) FROM members").fetchone() == (10,)
