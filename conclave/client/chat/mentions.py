"""Finds and completes @name mentions. Pure functions."""

import re
from collections.abc import Iterable, Sequence

from conclave.client.chat import quotes

_MENTION = re.compile(r"(?<![\w@.])@([a-zA-Z0-9][a-zA-Z0-9_]{0,63})(?![a-zA-Z0-9_])")

_PARTIAL = re.compile(r"(?:^|(?<=[\s(]))@([a-zA-Z0-9_]{0,64})$")


def mentions_user(text: str | None, username: str, others: Iterable[str]) -> bool:
    """Tell whether a text mentions a user. The case matters only if another member has that exact name.

    A reply mentions the author of the quoted message, but not names within the quote. ``others``: the other members'
    names.
    """
    taken = {*others} - {username}
    named = [quotes.replied_to(text or "") or "", *_MENTION.findall(quotes.strip_quotes(text or ""))]
    names = (each for each in named if each not in taken)
    return any(each.lower() == username.lower() for each in names)


def partial_mention(before: str) -> str | None:
    """Return the partial name after an @ at the end of a text, or None."""
    found = _PARTIAL.search(before)
    return found[1] if found else None


def common_prefix(names: Sequence[str]) -> str:
    """Return the common prefix of names, ignoring case; a single name as a whole."""
    length = next(
        (at for at, each in enumerate(zip(*(name.lower() for name in names), strict=False)) if len({*each}) > 1), None
    )
    return names[0][: min(map(len, names)) if length is None else length]


def completions(beginning: str, names: Iterable[str]) -> list[str]:
    """Return the names that start with a prefix, ignoring case, sorted."""
    return sorted((each for each in names if each.lower().startswith(beginning.lower())), key=str.lower)
