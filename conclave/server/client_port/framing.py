"""Finds the end of requests. Unless it is obvious, it uses llhttp, the parser of aiohttp.

llhttp reports no positions. So it gets exactly a head, up to the first empty line, and the body is counted by its
length. Requests that llhttp rejects are rejected. aiohttp may reject others, but ends each request at the same byte: a
test compares them on random requests.
"""

import re
from types import SimpleNamespace
from typing import NamedTuple

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

END = b"\r\n\r\n"
"""Ends a head."""

MAX_HEAD_BYTES = 16 * 1024
"""The longest head. aiohttp also limits lines to 8,190 bytes."""

MAX_PLAIN_BYTES = 8000
"""A plain head has at most 8,000 bytes, so no line is too long for aiohttp."""

MAX_PLAIN_FIELDS = 100
"""A plain head has at most 100 headers. aiohttp accepts 128."""

MAX_LENGTH_DIGITS = 18

SEND = b"POST"
"""The method of a send."""

_MESSAGES = re.compile(
    rb"(GET|POST) /api/v1/groups/([0-9a-fA-F-]{1,64})/messages(?:\?([a-z0-9_=&]{0,100}))? HTTP/1\.1\r\n"
)
_LENGTH_LINE = re.compile(rb"\ncontent-length: ([0-9]{1,%d})\r\n" % MAX_LENGTH_DIGITS)
_CODING_LINE = re.compile(rb"\n(?i:transfer-encoding)[ \t]*:")
_CONNECTION, _ENCODING, _HOST, _LENGTH = b"connection", b"transfer-encoding", b"host", b"content-length"
_UPGRADE = b"upgrade"
_UNUSUAL = {_ENCODING, _UPGRADE, *b"expect content-encoding trailer proxy-connection sec-websocket-key1".split()}


class MalformedRequestError(Exception):
    """The request is not HTTP. The message is llhttp's, and contains no part of the request."""


class UnknownCodingError(MalformedRequestError):
    """The body has a transfer coding other than chunked, such as gzip (RFC 9112 section 6.1)."""


class RequestHead(NamedTuple):
    """A parsed head.

    ``length``: bytes of the body; None: it is chunked, or this is a CONNECT. ``fields``: values by lower-case header
    name, one for each name.
    """

    length: int | None
    fields: dict[bytes, bytes]
    upgrades: bool = False
    """Whether it asks for another protocol. aiohttp passes the bytes after the body to that protocol."""


def read_head(text: bytes) -> RequestHead:
    """Parse a head, which ends with the first END in ``text``. Raises MalformedRequestError or UnknownCodingError."""
    if len(text) > MAX_HEAD_BYTES:
        raise MalformedRequestError("too long")
    raw_fields: dict[bytes, bytes] = {}
    try:
        HttpRequestParser(SimpleNamespace(on_header=raw_fields.__setitem__)).feed_data(text)
    except HttpParserUpgrade:
        if text.startswith(b"CONNECT "):
            return RequestHead(None, {})
    except HttpParserError as error:
        raise MalformedRequestError(str(error)) from None
    if text.startswith(b"PRI "):  # the preface of HTTP/2, which continues after its first empty line
        raise MalformedRequestError("HTTP/2")
    fields = {name.lower(): value for name, value in raw_fields.items()}
    if _ENCODING in fields:  # llhttp rejects it with a length, or if its last coding is not chunked
        if len(_CODING_LINE.findall(text)) > 1 or fields[_ENCODING].strip(b" \t").lower() != b"chunked":
            raise UnknownCodingError("a transfer coding other than chunked")
        return RequestHead(None, fields)
    length = fields.get(_LENGTH, b"0").rstrip(b" \t")
    if not length.isdigit() or len(length) > MAX_LENGTH_DIGITS:
        raise MalformedRequestError("the length is not a number, or too large")
    return RequestHead(int(length), fields, upgrades=_UPGRADE in fields)


def measure(text: bytes) -> RequestHead:
    """Return the length of a request, perhaps without its fields. Raises MalformedRequestError.

    ``text``: as for ``read_head``. Most heads are not parsed, since aiohttp parses them, which takes a tenth of a
    request. If each line ends with CR LF, the first empty line ends the head for every parser. Without any header that
    affects the framing, except one plain length, the body has that length, or is empty.
    """
    lower = text.lower()
    length_count = lower.count(_LENGTH)
    length_match = _LENGTH_LINE.search(lower) if length_count == 1 else None
    if (
        (length_count and not length_match)
        or _ENCODING in lower
        or _UPGRADE in lower
        or lower.startswith((b"connect", b"pri"))
        or lower.count(b"\n") != lower.count(b"\r\n")
        or len(lower) > MAX_HEAD_BYTES
    ):
        return read_head(text)
    return RequestHead(int(length_match[1]) if length_match else 0, {})


def messages_line(text: bytes) -> re.Match[bytes] | None:
    """Match the first line of a head: method, group id and query. None: not a plain request for messages."""
    return _MESSAGES.match(text) if len(text) <= MAX_PLAIN_BYTES else None


def is_plain(line: re.Match[bytes], head: RequestHead) -> bool:
    """Return whether a request for messages is plain. ``line``: its ``messages_line``.

    A plain request has each header once, no unusual ones, a Content-Length if it has a body, and keeps the connection
    open.
    """
    fields = head.fields
    # There are no duplicate headers if there are as many names as lines.
    if len(fields) != line.string.count(b"\n") - 2 or len(fields) > MAX_PLAIN_FIELDS:
        return False
    if _HOST not in fields or not _UNUSUAL.isdisjoint(fields):
        return False
    if fields.get(_CONNECTION, b"keep-alive").lower() != b"keep-alive":
        return False
    return line[3] is None if line[1] == SEND else _LENGTH not in fields


class RequestScanner:
    """Scans a request that arrives in pieces: an incomplete head, or a chunked body."""

    __slots__ = ("_parser", "is_complete")

    def __init__(self) -> None:
        self.is_complete = False
        self._parser = HttpRequestParser(self)

    def on_message_complete(self) -> None:
        """Record the end of the request: llhttp has found it."""
        self.is_complete = True

    def feed(self, data: bytes) -> int:
        """Scan the next bytes. Return how many of them belong to the request: all, until it is complete.

        Raises MalformedRequestError. The last chunk also ends with END, which may arrive in two pieces.
        """
        begin = 0
        while begin < len(data) and not self.is_complete:
            marker = data.find(END, max(0, begin - len(END) + 1))
            end = begin + 1 if begin < len(END) - 1 else marker + len(END) if marker >= 0 else len(data)
            try:
                self._parser.feed_data(data[begin:end])
            except HttpParserUpgrade:
                self.is_complete = True
            except HttpParserError as error:
                raise MalformedRequestError(str(error)) from None
            begin = end
        return begin
