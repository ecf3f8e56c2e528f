"""Answers the busiest requests, sending and fetching messages, without aiohttp.

A poll asks whether a group has something new, and nearly always it has not; a page that somebody has read is read by
others too; a message differs from the one before in its body. To make the task and the objects that aiohttp has for
each takes longer than to answer it.

What is plain (``framing.py``) and asks for a page or for one write is answered here, by the actions
that the handlers call. Everything else is left to the handlers: they find what is wrong, and say it.

What headers say is remembered: a client's are the same each time, but for the length of what it sends, and for what a
proxy puts into each request. To read them takes a tenth of a send, and a fifth of a poll.
"""

import asyncio
import hashlib
import re
import time
from collections import OrderedDict
from collections.abc import Coroutine, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any, NamedTuple, Protocol

import structlog
from aiohttp import hdrs, web

from conclave import app_keys
from conclave.actions.messages import Send
from conclave.api import messages
from conclave.auth import tokens
from conclave.cache.groups import Fetched
from conclave.errors import ApiError
from conclave.server import framing
from conclave.server.framing import Head
from conclave.server.middleware import PIPELINE, new_request_id
from conclave.wire import page_writer, ready
from conclave.wire.exchange import answer_error, asked_format, sent_format
from conclave.wire.fields import parse_id
from conclave.wire.negotiate import Format
from conclave.wire.schemas.messages import GetMessages, GetMessagesQuery, SendMessage, SendMessageRequest, write_number

MOST_HEADS = 20_000
"""What 20,000 heads say is remembered, in about 8 MB. The one that was used longest ago is forgotten first."""

_VARYING = (
    rb"\r\n(?!(?i:%b:))(?:[Cc]ontent-[Ll]ength: (?P<length>[1-9][0-9]{0,6})"
    rb"|(?:(?:[Xx]|[Cc][Ff])-[A-Za-z0-9-]+|[Tt]race(?:parent|state)|[Bb]aggage): (?P<id>[ -~]*))(?=\r\n)"
)
"""What may differ in a head that says the same: the body's length, and the values of headers that mean nothing here.

Proxies put an id of their own into each request. %b is the header with the token, which means something.
"""


class Line(Protocol):
    """The connection of a request."""

    account: bytes | None
    """Whose the last authenticated request was."""

    def answer(self, parts: list[bytes]) -> None:
        """Write an answer, head and all, and go on once the client has it."""

    async def hand_over(self, parts: list[bytes], *, counts: bool) -> bool:
        """Write an answer, and tell whether the client has it, if that counts. The parts are let go of."""

    def go_on(self) -> None:
        """Go on, after ``hand_over``."""

    def known_as(self, account: bytes) -> None:
        """Note that a request on it was authenticated."""


class _Page(NamedTuple):
    """A page, and its parts."""

    found: Fetched
    parts: list[bytes]


class _Unread(NamedTuple):
    """A page that is not remembered: of which group, for whom, and which."""

    group_id: bytes
    user_id: bytes
    query: GetMessages


class Said(NamedTuple):
    """What the headers of a plain request say besides the length of its body.

    ``origin``: of the web page that asks; b"" if it is none.
    """

    token_hash: bytes
    answered_in: Format
    written_in: Format
    origin: bytes


class Asked(NamedTuple):
    """What a plain request's head asks for. ``query``: None for a send. ``began``: by ``time.monotonic``.

    ``length``: the bytes of its body. ``key``: by which to remember ``said``; b"" if it is, or is not to be.
    """

    length: int
    group: str
    query: str | None
    said: Said
    began: float
    key: bytes = b""


class Busiest:
    """Answers plain requests for messages. Only for the event loop's thread."""

    def __init__(self, app: web.Application) -> None:
        """``app``: its resources are there."""
        self._auth_header = app[app_keys.CONFIG].auth_header
        self._auth_field = self._auth_header.lower().encode("ascii")
        self._varying = re.compile(_VARYING % re.escape(self._auth_field))
        self._pipeline = app[PIPELINE]
        self._clock = app[app_keys.CLOCK]
        self._cross_origin = app[app_keys.CROSS_ORIGIN]
        self._fetching = app[app_keys.FETCHING]
        self._sending = app[app_keys.SENDING]
        self.budget = app[app_keys.BUDGET]
        self._known: OrderedDict[bytes, Said] = OrderedDict()
        """By the hashes of heads: there are tokens in them. Only of sessions that are known: others cost no memory."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._reading: set[asyncio.Task[None]] = set()
        self._route = app[app_keys.ENDPOINTS][messages.fetch].path

    def read_head(self, head: bytes) -> Head | Asked:
        """Return what a head asks for if it is plain, else where its request ends. Raises MalformedError."""
        line = framing.messages_line(head)
        if not line:
            return framing.measure(head)
        key, length = self._key(head, line)
        said = self._known.get(key)
        if said:
            self._known.move_to_end(key)
            key = b""
        else:
            found = framing.read(head)
            said = self._said(found.fields, line[1]) if framing.is_plain(line, found) else None
            if not said:
                return found
            length = found.length or 0
        query = None if line[1] == framing.SEND else (line[3] or b"").decode()
        return Asked(length, line[2].decode(), query, said, time.monotonic(), key)

    def remember(self, asked: Asked) -> None:
        """Have the head of a request say next time what it said, without being parsed."""
        if asked.key:
            self._known[asked.key] = asked.said
            if len(self._known) > MOST_HEADS:
                self._known.popitem(last=False)

    def _key(self, head: bytes, line: re.Match[bytes]) -> tuple[bytes, int]:
        """Return the hash of a head's method and headers without what varies in them, and the length of the body.

        b"": it is not remembered. Of what varies only values are left out. In a plain head each name is there once. So
        where all else is alike, values of the same headers are left out, and what stays says the same.
        """
        is_send, length, at, parts = line[1] == framing.SEND, 0, line.end(), [line[1]]
        for found in self._varying.finditer(head, at - len(b"\r\n")):
            which = found.lastgroup or ""
            parts.append(head[at : found.start(which)])
            at = found.end(which)
            if which == "length":
                length = int(found[which])
        if is_send and (line[3] is not None or not length):
            return b"", 0
        parts.append(head[at:])
        return hashlib.blake2b(b"".join(parts), digest_size=32).digest(), length

    def _said(self, fields: Mapping[bytes, bytes], method: bytes) -> Said | None:
        """Return what plain headers say. None: a handler has to see them."""
        token = tokens.token_in(_text(fields, self._auth_field), self._auth_header)
        content_type = _text(fields, b"content-type")
        written_in = sent_format(content_type)
        if not token or (method == framing.SEND and not written_in):
            return None
        answered_in = asked_format(_text(fields, b"accept"), content_type, token)
        origin = fields.get(b"origin", b"")
        return Said(tokens.token_hash(token), answered_in, written_in or answered_in, origin)

    def take(self, asked: Asked, body: bytes, line: Line) -> bool:
        """Answer a request, now or once it is done. Return False if it is for a handler: then nothing was done.

        Call it from the event loop, not while bytes are received: what is looked up then is right for all requests that
        have arrived in the same pass.
        """
        try:
            begun = self._begin(asked, body, line)
        except Exception:  # noqa: BLE001 - whatever it is, a handler finds the same, and says it
            return False
        if isinstance(begun, _Page):
            self._answer_page(asked, line, begun, new_request_id())
        elif isinstance(begun, _Unread):
            _keep(self._reading, self._read(asked, line, begun))
        elif begun is not None:
            begun.add_done_callback(partial(self._sent, asked, line))
        return begun is not None

    def give_up(self) -> None:
        """Read no page any more: the server stops."""
        for task in self._reading:
            task.cancel()

    async def finish(self, seconds: float) -> None:
        """Wait until it is noted who has which page, for ``seconds`` at most. What is read is not waited for."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)

    def _begin(self, asked: Asked, body: bytes, line: Line) -> "asyncio.Future[int] | _Page | _Unread | None":
        """Begin to send a message, of which the number follows, or find a page. None: the request is for a handler.

        If it raises, nothing was begun.
        """
        caller = self._pipeline.known_caller(asked.said.token_hash)
        if not caller:
            return None
        if line.account != caller.user_id:
            line.known_as(caller.user_id)
        self.remember(asked)
        group_id = parse_id(asked.group)
        if asked.query is None:
            sent = SendMessageRequest.quick(asked.said.written_in, body)
            if not isinstance(sent, SendMessage):
                return None
            return self._sending.begin(
                Send(group_id, caller.user_id, sent.mls_message, sent.self_destruct_seconds, sent.send_id)
            )
        query = GetMessagesQuery.quick(asked.query)
        if not isinstance(query, GetMessages):
            return None
        written_in = asked.said.answered_in
        asks_for = group_id, caller.user_id, query.after, query.limit, written_in
        found = self._fetching.at_hand(*asks_for, next_confirms=query.next_confirms)
        if not found:
            return _Unread(group_id, caller.user_id, query)
        return _Page(found, page_writer.whole(written_in, found.pieces))

    async def _read(self, asked: Asked, line: Line, unread: _Unread) -> None:
        """Answer with a page that is not remembered."""
        request_id, page = new_request_id(), None
        group_id, user_id, query = unread
        try:
            # For this alone: what follows on the connection begins in this task, and has the context of it.
            with structlog.contextvars.bound_contextvars(request_id=request_id):
                found = await self._fetching.read(
                    *(group_id, user_id, query.after, query.limit, asked.said.answered_in),
                    include_redacted=query.include_redacted,
                    next_confirms=query.next_confirms,
                )
            parts = page_writer.whole(asked.said.answered_in, found.pieces)
            page = _Page(found._replace(pieces=[]), parts)  # joined to JSON, they would be there twice
        except Exception as error:  # noqa: BLE001 - after any error the client gets an answer
            self._refuse(asked, line, error, request_id)
        if page:
            self._answer_page(asked, line, page, request_id)

    def _answer_page(self, asked: Asked, line: Line, page: _Page, request_id: str) -> None:
        more = self._cross_origin.lines(asked.said.origin)
        parts = ready.written(asked.said.answered_in, request_id, page.parts, self._clock, more)
        if page.found.is_news:
            found = page.found._replace(pieces=[])
            _keep(self._tasks, self._hand_over(asked, line, _Page(found, parts), request_id))
            return
        self._note(asked, int(HTTPStatus.OK), request_id)
        line.answer(parts)

    async def _hand_over(self, asked: Asked, line: Line, page: _Page, request_id: str) -> None:
        """Answer with a page that its reader did not have. As in the handler, the response leaves first."""
        status = int(HTTPStatus.OK)
        try:
            has_arrived = await line.hand_over(page.parts, counts=page.found.counts_on_arrival)
            await self._fetching.confirm(page.found, has_arrived=has_arrived)
        except Exception as error:  # noqa: BLE001 - the client has its answer
            status = self._told(asked, error, request_id).status
        self._note(asked, status, request_id)
        line.go_on()

    def _sent(self, asked: Asked, line: Line, sent: "asyncio.Future[int]") -> None:
        request_id = new_request_id()
        try:
            written_in, more = asked.said.answered_in, self._cross_origin.lines(asked.said.origin)
            parts = [write_number(written_in, sent.result())]
            parts = ready.written(written_in, request_id, parts, self._clock, more)
        except Exception as error:  # noqa: BLE001 - after any error the client gets an answer
            self._refuse(asked, line, error, request_id)
        else:
            self._note(asked, int(HTTPStatus.OK), request_id)
            line.answer(parts)

    def _refuse(self, asked: Asked, line: Line, error: Exception, request_id: str) -> None:
        told = self._told(asked, error, request_id)
        answered = answer_error(asked.said.answered_in, ready.headers_of(request_id), told)
        self._note(asked, told.status, request_id)
        more = self._cross_origin.lines(asked.said.origin)
        line.answer([ready.written_response(answered, self._clock, more)])

    def _told(self, asked: Asked, error: Exception, request_id: str) -> ApiError:
        with structlog.contextvars.bound_contextvars(request_id=request_id):
            return self._pipeline.as_api_error(error, _method(asked), self._route)

    def _note(self, asked: Asked, status: int, request_id: str) -> None:
        self._pipeline.note_answered(_method(asked), self._route, status, asked.began, request_id)


def _keep(tasks: set[asyncio.Task[None]], steps: Coroutine[Any, Any, None]) -> None:
    """Begin a task, and keep it until it is done: the event loop does not."""
    task = asyncio.create_task(steps)
    tasks.add(task)
    task.add_done_callback(tasks.discard)


def _method(asked: Asked) -> str:
    return hdrs.METH_POST if asked.query is None else hdrs.METH_GET


def _text(fields: Mapping[bytes, bytes], name: bytes) -> str:
    """Return a header's text, as aiohttp decodes it; "" if there is none."""
    return fields.get(name, b"").decode("utf-8", "surrogateescape")
