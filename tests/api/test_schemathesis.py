"""Requests made of the OpenAPI document: whatever is sent, each answer is one that the document has, and never a 500.

`make test` sends a few to each endpoint, the same each time; `make fuzz` sends thousands, others each time.
"""

import asyncio
import json
import os
from collections import Counter
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
import schemathesis
from aiohttp import ClientSession
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from conclave.openapi import document
from conclave.routes import API, ROUTES
from tests.api.test_transport import protobuf_bodies
from tests.client import PASSWORD, Client, RefusedError
from tests.processes.server import ServerProcess

TOTAL = int(os.environ.get("CONCLAVE_FUZZ", "0"))
"""At least how many requests `make fuzz` sends in all; 0 for the few of `make test`."""

FEW = 6
"""So many requests to an endpoint are random, in `make test`; others try out the limits of each rule."""

MOST = max(30, 2_000 // len(ROUTES))
"""So many at most go to an endpoint, in `make test`: its time is bounded however many endpoints there are."""

LEFT_OUT = f"{API}/events"
"""A stream does not end; its own tests read it."""

CHEAP_PASSWORDS = "from conclave import auth; auth.MEMORY_KIB = 8; from conclave.cli import main; main()"
"""Starts a server for tests that are not about passwords."""


def _schema() -> BaseSchema:
    """Load the document with which requests are made: at collection, so that each endpoint is a test."""
    schemathesis.openapi.media_type("application/x-protobuf", protobuf_bodies | st.binary(max_size=40))
    config = schemathesis.Config.from_dict({})
    loaded = schemathesis.openapi.from_dict(json.loads(json.dumps(document(ROUTES, "Authorization"))), config=config)
    generation = loaded.config.generation
    generation.max_examples = 2 * TOTAL // len(ROUTES) if TOTAL else FEW  # some have fewer that differ
    generation.deterministic = not TOTAL
    loaded.config.phases.coverage.unexpected_methods = set()  # 405 is no answer of an operation
    return loaded.exclude(path=LEFT_OUT)


schema = _schema()

PROMISES = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


class World:
    """Whom requests are sent as and what they are about; made anew when a request has put an end to any of it.

    Alice is admin of a public group with a message, bob a member, carol a stranger.
    """

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.url = server.url
        self._numbers = count()
        self.sent = 0
        self.sent_to: Counter[str] = Counter()
        self.renew()

    def renew(self) -> None:
        asyncio.run(self._renew(next(self._numbers)))

    async def _renew(self, number: int) -> None:
        async with ClientSession() as http:
            self.names = [f"{name}_{number}" for name in ("alice", "bob", "carol")]
            self.users = [await Client.register(http, self.url, name) for name in self.names]
            alice, bob, _ = self.users
            self.group = await alice.create_group(f"friends_{number}")
            await bob.join(self.group)
            await alice.send(self.group)

    def is_whole(self) -> bool:
        return asyncio.run(self._is_whole())

    async def _is_whole(self) -> bool:
        async with ClientSession() as http:
            try:
                for user in self.users:
                    user.http = http
                shown = [(await user.get("/groups"))["groups"] for user in self.users]
            except RefusedError:
                return False
        found = [
            {member["username"]: member["role"] for group in each for member in group["members"]} for each in shown
        ]
        return found == [{self.names[0]: "admin", self.names[1]: "member"}] * 2 + [{}]

    def known(self, name: str, value: Any) -> Any:
        """Return what there is in place of a random id or name, two times of three."""
        there = {
            "group_id": self.group,
            "user_id": self.users[1].user_id,
            "user_ids": [self.users[2].user_id],
            "invitee_id": self.users[2].user_id,
            "username": self.names[1],
            "password": PASSWORD,
            "current_password": PASSWORD,
        }
        return there.get(name, value) if self.sent % 3 else value

    def caller(self) -> dict[str, str]:
        """Return the header of who is calling: mostly alice."""
        who = self.users[(0, 0, 0, 1, 2)[self.sent % 5]]
        return {"Authorization": f"Bearer {who.token}"}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("server")
    with ServerProcess(folder, '[cleanup]\nengine = "sql"\n', command=("-c", CHEAP_PASSWORDS)) as server:
        built = World(server)
        yield built


@schema.parametrize()
def test_an_answer_is_one_that_the_document_has(world: World, case: schemathesis.Case[Any]) -> None:
    if not TOTAL and world.sent_to[case.operation.label] == MOST:
        return
    world.sent += 1
    world.sent_to[case.operation.label] += 1
    case.path_parameters = {name: world.known(name, value) for name, value in case.path_parameters.items()}
    if isinstance(case.body, dict):
        case.body = {name: world.known(name, value) for name, value in case.body.items()}
    answer = case.call_and_validate(base_url=world.url, headers=world.caller(), checks=PROMISES)
    if answer.status_code < 300 and case.method != "GET" and not world.is_whole():
        world.renew()


def test_none_of_them_failed_inside(world: World) -> None:
    assert not [event for event in world.server.events() if event.get("event") == "request_failed"]
    assert world.sent >= TOTAL
