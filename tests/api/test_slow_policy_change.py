"""A change of a group's policy whose commit takes a while: what expires meanwhile does not come back."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from typing import Any

import pytest
from aiohttp import ClientError

from conclave import app_keys
from conclave.config.settings import Config
from conclave.retention.policy import KEEP, GroupPolicy
from conclave.store.engine import sqlite, writer
from conclave.store.engine.faults import StoreError
from conclave.store.resources.state import accept_clock
from tests.conftest import Running, StartServer
from tests.support.archive import Mover
from tests.support.client import Client, expect
from tests.support.server import PATIENCE, until

EXPIRY = 100
BEFORE, AFTER = "writer.before_commit", "writer.after_commit"


class SlowCommit:
    """The next transaction stops before its commit, and after it, until it is let on."""

    def __init__(self) -> None:
        self.stops = {BEFORE: threading.Event(), AFTER: threading.Event()}
        self._reached = {name: threading.Event() for name in self.stops}
        self._fails = False
        self.fails_next = False
        """Whether the transaction after it fails."""

    def __call__(self, name: str) -> None:
        if name == BEFORE and self._reached[name].is_set() and self.fails_next:
            self.fails_next = False
            raise StoreError("the disk")
        if name in self.stops and not self._reached[name].is_set():
            self._reached[name].set()
            assert self.stops[name].wait(PATIENCE)
            if self._fails:
                raise StoreError("the disk")

    async def reached(self, name: str) -> None:
        assert await asyncio.to_thread(self._reached[name].wait, PATIENCE)

    def fail(self) -> None:
        self._fails = True
        self.go_on()

    def go_on(self) -> None:
        for each in self.stops.values():
            each.set()


@asynccontextmanager
async def changing(
    client: Client, group: str, expiry: int, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[SlowCommit, "asyncio.Task[Any]"]]:
    """Change the expiry of a group; the block begins when all is written, and not yet committed."""
    slow = SlowCommit()
    monkeypatch.setattr(writer, "reach", slow)
    body = {"message_expiry_seconds": expiry, "update_message_expiry": True}
    change = asyncio.create_task(client.call("PATCH", f"/groups/{group}", json=body))
    try:
        await slow.reached(BEFORE)
        yield slow, change
    finally:
        slow.go_on()
        await asyncio.wait([change])


async def two_ages(running: Running) -> tuple[Client, Client, str]:
    """Two members of a group in which a message is about to expire, and one is not."""
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("friends", expiry=EXPIRY)
    await bob.join(group)
    await alice.send(group)
    running.clock.advance(EXPIRY)
    await alice.send(group)
    for each in (alice, bob):
        assert await each.numbers(group) == [1, 2]
    await running.settle()
    return alice, bob, group


async def expect_hidden_after_a_start(config: Config, start_server: StartServer, bob: Client, group: str) -> None:
    async with start_server(config) as again:
        assert await Client(again.http, again.url, bob.token, bob.user_id).numbers(group) == [2]


@pytest.mark.parametrize("is_archived", [False, True])
@pytest.mark.parametrize("is_remembered", [True, False])
async def test_what_expires_before_a_longer_expiry_is_there_stays_hidden(
    config: Config,
    start_server: StartServer,
    monkeypatch: pytest.MonkeyPatch,
    is_remembered: bool,
    is_archived: bool,
) -> None:
    async with start_server(config) as running:
        alice, bob, group = await two_ages(running)
        if is_archived:
            Mover(config).move(group, 2)
        if not is_remembered:
            monkeypatch.setattr(running.app[app_keys.GROUPS], "page", lambda *_: None)
        async with changing(alice, group, KEEP, monkeypatch) as (slow, change):
            running.clock.advance(1)
            assert await bob.numbers(group) == [2], "the former expiry is in force"
            slow.stops[BEFORE].set()
            await slow.reached(AFTER)
            assert await bob.numbers(group) == [2]
            assert await bob.numbers(group) == [2], "also from memory"
            running.clock.advance(1)
            slow.go_on()
            await change
            assert await bob.numbers(group) == [2]
        running.clock.advance(EXPIRY)
        assert await bob.numbers(group) == [2], "the longer one is in force"
    await expect_hidden_after_a_start(config, start_server, bob, group)


async def test_a_change_whose_mark_cannot_be_written_at_once_is_there_and_gets_it_later(
    config: Config, start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with start_server(config) as running:
        alice, bob, group = await two_ages(running)
        async with changing(alice, group, KEEP, monkeypatch) as (slow, change):
            running.clock.advance(1)
            slow.fails_next = True
            slow.go_on()
            await change
        assert not slow.fails_next, "the mark was not written"
        assert await bob.numbers(group) == [2]
    await expect_hidden_after_a_start(config, start_server, bob, group)


async def test_a_change_that_a_stop_does_not_wait_for_gets_its_mark(
    config: Config, start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with start_server(config) as running:
        alice, bob, group = await two_ages(running)
        monkeypatch.setattr(running.server.runner, "_shutdown_timeout", 0.01)
        former = running.app[app_keys.STORE].former_policies
        async with changing(alice, group, KEEP, monkeypatch) as (slow, change):
            running.clock.advance(1)
            stopping = asyncio.create_task(running.server.close())
            await until(lambda: not former.of(1))
            slow.go_on()
            await stopping
            await asyncio.wait([change])
            assert isinstance(change.exception(), ClientError)
    running.clock.advance(EXPIRY)
    async with start_server(config) as again:
        bob = Client(again.http, again.url, bob.token, bob.user_id)
        assert await bob.numbers(group) == [2], "the change is there"


async def test_an_acceptance_of_the_clock_meanwhile_leaves_it_to_its_own_marks(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an operator brings back to an earlier time must not be hidden by a later one."""
    _, bob, group = await two_ages(running)
    former = running.app[app_keys.STORE].former_policies
    policy = GroupPolicy(lifetime=1)
    former.begin(1, policy)
    former.end(1, policy, running.clock.now() + 1)
    assert await bob.numbers(group) == []
    with closing(sqlite.connect(running.config.database)) as other, sqlite.write_transaction(other):
        accept_clock(other, running.clock.read())
    await running.app[app_keys.CLOCK_WATCH].record()
    assert not former.unmarked
    assert await bob.numbers(group) == [1, 2]


async def test_who_asks_once_the_change_was_announced_learns_what_stays_hidden(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, bob, group = await two_ages(running)
    async with changing(alice, group, KEEP, monkeypatch) as (slow, change):
        running.clock.advance(1)
        slow.stops[BEFORE].set()
        await slow.reached(AFTER)
        told = await bob.get(f"/groups/{group}/retention")
        assert told["hidden_before"] == running.clock.now() - EXPIRY
        slow.go_on()
        await change
        assert await bob.get(f"/groups/{group}/retention") == told


async def test_a_change_that_fails_leaves_the_former_policy(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    alice, bob, group = await two_ages(running)
    async with changing(alice, group, KEEP, monkeypatch) as (slow, change):
        running.clock.advance(1)
        slow.fail()
        await expect(change, 503, 0)
    assert await bob.numbers(group) == [2]
    assert not running.app[app_keys.STORE].former_policies.of(1)
    running.clock.advance(EXPIRY)
    assert await bob.numbers(group) == []


async def test_a_change_within_a_second_writes_once(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    alice, bob, group = await two_ages(running)
    async with changing(alice, group, KEEP, monkeypatch) as (slow, change):
        slow.go_on()
        await change
    running.clock.advance(EXPIRY)
    assert await bob.numbers(group) == [1, 2]
    former = running.app[app_keys.STORE].former_policies
    assert not former.of(1)
    assert not former.hidden_before(1)
