"""Purge jobs: which groups they cover, which lifetimes no job covers, and how often which runs."""

import pytest

from conclave.retention.jobs import ALL, PurgeJob, Timetable, gaps, schedule
from conclave.retention.policy import AFTER_FETCH, KEEP, GroupPolicy

HOUR, DAY = 3600, 86_400


@pytest.mark.parametrize(
    ("bounds", "lifetime", "covered"),
    [
        ((KEEP, KEEP), 1, True),
        ((KEEP, KEEP), KEEP, True),
        ((KEEP, KEEP), AFTER_FETCH, True),
        ((KEEP, 3 * DAY), 3 * DAY, True),
        ((KEEP, 3 * DAY), 3 * DAY + 1, False),
        ((KEEP, 3 * DAY), AFTER_FETCH, True),
        ((KEEP, 3 * DAY), KEEP, False),
        ((KEEP, 0), AFTER_FETCH, True),
        ((KEEP, 0), 1, False),
        ((3 * DAY, KEEP), 3 * DAY, False),
        ((3 * DAY, KEEP), 3 * DAY + 1, True),
        ((3 * DAY, KEEP), AFTER_FETCH, False),
        ((3 * DAY, KEEP), KEEP, True),
        ((0, KEEP), AFTER_FETCH, False),
        ((0, KEEP), 1, True),
        ((DAY, 3 * DAY), 2 * DAY, True),
        ((DAY, 3 * DAY), AFTER_FETCH, False),
    ],
)
def test_a_job_covers_lifetimes_over_its_shortest_up_to_its_longest(
    bounds: tuple[int, int], lifetime: int, covered: bool
) -> None:
    assert PurgeJob(60, *bounds).covers(GroupPolicy(lifetime)) is covered


@pytest.mark.parametrize(
    ("bounds", "found"),
    [
        ([], []),
        ([(KEEP, KEEP)], []),
        ([(KEEP, DAY), (DAY, KEEP)], []),
        ([(DAY, KEEP), (KEEP, DAY)], []),
        ([(KEEP, 3 * DAY), (DAY, KEEP)], []),
        ([(KEEP, 0), (0, KEEP)], []),
        ([(0, KEEP)], ["delete-after-fetch"]),
        ([(DAY, KEEP)], ["delete-after-fetch, and lifetimes up to 1d"]),
        ([(KEEP, 0), (DAY, KEEP)], ["lifetimes up to 1d"]),
        ([(KEEP, DAY), (2 * DAY, KEEP)], ["lifetimes over 1d, up to 2d"]),
        ([(KEEP, DAY)], ["lifetimes over 1d"]),
        ([(KEEP, 0)], ["lifetimes over 0"]),
        (
            [(DAY, 2 * DAY), (3 * DAY, 4 * DAY)],
            ["delete-after-fetch, and lifetimes up to 1d", "lifetimes over 2d, up to 3d", "lifetimes over 4d"],
        ),
    ],
)
def test_the_lifetimes_that_no_job_covers_are_told(bounds: list[tuple[int, int]], found: list[str]) -> None:
    assert gaps(PurgeJob(60, *each) for each in bounds) == found


def test_without_jobs_one_run_does_everything() -> None:
    assert schedule([], 3600) == [(ALL, 3600)]


def test_with_jobs_the_rest_is_done_at_the_cleanup_interval() -> None:
    house, job = schedule([PurgeJob(DAY, KEEP, 3 * DAY)], 3600)
    assert (house[0].is_housekeeping, house[0].job, house[1]) == (True, None, 3600)
    assert (job[0].is_housekeeping, job[0].name, job[1]) == (False, "up to 3d", DAY)
    assert job[0].covers(GroupPolicy(AFTER_FETCH))
    assert not house[0].covers(GroupPolicy(AFTER_FETCH))


def test_a_job_that_failed_is_tried_again_before_its_interval_is_over() -> None:
    table = Timetable([HOUR, 365 * DAY], retry_after=HOUR, now=0.0)
    assert table.next() == (0, 0.0)
    table.begin(0, 0.0)
    assert table.next() == (1, 0.0), "the others have their turn first"
    table.begin(1, 5.0)
    table.fail(1, 9.0)
    assert table.next() == (0, HOUR)
    table.begin(0, HOUR)
    assert table.next() == (1, HOUR + 9)
    table.begin(1, HOUR + 9)
    assert table.next() == (0, 2 * HOUR), "it worked: a year until the next time"


def test_a_short_job_that_fails_keeps_its_interval() -> None:
    table = Timetable([60], retry_after=HOUR, now=0.0)
    table.begin(0, 0.0)
    table.fail(0, 1.0)
    assert table.next() == (0, 60.0)


def test_a_run_that_takes_longer_than_the_intervals_starves_no_job() -> None:
    table, now, done = Timetable([1, 60, 60], retry_after=1, now=0.0), 0.0, []
    for _ in range(6):
        place, due = table.next()
        now = max(now, due)
        table.begin(place, now)
        done.append(place)
        now += 100
    assert sorted(done) == [0, 0, 1, 1, 2, 2]
