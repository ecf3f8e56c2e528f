"""Lays a message's text out in rows, with its links as links, and its quotes behind the rest."""

from textual.content import Content
from textual.style import Style

from conclave.client.chat import formatting, links, quotes


def wrapped(text: str, width: int, before: str = "", after: str = "") -> list[Content]:
    """Return the rows of a message in a width, with what stands before and after it."""
    content = Content(formatting.shown(text))
    for start, end in quotes.lines(content.plain):
        content = content.stylize(Style(dim=True), start, end)
    for start, end, address in links.found(content.plain):
        content = content.stylize(Style(link=address, underline=True), start, end)
    return Content.assemble(before, content, after).wrap(width)
