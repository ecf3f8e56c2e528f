"""Every endpoint in both formats: what it answers, and every way in which it refuses."""

import base64
import io
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import ANY

import pytest

from conclave import app_keys
from conclave.config.limits import LimitsConfig
from conclave.config.settings import Config
from conclave.health.parts import Phase
from conclave.server.routes import API, ROUTES
from conclave.wire.exchange import Endpoint
from conclave.wire.formats import Format
from tests.conftest import Running, StartServer
from tests.support.client import PASSWORD, Client, RefusedError, encode as base64_of
from tests.support.openapi import DOCUMENT, IN_JSON, answers_of, check_answer
from tests.support.protobuf import MESSAGES, ProtobufClient, decode, encode, messages_of
from tests.test_docs import doc, rows

DAY = 86_400
INVITATION = "let-me-in"
NOWHERE = "00000000-0000-4000-8000-000000000000"


class World:
    """A server with users and groups whose requests and answers are of one format.

    Alice is admin of all groups and has a phone, bob a member of friends with a key package, carol a stranger with one
    of last resort. Erin has come to the club by an invite and has not fetched the welcome, mallory is banned from
    there, and carol is invited to secret. Friends, bare and club are public; friends and club have a group info,
    friends has one message.
    """

    def __init__(self, running: Running, format: Format) -> None:  # noqa: A002 - it is the format
        self.running = running
        self.format = format
        self.users: dict[str, Client] = {}
        self.groups: dict[str, str] = {}
        self.others: dict[str, str] = {}

    async def build(self) -> None:
        for name in ("alice", "bob", "carol", "erin", "mallory"):
            client = self.users[name] = self.client()
            account = {"username": name, "password": PASSWORD, "registration_token": INVITATION}
            client.user_id = (await client.post("/register", **account))["user_id"]
            await client.login(name)
        alice, bob, carol, erin, mallory = self.users.values()
        self.groups["friends"] = await alice.create_group("friends", expiry=DAY)
        await bob.join(self.groups["friends"])
        await alice.send(self.groups["friends"], b"\x00hello")
        for name in ("secret", "bare", "club"):
            self.groups[name] = (await alice.post("/groups", group_name=name))["group_id"]
        for name in ("bare", "club"):
            await alice.patch(self.groups[name], visibility="public")
        await bob.post("/key-packages", key_package_data=PACKAGE)
        await carol.post("/key-packages", entries=[{"data": PACKAGE, "is_last_resort": True}])
        await erin.post(f"/invites/{await self.invite(erin, 'club')}/accept")
        self.others["welcome"] = (await erin.get("/welcomes"))["welcomes"][0]["welcome_id"]
        await alice.post(f"/groups/{self.groups['club']}/ban", user_id=mallory.user_id)
        self.others["invite"] = await self.invite(carol, "secret")
        phone = Client(self.running.http, self.running.url)
        await phone.login("alice")
        sessions = (await phone.get("/sessions"))["sessions"]
        self.others["phone"] = next(each["id"] for each in sessions if each["current"])

    def client(self) -> Client:
        kind = Client if self.format is Format.JSON else ProtobufClient
        return kind(self.running.http, self.running.url)

    async def invite(self, invitee: Client, group: str) -> str:
        """Invite somebody in alice's name and return the invite's id."""
        carried = {"commit_message": MESSAGE, "welcome_message": WELCOME, "group_info": INFO}
        path = f"/groups/{self.groups[group]}/escrow-invite"
        await self.users["alice"].post(path, invitee_id=invitee.user_id, **carried)
        return str((await invitee.get("/invites"))["invites"][0]["invite_id"])

    def session(self) -> dict[str, Any]:
        """What the server tells of a session that asks for itself."""
        now = self.running.clock.now()
        expires_at = now + self.running.config.token_ttl_seconds
        return {"id": ANY, "created_at": now, "last_used_at": now, "expires_at": expires_at, "current": True}

    def invitation(self) -> dict[str, Any]:
        """What the server tells of carol's invite."""
        return {
            "invite_id": self.others["invite"],
            "group_id": self.groups["secret"],
            "group_name": "secret",
            "group_alias": "",
            "inviter_username": "alice",
            "created_at": self.running.clock.now(),
            "invitee_id": self.users["carol"].user_id,
            "inviter_id": self.users["alice"].user_id,
        }

    def user(self, name: str) -> dict[str, Any]:
        """What the server tells of a user."""
        return {
            "user_id": self.users[name].user_id,
            "username": name,
            "alias": "",
            "signing_key_fingerprint": "",
        }

    def group(self, name: str, visibility: str, expiry: int, **members: str) -> dict[str, Any]:
        """What the server tells members of a group; ``members`` are names with roles."""
        return {
            "group_id": self.groups[name],
            "alias": "",
            "members": [self.user(member) | {"role": role} for member, role in members.items()],
            "group_name": name,
            "mls_group_id": "",
            "message_expiry_seconds": expiry,
            "visibility": visibility,
        }

    async def ask(
        self,
        method: str,
        path: str,
        *,
        data: bytes | io.BytesIO | None = None,
        content_type: str = "",
        accept: str = "",
        token: str = "",
        query: dict[str, str] | None = None,
    ) -> tuple[int, dict[str, Any]]:
        """Send a request and return status and answer, which has to be in the world's format."""
        given = {"Content-Type": content_type, "Accept": accept, "Authorization": token and f"Bearer {token}"}
        headers = {name: value for name, value in given.items() if value}
        async with self.running.http.request(
            method,
            self.running.url + path,
            data=data,
            params=query,
            headers=headers,
            skip_auto_headers=["Content-Type", "Accept"],
        ) as response:
            body = await response.read()
            if response.status == 204:
                assert body == b""
                return 204, {}
            assert response.headers["Cache-Control"] == "no-store"
            if response.status < 400 and path in MEDIA_TYPES:
                assert response.content_type == MEDIA_TYPES[path]
                return response.status, json.loads(body) if path.endswith(".json") else {}
            always_json = path.startswith(ALWAYS_JSON) and method in ("GET", "DELETE")
            assert response.content_type == (Format.JSON if always_json else self.format).value
            if self.format is Format.JSON or always_json:
                answer = json.loads(body)
                assert response.status < 400 or set(answer) == {"message", "error_code", "error", "errors"}
                return response.status, answer
            name = messages_of(method, path.removeprefix(API))[1] if response.status < 400 else "ErrorResponse"
            assert name != "Empty" or body == b""
            return response.status, decode(name or "", body)

    def write(self, route: Endpoint, body: dict[str, Any]) -> bytes:
        """Write a request of an endpoint."""
        if self.format is Format.JSON:
            return json.dumps(body).encode()
        return encode(messages_of(route.method, route.path.removeprefix(API))[0] or "", body)

    def path(self, route: Endpoint, at: dict[str, str]) -> str:
        """Return the path of an endpoint: with the ids of DEFAULTS, or ``at`` others by their names."""
        wanted = DEFAULTS | at
        plain = {name: wanted.pop(name) for name in ("username", "sequence_num")}
        return route.path.format(**plain, **{name: self.id(value) for name, value in wanted.items()})

    def id(self, name: str) -> str:
        """Return the id of what a test calls by a name."""
        people = {name: user.user_id for name, user in self.users.items()}
        return ({"nobody": NOWHERE, "malformed": "not an id"} | people | self.groups | self.others)[name]

    def body(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return a request's values, with ids in place of names."""
        named = {name: self.id(value) for name, value in values.items() if name in ("user_id", "invitee_id")}
        listed = {name: [self.id(each) for each in value] for name, value in values.items() if name == "user_ids"}
        return values | named | listed

    def dead_token(self) -> str:
        """Return a token as this format's logins issue them, that nobody has."""
        return "0" * 63 + ("1" if self.format is Format.PROTOBUF else "0")


@dataclass(frozen=True)
class Row:
    """A request and its answer. ``code`` is that of an error; a success says what else it ``answers``.

    ``times``: it is sent so often, and the last answer counts. ``before``: what has to happen first.
    """

    why: str
    status: int = 200
    code: int | None = None
    who: str = "alice"
    at: dict[str, str] = field(default_factory=dict)
    query: dict[str, str] | None = None
    body: dict[str, Any] | None = None
    times: int = 1
    before: Callable[[World], Awaitable[Any]] | None = None
    answers: Callable[[World], dict[str, Any]] = lambda _: {}


ALWAYS_JSON = ("/healthz", "/readyz", f"{API}/openapi.json", f"{API}/sessions", f"{API}/retention/configuration")
"""Paths that are answered in JSON whatever was negotiated."""

MEDIA_TYPES = {route.path: route.media_type for route in ROUTES if route.media_type}
"""Of successes that are no messages."""

MESSAGE = base64_of(b"\x00hello")
TOO_MUCH = base64_of(bytes(5000))
INFO = base64_of(b"group info")
SEND_ID = "0f6c2b1e-7a5d-4c3f-9e80-1b2a3c4d5e6f"
WELCOME = base64_of(b"welcome")
PACKAGE = base64_of(b"\x00\x01\x00\x05 a key package")
EPOCH_7 = base64_of(b"\0\1\0\4\0\1\0\1" + b"\1g" + (7).to_bytes(8, "big"))
"""What the server reads of a group info of MLS: see group_info.py of the store."""
COMMIT = {"commit_message": MESSAGE, "group_info": INFO}
INVITE = COMMIT | {"welcome_message": WELCOME}
DEFAULTS = {
    "username": "bob",
    "user_id": "bob",
    "group_id": "friends",
    "invite_id": "invite",
    "welcome_id": "welcome",
    "id": "phone",
    "sequence_num": "1",
}
"""What the ids in a path are, where a row says nothing else."""

NEW = {"username": "dora", "password": PASSWORD, "registration_token": INVITATION}


def promote_bob(world: World) -> Awaitable[Any]:
    return world.users["alice"].post(f"/groups/{world.groups['friends']}/promote", user_id=world.users["bob"].user_id)


EXPIRY = {"update_message_expiry": True}
LEAST = {"update_min_lifetime": True}
BOTH = EXPIRY | LEAST


def nothing_expires(_: World) -> dict[str, Any]:
    return {"messages_expiring": 0, "oldest_expiring": 0}


def one_expires(world: World) -> dict[str, Any]:
    return {"messages_expiring": 1, "oldest_expiring": world.running.clock.now()}


def fetch_as_bob(world: World) -> Awaitable[Any]:
    return world.users["bob"].fetch(world.groups["friends"])


def delete_after_fetch(world: World) -> Awaitable[Any]:
    return world.users["alice"].set_expiry(world.groups["friends"], 0)


def fill_friends(world: World) -> Awaitable[Any]:
    return world.users["bob"].post(f"/groups/{world.groups['friends']}/leave", commit_message=TOO_MUCH)


def reach_epoch_7(world: World) -> Awaitable[Any]:
    return world.users["alice"].post(f"/groups/{world.groups['friends']}/commit", group_info=EPOCH_7)


def commit(world: World) -> Awaitable[Any]:
    return world.users["alice"].post(f"/groups/{world.groups['friends']}/commit", commit_message=MESSAGE)


def hurry(name: str, group: str) -> Callable[[World], Awaitable[Any]]:
    """Have somebody send as fast as the quota allows."""

    async def send(world: World) -> None:
        with suppress(RefusedError):
            for _ in range(13):
                await world.users[name].send(world.groups[group])

    return send


async def begin_to_stop(world: World) -> None:
    world.running.app[app_keys.HEALTH].phase = Phase.STOPPING


TABLE: dict[str, list[Row]] = {
    "GET /healthz": [Row("well", answers=lambda _: {"status": "ok"})],
    "GET /readyz": [
        Row("serving", answers=lambda _: {"status": "ready"}),
        Row("stopping", 503, 0, before=begin_to_stop),
    ],
    f"GET {API}/openapi.json": [
        Row("the document", answers=lambda _: DOCUMENT),
        Row("without protobuf", query={"format": "json"}, answers=lambda _: IN_JSON),
        Row("a format that it does not leave alone", 400, 101, query={"format": "protobuf"}),
    ],
    f"GET {API}/docs": [Row("the page")],
    f"POST {API}/register": [
        Row("no password", 400, 100, body={"username": "dora", "registration_token": INVITATION}),
        Row("a short password", 400, 101, body=NEW | {"password": "short"}),
        Row("a bad name", 400, 101, body=NEW | {"username": "_dora"}),
        Row("a bad alias", 400, 101, body=NEW | {"alias": "a" * 65}),
        Row("no registration token", 403, 302, body={"username": "dora", "password": PASSWORD}),
        Row("a wrong registration token", 403, 302, body=NEW | {"registration_token": "let-me-out"}),
        Row("a name that is taken", 409, 301, body=NEW | {"username": "alice"}),
        Row("registered", 201, body=NEW | {"alias": "D\u00f6ra"}, answers=lambda _: {"user_id": ANY}),
        Row("one too many", 429, 100, body=NEW | {"username": "emil"}),
    ],
    f"POST {API}/login": [
        Row("no username", 400, 100, body={"password": PASSWORD}),
        Row("a wrong password", 401, 202, body={"username": "alice", "password": "wrong password"}),
        Row("an unknown user", 401, 202, body={"username": "nobody", "password": PASSWORD}),
        Row("the last wrong one", 401, 202, body={"username": "nobody", "password": PASSWORD}),
        Row("one too many", 429, 100, body={"username": "nobody", "password": PASSWORD}),
        Row(
            "logged in",
            body={"username": "alice", "password": PASSWORD},
            answers=lambda world: {"token": ANY, "user_id": world.users["alice"].user_id, "username": "alice"},
        ),
    ],
    f"POST {API}/logout": [Row("logged out", 204)],
    f"GET {API}/me": [Row("oneself", answers=lambda world: world.user("alice"))],
    f"PATCH {API}/me": [
        Row("a bad alias", 400, 101, body={"alias": "a" * 65}),
        Row("changed", body={"alias": "\u2603"}),
    ],
    f"POST {API}/change-password": [
        Row("no new password", 400, 100, body={"current_password": PASSWORD}),
        Row("too short a new one", 400, 101, body={"current_password": PASSWORD, "new_password": "short"}),
        Row("a wrong current one", 401, 203, body={"current_password": "wrong", "new_password": "long enough"}),
        *(
            Row("bob's guesses", 401, 203, "bob", body={"current_password": "guess", "new_password": "long enough"})
            for _ in range(2)
        ),
        Row("one too many", 429, 100, "bob", body={"current_password": "guess", "new_password": "long enough"}),
        Row("changed", body={"current_password": PASSWORD, "new_password": "long enough"}),
    ],
    f"POST {API}/reset-account": [Row("reset", who="bob")],
    f"POST {API}/delete-account": [
        Row("no password", 400, 100, body={}),
        Row("a wrong password", 401, 203, body={"password": "wrong"}),
        *(Row("bob's guesses", 401, 203, "bob", body={"password": "guess"}) for _ in range(2)),
        Row("one too many", 429, 100, "bob", body={"password": "guess"}),
        Row("deleted", body={"password": PASSWORD}),
    ],
    f"GET {API}/users/{{username}}": [
        Row("an unknown name", 404, 300, at={"username": "nobody"}),
        Row("found", answers=lambda world: world.user("bob")),
    ],
    f"GET {API}/users/by-id/{{user_id}}": [
        Row("an unknown id", 404, 300, at={"user_id": "nobody"}),
        Row("found", answers=lambda world: world.user("bob")),
    ],
    f"POST {API}/key-packages": [
        Row("none", 400, 100, body={"signing_key_fingerprint": "ab:cd"}),
        Row("none inside", 400, 100, body={"entries": [{"is_last_resort": True}]}),
        Row("not a key package", 400, 101, body={"key_package_data": MESSAGE}),
        Row("a bad fingerprint", 400, 101, body={"key_package_data": PACKAGE, "signing_key_fingerprint": "x" * 257}),
        Row("uploaded", body={"entries": [{"data": PACKAGE}], "signing_key_fingerprint": "ab:cd"}),
    ],
    f"GET {API}/key-packages/{{user_id}}": [
        Row("nobody", 404, 300, at={"user_id": "nobody"}),
        Row("none", 404, 300, at={"user_id": "erin"}),
        Row("the only one", answers=lambda _: {"key_package_data": PACKAGE}),
        Row("it is gone", 404, 300),
        Row("the last resort", at={"user_id": "carol"}, times=10, answers=lambda _: {"key_package_data": PACKAGE}),
        Row("too often", 429, 100, at={"user_id": "carol"}),
    ],
    f"POST {API}/groups": [
        Row("no name", 400, 100, body={"alias": "x"}),
        Row("a bad name", 400, 101, body={"group_name": "no spaces"}),
        Row("a bad alias", 400, 101, body={"group_name": "new", "alias": "line\nbreak"}),
        Row("a name that is taken", 409, 301, body={"group_name": "friends"}),
        Row("made", 201, body={"group_name": "new", "alias": "\u2603"}, answers=lambda _: {"group_id": ANY}),
        Row("one too many", 403, 302, body={"group_name": "another"}),
        Row("too fast", 429, 100, who="bob", body={"group_name": "another"}, before=hurry("bob", "friends")),
    ],
    f"GET {API}/groups": [
        Row(
            "one's own",
            answers=lambda world: {
                "groups": [
                    world.group("friends", "public", DAY, alice="admin", bob="member"),
                    world.group("secret", "private", -1, alice="admin"),
                    world.group("bare", "public", -1, alice="admin"),
                    world.group("club", "public", -1, alice="admin", erin="member"),
                ],
                "more": False,
            },
        ),
        Row("none", who="carol", answers=lambda _: {"groups": [], "more": False}),
        Row("a limit below 1", 400, 101, query={"limit": "0"}),
        Row("after what is not there", 400, 101, query={"after": NOWHERE}),
        Row(
            "a page",
            query={"limit": "1"},
            answers=lambda world: {
                "groups": [world.group("friends", "public", DAY, alice="admin", bob="member")],
                "more": True,
            },
        ),
    ],
    f"GET {API}/groups/public": [
        Row("none", query={"pattern": "secret"}, answers=lambda _: {"groups": [], "more": False}),
        Row(
            "found",
            query={"pattern": "IEND"},
            who="carol",
            answers=lambda world: {
                "groups": [
                    {"group_id": world.groups["friends"], "group_name": "friends", "alias": "", "member_count": 2}
                ],
                "more": False,
            },
        ),
    ],
    f"PATCH {API}/groups/{{group_id}}": [
        Row("a bad name", 400, 101, body={"group_name": "_x"}),
        Row("a bad expiry", 400, 101, body={"message_expiry_seconds": -2}),
        Row("over the cap", 400, 100, body={"message_expiry_seconds": 31 * DAY, "update_message_expiry": True}),
        Row("a name that is taken", 409, 301, body={"alias": "x", "group_name": "bare"}),
        Row("a bad least lifetime", 400, 101, body={"min_lifetime_seconds": -2}),
        Row("too long a least lifetime", 400, 101, body={"min_lifetime_seconds": 2**53}),
        Row("a least lifetime over the expiry", 400, 100, body={"min_lifetime_seconds": DAY + 1} | LEAST),
        Row("both, crossed", 400, 100, body={"min_lifetime_seconds": 2, "message_expiry_seconds": 1} | BOTH),
        Row("a least lifetime that does not count", body={"min_lifetime_seconds": DAY + 1}, answers=nothing_expires),
        Row("a dry run over the cap", 400, 100, body={"message_expiry_seconds": 31 * DAY, "dry_run": True} | EXPIRY),
        Row("a dry run with a name that is taken", 409, 301, body={"group_name": "bare", "dry_run": True}),
        Row("a dry run", body={"message_expiry_seconds": 0, "dry_run": True} | EXPIRY, answers=nothing_expires),
        Row(
            "a dry run that hides",
            body={"message_expiry_seconds": 0, "dry_run": True} | EXPIRY,
            before=fetch_as_bob,
            answers=one_expires,
        ),
        Row("changed", body={"alias": "x", "message_expiry_seconds": 0} | EXPIRY, answers=one_expires),
        Row("both", body={"min_lifetime_seconds": DAY, "message_expiry_seconds": DAY} | BOTH, answers=one_expires),
        Row("too fast", 429, 100, body={"message_expiry_seconds": 2 * DAY} | EXPIRY, before=hurry("alice", "secret")),
    ],
    f"POST {API}/groups/{{group_id}}/delete": [Row("deleted")],
    f"GET {API}/groups/{{group_id}}/group-info": [
        Row("none stored", 404, 300, at={"group_id": "bare"}),
        Row("stored", answers=lambda _: {"group_info": INFO}),
    ],
    f"GET {API}/groups/{{group_id}}/retention": [
        Row(
            "both layers, and what follows",
            answers=lambda world: {
                "server_retention_seconds": 30 * DAY,
                "group_expiry_seconds": DAY,
                "effective_expiry_seconds": DAY,
                "min_lifetime_seconds": 0,
                "policy_source": "group",
                "legal_hold": False,
                "held_by": [],
                "hidden_before": world.running.clock.now() - 30 * DAY,
                "taken_back": [],
                "more": False,
                "last_sequence_num": 1,
                "expiry_set_by": world.users["alice"].user_id,
            },
        ),
        Row(
            "who holds messages back",
            before=delete_after_fetch,
            answers=lambda world: {
                "server_retention_seconds": 30 * DAY,
                "group_expiry_seconds": 0,
                "effective_expiry_seconds": 0,
                "min_lifetime_seconds": 0,
                "policy_source": "group",
                "legal_hold": False,
                "held_by": [world.users["bob"].user_id],
                "hidden_before": world.running.clock.now() - DAY,
                "taken_back": [],
                "more": False,
                "last_sequence_num": 1,
                "expiry_set_by": world.users["alice"].user_id,
            },
        ),
    ],
    f"GET {API}/retention/configuration": [
        Row("all of it", answers=lambda _: {"policies": {"*": {"max_lifetime": 30 * DAY * 1000}}, "limits": {}})
    ],
    f"POST {API}/groups/{{group_id}}/join": [
        Row("no such group", 404, 300, who="carol", at={"group_id": "nobody"}),
        Row("a private one", 403, 402, who="erin", at={"group_id": "secret"}),
        Row("banned", 403, 403, who="mallory", at={"group_id": "club"}),
        Row("a member", 409, 301, who="bob"),
        Row("no group info", 400, 100, who="carol", at={"group_id": "bare"}),
        Row("joined", who="carol", answers=lambda _: {"group_info": INFO}),
        Row("too much", 403, 302, who="erin", before=fill_friends),
        Row("too fast", 429, 100, who="erin", before=hurry("erin", "club")),
    ],
    f"POST {API}/groups/{{group_id}}/invite": [
        Row("nobody", 400, 100, body={"user_ids": []}),
        Row("an unknown user", 404, 300, body={"user_ids": ["carol", "nobody"]}),
        Row("a user without a key package", 404, 300, body={"user_ids": ["carol", "erin"]}),
        Row("a member", 409, 301, body={"user_ids": ["carol", "bob"]}),
        Row("a banned user", 403, 403, at={"group_id": "club"}, body={"user_ids": ["mallory"]}),
        Row("only oneself", body={"user_ids": ["alice"]}, answers=lambda _: {"member_key_packages": []}),
        Row(
            "handed out",
            body={"user_ids": ["carol", "alice", "carol"]},
            times=10,
            answers=lambda world: {
                "member_key_packages": [{"user_id": world.users["carol"].user_id, "key_package_data": PACKAGE}]
            },
        ),
        Row("too often", 429, 100, body={"user_ids": ["carol"]}),
    ],
    f"POST {API}/groups/{{group_id}}/escrow-invite": [
        Row("no welcome", 400, 100, body=COMMIT | {"invitee_id": "carol"}),
        Row("nobody", 404, 300, body=INVITE | {"invitee_id": "nobody"}),
        Row("a member", 409, 301, body=INVITE | {"invitee_id": "bob"}),
        Row("a banned user", 403, 403, at={"group_id": "club"}, body=INVITE | {"invitee_id": "mallory"}),
        Row("invited", body=INVITE | {"invitee_id": "carol"}),
        Row("pending", 409, 301, body=INVITE | {"invitee_id": "carol"}),
        Row("too much", 403, 302, body=INVITE | {"invitee_id": "erin", "commit_message": TOO_MUCH}),
        Row("too fast", 429, 100, body=INVITE | {"invitee_id": "erin"}, before=hurry("alice", "secret")),
    ],
    f"GET {API}/groups/{{group_id}}/invites": [
        Row(
            "pending", at={"group_id": "secret"}, answers=lambda world: {"invites": [world.invitation()], "more": False}
        ),
        Row("none", answers=lambda _: {"invites": [], "more": False}),
    ],
    f"POST {API}/groups/{{group_id}}/cancel-invite": [
        Row("nobody named", 400, 100, body={}),
        Row("not invited", 404, 300, body={"invitee_id": "carol"}),
        Row("nobody", 404, 300, body={"invitee_id": "nobody"}),
        Row("cancelled", at={"group_id": "secret"}, body={"invitee_id": "carol"}),
    ],
    f"GET {API}/invites": [
        Row("none", answers=lambda _: {"invites": [], "more": False}),
        Row("own", who="carol", answers=lambda world: {"invites": [world.invitation()], "more": False}),
    ],
    f"POST {API}/invites/{{invite_id}}/accept": [
        Row("no such invite", 404, 300, who="carol", at={"invite_id": "nobody"}),
        Row("accepted", who="carol"),
        Row("gone", 404, 300, who="carol"),
    ],
    f"POST {API}/invites/{{invite_id}}/decline": [
        Row("no such invite", 404, 300, who="carol", at={"invite_id": "nobody"}),
        Row("declined", who="carol"),
        Row("gone", 404, 300, who="carol"),
    ],
    f"GET {API}/welcomes": [
        Row("none", answers=lambda _: {"welcomes": [], "more": False}),
        Row(
            "own",
            who="erin",
            answers=lambda world: {
                "welcomes": [
                    {
                        "group_id": world.groups["club"],
                        "group_alias": "",
                        "welcome_message": WELCOME,
                        "welcome_id": world.others["welcome"],
                    }
                ],
                "more": False,
            },
        ),
    ],
    f"POST {API}/welcomes/{{welcome_id}}/accept": [
        Row("somebody else's", 404, 300),
        Row("accepted", 204, who="erin"),
        Row("gone", 404, 300, who="erin"),
    ],
    f"POST {API}/groups/{{group_id}}/commit": [
        Row("an MLS id that is not hex", 400, 101, body={"mls_group_id": "xyz"}),
        Row("nothing given", body={}),
        Row("stored", body={"commit_message": MESSAGE, "group_info": INFO, "mls_group_id": "0aFF"}),
        Row("too much", 403, 302, body={"commit_message": TOO_MUCH}),
        Row("too fast", 429, 100, body={"commit_message": MESSAGE}, times=8),
    ],
    f"POST {API}/groups/{{group_id}}/messages": [
        Row("no message", 400, 100, body={}),
        Row("a timer too long", 400, 101, body={"mls_message": MESSAGE, "self_destruct_seconds": 31_536_001}),
        Row("sent", body={"mls_message": MESSAGE}, answers=lambda _: {"sequence_num": 2}),
        Row(
            "sent with a timer",
            body={"mls_message": MESSAGE, "self_destruct_seconds": 60},
            answers=lambda _: {"sequence_num": 3},
        ),
        Row(
            "sent with an id", body={"mls_message": MESSAGE, "send_id": SEND_ID}, answers=lambda _: {"sequence_num": 4}
        ),
        Row("sent again", body={"mls_message": MESSAGE, "send_id": SEND_ID}, answers=lambda _: {"sequence_num": 4}),
        Row("too much", 403, 302, body={"mls_message": TOO_MUCH}),
        Row("too fast", 429, 100, body={"mls_message": MESSAGE}, times=8),
    ],
    f"GET {API}/groups/{{group_id}}/messages": [
        Row("a bad limit", 400, 101, query={"limit": "0"}),
        Row("a bad confirm", 400, 101, query={"confirm": "response"}),
        Row("a bad number", 400, 101, query={"after": "-1"}),
        Row("a bad word", 400, 101, query={"include_redacted": "maybe"}),
        Row("none left", query={"after": "1"}, answers=lambda _: {"messages": []}),
        Row(
            "fetched",
            who="bob",
            answers=lambda world: {
                "messages": [
                    {
                        "sequence_num": 1,
                        "sender_id": world.users["alice"].user_id,
                        "mls_message": MESSAGE,
                        "created_at": world.running.clock.now(),
                        "self_destruct_seconds": 0,
                        "redacted": False,
                        "expires_at": world.running.clock.now() + DAY + 1,
                    }
                ]
            },
        ),
    ],
    f"DELETE {API}/groups/{{group_id}}/messages/{{sequence_num}}": [
        Row("no number", 400, 101, at={"sequence_num": "first"}),
        Row("no such message", 404, 300, at={"sequence_num": "9"}),
        Row("somebody else's", 403, 402, who="bob"),
        Row("a commit", 400, 100, at={"sequence_num": "2"}, before=commit),
        Row("taken back"),
        Row("taken back before"),
        Row("too fast", 429, 100, at={"group_id": "secret", "sequence_num": "1"}, before=hurry("alice", "secret")),
    ],
    f"POST {API}/groups/{{group_id}}/read": [
        Row("nothing", 400, 100, body={}),
        Row("read", body={"sequence_num": 1}),
    ],
    f"POST {API}/groups/{{group_id}}/remove": [
        Row("nobody named", 400, 100, body=COMMIT),
        Row("an unknown user", 404, 300, body={"user_id": "nobody"}),
        Row("not a member", 400, 100, body={"user_id": "carol"}),
        Row("removed", body=COMMIT | {"user_id": "bob"}),
    ],
    f"POST {API}/groups/{{group_id}}/leave": [
        Row("without a word", who="bob"),
        Row("with a commit", body={"commit_message": MESSAGE, "group_info": INFO}),
    ],
    f"POST {API}/groups/{{group_id}}/promote": [
        Row("nobody named", 400, 100, body={}),
        Row("an unknown user", 404, 300, body={"user_id": "nobody"}),
        Row("not a member", 400, 100, body={"user_id": "carol"}),
        Row("an admin", 409, 301, body={"user_id": "alice"}),
        Row("promoted", body={"user_id": "bob"}),
    ],
    f"POST {API}/groups/{{group_id}}/demote": [
        Row("nobody named", 400, 100, body={}),
        Row("not an admin", 400, 100, body={"user_id": "bob"}),
        Row("an unknown user", 404, 300, body={"user_id": "nobody"}),
        Row("the last admin", 400, 100, body={"user_id": "alice"}),
        Row("demoted", body={"user_id": "alice"}, before=promote_bob),
    ],
    f"GET {API}/groups/{{group_id}}/admins": [
        Row("the admins", answers=lambda world: {"admins": [world.user("alice") | {"role": "admin"}], "more": False})
    ],
    f"POST {API}/groups/{{group_id}}/ban": [
        Row("nobody named", 400, 100, body=COMMIT),
        Row("an unknown user", 404, 300, body={"user_id": "nobody"}),
        Row("not a member", body={"user_id": "carol"}),
        Row("again", body={"user_id": "carol"}),
        Row("a member", body=COMMIT | {"user_id": "bob"}),
    ],
    f"POST {API}/groups/{{group_id}}/unban": [
        Row("nobody named", 400, 100, body={}),
        Row("an unknown user", 404, 300, body={"user_id": "nobody"}),
        Row("not banned", 400, 100, body={"user_id": "bob"}),
        Row("unbanned", at={"group_id": "club"}, body={"user_id": "mallory"}),
    ],
    f"GET {API}/groups/{{group_id}}/banned": [
        Row("nobody", answers=lambda _: {"users": [], "more": False}),
        Row(
            "somebody",
            at={"group_id": "club"},
            answers=lambda world: {
                "users": [
                    {
                        "user_id": world.users["mallory"].user_id,
                        "username": "mallory",
                        "alias": "",
                        "banned_at": world.running.clock.now(),
                        "banned_by": world.users["alice"].user_id,
                    }
                ],
                "more": False,
            },
        ),
    ],
    f"POST {API}/groups/{{group_id}}/external-join": [
        Row("an MLS id that is not hex", 400, 101, body={"commit_message": MESSAGE, "mls_group_id": "xyz"}),
        Row("no group info", 400, 100, at={"group_id": "bare"}, body={"commit_message": MESSAGE}),
        Row("joined", body={"commit_message": MESSAGE}),
        Row("no commit", body={"mls_group_id": "0aFF"}),
        Row("nothing", body={}),
        Row("with its group info", body={"commit_message": MESSAGE, "group_info": INFO}),
        Row("too late", 409, 301, body={"commit_message": MESSAGE, "group_info": EPOCH_7}, before=reach_epoch_7),
        Row("too much", 403, 302, body={"commit_message": TOO_MUCH}),
        Row("too fast", 429, 100, body={"commit_message": MESSAGE}, times=8),
    ],
    f"GET {API}/sessions": [
        Row("one", who="bob", answers=lambda world: {"sessions": [world.session()], "more": False}),
        Row(
            "two",
            answers=lambda world: {
                "sessions": [world.session() | {"id": world.others["phone"], "current": False}, world.session()],
                "more": False,
            },
        ),
    ],
    f"DELETE {API}/sessions/{{id}}": [
        Row("somebody else's", 404, 300, who="bob"),
        Row("revoked", 204),
        Row("gone", 404, 300),
    ],
    f"GET {API}/events": [Row("a bad format", 400, 101, query={"format": "xml"})],  # the stream has tests of its own
}
"""Every endpoint: how it refuses, then what it answers. What holds for all of them is not repeated here."""

DOCUMENTED = {cells[0].strip("`"): cells for cells in rows(doc("docs/protocol.md"), r"`[A-Z]+ /\S+`")}


@pytest.fixture(params=Format, ids=lambda each: each.name.lower())
async def world(request: pytest.FixtureRequest, config: Config, start_server: StartServer) -> AsyncIterator[World]:
    limits = LimitsConfig(
        login_failures=2,
        registrations_per_address=6,
        user_sends_per_minute=12,
        group_stored_bytes=4096,
        user_groups=5,
    )
    asked = replace(config, registration_token=INVITATION, message_retention=30 * DAY, limits=limits)
    async with start_server(asked) as running:
        built = World(running, request.param)
        await built.build()
        yield built


def test_the_table_has_every_endpoint() -> None:
    assert list(TABLE) == [f"{route.method} {route.path}" for route in ROUTES]


def test_the_documented_messages_are_those_of_the_endpoints() -> None:
    documented = {
        endpoint.replace(API, ""): tuple(message_in(cells, kind) for kind in ("Request", "Response|Empty"))
        for endpoint, cells in DOCUMENTED.items()
        if f" {API}/" in endpoint
    }
    assert documented == MESSAGES


def message_in(cells: list[str], kind: str) -> str | None:
    found = re.search(rf"`(\w*(?:{kind}))`", " | ".join(cells))
    return found and found[1]


@pytest.mark.parametrize("endpoint", TABLE)
def test_the_table_has_every_answer_that_is_documented(endpoint: str) -> None:
    documented = re.findall(r"\b([1-5]\d\d)\b(?: \((\d{3})\))?", DOCUMENTED[endpoint][-1])
    assert documented
    for status, code in documented:
        assert any(row.status == int(status) and (not code or row.code == int(code)) for row in TABLE[endpoint]), (
            f"{status} {code}"
        )


@pytest.mark.parametrize("route", ROUTES, ids=lambda each: f"{each.method} {each.path}")
def test_the_table_has_every_error_of_an_endpoint(route: Endpoint) -> None:
    """What an endpoint says that it refuses is in the OpenAPI document, and must be true."""
    caused = {(row.status, row.code) for row in TABLE[f"{route.method} {route.path}"]}
    assert {(error.status, error.code) for error in route.refuses} <= caused


@pytest.mark.parametrize("route", ROUTES, ids=lambda each: f"{each.method} {each.path}")
async def test_an_endpoint_refuses_and_answers(world: World, route: Endpoint) -> None:
    for why, expected, asked in refusals(world, route):
        status, answer = await world.ask(**asked)
        assert (status, answer["error_code"]) == expected, why
        assert answer["message"], why
        assert status == 405 or expected in answers_of(route), why
        if world.format is Format.JSON:
            check_answer(route, status, answer)
    for row in TABLE[f"{route.method} {route.path}"]:
        if row.before:
            await row.before(world)
        for _ in range(row.times):
            status, answer = await ask(world, route, row)
        assert status == row.status, (row.why, answer)
        assert (row.status, row.code) in answers_of(route), row.why
        if world.format is Format.JSON or row.code is None:
            check_answer(route, status, answer)
        if row.code is None:
            assert answer == row.answers(world), row.why
        else:
            assert answer["error_code"] == row.code, row.why


async def ask(world: World, route: Endpoint, row: Row) -> tuple[int, dict[str, Any]]:
    """Send a row's request with no more headers than are needed."""
    return await world.ask(
        route.method,
        world.path(route, row.at),
        data=None if row.body is None else world.write(route, world.body(row.body)),
        content_type="" if row.body is None else world.format.value,
        token="" if route.public else world.users[row.who].token,
        query=row.query,
    )


def refusals(world: World, route: Endpoint) -> Iterator[tuple[str, tuple[int, int], dict[str, Any]]]:
    """Yield what any endpoint refuses as far as it has the part: why, status and code, request."""
    known = {"accept": world.format.value} if route.public else {"token": world.users["alice"].token}
    plain = {"method": route.method, "path": world.path(route, {})}
    yield "a wrong method", (405, 100), plain | known | {"method": "PUT"}
    if not route.public:
        yield "not logged in", (401, 200), plain | {"accept": world.format.value}
        yield "not logged in, by Content-Type", (401, 200), plain | {"content_type": world.format.value}
        yield "a dead token", (401, 202), plain | {"token": world.dead_token()}
        yield "a bad token", (401, 201), plain | {"accept": world.format.value, "token": "two words"}
    for name in re.findall(r"\{(\w+_id)\}", route.path):
        yield "a malformed id", (400, 101), plain | known | {"path": world.path(route, {name: "malformed"})}
    if route.path.startswith(API) and messages_of(route.method, route.path.removeprefix(API))[0]:
        body = {"content_type": world.format.value, "data": b"\xff"}
        yield "another content type", (415, 100), plain | known | body | {"content_type": "text/plain"}
        yield "no content type", (415, 100), plain | known | body | {"content_type": ""}
        yield "a malformed body", (400, 100), plain | known | body
        yield "a body too large", (413, 100), plain | known | body | {"data": io.BytesIO(bytes(1_048_577))}
    who = DOCUMENTED[f"{route.method} {route.path}"][1]
    if who == "I":
        yield "bob may not", (401, 400), plain | {"token": world.users["bob"].token}
    code = {"M": 400, "G": 401}.get(who)
    if code:
        last = TABLE[f"{route.method} {route.path}"][-1]
        body = (
            {}
            if last.body is None
            else {"content_type": world.format.value, "data": world.write(route, world.body(last.body))}
        )
        for name in ("carol", "bob") if who == "G" else ("carol",):
            yield f"{name} may not", (401, code), plain | body | {"token": world.users[name].token}
        nowhere = {"path": world.path(route, {"group_id": "nobody"})}
        yield "no such group", (401, code), plain | body | known | nowhere


async def test_an_unknown_path_and_a_failure_inside(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    token = world.users["alice"].token
    status, answer = await world.ask("GET", f"{API}/nothing", token=token)
    assert (status, answer["error_code"]) == (404, 300)

    async def fail(*_: object) -> None:
        raise RuntimeError("SELECT secret FROM /var/lib")

    monkeypatch.setattr(world.running.app[app_keys.STORE], "read", fail)
    status, answer = await world.ask("GET", f"{API}/me", token=token)
    assert (status, answer["message"], answer["error_code"]) == (500, "internal server error", 0)


async def test_accept_asks_for_the_other_format(world: World) -> None:
    """Also at login: the token is then one of the format that the client reads."""
    other = next(each for each in Format if each is not world.format)
    login = next(route for route in ROUTES if route.path.endswith("/login"))
    body = world.write(login, {"username": "alice", "password": PASSWORD})
    written_in, world.format = world.format.value, other
    _, answer = await world.ask("POST", login.path, data=body, content_type=written_in, accept=other.value)
    assert await world.ask("GET", f"{API}/me", token=answer["token"]) == (200, world.user("alice"))


async def test_a_message_that_one_format_sends_the_other_fetches(world: World) -> None:
    other = (ProtobufClient if world.format is Format.JSON else Client)(world.running.http, world.running.url)
    await other.login("bob")
    assert await other.send(world.groups["friends"], bytes(range(256))) == 2
    assert [each.body for each in await world.users["alice"].fetch(world.groups["friends"], 1)] == [bytes(range(256))]
    assert base64.b64decode((await other.get(f"/groups/{world.groups['friends']}/group-info"))["group_info"])


async def test_the_zeros_of_protobuf(world: World) -> None:
    """An empty alias clears it in JSON and changes nothing in protobuf; an expiry of 0 counts in both."""
    alice, group = world.users["alice"], world.groups["friends"]
    await alice.patch(group, alias="Old Friends", visibility="private")
    await alice.patch(group, alias="", message_expiry_seconds=0, update_message_expiry=True)
    shown = (await alice.get("/groups"))["groups"][0]
    assert shown["alias"] == ("" if world.format is Format.JSON else "Old Friends")
    assert (shown["message_expiry_seconds"], shown["visibility"]) == (0, "private")
    await alice.patch(group, alias="x", message_expiry_seconds=0)
    await alice.patch(group, update_message_expiry=True, message_expiry_seconds=-1)
    assert (await alice.get("/groups"))["groups"][0]["message_expiry_seconds"] == -1
