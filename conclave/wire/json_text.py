"""Between JSON and the values that schemas load and dump."""

import base64
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import orjson

from conclave.errors import BadRequestError
from conclave.wire.fields import Id


def parse(body: bytes) -> dict[str, Any]:
    """Return the values of a JSON object. Raises BadRequestError."""
    try:
        values = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequestError(f"the body is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise BadRequestError("the body must be a JSON object")
    return values


def write(values: Mapping[str, Any]) -> bytes:
    """Write ``values`` as a JSON object: ids as UUIDs, an empty one as "", other bytes as standard base64."""
    return orjson.dumps(values, default=_text)


def _text(value: Any) -> str | UUID:
    if isinstance(value, Id):
        return UUID(bytes=value) if value else ""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"JSON has no {type(value).__name__}")
