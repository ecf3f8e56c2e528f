"""Random requests at every endpoint: whatever they hold, none of them is a 500."""

import json
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings, strategies as st

from conclave.config.limits import LimitsConfig
from conclave.config.settings import Config
from conclave.server.routes import ROUTES
from conclave.wire import conclave_pb2
from conclave.wire.exchange import Endpoint
from conclave.wire.schemas.base import RequestSchema, schema_instance
from tests.conftest import Running, StartServer
from tests.support.client import PACKAGE, PASSWORD, Client, encode
from tests.support.protobuf import PROTOBUF, decode, varint

EXAMPLES = 700
LASTS = 25
"""So many requests are made in one scene: they end most of what is in it."""

ROUTES_ASKED = [route for route in ROUTES if not route.path.endswith("/events")]
"""But for the stream, which does not end, and takes no body."""

ENDS_SESSIONS = ("/logout", "/delete-account", "/change-password", "/sessions/{id}")
"""Asked by somebody whom nobody else needs."""


@dataclass(frozen=True)
class Named:
    """What a scene knows by a name, in a path or a body: an id, a password, a username."""

    name: str


NAMES = [
    *("alice", "bob", "carol", "passing", "friends", "secret", "gone"),
    *("invite", "welcome", "session", "nobody", "password", "username", "group_name"),
]
named = st.sampled_from(NAMES).map(Named)
PLAUSIBLE: list[Any] = [PACKAGE, PACKAGE[:4], b"a body", b"", "0aff", "public", "private", 0, 1, 60, -1, True, False]
plain: Any = named | st.sampled_from(PLAUSIBLE)
anything: Any = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=9)
)
values: Any = st.recursive(
    plain | anything,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["data", "is_last_resort", "alias"]) | st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


people = st.sampled_from(["alice", "bob", "carol", "passing"]).map(Named)
FITTING: dict[str, Any] = {
    "username": st.just(Named("username")) | st.text("abcdef", min_size=5, max_size=9),
    "group_name": st.just(Named("group_name")) | st.text("abcdef", min_size=5, max_size=9),
    "user_id": people,
    "invitee_id": people,
    "user_ids": st.lists(people, max_size=3),
    "entries": st.lists(st.fixed_dictionaries({"data": st.just(PACKAGE)}, optional={"is_last_resort": st.booleans()})),
    "key_package_data": st.just(PACKAGE),
    "mls_group_id": st.just("0aff"),
    "visibility": st.sampled_from(["private", "public"]),
    "message_expiry_seconds": st.sampled_from([-1, 0, 60]),
    "min_lifetime_seconds": st.sampled_from([-1, 0, 30]),
    **dict.fromkeys(("update_message_expiry", "update_min_lifetime", "dry_run"), st.booleans()),
    **dict.fromkeys(("password", "current_password", "new_password"), st.just(Named("password"))),
    **dict.fromkeys(("alias", "signing_key_fingerprint", "registration_token"), st.text("abcdef", max_size=9)),
}
opaque = st.sampled_from([b"a body", b"x" * 5000])


@st.composite
def bodies(draw: st.DrawFn, schema: type[RequestSchema] | None) -> Any:
    """Generate a body: half of them as they should be, others with the request's fields, others anything at all."""
    kind = draw(st.integers(0, 5))
    if schema is None or kind == 0:
        return draw(values | st.binary(max_size=40))
    known = schema_instance(schema).fields
    right = {name: FITTING.get(name, opaque) for name in known}
    if kind > 2:
        required = {name: each for name, each in right.items() if known[name].required}
        return draw(
            st.fixed_dictionaries(
                required, optional={name: each for name, each in right.items() if name not in required}
            )
        )
    return draw(st.fixed_dictionaries({}, optional={name: right[name] | values for name in known}))


@dataclass(frozen=True)
class Asked:
    route: Endpoint
    who: str
    ids: dict[str, str]
    body: Any


@st.composite
def requests(draw: st.DrawFn) -> Asked:
    route = draw(st.sampled_from(ROUTES_ASKED))
    ids = {
        "user_id": draw(st.sampled_from(["alice", "bob", "carol", "nobody"])),
        "group_id": draw(st.sampled_from([*["friends"] * 4, "secret", "gone", "nobody"])),
        "invite_id": draw(st.sampled_from(["invite", "invite", "nobody"])),
        "welcome_id": draw(st.sampled_from(["welcome", "welcome", "nobody"])),
        "id": draw(st.sampled_from(["session", "session", "nobody"])),
        "username": draw(st.sampled_from(["username", "password"])),
        "sequence_num": draw(st.sampled_from(["first", "first", "nobody"])),
    }
    who = draw(st.sampled_from([*["alice"] * 4, "bob", "carol"]))
    if route.path.endswith("/accept"):
        who = draw(st.sampled_from(["bob", "carol"]))
    return Asked(route, "passing" if route.path.endswith(ENDS_SESSIONS) else who, ids, draw(bodies(route.body)))


class Scene:
    """Users, groups, an invite and a welcome, and what they are called.

    Alice is admin of friends, where bob is a member and has a welcome, and of secret, where carol is invited.
    """

    def __init__(self, running: Running) -> None:
        self.running = running
        self.users: dict[str, Client] = {}
        self.known: dict[str, str] = {}
        self.made = 0

    async def build(self) -> None:
        self.made += 1
        for name in ("alice", "bob", "carol"):
            if name not in self.users:
                self.users[name] = await self.running.user(name)
        alice, bob, carol = (self.users[name] for name in ("alice", "bob", "carol"))
        friends = await alice.create_group(f"friends{self.made}")
        secret = await alice.create_group(f"secret{self.made}", public=False)
        gone = await alice.create_group(f"gone{self.made}")
        await alice.post(f"/groups/{gone}/delete")
        await alice.bring(bob, friends)
        for user in (alice, bob, carol):
            await user.upload(PACKAGE, last_resort=PACKAGE)
        self.known |= {
            "friends": friends,
            "secret": secret,
            "gone": gone,
            "invite": await alice.invite(secret, carol),
            "welcome": (await bob.get("/welcomes"))["welcomes"][0]["welcome_id"],
            "nobody": "00000000-0000-4000-8000-000000000000",
            "first": "1",
            "password": PASSWORD,
            "group_name": f"friends{self.made}",
        }
        await self.pass_on()

    async def pass_on(self) -> None:
        """Have somebody new in place of the user whose session may be over."""
        self.made += 1
        passing = self.users["passing"] = await self.running.user(f"passing{self.made}")
        self.known["username"] = f"passing{self.made}"
        self.known["session"] = (await passing.get("/sessions"))["sessions"][0]["id"]

    def value(self, named: Named) -> str:
        return self.users[named.name].user_id if named.name in self.users else self.known[named.name]


def in_json(value: Any, scene: Scene) -> Any:
    match value:
        case Named():
            return scene.value(value)
        case bytes():
            return encode(value)
        case list():
            return [in_json(each, scene) for each in value]
        case dict():
            return {name: in_json(each, scene) for name, each in value.items()}
    return value


def in_protobuf(value: Any, scene: Scene, number: int = 1) -> bytes:
    """Write a value as field ``number``; of a dict each value as the field that its place says."""
    match value:
        case None:
            return b""
        case bool() | int():
            return varint(number << 3) + varint(value % 2**64)
        case list():
            return b"".join(in_protobuf(each, scene, number) for each in value)
        case dict():
            inside = b"".join(in_protobuf(each, scene, place) for place, each in enumerate(value.values(), 1))
        case Named():
            text = scene.value(value)
            inside = UUID(text).bytes if len(text) == 36 and "-" in text else text.encode()
        case bytes():
            inside = value
        case _:
            inside = str(value).encode()
    return varint(number << 3 | 2) + varint(len(inside)) + inside


def write(asked: Asked, scene: Scene, format: str) -> bytes:  # noqa: A002
    if isinstance(asked.body, bytes):
        return asked.body
    if format == "json":
        return json.dumps(in_json(asked.body, scene)).encode()
    if not isinstance(asked.body, dict):
        return in_protobuf(asked.body, scene)
    places = {name: place for place, name in enumerate(asked.body, 1)}
    if asked.route.body:
        message = getattr(conclave_pb2, asked.route.body.__name__).DESCRIPTOR
        places |= {field.name: field.number for field in message.fields}
    return b"".join(in_protobuf(value, scene, places[name]) for name, value in asked.body.items())


@pytest.fixture
async def scene(config: Config, start_server: StartServer) -> AsyncIterator[Scene]:
    patient = LimitsConfig(login_failures=100_000, login_failures_per_address=100_000)
    async with start_server(replace(config, limits=patient)) as running:
        built = Scene(running)
        await built.build()
        yield built


@pytest.mark.system
@pytest.mark.parametrize("format", ["json", "protobuf"])
async def test_no_request_causes_a_500(scene: Scene, format: str) -> None:  # noqa: A002
    generated: list[Asked] = []

    @settings(max_examples=EXAMPLES, derandomize=True, database=None)
    @given(requests())
    def collect(asked: Asked) -> None:
        generated.append(asked)

    collect()
    seen: Counter[int] = Counter()
    well: set[str] = set()
    for number, asked in enumerate(generated, 1):
        status = await ask(scene, asked, format)
        seen[status] += 1
        if status < 300:
            well.add(f"{asked.route.method} {asked.route.path}")
        if number % LASTS == 0:
            await scene.build()
        elif asked.who == "passing" and status < 300:
            await scene.pass_on()
    assert {each.route for each in generated} == set(ROUTES_ASKED)
    assert {200, 201, 204, 400, 401, 404, 409} <= set(seen)
    assert len(well) > len(ROUTES_ASKED) * 3 / 4, "most of them did something"


async def ask(scene: Scene, asked: Asked, format: str) -> int:  # noqa: A002
    """Make a request, check that an error is one, and return the status."""
    ids = {name: scene.value(Named(value)) for name, value in asked.ids.items()}
    body = write(asked, scene, format)
    headers = PROTOBUF if format == "protobuf" else {"Content-Type": "application/json"}
    async with scene.running.http.request(
        asked.route.method,
        scene.running.url + asked.route.path.format(**ids),
        data=body,
        headers=headers | {"Authorization": f"Bearer {scene.users[asked.who].token}"},
    ) as response:
        answer = await response.read()
        assert response.status < 500, (asked, body, answer)
        if response.status >= 400:
            in_json = response.content_type == "application/json"
            told = json.loads(answer) if in_json else decode("ErrorResponse", answer)
            assert set(told) == {"message", "error_code"} | ({"error", "errors"} if in_json else set())
            if in_json:
                assert all(isinstance(each, str) for found in told["errors"].values() for each in found), told
        return response.status
