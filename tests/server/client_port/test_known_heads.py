"""What is cached of the headers of plain requests is what parsing them gives."""

import json
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from conclave.config.settings import Config
from conclave.server.client_port import FastPath, fast_path as module, framing
from conclave.server.client_port.fast_path import ParsedHeaders
from conclave.server.client_port.framing import END, MalformedRequestError, RequestHead
from tests.conftest import Running, StartServer
from tests.server.client_port.test_fast_path import line_to, poll, send
from tests.support import sample
from tests.support.client import Client

LENGTHS = (*(b"Content-Length: %d",) * 4, b"content-length: %d", b"Content-Length: 0%d", b"Content-Length: %d ")
IDS = (
    b"X-Request-ID: %x",
    b"X-Request-ID: %x, 1",
    b"x-token: %x",
    b"X-Token: %x",
    b"traceparent: 00-%x",
    b"Accept: %x",
)
STRAY = (b"", b"\r", b"\n", b"\r\n", b" ", b":", b"\x00", b"0", b"\r\nContent-Length: 5", b"\r\nX-Token: \r\nX: ")


def alike_heads(dice: random.Random, count: int, auth_header: str) -> Iterator[bytes]:
    """Heads, of which most differ in their lines, lengths and ids only, and some in a few other bytes too."""
    for _ in range(count):
        bearer = b"" if auth_header == "X-Token" else b"Bearer "
        token = b"%b: %b%b" % (auth_header.encode(), bearer, dice.choice((b"a", b"b")))
        fields = (b"Host: x", token, b"Content-Type: application/json", b"X: Content-Length: 7")
        chosen = list(fields[: dice.choice((3, 3, 4))])
        for _ in range(dice.choice((0, *(1,) * 8, 2))):
            length = dice.choice(LENGTHS) % dice.choice((0, 5, 50, 1234567, 12345678))
            chosen.insert(dice.choice((1, 3, 3)), length)
        for _ in range(dice.choice((0, 0, 1, 1, 2))):
            chosen.insert(dice.choice((0, 2)), dice.choice((*IDS[:1] * 4, *IDS)) % dice.randrange(9))
        method, query = dice.choice((b"POST", b"POST", b"GET")), dice.choice((*(b"",) * 6, b"?after=1"))
        line = b"%b /api/v1/groups/%x-1/messages%b HTTP/1.1" % (method, dice.randrange(9), query)
        head = b"\r\n".join([line, *chosen, b"", b""])
        for _ in range(dice.choice((0, 0, 0, 1, 2))):
            at = dice.randrange(len(head) - 3)
            head = head[:at] + dice.choice(STRAY) + head[at + dice.randrange(3) :]
        yield (head + END)[: (head + END).index(END) + len(END)]


def said_of(fast_path: FastPath, head: bytes) -> tuple[int | None, str, str | None, ParsedHeaders] | int | None:
    """Return what a plain head says; of others the length of the body, or None; -1: it is not HTTP."""
    try:
        found, request = fast_path.read_head(head, None)  # type: ignore[arg-type]  # it is only passed on
    except MalformedRequestError:
        return -1
    if request and request.key:
        fast_path.cache(request)
    return (found.length, request.group, request.query, request.headers) if request else found.length


async def a_member(running: Running) -> tuple[Client, str]:
    """Return a new user, and the id of a group of this user's own."""
    alice = await running.user("alice")
    return alice, await alice.create_group("g")


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The heads that were parsed."""
    noted, read_head = list[bytes](), framing.read_head

    def noting(head: bytes) -> RequestHead:
        noted.append(head)
        return read_head(head)

    monkeypatch.setattr(framing, "read_head", noting)
    return noted


@pytest.mark.parametrize("auth_header", ["Authorization", "X-Token"])
async def test_a_cached_head_says_what_it_says_when_it_is_parsed(
    start_server: StartServer, config: Config, parsed: list[bytes], auth_header: str
) -> None:
    known = unknown = 0
    async with start_server(replace(config, auth_header=auth_header)) as running:
        for seed in sample.some(range(50), 5, "heads"):
            caching = FastPath(running.app)
            for each in alike_heads(random.Random(seed), 800, auth_header):
                parsed.clear()
                found = said_of(caching, each)
                known, unknown = known + (not parsed), unknown + bool(parsed)
                assert found == said_of(FastPath(running.app), each), each
    assert min(known, unknown) > 100, "enough of each kind"


@pytest.mark.parametrize("name", ["X-Request-ID", "CF-Ray", "traceparent", "tracestate", "baggage"])
async def test_the_ids_of_proxies_may_differ_and_have_to_be_http(
    running: Running, parsed: list[bytes], name: str
) -> None:
    alice, group = await a_member(running)
    fast_path, asked = FastPath(running.app), poll(alice, group, 0, **{name: "1"})
    said_of(fast_path, asked)
    parsed.clear()
    for value in (b"2", b"", b"3 , b=4", b"x" * 100):
        assert said_of(fast_path, asked.replace(b": 1\r\n", b": %b\r\n" % value))
    assert not parsed
    for value in (b"a\rb", b"a\nb", b"\x00", b"a\x7f", b"a\r\n b"):
        assert said_of(fast_path, asked.replace(b": 1\r\n", b": %b\r\n" % value)) == -1


async def test_heads_of_unknown_sessions_are_not_cached(running: Running, parsed: list[bytes]) -> None:
    alice, group = await a_member(running)
    parsed.clear()
    async with line_to(running.server.port) as line:
        for _ in range(3):
            await line.ask(poll(alice, group, 0))
        assert len(parsed) == 1
        unknown = poll(alice, group, 0).replace(alice.token.encode(), b"0" * 64)
        parsed.clear()
        for _ in range(3):
            assert json.loads((await line.ask(unknown)).body)["error"] == "auth_token_expired"
        assert len(parsed) == 3


async def test_of_so_many_heads_at_most_something_is_cached(
    running: Running, parsed: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, group = await a_member(running)
    parsed.clear()
    monkeypatch.setattr(module, "MAX_CACHED", 2)
    fast_path, heads = FastPath(running.app), [send(alice, group, b"", X=str(each)) for each in range(3)]
    heads = [each.replace(b"Length: 0", b"Length: 1") for each in heads]
    for each in (0, 1, 0, 2, 2, 0):
        said_of(fast_path, heads[each])
    assert parsed == [heads[each] for each in (0, 1, 2, 0)]
