"""Accounts over HTTP."""

import asyncio
import contextlib
import json
import subprocess
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from conclave import app_keys
from conclave.actions import groups
from conclave.actions.accounts import disable, own_credentials
from conclave.config.settings import Config
from conclave.retention.policy import LAST_SECOND
from conclave.store.engine import sqlite
from conclave.store.resources import sessions, state, users
from tests.conftest import Running, StartServer
from tests.support.client import API, PACKAGE, PASSWORD, Client, RefusedError, encode, expect
from tests.support.listening import listening
from tests.support.protobuf import PROTOBUF, ProtobufClient
from tests.support.racing import right_after, right_after_session
from tests.support.server import PATIENCE

NEW = "battery staple"


async def both(*requests: Awaitable[Any]) -> tuple[list[Any], list[tuple[int, int]]]:
    """Make requests at the same time; return the answers of those that went well, and how the others were refused."""
    outcomes = await asyncio.gather(*requests, return_exceptions=True)
    refused = [(each.status, each.code) for each in outcomes if isinstance(each, RefusedError)]
    answered = [each for each in outcomes if not isinstance(each, BaseException)]
    assert len(answered) + len(refused) == len(outcomes), outcomes
    return answered, refused


async def test_a_user_registers_logs_in_and_is_found_by_name_and_id(running: Running) -> None:
    alice = await running.user("alice")
    expected = {"user_id": alice.user_id, "username": "alice", "alias": "", "signing_key_fingerprint": ""}
    assert await alice.get("/me") == expected
    assert await alice.get("/users/alice") == expected
    assert await alice.get(f"/users/by-id/{alice.user_id.replace('-', '').upper()}") == expected


async def test_a_token_says_that_it_was_issued_in_json(running: Running) -> None:
    alice = await running.user("alice")
    assert len(alice.token) == 64
    assert int(alice.token[-1], 16) % 2 == 0


async def test_the_store_has_neither_password_nor_token(running: Running) -> None:
    alice = await running.user("alice")
    rows = str(await running.query("SELECT * FROM users, sessions"))
    assert PASSWORD not in rows
    assert alice.token not in rows
    assert "$argon2id$" in rows


async def test_logging_out_ends_this_session_only(running: Running) -> None:
    alice = await running.user("alice")
    phone = Client(running.http, running.url)
    await phone.login("alice")
    await alice.post("/logout")
    await expect(alice.get("/me"), 401, 202)
    assert (await phone.get("/me"))["username"] == "alice"


async def test_a_session_lives_on_with_each_use(running: Running) -> None:
    alice = await running.user("alice")
    ttl = running.config.token_ttl_seconds
    for _ in range(3):
        running.clock.advance(ttl - 1)
        await alice.get("/me")
    running.clock.advance(ttl)
    await expect(alice.get("/me"), 401, 202)


async def test_a_use_shortly_before_a_stop_counts(config: Config, start_server: StartServer) -> None:
    async with start_server(config) as server:
        alice = await server.user("alice")
        server.clock.advance(59)
        await alice.get("/me")
    server.clock.advance(config.token_ttl_seconds - 1)
    async with start_server(config) as server:
        again = Client(server.http, server.url, alice.token)
        assert (await again.get("/me"))["username"] == "alice"
        server.clock.advance(config.token_ttl_seconds)
        await expect(again.get("/me"), 401, 202)


async def test_a_use_shortly_before_a_crash_counts(config: Config, start_server: StartServer, tmp_path: Path) -> None:
    async with start_server(config) as server:
        alice = await server.user("alice")
        server.clock.advance(59)
        await alice.get("/me")
        # The files as a crash leaves them; copied by another process, since closing a file drops SQLite's locks.
        (tmp_path / "crashed").mkdir()
        subprocess.run(["cp", "-r", *tmp_path.glob("hot.db*"), config.vault_path, tmp_path / "crashed"], check=True)
    server.clock.advance(config.token_ttl_seconds - 1)
    async with start_server(replace(config, database_path=str(tmp_path / "crashed" / "hot.db"))) as server:
        again = Client(server.http, server.url, alice.token)
        assert (await again.get("/me"))["username"] == "alice"


async def test_a_session_that_had_expired_stays_dead_after_a_crash(
    config: Config, start_server: StartServer, tmp_path: Path
) -> None:
    async with start_server(replace(config, token_ttl_seconds=120)) as server:
        alice = await server.user("alice")
        server.clock.advance(130)
        await expect(alice.get("/me"), 401, 202)
        await server.app[app_keys.STORE].write(state.note_alive, server.clock.read())
        (tmp_path / "crashed").mkdir()
        subprocess.run(["cp", "-r", *tmp_path.glob("hot.db*"), config.vault_path, tmp_path / "crashed"], check=True)
    crashed = replace(config, token_ttl_seconds=120, database_path=str(tmp_path / "crashed" / "hot.db"))
    async with start_server(crashed) as server:
        await expect(Client(server.http, server.url, alice.token).get("/me"), 401, 202)


async def test_login_does_not_tell_which_part_was_wrong(running: Running) -> None:
    alice = await running.user("alice")
    wrong = await expect(alice.post("/login", username="alice", password="wrong password"), 401, 202)
    unknown = await expect(alice.post("/login", username="nobody", password="wrong password"), 401, 202)
    assert wrong == unknown


async def test_a_name_is_taken_once(running: Running) -> None:
    alice = await running.user("alice")
    await expect(alice.post("/register", username="alice", password=PASSWORD), 409, 301)


async def test_an_account_is_deleted_once(running: Running) -> None:
    alice = await running.user("alice")
    requests = [alice.post("/delete-account", password=PASSWORD) for _ in range(5)]
    outcomes = await asyncio.gather(*requests, return_exceptions=True)
    refused = [each for each in outcomes if isinstance(each, RefusedError)]
    assert [(each.status, each.code) for each in refused] == [(401, 202)] * 4


async def test_registration_can_be_closed(config: Config, start_server: StartServer) -> None:
    async with start_server(replace(config, registration_enabled=False)) as server:
        await expect(Client.register(server.http, server.url, "alice"), 403, 302)


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize(
    ("token", "status"), [("let-me-in", 201), ("let-me-out", 403), ("", 403), ("let-me-\u00efn", 403), ("\0", 403)]
)
async def test_registration_can_ask_for_a_token_which_opens_it_where_it_is_closed(
    config: Config, start_server: StartServer, enabled: bool, token: str, status: int
) -> None:
    asked = replace(config, registration_token="let-me-in", registration_enabled=enabled)
    async with start_server(asked) as server:
        client = Client(server.http, server.url)
        request = client.post("/register", username="alice", password=PASSWORD, registration_token=token)
        if status == 201:
            assert (await request)["user_id"]
        else:
            await expect(request, status, 302)


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (None, 200),
        ("Bearer", 201),
        ("Bearer ", 201),
        ("Basic YTpi", 201),
        ("Bearer one two", 201),
        ("Bearer " + "0" * 64, 202),
        ("Bearer short", 202),
        ("Bearer \u00fc", 201),
    ],
)
async def test_bad_credentials_are_told_apart(running: Running, header: str | None, code: int) -> None:
    headers = {} if header is None else {"Authorization": header}
    async with running.http.get(f"{running.url}/api/v1/me", headers=headers) as response:
        assert response.status == 401
        assert (await response.json())["error_code"] == code


async def test_the_token_can_come_raw_in_a_header_of_the_operators(config: Config, start_server: StartServer) -> None:
    async with start_server(replace(config, auth_header="X-Conclave")) as server:
        alice = await server.user("alice")
        await expect(alice.get("/me"), 401, 200)
        url = f"{server.url}/api/v1/me"
        async with server.http.get(url, headers={"X-Conclave": alice.token}) as response:
            assert response.status == 200
        for wrong in ("", f"Bearer {alice.token}"):
            async with server.http.get(url, headers={"X-Conclave": wrong}) as response:
                body = await response.json()
                assert (body["error_code"], "the token alone" in body["message"]) == (201, True)


async def test_an_alias_is_set_and_cleared(running: Running) -> None:
    alice = await running.user("alice")
    changes: list[tuple[dict[str, Any], str]] = [
        ({"alias": "\u00c4lice \u2603"}, "\u00c4lice \u2603"),
        ({}, "\u00c4lice \u2603"),
        ({"alias": None}, "\u00c4lice \u2603"),
        ({"alias": ""}, ""),
        ({"alias": "a" * 64}, "a" * 64),
    ]
    for change, alias in changes:
        await alice.call("PATCH", "/me", json=change)
        assert (await alice.get("/me"))["alias"] == alias
    for bad in ("a" * 65, "tab\t", "\x7f"):
        answer = await expect(alice.call("PATCH", "/me", json={"alias": bad}), 400, 101)
        assert list(answer["errors"]) == ["alias"]
    await expect(alice.call("PATCH", "/me", json={"alais": "x"}), 400, 101)
    assert (await alice.get("/me"))["alias"] == "a" * 64


@pytest.mark.parametrize("headers", [PROTOBUF, {}], ids=["with its type", "without a type"])
async def test_an_empty_message_in_protobuf_clears_the_alias(running: Running, headers: dict[str, str]) -> None:
    alice = await ProtobufClient.register(running.http, running.url, "alice")
    await alice.call("PATCH", "/me", json={"alias": "x"})
    assert (await alice.get("/me"))["alias"] == "x"
    sent = headers | {"Authorization": f"Bearer {alice.token}"}
    async with running.http.patch(
        f"{running.url}/api/v1/me", headers=sent, skip_auto_headers=["Content-Type"]
    ) as response:
        assert (response.status, await response.read()) == (200, b"")
    assert (await alice.get("/me"))["alias"] == ""


async def test_a_change_of_password_ends_every_session_and_its_streams(running: Running) -> None:
    alice, bob = await running.users("alice", "bob")
    phone = await alice.another("alice")
    async with listening(alice) as here, listening(phone) as there, listening(bob) as other:
        await alice.post("/change-password", current_password=PASSWORD, new_password=NEW)
        await expect(phone.get("/me"), 401, 202)
        await expect(alice.get("/me"), 401, 202)
        await here.ended()
        await there.ended()
        assert not other.has_ended
    await expect(alice.post("/login", username="alice", password=PASSWORD), 401, 202)
    alice.token = (await alice.post("/login", username="alice", password=NEW))["token"]
    assert (await alice.get("/me"))["username"] == "alice"
    assert (await bob.get("/me"))["username"] == "bob"


async def test_a_password_that_is_not_changed_leaves_the_sessions(running: Running) -> None:
    alice = await running.user("alice")
    await expect(alice.post("/change-password", current_password="wrong one", new_password=NEW), 401, 203)
    await expect(alice.post("/change-password", current_password=PASSWORD, new_password="seven!!"), 400, 101)
    await expect(alice.post("/change-password", current_password=PASSWORD), 400, 100)
    await expect(alice.post("/delete-account", password="wrong one"), 401, 203)
    assert (await alice.get("/me"))["username"] == "alice"
    await alice.login("alice")


async def test_a_login_with_the_old_password_that_ends_after_the_change_begins_no_session(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice = await running.user("alice")

    async def change() -> None:
        await alice.post("/change-password", current_password=PASSWORD, new_password=NEW)

    right_after(running, monkeypatch, users.credentials, change)
    await expect(Client(running.http, running.url).login("alice"), 401, 202)
    assert await running.query("SELECT count(*) FROM sessions") == [(0,)]


async def test_of_two_changes_of_password_at_the_same_time_one_wins(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice = await running.user("alice")
    phone = await alice.another("alice")

    async def change() -> None:
        await phone.post("/change-password", current_password=PASSWORD, new_password=NEW)

    right_after(running, monkeypatch, own_credentials, change)
    await expect(alice.post("/change-password", current_password=PASSWORD, new_password="another new one"), 401, 203)
    await alice.post("/login", username="alice", password=NEW)
    await expect(alice.post("/login", username="alice", password="another new one"), 401, 202)


async def test_an_account_is_not_deleted_by_a_password_that_was_changed_meanwhile(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice = await running.user("alice")
    phone = await alice.another("alice")

    async def change() -> None:
        await phone.post("/change-password", current_password=PASSWORD, new_password=NEW)

    right_after(running, monkeypatch, own_credentials, change)
    await expect(alice.post("/delete-account", password=PASSWORD), 401, 203)
    await alice.post("/login", username="alice", password=NEW)


@pytest.mark.parametrize("name", ["username", "group_name"])
async def test_of_two_who_take_a_name_at_the_same_time_one_gets_it(running: Running, name: str) -> None:
    alice = await running.user("alice")
    path = "/groups" if name == "group_name" else "/register"
    body = {name: "taken"} | ({} if name == "group_name" else {"password": PASSWORD})
    answered, refused = await both(*(alice.post(path, **body) for _ in range(5)))
    assert (len(answered), refused) == (1, [(409, 301)] * 4)


async def test_sessions_are_listed_and_ended(running: Running) -> None:
    alice, bob = await running.users("alice", "bob")
    began, ttl = running.clock.now(), running.config.token_ttl_seconds
    running.clock.advance(10)
    phone = await alice.another("alice")
    running.clock.advance(10)
    own, other = (await phone.get("/sessions"))["sessions"]
    assert own == {
        "id": own["id"],
        "created_at": began + 10,
        "last_used_at": began + 20,
        "expires_at": began + 20 + ttl,
        "current": True,
    }
    assert (other["created_at"], other["last_used_at"], other["current"]) == (began, began, False)
    assert alice.token not in str(await alice.get("/sessions"))
    async with listening(alice) as ending, listening(phone) as going_on:
        await expect(bob.call("DELETE", f"/sessions/{other['id']}"), 404, 300)
        await phone.call("DELETE", f"/sessions/{other['id']}")
        await ending.ended()
        assert not going_on.has_ended
    await expect(alice.get("/me"), 401, 202)
    await expect(phone.call("DELETE", f"/sessions/{other['id']}"), 404, 300)
    assert [each["id"] for each in (await phone.get("/sessions"))["sessions"]] == [own["id"]]
    await phone.call("DELETE", f"/sessions/{own['id']}")
    await expect(phone.get("/me"), 401, 202)


async def test_a_session_that_has_expired_is_not_listed(running: Running) -> None:
    alice = await running.user("alice")
    running.clock.advance(10)
    phone = await alice.another("alice")
    running.clock.advance(running.config.token_ttl_seconds - 10)
    assert len((await phone.get("/sessions"))["sessions"]) == 1


async def ending(running: Running, user: Client, how: str) -> Callable[[], Awaitable[None]]:
    """Return what ends the session of ``user``, whose name is alice, as ``how`` says: itself, or from another one."""
    phone = await user.another("alice")
    [session] = [each["id"] for each in (await user.get("/sessions"))["sessions"] if each["current"]]

    async def end() -> None:
        match how:
            case "logout":
                await user.post("/logout")
            case "revoke":
                await phone.call("DELETE", f"/sessions/{session}")
            case "change-password":
                await phone.post("/change-password", current_password=PASSWORD, new_password=NEW)
            case "delete-account":
                await phone.post("/delete-account", password=PASSWORD)
            case _:
                await running.app[app_keys.STORE].write(disable, UUID(user.user_id).bytes)

    return end


@pytest.mark.parametrize("ends", ["logout", "revoke", "change-password", "delete-account"])
async def test_a_stream_does_not_begin_for_a_session_that_has_just_ended(
    running: Running, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    alice = await running.user("alice")
    right_after_session(running, monkeypatch, await ending(running, alice, ends))
    await expect(asyncio.wait_for(alice.get("/events"), 10), 401, 202)


@pytest.mark.parametrize("ends", ["logout", "revoke", "change-password", "disable"])
async def test_a_body_that_comes_after_its_session_has_ended_does_nothing(
    running: Running, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """Otherwise who has stolen a token could hold back requests until its owner has ended the session."""
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("friends")
    await bob.join(group)
    end, has_ended = await ending(running, alice, ends), asyncio.Event()

    async def end_and_tell() -> None:
        await end()
        has_ended.set()

    body = json.dumps({"user_id": bob.user_id}).encode()
    head = f"POST {API}/groups/{group}/promote HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {alice.token}\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", running.server.port)
    right_after_session(running, monkeypatch, end_and_tell)
    with contextlib.closing(writer):
        writer.write(head.encode() + body[:5])
        async with asyncio.timeout(PATIENCE):
            await has_ended.wait()
            writer.write(body[5:])
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 401 ")
            assert b'"error_code":202' in await reader.readuntil(b"}}")
    assert (await bob.roles(group))["bob"] == "member"


@pytest.mark.parametrize("ends", ["logout", "revoke", "change-password", "disable"])
async def test_a_change_of_policy_that_waits_while_its_session_ends_does_nothing(
    running: Running, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """Each waits for its turn: who has stolen a token could ask for so many that some come after the session's end."""
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("friends")
    await bob.join(group)
    right_after(running, monkeypatch, groups.rehearse, await ending(running, alice, ends))
    await expect(alice.set_expiry(group, 0), 401, 202)
    [seen] = (await bob.get("/groups"))["groups"]
    assert seen["message_expiry_seconds"] == -1


class Leaving:
    """Alice, who goes: admin of friends with bob and carol, alone in a group of her own, banned from one of eve's.

    She has invited dave, eve has invited her, and she has a welcome, a key package, and a stream.
    """

    async def build(self, running: Running) -> None:
        self.users = await running.users("alice", "bob", "carol", "dave", "eve")
        self.alice, self.bob, self.carol, self.dave, self.eve = self.users
        self.friends = await self.alice.create_group("friends")
        for member in (self.bob, self.carol):
            await member.join(self.friends)
        self.sole = await self.alice.create_group("sole")
        self.eves = await self.eve.create_group("eves")
        self.welcoming = await self.eve.create_group("welcoming")
        await self.alice.accept(await self.eve.invite(self.welcoming, self.alice))
        await self.eve.invite(self.eves, self.alice)
        await self.alice.invite(self.friends, self.dave)
        await self.alice.invite(self.sole, self.dave)
        await self.alice.upload(PACKAGE, last_resort=PACKAGE)
        await self.alice.send(self.friends, b"from alice")
        await self.alice.send(self.sole, b"to oneself")
        await self.alice.post(f"/groups/{self.friends}/commit", commit_message=encode(b"commit"))
        await self.bob.send(self.friends, b"from bob")


async def test_a_deleted_account_leaves_commits_and_nothing_else_to_be_seen(running: Running) -> None:
    world = Leaving()
    await world.build(running)
    alice, bob, carol, dave, eve = world.users
    phone = await alice.another("alice")
    await expect(alice.post("/delete-account", password="wrong one"), 401, 203)
    assert [each.body for each in await bob.fetch(world.friends)] == [b"from alice", b"commit", b"from bob"]
    async with listening(phone) as stream:
        await alice.post("/delete-account", password=PASSWORD)
        await stream.ended()
    for session in (alice, phone):
        await expect(session.get("/me"), 401, 202)
    await expect(alice.post("/login", username="alice", password=PASSWORD), 401, 202)
    for member in (bob, carol):
        shown = [(each.sender_id, each.body) for each in await member.fetch(world.friends)]
        assert shown == [(alice.user_id, b"commit"), (bob.user_id, b"from bob")]
        assert await member.roles(world.friends) == {"bob": "admin", "carol": "member"}
    for path in ("/users/alice", f"/users/by-id/{alice.user_id}", f"/key-packages/{alice.user_id}"):
        await expect(bob.get(path), 404, 300)
    assert await dave.invited_to() == []
    assert (await eve.get(f"/groups/{world.eves}/invites"))["invites"] == []
    assert await eve.roles(world.welcoming) == {"eve": "admin"}
    listed = [each["group_name"] for each in (await bob.get("/groups/public"))["groups"]]
    assert listed == ["eves", "friends", "welcoming"], "the group that she was alone in went with her"
    for table in ("users", "sessions", "members", "key_packages", "welcomes"):
        assert await running.query(f"SELECT 1 FROM {table} WHERE user_id = ?", UUID(alice.user_id).bytes) == []


async def test_the_name_of_a_deleted_account_is_free_and_its_new_user_is_another(running: Running) -> None:
    world = Leaving()
    await world.build(running)
    await world.alice.post("/delete-account", password=PASSWORD)
    again = await running.user("alice")
    assert again.user_id != world.alice.user_id
    assert await again.get("/groups") == {"groups": [], "more": False}
    assert await again.invited_to() == []
    assert await again.welcomes() == []
    await expect(world.bob.take(again), 404, 300)
    await again.join(world.friends)
    assert [each.body for each in await again.fetch(world.friends)] == [b"commit", b"from bob"]


async def test_of_two_deletions_of_an_account_at_the_same_time_one_wins(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice = await running.user("alice")
    phone = await alice.another("alice")

    async def delete() -> None:
        await phone.post("/delete-account", password=PASSWORD)

    right_after(running, monkeypatch, own_credentials, delete)
    await expect(alice.post("/delete-account", password=PASSWORD), 401, 202)


ON_ITS_WAY: list[tuple[str, str, dict[str, Any]]] = [
    ("GET", "/me", {}),
    ("PATCH", "/me", {"alias": "x"}),
    ("POST", "/change-password", {"current_password": PASSWORD, "new_password": NEW}),
    ("POST", "/delete-account", {"password": PASSWORD}),
    ("POST", "/key-packages", {"key_package_data": encode(PACKAGE)}),
    ("POST", "/groups", {"group_name": "new"}),
    ("POST", "/groups/{eves}/join", {}),
    ("GET", "/events", {}),
]


@pytest.mark.parametrize(("method", "path", "body"), ON_ITS_WAY)
async def test_a_request_on_its_way_when_the_account_is_deleted_is_one_without_a_session(
    running: Running, monkeypatch: pytest.MonkeyPatch, method: str, path: str, body: dict[str, Any]
) -> None:
    alice, eve = await running.users("alice", "eve")
    eves = await eve.create_group("eves")
    phone = await alice.another("alice")

    async def delete() -> None:
        await phone.post("/delete-account", password=PASSWORD)

    right_after_session(running, monkeypatch, delete)
    request = alice.call(method, path.format(eves=eves), json=body or None)
    await expect(asyncio.wait_for(request, 10), 401, 202)
    assert await running.query("SELECT 1 FROM users WHERE user_id = ?", UUID(alice.user_id).bytes) == []


@pytest.mark.parametrize(
    "action", ["messages", "commit", "leave", "external-join", "invite", "ban", "delete", "group-info"]
)
async def test_a_request_to_a_group_on_its_way_when_the_account_is_deleted_is_a_stranger_s(
    running: Running, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    world = Leaving()
    await world.build(running)
    phone = await world.alice.another("alice")
    bodies = {
        "messages": {"mls_message": encode(b"late")},
        "external-join": {"commit_message": encode(b"late")},
        "invite": {"user_ids": [world.dave.user_id]},
        "ban": {"user_id": world.dave.user_id},
    }

    async def delete() -> None:
        await phone.post("/delete-account", password=PASSWORD)

    right_after_session(running, monkeypatch, delete)
    method = "GET" if action == "group-info" else "POST"
    request = world.alice.call(method, f"/groups/{world.friends}/{action}", json=bodies.get(action))
    await expect(request, 401, 401 if action in ("invite", "ban", "delete") else 400)


async def test_no_time_is_greater_than_json_readers_hold(config: Config, start_server: StartServer) -> None:
    """With the longest life of a session: as it begins, in use, as it is stored then, and after a crash."""
    forever = replace(config, token_ttl_seconds=LAST_SECOND)
    async with start_server(forever) as running:
        alice = await running.user("alice")
        for _ in range(2):
            [session] = (await alice.get("/sessions"))["sessions"]
            assert session["expires_at"] == LAST_SECOND
            running.clock.advance(100)
        uses = running.app[app_keys.ACTIVITY].unstored()
        await running.app[app_keys.STORE].write(sessions.extend, uses, LAST_SECOND, running.clock)
        assert await running.query("SELECT expires_at, last_used_at FROM sessions") == [
            (LAST_SECOND, running.clock.now() - 100)
        ]
    with closing(sqlite.connect(config.database)) as connection:
        connection.execute("UPDATE server_state SET stopped_cleanly = 0")
    async with start_server(forever) as running:
        assert await running.query("SELECT expires_at FROM sessions") == [(LAST_SECOND,)]


@pytest.mark.parametrize("kind", [Client, ProtobufClient])
async def test_a_wrong_login_says_what_is_wrong(running: Running, kind: type[Client]) -> None:
    """Its code is that of an expired token, by which existing clients go; its words are not."""
    alice = await kind.register(running.http, running.url, "alice")
    alice.token = ""
    for username, password in (("alice", "wrong horse"), ("nobody", PASSWORD)):
        with pytest.raises(RefusedError) as refused:
            await alice.post("/login", username=username, password=password)
        assert (refused.value.status, refused.value.code) == (401, 202)
        assert refused.value.body["message"] == "wrong username or password"
