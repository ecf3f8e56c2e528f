"""Requests made of the OpenAPI document: whatever is sent, each answer is one that the document has, and never a 500.

`make test` sends a few to each endpoint, the same each time; `make fuzz` sends thousands, others each time.
"""

import asyncio
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
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

from conclave.server.routes import API, ROUTES
from conclave.wire.openapi.document import document
from tests.support.client import PASSWORD, Client, RefusedError, encode
from tests.support.protobuf import varint
from tests.support.server import ServerProcess

pytestmark = pytest.mark.system

TOTAL = int(os.environ.get("CONCLAVE_FUZZ", "0"))
"""At least how many requests `make fuzz` sends in all; 0 for the few of `make test`."""

FEW = 6
"""So many requests to an endpoint are random, in `make test`; others try out the limits of each rule."""

MOST = max(30, 3_000 // len(ROUTES))
"""So many at most go to an endpoint, in `make test`: its time is bounded however many endpoints there are."""

LEFT_OUT = f"{API}/events"
"""A stream does not end; its own tests read it."""

KEY_PACKAGE = encode(b"\x00\x01\x00\x05")

CHEAP_PASSWORDS = (
    "from conclave.auth import passwords; passwords.MEMORY_KIB = 8; from conclave.__main__ import main; main()"
)
"""Starts a server for tests that are not about passwords."""


def _field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


_values = (
    st.integers(0, 2**64 - 1)
    | st.integers(0, 3)
    | st.text(max_size=20).map(str.encode)
    | st.sampled_from([b"alice", b"friends", b"a password", b"0aff"])
    | st.binary(max_size=20)
)
protobuf_bodies = st.lists(st.builds(_field, st.integers(1, 6), _values), max_size=6).map(b"".join)


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

    Alice is admin of a public group and has a second session; bob is a member, whose welcome waits; carol is invited;
    dave is banned, erin a stranger.
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
            self.names = [f"{name}_{number}" for name in ("alice", "bob", "carol", "dave", "erin")]
            self.users = [await Client.register(http, self.url, name) for name in self.names]
            alice, bob, carol, dave, _ = self.users
            await Client(http, self.url).login(self.names[0])
            self.group = group = await alice.create_group(f"friends_{number}")
            commit = {name: encode(b"x") for name in ("commit_message", "welcome_message", "group_info")}
            for user in (bob, carol):
                await user.post("/key-packages", key_package_data=KEY_PACKAGE)
                await alice.post(f"/groups/{group}/escrow-invite", invitee_id=user.user_id, **commit)
            [invite] = (await bob.get("/invites"))["invites"]
            await bob.post(f"/invites/{invite['invite_id']}/accept")
            await alice.post(f"/groups/{group}/ban", user_id=dave.user_id)
            await alice.send(group)
            self._there = await self._look(http)

    def is_whole(self) -> bool:
        """Tell whether all of it is still there."""
        return asyncio.run(self._is_whole())

    async def _is_whole(self) -> bool:
        async with ClientSession() as http:
            try:
                return await self._look(http) == self._there
            except RefusedError:
                return False

    async def _look(self, http: ClientSession) -> dict[str, list[str]]:
        """Return the ids of what there is."""
        alice, bob, carol, *_ = [Client(http, self.url, user.token) for user in self.users]
        groups = (await alice.get("/groups"))["groups"]
        members = {each["username"]: each["role"] for each in groups[0]["members"]} if groups else {}
        return {
            "group_id": [self.group] if members.get(self.names[0]) == "admin" and len(members) == 2 else [],
            "member": [each["group_id"] for each in (await bob.get("/groups"))["groups"]],
            "invite_id": [each["invite_id"] for each in (await carol.get("/invites"))["invites"]],
            "welcome_id": [each["welcome_id"] for each in (await bob.get("/welcomes"))["welcomes"]],
            "id": [each["id"] for each in (await alice.get("/sessions"))["sessions"] if not each["current"]],
        }

    def known(self, name: str, value: Any) -> Any:
        """Return what there is in place of a random value, two times of three."""
        _, bob, carol, dave, erin = [user.user_id for user in self.users]
        there: dict[str, list[Any]] = self._there | {
            "user_id": [bob, dave],
            "sequence_num": [1],
            "user_ids": [[carol], [bob]],
            "invitee_id": [carol, erin],
            "username": [self.names[1]],
            "password": [PASSWORD],
            "current_password": [PASSWORD],
        }
        return there[name][self.sent % len(there[name])] if name in there and self.sent % 3 else value

    def caller(self, path_parameters: Mapping[str, Any]) -> dict[str, str]:
        """Return the header of who is calling: mostly alice, or whom it concerns."""
        usual = 2 if "invite_id" in path_parameters else 1 if "welcome_id" in path_parameters else 0
        who = self.users[(usual, usual, 1, 2, 4)[self.sent % 5]]
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
    answer = case.call_and_validate(base_url=world.url, headers=world.caller(case.path_parameters), checks=PROMISES)
    if answer.status_code < 300 and case.method != "GET" and not world.is_whole():
        world.renew()


def test_none_of_them_failed_inside(world: World) -> None:
    assert not [event for event in world.server.events() if event.get("event") == "request_failed"]
    assert world.sent >= TOTAL
