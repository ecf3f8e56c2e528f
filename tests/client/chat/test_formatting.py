"""What the chat makes of texts, lifetimes and times."""

import time
import unicodedata
from collections.abc import Iterator

import pytest
from hypothesis import given, strategies as st
from rich.cells import cell_len

from conclave.client.chat import formatting
from conclave.retention.durations import MAX_SECONDS

BAD = "\N{REPLACEMENT CHARACTER}"
MINUTE, HOUR, DAY, YEAR = 60, 3_600, 86_400, 31_536_000


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This machine stands in a place half an hour off, which has no summer time."""
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    formatting.day.cache_clear()
    yield
    monkeypatch.undo()
    time.tzset()
    formatting.day.cache_clear()


@pytest.mark.parametrize(
    ("text", "becomes"),
    [
        ("\x1b[2J\x1b[H", f"{BAD}[2J{BAD}[H"),
        ("\x1b]0;title\x07", f"{BAD}]0;title{BAD}"),
        ("\x9b31m", f"{BAD}31m"),
        ("\x85\x8d\x90", BAD * 3),
        ("\x00\x08\x0b\x0c\x7f", BAD * 5),
        ("over\rwritten", f"over{BAD}written"),
        ("\u202eevil\u202c", f"{BAD}evil{BAD}"),
        ("\u202a\u202b\u202d", BAD * 3),
        ("\u2066\u2067\u2068\u2069", BAD * 4),
        ("\u200e\u200f\u061c", ""),
        ("zero\u200bwidth", "zerowidth"),
        ("\ufeff\u2060soft\u00adhyphen", "softhyphen"),
        ("\U0001f3f4\U000e0067\U000e0062", f"\U0001f3f4{BAD * 2}"),
        ("a\U000e0067\U000e007f", f"a{BAD * 2}"),
        ("one\u2028two\u2029three", f"one{BAD}two{BAD}three"),
        ("\ud83d\udc4d", BAD * 2),
        ("a\tb", "a    b"),
        ("one\r\ntwo\nthree", "one two three"),
    ],
)
def test_what_could_do_something_to_a_terminal_becomes_visible(text: str, becomes: str) -> None:
    assert formatting.sanitize(text) == becomes


@pytest.mark.parametrize(
    "text",
    [
        "é",
        "e\u0301",
        "日本語",
        "עברית",
        "العربية",
        "न\u200dम",
        "👨\u200d👩\u200d👧\u200d👦",
        "❤\ufe0f",
        "👍🏽",
        "🇳🇴",
        "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
        "[b]x[/b]",
        "$(x)",
    ],
)
def test_what_people_write_stays_as_it_is(text: str) -> None:
    assert formatting.sanitize(text) == text


@pytest.mark.parametrize("marks", ["\u0301" * 5_000, "\u0301\u200d" * 5_000, "\u20dd\u0336\ufe0f" * 5_000])
@pytest.mark.parametrize("lines", [False, True])
def test_no_letter_has_so_many_marks_that_they_reach_into_other_lines(marks: str, lines: bool) -> None:
    made = formatting.sanitize(f"a{marks}b e\u0301", lines=lines)
    assert made.startswith(f"a{marks[: formatting.MAX_MARKS]}")
    if lines:
        assert made == f"a{marks[: formatting.MAX_MARKS]}b e\u0301"


def test_a_name_of_a_megabyte_is_cut_and_a_text_is_not() -> None:
    assert len(formatting.sanitize("n" * 1_000_000)) == formatting.MAX_INLINE
    assert formatting.sanitize("t" * 10_000, lines=True) == "t" * 10_000


@pytest.mark.parametrize("name", ["you", "You", "YOU", "_you_", "y0u", "system", "5ystem", "server", "Invites", "new"])
def test_a_name_that_is_one_of_the_chats_own_words_stands_in_quotes(name: str) -> None:
    assert formatting.display_name(name) == f'"{name}"'


@pytest.mark.parametrize("name", ["bob", "youri", "thankyou", "systems", "you2", "newton", "x1", "007"])
def test_other_names_stand_as_they_are(name: str) -> None:
    assert formatting.display_name(name) == name


def test_ends_of_lines_stay_where_lines_are_wanted() -> None:
    assert formatting.sanitize("one\r\ntwo\n\nthree", lines=True) == "one\ntwo\n\nthree"


@given(st.text(st.characters(codec=None)))
def test_of_no_text_anything_is_left_that_controls(text: str) -> None:
    for lines in (False, True):
        made = formatting.sanitize(text, lines=lines)
        dangerous = {each for each in made if unicodedata.category(each) in {"Cc", "Cf", "Cs", "Zl", "Zp"}}
        assert dangerous <= {"\u200c", "\u200d", *("\n" * lines)}
        assert "\x1b" not in made


class TestShown:
    def test_ends_of_lines_around_a_text_are_not_shown(self) -> None:
        assert formatting.display_text("\n\r\n  hello\n\nyou\n\n") == "  hello\n\nyou"
        assert formatting.display_text("\n\n") == ""

    def test_a_text_of_the_greatest_length_is_shown_whole(self) -> None:
        assert formatting.display_text("x" * formatting.MAX_CHARACTERS) == "x" * formatting.MAX_CHARACTERS

    def test_of_a_longer_one_it_is_said_how_much_is_not_shown(self) -> None:
        head, _, tail = formatting.display_text("x" * 100_000).partition("\n")
        assert head == "x" * formatting.MAX_CHARACTERS
        assert tail == "… 92,000 more characters not shown"

    def test_as_many_lines_as_fit_are_shown_whole(self) -> None:
        text = "\n".join("x" * formatting.MAX_LINES)
        assert formatting.display_text(text) == text

    def test_more_lines_are_not_shown(self) -> None:
        *head, tail = formatting.display_text("a" + "\n" * 7_999 + "b").split("\n")
        assert head == ["a"] + [""] * (formatting.MAX_LINES - 1)
        assert tail == "… 7,901 more characters not shown"

    def test_it_is_harmless_up_to_where_it_is_cut(self) -> None:
        assert "\x1b" not in formatting.display_text("\x1b" * (formatting.MAX_CHARACTERS + 1))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1s", 1),
        ("30 s", 30),
        (" 90 SEC ", 90),
        ("5min", 300),
        ("5m", 300),
        (" 5 M ", 300),
        ("5 minutes", 300),
        ("1h", HOUR),
        ("1 Hour", HOUR),
        ("2 days", 2 * DAY),
        ("1w", 7 * DAY),
        ("3 weeks", 21 * DAY),
        ("1mo", 30 * DAY),
        ("2 months", 60 * DAY),
        ("1 year", YEAR),
        (f"{MAX_SECONDS}s", MAX_SECONDS),
    ],
)
def test_lifetimes(text: str, seconds: int) -> None:
    assert formatting.parse_lifetime(text) == seconds
    assert formatting.parse_expiry(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        *("", "x", "1", "0", "-1", "0s", "-1h", "1.5h", "1 h 30 min", "1hh", "h", "one hour", "1 fortnight", "1h\n2h"),
        *(
            f"{MAX_SECONDS + 1}s",
            f"{10**30}y",
            "9" * 5_000 + "s",
            "\N{ARABIC-INDIC DIGIT ONE}h",
            "1\N{CYRILLIC SMALL LETTER IE}",
        ),
    ],
)
def test_what_is_no_lifetime_is_said_to_be_none(text: str) -> None:
    for parse in (formatting.parse_lifetime, formatting.parse_expiry):
        with pytest.raises(
            ValueError, match=r"is not a duration: write a number and a unit \(s, min, h, d, w, mo, y\)"
        ):
            parse(text)


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("fetched", formatting.AFTER_FETCH),
        (" Read ", formatting.AFTER_FETCH),
        ("off", formatting.KEEP),
        ("SERVER", formatting.KEEP),
        ("inherit", formatting.KEEP),
        ("never", formatting.KEEP),
    ],
)
def test_settings_in_words(text: str, setting: int) -> None:
    assert formatting.parse_expiry(text) == setting
    with pytest.raises(ValueError, match="is not a duration"):
        formatting.parse_lifetime(text)


@pytest.mark.parametrize(
    ("effective", "long", "short"),
    [
        (formatting.KEEP, "kept forever", "∞"),
        (formatting.AFTER_FETCH, "deleted once all have fetched them", "fetched"),
        (HOUR, "deleted after 1 hour", "1h"),
        (90, "deleted after 90 seconds", "90s"),
        (30 * DAY, "deleted after 30 days", "30d"),
    ],
)
def test_policies(effective: int, long: str, short: str) -> None:
    assert formatting.policy(effective) == long
    assert formatting.short_policy(effective) == short


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (-5, "0 s"),
        (0, "0 s"),
        (1, "1 s"),
        (59, "59 s"),
        (60, "1:00"),
        (61, "1:01"),
        (HOUR - 1, "59:59"),
        (HOUR, "1 h 00"),
        (HOUR + 59, "1 h 00"),
        (HOUR + 60, "1 h 01"),
        (DAY - 1, "23 h 59"),
        (DAY, "1 d"),
        (2 * DAY - 1, "1 d"),
        (1_000 * DAY, "1,000 d"),
        (100_000 * DAY - 1, "99,999 d"),
        (100_000 * DAY, "273 y"),
        (100_000 * YEAR - 1, "99,999 y"),
        (100_000 * YEAR, "ages"),
        (MAX_SECONDS, "ages"),
    ],
)
def test_what_is_left(seconds: int, said: str) -> None:
    assert formatting.time_left(seconds) == said


@given(st.integers(-10, MAX_SECONDS))
def test_what_is_left_fits_into_its_column(seconds: int) -> None:
    assert cell_len(formatting.time_left(seconds)) <= 8


@pytest.mark.parametrize(
    ("left", "circle"),
    [(-1, "○"), (0, "○"), (1, "◔"), (25, "◔"), (26, "◑"), (50, "◑"), (51, "◕"), (75, "◕"), (76, "●"), (100, "●")],
)
def test_a_circle_empties_by_quarters(left: int, circle: str) -> None:
    assert formatting.countdown_circle(left, 100) == circle


@pytest.mark.parametrize(("left", "whole", "circle"), [(200, 100, "●"), (1, 0, "●"), (0, 0, "○"), (1, 1, "●")])
def test_a_circle_of_a_lifetime_that_is_none(left: int, whole: int, circle: str) -> None:
    assert formatting.countdown_circle(left, whole) == circle
    assert cell_len(circle) == 1


@pytest.mark.usefixtures("zone")
class TestTimes:
    def test_they_are_those_of_this_place(self) -> None:
        assert formatting.time_of_day(1_700_000_000) == "03:43"
        assert formatting.day(1_700_000_000) == "Wednesday 15 November 2023"
        assert formatting.date_and_time(1_700_000_000) == "Wednesday 15 November 2023, 03:43"

    def test_a_day_begins_at_midnight_of_this_place(self) -> None:
        midnight = 1_700_000_000 - (1_700_000_000 + 19_800) % DAY
        assert (formatting.time_of_day(midnight - 1), formatting.time_of_day(midnight)) == ("23:59", "00:00")
        assert formatting.day(midnight - 1) != formatting.day(midnight) == formatting.day(midnight + DAY - 1)

    @pytest.mark.parametrize("at", [formatting.MAX_TIME, formatting.MAX_TIME + 1, 2**53, 2**63 - 1])
    def test_times_in_millions_of_years_are_no_reason_to_fail(self, at: int) -> None:
        assert formatting.day(at) == "Friday 1 January 9999"
        assert formatting.time_of_day(at) == "05:30"


@pytest.mark.parametrize(
    ("number", "said"), [(0, "0 things"), (1, "1 thing"), (2, "2 things"), (12_345, "12,345 things")]
)
def test_counts(number: int, said: str) -> None:
    assert formatting.count(number, "thing") == said


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ([], ""),
        (["a"], "a"),
        (["a", "b"], "a and b"),
        (["a", "b", "c", "d"], "a, b, c and d"),
        (["a", "b", "c", "d", "e"], "a, b, c, d and 1 more"),
        (["x"] * 2_000, "x, x, x, x and 1,996 more"),
    ],
)
def test_lists(names: list[str], said: str) -> None:
    assert formatting.join_names(names) == said


def test_lists_of_what_is_to_be_chosen_from() -> None:
    assert formatting.join_names(["a", "b", "c"], last="or") == "a, b or c"


@pytest.mark.parametrize(("number", "written"), [(1, "1"), (999, "999"), (1_000, "999+"), (50_000, "999+")])
def test_many_unread_messages_are_not_told_apart(number: int, written: str) -> None:
    assert formatting.unread(number) == written
