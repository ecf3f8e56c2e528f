"""What the chat says in words: lifetimes, times, names. Pure functions."""

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
"""The effective expiry of a group whose messages live for ever; as a group's own setting: that of the server."""

AFTER_FETCH = 0
"""The expiry of a group whose messages the server deletes once all members have fetched them."""

LONGEST = 8_000
"""A message is shown up to 8,000 characters."""

MOST_LINES = 100
"""A message is shown up to 100 lines: one of nothing but ends of lines would take minutes to lay out."""

MOST_IN_PASSING = 1_000
"""A name, or anything else that is no message, is shown up to 1,000 characters; a server allows names of 64."""

MOST_MARKS = 8
"""A letter has up to 8 accents and other marks: thousands of them would reach into the lines above it."""

LATEST = 253_370_764_800
"""No time is written as a later one than the year 9999: a lifetime may end in millions of years."""

_SETTINGS = {
    "fetched": AFTER_FETCH,
    "read": AFTER_FETCH,
    "off": KEEP,
    "server": KEEP,
    "inherit": KEEP,
    "never": KEEP,
}

_UNIT_WORDS = {
    "m": "min",  # who sets up a server writes months so, too; who chats means minutes
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

_OWN_WORDS = frozenset(
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
"""What the chat calls itself, the reader, and whoever decides; and how its own lines begin."""

_LOOKS_LIKE = str.maketrans("0135", "oles", "_")
"""Digits that are taken for letters: y0u, s3rver."""

_FUSES = "○◔◑◕●"

_DANGEROUS = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Categories of characters that could move the cursor, or turn the direction of what follows."""

_MARKS = {"Mn", "Me"}
"""Categories of what is drawn over the letter before it."""

_JOINERS = "\u200c\u200d"
"""These join letters and emoji, and do no harm."""


_UNSEEN = "\u00ad\u200b\u200e\u200f\u2060\u061c\ufeff"
"""Marks where a word may be broken or not, and of which direction a neighbour is: nothing is shown in their place."""

_FLAG = re.compile("\U0001f3f4[\U000e0030-\U000e0039\U000e0061-\U000e007a]{1,6}\U000e007f")
"""The flag of a region, as that of Scotland: letters that nobody sees follow a black flag (UTS 51, ED-14a)."""


def harmless(text: str, *, lines: bool = False) -> str:
    """Return a text of somebody else's so that it can do nothing to a terminal, or to what stands beside it.

    Control characters, and those that change the direction of writing, become visible as ``�``;
    marks where a word may be broken are left out; of marks on one letter MOST_MARKS stay. ``lines``: keep ends of
    lines; without, it is a name or a word in passing, and cut after MOST_IN_PASSING characters.
    """
    text = (text if lines else text[:MOST_IN_PASSING]).replace("\r\n", "\n").replace("\t", "    ")
    kept, marks = list[str](), 0
    flags = {place for found in _FLAG.finditer(text) for place in range(*found.span())} if "\U0001f3f4" in text else ()
    for place, each in enumerate(text):
        if place in flags:
            kept.append(each)
            continue
        if each in _UNSEEN:
            continue
        category = unicodedata.category(each)
        marks = marks + 1 if category in _MARKS or each in _JOINERS else 0
        if marks > MOST_MARKS:
            continue
        if each == "\n":
            kept.append("\n" if lines else " ")
        else:
            kept.append(visible(each))
    return "".join(kept)


def visible(text: str) -> str:
    """Return a text, sign by sign, with a visible one in place of each that could do something to a terminal."""
    return "".join(
        each if each in _JOINERS or unicodedata.category(each) not in _DANGEROUS else "\N{REPLACEMENT CHARACTER}"
        for each in text
    )


def called(name: str) -> str:
    """Return the name of a user or a group as it stands among the chat's own words: in quotes if it is one of them.

    So somebody who is called "you" is not taken for the reader, nor a group called "Invites" for the list of these.
    """
    plain = name.strip("_").lower().translate(_LOOKS_LIKE)
    return f'"{harmless(name)}"' if plain in _OWN_WORDS else harmless(name)


def titled(name: str, title: str) -> str:
    """Return the name of a group with its title, which anybody can give to any group."""
    return f"{called(name)} ({harmless(title)})" if title else called(name)


def shown(text: str) -> str:
    """Return a message as it is shown: harmless, and cut after LONGEST characters or MOST_LINES lines."""
    text = text.strip("\r\n")
    head = "\n".join(text[:LONGEST].split("\n", MOST_LINES)[:MOST_LINES])
    if len(head) == len(text):
        return harmless(text, lines=True)
    return f"{harmless(head, lines=True)}\n… {len(text) - len(head):,} more characters are not shown"


def parse_lifetime(text: str) -> int:
    """Return the seconds that somebody has typed, as ``1h``, ``2 days`` or ``30 s``. Raises ValueError."""
    spelled = re.fullmatch(r"([0-9]+) *([a-z]+)", text.strip().lower())
    written = f"{spelled[1]}{_UNIT_WORDS.get(spelled[2], spelled[2])}" if spelled else text
    try:
        return parse_duration(written)
    except InvalidDurationError as error:
        raise ValueError(f"{text or 'that'} is no time: write a number and one of {', '.join(UNITS)}, as 1h") from error


def parse_expiry(text: str) -> int:
    """Return the setting that somebody has typed: a lifetime, ``fetched``, or ``off``. Raises ValueError."""
    word = text.strip().lower()
    return _SETTINGS[word] if word in _SETTINGS else parse_lifetime(text)


def policy(effective: int) -> str:
    """Say how long messages live, as the end of a sentence."""
    if effective == KEEP:
        return "kept for good"
    if effective == AFTER_FETCH:
        return "deleted at the server once all have fetched them"
    return f"gone after {duration_words(effective)}"


def short_policy(effective: int) -> str:
    """Say how long messages live, in a few cells."""
    return {KEEP: "∞", AFTER_FETCH: "fetched"}.get(effective) or duration_text(effective)


def remaining(seconds: int) -> str:
    """Say how much time is left, in at most 8 cells: by the second below an hour, by the year from 100,000 days on."""
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


def fuse(left: int, whole: int) -> str:
    """Show as a circle how much of a lifetime is left: full, three quarters, a half, a quarter, empty."""
    quarters = -(-4 * max(0, left) // max(1, whole))
    return _FUSES[min(4, quarters)]


def moment(at: int) -> datetime:
    """Return when something was, by the clock of this machine's place; what is later than LATEST as that."""
    return datetime.fromtimestamp(min(at, LATEST)).astimezone()


def time_of_day(at: int) -> str:
    """Write when something was, by the clock of this machine's place."""
    return moment(at).strftime("%H:%M")


@lru_cache(maxsize=4096)
def day(at: int) -> str:
    """Write on which day something was."""
    when = moment(at)
    return f"{when:%A} {when.day} {when:%B %Y}"


def date_and_time(at: int) -> str:
    """Write when something was, with its day."""
    return f"{day(at)}, {time_of_day(at)}"


def count(number: int, thing: str) -> str:
    """Write a number of things: 1 message, 2 messages."""
    return f"{number:,} {thing}" + ("" if number == 1 else "s")


def unread(number: int) -> str:
    """Write how many messages are unread, in at most 4 cells: more than 999 are not told apart."""
    return str(number) if number < 1000 else "999+"


def listed(names: list[str], most: int = 4, last: str = "and") -> str:
    """Write names: a, b and c; of more than ``most`` how many follow. ``last``: what stands before the last one."""
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most:,} more"
    return f" {last} ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
