"""Links in texts: which are links, to where, and that nothing of a text can end what a terminal is told."""

import re

import pytest
from hypothesis import given, settings, strategies as st
from rich.console import Console
from textual.color import Color
from textual.content import Content
from textual.strip import Strip
from textual.style import Style

from conclave.client.chat import formatting, links
from conclave.client.chat.rows import WrapCache

LONG = f"https://example.org/{'a-rather-long-path/' * 12}?with=a&query=1#end"


def written(content: Content) -> str:
    """What goes to a terminal for a row."""
    style = Style(background=Color.parse("#000000"), foreground=Color.parse("#ffffff"))
    return Strip(content.render_segments(style)).render(Console(color_system="truecolor"))


def opened(text: str) -> list[str]:
    """Return the addresses that a text links to."""
    return [address for _, _, address in links.find_links(formatting.display_text(text))]


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("see https://example.org, please", "https://example.org"),
        ("HTTP://EXAMPLE.ORG/X!", "HTTP://EXAMPLE.ORG/X"),
        ("(https://example.org/a_(b))", "https://example.org/a_(b)"),
        ("<http://localhost:8080/>", "http://localhost:8080/"),
        ("https://[::1]:8080/x?y=1&z=%20#f.", "https://[::1]:8080/x?y=1&z=%20#f"),
        ("https://example.org/grün/東京", "https://example.org/gr%C3%BCn/%E6%9D%B1%E4%BA%AC"),
        ("https://example.org/a\u202egnp.exe", "https://example.org/a"),
        ("https://example.org/a\x1b]8;;https://evil.example\x1b\\b", "https://example.org/a"),
        ("https://bank.example@evil.example/", None),
        ("https://bank.example:pass@evil.example/", None),
        ("https://b\u0430nk.example/", None),
        ("https://example.org%00.evil.example/", None),
        ("javascript:alert(1)", None),
        ("file:///etc/passwd", None),
        ("ssh://example.org", None),
        ("https://", None),
        ("xhttps://example.org", None),
        (f"https://example.org/{'x' * links.MAX_LINK}", None),
        ("https://example.org/\x07", "https://example.org/"),
    ],
)
def test_what_is_a_link_leads_to_what_can_be_read(text: str, address: str | None) -> None:
    assert opened(text)[:1] == ([address] if address else [])


@pytest.mark.parametrize("width", [20, 40, 60, 200])
def test_a_link_is_whole_at_any_width(width: int) -> None:
    rows = [written(each) for each in WrapCache().lines(f"look: {LONG} at once", width)]
    told = re.findall("\x1b]8;(id=[0-9]+);([^\x1b]+)\x1b\\\\\x1b[^m]+m([^\x1b]*)", "\n".join(rows))
    assert {address for _, address, _ in told} == {LONG}
    assert len({number for number, _, _ in told}) == 1, "the terminal takes all rows for one link"
    assert "".join(shown for _, _, shown in told) == LONG


@pytest.mark.parametrize("text", ["https://_", "see http://__."])
def test_what_ends_a_sentence_is_no_host(text: str) -> None:
    assert not list(links.find_links(text))


SIGNS = st.sampled_from(["https://", "http://", "example.org", *"/@:;\x1b\x07\\\u202eü "])
TOLD = re.compile("\x1b]8;(id=[0-9]+;https?://[\x21-\x7e]+|;)\x1b\\\\|\x1b\\[[0-9;]*m", flags=re.IGNORECASE)
"""What the terminal is told beside texts."""


@given(text=st.lists(SIGNS | st.characters(), max_size=40).map("".join), width=st.integers(10, 60))
@settings(max_examples=300, deadline=None)
def test_no_text_begins_or_ends_anything_of_the_terminals(text: str, width: int) -> None:
    for row in WrapCache().lines(text, width):
        left = TOLD.sub("", written(row))
        assert left == row.plain
        assert not [each for each in left if each in "\x1b\x07\x9b\x9d\u202e"]
