"""The OpenAPI document says of every endpoint what the route table and the schemas say."""

import json
import re
from dataclasses import replace
from typing import Any

import jsonschema_rs
import pytest
from openapi_spec_validator import validate

from conclave import errors as e
from conclave.config.settings import Config
from conclave.server.routes import API, ROUTES
from conclave.wire.events import EVENTS
from conclave.wire.exchange import Access, Endpoint
from conclave.wire.fields import Identifier
from conclave.wire.openapi import examples
from conclave.wire.openapi.document import document, summary_of
from conclave.wire.schemas.base import schema_instance, schema_of
from tests.conftest import Running, StartServer
from tests.support.openapi import DOCUMENT, IN_JSON, JSON, answers_of, check, operation_of, resolve

PROTOBUF = "application/x-protobuf"
each_route = pytest.mark.parametrize("route", ROUTES, ids=lambda each: f"{each.method} {each.path}")


def test_the_document_is_valid_openapi() -> None:
    validate(json.loads(json.dumps(DOCUMENT)))
    assert DOCUMENT["openapi"].startswith("3.1.")


def test_the_document_without_protobuf_is_valid_and_lacks_nothing_else() -> None:
    validate(json.loads(json.dumps(IN_JSON)))
    assert f'"{PROTOBUF}":' not in json.dumps(IN_JSON)
    assert IN_JSON["components"] == DOCUMENT["components"]
    assert IN_JSON["paths"] == _without_protobuf(DOCUMENT["paths"])


def _without_protobuf(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_protobuf(each) for each in value]
    if isinstance(value, dict):
        return {name: _without_protobuf(each) for name, each in value.items() if name != PROTOBUF}
    return value


def test_every_event_has_a_type_of_its_own_by_its_name() -> None:
    described = DOCUMENT["components"]["schemas"]["ServerEvent"]
    assert set(described["discriminator"]["mapping"]) == {*EVENTS, "lagged"}
    assert [each["$ref"] for each in described["oneOf"]] == list(described["discriminator"]["mapping"].values())
    for name, kind in EVENTS.items():
        said = {"event": name, "data": examples.example(schema_of(kind))}
        assert [_fits(said, each) for each in described["oneOf"]].count(True) == 1
        assert _fits(said, resolve({"$ref": described["discriminator"]["mapping"][name]}))
        assert not _fits(said | {"data": {}}, described)
    assert _fits({"event": "lagged", "data": 3}, described)
    assert not _fits({"event": "unheard_of", "data": 3}, described)


def _fits(value: Any, schema: dict[str, Any]) -> bool:
    whole = schema | {"components": DOCUMENT["components"]}
    return jsonschema_rs.Draft202012Validator(whole, validate_formats=True).is_valid(value)


def test_the_stream_says_what_its_events_are() -> None:
    stream = DOCUMENT["paths"][f"{API}/events"]["get"]["responses"]["200"]["content"]["text/event-stream"]
    assert stream["x-itemSchema"] == {"$ref": "#/components/schemas/ServerEvent"}


def test_every_endpoint_is_an_operation_and_nothing_else_is() -> None:
    documented = {(method.upper(), path) for path, item in DOCUMENT["paths"].items() for method in item}
    assert documented == {(route.method, route.path) for route in ROUTES}


def test_the_ids_of_operations_are_unique() -> None:
    ids = [operation_of(route)["operationId"] for route in ROUTES]
    assert len(set(ids)) == len(ids)


def test_every_tag_is_described() -> None:
    used = {tag for route in ROUTES for tag in operation_of(route)["tags"]}
    assert {tag["name"] for tag in DOCUMENT["tags"] if tag["description"]} == used


@each_route
def test_a_handler_says_which_endpoint_it_is_and_what_that_does(route: Endpoint) -> None:
    """Its docstring begins ``METHOD /path: What it does.``; the document shows the rest of it."""
    assert route.handler.__doc__
    assert route.handler.__doc__.startswith(f"{route.method} {route.path.removeprefix(API)}: ")
    summary = summary_of(route).partition("\n")[0]
    assert re.fullmatch(r"[A-Z].+\.", summary)
    assert operation_of(route)["summary"] == summary


@each_route
def test_every_endpoint_but_the_public_ones_needs_a_token(route: Endpoint) -> None:
    assert operation_of(route)["security"] == ([] if route.public else [{"token": []}])
    assert {(401, 200), (401, 201)} <= answers_of(route) or route.public


@each_route
def test_the_parameters_are_the_names_in_the_path_and_the_fields_of_the_query(route: Endpoint) -> None:
    parameters = {(each["in"], each["name"]): each for each in operation_of(route)["parameters"]}
    in_path = {("path", name) for name in re.findall(r"\{(\w+)\}", route.path)}
    in_query = {("query", name) for name in schema_instance(route.query).fields} if route.query else set()
    assert set(parameters) == in_path | in_query
    for (place, name), parameter in parameters.items():
        assert parameter["required"] == (place == "path")
        field = schema_instance(route.query).fields.get(name) if route.query and place == "query" else None
        is_id = isinstance(field, Identifier) if field else name.endswith("id")
        assert (parameter["schema"].get("format") == "uuid") == is_id
        for example in [parameter["example"]] if place == "path" else parameter["schema"]["examples"]:
            check(example, parameter["schema"])


@each_route
def test_a_request_can_be_written_in_both_formats_and_its_example_is_valid(route: Endpoint) -> None:
    body = operation_of(route).get("requestBody")
    assert bool(body) == bool(route.body)
    if body and route.body:
        assert list(body["content"]) == [JSON, PROTOBUF]
        assert body["content"][PROTOBUF]["schema"]["title"] == f"conclave.v1.{route.body.__name__}"
        shown = body["content"][JSON]
        assert shown["schema"] == {"$ref": f"#/components/schemas/{route.body.__name__}"}
        assert vars(schema_instance(route.body).load(shown["example"]))
        check(shown["example"], shown["schema"])


@each_route
def test_a_success_has_the_message_and_the_formats_of_the_endpoint(route: Endpoint) -> None:
    content = operation_of(route)["responses"][str(route.status)].get("content", {})
    if route.media_type:
        assert list(content) == [route.media_type]
    elif route.answer is None:
        assert not content
    else:
        assert list(content) == [route.format.value] if route.format else [JSON, PROTOBUF]
        check(content[JSON]["example"], content[JSON]["schema"])


@each_route
def test_every_example_of_an_error_is_an_error_response_of_its_status(route: Endpoint) -> None:
    for status, response in operation_of(route)["responses"].items():
        if int(status) >= 400:
            shown = response["content"][JSON]
            for example in shown["examples"].values():
                value = resolve(example)["value"]
                check(value, shown["schema"])
                assert f"{value['error_code']} `{value['error']}`: " in response["description"]


async def _handler(request: Any) -> Any:
    """GET /: Nothing."""


_ANY = [(500, 0), (503, 0), (507, 0)]
"""What any endpoint can answer."""


@pytest.mark.parametrize(
    ("endpoint", "answers"),
    [
        pytest.param(Endpoint("GET", "/", _handler, Access.ANYBODY), {(200, None), *_ANY}, id="public"),
        pytest.param(
            Endpoint("GET", "/", _handler, status=204),
            {(204, None), (401, 200), (401, 201), (401, 202), *_ANY},
            id="for users",
        ),
        pytest.param(
            Endpoint("GET", "/{invite_id}", _handler, Access.INVITEE, refuses=(e.ConflictError,)),
            {(200, None), (400, 101), (401, 200), (401, 201), (401, 202), (401, 400), (404, 300), (409, 301), *_ANY},
            id="for an invitee",
        ),
    ],
)
def test_errors_that_follow_from_the_kind_of_an_endpoint(endpoint: Endpoint, answers: set[Any]) -> None:
    described = document((endpoint,), "Authorization")
    found = {
        (int(status), described["components"]["examples"][name]["value"]["error_code"] if name else None)
        for status, response in described["paths"][endpoint.path]["get"]["responses"].items()
        for name in response.get("content", {}).get(JSON, {}).get("examples", {"": None})
    }
    assert found == answers


def test_who_has_to_wait_learns_for_how_long() -> None:
    endpoint = Endpoint("GET", "/", _handler, refuses=(e.TooManyRequestsError,))
    responses = document((endpoint,), "Authorization")["paths"]["/"]["get"]["responses"]
    assert list(responses["429"]["headers"]) == ["Retry-After"]


@pytest.mark.parametrize("accept", ["application/json", PROTOBUF])
async def test_the_document_is_always_in_json_and_knows_no_format_but_that(running: Running, accept: str) -> None:
    path, headers = f"{running.url}{API}/openapi.json", {"Accept": accept}
    async with running.http.get(path, params={"format": "json"}, headers=headers) as response:
        assert (response.content_type, await response.json()) == (JSON, IN_JSON)
    for unknown in ("protobuf", "JSON", "xml"):
        async with running.http.get(path, params={"format": unknown}, headers=headers) as response:
            refused = await response.json()
            assert (response.status, refused["error_code"], response.content_type) == (400, 101, JSON)
            assert refused["message"] == 'format: must be "json"'
    async with running.http.get(path, params={"format": ""}, headers=headers) as response:
        assert response.status == 400


async def test_the_document_is_served_to_anybody_and_has_the_header_that_the_operator_chose(
    running: Running, config: Config, start_server: StartServer
) -> None:
    async with running.http.get(f"{running.url}{API}/openapi.json") as response:
        assert await response.json() == DOCUMENT
    assert DOCUMENT["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    beside = str(config.database.with_name("other.db"))
    async with (
        start_server(replace(config, auth_header="X-Conclave", database_path=beside)) as other,
        other.http.get(f"{other.url}{API}/openapi.json") as response,
    ):
        scheme = (await response.json())["components"]["securitySchemes"]["token"]
        assert (scheme["type"], scheme["in"], scheme["name"]) == ("apiKey", "header", "X-Conclave")
