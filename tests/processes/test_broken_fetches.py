"""Delete-after-fetch over bad connections: who has not got a message finds it there, whatever broke meanwhile."""

import asyncio
import base64
import contextlib
import json
import random
import sqlite3
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp import ClientSession

from tests.support import sample
from tests.support.client import Client
from tests.support.lossy import Lossy
from tests.support.server import PATIENCE, ServerProcess, waiting

SETTINGS = """cleanup_interval = "1s"
[cleanup]
engine = "sql"
disk_reserve = "0"
"""
SENDERS = 8


@dataclass
class Member:
    """A member with a client that stores what it gets, and goes on from there. ``query``: what it asks with besides."""

    client: Client
    group: str
    port: int
    query: str
    chance: random.Random
    at: int = 0
    got: dict[int, bytes] = field(default_factory=dict)
    fetches: int = 0
    broken: int = 0
    line: Lossy | None = None

    def follow(self, done: "asyncio.Event") -> None:
        """Fetch until all is sent, and then until nothing follows. A third of the fetches breaks."""
        while True:
            is_done = done.is_set()
            self.fetches += 1
            if not is_done and self.chance.random() < 1 / 3:
                self.broken += 1
                self._break_one()
                time.sleep(self.chance.choice([0, 0, 0, 0, 1.5]))  # longer than it is between two runs
            elif not self._fetch() and is_done:
                break
            time.sleep(self.chance.random() * 0.02)
        if self.line:
            self.line.end.close()

    def _request(self) -> bytes:
        limit = self.chance.choice([1, 3, 20, 100, 500])
        return self.client.raw_get(f"/groups/{self.group}/messages?after={self.at}&limit={limit}{self.query}")

    def _fetch(self) -> bool:
        """Fetch a page and store it. Return whether there was something on it."""
        self.line = self.line or Lossy(self.port)
        self.line.say(self._request())
        return self._store(self.line.hear())

    def _store(self, answer: bytes) -> bool:
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 "), head
        found = {each["sequence_num"]: base64.b64decode(each["mls_message"]) for each in json.loads(body)["messages"]}
        self.got |= found
        self.at = max(found, default=self.at)
        return bool(found)

    def _break_one(self) -> None:
        """Ask for a page, on a connection that is used or a new one, and reset it at any point."""
        line, self.line = (self.line, None) if self.line and self.chance.random() < 0.5 else (None, self.line)
        line = line or Lossy(self.port, buffer=self.chance.choice([None, 4096]))
        received = b""
        with contextlib.suppress(ConnectionError):
            if self.chance.random() < 0.3:
                line.lose()
            line.say(self._request())
            time.sleep(self.chance.choice([0, 0, 0.001, 0.01, 0.05]) * self.chance.random())
            received = line.received(self.chance.choice([0, 10, 1000, 100_000]))
            line.lose()  # from here on nothing is acknowledged, and what was is known
            received += line.received(2**30)
        line.reset()
        head, _, body = received.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0] or -1)
        if not self.query and len(body) == length:
            self._store(received)  # it has arrived in full: the server need not keep it


async def _send(alice: Client, group: str, count: int, sent: dict[int, bytes]) -> None:
    for _ in range(count):
        body = random.randbytes(random.choice([10, 100, 1000, 5000]))
        sent[await alice.send(group, body)] = body


async def _change_policy(alice: Client, group: str) -> None:
    while True:
        for seconds in (-1, 0):
            await alice.set_expiry(group, seconds)
            await asyncio.sleep(0.3)


async def _come_and_go(eve: Client, group: str) -> None:
    while True:
        await eve.join(group)
        await asyncio.sleep(0.5)
        await eve.leave(group)
        await asyncio.sleep(0.5)


async def _play(server: ServerProcess, count: int, query: str) -> None:
    """Have ``count`` messages sent to three members who fetch over bad connections."""
    async with ClientSession() as http:
        alice, eve, *others = [await Client.register(http, server.url, name) for name in ("alice", "eve", *"bcd")]
        group = await alice.create_group("g", expiry=0)
        for each in others:
            await alice.bring(each, group)
        first = max([0, *[each.sequence_num for each in await alice.fetch(group)]])
        port, done, sent = int(server.url.rpartition(":")[2]), asyncio.Event(), dict[int, bytes]()
        members = [
            Member(each, group, port, query, sample.chance(f"{query} {place}"))
            for place, each in enumerate((alice, *others))
        ]
        reading = [asyncio.create_task(asyncio.to_thread(each.follow, done)) for each in members]
        beside = [asyncio.create_task(_change_policy(alice, group)), asyncio.create_task(_come_and_go(eve, group))]
        await asyncio.gather(*(_send(alice, group, count // SENDERS, sent) for _ in range(SENDERS)))
        for _ in waiting("something to be erased while others had yet to fetch"):
            if (erased := _erased(server.folder)) > first:
                break
            await _send(alice, group, SENDERS, sent)
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        done.set()
        await asyncio.gather(*reading)
    for member in members[1:]:
        lost = {number: body for number, body in sent.items() if member.got.get(number) != body}
        assert not lost, f"{len(lost)} of {len(sent)} messages were lost"
    assert erased > first
    assert all(each.broken for each in members)
    sys.stdout.write(
        f"{len(sent)} messages, {erased} erased meanwhile; {[(each.fetches, each.broken) for each in members]}\n"
    )


def _erased(folder: Path) -> int:
    """Return how many messages runs have erased so far."""
    with contextlib.closing(sqlite3.connect(folder / "conclave.db", timeout=PATIENCE)) as store:
        [(last, left)] = store.execute("SELECT (SELECT last_seq FROM groups), (SELECT count(*) FROM messages)")
        return int(last - left)


@pytest.mark.parametrize(
    ("count", "query"), [(sample.amount(10_000, 800), "&confirm=next"), (sample.amount(2_000, 400), "")]
)
async def test_nothing_is_lost_though_a_third_of_the_fetches_is_reset(tmp_path: Path, count: int, query: str) -> None:
    """By default what had arrived in full counts, and nothing else; by ``confirm=next`` what the client has stored."""
    with ServerProcess(tmp_path, SETTINGS) as server:
        await _play(server, count, query)
        assert not [each for each in server.events() if each.get("level") == "error"]
        assert server.stop()[0] == 0
