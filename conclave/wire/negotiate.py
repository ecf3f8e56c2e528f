"""Decides which format an answer has, by the request's headers and token only."""

import re
from enum import Enum
from functools import lru_cache


class Format(Enum):
    """The two ways to write a message, by their media types."""

    JSON = "application/json"
    PROTOBUF = "application/x-protobuf"

    __hash__ = object.__hash__  # Enum's is a function of Python, and it is the key of what is asked for most


_BY_TYPE = {each.value: each for each in Format}
_REFUSED = re.compile(r";\s*q=0(\.0*)?\s*(;|$)", re.IGNORECASE)
_ODD = frozenset("13579bdfBDF")


@lru_cache(256)
def body_format(content_type: str) -> Format | None:
    """Return how a body of this ``Content-Type`` is written; None for other types, and for no type."""
    return _BY_TYPE.get(content_type.partition(";")[0].strip().lower())


@lru_cache(256)
def answer_format(accept: str, content_type: str, token: str) -> Format:
    """Return the format of the answer: the first of the three that decides, else JSON.

    ``accept`` decides if it names exactly one of the two types. ``content_type`` decides if it is one of them.
    ``token`` decides by its last digit, odd for protobuf. It does so even if it is unknown: a client whose session is
    over has to be able to read that. Give no more of it than that digit: the answers are remembered. Each is "" if the
    request has none.
    """
    named = {body_format(each) for each in accept.split(",") if not _REFUSED.search(each)} - {None}
    if len(named) == 1 and (only := named.pop()):
        return only
    return body_format(content_type) or (Format.PROTOBUF if token[-1:] in _ODD else Format.JSON)
