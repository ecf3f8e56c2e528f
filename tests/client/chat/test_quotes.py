"""Quotes: how a reply begins, and what of a text is none."""

import pytest

from conclave.client.chat import quotes
from conclave.client.chat.rows import WrapCache


@pytest.mark.parametrize(
    ("quoted", "line"),
    [
        ("The hut?", "> bob: The hut?"),
        ("one\n\n  two\tthree", "> bob: one two three"),
        ("word " * 100, f"> bob: {'word ' * 31}word…"),
        ("x" * 10_000, f"> bob: {'x' * 159}…"),
        ("", "> bob: "),
    ],
)
def test_a_reply_begins_with_one_line_of_what_it_answers(quoted: str, line: str) -> None:
    text = quotes.reply("bob", quoted, "yes\nand more")
    assert text == f"{line}\nyes\nand more"
    assert quotes.replied_to(text) == "bob"
    assert quotes.strip_quotes(text) == "yes\nand more"


@pytest.mark.parametrize("text", ["", ">bob: no", "x\n> bob: later", "> bob says: no", "> b-b: no"])
def test_other_texts_answer_nobody(text: str) -> None:
    assert quotes.replied_to(text) is None


def test_a_quote_stands_back_on_each_of_its_rows() -> None:
    rows = WrapCache().lines("> bob: a rather long line\nyes", 16)
    assert [each.plain for each in rows] == ["> bob: a rather", "long line", "yes"]
    assert [any(getattr(span.style, "dim", None) for span in each.spans) for each in rows] == [True, True, False]
