"""The memory that all responses share."""

import asyncio
import random
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given, settings, strategies as st

from conclave import response_memory
from conclave.errors import UnavailableError
from conclave.response_memory import ITEM_BYTES, LEAVES_FREE, Budget, NoRoomError, Share, cost

PATIENCE = 20.0


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_memory, "WAIT_SECONDS", PATIENCE)


def test_what_is_taken_is_missing_until_it_is_given_back() -> None:
    memory = Budget(100)
    first, second = memory.share(), memory.share()
    first.take(60)
    with pytest.raises(NoRoomError):
        second.take(50)
    second.take(40)
    assert (memory.used, memory.free) == (100, 0)
    first.hold(10)
    assert (memory.used, memory.free) == (50, 50)
    first.close()
    second.close()
    assert memory.used == 0


class _Asked(list[int]):
    """Sizes of bodies, of which one can see how often somebody has gone through them."""

    times = 0

    def __iter__(self) -> Iterator[int]:
        self.times += 1
        assert self.times < 100, "it goes on for ever"
        return super().__iter__()


def test_a_thread_that_still_reads_for_a_reader_who_is_gone_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or it reads for ever, with a reader of the store and its snapshot, and the server cannot stop."""
    share = Budget(100 * ITEM_BYTES).share()
    share.close()
    sizes = _Asked([10, 10, 10])
    with pytest.raises(NoRoomError):
        share.take_bodies(sizes, 1_000)
    assert sizes.times == 1
    with pytest.raises(NoRoomError):
        share.take_bodies(_Asked([10, 10, 10]), 1_000, least=0)
    most = iter([100] * 100)
    monkeypatch.setattr(Share, "_most", lambda _: next(most))
    with pytest.raises(NoRoomError):
        share.take_up_to(50, 1)


def test_what_is_larger_than_all_goes_alone() -> None:
    memory = Budget(100)
    large, small = memory.share(), memory.share()
    small.take(1)
    with pytest.raises(NoRoomError):
        large.take(1000)
    small.close()
    large.take(1000)
    with pytest.raises(NoRoomError):
        memory.share().take(1)
    large.close()
    assert memory.used == 0


def test_a_share_that_is_closed_takes_nothing_any_more() -> None:
    memory = Budget(100)
    share = memory.share()
    share.close()
    with pytest.raises(NoRoomError):
        share.take(1)
    share.hold(1)
    share.close()
    assert memory.used == 0


def test_bodies_are_taken_up_to_a_limit_and_at_least_one() -> None:
    share = Budget(10**9).share()
    assert share.take_bodies([10, 10, 10], 25) == 2
    assert share.held == cost(20, 2)
    assert share.take_bodies([50], 25) == 1
    assert share.take_bodies([50], 25, least=0) == 0
    assert share.take_bodies([], 25) == 0


def test_what_can_be_shorter_takes_a_part_of_what_is_free_and_so_leaves_room() -> None:
    memory = Budget(100 * ITEM_BYTES)
    shares = [memory.share() for _ in range(10)]
    taken = [share.take_bodies([0] * 1000, 1) for share in shares]
    assert taken[0] == 100 // LEAVES_FREE
    assert taken == sorted(taken, reverse=True)
    assert memory.free > 0
    last = memory.share()
    assert last.take_up_to(100 * ITEM_BYTES, 1) == (memory.size - sum(share.held for share in shares)) // LEAVES_FREE


async def test_who_waits_is_served_in_the_order_of_arrival() -> None:
    memory = Budget(100)
    holder = memory.share()
    holder.take(100)
    served: list[int] = []

    async def ask(number: int) -> None:
        share = memory.share()
        await share.reserve(60)
        served.append(number)
        await asyncio.sleep(0)
        share.close()

    waiting = [asyncio.create_task(ask(number)) for number in range(5)]
    await asyncio.sleep(0)
    holder.close()
    await asyncio.gather(*waiting)
    assert served == [0, 1, 2, 3, 4]
    assert memory.used == 0


async def test_a_small_one_does_not_wait_behind_a_large_one() -> None:
    memory = Budget(100)
    holder, large, small = memory.share(), memory.share(), memory.share()
    holder.take(50)
    waiting = asyncio.create_task(large.reserve(90))
    await asyncio.sleep(0)
    await small.reserve(40)
    assert not waiting.done()
    small.close()
    holder.close()
    await waiting
    assert large.held == 90


async def test_who_waits_in_vain_is_told_when_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_memory, "WAIT_SECONDS", 0.01)
    memory = Budget(100)
    memory.share().take(100)
    with pytest.raises(UnavailableError) as refused:
        await memory.share().reserve(1)
    assert refused.value.headers["Retry-After"] == str(response_memory.RETRY_SECONDS)
    assert memory.used == 100


async def test_an_attempt_is_repeated_with_the_room_that_it_needed() -> None:
    memory = Budget(100)
    holder, share = memory.share(), memory.share()
    holder.take(90)
    tries = 0

    async def attempt() -> str:
        nonlocal tries
        tries += 1
        await asyncio.to_thread(share.take, 10)
        await asyncio.to_thread(share.take, 10)
        return "done"

    waiting = asyncio.create_task(share.fit(attempt))
    while tries == 0 or share.held:
        await asyncio.sleep(0.01)
    holder.hold(80)
    assert await waiting == "done"
    assert (tries, share.held) == (2, 20)


async def take_something(chance: random.Random, share: Share, size: int) -> None:
    what = chance.randrange(4)
    if what == 0:
        await share.reserve(chance.randrange(size + 20))
    elif what == 1:
        await share.fit(lambda: asyncio.to_thread(share.take_bodies, [1] * 9, 9))
    elif what == 2:
        await share.fit(lambda: asyncio.to_thread(share.take, chance.randrange(200)))
    else:
        await asyncio.sleep(0)


async def respond(chance: random.Random, memory: Budget) -> None:
    share = memory.share()
    try:
        for _ in range(chance.randrange(4)):
            await take_something(chance, share, memory.size)
            share.hold(chance.randrange(share.held + 2))
            if chance.random() < 0.1:
                raise ConnectionError
    finally:
        share.close()


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 200))
async def test_whatever_breaks_or_is_cancelled_the_budget_returns_to_zero(seed: int, size: int) -> None:
    """Requests begin at random, take in threads, wait, fail, are cut off and cancelled, at any point."""
    chance, memory = random.Random(seed), Budget(size)
    tasks = []
    for _ in range(12):
        tasks.append(asyncio.create_task(respond(chance, memory)))
        if chance.random() < 0.7:
            await asyncio.sleep(0)
        if chance.random() < 0.4:
            chance.choice(tasks).cancel()
    if chance.random() < 0.3:
        for task in tasks:
            task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    wrong = [each for each in results if isinstance(each, Exception) and not isinstance(each, ConnectionError)]
    assert not wrong
    assert memory.used == 0


def test_threads_that_take_at_once_never_take_more_than_there_is() -> None:
    memory = Budget(1000)

    def take() -> None:
        for _ in range(2000):
            share = memory.share()
            try:
                share.take(300)
                assert memory.used <= 1000
            except NoRoomError:
                pass
            share.close()

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert memory.used == 0
