"""The memory that all responses share."""

import asyncio
import random
import threading

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from conclave import response_memory
from conclave.errors import UnavailableError
from conclave.response_memory import ITEM_BYTES, SMALL_BYTES, Budget, NoRoomError, Share, cost

PATIENCE = 20.0


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_memory, "WAIT_SECONDS", PATIENCE)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_memory, "WAIT_SECONDS", 0.02)


@pytest.fixture(autouse=True)
def one_account(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one account have all of the memory, but in the tests of what accounts may have."""
    if "accounts" not in request.fixturenames:
        monkeypatch.setattr(response_memory, "ACCOUNTS", 1)


def test_what_is_taken_is_missing_until_it_is_given_back() -> None:
    memory = Budget(100)
    first, second = memory.share(), memory.share()
    first.take(60)
    with pytest.raises(NoRoomError):
        second.take(50)
    second.take(40)
    assert memory.used == 100
    first.hold(10)
    assert memory.used == 50
    first.close()
    second.close()
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


def test_a_small_response_takes_no_memory() -> None:
    memory = Budget(100)
    holder, share = memory.share(), memory.share()
    holder.hold(100)
    share.take_for(SMALL_BYTES)
    assert share.held == 0
    with pytest.raises(NoRoomError):
        share.take_for(SMALL_BYTES + 1)


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


async def test_an_account_does_not_wait_behind_another_one() -> None:
    memory = Budget(100)
    holder, large, small = memory.share(), memory.share(b"large"), memory.share(b"small")
    holder.take(50)
    waiting = asyncio.create_task(large.reserve(90))
    await asyncio.sleep(0)
    await small.reserve(40)
    assert not waiting.done()
    small.close()
    holder.close()
    await waiting
    assert large.held == 90


class Sent:
    """A response that is being sent to an account. The test says how much of it the client has taken."""

    def __init__(self, memory: Budget, account: str, size: int, *, seconds: float = 10.0, taken: int = 0) -> None:
        self.share = memory.share(account.encode())
        self.left = size
        self.is_cut_off = False
        self.share.begin_sending(size, size, lambda: self.left, self._abort)
        self.share.began -= seconds
        self.left -= taken

    def _abort(self) -> None:
        self.is_cut_off = True


@pytest.fixture
def accounts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_memory, "ACCOUNTS", 4)


async def refused(share: Share, size: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    with monkeypatch.context() as patch:
        patch.setattr(response_memory, "WAIT_SECONDS", 0.01)
        try:
            await share.reserve(size)
        except UnavailableError:
            return True
    return False


@pytest.mark.usefixtures("accounts")
async def test_beyond_its_part_an_account_waits_and_others_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Budget(400)
    sent = [Sent(memory, "a", 50) for _ in range(2)]
    assert await refused(memory.share(b"a"), 1, monkeypatch)
    others = [memory.share(name.encode()) for name in "bcd"]
    for each in others:
        assert not await refused(each, 100, monkeypatch)
    assert not any(each.is_cut_off for each in sent)
    waiting = asyncio.create_task(memory.share(b"a").reserve(50))
    await asyncio.sleep(0)
    sent[0].share.end_sending()
    await waiting
    assert memory.used == 400


@pytest.mark.usefixtures("accounts")
async def test_who_holds_little_gets_the_memory_of_the_slowest_response_of_those_who_hold_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = Budget(400)
    fast = Sent(memory, "a", 50, taken=40)
    slow = Sent(memory, "a", 50, taken=10)
    slower_of_one_with_less = Sent(memory, "b", 40)
    most = [Sent(memory, name, 86, taken=20) for name in "cde"]
    assert memory.used == 398
    share = memory.share(b"f")
    assert not await refused(share, 20, monkeypatch)
    assert [each for each in (fast, slow, slower_of_one_with_less, *most) if each.is_cut_off] == [slow]
    assert share.held == 20
    assert (memory.used, memory.cut_off["memory"]) == (368, 1)
    share.close()
    slow.share.end_sending()
    slow.share.close()
    assert memory.used == 348, "what was cut off is given back once"


@pytest.mark.usefixtures("accounts")
async def test_of_accounts_that_hold_about_as_much_the_slowest_response_goes_whoever_holds_a_little_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise many who ask for a little less than others would have these cut off, however fast they are."""
    memory = Budget(400)
    fast = Sent(memory, "honest", 100, taken=90)
    slow = [Sent(memory, f"s{number}", 75, taken=number) for number in range(4)]
    assert not await refused(memory.share(b"new"), 70, monkeypatch)
    assert [each.is_cut_off for each in (fast, *slow)] == [False, True, False, False, False]


@pytest.mark.usefixtures("accounts")
async def test_who_holds_as_much_as_all_others_waits_and_cuts_off_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Budget(400)
    sent = [Sent(memory, name, 80) for name in "abcde"]
    assert await refused(memory.share(b"a"), 20, monkeypatch)
    assert not any(each.is_cut_off for each in sent)


@pytest.mark.usefixtures("accounts")
async def test_an_account_that_was_too_slow_for_others_has_nobody_cut_off_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise slow accounts would cut off each other without end."""
    memory = Budget(400)
    slow = Sent(memory, "slow", 100)
    others = [Sent(memory, name, 100, taken=10) for name in "abc"]
    assert not await refused(memory.share(b"new"), 100, monkeypatch)
    assert slow.is_cut_off
    assert await refused(memory.share(b"slow"), 100, monkeypatch)
    assert not any(each.is_cut_off for each in others)
    others[0].share.end_sending()
    assert not await refused(memory.share(b"slow"), 50, monkeypatch), "it gets what is free"
    monkeypatch.setattr(response_memory, "SLOW_SECONDS", -1.0)
    assert not await refused(memory.share(b"slow"), 50, monkeypatch)
    assert not await refused(memory.share(b"d"), 100, monkeypatch)
    assert sum(each.is_cut_off for each in others[1:]) == 1


@pytest.mark.usefixtures("accounts")
async def test_a_response_that_has_just_begun_counts_as_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """But only for a second, whatever its size."""
    memory = Budget(400)
    newest = Sent(memory, "a", 100, seconds=0)
    quick = Sent(memory, "b", 100, seconds=1.5, taken=90)
    slow = Sent(memory, "c", 100, seconds=30, taken=99)
    young = Sent(memory, "d", 100, seconds=0.8, taken=10)
    for account, expected in (("e", slow), ("f", quick), ("g", young), ("h", newest)):
        assert not expected.is_cut_off
        assert not await refused(memory.share(account.encode()), 100, monkeypatch)
        assert expected.is_cut_off


@pytest.mark.usefixtures("accounts")
async def test_memory_for_what_was_not_read_yet_is_taken_back_before_anything_is_cut_off() -> None:
    """Otherwise others would wait until very much was read that nobody takes."""
    memory = Budget(400)
    sent = [Sent(memory, name, 80) for name in "abcde"]
    waits = memory.share(b"f")
    waiting, tries, is_read = asyncio.Event(), 0, asyncio.Event()

    async def read() -> None:
        nonlocal tries
        tries += 1
        if tries == 2:
            waiting.set()
            await is_read.wait()
        waits.take(80)

    reading = asyncio.create_task(waits.fit(read))
    await waiting.wait()
    assert [each.is_cut_off for each in sent].count(True) == 1
    assert waits.held == 80
    await memory.share(b"g").reserve(80)
    assert [each.is_cut_off for each in sent].count(True) == 1
    assert waits.held == 0
    is_read.set()
    await reading
    assert (tries, waits.held) == (3, 80)
    assert [each.is_cut_off for each in sent].count(True) == 2


@pytest.mark.usefixtures("accounts")
async def test_what_is_sent_in_any_case_takes_the_memory_of_slower_responses_of_its_own_account() -> None:
    memory = Budget(400)
    fast, slow = Sent(memory, "a", 50, taken=40), Sent(memory, "a", 50)
    other = Sent(memory, "b", 100)
    small = Sent(memory, "a", 10, seconds=0)
    assert [each.is_cut_off for each in (fast, slow, other, small)] == [False, True, False, False]
    assert (memory.used, memory.cut_off["account"]) == (160, 1)
    alone = Sent(memory, "c", 200)
    assert not alone.is_cut_off, "the only one of its account"


@pytest.mark.usefixtures("accounts")
async def test_small_responses_of_very_many_accounts_do_not_take_more_than_there_is() -> None:
    memory = Budget(400)
    sent = [Sent(memory, f"a{number}", 10) for number in range(60)]
    assert memory.used == 400
    assert sum(each.is_cut_off for each in sent) == 20


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
        await share.reserve(chance.randrange(size))
    elif what == 1:
        await share.fit(lambda: asyncio.to_thread(share.take, cost(9, 9)))
    elif what == 2:
        await share.fit(lambda: asyncio.to_thread(share.take, chance.randrange(200)))
    else:
        await asyncio.sleep(0)


async def respond(chance: random.Random, memory: Budget) -> None:
    share = memory.share(chance.choice([None, b"a", b"b"]))
    try:
        for _ in range(chance.randrange(4)):
            await take_something(chance, share, memory.size)
            share.begin_sending(chance.randrange(share.held + 2), 1, lambda: 0, lambda: None)
            await asyncio.sleep(0)
            share.end_sending()
            if chance.random() < 0.1:
                raise ConnectionError
    finally:
        share.close()


@pytest.mark.usefixtures("impatient")
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32), st.integers(1, 200))
async def test_whatever_breaks_or_is_cancelled_the_budget_returns_to_zero(seed: int, items: int) -> None:
    """Requests begin at random, take in threads, wait, fail, are cut off and cancelled, at any point."""
    chance, memory = random.Random(seed), Budget(items * ITEM_BYTES)
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
    expected = ConnectionError, UnavailableError
    wrong = [each for each in results if isinstance(each, Exception) and not isinstance(each, expected)]
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
