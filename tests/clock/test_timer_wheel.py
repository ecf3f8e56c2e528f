"""A timer wheel calls on each of its members once a round."""

import asyncio
import time
from collections import Counter

from conclave.clock.timer_wheel import SLOTS, TimerWheel
from tests.support.server import until


class Someone:
    slot = 0


async def test_everybody_is_called_on_equally_often_and_not_all_at_once() -> None:
    called: Counter[Someone] = Counter()
    wheel = TimerWheel[Someone](lambda each: called.update([each]), seconds=0.1)
    everybody = [Someone() for _ in range(250)]
    for each in everybody:
        wheel.add(each)
    assert {*Counter(each.slot for each in everybody).values()} == {2, 3}
    assert len({each.slot for each in everybody}) == SLOTS
    await until(lambda: len(called) == 250 and min(called.values()) >= 3)
    assert max(called.values()) - min(called.values()) <= 1
    for each in everybody:
        wheel.remove(each)


async def test_a_loop_that_was_held_up_catches_up_on_one_round_only() -> None:
    called: Counter[Someone] = Counter()
    wheel = TimerWheel[Someone](lambda each: called.update([each]), seconds=0.05)
    everybody = [Someone() for _ in range(SLOTS)]
    for each in everybody:
        wheel.add(each)
    await until(lambda: len(called) == SLOTS)
    before = called.copy()
    wheel.seconds = 0.2
    time.sleep(1)  # the loop is held up for five rounds
    for _ in range(3):
        await asyncio.sleep(0)
    assert max((called - before).values()) <= 2
    assert max(called.values()) - min(called.values()) <= 1
    for each in everybody:
        wheel.remove(each)


async def test_who_has_left_is_not_called_on_and_an_empty_rota_has_no_timer() -> None:
    called: list[Someone] = []
    wheel = TimerWheel(called.append, seconds=0.05)
    stays, goes = Someone(), Someone()
    wheel.add(stays)
    wheel.add(goes)
    wheel.remove(goes)
    await until(lambda: len(called) >= 2)
    assert {*called} == {stays}
    wheel.remove(stays)
    assert wheel._timer is None
    wheel.add(goes)
    called.clear()
    await until(lambda: bool(called))
    assert {*called} == {goes}
    wheel.remove(goes)
