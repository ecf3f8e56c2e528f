"""The memory of responses that wait for their clients."""

import asyncio
import random
from contextlib import ExitStack

import pytest
from hypothesis import given, strategies as st

from conclave import response_memory
from conclave.response_memory import Budget


@pytest.fixture(autouse=True)
def four_accounts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_memory, "ACCOUNT_DIVISOR", 4)


class Sent:
    """A response that waits for its client. The test says how much of it the client has taken."""

    def __init__(self, memory: Budget, account: str | None, size: int, *, seconds: float = 10.0, taken: int = 0):
        self.left = size - taken
        self.is_cut_off = False
        self._ended = ExitStack()
        name = account.encode() if account is not None else None
        held = memory.waiting(name, 0, size, lambda: self.left, self._abort)
        self.waiting = self._ended.enter_context(held)
        self.waiting._began_at -= seconds
        self.waiting.hold(size)

    def _abort(self) -> None:
        self.is_cut_off = True

    def end(self) -> None:
        self._ended.close()


def cut_off(*sent: Sent) -> list[bool]:
    return [each.is_cut_off for each in sent]


async def test_a_response_counts_until_it_has_left() -> None:
    memory = Budget(400)
    first, second = Sent(memory, "a", 60), Sent(memory, None, 40)
    assert memory.used == 100
    first.waiting.hold(10)
    assert memory.used == 50
    first.end()
    second.end()
    assert memory.used == 0


async def test_beyond_its_part_the_slowest_response_of_an_account_is_cut_off_and_no_others() -> None:
    memory = Budget(400)
    fast, slow = Sent(memory, "a", 50, taken=40), Sent(memory, "a", 50)
    other = Sent(memory, "b", 100)
    more = Sent(memory, "a", 10, seconds=0)
    assert cut_off(fast, slow, other, more) == [False, True, False, False]
    assert (memory.used, memory.cut_off) == (160, {"account": 1, "memory": 0})
    alone = Sent(memory, "c", 200)
    assert not alone.is_cut_off, "the only one of its account"
    slow.waiting.hold(30)
    slow.end()
    assert memory.used == 360, "what was cut off counts no more, and is given back once"


async def test_of_accounts_that_have_about_as_much_the_slowest_response_goes_whoever_has_a_little_more() -> None:
    """Otherwise many who ask for a little less than others would have these cut off, however fast they are."""
    memory = Budget(400)
    fast = Sent(memory, "honest", 100, taken=90)
    slow = [Sent(memory, f"s{number}", 75, taken=number) for number in range(4)]
    little = Sent(memory, "little", 20)
    assert cut_off(fast, *slow, little) == [False, True, False, False, False, False]
    assert memory.cut_off == {"account": 0, "memory": 1}


async def test_a_response_that_has_just_begun_counts_as_quick() -> None:
    """But only for a second, whatever its size."""
    memory = Budget(400)
    newest = Sent(memory, "a", 100, seconds=0)
    quick = Sent(memory, "b", 100, seconds=1.5, taken=90)
    slow = Sent(memory, "c", 100, seconds=30, taken=99)
    young = Sent(memory, "d", 100, seconds=0.8, taken=10)
    for account, expected in (("e", slow), ("f", quick), ("g", young), ("h", newest)):
        assert not expected.is_cut_off
        Sent(memory, account, 100, seconds=0)
        assert expected.is_cut_off


async def test_small_responses_of_very_many_accounts_do_not_take_more_than_there_is() -> None:
    memory = Budget(400)
    sent = [Sent(memory, f"a{number}", 10) for number in range(60)]
    assert memory.used == 400
    assert sum(cut_off(*sent)) == 20


async def test_one_response_that_is_larger_than_all_memory_is_cut_off() -> None:
    memory = Budget(400)
    small = Sent(memory, "a", 10)
    assert cut_off(Sent(memory, "b", 401, seconds=0), small) == [True, False]
    assert memory.used == 10


async def respond(chance: random.Random, memory: Budget) -> None:
    task, account = asyncio.current_task(), chance.choice([None, b"a", b"b"])

    def abort() -> None:
        assert task
        task.cancel()

    with memory.waiting(account, chance.randrange(200), 1, lambda: chance.randrange(2), abort) as waiting:
        for _ in range(chance.randrange(4)):
            await asyncio.sleep(0)
            waiting.hold(chance.randrange(200))
            if chance.random() < 0.1:
                raise ConnectionError


@given(st.integers(0, 2**32), st.integers(1, 1000))
async def test_whatever_breaks_or_is_cancelled_the_budget_is_kept_and_returns_to_zero(seed: int, size: int) -> None:
    """Responses begin at random, grow, fail, are cut off and cancelled, at any point."""
    chance, memory = random.Random(seed), Budget(size)
    tasks = []
    for _ in range(12):
        tasks.append(asyncio.create_task(respond(chance, memory)))
        if chance.random() < 0.7:
            await asyncio.sleep(0)
        assert 0 <= memory.used <= size
        if chance.random() < 0.4:
            chance.choice(tasks).cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    wrong = [each for each in results if isinstance(each, Exception) and not isinstance(each, ConnectionError)]
    assert not wrong
    assert memory.used == 0
    assert not memory._by_account
