"""Formats lifetimes, times, numbers and names, and sanitizes text of other users. Pure functions."""

import re
import unicodedata
from datetime import datetime
from functools import lru_cache

from conclave.retention.durations import (
    UNITS,
    InvalidDurationError,
    duration_text,
    duration_words,
    parse_duration,
)

KEEP = -1
"""The effective expiry of a group whose messages are kept; as a group's own setting: the server's default."""

AFTER_FETCH = 0
"""The expiry of a group whose messages the server deletes after all members have fetched them."""

MAX_CHARACTERS = 8_000
"""The first 8,000 characters of a message are shown."""

MAX_LINES = 100
"""The first 100 lines of a message are shown: thousands of empty lines would take minutes to lay out."""

MAX_INLINE = 1_000
"""Names and other short texts are cut after 1,000 characters; a server allows names of 64."""

MAX_MARKS = 8
"""At most 8 combining marks on a character: thousands would cover the lines above."""

MAX_TIME = 253_370_764_800
"""Later times are shown as the year 9999, since a lifetime may end in millions of years."""

_SETTINGS = {
    "fetched": AFTER_FETCH,
    "read": AFTER_FETCH,
    "off": KEEP,
    "server": KEEP,
    "inherit": KEEP,
    "never": KEEP,
}

_UNIT_WORDS = {
    "m": "min",  # the server's configuration also accepts m for months; in a chat it means minutes
    "sec": "s",
    "secs": "s",
    "second": "s",
    "seconds": "s",
    "mins": "min",
    "minute": "min",
    "minutes": "min",
    "hour": "h",
    "hours": "h",
    "day": "d",
    "days": "d",
    "week": "w",
    "weeks": "w",
    "month": "mo",
    "months": "mo",
    "year": "y",
    "years": "y",
}

_RESERVED_NAMES = frozenset(
    [
        "you",
        "me",
        "system",
        "server",
        "conclave",
        "admin",
        "administrator",
        "operator",
        "moderator",
        "root",
        "somebody",
        "someone",
        "nobody",
        "everybody",
        "everyone",
        "all",
        "group",
        "invites",
        "new",
        "notice",
        "error",
        "online",
        "connection",
    ]
)
"""Words that the chat uses for itself, the reader and authorities, and at the start of its own lines."""

_LOOKALIKES = str.maketrans("0135", "oles", "_")
"""Digits that look like letters: y0u, s3rver."""

_CIRCLES = "○◔◑◕●"

_DANGEROUS = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Categories of characters that could move the cursor, or change the direction of text."""

_MARKS = {"Mn", "Me"}
"""Categories of combining marks."""

_JOINERS = "\u200c\u200d"
"""Harmless characters that join letters and emoji."""


_INVISIBLE = "\u00ad\u200b\u200e\u200f\u2060\u061c\ufeff"
"""Soft hyphens, direction marks and similar; they are removed."""

_FLAG = re.compile("\U0001f3f4[\U000e0030-\U000e0039\U000e0061-\U000e007a]{1,6}\U000e007f")
"""The flag of a region such as Scotland: invisible tag characters after a black flag (UTS 51, ED-14a)."""


def sanitize(text: str, *, lines: bool = False) -> str:
    """Return a text of another user without anything that could affect the terminal or neighbouring text.

    Control characters and those that change the direction of writing become ``�``; invisible break marks are removed;
    MAX_MARKS combining marks of a character are kept. ``lines``: keep line ends; otherwise the text is cut after
    MAX_INLINE characters.
    """
    text = (text if lines else text[:MAX_INLINE]).replace("\r\n", "\n").replace("\t", "    ")
    kept, marks = list[str](), 0
    flags = {place for found in _FLAG.finditer(text) for place in range(*found.span())} if "\U0001f3f4" in text else ()
    for place, each in enumerate(text):
        if place in flags:
            kept.append(each)
            continue
        if each in _INVISIBLE:
            continue
        category = unicodedata.category(each)
        marks = marks + 1 if category in _MARKS or each in _JOINERS else 0
        if marks > MAX_MARKS:
            continue
        if each == "\n":
            kept.append("\n" if lines else " ")
        else:
            kept.append(visible(each))
    return "".join(kept)


def visible(text: str) -> str:
    """Return a text with each character that could affect a terminal replaced by a visible one."""
    return "".join(
        each if each in _JOINERS or unicodedata.category(each) not in _DANGEROUS else "\N{REPLACEMENT CHARACTER}"
        for each in text
    )


def display_name(name: str) -> str:
    """Return the name of a user or group for display: in quotes if it is a reserved word.

    A user called "you" must not look like the reader, nor a group called "Invites" like the list of invites.
    """
    plain = name.strip("_").lower().translate(_LOOKALIKES)
    return f'"{sanitize(name)}"' if plain in _RESERVED_NAMES else sanitize(name)


def name_with_title(name: str, title: str) -> str:
    """Return the name of a group with its title, which is not unique."""
    return f"{display_name(name)} ({sanitize(title)})" if title else display_name(name)


def display_text(text: str) -> str:
    """Return a message for display: sanitized, and cut after MAX_CHARACTERS or MAX_LINES."""
    text = text.strip("\r\n")
    head = "\n".join(text[:MAX_CHARACTERS].split("\n", MAX_LINES)[:MAX_LINES])
    if len(head) == len(text):
        return sanitize(text, lines=True)
    return f"{sanitize(head, lines=True)}\n… {len(text) - len(head):,} more characters not shown"


def parse_lifetime(text: str) -> int:
    """Parse a duration such as ``1h``, ``2 days`` or ``30 s`` into seconds. Raises ValueError."""
    spelled = re.fullmatch(r"([0-9]+) *([a-z]+)", text.strip().lower())
    written = f"{spelled[1]}{_UNIT_WORDS.get(spelled[2], spelled[2])}" if spelled else text
    try:
        return parse_duration(written)
    except InvalidDurationError as error:
        raise ValueError(
            f"{text or 'this'} is not a duration: write a number and a unit ({', '.join(UNITS)}), such as 1h"
        ) from error


def parse_expiry(text: str) -> int:
    """Parse an expiry setting: a duration, ``fetched`` or ``off``. Raises ValueError."""
    word = text.strip().lower()
    return _SETTINGS[word] if word in _SETTINGS else parse_lifetime(text)


def policy(effective: int) -> str:
    """Describe a policy, as the end of a sentence."""
    if effective == KEEP:
        return "kept forever"
    if effective == AFTER_FETCH:
        return "deleted once all have fetched them"
    return f"deleted after {duration_words(effective)}"


def short_policy(effective: int) -> str:
    """Describe a policy in a few characters."""
    return {KEEP: "∞", AFTER_FETCH: "fetched"}.get(effective) or duration_text(effective)


def time_left(seconds: int) -> str:
    """Format a time left in at most 8 characters: to the second below an hour, in years above 100,000 days."""
    seconds = max(0, seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60}:{seconds % 60:02}"
    if seconds < 86_400:
        return f"{seconds // 3600} h {seconds % 3600 // 60:02}"
    if seconds < 100_000 * 86_400:
        return f"{seconds // 86_400:,} d"
    years = seconds // UNITS["y"]
    return f"{years:,} y" if years < 100_000 else "ages"


def countdown_circle(left: int, whole: int) -> str:
    """Return a circle for the share of a lifetime that is left: full, three quarters, a half, a quarter, empty."""
    quarters = -(-4 * max(0, left) // max(1, whole))
    return _CIRCLES[min(4, quarters)]


def local_time(at: int) -> datetime:
    """Return a time in the local time zone; times after MAX_TIME as MAX_TIME."""
    return datetime.fromtimestamp(min(at, MAX_TIME)).astimezone()


def time_of_day(at: int) -> str:
    """Format the local time of day."""
    return local_time(at).strftime("%H:%M")


@lru_cache(maxsize=4096)
def day(at: int) -> str:
    """Format the local date."""
    when = local_time(at)
    return f"{when:%A} {when.day} {when:%B %Y}"


def date_and_time(at: int) -> str:
    """Format local date and time."""
    return f"{day(at)}, {time_of_day(at)}"


def count(number: int, thing: str) -> str:
    """Format a number of things: 1 message, 2 messages."""
    return f"{number:,} {thing}" + ("" if number == 1 else "s")


def unread(number: int) -> str:
    """Format an unread count in at most 4 characters: 999+ for larger numbers."""
    return str(number) if number < 1000 else "999+"


def join_names(names: list[str], most: int = 4, last: str = "and") -> str:
    """Join names: a, b and c; names beyond ``most`` are counted. ``last``: the word before the last name."""
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most:,} more"
    return f" {last} ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
