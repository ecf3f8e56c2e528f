"""The fast path of the busiest requests: those whose head was parsed before.

Clients send the same head again and again. A poll asks whether a group has something new, and nearly always it has not;
a page that somebody has read is read by others too; a message differs from the one before in its body. To parse such a
request, and to make the task and the objects that aiohttp has for each, takes longer than to answer it.

What is not parsed must not be guessed. A request takes this path only if aiohttp's parser has taken one with the same
head, byte by byte, but for the group, the query and the length of the body; if it comes in one piece, with nothing
beside it; and if it begins where a request begins, since what came before it on its connection was as whole. All else
is parsed. And everything that needs more than a look into memory, or one write, is left to the handlers.
"""

import asyncio
import hashlib
import re
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import NamedTuple

import structlog
from aiohttp import HttpVersion11, StreamReader, hdrs, web
from aiohttp.http import RawRequestMessage

from conclave import keys
from conclave.actions.messages import Send
from conclave.api import messages
from conclave.auth import tokens
from conclave.budget import Share
from conclave.server.middleware import AROUND, new_request_id
from conclave.server.shortcut import MESSAGES
from conclave.wire import pages, ready
from conclave.wire.exchange import answer_error, asked_format, sent_format
from conclave.wire.fields import parse_id
from conclave.wire.negotiate import Format
from conclave.wire.schemas.messages import (
    GetMessages,
    GetMessagesQuery,
    SendMessage,
    SendMessageRequest,
    write_number,
)

MOST_HEADS = 20_000
"""At most 20,000 heads are known, which takes about 6 MB. The one that was used longest ago is forgotten first."""

LONGEST_HEAD = 2048
"""A head of at most 2 KiB is known again."""

LARGEST_BODY = 64 * 1024
"""A message of at most 64 KiB takes the path. With a larger one, parsing its head is the least part of the work."""

_LINE = re.compile(rb"(GET|POST) (%b(?:\?([a-z0-9=&]{1,64}))?) HTTP/1\.1(?=\r\n)" % MESSAGES.encode("ascii"))
_LENGTH = re.compile(rb"\r\ncontent-length: ([1-9][0-9]{0,6})\r\n", re.IGNORECASE)
_END = b"\r\n\r\n"
_UNUSUAL = (hdrs.EXPECT, hdrs.TRANSFER_ENCODING, hdrs.CONTENT_ENCODING, hdrs.UPGRADE)


class Head(NamedTuple):
    """What a head says. ``written_in``: the format of the body, if there is one."""

    token_hash: bytes
    answered_in: Format
    written_in: Format


class Asked(NamedTuple):
    """A request as it came: parts of its first line, its head but for the body's length, and its body.

    ``key``: stands for the head. Heads have tokens, of which nothing but the hash is kept.
    """

    is_send: bool
    target: bytes
    group: bytes
    query: bytes
    head: bytes
    key: bytes
    body: bytes


Answer = Callable[[list[bytes], Share | None], None]
"""Takes the answer to a request, once: while ``FastPath.take`` goes on, or later.

It gets the parts of the answer, head and all, and the share of the memory that they take, which it has to close.
"""


class _Page(NamedTuple):
    """The parts of a page as it is written, and the share of the memory that they take."""

    parts: list[bytes]
    share: Share


class Known(NamedTuple):
    """A request whose head is known. ``began``: by ``time.monotonic``."""

    asked: Asked
    head: Head
    began: float


class FastPath:
    """Answers requests whose heads are known. Only for the event loop's thread."""

    def __init__(self, app: web.Application) -> None:
        """Begin with none. ``app``: its resources are there."""
        self._auth_header = app[keys.IN_FORCE].config.auth_header
        self._around = app[AROUND]
        self._clock = app[keys.CLOCK]
        self._fetching = app[keys.FETCHING]
        self._sending = app[keys.SENDING]
        self._budget = app[keys.BUDGET]
        self._route = app[keys.ENDPOINTS][messages.fetch].path
        self._heads: OrderedDict[bytes, Head] = OrderedDict()

    def learn(self, data: bytes, message: object, body: StreamReader) -> bool:
        """Know the head of a request from now on, if it is of the busiest and usual. Return whether it is.

        ``data``: what came in one piece. ``message``, ``body``: the one request that the parser made of it.
        """
        asked = _split(data)
        if not asked or not isinstance(message, RawRequestMessage) or not body.is_eof() or not _is_usual(message):
            return False
        # The parser may have had a part of the request before, or have kept something: then there is more to it.
        if _rewritten(message) + asked.body != data:
            return False
        token, written_in = tokens.token_in(message.headers, self._auth_header), sent_format(message.headers)
        if not token or (asked.is_send and not written_in):
            return False
        if message.headers.getall(hdrs.CONTENT_LENGTH, []) != ([str(len(asked.body))] if asked.is_send else []):
            return False
        answered_in = asked_format(message.headers, token)
        self._heads[asked.key] = Head(tokens.token_hash(token), answered_in, written_in or answered_in)
        if len(self._heads) > MOST_HEADS:
            self._heads.popitem(last=False)
        return True

    def known(self, data: bytes) -> Known | None:
        """Return the request that ``data`` is, if its head is known.

        ``data``: what came in one piece, from where a request begins.
        """
        began = time.monotonic()
        asked = _split(data)
        head = self._heads.get(asked.key) if asked else None
        if not asked or not head:
            return None
        self._heads.move_to_end(asked.key)
        return Known(asked, head, began)

    def take(self, known: Known, answer: Answer) -> bool:
        """Answer a request, now or once it is done. Return False if it is to be parsed: then nothing was done.

        Call it from the event loop, not while bytes are received: what is looked up then is right for all requests that
        have arrived in the same pass.
        """
        try:
            sent = self._begin(known)
        except Exception:  # noqa: BLE001 - whatever it is, a handler finds the same, and says it
            return False
        if sent is None:
            return False
        if isinstance(sent, _Page):
            self._answer_page(known, answer, sent)
        else:
            sent.add_done_callback(partial(self._sent, known, answer))
        return True

    def _begin(self, known: Known) -> "asyncio.Future[int] | _Page | None":
        """Begin to send a message, or find a page. None: the request is to be parsed.

        If it raises, nothing was begun.
        """
        asked, head, _ = known
        caller = self._around.known_caller(head.token_hash)
        if not caller:
            return None
        group_id = parse_id(asked.group.decode())
        if asked.is_send:
            body = SendMessageRequest.quick(head.written_in, asked.body)
            if not isinstance(body, SendMessage):
                return None
            return self._sending.begin(
                Send(group_id, caller.user_id, body.mls_message, body.self_destruct_seconds, body.send_id)
            )
        query = GetMessagesQuery.quick(asked.query.decode())
        if not isinstance(query, GetMessages):
            return None
        share = self._budget.share()
        page = self._fetching.at_hand(group_id, caller.user_id, query.after, query.limit, head.answered_in, share)
        parts = None if page is None else pages.in_one_go(head.answered_in, page)
        if parts is None:
            share.close()
            return None
        return _Page(parts, share)

    def _answer_page(self, known: Known, answer: Answer, page: _Page) -> None:
        request_id = new_request_id()
        self._around.tell(hdrs.METH_GET, self._route, HTTPStatus.OK.value, known.began, request_id)
        answer(ready.written(known.head.answered_in, request_id, page.parts, self._clock), page.share)

    def _sent(self, known: Known, answer: Answer, sent: "asyncio.Future[int]") -> None:
        written_in, request_id, status = known.head.answered_in, new_request_id(), HTTPStatus.OK.value
        try:
            parts = ready.written(written_in, request_id, [write_number(written_in, sent.result())], self._clock)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client gets an answer
            with structlog.contextvars.bound_contextvars(request_id=request_id):
                told = self._around.told(error, hdrs.METH_POST, self._route)
            status = told.status
            answered = answer_error(written_in, ready.headers_of(request_id), told)
            parts = [ready.written_response(answered, self._clock)]
        self._around.tell(hdrs.METH_POST, self._route, status, known.began, request_id)
        answer(parts, None)


def _split(data: bytes) -> Asked | None:
    """Take a request apart, if it looks like one of the busiest, and as if it were all of ``data``."""
    line = _LINE.match(data)
    end = data.find(_END, line.end()) + len(_END) if line else 0
    if not line or end < line.end() or end - line.end() > LONGEST_HEAD or len(data) - end > LARGEST_BODY:
        return None
    method, target, group, query = line.groups()
    head, body, is_send = data[line.end() : end], data[end:], method == b"POST"
    if is_send:
        length = _LENGTH.search(head)
        if not length or query or int(length[1]) != len(body):
            return None
        head = head[: length.start(1)] + head[length.end(1) :]
    elif body or not query:
        return None
    key = hashlib.blake2b(method + head, digest_size=32).digest()
    return Asked(is_send, target, group, query, head, key, body)


def _rewritten(message: RawRequestMessage) -> bytes:
    """Return the head that says what the parser understood, written as heads usually are."""
    fields = b"".join(b"%b: %b\r\n" % each for each in message.raw_headers)
    return f"{message.method} {message.path} HTTP/1.1\r\n".encode("utf-8", "surrogateescape") + fields + b"\r\n"


def _is_usual(message: RawRequestMessage) -> bool:
    """Tell whether a request keeps its connection open, see ``ready.is_plain``, and its body is sent as it is."""
    if message.version != HttpVersion11 or message.should_close or message.upgrade or message.compression:
        return False
    return not message.chunked and not any(name in message.headers for name in _UNUSUAL)
