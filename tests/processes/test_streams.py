"""Many event streams in one process: a stop, and the limits of the process."""

import asyncio
import contextlib
import resource
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import ClientSession, TCPConnector

from conclave.server.client_port.admission import RESERVED_FILES
from conclave.system.process_limits import raise_file_limit
from tests.support.certificate import TLS, make_certificate
from tests.support.client import Client
from tests.support.listening import listening as hearing
from tests.support.server import PATIENCE, STOP_SECONDS, ServerProcess

SQL = '[cleanup]\nengine = "sql"\n'
FILES = 200
"""What a server that is to be full may have open; its soft limit is far lower."""

LIMITED = f"""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, {FILES}))
from conclave.cli.main import main
main()
"""


class Ear:
    """A stream read off a bare socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def hears(self, words: bytes) -> bool:
        """Tell whether ``words`` come before the connection ends."""
        async with asyncio.timeout(PATIENCE):
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                await self.reader.readuntil(words)
                return True
        return False


@contextlib.asynccontextmanager
async def listening(client: Client, count: int) -> AsyncIterator[list[Ear]]:
    """Ask for ``count`` streams, one after the other; not all need come about."""
    ears: list[Ear] = []
    try:
        for _ in range(count):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(client.url.rpartition(":")[2]))
            writer.write(client.raw_get("/events"))
            ears.append(Ear(reader, writer))
        yield ears
    finally:
        for ear in ears:
            ear.writer.transport.abort()
            with contextlib.suppress(ConnectionError):
                await ear.writer.wait_closed()


async def test_a_stop_ends_a_thousand_streams_and_the_process(tmp_path: Path) -> None:
    if raise_file_limit() < 1200:
        pytest.skip("may not have that many files open")
    with ServerProcess(tmp_path, SQL) as server:
        async with ClientSession() as http:
            alice = await Client.register(http, server.url, "alice")
        async with listening(alice, 1000) as ears:
            assert all(await asyncio.gather(*(ear.hears(b": keep-alive\n\n") for ear in ears)))
            status, seconds = await asyncio.to_thread(server.stop)
            rest = await asyncio.gather(*(ear.reader.read() for ear in ears))
    assert status == 0
    assert seconds < STOP_SECONDS
    assert all(each.endswith(b"0\r\n\r\n") for each in rest), "each was ended, not broken off"


async def test_streams_over_tls_hear_end_with_their_session_and_with_the_server(tmp_path: Path) -> None:
    make_certificate(tmp_path)
    with ServerProcess(tmp_path, TLS + SQL) as server:
        async with ClientSession(connector=TCPConnector(ssl=False)) as http, asyncio.timeout(PATIENCE):
            alice = await Client.register(http, server.url, "alice")
            phone = await alice.another("alice")
            group = await alice.create_group("g")
            async with hearing(alice) as ending, hearing(phone) as lasting:
                for number in range(100):
                    await alice.patch(group, alias=f"x{number}")
                for each in (ending, lasting):
                    assert [(await each.next())[0] for _ in range(100)] == ["group_update"] * 100
                await alice.post("/logout")
                await ending.ended()
                await phone.patch(group, alias="x")
                assert (await lasting.next())[0] == "group_update"
                assert not lasting.has_ended
                status, seconds = await asyncio.to_thread(server.stop)
                await lasting.ended()
    assert status == 0
    assert seconds < STOP_SECONDS


@pytest.mark.parametrize("left", [None, 60], ids=["reserve left", "nothing left"])
async def test_without_descriptors_for_more_clients_those_that_are_there_are_served(
    tmp_path: Path, left: int | None
) -> None:
    """A new one takes the place of the oldest stream of the account that has most; where that is of no use, of none."""
    with ServerProcess(tmp_path, SQL, command=("-c", LIMITED)) as server:
        async with ClientSession() as http:
            alice, bob = [await Client.register(http, server.url, name) for name in ("alice", "bob")]
            group = await alice.create_group("g")
            await bob.join(group)
            await alice.send(group, b"first")  # which draws what the keys of the group need, in a file
            async with contextlib.AsyncExitStack() as stack:
                bobs = [await begun(stack, bob) for _ in range(2)]
                ears = [await begun(stack, alice) for _ in range(FILES)]
                await alice.get("/me")  # by a connection that is there when none can be opened any more
                if left:
                    # Fewer than are open: from here on nothing at all can be opened in that process.
                    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (left, FILES))
                await alice.patch(group, alias="x")
                hear = await asyncio.gather(*(ear.hears(b"event: group_update") for ear in ears))
                assert FILES - RESERVED_FILES - 60 < sum(hear) < FILES - RESERVED_FILES
                assert all(hear[-50:]), "the oldest have gone"
                assert all([await each.hears(b"event: group_update") for each in bobs])
                await outgrow_the_log(alice, group)
                async with listening(bob, 8) as late:
                    if not left:
                        assert all([await each.hears(b": keep-alive\n\n") for each in late])
                    worked = server.cpu_seconds()
                    await asyncio.sleep(1)
                    assert server.cpu_seconds() - worked < 0.5, "nobody waits by turning round and round"
            async with listening(alice, 1) as [late]:
                assert await late.hears(b": keep-alive\n\n"), "there is a place that has become free"
        faults = [each for each in server.events() if each["level"] in ("warning", "error")]
        ledger = [each for each in faults if each.get("duty") == "ledger"]
        if ledger:  # it is opened whenever there is something to write, and what is to be written waits
            assert left
            assert "Too many open files" in ledger[0]["reason"]
            assert server.wait_for("background_duty_works_again")["duty"] == "ledger"
        assert server.stop()[0] == 0
    assert [each["event"] for each in faults if each not in ledger] == ["too_many_connections"]


async def begun(stack: contextlib.AsyncExitStack, client: Client) -> Ear:
    """Return a stream that has begun, and ends with ``stack``."""
    [ear] = await stack.enter_async_context(listening(client, 1))
    assert await ear.hears(b": keep-alive\n\n")
    return ear


async def outgrow_the_log(client: Client, group: str) -> None:
    """Write so much that a checkpoint has to come, and wait for it."""
    for _ in range(8):
        await client.send(group, bytes(750_000))
    await asyncio.sleep(1.5)
