"""Requests so plain that every parser reads them alike.

Such a request is read in three microseconds, by the parser on which aiohttp's own is built. Of a piece of bytes it is
told that it is one whole request, or nothing: what is unusual in any way is left to aiohttp.
"""

import re
from typing import NamedTuple

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

LONGEST_HEAD = 8000
"""A plain head has at most 8,000 bytes. aiohttp takes 8,190 in the first line, and in each other."""

MOST_FIELDS = 100
"""A plain head has at most 100 headers. aiohttp takes 128."""

MESSAGES = r"/api/v1/groups/([0-9a-fA-F-]{1,64})/messages"
"""The path of a group's messages, as a regular expression."""

_LINE = re.compile(
    rb"(GET|POST|PUT|PATCH|DELETE) (?:%b(?:\?([a-z0-9_=&]{0,100}))?|/[!-~]*) HTTP/1\.1\r\n" % MESSAGES.encode("ascii")
)
_END = b"\r\n\r\n"
_UNUSUAL = frozenset(
    (
        *(b"expect", b"transfer-encoding", b"content-encoding", b"upgrade", b"trailer"),
        *(b"proxy-connection", b"sec-websocket-key1"),
    )
)
_STAYS = b"keep-alive"
_CONNECTION, _HOST, _LENGTH = b"connection", b"host", b"content-length"
_ANY_LINE = b"POST / HTTP/1.1\r\n"


class Cut(NamedTuple):
    """What looks like a whole request. ``head``: from the second line on, with the empty line at its end.

    ``group``, ``query``: of one for a group's messages; else None.
    """

    method: bytes
    group: bytes | None
    query: bytes | None
    head: bytes
    body: bytes


def cut(data: bytes, most_body: int) -> Cut | None:
    """Take ``data`` apart as if it were one request, all of it, with a body of at most ``most_body`` bytes."""
    line = _LINE.match(data)
    if not line:
        return None
    begin = line.end()
    end = data.find(_END, begin - 2) + len(_END)
    if not begin < end <= LONGEST_HEAD or len(data) - end > most_body:
        return None
    method, group, query = line.groups()
    return Cut(method, group, query, data[begin:end], data[end:])


def fields_of(request: Cut) -> dict[bytes, bytes] | None:
    """Return the headers by their names in lower case, if the request is plain; else None.

    Then each is there once, the body has exactly the length that they say and is sent as it is, and the connection
    stays open.
    """
    found: dict[bytes, bytes] = {}
    try:
        HttpRequestParser(_Found(found)).feed_data(_ANY_LINE + request.head)
    except (HttpParserError, HttpParserUpgrade):
        return None
    fields = {name.lower(): value for name, value in found.items()}
    # Each header has a line, and no other line is there: none comes twice or is folded, nor stands behind the end.
    if len(fields) != request.head.count(b"\n") - 1 or len(fields) > MOST_FIELDS:
        return None
    if _HOST not in fields or not _UNUSUAL.isdisjoint(fields):
        return None
    if fields.get(_CONNECTION, _STAYS).lower() != _STAYS:
        return None
    return fields if fields.get(_LENGTH, b"0") == b"%d" % len(request.body) else None


class _Found:
    """Has the parser put headers into a dictionary without a step through Python's code."""

    __slots__ = ("on_header",)

    def __init__(self, fields: dict[bytes, bytes]) -> None:
        self.on_header = fields.__setitem__
