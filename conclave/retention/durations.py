"""Parses and formats durations such as 30d. Pure functions."""

import re

from conclave.retention.policy import AFTER_FETCH, KEEP

MAX_SECONDS = 2**53 - 1
"""The greatest lifetime in seconds, and the greatest integer that every JSON parser represents exactly."""


_MONTH_SECONDS = 2_592_000


UNITS = {"s": 1, "min": 60, "h": 3600, "d": 86_400, "w": 604_800, "mo": _MONTH_SECONDS, "y": 31_536_000}


_BARE_MONTH = "m"
"""The unit m means months, as in older configurations. A warning is logged, since elsewhere it often means minutes."""

_MAX_BARE_MONTHS = 12
"""More than 12m is rejected: 90m is probably not meant as seven years."""


DURATION = re.compile(r"([0-9]+)([a-z]{1,3})", re.ASCII)


WORDS = {"-1": KEEP, "0": AFTER_FETCH}


class InvalidDurationError(ValueError):
    """The text is not a duration. The message shows the format."""


def parse_duration(text: str, *, words: bool = False) -> int:
    """Return the seconds of a duration: a positive integer and one of s, min, h, d, w, mo, y.

    mo is 30 days and y is 365 days; m means mo, up to 12m, see ``is_in_bare_months``. With ``words`` the texts "-1"
    (off) and "0" (delete-after-fetch) are allowed too. Bounds: 1 .. 2^53-1 seconds. Raises InvalidDurationError.
    """
    if words and text in WORDS:
        return WORDS[text]
    match = DURATION.fullmatch(text)
    if match and match[2] == _BARE_MONTH and int(match[1][:20]) > _MAX_BARE_MONTHS:
        raise InvalidDurationError(
            f'{text!r} may mean minutes or months: write "{text}in" for minutes, or "{text}o" for months of 30 days'
        )
    seconds = int(match[1][:20]) * (UNITS | {_BARE_MONTH: _MONTH_SECONDS}).get(match[2], 0) if match else 0
    if not 1 <= seconds <= MAX_SECONDS:
        also = ', "-1" or "0"' if words else ""
        units = ", ".join(UNITS)
        raise InvalidDurationError(
            f'{text!r} is not a duration: a positive integer and a unit ({units}), as in "30d"{also}'
        )
    return seconds


def is_in_bare_months(text: str) -> bool:
    """Return whether a duration has the unit m, which is easily mistaken for minutes."""
    match = DURATION.fullmatch(text)
    return match is not None and match[2] == _BARE_MONTH


def duration_words(seconds: int) -> str:
    """Format seconds in words, in the unit of ``duration_text``: 30 days, 1 hour."""
    text = duration_text(seconds)
    match = DURATION.fullmatch(text)
    if not match:
        return {KEEP: "off", AFTER_FETCH: "none"}[seconds]
    word = {"s": "second", "min": "minute", "h": "hour", "d": "day"}[match[2]]
    return f"{int(match[1]):,} {word}" + ("" if match[1] == "1" else "s")


def duration_text(seconds: int) -> str:
    """Format seconds in the greatest unit up to days that divides them: 30d, 36h, 90min, 5s.

    KEEP and AFTER_FETCH become -1 and 0, as in the configuration.
    """
    if seconds in WORDS.values():
        return str(seconds)
    unit = next(name for name in ("d", "h", "min", "s") if seconds % UNITS[name] == 0)
    return f"{seconds // UNITS[unit]}{unit}"
