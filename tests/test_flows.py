"""How many modules a maintainer opens to follow a request or a run: those whose functions it calls.

What the server calls while nothing is asked of it does not count. Each bound is what was counted when it was set, and
three more: a change that adds modules to a flow merges others, or says why.
"""

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from conclave.archive.layout import DAY
from conclave.config.settings import Config
from spark.environment import RunEnvironment
from spark.run import clean_up
from tests.conftest import Running, StartServer
from tests.support.archive import Mover
from tests.support.client import Client

ROOT = Path(__file__).resolve().parents[1]
OURS = tuple(f"{ROOT / top}/" for top in ("conclave", "spark"))


class Followed:
    """The files of ours whose functions were called, in any thread, while something was followed."""

    def __init__(self) -> None:
        self._files: dict[str, None] = {}
        self._is_on = False

    def see(self, frame: FrameType, event: str, _: Any) -> None:
        if self._is_on and event == "call":
            self._files[frame.f_code.co_filename] = None

    @contextmanager
    def following(self) -> Iterator[Callable[[], list[str]]]:
        self._files, self._is_on = {}, True
        yield self._modules
        self._is_on = False

    def _modules(self) -> list[str]:
        return sorted(each.removeprefix(f"{ROOT}/") for each in tuple(self._files) if each.startswith(OURS))


@pytest.fixture
def followed() -> Iterator[Followed]:
    found = Followed()
    threading.setprofile(found.see)
    sys.setprofile(found.see)
    yield found
    sys.setprofile(None)
    threading.setprofile(None)


@pytest.fixture
async def server(followed: Followed, config: Config, start_server: StartServer) -> AsyncIterator[Running]:
    """A server whose threads begin when they are followed."""
    async with start_server(config) as started:
        yield started


async def follow(followed: Followed, doing: Any, most: int) -> None:
    with followed.following() as modules:
        await asyncio.sleep(1.5)
        idle = modules()
    with followed.following() as modules:
        await doing
        await asyncio.sleep(0.1)
        found = [each for each in modules() if each not in idle]
    assert len(found) <= most, "\n".join(found)


async def in_a_group(server: Running) -> tuple[Client, str]:
    alice = await server.user("alice")
    group = await alice.create_group("friends")
    for number in range(10):
        await alice.send(group, b"%d" % number)
    await server.settle()
    return alice, group


async def test_a_send(followed: Followed, server: Running) -> None:
    alice, group = await in_a_group(server)
    await follow(followed, alice.send(group, b"hello"), 21)


async def test_a_page(followed: Followed, server: Running) -> None:
    alice, group = await in_a_group(server)
    await follow(followed, alice.fetch(group, after=3), 30)


async def test_a_page_from_the_archive(followed: Followed, server: Running) -> None:
    alice, group = await in_a_group(server)
    Mover(server.config).move(group, 5)
    await follow(followed, alice.fetch(group, after=2), 34)


async def test_a_change_of_the_expiry(followed: Followed, server: Running) -> None:
    alice, group = await in_a_group(server)
    await follow(followed, alice.set_expiry(group, DAY), 35)


async def test_a_run(followed: Followed, server: Running) -> None:
    alice, group = await in_a_group(server)
    await alice.set_expiry(group, DAY)
    server.clock.advance(2 * DAY)
    config = replace(server.config, cleanup=replace(server.config.cleanup, engine="sql"))
    with closing(RunEnvironment(config, server.clock)) as environment:
        await follow(followed, asyncio.to_thread(clean_up, environment), 33)
