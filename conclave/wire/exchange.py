"""Reads requests into the values that handlers work with, and writes their responses.

``Endpoint`` is the one description of an endpoint: path, callers, messages, errors. Requests are read by its schemas,
responses are written by them, and the OpenAPI document is made from them.

The body of a request has at most 1 MiB, also unpacked, and two minutes. A larger one is answered 413.
"""

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import repeat
from typing import Any, TypeVar

from aiohttp import web
from aiohttp.typedefs import Handler
from aiohttp.web_request import BaseRequest
from marshmallow import ValidationError
from marshmallow.exceptions import SCHEMA

from conclave.errors import (
    ApiError,
    BadRequestError,
    BodyTooLargeError,
    InvalidValueError,
    NotFoundError,
    UnknownEncodingError,
    UnsupportedMediaTypeError,
)
from conclave.wire import formats, page_writer, protobuf
from conclave.wire.fields import NAME_RULE, breaks_constraint, parse_id
from conclave.wire.formats import Format, body_format, response_format
from conclave.wire.response_head import response_headers
from conclave.wire.results import WireMessage
from conclave.wire.schemas.base import MAX_FAULTS, MORE, QuerySchema, RequestSchema, schema_instance, schema_of

MAX_BODY_BYTES = 1_048_576
"""At most 1 MiB in the body of a request, also once it is unpacked."""

BODY_SECONDS = 120.0
"""A body may take 2 minutes, the largest one at 9 KiB/s. It is in memory meanwhile."""

MAX_MEMBERS = 64
"""A gzip body may have at most 64 members (RFC 1952 section 2.2), each of which costs a look at all that follows it."""

_GZIP = b"\x1f\x8b"
"""How a gzip member begins."""

_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS


async def receive(request: web.Request, *, needs_type: bool) -> bytes:
    """Return the whole body, unpacked. Raises UnsupportedMediaTypeError, BadRequestError or BodyTooLargeError.

    ``needs_type``: the request does not say in which format a body is, so it may have none.
    """
    try:
        if request.content.is_eof():  # all of it is there, as most often: without a wait no watch is needed
            return await _whole(request, needs_type=needs_type)
        async with asyncio.timeout(BODY_SECONDS):
            return await _whole(request, needs_type=needs_type)
    except TimeoutError as error:
        raise BadRequestError(f"the body has not arrived within {BODY_SECONDS:g} seconds") from error
    except web.RequestPayloadError as error:
        raise BadRequestError("the body cannot be read") from error


async def _whole(request: web.Request, *, needs_type: bool) -> bytes:
    if needs_type and await _has_body(request):
        raise UnsupportedMediaTypeError
    if (request.content_length or 0) > MAX_BODY_BYTES:
        raise BodyTooLargeError
    body = request.content.read_nowait() if request.content.is_eof() else await _read(request)
    if len(body) > MAX_BODY_BYTES:
        raise BodyTooLargeError
    return unpack(body, _encodings(request))


async def _read(request: web.Request) -> bytes:
    """Read the whole body as it was sent. Raises BodyTooLargeError.

    It reads in smaller pieces than aiohttp does, which takes four times as many tiny chunks at once. And it leaves
    nothing behind when the connection breaks: aiohttp's error and what was read so far refer to each other. A hundred
    such bodies would be in memory until Python's garbage collection.
    """
    body = bytearray()
    try:
        while chunk := await request.content.readany():
            body += chunk
            del chunk
            if len(body) > MAX_BODY_BYTES:
                raise BodyTooLargeError
        return bytes(body)
    finally:
        body.clear()


async def _has_body(request: web.Request) -> bool:
    """Tell whether there is a body. If it is sent in chunks, wait until it begins."""
    return bool(request.content_length) or bool(await request.content.read(1))


def _encodings(request: web.Request) -> list[str]:
    """Return the content codings of all headers, in the order in which they were applied."""
    named = ",".join(request.headers.getall("Content-Encoding", ())).lower().split(",")
    return [each for part in named if (each := part.strip()) not in ("", "identity")]


def unpack(body: bytes, encodings: Sequence[str]) -> bytes:
    """Return what ``body`` was before it was compressed. aiohttp would go on unpacking what is never read.

    ``encodings``: content codings; gzip and deflate are known, and at most one may be there. An empty body stays empty.
    Raises UnknownEncodingError, BadRequestError or BodyTooLargeError.
    """
    if not encodings:
        return body
    # One alone: each more would take as much time again, and a head has room for thousands.
    if len(encodings) > 1 or encodings[0] not in ("gzip", "x-gzip", "deflate"):
        raise UnknownEncodingError
    try:
        unpacked, members = bytearray(), 0
        while body:
            members += 1
            if members > MAX_MEMBERS or (members > 1 and not body.startswith(_GZIP)):
                raise BadRequestError(f"the body is not {encodings[0]}, or in more than {MAX_MEMBERS} pieces")
            unpacking = zlib.decompressobj(_GZIP_OR_ZLIB)
            unpacked += unpacking.decompress(body, MAX_BODY_BYTES + 1 - len(unpacked))
            if len(unpacked) > MAX_BODY_BYTES:
                raise BodyTooLargeError
            if not unpacking.eof:
                raise BadRequestError(f"the body is not {encodings[0]}, or not all of it")
            body = unpacking.unused_data
    except zlib.error as error:
        raise BadRequestError(f"the body is not {encodings[0]}") from error
    return bytes(unpacked)


class Access(Enum):
    """Who may call, as the protocol writes it."""

    ANYBODY = "-"
    USER = "A"
    MEMBER = "M"
    ADMIN = "G"
    INVITEE = "I"


@dataclass(frozen=True)
class Endpoint:
    """An endpoint.

    ``body`` and ``query``: what the request holds. ``answer``: the message of a success; None if a success has no body,
    or one of another kind. ``refuses``: the errors that depend on more than the token, the ids in the path, the form of
    the body and the role. ``head``: whether a HEAD is answered, as a GET without its body. ``format``: the format of
    every answer, without negotiation; None where negotiation decides. ``media_type``: that of a success which is no
    message; None if it is a message or has no body.
    """

    method: str
    path: str
    handler: Handler
    who: Access = Access.USER
    body: type[RequestSchema] | None = None
    query: type[QuerySchema] | None = None
    answer: type[WireMessage] | None = None
    status: int = 200
    refuses: tuple[type[ApiError], ...] = ()
    head: bool = True
    format: Format | None = None
    media_type: str | None = None

    @property
    def public(self) -> bool:
        """Whether it needs no token."""
        return self.who is Access.ANYBODY


ENDPOINT = web.RequestKey("endpoint", Endpoint)
"""The endpoint that a request is for; absent where there is none."""


MAX_SHOWN_CHARS = 64
"""An answer repeats at most 64 characters of a field's name. An unknown name may have a million."""

MAX_FORMAT_CHARS = 2_048
"""At most 2,048 characters of ``Accept`` and ``Content-Type`` are looked at. aiohttp lets through a million."""

MAX_NUMBER = 2**63 - 1
"""No message has a greater number."""

V = TypeVar("V")

FORMAT = web.RequestKey("format", Format)
"""The format in which the request is answered."""

RecheckSession = Callable[[], Awaitable[object]]

RECHECK_SESSION: web.RequestKey[RecheckSession] = web.RequestKey("still_calling")
"""Raises what authentication raises, if the caller's session is over by now: for what has waited since."""

BODY_PENDING = web.RequestKey("comes_later", bool)
"""Whether the body was not there yet when the caller was authenticated."""


def choose_format(request: web.Request, token: str | None) -> None:
    """Decide in which format ``request`` is answered.

    Call it before anything that may fail, since errors have this format too.
    """
    endpoint = request.get(ENDPOINT)
    accept, content_type = ",".join(request.headers.getall("Accept", ())), request.headers.get("Content-Type", "")
    request[FORMAT] = (endpoint.format if endpoint else None) or negotiate_format(accept, content_type, token)


def negotiate_format(accept: str, content_type: str, token: str | None) -> Format:
    """Return the format that the values of ``Accept`` and ``Content-Type``, and the token, ask for."""
    return response_format(accept[:MAX_FORMAT_CHARS], content_type[:MAX_FORMAT_CHARS], token[-1:] if token else "")


async def read_body(request: web.Request, kind: type[V]) -> V:
    """Read a request's body and return what it says, validated. An empty body of any type is an empty message.

    ``kind``: the class that the schema of the endpoint's bodies makes.

    Raises UnsupportedMediaTypeError, BodyTooLargeError, BadRequestError or InvalidValueError; and TokenExpiredError if
    the session has ended while the body was on its way: a client that holds it back must not act for an ended session.
    """
    schema = request[ENDPOINT].body
    assert schema  # noqa: S101 - a handler that reads a body is of an endpoint that has one
    written_in = request_format(request.headers.get("Content-Type", ""))
    body = await receive(request, needs_type=written_in is None)
    if request.get(BODY_PENDING):
        await request[RECHECK_SESSION]()
    text = written_in or request[FORMAT]
    quick = schema.quick(text, body) if schema.quick else None
    if isinstance(quick, kind):
        return quick
    if text is Format.PROTOBUF:
        return _load(schema, kind, protobuf.parse(schema.__name__, body, schema.keep_empty, drop_zero=schema.drop_zero))
    return _load(schema, kind, formats.parse(body) if body else {})


def path_name(request: web.Request, name: str) -> str:
    """Return the user's or group's name at ``name`` in the path. Raises NotFoundError for a name that cannot be."""
    try:
        return str(NAME_RULE(request.match_info[name]))
    except ValidationError as error:
        raise NotFoundError from error


def path_id(request: web.Request, name: str) -> bytes:
    """Return the id at ``name`` in the path. Raises InvalidValueError."""
    try:
        return parse_id(request.match_info[name])
    except ValueError as error:
        raise _invalid(name, str(error)) from error


def path_number(request: web.Request, name: str) -> int:
    """Return the number of a message at ``name`` in the path. Raises InvalidValueError."""
    text = request.match_info[name]
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(MAX_NUMBER))):
        raise _invalid(name, "must be the number of a message")
    number = int(text)
    if not 1 <= number <= MAX_NUMBER:
        raise _invalid(name, "must be the number of a message")
    return number


def request_format(content_type: str) -> Format | None:
    """Return the format in which a body with this ``Content-Type`` is written; None if it does not say."""
    return body_format(content_type[:MAX_FORMAT_CHARS])


def read_query(request: web.Request, kind: type[V]) -> V:
    """Return what the query string says, validated. If a name is repeated, the first value counts.

    ``kind``: the class that the schema of the endpoint's queries makes. Raises InvalidValueError.
    """
    schema = request[ENDPOINT].query
    assert schema  # noqa: S101 - as in read_body
    quick = schema.quick(request.rel_url.raw_query_string) if schema.quick else None
    if isinstance(quick, kind):
        return quick
    return _load(
        schema, kind, {name: request.query[name] for name in schema_instance(schema).fields if name in request.query}
    )


def reply(request: web.Request, value: Any) -> web.Response:
    """Write ``value`` as the response message of the endpoint."""
    endpoint = request[ENDPOINT]
    assert endpoint.answer  # noqa: S101 - as in read_body
    values = schema_of(endpoint.answer).dump(value)
    return _respond(request[FORMAT], endpoint.answer.wire, values, endpoint.status, response_headers(request))


def reply_page(request: web.Request, pieces: list[bytes]) -> web.Response:
    """Answer with the page that consists of ``pieces``, which ``page_writer`` has written."""
    return reply_written(request, page_writer.page_parts(request[FORMAT], pieces))


def reply_written(request: web.Request, parts: list[bytes]) -> web.Response:
    """Answer with a body that is written already, in the format of the request's answers."""
    return web.Response(body=b"".join(parts), content_type=request[FORMAT].value, headers=response_headers(request))


def reply_empty(request: web.Request) -> web.Response:
    """Write a response that has nothing to tell: a message without fields, or no body at all."""
    if request[ENDPOINT].answer is None:
        return web.Response(status=204)
    return reply(request, {})


def reply_error(request: BaseRequest, error: ApiError) -> web.Response:
    """Write an error response to a request."""
    return error_response(request[FORMAT], response_headers(request), error)


def error_response(answer: Format, headers: Mapping[str, str], error: ApiError) -> web.Response:
    """Write an error response. JSON tells more: the code's name, and the fields at fault."""
    values: dict[str, Any] = {"message": error.message, "error_code": int(error.code)}
    if answer is Format.JSON:
        values |= {"error": error.code.name.lower(), "errors": error.fields}
    return _respond(answer, "ErrorResponse", values, error.status, {**headers, **(error.headers or {})})


def write(answer: Format, message: str, values: Mapping[str, Any]) -> bytes:
    """Write ``values`` as the message called ``message``."""
    return protobuf.write(message, values) if answer is Format.PROTOBUF else formats.write(values)


def _load(schema: type[RequestSchema | QuerySchema], kind: type[V], values: Mapping[str, Any]) -> V:
    try:
        loaded = schema_instance(schema).load(values)
    except ValidationError as error:
        raise _field_errors(error.messages_dict) from error
    assert isinstance(loaded, kind)  # noqa: S101 - a handler names what the schema of its endpoint makes
    return loaded


def _field_errors(messages: Mapping[Any, Any]) -> ApiError:
    found = list(_by_field(messages))
    is_broken = any(breaks_constraint(text) for _, texts in found for text in texts)
    named = {_shown(name): texts for name, texts in found[:MAX_FAULTS]}
    parts = [f"{name}: {' '.join(texts)}" for name, texts in named.items()]
    if len(found) > MAX_FAULTS:
        parts.append(f"and {len(found) - MAX_FAULTS} more")
    return (BadRequestError if is_broken else InvalidValueError)("; ".join(parts), fields=named)


def _shown(name: str) -> str:
    return name if len(name) <= MAX_SHOWN_CHARS else f"{name[:MAX_SHOWN_CHARS]}\N{HORIZONTAL ELLIPSIS}"


def _by_field(messages: Mapping[Any, Any], path: str = "") -> Iterator[tuple[str, list[str]]]:
    """Yield each field at fault with its messages. A field inside another is called ``entries.0.data``."""
    for name, found in messages.items():
        if name is MORE:
            yield from repeat((path, []), found)
        elif name == SCHEMA:  # the value at ``path`` is no message at all
            yield path.removesuffix("."), found
        elif isinstance(found, Mapping):
            yield from _by_field(found, f"{path}{name}.")
        else:
            yield f"{path}{name}", found


def _invalid(name: str, text: str) -> InvalidValueError:
    return InvalidValueError(f"{name}: {text}", fields={name: [text]})


def _respond(
    answer: Format, message: str, values: Mapping[str, Any], status: int, headers: Mapping[str, str]
) -> web.Response:
    return web.Response(body=write(answer, message, values), status=status, content_type=answer.value, headers=headers)
