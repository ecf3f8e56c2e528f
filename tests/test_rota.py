"""A rota calls on each of its members once a round."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable

from conclave.rota import TURNS, Rota


class Someone:
    turn = 0


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


async def test_everybody_is_called_on_equally_often_and_not_all_at_once() -> None:
    called: Counter[Someone] = Counter()
    rota = Rota[Someone](lambda each: called.update([each]), seconds=0.1)
    everybody = [Someone() for _ in range(250)]
    for each in everybody:
        rota.add(each)
    assert {*Counter(each.turn for each in everybody).values()} == {2, 3}
    assert len({each.turn for each in everybody}) == TURNS
    await until(lambda: len(called) == 250 and min(called.values()) >= 3)
    assert max(called.values()) - min(called.values()) <= 1
    for each in everybody:
        rota.remove(each)


async def test_a_loop_that_was_held_up_catches_up_on_one_round_only() -> None:
    called: Counter[Someone] = Counter()
    rota = Rota[Someone](lambda each: called.update([each]), seconds=0.05)
    everybody = [Someone() for _ in range(TURNS)]
    for each in everybody:
        rota.add(each)
    await until(lambda: len(called) == TURNS)
    before = called.copy()
    rota.seconds = 0.2
    time.sleep(1)  # the loop is held up for five rounds
    for _ in range(3):
        await asyncio.sleep(0)
    assert max((called - before).values()) <= 2
    assert max(called.values()) - min(called.values()) <= 1
    for each in everybody:
        rota.remove(each)


async def test_who_has_left_is_not_called_on_and_an_empty_rota_has_no_timer() -> None:
    called: list[Someone] = []
    rota = Rota(called.append, seconds=0.05)
    stays, goes = Someone(), Someone()
    rota.add(stays)
    rota.add(goes)
    rota.remove(goes)
    await until(lambda: len(called) >= 2)
    assert {*called} == {stays}
    rota.remove(stays)
    assert rota._timer is None
    rota.add(goes)
    called.clear()
    await until(lambda: bool(called))
    assert {*called} == {goes}
    rota.remove(goes)
