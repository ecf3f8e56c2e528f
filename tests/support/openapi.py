"""The OpenAPI document, and whether answers are what it says."""

import copy
from functools import cache
from typing import Any

import jsonschema_rs

from conclave.server.routes import ROUTES
from conclave.wire.exchange import Endpoint
from conclave.wire.formats import Format
from conclave.wire.openapi.document import document

DOCUMENT = document(ROUTES, "Authorization")

IN_JSON = document(ROUTES, "Authorization", (Format.JSON,))
"""The document without protobuf."""

JSON = "application/json"


def operation_of(route: Endpoint) -> dict[str, Any]:
    operation: dict[str, Any] = DOCUMENT["paths"][route.path][route.method.lower()]
    return operation


def answers_of(route: Endpoint) -> set[tuple[int, int | None]]:
    """Return each documented status, with the code of an error."""
    found: set[tuple[int, int | None]] = set()
    for status, response in operation_of(route)["responses"].items():
        examples = response.get("content", {}).get(JSON, {}).get("examples", {})
        found |= {(int(status), resolve(each)["value"]["error_code"]) for each in examples.values()} or {
            (int(status), None)
        }
    return found


def check_answer(route: Endpoint, status: int, answer: Any) -> None:
    """Check an answer in JSON against the schema that the document has for it, which has to name all of its fields."""
    documented = operation_of(route)["responses"].get(str(status), {}).get("content", {})
    if JSON in documented:
        check(answer, documented[JSON]["schema"])


def check(value: Any, schema: dict[str, Any]) -> None:
    """Check a value against a schema of the document."""
    whole = schema | {"components": _strict()}
    jsonschema_rs.Draft202012Validator(whole, validate_formats=True).validate(value)


def resolve(value: dict[str, Any]) -> dict[str, Any]:
    """Return what a reference into the document stands for; anything else is itself."""
    found: dict[str, Any] = value
    if "$ref" in value:
        found = DOCUMENT
        for name in value["$ref"].removeprefix("#/").split("/"):
            found = found[name]
    return found


@cache
def _strict() -> dict[str, Any]:
    """Return the components as they are now: without the room that responses leave for further fields."""
    components: dict[str, Any] = copy.deepcopy(DOCUMENT["components"])
    for schema in components["schemas"].values():
        schema["additionalProperties"] = False
    return components
