"""Advice on how often to clean up: a pure estimate from what runs have cost."""

import pytest

from conclave.retention.advice import DAY, INTERVALS, Advice, Cost, advise, elapsed_text, rounded_text


def costs(
    interval: int,
    *,
    count: int = 48,
    rows: int = 100,
    cpu: float = 0.2,
    lock: float = 0.02,
    seconds: int = 1,
    a_row: float = 0.0,
) -> list[Cost]:
    """Return the costs of runs that follow each other; every other one had nothing to erase."""
    return [
        Cost(
            began=1_000_000 + n * interval,
            ended=1_000_000 + n * interval + seconds,
            rows=(n % 2) * rows,
            cpu=cpu + a_row * (n % 2) * rows,
            lock=lock,
            longest_lock=lock / 2,
        )
        for n in range(count)
    ]


def of(told: list[Cost], interval: int = 3600) -> Advice:
    return advise("everything", "cleanup_interval", told, interval)


@pytest.mark.parametrize("told", [[], costs(3600, count=1), [Cost(5, 6, 1), Cost(5, 6, 1)]])
def test_without_a_history_there_is_no_advice(told: list[Cost]) -> None:
    found = of(told)
    assert found.sentence == "No advice on cleanup_interval yet: it needs 2 successful runs."
    assert not found.projections


@pytest.mark.parametrize(
    ("told", "interval", "sentence"),
    [
        (
            costs(3600),
            3600,
            'Set cleanup_interval to "1min": expired messages then stay on disk for at most 1min instead of 1h,'
            " for 5 min of CPU more a day.",
        ),
        (
            costs(3600, cpu=2.0, seconds=3),
            3600,
            'Set cleanup_interval to "10min": expired messages then stay on disk for at most 10min instead of 1h,'
            " for 4 min of CPU more a day.",
        ),
        (
            costs(60, cpu=5.0, seconds=6),
            60,
            'Set cleanup_interval to "10min": runs are too expensive for every 1min; expired messages then stay on disk'
            " for at most 10min instead of 66s, for 108 min of CPU less a day.",
        ),
        (
            costs(60),
            60,
            "Keep cleanup_interval at 1min: runs are cheap.",
        ),
        (
            costs(3600, cpu=30.0, seconds=40),
            3600,
            "Keep cleanup_interval at 1h: runs are cheap, and would not be at a shorter interval.",
        ),
        (
            costs(3600, rows=0),
            3600,
            "Keep cleanup_interval at 1h: nothing expired recently, so the interval makes no difference.",
        ),
        (
            costs(DAY, cpu=2000.0, seconds=30_000),
            DAY,
            "Keep cleanup_interval at 1d: runs are expensive at every interval: see why they take so long.",
        ),
    ],
)
def test_the_sentence(told: list[Cost], interval: int, sentence: str) -> None:
    assert of(told, interval).sentence == sentence


def test_what_expires_costs_the_same_at_every_interval_and_a_run_itself_does_not() -> None:
    found = of(costs(3600, rows=1000, cpu=0.5, a_row=0.001))
    by_interval = {each.interval: each for each in found.projections}
    assert list(by_interval) == list(INTERVALS)
    daily = 1000 * 24 * DAY / (47 * 3600)  # 24 of the 48 runs erased, within 47 hours
    for each in found.projections:
        assert each.runs == DAY / each.interval
        assert each.cpu == pytest.approx(0.5 * each.runs + 0.001 * daily)
        assert each.lock == pytest.approx(0.02 * each.runs)
        assert each.max_delay == each.interval + 1
        assert each.waiting == pytest.approx(daily * (each.interval / 2 + 1) / DAY)
    assert [each.interval for each in found.projections if each.is_current] == [3600]
    assert (found.runs, found.seconds, found.longest_lock) == (48, 1, 0.01)


def test_an_interval_of_its_own_is_compared_too() -> None:
    assert [each.interval for each in of(costs(300), 300).projections] == [60, 300, 600, 3600, DAY]


def test_runs_in_any_order_give_the_same() -> None:
    told = costs(3600, rows=7)
    assert of(told[::-1]) == of(told)


def test_a_clock_that_was_set_back_during_a_run_makes_no_negative_cost() -> None:
    assert of([Cost(10, 5, 1, 0.1, 0.1, 0.1), Cost(3610, 3600, 1, 0.1, 0.1, 0.1)]).seconds == 0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "1s"), (1, "1s"), (61, "1min"), (66, "66s"), (602, "10min"), (3602, "1h"), (5400, "90min"), (90_000, "1d")],
)
def test_lengths_are_rounded_a_little(seconds: int, text: str) -> None:
    assert rounded_text(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.009, "9 ms"), (1.5, "1.5 s"), (119, "119.0 s"), (180, "3 min"), (9000, "2.5 h")]
)
def test_amounts_of_time_are_short(seconds: float, text: str) -> None:
    assert elapsed_text(seconds) == text


def test_a_backlog_that_runs_have_erased_within_minutes_is_not_taken_for_what_expires_all_day() -> None:
    """A store of 155,000 messages was said to have millions waiting."""
    costs = [Cost(minute * 60, minute * 60 + 5, 31_000, 1.0, 0.1, 0.01) for minute in range(6)]
    found = advise("everything", "cleanup_interval", costs, 3600)
    assert max(each.waiting for each in found.projections) < 155_000
