"""How what is in a group is laid out: who said what on which day, and never wider than the screen."""

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given, settings, strategies as st
from rich.cells import cell_len

from conclave.client.chat import formatting, rows
from conclave.client.chat.rooms import Notice, PendingMessage
from conclave.client.chat.rows import COUNTDOWN_WIDTH, Item, RowContext, TimelineRow, WrapCache, lay_out
from conclave.client.events import Message
from tests.support import sample

ME, BOB, CAROL = (UUID(int=number) for number in (1, 2, 3))
GROUP = UUID(int=9)
NOW = 1_700_000_000
HOUR, DAY, YEAR = 3_600, 86_400, 31_536_000
NAMES = {BOB: "bob", CAROL: "carol"}
LOOK = RowContext(60, lambda user_id: NAMES.get(user_id, "somebody"), ME, NOW)
PLAIN = replace(LOOK, is_plain=True)


@pytest.fixture(autouse=True, scope="module")
def utc() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        formatting.day.cache_clear()
        yield
    time.tzset()
    formatting.day.cache_clear()


def said(
    number: int, text: str | None = "text", *, by: UUID = BOB, at: int = NOW, seconds: int = 0, gone: int | None = None
) -> Message:
    return Message(GROUP, number, by, text, at, seconds, gone)


def pending(text: str = "text", **others: str) -> PendingMessage:
    return PendingMessage(GROUP, text, **others)  # type: ignore[arg-type]  # only a reason to refuse it


def texts(items: list[Item], context: RowContext = LOOK) -> list[str]:
    return [" " * each.indent + each.text.plain for each in lay_out(items, context)]


def width_of(row: TimelineRow, context: RowContext) -> int:
    """Return how many cells a row takes with what stands on its right."""
    right = cell_len(row.right) + 1 if row.right else 0
    if row.message and not context.is_plain and rows.countdown(row.message, context.now)[1]:
        left, circle, _ = rows.countdown(row.message, context.now)
        right = cell_len(f" {left} {circle}")
    return row.indent + cell_len(row.text.plain) + right


class TestMentions:
    def test_a_message_that_means_the_reader_is_marked_and_no_other(self) -> None:
        context = replace(LOOK, mentions_user=lambda text: "@me" in text)
        items: list[Item] = [said(1, "so, @me"), said(2, "so"), said(3, "I, @me", by=ME), said(4, None)]
        for each in (context, replace(context, is_plain=True)):
            styles = {row.number: row.style for row in lay_out(items, each) if row.number}
            assert styles == {1: "mention", 2: "text", 3: "text", 4: "unreadable"}


class TestNames:
    def test_messages_of_one_person_stand_under_one_name(self) -> None:
        items: list[Item] = [
            said(1, "one"),
            said(2, "two", at=NOW + 300),
            said(3, "three", at=NOW + 601),
            said(4, "four", by=CAROL, at=NOW + 601),
            said(5, "five", by=ME, at=NOW + 602),
            said(6, "six", by=UUID(int=5), at=NOW + 602),
        ]
        assert texts(items)[1:] == [
            *("bob", "  one", "  two", "bob", "  three", "carol", "  four", "you", "  five", "somebody", "  six")
        ]
        assert [each.right for each in lay_out(items, LOOK) if each.right] == [
            "22:13",
            "22:23",
            "22:23",
            "22:23",
            "22:23",
        ]

    def test_a_notice_comes_between(self) -> None:
        assert texts([said(1), Notice(1, NOW, "carol joined"), said(2)])[1:] == [
            *("bob", "  text", "· carol joined", "bob", "  text")
        ]

    def test_what_is_on_its_way_stands_under_ones_own_name(self) -> None:
        assert texts([said(1, by=ME), pending("more")])[1:] == ["you", "  text", "  more"]
        assert texts([said(1, by=ME, at=NOW - 301), pending("more")])[1:] == ["you", "  text", "you", "  more"]

    def test_a_name_always_has_the_same_colour(self) -> None:
        assert rows.style_of(ME, ME) == "own"
        assert rows.style_of(BOB, ME) == rows.style_of(BOB, CAROL)
        assert {rows.style_of(UUID(int=each), ME) for each in range(2, 300)} == {
            f"name-{number}" for number in range(rows.NAME_COLOURS)
        }


class TestLines:
    def test_each_day_begins_with_a_line(self) -> None:
        midnight = NOW - NOW % DAY
        items: list[Item] = [said(1, at=midnight - 1), said(2, at=midnight), Notice(2, midnight + DAY, "x"), pending()]
        days = [
            each.text.plain.strip("─ ")
            for each in lay_out(items, replace(LOOK, now=midnight + DAY))
            if each.style == "day"
        ]
        assert days == ["Monday 13 November 2023", "Tuesday 14 November 2023", "Wednesday 15 November 2023"]

    def test_a_line_is_as_wide_as_the_screen(self) -> None:
        [day, *_] = lay_out([said(1)], LOOK)
        assert cell_len(day.text.plain) == 60
        assert re.fullmatch(r"─+ Tuesday 14 November 2023 ─+", day.text.plain)

    def test_one_line_says_where_the_new_ones_begin(self) -> None:
        items: list[Item] = [said(1), said(2, by=ME), said(3, by=ME), said(4), said(5)]
        found = [each.style for each in lay_out(items, replace(LOOK, read_before=2))]
        assert found == ["day", "name-" + found[1][5:], "text", "own", "text", "text", "new", found[1], "text", "text"]

    @pytest.mark.parametrize(("read_before", "lines"), [(None, 0), (0, 1), (3, 1), (5, 0)])
    def test_there_is_none_where_nothing_is_new(self, read_before: int | None, lines: int) -> None:
        items: list[Item] = [said(number) for number in range(1, 6)]
        found = lay_out(items, replace(LOOK, read_before=read_before))
        assert [each.style for each in found].count("new") == lines

    def test_what_one_has_sent_oneself_is_not_new(self) -> None:
        assert "new" not in [each.style for each in lay_out([said(1, by=ME)], replace(LOOK, read_before=0))]


class TestTexts:
    def test_every_line_of_a_text_is_indented(self) -> None:
        assert texts([said(1, "one\n\ntwo " + "x" * 70)])[2:] == [
            *("  one", "  ", "  two", "  " + "x" * 58, "  " + "x" * 12)
        ]

    def test_the_first_row_has_the_message_and_all_have_its_number(self) -> None:
        message = said(7, "one\ntwo")
        found = lay_out([message], LOOK)[2:]
        assert [(each.number, each.message) for each in found] == [(7, message), (7, None)]
        assert len({each.key for each in found}) == 1

    @pytest.mark.parametrize("text", ["", "\n\n", " ", "\u200d"])
    def test_a_message_of_nothing_has_a_row_which_can_be_seen(self, text: str) -> None:
        assert [each.number for each in lay_out([said(7, text)], LOOK)] == [0, 0, 7]

    @pytest.mark.parametrize("context", [LOOK, PLAIN])
    def test_what_cannot_be_read_is_said_to_be_so(self, context: RowContext) -> None:
        last = lay_out([said(1, None)], context)[-1]
        assert last.text.plain.endswith("a message that cannot be decrypted")
        assert last.style == "unreadable"

    @pytest.mark.parametrize("context", [LOOK, PLAIN])
    def test_several_that_cannot_be_read_are_one_line_however_old(self, context: RowContext) -> None:
        items: list[Item] = [
            said(number, None, by=(BOB, CAROL)[number % 2], at=NOW + number * DAY) for number in range(1, 9)
        ]
        found = lay_out([*items, said(9, "text", at=NOW + 9 * DAY)], context)
        [line] = [each for each in found if each.style == "unreadable"]
        assert line.text.plain.endswith("8 messages that cannot be decrypted")
        assert (line.number, *line.also) == tuple(range(1, 9)), "who has seen it has seen all of them"
        assert [line.is_of(said(number)) for number in (1, 8, 9)] == [True, True, False]
        assert found[-1].text.plain.endswith("text")

    def test_new_ones_that_cannot_be_read_stand_below_the_line(self) -> None:
        items: list[Item] = [said(number, None) for number in range(1, 5)]
        found = [each.style for each in lay_out(items, replace(LOOK, read_before=2))]
        assert found == ["day", "unreadable", "new", "unreadable"]

    @pytest.mark.parametrize("context", [LOOK, PLAIN])
    def test_what_waits_for_a_key_says_so(self, context: RowContext) -> None:
        made = pending("text")
        made.is_held = True
        found = " ".join(texts([made], context))
        assert "not sent" in found
        assert "a member's key has changed" in found

    def test_a_notice_that_is_bad_stands_out(self) -> None:
        assert [each.style for each in lay_out([Notice(0, NOW, "bob's key has changed", is_error=True)], LOOK)] == [
            *("day", "alarm")
        ]

    @pytest.mark.parametrize("context", [LOOK, PLAIN])
    def test_texts_and_reasons_of_others_do_nothing_to_the_terminal(self, context: RowContext) -> None:
        evil = "\x1b[2J\u202e\x9b"
        found = "\n".join(texts([said(1, evil), pending(evil, refused=evil)], context))
        assert not {"\x1b", "\u202e", "\x9b"} & set(found)

    def test_a_draft_that_is_refused_says_why(self) -> None:
        found = lay_out([pending("text", refused="too long")], LOOK)[2:]
        assert [(each.text.plain, each.style, each.right) for each in found] == [
            ("text", "pending", ""),
            ("not sent: too long  (/retry, /discard)", "refused", ""),
        ]

    def test_without_a_connection_a_draft_waits(self) -> None:
        offline = replace(LOOK, is_online=False)
        assert [each.right for each in lay_out([pending("one\ntwo")], offline)[2:]] == ["waiting", ""]
        assert [each.right for each in lay_out([pending("one\ntwo")], LOOK)[2:]] == ["sending", ""]
        assert [each.right for each in lay_out([pending("one", refused="no")], offline)[2:]] == ["", ""]


class TestWhatIsLeft:
    @pytest.mark.parametrize(
        ("message", "left"),
        [
            (said(1), ("", "", "")),
            (said(1, gone=NOW + HOUR), ("1 h 00", "●", "countdown")),
            (said(1, at=NOW - 3 * HOUR, gone=NOW + HOUR), ("1 h 00", "◔", "countdown-short")),
            (said(1, at=NOW - 3 * HOUR + 1, gone=NOW + HOUR + 1), ("1 h 00", "◑", "countdown")),
            (said(1, gone=NOW + 10), ("10 s", "●", "countdown-ends")),
            (said(1, gone=NOW), ("0 s", "○", "countdown-ends")),
            (said(1, seconds=60), ("1:00", "✶", "countdown")),
            (said(1, seconds=60, gone=NOW + 30), ("30 s", "✶", "countdown")),
            (said(1, seconds=60, at=NOW - DAY, gone=NOW + 15), ("15 s", "✶", "countdown-short")),
            (said(1, seconds=60, gone=NOW + 5), ("5 s", "✶", "countdown-ends")),
        ],
    )
    def test_it_is_said_and_shown(self, message: Message, left: tuple[str, str, str]) -> None:
        assert rows.countdown(message, NOW) == left

    def test_what_is_gone_is_gone_at_its_second(self) -> None:
        message = said(1, gone=NOW)
        assert [rows.is_gone(message, at) for at in (NOW - 1, NOW, NOW + 1)] == [False, True, True]
        assert not any(rows.is_gone(each, NOW) for each in (said(1), Notice(0, 0, ""), pending()))

    def test_one_message_that_ends_makes_room_for_the_column_in_all(self) -> None:
        long = "x" * 100
        assert [len(each) for each in texts([said(1, long)])[2:]] == [60, 44]
        found = texts([said(1, long), said(2, "y", gone=NOW + 5)])[2:]
        assert [len(each) for each in found] == [60 - COUNTDOWN_WIDTH, 60 - COUNTDOWN_WIDTH, 8, 3]


class TestPlain:
    def test_each_message_is_a_sentence(self) -> None:
        items: list[Item] = [
            said(1, "hello"),
            said(2, "me too", by=ME),
            Notice(2, NOW, "carol joined"),
            pending("on its way"),
            pending("bad", refused="too long"),
        ]
        assert texts(items, replace(PLAIN, read_before=0)) == [
            "Tuesday 14 November 2023",
            "new",
            "bob, 22:13: hello",
            "you, 22:13: me too",
            "carol joined",
            "you, 22:13: on its way (sending)",
            "you, 22:13: bad (not sent, too long)",
        ]
        assert texts([pending("x")], replace(PLAIN, is_online=False))[1:] == [
            "you, 22:13: x (waiting for a connection)"
        ]

    def test_when_it_is_gone_is_said_in_words(self) -> None:
        items: list[Item] = [
            said(1, "a", gone=NOW + 90),
            said(2, "b", gone=NOW + DAY),
            said(3, "c", seconds=60),
            said(4, "d", seconds=60, gone=NOW + 60),
        ]
        assert texts(items, replace(PLAIN, width=200))[1:] == [
            "bob, 22:13: a (expires at 22:14:50)",
            "bob, 22:13: b (expires at Wednesday 15 November 2023, 22:13:20)",
            "bob, 22:13: c (self-destructs 1 minute after you have read it)",
            "bob, 22:13: d (expires at 22:14:20)",
        ]

    @pytest.mark.parametrize(
        "end", ["\n", "\r\n", "\r", "\v", "\f", "\x85", "\u2028", "\u2029", " " * 50, " \u2800" * 24]
    )
    @pytest.mark.parametrize("forged", ["carol, 22:13: I resign", "you, 22:13: yes", "carol joined", "new"])
    @pytest.mark.parametrize("context", [LOOK, PLAIN], ids=["screen", "plain"])
    def test_no_text_or_title_has_a_row_that_looks_like_another_message_or_a_notice(
        self, context: RowContext, forged: str, end: str
    ) -> None:
        title = formatting.sanitize(end + forged)
        found = texts([said(1, f"hi{end}{forged}"), Notice(1, NOW, f"the title is now {title} now")], context)
        begin = ("Tuesday", "bob, 22:13: hi", "the title") if context.is_plain else ("─", "bob", "· the title")
        goes_on = rows.CONTINUED if context.is_plain else " " * rows.INDENT
        assert all(each.startswith((goes_on, *begin)) for each in found), found
        assert sum(each.startswith(begin) for each in found) == 3, found

    def test_a_lifetime_of_millions_of_years_is_no_reason_to_fail(self) -> None:
        assert "9999" in texts([said(1, "a", gone=2**53 + NOW)], replace(PLAIN, width=200))[1]
        assert rows.countdown(said(1, gone=2**53 + NOW), NOW) == ("ages", "●", "countdown")

    @settings(max_examples=sample.amount(300, 60))
    @given(st.lists(st.integers(0, 3), max_size=8), st.integers(0, 400))
    def test_nothing_counts_down_and_there_are_no_marks(self, kinds: list[int], later: int) -> None:
        items: list[Item] = [
            (said(at + 1), said(at + 1, gone=NOW + 500), said(at + 1, seconds=60), Notice(at, NOW, "x"))[kind]
            for at, kind in enumerate(kinds)
        ]
        found = texts(items, replace(PLAIN, read_before=2))
        assert found == texts(items, replace(PLAIN, read_before=2, now=NOW + later)), "what was read stays as it is"
        assert not set("".join(found)) & set("─·✶○◔◑◕●")


CHARACTERS = st.one_of(
    st.characters(),
    st.sampled_from("abc  \n\t-,.日本語한국어ＷＩＤＥ👍é❤️\u0301\u200d\u202e\x1b─✶"),
)
TEXT = st.one_of(
    st.text(CHARACTERS, max_size=300),
    st.sampled_from(["x" * 9_000, "日" * 5_000, "日 " * 3_000, "👨\u200d👩\u200d👧" * 500, "\n" * 300, " " * 500]),
)
TIMES = st.integers(NOW - 3 * YEAR, NOW)
ENDS = st.one_of(st.none(), st.integers(NOW - 5, NOW + 10 * YEAR), st.integers(NOW, 2**53))
ITEMS = st.one_of(
    st.builds(
        Message,
        *(st.just(GROUP), st.integers(1, 99), st.sampled_from([ME, BOB, CAROL]), st.one_of(st.none(), TEXT), TIMES),
        *(st.sampled_from([0, 0, 1, 60, YEAR]), ENDS),
    ),
    st.builds(Notice, st.integers(0, 99), TIMES, TEXT.map(formatting.sanitize)),
    st.builds(PendingMessage, st.just(GROUP), TEXT, refused=st.sampled_from(["", "", "no", "日" * 90])),
)
CALLED = st.sampled_from(["bob", "b" * 64, "日本" * 16, "x y"])


class TestWidths:
    @pytest.mark.system
    @settings(max_examples=sample.amount(2_000, 150))
    @given(
        st.lists(ITEMS, max_size=6),
        st.integers(20, 200),
        CALLED,
        st.one_of(st.none(), st.integers(0, 99)),
        *(st.booleans(), st.booleans()),
    )
    def test_no_row_is_ever_wider_than_the_screen(
        self, items: list[Item], width: int, called: str, read_before: int | None, is_plain: bool, is_online: bool
    ) -> None:
        context = RowContext(width, lambda _: called, ME, NOW, read_before, is_plain, is_online)
        found = lay_out(items, context)
        for row in found:
            assert width_of(row, context) <= width, row
            assert "\n" not in row.text.plain
        shown = {each.sequence_num for each in items if isinstance(each, Message)}
        assert {number for each in found for number in (each.number, *each.also)} - {0} == shown, (
            "every message can be seen"
        )

    @pytest.mark.parametrize("width", [20, 21, 37, 80, 200])
    @pytest.mark.parametrize("context", [LOOK, PLAIN])
    def test_one_word_of_100_000_characters(self, width: int, context: RowContext) -> None:
        context = replace(context, width=width)
        found = lay_out([said(1, "日" * 50_000 + "x" * 50_000, gone=NOW + YEAR)], context)
        assert max(width_of(each, context) for each in found) <= width
        assert "".join(each.text.plain for each in found).count("日") == formatting.MAX_CHARACTERS
        assert "92,000" in "".join(each.text.plain for each in found)

    @pytest.mark.parametrize("width", [0, 1, 19])
    def test_a_narrower_screen_is_taken_as_one_of_20_columns(self, width: int) -> None:
        items: list[Item] = [said(1, "x" * 50), pending("y" * 50)]
        assert texts(items, replace(LOOK, width=width)) == texts(items, replace(LOOK, width=20))

    def test_of_a_message_of_ends_of_lines_there_are_few_rows(self) -> None:
        assert len(lay_out([said(1, "a" + "\n" * 60_000 + "b")], LOOK)) == 2 + formatting.MAX_LINES + 1


class TestWraps:
    def test_what_is_shown_again_is_not_made_anew(self) -> None:
        cache = WrapCache()
        items: list[Item] = [said(1, "one"), said(2, "two")]
        for context in (LOOK, PLAIN):
            once = lay_out(items, context, cache)
            again = lay_out(items, replace(context, now=NOW + 5), cache)
            assert all(one.text is other.text for one, other in zip(once, again, strict=True) if one.number)
            assert [each.text.plain for each in once] == [each.text.plain for each in lay_out(items, context)]

    def test_another_width_is_made_anew(self) -> None:
        cache = WrapCache()
        for width in (60, 30, 60):
            context = replace(LOOK, width=width)
            assert [each.text.plain for each in lay_out([said(1, "x" * 100)], context, cache)] == [
                each.text.plain for each in lay_out([said(1, "x" * 100)], context)
            ]

    def test_of_a_text_that_is_not_shown_any_more_nothing_is_kept(self) -> None:
        cache = WrapCache()
        lay_out([said(1, "secret"), said(2, "other")], LOOK, cache)
        assert "secret" in str(vars(cache))
        lay_out([said(2, "other")], LOOK, cache)
        assert "secret" not in str(vars(cache))
        assert "other" in str(vars(cache))
