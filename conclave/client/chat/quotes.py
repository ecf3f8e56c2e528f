"""Quotes in texts: the lines that a reply begins with, as mail has them. Pure."""

import re
from collections.abc import Iterator

MOST_QUOTED = 160
"""Of a message up to 160 characters are quoted."""

_QUOTED = re.compile(r"^> .*$", flags=re.MULTILINE)

_WHOM = re.compile(r"\A> ([a-zA-Z0-9_]{1,64}): ")


def reply(username: str, quoted: str, text: str) -> str:
    """Return a text that answers another one, with the beginning of that on a line before it."""
    beginning = " ".join(quoted[: 2 * MOST_QUOTED].split())
    shortened = beginning if len(beginning) <= MOST_QUOTED else f"{beginning[: MOST_QUOTED - 1].rstrip()}…"
    return f"> {username}: {shortened}\n{text}"


def without(text: str) -> str:
    """Return what is said in a text beside its quotes."""
    return _QUOTED.sub("", text).strip("\n")


def whom(text: str) -> str | None:
    """Return the name of the one whom a text answers; None if it answers nobody."""
    found = _WHOM.match(text)
    return found[1] if found else None


def lines(text: str) -> Iterator[tuple[int, int]]:
    """Return where quotes are in a text: from where, and to where."""
    return (each.span() for each in _QUOTED.finditer(text))
