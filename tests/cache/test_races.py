"""What happens while a request waits: nothing that is hidden meanwhile is sent, and nothing goes wrong for others."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from conclave import keys
from conclave.actions import messages
from tests.conftest import Running
from tests.support.alone import once
from tests.support.client import Client
from tests.support.world import outcome


async def remembered(running: Running) -> tuple[Client, Client, str]:
    """Two members of a group with messages that the server remembers."""
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("friends", expiry=100)
    await bob.join(group)
    for _ in range(3):
        await alice.send(group)
    assert await bob.numbers(group) == await alice.numbers(group) == [1, 2, 3]
    await running.settle()
    return alice, bob, group


async def waits_for_memory(running: Running) -> None:
    async with asyncio.timeout(20):
        while not running.app[keys.BUDGET]._waiting:
            await asyncio.sleep(0.001)


def expire(running: Running) -> None:
    running.clock.advance(101)


def remove(running: Running) -> None:
    once(running.config.database, "DELETE FROM members WHERE role = 'member'")


@pytest.mark.parametrize(("happen", "told"), [(expire, []), (remove, (401, 400))])
async def test_a_page_that_waits_for_memory_shows_what_may_be_seen_once_it_has_it(
    running: Running, monkeypatch: pytest.MonkeyPatch, happen: Callable[[Running], None], told: Any
) -> None:
    monkeypatch.setattr(messages, "UNCOUNTED_BYTES", 0)
    _, bob, group = await remembered(running)
    budget = running.app[keys.BUDGET]
    other = budget.share()
    other.take(budget.size)
    fetching = asyncio.create_task(outcome(bob.numbers(group)))
    await waits_for_memory(running)
    happen(running)
    other.close()
    assert await fetching == told
