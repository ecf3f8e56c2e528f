"""Reads ids as operators write them. Pure.

An id is written with hyphens, which no name has. So an id can only mean one thing. 32 hexadecimal digits without
hyphens may be the name of a group, which its admins choose.
"""

from uuid import UUID


def id_of(text: str) -> bytes | None:
    """Return the id that ``text`` is; None if it can only be a name."""
    try:
        found = UUID(text)
    except ValueError:
        return None
    return found.bytes if str(found) == text.lower() else None
