"""What commands and the operators' page share to write for people: times, amounts, text that users have chosen."""

from datetime import UTC, datetime

from conclave.retention.durations import duration_text


def visible(text: str) -> str:
    """Escape what a terminal would obey or hide: controls, marks of direction, characters without width."""
    if text.isprintable():
        return text  # most is
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def visible_lines(text: str) -> str:
    """Do as ``visible``, but leave line ends."""
    return "\n".join(map(visible, text.split("\n")))


def second(seconds: int) -> str:
    """Write a Unix second, in UTC, as operators read it."""
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}"
    except (OverflowError, ValueError, OSError):
        return str(seconds)  # beyond the year 9999


def counted(count: int, noun: str) -> str:
    """Write a number of things: 1 message, 2 messages."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def about(seconds: int) -> str:
    """Write seconds in the greatest unit, up to days, of which there are at least two. Rounds down."""
    unit = next((unit for unit in (86_400, 3_600, 60) if seconds >= 2 * unit), 1)
    return duration_text(seconds - seconds % unit) if seconds > 0 else "0s"


def size_text(count: int) -> str:
    """Write bytes in the greatest unit that leaves a whole number before the point: 900 B, 1.5 MB. 1 KB is 1,000 B."""
    value, units = float(count), iter(("B", "KB", "MB", "GB", "TB", "PB"))
    unit = next(units)
    while abs(value) >= 999.95 and (larger := next(units, None)):
        value, unit = value / 1000, larger
    return f"{count:,} B" if unit == "B" else f"{value:,.1f} {unit}"
