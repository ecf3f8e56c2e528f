"""Finds links in messages, so that a terminal can open them across line breaks. Pure functions.

A link has printable ASCII only, so it cannot end the escape sequence that contains it. Its address is the visible text,
and its scheme is http or https.
"""

import re
from collections.abc import Iterator
from urllib.parse import quote

MAX_LINK = 2_000
"""Terminals ignore addresses over some 2,000 characters."""

_HOST = r"(?:[a-zA-Z0-9_-]+(?:\.[a-zA-Z0-9_-]+)*|\[[0-9a-fA-F:.]+\])(?::[0-9]{1,5})?"
"""Neither a user name (https://bank.example@evil.example looks like another host) nor non-ASCII letters."""

_LINK = re.compile(
    rf"(?<![a-zA-Z0-9])https?://{_HOST}(?![.:]?[\w@%-])(?:[/?#][^\s\"<>\\^`{{|}}]*)?", flags=re.IGNORECASE
)

_ENDS = ".,;:!?'*_~"
"""Punctuation that ends a sentence rather than an address."""

_BRACKETS = {")": "(", "]": "["}

_SAFE = "".join(chr(each) for each in range(0x21, 0x7F))


def find_links(text: str) -> Iterator[tuple[int, int, str]]:
    """Return start, end and address of the links in a sanitized text."""
    for each in _LINK.finditer(text):
        shown = _without_end(_plain(each[0]))
        address = quote(shown, safe=_SAFE)
        if len(address) <= MAX_LINK and not shown.endswith("://"):  # only punctuation followed
            yield each.start(), each.start() + len(shown), address


def _plain(text: str) -> str:
    """Return the text up to the first character that is neither ASCII nor alphanumeric."""
    end = next((at for at, each in enumerate(text) if not (each.isascii() or each.isalnum())), None)
    return text[:end]


def _without_end(link: str) -> str:
    """Remove trailing punctuation, and a closing bracket without an opening one."""
    while link[-1] in _ENDS or (link[-1] in _BRACKETS and link.count(link[-1]) > link.count(_BRACKETS[link[-1]])):
        link = link[:-1]
    return link
