"""The client port uses nothing of the inside of aiohttp, and what it builds on is as it was."""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.web_request import BaseRequest

from conclave.server.client_port import (
    ClientPort,
    admission,
    connection,
    delegation,
    fast_path,
    framing,
    port,
    responding,
)
from conclave.wire import acknowledgement, handover, stream_connection
from tests.conftest import Running

PORT = (
    *(acknowledgement, admission, connection, delegation, fast_path),
    *(framing, handover, port, responding, stream_connection),
)


def private(path: Path, *, own: bool = False) -> Iterator[str]:
    """Yield the names with an underscore that are looked up in anything but ``self`` or ``cls``; ``own``: in these."""
    for each in ast.walk(ast.parse(path.read_text())):
        if isinstance(each, ast.Attribute) and is_private(each.attr):
            whose = each.value.id if isinstance(each.value, ast.Name) else ""
            if (whose in ("self", "cls")) == own:
                yield each.attr


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


@pytest.mark.parametrize("module", PORT, ids=lambda each: each.__name__)
def test_no_private_part_of_anything_is_used(module: object) -> None:
    found = set(private(Path(str(module.__file__))))  # type: ignore[attr-defined]
    assert found <= {"_replace"}, "the public method of named tuples"


@pytest.mark.parametrize(
    ("own", "built_on"), [(delegation.AiohttpHandler, web.RequestHandler), (ClientPort, web.BaseSite)]
)
def test_no_private_part_is_inherited(own: type, built_on: type) -> None:
    names = {each.attr for each in ast.walk(ast.parse(inspect.getsource(own))) if isinstance(each, ast.Attribute)}
    assert not [
        each for each in names if each.startswith("_") and not each.startswith("__") and hasattr(built_on, each)
    ]


def test_the_version_is_one_that_these_tests_have_seen() -> None:
    assert aiohttp.__version__.startswith("3.14.")


ROUTES = {"GET /healthz": 200, "HEAD /healthz": 200, "GET /nothing": 404, "POST /api/v1/logout": 401}


@pytest.mark.parametrize("asked", ROUTES)
async def test_the_end_of_an_answer_is_told_once_and_after_it_is_written(
    running: Running, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    """aiohttp does not promise it: the next request of the connection is handed on by it."""
    told: list[tuple[int, bool]] = []
    finish = delegation.AiohttpHandler.finish_response

    async def watched(
        each: delegation.AiohttpHandler, request: BaseRequest, response: web.StreamResponse, began: float | None
    ) -> tuple[web.StreamResponse, bool]:
        result = await finish(each, request, response, began)
        told.append((len(told), bool(result[0].keep_alive)))
        return result

    monkeypatch.setattr(delegation.AiohttpHandler, "finish_response", watched)
    method, path = asked.split()
    for count in (1, 2, 3):
        async with running.http.request(method, running.url + path) as response:
            assert response.status == ROUTES[asked]
            await response.read()
        assert len(told) == count
    assert all(stays_open for _, stays_open in told)
