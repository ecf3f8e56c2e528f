"""Finds out where requests end: where that is not plain to see, by llhttp, on which aiohttp's own parser is built.

llhttp tells no positions. So it is given exactly a head, which ends at the first empty line, and says what is in it;
the body is counted by its length. What llhttp refuses here is refused by this server. What it takes, or is not asked
about, aiohttp may still refuse, but ends the request at the same byte: a test compares them on random requests.
"""

import re
from contextlib import suppress
from typing import NamedTuple

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

END = b"\r\n\r\n"
"""Ends a head."""

MOST_HEAD = 16 * 1024
"""A head has at most 16 KiB, and by aiohttp 8,190 bytes in a line."""

LONGEST_PLAIN = 8000
"""A plain head has at most 8,000 bytes."""

MOST_DIGITS = 18
"""A length has at most 18 digits."""

MOST_FIELDS = 100
"""A plain head has at most 100 headers. aiohttp takes 128."""

SEND = b"POST"
"""The method of a send."""

_MESSAGES = re.compile(
    rb"(GET|POST) /api/v1/groups/([0-9a-fA-F-]{1,64})/messages(?:\?([a-z0-9_=&]{0,100}))? HTTP/1\.1\r\n"
)
_UPGRADE = b"upgrade"
_UNUSUAL = frozenset(
    (
        *(b"expect", b"transfer-encoding", b"content-encoding", _UPGRADE),
        *(b"trailer", b"proxy-connection", b"sec-websocket-key1"),
    )
)
_CONNECTION, _ENCODING, _HOST, _LENGTH = b"connection", b"transfer-encoding", b"host", b"content-length"
_STAYS = b"keep-alive"
_COUNTED = re.compile(rb"\ncontent-length: ([0-9]{1,%d})\r\n" % MOST_DIGITS)


class MalformedError(Exception):
    """It is not HTTP. The message is llhttp's, and repeats nothing of what was sent."""


class UnknownCodingError(MalformedError):
    """Its body is in chunks of something that this server does not undo, as gzip (RFC 9112 section 6.1)."""


class Head(NamedTuple):
    """What a head says. ``length``: the bytes of the body; None: it is in chunks.

    ``fields``: the values of the headers by their names in lower case, one of each name.
    """

    length: int | None
    fields: dict[bytes, bytes]
    is_tunnel: bool = False
    """Whether what follows is no HTTP."""
    upgrades: bool = False
    """Whether another protocol is asked for. Once all of its body has come, aiohttp takes what follows for that."""


class _Found:
    """Has the parser put headers into a dictionary without a step through Python's code."""

    __slots__ = ("on_header",)

    def __init__(self, fields: dict[bytes, bytes]) -> None:
        self.on_header = fields.__setitem__


class _Codings:
    """Has the parser list the transfer codings, of which each header of that name may have several."""

    def __init__(self) -> None:
        """Begin with none."""
        self.names: list[bytes] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""
        if name.lower() == _ENCODING:
            self.names += [each for part in value.lower().split(b",") if (each := part.strip())]


def read(head: bytes) -> Head:
    """Return what a head says. Raises MalformedError or UnknownCodingError.

    It ends with the first END in it, and begins with its line.
    """
    if len(head) > MOST_HEAD:
        raise MalformedError("too long")
    found: dict[bytes, bytes] = {}
    try:
        HttpRequestParser(_Found(found)).feed_data(head)
    except HttpParserUpgrade:
        if head.startswith(b"CONNECT "):
            return Head(0, {}, is_tunnel=True)
    except HttpParserError as error:
        raise MalformedError(str(error)) from None
    if head.startswith(b"PRI "):  # the beginning of HTTP/2, of which this is not the end
        raise MalformedError("HTTP/2")
    fields = {name.lower(): value for name, value in found.items()}
    if _ENCODING in fields:  # together with a length, or as anything but chunks in the end, llhttp refuses it
        _require_plain_chunks(head)
        return Head(None, fields)
    length = fields.get(_LENGTH, b"0")
    if not length.isdigit():
        length = length.rstrip(b" \t")
    if not length.isdigit() or len(length) > MOST_DIGITS:
        raise MalformedError("the length is no number, or too large")
    return Head(int(length), fields, upgrades=_UPGRADE in fields)


def _require_plain_chunks(head: bytes) -> None:
    """Raise UnknownCodingError if a body is coded before it is cut into chunks.

    ``head``: one that llhttp takes. It refuses a body that is cut twice.
    """
    found = _Codings()
    with suppress(HttpParserUpgrade):
        HttpRequestParser(found).feed_data(head)
    if found.names != [b"chunked"]:
        raise UnknownCodingError("a transfer coding other than chunked")


def measure(head: bytes) -> Head:
    """Return where a request ends, perhaps without its fields. Raises MalformedError. ``head``: as for ``read``.

    Most heads are not parsed for that: aiohttp does it, and refuses what is none. Where each line ends with CR LF, the
    first empty one ends the head for every parser; and where no header is named that has to do with the end, but for
    one plain length, the body has that length, or none.
    """
    text = head.lower()
    named = text.count(_LENGTH)
    counted = _COUNTED.search(text) if named == 1 else None
    if (
        (named and not counted)
        or _ENCODING in text
        or _UPGRADE in text
        or text.startswith((b"connect", b"pri"))
        or text.count(b"\n") != text.count(b"\r\n")
        or len(text) > MOST_HEAD
    ):
        return read(head)
    return Head(int(counted[1]) if counted else 0, {})


def messages_line(head: bytes) -> re.Match[bytes] | None:
    """Return the first line of a head: method, group's id, query. None if it can be no plain request for messages."""
    return _MESSAGES.match(head) if len(head) <= LONGEST_PLAIN else None


def is_plain(line: re.Match[bytes], head: Head) -> bool:
    """Tell whether a request for messages is plain. ``line``: its ``messages_line``.

    Then each header is there once, none is unusual, the body has a length if one is sent, and the connection stays
    open.
    """
    fields = head.fields
    # Each header has a line: none comes twice.
    if len(fields) != line.string.count(b"\n") - 2 or len(fields) > MOST_FIELDS:
        return False
    if _HOST not in fields or not _UNUSUAL.isdisjoint(fields):
        return False
    if (stays := fields.get(_CONNECTION)) is not None and stays.lower() != _STAYS:
        return False
    return line[3] is None if line[1] == SEND else _LENGTH not in fields


class Watch:
    """Follows a request as it comes: a head that is not all there, or a body in chunks."""

    __slots__ = ("_parser", "is_complete", "on_message_complete")

    def __init__(self) -> None:
        """Begin before the first byte of the head."""
        self.is_complete = False
        self.on_message_complete = self._complete
        self._parser = HttpRequestParser(self)

    def _complete(self) -> None:
        self.is_complete = True

    def feed(self, data: bytes) -> int:
        """Look at what came, and return how many bytes of it are the request's: all, until it is complete.

        Raises MalformedError. Chunks, too, end with an END, perhaps one that came in two pieces.
        """
        begin = 0
        while begin < len(data) and not self.is_complete:
            found = data.find(END, max(0, begin - len(END) + 1))
            end = begin + 1 if begin < len(END) - 1 else found + len(END) if found >= 0 else len(data)
            try:
                self._parser.feed_data(data[begin:end])
            except HttpParserUpgrade:
                self.is_complete = True
            except HttpParserError as error:
                raise MalformedError(str(error)) from None
            begin = end
        return begin
