"""Durations, the effective expiry, the cap: row by row."""

import pytest

from conclave.retention.durations import MAX_SECONDS, InvalidDurationError, duration_text, parse_duration
from conclave.retention.policy import AFTER_FETCH, KEEP, effective_expiry, exceeds_cap, expiry_cutoff
from conclave.retention.resolve import PolicySettings


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1s", 1),
        ("90s", 90),
        ("1h", 3600),
        ("1d", 86_400),
        ("1w", 604_800),
        ("1min", 60),
        ("1mo", 2_592_000),
        ("1m", 2_592_000),
        ("12m", 31_104_000),
        ("1y", 31_536_000),
        ("007d", 604_800),
        (f"{MAX_SECONDS}s", MAX_SECONDS),
    ],
)
def test_a_duration_is_a_positive_integer_and_a_unit(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "30",
            "-5d",
            "5x",
            "abcd",
            "0s",
            "1.5h",
            " 1h",
            "1h ",
            "1h\n",
            "1H",
            "1h30s",
            "1mi",
            "1mon",
            "1mins",
            "1MIN",
            "\u0661h",
            "-1",
            "0",
        ),
        *("1mi", "1mon", "1mins", "1MIN"),
        f"{MAX_SECONDS + 1}s",
        "9" * 5000 + "y",
    ],
)
def test_anything_else_is_not_a_duration(text: str) -> None:
    with pytest.raises(InvalidDurationError, match="is not a duration"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["13m", "90m", "0090m", "9" * 5000 + "m"])
def test_more_than_a_year_in_bare_months_is_refused_with_both_readings(text: str) -> None:
    """Who writes 90m hardly means 2,700 days."""
    with pytest.raises(InvalidDurationError, match=f'write "{text}in" for minutes, or "{text}o" for months'):
        parse_duration(text)


@pytest.mark.parametrize(("seconds", "text"), [(2_592_000, "30d"), (129_600, "36h"), (5400, "90min"), (61, "61s")])
def test_a_duration_is_written_in_the_greatest_unit_that_fits(seconds: int, text: str) -> None:
    assert duration_text(seconds) == text
    assert parse_duration(text) == seconds


def test_off_and_delete_after_fetch_are_words_where_they_make_sense() -> None:
    assert parse_duration("-1", words=True) == KEEP
    assert parse_duration("0", words=True) == AFTER_FETCH


@pytest.mark.parametrize(
    ("server", "group", "effective"),
    [
        (-1, -1, KEEP),
        (-1, 500, 500),
        (-1, 0, AFTER_FETCH),
        (300, -1, 300),
        (300, 500, 300),
        (500, 300, 300),
        (0, -1, AFTER_FETCH),
        (0, 500, AFTER_FETCH),
        (0, 0, AFTER_FETCH),
        (300, 0, AFTER_FETCH),
    ],
)
def test_the_effective_expiry(server: int, group: int, effective: int) -> None:
    assert effective_expiry(server, group) == effective


@pytest.mark.parametrize(
    ("server", "requested", "refused"),
    [
        (-1, MAX_SECONDS, False),
        (300, 300, False),
        (300, 301, True),
        (300, -1, False),
        (300, 0, False),
        (0, 1, True),
        (0, 0, False),
        (0, -1, False),
    ],
)
def test_the_cap(server: int, requested: int, refused: bool) -> None:
    assert exceeds_cap(server, requested) is refused


@pytest.mark.parametrize(
    ("now", "effective", "cutoff"),
    [(1000, 300, 700), (1000, KEEP, 0), (1000, AFTER_FETCH, 0), (1000, MAX_SECONDS, 0)],
)
def test_messages_created_before_the_cutoff_have_expired(now: int, effective: int, cutoff: int) -> None:
    assert expiry_cutoff(now, effective) == cutoff


@pytest.mark.parametrize(("ttl", "dead_before"), [(2_592_000, 940), (60, 940), (5, 995)])
def test_a_session_is_removed_after_the_lag_of_its_lazy_extension(ttl: int, dead_before: int) -> None:
    assert PolicySettings(KEEP, ttl, 1).sessions_dead_before(1000) == dead_before
