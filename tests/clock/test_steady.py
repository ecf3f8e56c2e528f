"""A clock whose time is not turned back by small steps."""

import pytest

from conclave.clock import FakeClock
from conclave.clock.steady import Floor, SteadyClock

START, YEAR = 1_700_000_000, 31_536_000


@pytest.fixture
def wall() -> FakeClock:
    return FakeClock(START)


@pytest.fixture
def steady(wall: FakeClock) -> SteadyClock:
    trusted = SteadyClock(wall)
    trusted.resume(Floor(START), wall.read())
    return trusted


@pytest.mark.parametrize(("step", "seen"), [(0, 0), (-1, 0), (-600, 0), (-601, -601), (-YEAR, -YEAR), (600, 600)])
def test_the_time_does_not_go_back_by_up_to_ten_minutes(
    wall: FakeClock, steady: SteadyClock, step: int, seen: int
) -> None:
    assert steady.now() == START
    wall.set_wrong(step)
    assert steady.now() == START + seen


def test_the_time_stands_still_until_the_wall_clock_has_caught_up(wall: FakeClock, steady: SteadyClock) -> None:
    wall.advance(100)
    assert steady.now() == START + 100
    wall.set_wrong(-50)
    for passed, seen in ((30, 100), (19, 100), (1, 100), (1, 101)):
        wall.advance(passed)
        assert steady.now() == START + seen


def test_a_jump_that_nobody_has_noticed_yet_does_not_raise_the_floor(wall: FakeClock, steady: SteadyClock) -> None:
    wall.set_wrong(YEAR)
    assert steady.now() == START + YEAR
    wall.set_wrong(-YEAR)
    wall.advance(5)
    assert steady.now() == START + 5


def test_the_floor_does_not_rise_while_the_clock_is_not_trusted(wall: FakeClock, steady: SteadyClock) -> None:
    steady.resume(steady.floor, None)
    wall.advance(60)
    assert steady.now() == START + 60
    assert steady.floor == Floor(START)


def test_a_clock_far_behind_does_not_skip_ten_minutes_when_it_comes_near(wall: FakeClock, steady: SteadyClock) -> None:
    wall.set_wrong(-700)
    assert steady.now() == START - 700
    steady.resume(Floor(START), None)
    wall.advance(300)
    assert steady.now() == START - 400


def test_what_others_have_acted_on_counts_too(wall: FakeClock, steady: SteadyClock) -> None:
    steady.resume(Floor(START + 30), wall.read())
    assert steady.now() == START + 30
    steady.resume(Floor(START + 20), wall.read())
    assert steady.now() == START + 30


def test_accepting_the_clock_lowers_the_floor(wall: FakeClock, steady: SteadyClock) -> None:
    wall.set_wrong(-300)
    assert steady.now() == START
    steady.resume(Floor(START - 300, acceptances=1), None)
    assert steady.now() == START - 300
