"""Counting what happened of late."""

from collections import defaultdict

import pytest
from hypothesis import given, settings, strategies as st

from conclave import app_keys
from conclave.auth import sliding_window
from conclave.auth.sliding_window import LeakyBucket, SlidingWindow
from tests.conftest import Running


def test_as_many_as_the_limit_are_allowed_in_any_window() -> None:
    window = SlidingWindow(limit=2, seconds=60)
    window.record("a", 100)
    window.record("a", 130)
    assert [window.wait("a", now) for now in (130, 159, 160)] == [30, 1, 0]
    window.record("a", 160)
    assert window.wait("a", 160) == 30


def test_asking_records_nothing() -> None:
    window = SlidingWindow(limit=1, seconds=60)
    assert [window.wait("a", 100) for _ in range(3)] == [0, 0, 0]
    assert len(window) == 0


def test_one_key_does_not_count_for_another() -> None:
    window = SlidingWindow(limit=1, seconds=60)
    window.record("a", 100)
    assert (window.wait("a", 100), window.wait("b", 100)) == (60, 0)


def test_several_at_once_wait_until_there_is_room_for_all_of_them() -> None:
    window = SlidingWindow(limit=3, seconds=60)
    window.record("a", 100)
    window.record("a", 110)
    assert [window.wait("a", 120, amount) for amount in (1, 2, 3)] == [0, 40, 50]
    window.record("b", 120, 3)
    assert window.wait("b", 120) == 60


@pytest.mark.parametrize("amount", [0, 4])
def test_more_than_the_limit_at_once_is_a_mistake_of_the_caller(amount: int) -> None:
    with pytest.raises(ValueError, match="is not between 1 and 3"):
        SlidingWindow(limit=3, seconds=60).wait("a", 100, amount)


def test_what_is_recorded_beyond_the_limit_postpones_the_end() -> None:
    window = SlidingWindow(limit=2, seconds=60)
    window.record("a", 100, 5)
    window.record("a", 110)
    assert (window.count("a", 110), window.wait("a", 110), window.wait("a", 110, 2)) == (2, 50, 60)


def test_what_is_cleared_does_not_count() -> None:
    window = SlidingWindow(limit=1, seconds=60)
    window.record("a", 100)
    window.clear("a")
    window.clear("never recorded")
    assert (window.wait("a", 100), len(window)) == (0, 0)


def test_a_key_goes_when_its_window_has_passed_whoever_asks() -> None:
    window = SlidingWindow(limit=1, seconds=60)
    for number in range(10):
        window.record(number, 100 + number)
    assert window.wait("another", 164) == 0
    assert len(window) == 5
    assert window.wait("another", 169) == 0
    assert len(window) == 0


def test_a_time_that_goes_back_counts_as_the_latest() -> None:
    window = SlidingWindow(limit=1, seconds=60)
    window.record("a", 100)
    window.record("b", 90)
    assert (window.wait("a", 90), window.wait("b", 90)) == (60, 60)
    assert (window.wait("a", 160), len(window)) == (0, 0)


def test_what_is_remembered_is_bounded_and_the_oldest_key_goes_first() -> None:
    window = SlidingWindow(limit=2, seconds=60, capacity=4)
    window.record("a", 100, 2)
    window.record("b", 100)
    window.record("a", 101)
    window.record("c", 102, 2)
    assert {key: window.count(key, 102) for key in "abc"} == {"a": 2, "b": 0, "c": 2}
    for number in range(1000):
        window.record(number, 103)
    assert len(window) == 4


def test_moments_that_have_passed_leave_room_for_others() -> None:
    window = SlidingWindow(limit=3, seconds=60, capacity=3)
    for now in (100, 150, 165):
        window.record("a", now)
    window.record("b", 166)
    assert (window.count("a", 166), window.count("b", 166)) == (2, 1)
    window.clear("a")
    window.record("c", 166, 2)
    assert (window.count("b", 166), window.count("c", 166)) == (1, 2)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 5), st.integers(1, 3), st.booleans()), max_size=40))
def test_it_counts_as_a_list_of_everything_would(steps: list[tuple[str, int, int, bool]]) -> None:
    window, now = SlidingWindow(limit=3, seconds=10), 0
    recorded = defaultdict[str, list[int]](list)
    for key, passed, amount, clears in steps:
        now += passed
        if clears:
            window.clear(key)
            recorded[key].clear()
        expected = min(
            wait for wait in range(11) if sum(now + wait - each < 10 for each in recorded[key]) + amount <= 3
        )
        assert window.wait(key, now, amount) == expected
        if expected == 0:
            window.record(key, now, amount)
            recorded[key] += [now] * amount
        assert window.count(key, now) == sum(now - each < 10 for each in recorded[key])


async def test_the_application_counts_the_key_packages_that_are_handed_out(running: Running) -> None:
    handouts = running.app[app_keys.CONTEXT].handouts
    assert (
        (handouts.limit, handouts.seconds) == (sliding_window.MAX_HANDOUTS, sliding_window.HANDOUT_SECONDS) == (10, 60)
    )


def test_a_pace_allows_its_limit_at_once_and_evenly_after_that() -> None:
    pace = LeakyBucket(limit=6, seconds=60)
    for _ in range(6):
        assert pace.wait("a", 100) == 0
        pace.record("a", 100)
    assert [pace.wait("a", now) for now in (100, 109, 110)] == [10, 1, 0]
    assert pace.wait("a", 110, 3) == 20
    assert pace.wait("b", 100, 6) == 0
    assert pace.wait("b", 100, 7) == 10
    assert pace.wait("a", 160, 6) == 0


@given(st.integers(1, 1000), st.lists(st.integers(0, 20), max_size=300))
def test_a_pace_never_allows_twice_its_limit_in_any_window(limit: int, steps: list[int]) -> None:
    pace, now, allowed = LeakyBucket(limit, 60), 1_000_000, []
    for step in steps:
        now += step
        while not pace.wait("a", now):
            pace.record("a", now)
            allowed.append(now)
    for begin in set(allowed):
        assert sum(begin <= each < begin + 60 for each in allowed) <= 2 * limit


def test_a_pace_forgets_the_keys_of_long_ago_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sliding_window, "MAX_KEYS", 2)
    pace = LeakyBucket(limit=1, seconds=60)
    for key in ("a", "b", "a", "c"):
        pace.record(key, 100)
    assert len(pace) == 2
    assert pace.wait("b", 100) == 0
    assert pace.wait("a", 100) > 0
