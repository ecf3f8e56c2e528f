"""A page counts as fetched once the client's system has acknowledged all of it, whichever way it leaves."""

import asyncio
import contextlib
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import pytest
import uvloop

from conclave import app_keys
from conclave.cache.groups import GroupCache
from conclave.config.settings import Config
from conclave.server.client_port import ClientPort, FastPath
from conclave.server.client_port.connection import ClientConnection
from conclave.server.tls import load_context
from conclave.wire import acknowledgement, pace
from tests.conftest import ANY_NUMBER, Running, StartServer
from tests.server.client_port.test_fast_path import PROTOBUF, poll
from tests.support.certificate import make_certificate
from tests.support.client import Client
from tests.support.lossy import Lossy
from tests.support.server import until

KIB = 1024
FETCH = ("GET", "/api/v1/groups/{group_id}/messages")

Run = Callable[[Coroutine[Any, Any, None]], None]


class Way(NamedTuple):
    """``query``: how the page is asked for, but for the number. ``last``: that of the last message on it."""

    query: str
    size: int = 100
    last: int = 3
    is_remembered: bool = True


WAYS = {
    "remembered": Way("after="),
    "read": Way("after=", is_remembered=False),
    "aiohttp": Way("after=%3"),
    "in pieces": Way("after=", 180 * KIB, 7),
}
"""The first two are answered before aiohttp, the last one piece by piece."""

PLAIN = [("asyncio", False, way) for way in WAYS]
TLS = [("uvloop", True, way) for way in WAYS]
every_way = pytest.mark.parametrize(
    ("loop", "secured", "way"), [*PLAIN, *TLS, ("uvloop", False, "remembered"), ("asyncio", True, "aiohttp")]
)
some_ways = pytest.mark.parametrize(
    ("loop", "secured", "way"),
    [("asyncio", False, "aiohttp"), ("uvloop", False, "read"), ("uvloop", True, "remembered")],
)


@pytest.fixture
def run(loop: str) -> Iterator[Run]:
    """Runs a coroutine by the loop of the tests, or by that of a server."""
    make = uvloop.new_event_loop if loop == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=make) as runner:
        yield runner.run


@dataclass
class Place:
    """A server, and Bob in a group there: he has fetched 1 and 2 of Alice's messages, and nothing that follows."""

    running: Running
    port: int
    alice: Client
    bob: Client
    group: str
    way: Way
    port_of: ClientPort
    answered: int = 0

    def page(self, after: int = 2) -> bytes:
        """Return the request for what follows on a number."""
        return poll(self.bob, self.group, after, PROTOBUF, query=f"{self.way.query}{after}")

    async def watermark(self) -> int:
        sql = "SELECT watermark FROM members JOIN users USING (user_id) WHERE username = 'bob'"
        return int((await self.running.query(sql))[0][0])

    def waiting(self) -> list[ClientConnection]:
        """Return the connections on which an answer waits, in this process or for its acknowledgement."""
        return [each for each in self.port_of.open if each._acknowledgement or _has_some(each)]

    async def counts(self) -> None:
        """Wait until the page counts as fetched."""
        async with asyncio.timeout(60):
            while await self.watermark() != self.way.last:
                await asyncio.sleep(0.01)

    async def lose_page_of(self, client: Lossy) -> None:
        """Have a client ask for a page that does not reach it, and wait until the server waits for it to arrive."""
        client.lose()
        await self.ask(client)
        await until(self.waiting)

    async def ask(self, client: Lossy, after: int = 2) -> None:
        """Ask for what follows on a number."""
        self.answered = self._answered()
        await asyncio.to_thread(client.say, self.page(after))

    async def has_ended(self) -> None:
        """Wait until the connection has ended, and nothing follows any more on what was asked for last."""
        await until(lambda: not self.port_of.open)
        await until(lambda: self._answered() > self.answered)

    def _answered(self) -> int:
        noted = self.running.app[app_keys.REQUESTS].histograms()
        return sum(sum(each.counts) for (method, route, _), each in noted.items() if (method, route) == FETCH)


def _has_some(connection: ClientConnection) -> bool:
    return connection.transport is not None and connection.transport.get_write_buffer_size() > 0


@pytest.fixture
def at(config: Config, start_server: StartServer, way: str, *, secured: bool) -> Callable[[], Any]:
    @contextlib.asynccontextmanager
    async def place() -> AsyncIterator[Place]:
        chosen = WAYS[way]
        async with start_server(config) as running:
            alice, bob = await running.users("alice", "bob")
            group = await alice.create_group("g")
            await bob.join(group)
            for number in range(2):
                await alice.send(group, b"%d" % number)
                await bob.fetch(group, number)
            for _ in range(chosen.last - 2):
                await alice.send(group, bytes(chosen.size))
            await running.settle()
            tls, folder = None, config.database.parent
            if secured:
                make_certificate(folder)
                tls = load_context(Config(tls_cert_path=str(folder / "cert.pem"), tls_key_path=str(folder / "key.pem")))
            opened = ClientPort(running.server.runner, "127.0.0.1", 0, ANY_NUMBER, tls, FastPath(running.app))
            port = int((await opened.listen()).rpartition(":")[2])
            with pytest.MonkeyPatch.context() as patch:
                if not chosen.is_remembered:
                    patch.setattr(GroupCache, "page", lambda *_: None)
                yield Place(running, port, alice, bob, group, chosen, opened)

    return place


@pytest.fixture
def connect(*, secured: bool) -> Callable[..., Coroutine[Any, Any, Lossy]]:
    return lambda place, **more: asyncio.to_thread(partial(Lossy, place.port, secured=secured, **more))


@every_way
def test_a_page_that_is_lost_with_its_connection_does_not_count(run: Run, at: Any, connect: Any) -> None:
    async def played() -> None:
        async with at() as place:
            with await connect(place) as client:
                await place.lose_page_of(client)
                client.reset()
                await place.has_ended()
            assert await place.watermark() == 2

    run(played())


@every_way
def test_a_page_that_arrives_late_counts_from_then_on(run: Run, at: Any, connect: Any) -> None:
    async def played() -> None:
        async with at() as place:
            with await connect(place) as client:
                await place.lose_page_of(client)
                assert await place.watermark() == 2
                client.mend()
                assert len(await asyncio.to_thread(client.hear)) > place.way.size
                await place.counts()

    run(played())


@every_way
def test_the_next_request_and_an_end_in_order_have_the_acknowledgement(
    run: Run, at: Any, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for a pause to be over, and the next answer comes after the watermark has moved."""
    monkeypatch.setattr(acknowledgement, "FIRST_PAUSE_SECONDS", 1e6)

    async def played() -> None:
        async with at() as place:
            with await connect(place) as client:
                for _ in range(20):  # Linux acknowledges at once at first, and then waits for what is sent
                    await asyncio.to_thread(client.say, poll(place.bob, place.group, 0, PROTOBUF, "limit=1"))
                    await asyncio.to_thread(client.hear)
                await place.ask(client)
                await asyncio.to_thread(client.hear)
                await asyncio.to_thread(client.say, poll(place.bob, place.group, 2))
                await asyncio.to_thread(client.hear)
                assert await place.watermark() == place.way.last
            await place.alice.send(place.group)
            with await connect(place) as client:
                await place.ask(client)
                await asyncio.to_thread(client.hear)
                await asyncio.to_thread(client.end_in_order)
                await place.has_ended()
            assert await place.watermark() == place.way.last + 1

    run(played())


@every_way
def test_who_takes_nothing_is_cut_off_and_has_no_page(
    run: Run, at: Any, connect: Any, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def played() -> None:
        async with at() as place:
            with await connect(place, buffer=4 * KIB) as client:
                if place.way.last == 3:
                    client.lose()  # the system would take so little
                await place.ask(client)
                await until(lambda: any(each.state for each in place.port_of.open))
                monkeypatch.setattr(pace, "WINDOW_SECONDS", 0.3)
                await place.has_ended()
            assert await place.watermark() == 2

    monkeypatch.setattr(pace, "WINDOW_SECONDS", 1.0)
    run(played())


KILLED = """
import socket, sys, time
end = socket.socket()
end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
end.connect(("127.0.0.1", int(sys.argv[1])))
end.sendall(sys.stdin.buffer.read())
end.recv(1)
print("begun", flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize(("loop", "secured", "way"), [(loop, False, "in pieces") for loop in ("asyncio", "uvloop")])
def test_a_client_that_is_killed_has_no_page(run: Run, at: Any) -> None:
    async def played() -> None:
        async with at() as place:
            place.answered = place._answered()
            command = [sys.executable, "-P", "-c", KILLED, str(place.port)]
            with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
                assert client.stdin
                assert client.stdout
                await asyncio.to_thread(client.stdin.write, place.page())
                client.stdin.close()
                assert await asyncio.to_thread(client.stdout.readline) == b"begun\n"
                client.kill()
            await place.has_ended()
            assert await place.watermark() == 2

    run(played())


@some_ways
def test_where_the_system_does_not_tell_only_the_next_fetch_says_what_has_arrived(
    run: Run, at: Any, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acknowledgement, "_IS_REPORTED", False)

    async def played() -> None:
        async with at() as place:
            with await connect(place) as client:
                await place.ask(client)
                assert b"200 OK" in await asyncio.to_thread(client.hear)
                for after, counted in ((2, 2), (3, 3)):
                    await asyncio.to_thread(client.say, poll(place.bob, place.group, after))
                    assert b"200 OK" in await asyncio.to_thread(client.hear)
                    await place.running.settle()
                    await asyncio.to_thread(client.say, poll(place.bob, place.group, after))
                    await asyncio.to_thread(client.hear)
                    assert await place.watermark() == counted

    run(played())


@some_ways
@pytest.mark.parametrize("arrives", [True, False])
def test_a_stop_waits_a_moment_for_the_acknowledgement(run: Run, at: Any, connect: Any, *, arrives: bool) -> None:
    async def played() -> None:
        async with at() as place:
            with await connect(place) as client:
                await place.lose_page_of(client)
                stopping = asyncio.create_task(place.port_of.stop())
                await until(lambda: place.port_of._state.is_stopping)
                if arrives:
                    client.mend()
                    await place.counts()
                await stopping
                await place.running.server.close()
            with contextlib.closing(sqlite3.connect(place.running.config.database)) as store:
                sql = "SELECT watermark FROM members JOIN users USING (user_id) WHERE username = 'bob'"
                assert store.execute(sql).fetchone() == (place.way.last if arrives else 2,)

    run(played())


@some_ways
def test_what_the_client_says_to_have_counts_though_the_page_does_not_arrive(run: Run, at: Any, connect: Any) -> None:
    async def played() -> None:
        async with at() as place:
            await place.alice.send(place.group)
            with await connect(place) as client:
                client.lose()
                await place.ask(client, 3)
                await until(place.waiting)
                client.reset()
                await place.has_ended()
            assert await place.watermark() == 3

    run(played())
