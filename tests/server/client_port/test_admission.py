"""Which connections are closed where there are too many, and when those end that say nothing."""

import asyncio
import contextlib
import math
import socket
from collections.abc import AsyncIterator

import pytest

from conclave import app_keys
from conclave.server.client_port import ClientPort, ConnectionLimits, admission, port
from tests.conftest import Running
from tests.support.server import PATIENCE, until

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
SLOW_BODY = b"POST /api/v1/login HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"


class End:
    """The client's end of a connection."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._loop = asyncio.get_running_loop()

    async def say(self, text: bytes) -> None:
        await self._loop.sock_sendall(self._end, text)

    async def ask(self, text: bytes) -> bytes:
        """Send a request; return the first bytes of the answer."""
        await self.say(text)
        return await asyncio.wait_for(self._loop.sock_recv(self._end, 65_536), PATIENCE)

    async def is_closed(self) -> bool:
        """Tell whether the server has closed it; wait for that if it may be about to."""
        try:
            return not await asyncio.wait_for(self._loop.sock_recv(self._end, 65_536), 0.3)
        except TimeoutError:
            return False
        except ConnectionError:
            return True

    async def wait_until_closed(self) -> bytes:
        """Return what comes until the server closes it."""
        found = b""
        with contextlib.suppress(ConnectionError):
            while more := await asyncio.wait_for(self._loop.sock_recv(self._end, 65_536), PATIENCE):
                found += more
        return found


class Door:
    """A site with room for a few."""

    def __init__(self, site: ClientPort, ends: contextlib.ExitStack) -> None:
        self.site = site
        self._ends = ends

    async def connect(self, said: bytes = b"") -> End:
        """Connect, wait until the server has accepted it, and ask for something, if anything."""
        before = set(self.site.open)
        end = self._ends.enter_context(contextlib.closing(socket.socket()))
        end.settimeout(0)
        await asyncio.get_running_loop().sock_connect(end, ("127.0.0.1", self.site.port))
        await until(lambda: any(each.transport for each in set(self.site.open) - before))
        made = End(end)
        if said:
            assert (await made.ask(said)).startswith(b"HTTP/1.1 ")
        return made

    async def is_refused(self) -> bool:
        with contextlib.closing(socket.socket()) as end:
            end.settimeout(0)
            await asyncio.get_running_loop().sock_connect(end, ("127.0.0.1", self.site.port))
            return await End(end).is_closed()


@contextlib.asynccontextmanager
async def door(running: Running, most: int, unauthenticated: float = math.inf) -> AsyncIterator[Door]:
    assert running.server.runner
    site = ClientPort(running.server.runner, "127.0.0.1", 0, ConnectionLimits(most, unauthenticated))
    site.port = int((await site.listen()).rpartition(":")[2])
    with contextlib.ExitStack() as ends:
        try:
            yield Door(site, ends)
        finally:
            await site.stop()


def closed(running: Running) -> dict[str, int]:
    return {reason: count for reason, count in running.app[app_keys.CLOSED_CONNECTIONS].items() if count}


@pytest.mark.usefixtures("none_is_new")
async def test_those_that_never_asked_go_first_then_strangers_then_the_longest_idle(running: Running) -> None:
    alice = await running.user("alice")
    async with door(running, 6) as entrance:
        known = [await entrance.connect(alice.raw_get("/me")) for _ in range(2)]
        strangers = [await entrance.connect(HEALTH) for _ in range(2)]
        silent = [await entrance.connect() for _ in range(2)]
        assert (await known[0].ask(alice.raw_get("/me"))).startswith(b"HTTP/1.1 200 ")  # now the other is idle longer
        assert (await strangers[0].ask(HEALTH)).startswith(b"HTTP/1.1 200 ")
        for first in (silent[0], silent[1], strangers[1], strangers[0], known[1], known[0]):
            assert not await first.is_closed()
            await entrance.connect(alice.raw_get("/me"))
            assert await first.is_closed()
    assert closed(running) == {"room": 6}


async def test_a_new_one_that_has_not_asked_yet_is_closed_after_others(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its request may be there, and not read yet."""
    monkeypatch.setattr(admission, "NEW_SECONDS", 3600.0)
    async with door(running, 4) as entrance:
        new, stranger = await entrance.connect(), await entrance.connect(HEALTH)
        busy = [await entrance.connect() for _ in range(2)]
        for each in busy:
            await each.say(SLOW_BODY)
        await until(lambda: sum(each.is_idle for each in entrance.site.open) == 2)
        another = await entrance.connect()
        assert await stranger.is_closed()
        assert not await new.is_closed()
        await another.say(SLOW_BODY)
        await until(lambda: sum(each.is_idle for each in entrance.site.open) == 1)
        await entrance.connect()
        assert await new.is_closed()
    assert closed(running) == {"room": 2}


async def test_none_with_a_request_under_way_is_closed(running: Running) -> None:
    async with door(running, 3) as entrance:
        busy = [await entrance.connect() for _ in range(3)]
        for each in busy:
            await each.say(SLOW_BODY)
        await until(lambda: not any(each.is_idle for each in entrance.site.open))
        assert await entrance.is_refused()
        for each in busy:
            assert (await each.ask(b" " * 98 + b"}")).startswith(b"HTTP/1.1 400 ")
    assert closed(running) == {"refused": 1}


async def test_an_account_that_has_the_most_under_way_makes_room_for_others(running: Running) -> None:
    """Otherwise one account could keep all others out, by streams or by requests that last."""
    alice, bob = await running.users("alice", "bob")
    async with door(running, 10) as entrance:
        bobs = await entrance.connect(bob.raw_get("/events"))
        streams = [await entrance.connect(alice.raw_get("/events")) for _ in range(6)]
        slow = [await entrance.connect(alice.raw_get("/me")) for _ in range(3)]
        for each in slow:
            await each.say(SLOW_BODY)
        await until(lambda: not any(each.is_idle for each in entrance.site.open))
        carol = await entrance.connect(HEALTH)
        assert await slow[0].is_closed()
        await carol.say(SLOW_BODY)
        await until(lambda: not any(each.is_idle for each in entrance.site.open))
        for _ in range(3):
            await (await entrance.connect()).say(SLOW_BODY)
            await until(lambda: not any(each.is_idle for each in entrance.site.open))
        await slow[2].wait_until_closed()
        await streams[0].wait_until_closed()
        assert running.app[app_keys.EVENTS].wheel.size == 6
        assert await entrance.is_refused(), "nobody has many more than the others of this address"
        running.app[app_keys.EVENTS].end_all()
        await bobs.wait_until_closed()
    assert closed(running) == {"largest": 4, "refused": 1}


async def test_those_of_one_address_without_an_authenticated_request_are_bounded(running: Running) -> None:
    """A proxy brings everybody from one address, so those with one do not count."""
    alice = await running.user("alice")
    async with door(running, 100, 5) as entrance:
        known = [await entrance.connect(alice.raw_get("/me")) for _ in range(8)]
        unknown = [await entrance.connect(HEALTH if each % 2 else b"") for each in range(5)]
        assert len(entrance.site.open) == 13
        await entrance.connect()
        assert await unknown[0].is_closed()
        assert [await each.is_closed() for each in (*known[:2], unknown[1])] == [False, False, False]
        assert len(entrance.site.open) == 13
    assert closed(running) == {"address": 1}


async def test_one_that_becomes_a_stream_counts_as_one(running: Running) -> None:
    alice = await running.user("alice")
    async with door(running, 2) as entrance:
        stream = await entrance.connect(alice.raw_get("/events"))
        idle = await entrance.connect()
        await entrance.connect(HEALTH)
        assert await idle.is_closed()
        await alice.post("/logout")
        await stream.wait_until_closed()
        await until(lambda: running.app[app_keys.EVENTS].wheel.size == 0)
        await entrance.connect()
    assert closed(running) == {"room": 1}


@pytest.fixture
def none_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "NEW_SECONDS", 0.0)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port, "SWEEP_SECONDS", 0.05)
    monkeypatch.setattr(admission, "SILENT_SECONDS", 0.5)


@pytest.mark.usefixtures("hasty")
async def test_who_says_nothing_is_closed_and_who_has_asked_stays(running: Running) -> None:
    async with door(running, 10) as entrance:
        asked, silent = await entrance.connect(HEALTH), await entrance.connect()
        assert await silent.wait_until_closed() == b""
        assert (await asked.ask(HEALTH)).startswith(b"HTTP/1.1 200 ")
        assert len(entrance.site.open) == 1
    assert closed(running) == {"silent": 1}


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("piece", [HEALTH[:1], b"\r\n"], ids=["a head", "empty lines"])
async def test_who_sends_a_head_byte_by_byte_is_closed(running: Running, piece: bytes) -> None:
    async with door(running, 10) as entrance:
        slow = await entrance.connect()
        with contextlib.suppress(ConnectionError):
            for at in range(len(HEALTH)):
                await slow.say(HEALTH[at : at + 1] if piece == HEALTH[:1] else piece)
                await asyncio.sleep(0.05)
                if not entrance.site.open:
                    break
        assert b"200 OK" not in await slow.wait_until_closed()
        assert not entrance.site.open
    assert closed(running) == {"silent": 1}


@pytest.mark.usefixtures("hasty")
async def test_who_does_not_take_the_last_answer_is_closed(running: Running) -> None:
    """What the system cannot get rid of would keep the connection for ever, though it has ended."""
    async with door(running, 10) as entrance:
        await entrance.connect(HEALTH)
        [connection] = entrance.site.open
        assert connection.transport
        connection.transport.write(bytes(20_000_000))
        connection.end()
        await until(lambda: not entrance.site.open)
        await until(lambda: connection.transport is None)
    assert closed(running) == {"silent": 1}


async def test_no_descriptor_left_is_waited_for(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port, "PAUSE_SECONDS", 0.05)
    failing = 3

    class Short(socket.socket):
        def accept(self) -> tuple[socket.socket, object]:
            nonlocal failing
            if failing:
                failing -= 1
                raise OSError(24, "Too many open files")
            return super().accept()

    def create(address: object, **kwargs: object) -> socket.socket:
        plain = made(address, **kwargs)  # type: ignore[arg-type]
        return Short(plain.family, plain.type, plain.proto, plain.detach())

    made = socket.create_server
    monkeypatch.setattr(socket, "create_server", create)
    async with door(running, 10) as entrance:
        await entrance.connect(HEALTH)
        assert failing == 0
