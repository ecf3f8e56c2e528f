"""Builds the OpenAPI document from the route table and the schemas."""

import inspect
import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import orjson
from apispec import APISpec
from marshmallow import fields, validate

from conclave import __version__, errors as e
from conclave.strict_fields import Text
from conclave.wire import conclave_pb2
from conclave.wire.events import EVENTS
from conclave.wire.exchange import Access, Endpoint
from conclave.wire.formats import Format
from conclave.wire.openapi import examples
from conclave.wire.openapi.json_schema import Plugin, docstring_text
from conclave.wire.results import WireMessage
from conclave.wire.schemas.base import ResponseSchema, schema_instance, schema_of

ABOUT = """A group messaging server for end-to-end encrypted clients.

{formats}
Clients should use the `error_code` of an error: `message` is for people and may change. Order of checks: token,
ids in the path, content type, body, membership and role, the rest.
"""

_ABOUT_FORMATS = {
    tuple(Format): "Every message can be written in JSON or in protobuf, with the same fields; `proto/conclave.proto` "
    "has their numbers.\nWith `?format=json` this document omits protobuf, for generators that do not support it.",
    (Format.JSON,): "Every message can be written in JSON, which is what this document shows. Do not send an `Accept` "
    "that names another\nformat: answers are JSON then, as the login was.",
}

_ANY_EVENT = "ServerEvent"

EVENT_REF = {"$ref": f"#/components/schemas/{_ANY_EVENT}"}
"""The schema of each event of a stream. OpenAPI 3.2 has ``itemSchema`` for it; in 3.1 it is an extension."""

_LAGGED = "lagged"
_LOST_COUNT = {"type": "integer", "minimum": 1}

_SECURITY = "token"

_NUMBERS = ("sequence_num",)
"""Path parameters that are message numbers."""

_BY_ROLE: dict[Access, tuple[type[e.ApiError], ...]] = {
    Access.MEMBER: (e.NotMemberError,),
    Access.ADMIN: (e.NotAdminError,),
    Access.INVITEE: (e.NotMemberError, e.NotFoundError),
}


class ErrorResponse(ResponseSchema):
    """The message of every error. Protobuf has `message` and `error_code` only."""

    message = Text(metadata={"description": "For people; may change."})
    error_code = fields.Integer(
        validate=validate.OneOf([code.value for code in e.ErrorCode]),
        metadata={"x-enum-varnames": [code.name for code in e.ErrorCode]},  # names of constants for generators
    )
    error = Text(validate=validate.OneOf([code.name.lower() for code in e.ErrorCode]))
    errors = fields.Dict(
        Text(),
        fields.List(Text()),
        metadata={"description": "The invalid fields of the request, each with its errors."},
    )


def document_json(endpoints: tuple[Endpoint, ...], auth_header: str, formats: tuple[Format, ...]) -> bytes:
    """Return the OpenAPI document as JSON. Parameters: see ``document``."""
    return orjson.dumps(document(endpoints, auth_header, formats))


def document(
    endpoints: Sequence[Endpoint], auth_header: str, formats: tuple[Format, ...] = tuple(Format)
) -> dict[str, Any]:
    """Return the OpenAPI document of the ``endpoints``, for tokens in the header ``auth_header``.

    ``formats``: the formats of bodies that it shows: all, or JSON alone, since many generators do not support protobuf.
    """
    spec = APISpec(
        "Conclave",
        __version__,
        "3.1.0",
        plugins=[Plugin()],
        info={"description": ABOUT.format(formats=_ABOUT_FORMATS[formats])},
        servers=[{"url": "/", "description": "this server"}],
    )
    spec.components.security_scheme(_SECURITY, _security(auth_header))
    for schema in (schema_instance(ErrorResponse), *map(schema_of, EVENTS.values())):
        spec.components.schema(type(schema).__name__, schema=schema)
    for name, event_schema in event_schemas().items():
        spec.components.schema(name, event_schema)
    for error in dict.fromkeys(error for endpoint in endpoints for error in errors_of(endpoint)):
        spec.components.example(_name(error), _example(error))
    for tag, module in {_tag(endpoint): inspect.getmodule(endpoint.handler) for endpoint in endpoints}.items():
        spec.tag({"name": tag, "description": docstring_text(module)})
    for endpoint in endpoints:
        spec.path(endpoint.path, operations={endpoint.method.lower(): _operation(endpoint, formats)})
    return spec.to_dict()


def errors_of(endpoint: Endpoint) -> list[type[e.ApiError]]:
    """Return all errors of an endpoint: the common ones, and those in ``refuses``."""
    errors: list[type[e.ApiError]] = []
    if not endpoint.public:
        errors += [e.AuthHeaderMissingError, e.AuthHeaderInvalidError, e.TokenExpiredError]
    if endpoint.query or any(_is_id(name) or name in _NUMBERS for name in _names_in(endpoint.path)):
        errors += [e.InvalidValueError]
    if endpoint.body:
        errors += [e.BadRequestError, e.InvalidValueError, e.BodyTooLargeError, e.UnsupportedMediaTypeError]
    errors += [*_BY_ROLE.get(endpoint.who, ()), *endpoint.refuses, e.ApiError, e.UnavailableError, e.StorageFullError]
    return list(dict.fromkeys(errors))


def _security(auth_header: str) -> dict[str, str]:
    if auth_header.lower() == "authorization":
        return {"type": "http", "scheme": "bearer", "description": "The token of a login."}
    return {"type": "apiKey", "in": "header", "name": auth_header, "description": "The token of a login, bare."}


def _operation(endpoint: Endpoint, formats: tuple[Format, ...]) -> dict[str, Any]:
    name = f"{_module(endpoint)}_{endpoint.handler.__name__}"
    summary, _, description = summary_of(endpoint).partition("\n\n")
    operation: dict[str, Any] = {
        "operationId": name,
        "summary": summary or name.replace("_", " ").capitalize(),
        "tags": [_tag(endpoint)],
        "security": [] if endpoint.public else [{_SECURITY: []}],
        "parameters": [_path_parameter(each) for each in _names_in(endpoint.path)],
        "responses": {str(endpoint.status): _success(endpoint, formats)} | _error_responses(endpoint, formats),
    }
    if description:
        operation["description"] = " ".join(description.split())
    if endpoint.query:
        operation["parameters"].append({"in": "query", "schema": schema_instance(endpoint.query)})
    if endpoint.body:
        schema = schema_instance(endpoint.body)
        operation["requestBody"] = {
            "description": docstring_text(endpoint.body),
            "required": any(field.required for field in schema.fields.values()),
            "content": _content(formats, endpoint.body.__name__, schema, {"example": examples.example(schema)}),
        }
    return operation


def summary_of(endpoint: Endpoint) -> str:
    """Return a handler's docstring without method and path."""
    return (inspect.getdoc(endpoint.handler) or "").partition(": ")[2]


def _module(endpoint: Endpoint) -> str:
    return endpoint.handler.__module__.rpartition(".")[2]


def _tag(endpoint: Endpoint) -> str:
    return _module(endpoint).replace("_", " ")


def _names_in(path: str) -> list[str]:
    return re.findall(r"\{(\w+)\}", path)


def _is_id(name: str) -> bool:
    return name == "id" or name.endswith("_id")


def _path_parameter(name: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string", "minLength": 1}
    if _is_id(name):
        schema = {"type": "string", "format": "uuid"}
    elif name in _NUMBERS:
        schema = {"type": "integer", "format": "int64", "minimum": 1}
    return {"in": "path", "name": name, "required": True, "schema": schema, "example": examples.example_of(name)}


def _success(endpoint: Endpoint, formats: tuple[Format, ...]) -> dict[str, Any]:
    if endpoint.media_type:
        content: dict[str, Any] = {
            "schema": {"type": "object" if endpoint.media_type == Format.JSON.value else "string"}
        }
        if endpoint.media_type == "text/event-stream":
            content |= {
                "example": "".join(_event(name, kind) for name, kind in EVENTS.items()),
                "x-itemSchema": EVENT_REF,
            }
        return {"description": HTTPStatus(endpoint.status).phrase, "content": {endpoint.media_type: content}}
    if endpoint.answer is None:
        return {"description": "Done. The response has no body."}
    schema = schema_of(endpoint.answer)
    return {
        "description": docstring_text(endpoint.answer),
        "content": _content(
            (endpoint.format,) if endpoint.format else formats,
            endpoint.answer.wire,
            schema,
            {"example": examples.example(schema)},
        ),
    }


def _event(name: str, kind: type[WireMessage]) -> str:
    return f"event: {name}\ndata: {orjson.dumps(examples.example(schema_of(kind))).decode()}\n\n"


def _error_responses(endpoint: Endpoint, formats: tuple[Format, ...]) -> dict[str, Any]:
    """Return the responses of errors by their HTTP status; one status may have several codes."""
    by_status: dict[int, list[type[e.ApiError]]] = {}
    for error in sorted(errors_of(endpoint), key=lambda each: each.code):
        by_status.setdefault(error.status, []).append(error)
    return {str(status): _error_response(endpoint, by_status[status], formats) for status in sorted(by_status)}


def _error_response(
    endpoint: Endpoint, kinds: Sequence[type[e.ApiError]], formats: tuple[Format, ...]
) -> dict[str, Any]:
    example_references = {_name(kind): {"$ref": f"#/components/examples/{_name(kind)}"} for kind in kinds}
    lines = [f"- {kind.code} `{kind.code.name.lower()}`: {_error_text(kind)}" for kind in kinds]
    answer: dict[str, Any] = {
        "description": "\n".join([HTTPStatus(kinds[0].status).phrase, "", *lines]),
        "content": _content(
            (endpoint.format,) if endpoint.format else formats,
            "ErrorResponse",
            schema_instance(ErrorResponse),
            {"examples": example_references},
        ),
    }
    if any(issubclass(kind, (e.TooManyRequestsError, e.UnavailableError)) for kind in kinds):
        seconds = {"type": "integer", "minimum": 1}
        answer["headers"] = {"Retry-After": {"description": "How many seconds to wait.", "schema": seconds}}
    return answer


def _name(kind: type[e.ApiError]) -> str:
    return "Failure" if kind is e.ApiError else kind.__name__.removesuffix("Error")


def _error_text(kind: type[e.ApiError]) -> str:
    return "An internal error. The server's log has the details." if kind is e.ApiError else docstring_text(kind)


def _example(kind: type[e.ApiError]) -> dict[str, Any]:
    name = kind.code.name.lower()
    value = {"message": kind.text, "error_code": int(kind.code), "error": name, "errors": {}}
    return {"summary": f"{kind.code} {name}", "value": value}


def _content(formats: Sequence[Format], message: str, schema: Any, example_fields: dict[str, Any]) -> dict[str, Any]:
    package = conclave_pb2.DESCRIPTOR.package
    binary = {"type": "string", "format": "binary", "title": f"{package}.{message}"}
    kinds = {Format.JSON: {"schema": schema} | example_fields, Format.PROTOBUF: {"schema": binary}}
    return {each.value: kinds[each] for each in formats}


def event_schemas() -> dict[str, dict[str, Any]]:
    """Return the schemas of events by name: one for each event, and ServerEvent as their union.

    Each has the name of the event, and its data parsed as JSON.
    """
    descriptions = {
        _LAGGED: ("Events were lost: read your whole state again. The data says how many.", _LOST_COUNT)
    } | {name: (docstring_text(kind), {"$ref": f"#/components/schemas/{kind.wire}"}) for name, kind in EVENTS.items()}
    schemas = {_event_type(name): _event_schema(name, about, data) for name, (about, data) in descriptions.items()}
    references = {name: f"#/components/schemas/{_event_type(name)}" for name in descriptions}
    schemas[_ANY_EVENT] = {
        "description": "An event of `GET /events`: the value of its `event` line, and that of its `data` line as JSON.",
        "oneOf": [{"$ref": each} for each in references.values()],
        "discriminator": {"propertyName": "event", "mapping": references},
    }
    return schemas


def _event_type(event: str) -> str:
    return "Streamed" + "".join(word.capitalize() for word in event.split("_"))


def _event_schema(name: str, about: str, data: dict[str, Any]) -> dict[str, Any]:
    properties = {"event": {"type": "string", "const": name}, "data": data}
    return {"type": "object", "description": about, "properties": properties, "required": ["event", "data"]}
