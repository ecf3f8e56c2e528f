"""Connections over TLS that are turned away, or say nothing, hold no descriptor; what comes right away is answered."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, cast

import pytest
import uvloop
from aiohttp import web

from conclave.clock import FakeClock
from conclave.config.settings import Config
from conclave.server.app import create_app
from conclave.server.client_port import ClientPort, ConnectionLimits, admission, port
from conclave.server.tls import load_context
from conclave.wire import response_head
from conclave.wire.handover import wait_for_full_drain
from tests.support.certificate import make_certificate
from tests.support.server import PATIENCE, until

GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    """Runs a coroutine by the loop of the tests, and by that of a server."""
    with asyncio.Runner(loop_factory=request.param) as runner:
        yield runner.run


@contextlib.asynccontextmanager
async def serving(config: Config, clock: FakeClock, most: int) -> AsyncIterator[ClientPort]:
    folder = config.database.parent
    make_certificate(folder)
    tls = load_context(Config(tls_cert_path=str(folder / "cert.pem"), tls_key_path=str(folder / "key.pem")))
    runner = web.AppRunner(create_app(config, clock), shutdown_timeout=1)
    try:
        await runner.setup()
        site = ClientPort(runner, "127.0.0.1", 0, ConnectionLimits(most), tls)
        site.port = int((await site.listen()).rpartition(":")[2])
        yield site
    finally:
        await runner.cleanup()


def unverified() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


async def silent(site: ClientPort) -> socket.socket:
    """Connect, and say nothing."""
    end = socket.socket()
    end.setblocking(False)
    await asyncio.get_running_loop().sock_connect(end, ("127.0.0.1", site.port))
    return end


def test_who_is_turned_away_holds_no_descriptor_for_a_handshake(run: Run, config: Config, clock: FakeClock) -> None:
    async def played() -> None:
        async with serving(config, clock, 0) as site:
            with contextlib.closing(await silent(site)) as end:
                ended = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(end, 1), PATIENCE)
        assert ended == b"", "at once, though it has not said a word"

    run(played())


def handshakes(site: ClientPort) -> int:
    """How many connections there are that are not secured yet."""
    return sum(each.transport is None for each in site.open)


def test_silent_handshakes_make_room_for_others(run: Run, config: Config, clock: FakeClock) -> None:
    async def played() -> None:
        async with serving(config, clock, 10) as site:
            with contextlib.ExitStack() as open_ends:
                ends = []
                for _ in range(60):
                    ends.append(open_ends.enter_context(contextlib.closing(await silent(site))))
                    await asyncio.sleep(0)
                assert await asyncio.to_thread(ask_in_one_packet, site.port, 1) == 1
                ended = [asyncio.get_running_loop().sock_recv(each, 1) for each in ends[:50]]
                assert await asyncio.wait_for(asyncio.gather(*ended), PATIENCE) == [b""] * 50
                assert handshakes(site) <= 10
            await until(lambda: not site.open)

    run(played())


def test_a_handshake_that_does_not_come_to_its_end_is_broken_off(
    run: Run, config: Config, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(port, "SWEEP_SECONDS", 0.05)
    monkeypatch.setattr(admission, "SILENT_SECONDS", 0.5)

    async def played() -> None:
        async with serving(config, clock, 100) as site:
            loop = asyncio.get_running_loop()
            for said in (b"", b"\x16\x03\x01\x02\x00"):
                with contextlib.closing(await silent(site)) as end:
                    await loop.sock_sendall(end, said)
                    assert await asyncio.wait_for(loop.sock_recv(end, 1), PATIENCE) == b""
            assert not site.open

    run(played())


def test_what_comes_with_the_end_of_the_handshake_is_answered(run: Run, config: Config, clock: FakeClock) -> None:
    """A client's first requests may be in the same packet."""

    async def played() -> None:
        async with serving(config, clock, 60_000) as site:
            for count in (1, 3, 1000):  # more than is read at once
                assert await asyncio.to_thread(ask_in_one_packet, site.port, count) == count
            await until(lambda: not site.open)

    run(played())


def ask_in_one_packet(port: int, count: int) -> int:
    """Send the last bytes of the handshake and ``count`` requests at once; return how many answers came."""
    coming, going = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = unverified().wrap_bio(coming, going)
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as end:
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                end.sendall(going.read())
                coming.write(end.recv(65_536))
        client.write(GET * (count - 1) + GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        end.sendall(going.read())
        answer, has_ended = b"", False
        while not has_ended:  # the server waits for the end of this side once it has told its own
            coming.write(end.recv(65_536))
            with contextlib.suppress(ssl.SSLWantReadError):
                while text := client.read(65_536):
                    answer += text
                has_ended = True
    return answer.count(b"HTTP/1.1 200 ")


def test_a_client_that_speaks_no_tls_or_goes_is_no_error(
    run: Run, config: Config, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # uvloop does not report before the handshake that a client is gone.
    monkeypatch.setattr(admission, "SILENT_SECONDS", 1.0)

    async def played() -> None:
        failures: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        async with serving(config, clock, 60_000) as site:
            loop = asyncio.get_running_loop()
            for said in (GET, b"\x16\x03\x01\x02\x00", b""):
                with contextlib.closing(await silent(site)) as end:
                    await loop.sock_sendall(end, said)
                    if said == GET:
                        with contextlib.suppress(ConnectionError):
                            while await asyncio.wait_for(loop.sock_recv(end, 4096), PATIENCE):
                                pass
                await until(lambda: not site.open)
        assert not failures

    run(played())


def test_a_stop_does_not_wait_for_handshakes(run: Run, config: Config, clock: FakeClock) -> None:
    async def played() -> None:
        async with serving(config, clock, 60_000) as site:
            end = await silent(site)
            await until(lambda: handshakes(site) == 1)
        with contextlib.closing(end):
            assert await asyncio.wait_for(asyncio.get_running_loop().sock_recv(end, 1), PATIENCE) == b""

    run(played())


def test_of_a_large_answer_a_layer_hands_on_only_what_the_connection_below_may_hold(run: Run, config: Config) -> None:
    """It calls taken what it has handed on, though it waits in this process."""
    made: list[asyncio.Transport] = []

    class Answering(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)
            made.append(cast(asyncio.Transport, transport))

    def connected(port: int) -> ssl.SSLSocket:
        end = socket.socket()
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        end.connect(("127.0.0.1", port))
        return unverified().wrap_socket(end)

    async def played() -> None:
        make_certificate(config.database.parent)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(config.database.parent / "cert.pem", config.database.parent / "key.pem")
        server = await asyncio.get_running_loop().create_server(Answering, "127.0.0.1", 0, ssl=context)
        with contextlib.closing(await asyncio.to_thread(connected, server.sockets[0].getsockname()[1])):
            await until(lambda: bool(made))
            wait_for_full_drain(made[0])
            response_head.write(made[0], [bytes(100), bytes(400_000)])
            await asyncio.sleep(0.1)
            waiting = made[0].get_write_buffer_size()
            made[0].abort()
        server.close()
        assert waiting > 200_000

    run(played())
