"""Who is meant by @name in a text. Pure functions."""

import re
from collections.abc import Iterable, Sequence

from conclave.client.chat import quotes

_MENTION = re.compile(r"(?<![\w@.])@([a-zA-Z0-9][a-zA-Z0-9_]{0,63})(?![a-zA-Z0-9_])")

_BEGUN = re.compile(r"(?:^|(?<=[\s(]))@([a-zA-Z0-9_]{0,64})$")


def is_meant(text: str | None, username: str, others: Iterable[str]) -> bool:
    """Tell whether a text means a user. Capitals do not matter, unless what is written is the name of another one.

    It means whom it answers, and nobody who is only named in what it quotes.
    ``others``: the names of the other members of the group.
    """
    taken = {*others} - {username}
    named = [quotes.whom(text or "") or "", *_MENTION.findall(quotes.without(text or ""))]
    names = (each for each in named if each not in taken)
    return any(each.lower() == username.lower() for each in names)


def begun(before: str) -> str | None:
    """Return the beginning of a name that stands with its @ at the end of a text; None: none does."""
    found = _BEGUN.search(before)
    return found[1] if found else None


def sure(names: Sequence[str]) -> str:
    """Return what names begin with that differ in nothing but capitals so far; a name alone is sure as a whole."""
    length = next(
        (at for at, each in enumerate(zip(*(name.lower() for name in names), strict=False)) if len({*each}) > 1), None
    )
    return names[0][: min(map(len, names)) if length is None else length]


def completed(beginning: str, names: Iterable[str]) -> list[str]:
    """Return the names with a beginning, whatever its capitals, in their order."""
    return sorted((each for each in names if each.lower().startswith(beginning.lower())), key=str.lower)
