"""Parses requests, and writes responses.

``Endpoint`` describes an endpoint: path, access, messages, errors. Its schemas parse requests and write responses, and
the OpenAPI document is generated from them.

A request body has at most 1 MiB, even after decompression, and has to arrive within two minutes.
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
from conclave.wire.schemas.base import (
    MAX_FIELD_ERRORS,
    MORE_ERRORS,
    QuerySchema,
    RequestSchema,
    schema_instance,
    schema_of,
)

MAX_BODY_BYTES = 1_048_576
"""The largest request body, before and after decompression."""

BODY_SECONDS = 120.0
"""The time limit of a body, since it is kept in memory. The largest one needs 9 KiB/s."""

MAX_GZIP_MEMBERS = 64
"""The most members of a gzip body (RFC 1952 section 2.2). Each costs a copy of the rest."""

_GZIP = b"\x1f\x8b"
"""The first bytes of a gzip member."""

_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS


async def receive(request: web.Request, *, needs_type: bool) -> bytes:
    """Return the decompressed body. Raises UnsupportedMediaTypeError, BadRequestError or BodyTooLargeError.

    ``needs_type``: the request has no supported Content-Type, so it must not have a body.
    """
    try:
        if request.content.is_eof():  # most bodies have arrived: no timeout needed
            return await _receive_all(request, needs_type=needs_type)
        async with asyncio.timeout(BODY_SECONDS):
            return await _receive_all(request, needs_type=needs_type)
    except TimeoutError as error:
        raise BadRequestError(f"the body has not arrived within {BODY_SECONDS:g} seconds") from error
    except web.RequestPayloadError as error:
        raise BadRequestError("the body cannot be read") from error


async def _receive_all(request: web.Request, *, needs_type: bool) -> bytes:
    if needs_type and await _has_body(request):
        raise UnsupportedMediaTypeError
    if (request.content_length or 0) > MAX_BODY_BYTES:
        raise BodyTooLargeError
    body = request.content.read_nowait() if request.content.is_eof() else await _read(request)
    if len(body) > MAX_BODY_BYTES:
        raise BodyTooLargeError
    return unpack(body, _encodings(request))


async def _read(request: web.Request) -> bytes:
    """Read the whole body without decompression. Raises BodyTooLargeError.

    It reads smaller pieces than aiohttp's ``read``, and frees them if the connection is lost: aiohttp's error and the
    bytes read so far form a reference cycle, which would stay in memory until garbage collection.
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
    """Return whether there is a body. If it is chunked, wait for its first byte."""
    return bool(request.content_length) or bool(await request.content.read(1))


def _encodings(request: web.Request) -> list[str]:
    """Return the content codings of all headers, in order of application."""
    names = ",".join(request.headers.getall("Content-Encoding", ())).lower().split(",")
    return [each for part in names if (each := part.strip()) not in ("", "identity")]


def unpack(body: bytes, encodings: Sequence[str]) -> bytes:
    """Decompress ``body``. aiohttp would decompress beyond the limit.

    ``encodings``: content codings; at most one, gzip or deflate. An empty body stays empty. Raises
    UnknownEncodingError, BadRequestError or BodyTooLargeError.
    """
    if not encodings:
        return body
    # Only one: a head has room for thousands, each of which would take as much time.
    if len(encodings) > 1 or encodings[0] not in ("gzip", "x-gzip", "deflate"):
        raise UnknownEncodingError
    try:
        result, members = bytearray(), 0
        while body:
            members += 1
            if members > MAX_GZIP_MEMBERS or (members > 1 and not body.startswith(_GZIP)):
                raise BadRequestError(f"the body is not {encodings[0]}, or in more than {MAX_GZIP_MEMBERS} pieces")
            decompressor = zlib.decompressobj(_GZIP_OR_ZLIB)
            result += decompressor.decompress(body, MAX_BODY_BYTES + 1 - len(result))
            if len(result) > MAX_BODY_BYTES:
                raise BodyTooLargeError
            if not decompressor.eof:
                raise BadRequestError(f"the body is not {encodings[0]}, or not all of it")
            body = decompressor.unused_data
    except zlib.error as error:
        raise BadRequestError(f"the body is not {encodings[0]}") from error
    return bytes(result)


class Access(Enum):
    """Who may call an endpoint, as docs/protocol.md abbreviates it."""

    ANYBODY = "-"
    USER = "A"
    MEMBER = "M"
    ADMIN = "G"
    INVITEE = "I"


@dataclass(frozen=True)
class Endpoint:
    """An endpoint.

    ``body`` and ``query``: the schemas of the request. ``answer``: the message of a success; None if it has no body, or
    another type. ``refuses``: errors besides those of the token, ids in the path, the body and the role. ``head``:
    whether HEAD is supported. ``format``: a fixed response format; None: negotiated. ``media_type``: the type of a
    success response that is not a message.
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
        """Whether it can be called without a token."""
        return self.who is Access.ANYBODY


ENDPOINT = web.RequestKey("endpoint", Endpoint)
"""The endpoint of a request; absent for unknown paths."""


MAX_SHOWN_CHARS = 64
"""Responses contain at most 64 characters of a field's name: an unknown name may have a million."""

MAX_FORMAT_CHARS = 2_048
"""At most 2,048 characters of ``Accept`` and ``Content-Type`` are parsed."""

MAX_NUMBER = 2**63 - 1
"""The greatest message number."""

V = TypeVar("V")

FORMAT = web.RequestKey("format", Format)
"""The format of the response."""

RecheckSession = Callable[[], Awaitable[object]]

RECHECK_SESSION: web.RequestKey[RecheckSession] = web.RequestKey("still_calling")
"""Authenticates the caller again, after a wait. Raises as authentication does."""

BODY_PENDING = web.RequestKey("comes_later", bool)
"""Whether the body was incomplete when the caller was authenticated."""


def choose_format(request: web.Request, token: str | None) -> None:
    """Choose the response format of ``request``.

    Call it before anything that may fail, since errors have this format too.
    """
    endpoint = request.get(ENDPOINT)
    accept, content_type = ",".join(request.headers.getall("Accept", ())), request.headers.get("Content-Type", "")
    request[FORMAT] = (endpoint.format if endpoint else None) or negotiate_format(accept, content_type, token)


def negotiate_format(accept: str, content_type: str, token: str | None) -> Format:
    """Return the response format by ``Accept``, ``Content-Type`` and the token."""
    return response_format(accept[:MAX_FORMAT_CHARS], content_type[:MAX_FORMAT_CHARS], token[-1:] if token else "")


async def read_body(request: web.Request, kind: type[V]) -> V:
    """Parse and validate a request's body. An empty body of any type is an empty message.

    ``kind``: the ``result_class`` of the endpoint's body schema.

    Raises UnsupportedMediaTypeError, BodyTooLargeError, BadRequestError, InvalidValueError, or TokenExpiredError if the
    session has ended while the body was arriving.
    """
    schema = request[ENDPOINT].body
    assert schema  # noqa: S101 - endpoints whose handlers read a body have one
    written_in = request_format(request.headers.get("Content-Type", ""))
    body = await receive(request, needs_type=written_in is None)
    if request.get(BODY_PENDING):
        await request[RECHECK_SESSION]()
    effective_format = written_in or request[FORMAT]
    parsed_body = schema.quick(effective_format, body) if schema.quick else None
    if isinstance(parsed_body, kind):
        return parsed_body
    if effective_format is Format.PROTOBUF:
        return _load(schema, kind, protobuf.parse(schema.__name__, body, schema.keep_empty, drop_zero=schema.drop_zero))
    return _load(schema, kind, formats.parse(body) if body else {})


def path_name(request: web.Request, name: str) -> str:
    """Return the user's or group's name at ``name`` in the path. Raises NotFoundError for an invalid one."""
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
    """Return the format of a body with this ``Content-Type``; None if unsupported or absent."""
    return body_format(content_type[:MAX_FORMAT_CHARS])


def read_query(request: web.Request, kind: type[V]) -> V:
    """Parse and validate the query string. If a name is repeated, the first value counts.

    ``kind``: the ``result_class`` of the endpoint's query schema. Raises InvalidValueError.
    """
    schema = request[ENDPOINT].query
    assert schema  # noqa: S101 - as in read_body
    parsed_query = schema.quick(request.rel_url.raw_query_string) if schema.quick else None
    if isinstance(parsed_query, kind):
        return parsed_query
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
    """Answer with a page of messages. ``pieces``: written by ``page_writer``."""
    return reply_written(request, page_writer.page_parts(request[FORMAT], pieces))


def reply_written(request: web.Request, parts: list[bytes]) -> web.Response:
    """Answer with a body that is already written in the format of the response."""
    return web.Response(body=b"".join(parts), content_type=request[FORMAT].value, headers=response_headers(request))


def reply_empty(request: web.Request) -> web.Response:
    """Write an empty response: a message without fields, or a 204."""
    if request[ENDPOINT].answer is None:
        return web.Response(status=204)
    return reply(request, {})


def reply_error(request: BaseRequest, error: ApiError) -> web.Response:
    """Write an error response to a request."""
    return error_response(request[FORMAT], response_headers(request), error)


def error_response(answer: Format, headers: Mapping[str, str], error: ApiError) -> web.Response:
    """Write an error response. In JSON it also has the code's name and the invalid fields."""
    values: dict[str, Any] = {"message": error.message, "error_code": int(error.code)}
    if answer is Format.JSON:
        values |= {"error": error.code.name.lower(), "errors": error.fields}
    return _respond(answer, "ErrorResponse", values, error.status, {**headers, **(error.headers or {})})


def write(answer: Format, message: str, values: Mapping[str, Any]) -> bytes:
    """Write ``values`` as the message ``message``."""
    return protobuf.write(message, values) if answer is Format.PROTOBUF else formats.write(values)


def _load(schema: type[RequestSchema | QuerySchema], kind: type[V], values: Mapping[str, Any]) -> V:
    try:
        result = schema_instance(schema).load(values)
    except ValidationError as error:
        raise _field_errors(error.messages_dict) from error
    assert isinstance(result, kind)  # noqa: S101 - handlers pass the class of their endpoint's schema
    return result


def _field_errors(messages: Mapping[Any, Any]) -> ApiError:
    field_errors = list(_by_field(messages))
    is_broken = any(breaks_constraint(text) for _, texts in field_errors for text in texts)
    shown_errors = {_truncated(name): texts for name, texts in field_errors[:MAX_FIELD_ERRORS]}
    parts = [f"{name}: {' '.join(texts)}" for name, texts in shown_errors.items()]
    if len(field_errors) > MAX_FIELD_ERRORS:
        parts.append(f"and {len(field_errors) - MAX_FIELD_ERRORS} more")
    return (BadRequestError if is_broken else InvalidValueError)("; ".join(parts), fields=shown_errors)


def _truncated(name: str) -> str:
    return name if len(name) <= MAX_SHOWN_CHARS else f"{name[:MAX_SHOWN_CHARS]}\N{HORIZONTAL ELLIPSIS}"


def _by_field(messages: Mapping[Any, Any], path: str = "") -> Iterator[tuple[str, list[str]]]:
    """Yield each invalid field with its errors. Nested fields are named like ``entries.0.data``."""
    for name, found in messages.items():
        if name is MORE_ERRORS:
            yield from repeat((path, []), found)
        elif name == SCHEMA:  # the value at ``path`` is not an object
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
