"""Quotes in replies, as lines that start with "> ". Pure functions."""

import re
from collections.abc import Iterator

MAX_QUOTED = 160
"""A quote has up to 160 characters of the message."""

_QUOTED = re.compile(r"^> .*$", flags=re.MULTILINE)

_AUTHOR = re.compile(r"\A> ([a-zA-Z0-9_]{1,64}): ")


def reply(username: str, quoted: str, text: str) -> str:
    """Return a reply, whose first line quotes the message."""
    beginning = " ".join(quoted[: 2 * MAX_QUOTED].split())
    shortened = beginning if len(beginning) <= MAX_QUOTED else f"{beginning[: MAX_QUOTED - 1].rstrip()}…"
    return f"> {username}: {shortened}\n{text}"


def strip_quotes(text: str) -> str:
    """Return a text without its quotes."""
    return _QUOTED.sub("", text).strip("\n")


def replied_to(text: str) -> str | None:
    """Return the name of the user that a text replies to, or None."""
    found = _AUTHOR.match(text)
    return found[1] if found else None


def quote_spans(text: str) -> Iterator[tuple[int, int]]:
    """Return start and end of each quote in a text."""
    return (each.span() for each in _QUOTED.finditer(text))
