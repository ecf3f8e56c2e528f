"""Names of users and groups: validates them before they are sent, and derives a name from a title. Pure.

The server would refuse an invalid name, and in a path it could name another resource.
"""

import re
import unicodedata

from marshmallow import ValidationError

from conclave.client.errors import InputError
from conclave.errors import ErrorCode
from conclave.wire.fields import NAME_RULE

MAX_LENGTH = 64
"""Maximum number of characters of a name."""

_FORBIDDEN = re.compile("[^a-zA-Z0-9_]")

_TRANSLITERATIONS = str.maketrans(
    {"ß": "ss", "ø": "o", "Ø": "O", "æ": "ae", "Æ": "Ae", "œ": "oe", "ł": "l", "Ł": "L", "đ": "d"}
)
"""Letters that do not decompose into a base letter and an accent."""


def check_name(field: str, name: str) -> str:
    """Return a name of a user or a group if it is valid. Raises InputError, as the server would.

    ``field``: the protocol's name for it, "username" or "group_name".
    """
    try:
        return str(NAME_RULE(name))
    except ValidationError as error:
        faults = [f"{each}: {_describe_fault(name)}" for each in error.messages]
        text = f"{field}: {' '.join(faults)}"
        raise InputError(400, ErrorCode.INPUT_VALIDATION, text, {field: faults}) from error


def name_from_title(title: str) -> str:
    """Return a name for a title: Smith_v_Jones_2026 for "Smith v. Jones, 2026"; "" if no character is usable."""
    plain = unicodedata.normalize("NFKD", title.translate(_TRANSLITERATIONS))
    letters = "".join(each for each in plain if not unicodedata.combining(each))
    return re.sub("[^a-zA-Z0-9]+", "_", letters).strip("_")[:MAX_LENGTH].rstrip("_")


def _describe_fault(name: str) -> str:
    match = _FORBIDDEN.search(name)
    if match:
        character = (
            "a space" if match[0] == " " else f'"{match[0]}"' if match[0].isprintable() else f"U+{ord(match[0]):04X}"
        )
        return f"{character} at place {match.start() + 1} is not allowed"
    if name.startswith("_"):
        return "it begins with _"
    return f"it has {len(name)}"
