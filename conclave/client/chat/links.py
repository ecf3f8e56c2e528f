"""Finds links in texts, so that a terminal can open them wherever a line breaks. Pure.

Nothing of a text goes to the terminal as it is: an address has printable ASCII only, so it cannot end the sequence that
it stands in. It is the one that can be read in the text, and leads to no other program than a browser.
"""

import re
from collections.abc import Iterator
from urllib.parse import quote

MOST_OF_LINK = 2_000
"""An address has up to 2,000 characters: terminals ignore longer ones."""

_HOST = r"(?:[a-zA-Z0-9_-]+(?:\.[a-zA-Z0-9_-]+)*|\[[0-9a-fA-F:.]+\])(?::[0-9]{1,5})?"
"""No names before an @, by which https://bank.example@evil.example looks like another place; no letters of others."""

_LINK = re.compile(
    rf"(?<![a-zA-Z0-9])https?://{_HOST}(?![.:]?[\w@%-])(?:[/?#][^\s\"<>\\^`{{|}}]*)?", flags=re.IGNORECASE
)

_ENDS = ".,;:!?'*_~"
"""What ends a sentence, and no address."""

_BRACKETS = {")": "(", "]": "["}

_SAFE = "".join(chr(each) for each in range(0x21, 0x7F))


def found(text: str) -> Iterator[tuple[int, int, str]]:
    """Return where links are in a text that is harmless: from where, to where, and their addresses."""
    for each in _LINK.finditer(text):
        shown = _without_end(_plain(each[0]))
        address = quote(shown, safe=_SAFE)
        if len(address) <= MOST_OF_LINK and not shown.endswith("://"):  # its host was the end of a sentence
            yield each.start(), each.start() + len(shown), address


def _plain(text: str) -> str:
    """Return what comes before the first character that is neither ASCII, nor a letter or a digit."""
    strange = next((at for at, each in enumerate(text) if not (each.isascii() or each.isalnum())), None)
    return text[:strange]


def _without_end(link: str) -> str:
    """Leave out what belongs to the sentence: its end, and a bracket that was not opened within."""
    while link[-1] in _ENDS or (link[-1] in _BRACKETS and link.count(link[-1]) > link.count(_BRACKETS[link[-1]])):
        link = link[:-1]
    return link
