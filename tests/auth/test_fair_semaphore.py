"""Taking turns."""

import asyncio
from collections.abc import Hashable

import pytest

from conclave.auth import passwords
from conclave.auth.passwords import FairSemaphore
from conclave.errors import UnavailableError


class Crowd:
    """Those who want a turn; ``came_in`` has them in the order in which they got it."""

    def __init__(self, at_once: int) -> None:
        self.turns = FairSemaphore(at_once)
        self.came_in: list[str] = []
        self._leaving: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def come(self, *names: str) -> None:
        """Have some come; the key of each is its first letter."""
        for name in names:
            self._leaving[name] = asyncio.Event()
            self._tasks[name] = asyncio.create_task(self._take(name[0], name))
            await asyncio.sleep(0)

    async def leave(self, name: str) -> None:
        self._leaving[name].set()
        await self._tasks[name]
        await asyncio.sleep(0)

    async def give_up(self, *names: str) -> None:
        for name in names:
            self._tasks[name].cancel()
        await asyncio.gather(*(self._tasks[name] for name in names), return_exceptions=True)

    async def _take(self, key: Hashable, name: str) -> None:
        async with self.turns.turn(key):
            self.came_in.append(name)
            await self._leaving[name].wait()


async def test_keys_take_turns_however_many_of_one_wait() -> None:
    crowd = Crowd(1)
    await crowd.come("a1", "a2", "a3", "a4", "b1", "b2", "c1")
    for expected in ("a1", "a2", "b1", "c1", "a3", "b2", "a4"):
        assert crowd.came_in[-1] == expected
        await crowd.leave(expected)
    assert crowd.turns.has_room
    assert crowd.turns.waiting == 0


async def test_as_many_as_may_are_in_at_once() -> None:
    crowd = Crowd(2)
    await crowd.come("a1", "a2", "a3", "a4")
    assert crowd.came_in == ["a1", "a2"]
    await crowd.leave("a2")
    assert crowd.came_in == ["a1", "a2", "a3"]
    assert crowd.turns.waiting == 1
    await crowd.give_up("a1", "a3", "a4")


async def test_who_gives_up_holds_up_nobody() -> None:
    crowd = Crowd(1)
    await crowd.come("a1", "a2", "b1", "b2")
    await crowd.give_up("a2", "b1")
    await crowd.leave("a1")
    assert crowd.came_in == ["a1", "b2"]
    await crowd.leave("b2")
    assert crowd.turns.has_room


async def test_a_turn_that_comes_when_its_owner_gives_up_goes_to_the_next() -> None:
    crowd = Crowd(1)
    await crowd.come("a1", "a2", "b1")
    crowd._leaving["a1"].set()
    while crowd.turns.waiting == 2:
        await asyncio.sleep(0)
    await crowd.give_up("a2")  # it was let in, but has not run since
    await asyncio.sleep(0)
    assert crowd.came_in == ["a1", "b1"]
    await crowd.leave("b1")
    assert crowd.turns.has_room


async def test_a_failure_ends_a_turn() -> None:
    only = FairSemaphore(1)
    with pytest.raises(ZeroDivisionError):
        async with only.turn("a"):
            raise ZeroDivisionError
    assert only.has_room


@pytest.mark.parametrize(("of_one", "altogether", "let_wait"), [(2, 9, "a2 a3 b1 b2"), (9, 3, "a2 a3 b1")])
async def test_only_so_many_wait(monkeypatch: pytest.MonkeyPatch, of_one: int, altogether: int, let_wait: str) -> None:
    monkeypatch.setattr(passwords, "MAX_WAITING_PER_KEY", of_one)
    monkeypatch.setattr(passwords, "MAX_WAITING", altogether)
    crowd = Crowd(1)
    await crowd.come("a1", "a2", "a3", "a4", "b1", "b2", "b3")
    refused = [name for name, task in crowd._tasks.items() if task.done()]
    assert [name for name in crowd._tasks if name not in ("a1", *refused)] == let_wait.split()
    for name in refused:
        with pytest.raises(UnavailableError):
            await crowd._tasks[name]
    await crowd.give_up("a1", *let_wait.split())


async def test_where_too_many_wait_those_with_a_key_of_many_make_room_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise two addresses that ask again and again, with passwords that are right, would lock out everybody."""
    monkeypatch.setattr(passwords, "MAX_WAITING", 6)
    crowd = Crowd(1)
    await crowd.come("x1", "a1", "a2", "a3", "b1", "b2", "b3", "c1", "d1", "e1")
    await asyncio.sleep(0)
    refused = [name for name, task in crowd._tasks.items() if task.done()]
    assert refused == ["a2", "a3", "b3"]
    for name in refused:
        with pytest.raises(UnavailableError):
            await crowd._tasks[name]
    assert crowd.turns.waiting == 6
    for expected in ("x1", "a1", "b1", "c1", "d1", "e1", "b2"):
        assert crowd.came_in[-1] == expected
        await crowd.leave(expected)
    assert crowd.turns.has_room
    assert crowd.turns.waiting == 0


async def test_who_is_refused_and_gives_up_in_the_same_moment_ends_nobodys_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(passwords, "MAX_WAITING", 2)
    crowd = Crowd(1)
    await crowd.come("x1", "a1", "a2")
    crowd._leaving["b1"] = asyncio.Event()
    crowd._tasks["b1"] = asyncio.create_task(crowd._take("b", "b1"))
    crowd._tasks["a2"].get_loop().call_soon(crowd._tasks["a2"].cancel)
    await asyncio.gather(crowd._tasks["a2"], return_exceptions=True)
    await asyncio.sleep(0)
    assert crowd.came_in == ["x1"]
    assert crowd.turns.waiting == 2
    for name in ("x1", "a1", "b1"):
        assert crowd.came_in[-1] == name
        await crowd.leave(name)
    assert crowd.turns.has_room
