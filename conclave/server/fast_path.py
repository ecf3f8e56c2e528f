"""The fast path of the busiest requests: those that need no more than a look into memory, or one write.

A poll asks whether a group has something new, and nearly always it has not; a page that somebody has read is read by
others too; a message differs from the one before in its body. To make the task and the objects that aiohttp has for
each takes longer than to answer it.

A request takes this path only if it is plain (``plain.py``): if it comes in one piece, with nothing beside it. All else
is parsed by aiohttp. And everything that needs more is left to the handlers.
"""

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import NamedTuple

import structlog
from aiohttp import hdrs, web

from conclave import app_keys
from conclave.actions.messages import Send
from conclave.api import messages
from conclave.auth import tokens
from conclave.response_memory import Share
from conclave.server.middleware import PIPELINE, new_request_id
from conclave.server.plain import Cut, fields_of
from conclave.wire import pages, ready
from conclave.wire.exchange import answer_error, asked_format, sent_format
from conclave.wire.fields import parse_id
from conclave.wire.negotiate import Format
from conclave.wire.schemas.messages import GetMessages, GetMessagesQuery, SendMessage, SendMessageRequest, write_number

LARGEST_BODY = 64 * 1024
"""A message of at most 64 KiB takes the path. With a larger one, parsing its head is the least part of the work."""

MOST_HEADS = 20_000
"""What 20,000 heads say is remembered, in about 6 MB. The one that was used longest ago is forgotten first."""

_GET, _POST = b"GET", b"POST"

Answer = Callable[[list[bytes], Share | None], None]
"""Takes the answer to a request, once: while ``FastPath.take`` goes on, or later.

It gets the parts of the answer, head and all, and the share of the memory that they take, which it has to close.
"""


class _Page(NamedTuple):
    """The parts of a page as it is written, and the share of the memory that they take."""

    parts: list[bytes]
    share: Share


class Head(NamedTuple):
    """What a head says but for its first line. ``written_in``: the format of the body, if there is one."""

    token_hash: bytes
    answered_in: Format
    written_in: Format
    length: int


class Asked(NamedTuple):
    """A request for the fast path. ``query``: None for a send. ``began``: by ``time.monotonic``."""

    group: str
    query: str | None
    head: Head
    body: bytes
    began: float


class FastPath:
    """Answers plain requests for messages. Only for the event loop's thread."""

    def __init__(self, app: web.Application) -> None:
        """``app``: its resources are there."""
        self._auth_header = app[app_keys.IN_FORCE].config.auth_header
        self._auth_field = self._auth_header.lower().encode("ascii")
        self._pipeline = app[PIPELINE]
        self._clock = app[app_keys.CLOCK]
        self._fetching = app[app_keys.FETCHING]
        self._sending = app[app_keys.SENDING]
        self._budget = app[app_keys.BUDGET]
        self._heads: OrderedDict[bytes, Head] = OrderedDict()
        """By the hash of a head: of the tokens in them, too, nothing but the hash is kept."""
        self._route = app[app_keys.ENDPOINTS][messages.fetch].path

    def asked(self, request: Cut) -> Asked | None:
        """Return what a request asks for if it is one of the busiest, and plain. None: it is to be parsed."""
        began, is_send = time.monotonic(), request.method == _POST
        if request.group is None or (is_send and request.query is not None) or not (is_send or request.method == _GET):
            return None
        key = hashlib.blake2b(request.method + request.head, digest_size=32).digest()
        head = self._heads.get(key)
        if head:
            self._heads.move_to_end(key)
        elif head := self._read(request, is_send=is_send):
            self._heads[key] = head
            if len(self._heads) > MOST_HEADS:
                self._heads.popitem(last=False)
        if not head or head.length != len(request.body):
            return None
        query = None if is_send else (request.query or b"").decode()
        return Asked(request.group.decode(), query, head, request.body, began)

    def _read(self, request: Cut, *, is_send: bool) -> Head | None:
        fields = fields_of(request)
        if fields is None or (not is_send and b"content-length" in fields):
            return None
        token = tokens.token_in(_text(fields, self._auth_field), self._auth_header)
        content_type = _text(fields, b"content-type")
        written_in = sent_format(content_type)
        if not token or (is_send and not written_in):
            return None
        answered_in = asked_format(_text(fields, b"accept"), content_type, token)
        return Head(tokens.token_hash(token), answered_in, written_in or answered_in, len(request.body))

    def take(self, asked: Asked, answer: Answer) -> bool:
        """Answer a request, now or once it is done. Return False if it is to be parsed: then nothing was done.

        Call it from the event loop, not while bytes are received: what is looked up then is right for all requests that
        have arrived in the same pass.
        """
        try:
            sent = self._begin(asked)
        except Exception:  # noqa: BLE001 - whatever it is, a handler finds the same, and says it
            return False
        if sent is None:
            return False
        if isinstance(sent, _Page):
            self._answer_page(asked, answer, sent)
        else:
            sent.add_done_callback(partial(self._sent, asked, answer))
        return True

    def _begin(self, asked: Asked) -> "asyncio.Future[int] | _Page | None":
        """Begin to send a message, or find a page. None: the request is to be parsed.

        If it raises, nothing was begun.
        """
        caller = self._pipeline.known_caller(asked.head.token_hash)
        if not caller:
            return None
        group_id = parse_id(asked.group)
        if asked.query is None:
            body = SendMessageRequest.quick(asked.head.written_in, asked.body)
            if not isinstance(body, SendMessage):
                return None
            return self._sending.begin(
                Send(group_id, caller.user_id, body.mls_message, body.self_destruct_seconds, body.send_id)
            )
        query = GetMessagesQuery.quick(asked.query)
        if not isinstance(query, GetMessages):
            return None
        share = self._budget.share()
        page = self._fetching.at_hand(group_id, caller.user_id, query.after, query.limit, asked.head.answered_in, share)
        parts = None if page is None else pages.in_one_go(asked.head.answered_in, page)
        if parts is None:
            share.close()
            return None
        return _Page(parts, share)

    def _answer_page(self, asked: Asked, answer: Answer, page: _Page) -> None:
        request_id = new_request_id()
        self._pipeline.note_answered(hdrs.METH_GET, self._route, HTTPStatus.OK.value, asked.began, request_id)
        answer(ready.written(asked.head.answered_in, request_id, page.parts, self._clock), page.share)

    def _sent(self, asked: Asked, answer: Answer, sent: "asyncio.Future[int]") -> None:
        written_in, request_id, status = asked.head.answered_in, new_request_id(), HTTPStatus.OK.value
        try:
            parts = ready.written(written_in, request_id, [write_number(written_in, sent.result())], self._clock)
        except Exception as error:  # noqa: BLE001 - after any error the client gets an answer
            with structlog.contextvars.bound_contextvars(request_id=request_id):
                told = self._pipeline.as_api_error(error, hdrs.METH_POST, self._route)
            status = told.status
            answered = answer_error(written_in, ready.headers_of(request_id), told)
            parts = [ready.written_response(answered, self._clock)]
        self._pipeline.note_answered(hdrs.METH_POST, self._route, status, asked.began, request_id)
        answer(parts, None)


def _text(fields: Mapping[bytes, bytes], name: bytes) -> str:
    """Return a header's text, as aiohttp decodes it; "" if there is none."""
    return fields.get(name, b"").decode("utf-8", "surrogateescape")
