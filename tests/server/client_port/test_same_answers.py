"""This port and aiohttp alone, with the same handlers, give the same answers to whatever is sent."""

import asyncio
import contextlib
import gzip
import os
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from aiohttp import web

from conclave.server.client_port import connection
from tests.conftest import Running
from tests.server.client_port.test_fast_path import JSON, PROTOBUF, VARYING, head, poll, send, written
from tests.support import sample
from tests.support.client import API, Client
from tests.support.server import PATIENCE, until


@dataclass(frozen=True)
class Answer:
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


EXPLAINED = {
    "a page of aiohttp": "this server refuses in its own words, and ends the connection",
    "a page of aiohttp for an Expect that nobody knows": "as before, but 400 and not 417",
    "a request before what is none": "answered here; aiohttp, which has both in one piece, refuses both",
    "a body in chunks": "the last request of its connection: aiohttp may take what follows it for headers of the next",
    "an empty Transfer-Encoding": "refused: llhttp as httptools has it, is stricter",
}
"""Where the answers may differ but for the date and the request's id: what is asked or answered, and why."""

SETTLED_AFTER = 2_000
"""After so many batches memory has grown to what caches and allocators keep."""

MAY_GROW = 64 << 20
"""So much more it may be at the end, bytes."""

LAST = f"GET {API}/nothing HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()

Asking = Callable[[Client, str, random.Random], bytes]

QUERIES = (
    "",
    "?after=0",
    "?limit=2&after=1",
    "?after=1&include_redacted=true",
    "?after=-1",
    "?limit=0",
    "?limit=x&x=y",
)


def get(path: str, line: str = "GET", version: str = "1.1", **more: str) -> Asking:
    return lambda alice, _group, _dice: f"{line} {API}{path} HTTP/{version}\r\n{head(alice, **more)}\r\n".encode()


def fetch(alice: Client, group: str, dice: random.Random) -> bytes:
    media, query = dice.choice((JSON, PROTOBUF)), dice.choice(QUERIES)
    return f"GET {API}/groups/{group}/messages{query} HTTP/1.1\r\n{head(alice, media)}\r\n".encode()


def usual(alice: Client, group: str, dice: random.Random) -> bytes:
    media = dice.choice((JSON, PROTOBUF))
    return send(alice, group, written(media, dice.randbytes(dice.choice((1, 100, 40_000)))), media)


def chunked(body: bytes, ends: bytes = b"0\r\n\r\n") -> Asking:
    def ask(alice: Client, group: str, _dice: random.Random) -> bytes:
        begun = send(alice, group, b"", Transfer_Encoding="chunked").replace(b"Content-Length: 0\r\n", b"")
        return begun + b"%x\r\n%b\r\n" % (len(body), body) + ends

    return ask


def packed(alice: Client, group: str, _: random.Random) -> bytes:
    return send(alice, group, gzip.compress(written(JSON, b"x")), Content_Encoding="gzip")


def changed(alice: Client, group: str, dice: random.Random) -> bytes:
    """A usual request, with some bytes of its head changed."""
    text = dice.choice((fetch, usual))(alice, group, dice)
    at = dice.randrange(text.find(b"\r\n\r\n") + 2)
    odd = dice.choice((b"", b"\x00", b"\r", b"\n", b" ", b":", b"\xff", b"\r\n ", b"\r\n"))
    return text[:at] + odd + text[at + dice.randrange(2) :]


def field(text: str, body: bytes = b"") -> Asking:
    """A send with one more header, of any kind."""
    return lambda alice, group, _: send(alice, group, body).replace(
        b"Accept", text.encode("latin-1") + b"\r\nAccept", 1
    )


KINDS: dict[str, Asking] = {
    "a fetch": fetch,
    "a send": usual,
    "an empty line and a fetch": lambda alice, group, dice: b"\r\n" + fetch(alice, group, dice),
    "a send of nothing": lambda alice, group, _: send(alice, group, b"{}"),
    "a poll with a body": lambda alice, group, _: poll(alice, group, 0, Content_Length="2") + b"{}",
    "me": get("/me"),
    "no path": get("/nothing"),
    "another method": get("/me", "DELETE"),
    "no method": get("/me", "BREW"),
    "a long header": get("/me", X_Long="x" * 7_000),
    "an expectation": lambda alice, group, _: send(alice, group, written(JSON, b"x"), Expect="100-continue"),
    "an unknown expectation": get("/me", Expect="something"),
    "another protocol": get("/me", Connection="Upgrade", Upgrade="h2c"),
    "an end": get("/me", Connection="close"),
    "HTTP/1.0": get("/me", version="1.0"),
    "HTTP/1.0 that stays": get("/me", version="1.0", Connection="keep-alive"),
    "no host": lambda alice, group, _: poll(alice, group, 0).replace(b"Host: x\r\n", b""),
    "no token": lambda alice, group, _: poll(alice, group, 0).replace(b"Authorization", b"X-Other"),
    "a body in chunks": chunked(written(JSON, b"x")),
    "a body in chunks with a trailer": chunked(written(JSON, b"x"), b"0\r\nX: y\r\n\r\n"),
    "a packed body": packed,
    "two lengths": field("Content-Length: 2"),
    "a length and chunks": field("Transfer-Encoding: chunked"),
    "a signed length": lambda alice, group, _: send(alice, group, b"{}", **{"Content-Length": "+2"}),
    "chunks that are none": field("Transfer-Encoding: x"),
    "a folded header": field("X-Fold: 1\r\n 2"),
    "a bare line feed": field("X-One: 1\nX-Two: 2"),
    "a bare return": field("X-One: 1\rX-Two: 2"),
    "the same header twice": field("X-One: 1\r\nX-One: 2"),
    "a token twice": field("Authorization: Bearer x"),
    "a space before the colon": field("X-One : 1"),
    "odd bytes": changed,
}


@contextlib.asynccontextmanager
async def aiohttp_alone(running: Running) -> AsyncIterator[int]:
    site = web.TCPSite(running.server.runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield site.port
    finally:
        await site.stop()


async def one_at_a_time(port: int, requests: list[bytes]) -> list[Answer]:
    """Return the answers, up to the end of the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    heard: list[Answer] = []
    try:
        for each in requests:
            writer.write(each)
            if not (answer := await hear(reader)):
                break
            heard.append(answer)
    finally:
        writer.transport.abort()
    return heard


async def pipelined(port: int, requests: list[bytes], dice: random.Random, *, is_slow: bool) -> list[Answer]:
    """Return the answers to requests that come together, cut at random places."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    text, heard = b"".join(requests), list[Answer]()
    try:
        cuts = sorted(dice.randrange(len(text)) for _ in range(dice.choice((0, 1, 5, 20))))
        for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
            writer.write(text[begin:end])
            await asyncio.sleep(0.002 if is_slow else 0)
        while answer := await hear(reader):
            heard.append(answer)
    finally:
        writer.transport.abort()
    return heard


async def hear(reader: asyncio.StreamReader) -> Answer | None:
    """Return the next answer; None: the connection has ended."""
    try:
        while True:
            lines = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)).decode().split("\r\n")
            status = int(lines[0].split(" ")[1])
            if status != 100:
                break
        fields = dict(line.lower().split(": ", 1) for line in lines[1:-2])
        body = await reader.readexactly(int(fields.get("content-length", "0")))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return Answer(status, tuple(sorted(each for each in fields.items() if each[0] not in VARYING)), body)


def is_of_aiohttp(answer: Answer) -> bool:
    """Tell whether aiohttp has refused a request by itself, before there was one."""
    return dict(answer.headers)["content-type"].startswith("text/plain")


def is_same(name: str, plain: Answer, ours: Answer) -> bool:
    """Tell whether two answers are the same, but for what EXPLAINED says."""
    if is_of_aiohttp(plain):
        return ours.status == (400 if plain.status == 417 else plain.status)
    if name.startswith("a body in chunks"):
        ours = replace(ours, headers=tuple(each for each in ours.headers if each != ("connection", "close")))
    return plain == ours


async def compare(running: Running, alice: Client, port: int, seed: int) -> int:
    """Have both asked the same, each about a group of its own. Return how many answers there were."""
    dice = random.Random(seed)
    groups = [await alice.create_group(f"{name}{seed}") for name in ("plain", "ours")]
    # Most of the unusual end their connection: what has few of them comes further.
    count, usual_share = dice.choice(((12, 0.5), (40, 0.9), (40, 0.97)))
    names = [
        dice.choice(("a fetch", "a send")) if dice.random() < usual_share else dice.choice(list(KINDS))
        for _ in range(count)
    ]
    last = next((n for n, name in enumerate(names) if name.startswith("a body in chunks")), None)
    asked = [
        [KINDS[name](alice, group, random.Random(f"{seed}{n}")) for n, name in enumerate(names)] for group in groups
    ]
    expected = await one_at_a_time(port, [*asked[0], LAST] if last is None else asked[0][: last + 1])
    is_slow = dice.random() < 0.3
    heard = await pipelined(running.server.port, [*asked[1], LAST], dice, is_slow=is_slow)
    if len(heard) == len(expected) + 1 and names[len(expected) - 1] == "odd bytes" and is_of_aiohttp(expected[-1]):
        del heard[-2]
    for n, name in enumerate([*names, "the last"]):
        if n < min(len(expected), len(heard)):
            assert is_same(name, expected[n], heard[n]), (seed, n, name, expected[n], heard[n])
    assert len(expected) == len(heard), (seed, names, len(expected), len(heard))
    both = [[each.body for each in await alice.fetch(group)] for group in groups]
    assert both[0] == both[1], seed
    return len(heard)


async def break_off(running: Running, alice: Client, group: str, seed: int) -> None:
    """Send requests, and go before they have come or are answered."""
    dice = random.Random(seed)
    _, writer = await asyncio.open_connection("127.0.0.1", running.server.port)
    text = b"".join(KINDS[dice.choice(list(KINDS))](alice, group, dice) for _ in range(5))
    writer.write(text[: dice.randrange(len(text))])
    await asyncio.sleep(dice.choice((0, 0.01)))
    writer.transport.abort()


def _resident_bytes() -> int:
    """What this process, with the server in it, has in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def seeds(part: int) -> Sequence[int]:
    """The batches of one of two tests: those of CONCLAVE_ANSWERS, which is FIRST:COUNT, or some."""
    if wanted := os.environ.get("CONCLAVE_ANSWERS"):
        first, _, count = wanted.partition(":")
        return range(int(first) + part, int(first) + int(count), 2)
    return sample.some(range(part * 1_000, (part + 1) * 1_000), 6, f"answers {part}")


@pytest.mark.parametrize("part", range(2))
async def test_whatever_is_sent_the_answers_are_those_of_aiohttp_alone(
    running: Running, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    # On a busy machine two seconds may pass before all has come that was sent behind what is refused.
    monkeypatch.setattr(connection, "LINGER_SECONDS", PATIENCE)
    alice = await running.user("alice")
    group, count, held = await alice.create_group("broken"), 0, dict[int, int]()
    async with aiohttp_alone(running) as port:
        for number, seed in enumerate(seeds(part)):
            count += await compare(running, alice, port, seed)
            await break_off(running, alice, group, seed)
            if number % SETTLED_AFTER == 0:
                held[number] = _resident_bytes()
    assert count > number
    await until(lambda: len(running.server.site.open) <= 1)
    settled = [bytes_ for number, bytes_ in held.items() if number]
    assert not settled or settled[-1] < settled[0] + MAY_GROW, settled
