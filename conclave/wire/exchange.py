"""Between HTTP and the values that handlers work with: reads requests, writes responses."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from aiohttp import web
from marshmallow import ValidationError

from conclave.errors import (
    ApiError,
    BadRequestError,
    BodyTooLargeError,
    InvalidValueError,
    UnsupportedMediaTypeError,
)
from conclave.wire.fields import REQUIRED, parse_id
from conclave.wire.schemas.base import Empty, QuerySchema, RequestSchema, ResponseSchema

MAX_BODY_BYTES = 1_048_576
JSON = "application/json"


async def read_body(request: web.Request, schema: type[RequestSchema]) -> dict[str, Any]:
    """Read a request's body and return its validated values. An absent body is an empty message.

    Raises UnsupportedMediaTypeError, BodyTooLargeError, BadRequestError or InvalidValueError.
    """
    if not request.can_read_body:
        return _load(schema, {})
    if request.content_type != JSON:
        raise UnsupportedMediaTypeError
    if (request.content_length or 0) > MAX_BODY_BYTES:
        raise BodyTooLargeError
    try:
        body = await request.read()
    except web.RequestPayloadError as error:
        raise BadRequestError("the body cannot be read") from error
    return _load(schema, _parse(body))


def path_id(request: web.Request, name: str) -> bytes:
    """Return the id at ``name`` in the path. Raises InvalidValueError."""
    try:
        return parse_id(request.match_info[name])
    except ValueError as error:
        raise _invalid(name, str(error)) from error


def read_query(request: web.Request, schema: type[QuerySchema]) -> dict[str, Any]:
    """Return the validated values of the query string; the first counts where a name is repeated.

    Raises InvalidValueError.
    """
    return _load(schema, {name: request.query[name] for name in request.query})


def reply(schema: type[ResponseSchema], value: Any, *, status: int = 200) -> web.Response:
    """Write ``value`` as a response message."""
    return _json(schema().dump(value), status)


def reply_empty() -> web.Response:
    """Write a response message without fields."""
    return reply(Empty, {})


def reply_error(error: ApiError) -> web.Response:
    """Write an error response."""
    body = {
        "message": error.message,
        "error_code": int(error.code),
        "error": error.code.name.lower(),
        "errors": error.fields,
    }
    return _json(body, error.status, error.headers)


def _parse(body: bytes) -> Mapping[str, Any]:
    if not body:
        return {}
    try:
        values = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequestError(f"the body is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise BadRequestError("the body must be a JSON object")
    return values


def _load(schema: type[RequestSchema | QuerySchema], values: Mapping[str, Any]) -> dict[str, Any]:
    try:
        loaded: dict[str, Any] = schema().load(values)
    except ValidationError as error:
        raise _field_errors(error.messages_dict) from error
    return loaded


def _field_errors(messages: Mapping[str, Sequence[str]]) -> ApiError:
    missing = any(REQUIRED in found for found in messages.values())
    text = "; ".join(f"{name}: {' '.join(found)}" for name, found in messages.items())
    return (BadRequestError if missing else InvalidValueError)(text, fields=messages)


def _invalid(name: str, text: str) -> InvalidValueError:
    return InvalidValueError(f"{name}: {text}", fields={name: [text]})


def _json(body: Mapping[str, Any], status: int, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, content_type=JSON, headers=headers)
