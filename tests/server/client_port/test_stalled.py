"""Clients that ask for a page and take nothing of it: they have not fetched it, and it counts as memory in use."""

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import AsyncIterator
from functools import partial

import pytest

from conclave import app_keys
from conclave.config.settings import Config
from conclave.server.client_port import ClientPort, FastPath, connection
from conclave.server.tls import load_context
from tests.conftest import ANY_NUMBER, Running
from tests.server.client_port.test_fast_path import PROTOBUF, forget_groups, poll
from tests.support.certificate import make_certificate
from tests.support.server import PATIENCE, until

LITTLE = 16 * 1024
"""What the system takes of an answer: little, so that what is left is what this process holds."""


@contextlib.asynccontextmanager
async def port_of(
    running: Running, *, is_fast: bool, is_secured: bool, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ClientPort]:
    """A port of the same server that has little room in the system for each connection."""
    folder = running.config.database.parent
    context = None
    if is_secured:
        make_certificate(folder)
        context = load_context(Config(tls_cert_path=str(folder / "cert.pem"), tls_key_path=str(folder / "key.pem")))
    made = connection.ClientConnection.connection_made

    def made_small(each: connection.ClientConnection, transport: asyncio.BaseTransport) -> None:
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LITTLE)
        made(each, transport)

    monkeypatch.setattr(connection.ClientConnection, "connection_made", made_small)
    fast_path = FastPath(running.app) if is_fast else None
    site = ClientPort(running.server.runner, "127.0.0.1", 0, ANY_NUMBER, context, fast_path)
    site.port = int((await site.listen()).rpartition(":")[2])
    try:
        yield site
    finally:
        await site.stop()


def stalled(port: int, asked: bytes, *, is_secured: bool) -> socket.socket:
    """Ask, and read no answer."""
    end = socket.socket()
    end.settimeout(PATIENCE)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    end.connect(("127.0.0.1", port))
    if is_secured:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        end = context.wrap_socket(end)
    end.sendall(asked)
    return end


@pytest.mark.parametrize("size", [60_000, 350_000], ids=["one write", "pieces"])
@pytest.mark.parametrize("is_secured", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("is_fast", [True, False], ids=["fast path", "aiohttp"])
async def test_a_page_of_which_its_reader_takes_nothing_is_not_fetched(
    running: Running, monkeypatch: pytest.MonkeyPatch, is_fast: bool, is_secured: bool, size: int
) -> None:
    """Also over TLS, whose layer says that it has handed on what waits in this process."""
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("g")
    await bob.join(group)
    for _ in range(3):
        await alice.send(group, os.urandom(size))
    await bob.get("/me")  # who is logged in is remembered
    await forget_groups(running)
    budget = running.app[app_keys.BUDGET]
    async with port_of(running, is_fast=is_fast, is_secured=is_secured, monkeypatch=monkeypatch) as site:
        asked = poll(bob, group, 0, PROTOBUF)
        with contextlib.closing(await asyncio.to_thread(partial(stalled, site.port, asked, is_secured=is_secured))):
            await until(lambda: budget.used > 2 * size)
            await asyncio.sleep(0.1)
            assert budget.used > 2 * size, "it waits in this process"
        await until(lambda: not site.open)
    assert budget.used == 0
    assert await running.query("SELECT watermark FROM members WHERE role <> 'admin'") == [(0,)]
