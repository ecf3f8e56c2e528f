"""Accounts over HTTP."""

import asyncio
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from conclave import keys
from conclave.config import Config
from conclave.store import state
from tests.client import PASSWORD, Client, RefusedError, expect
from tests.conftest import Running, StartServer


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
        subprocess.run(["cp", *tmp_path.glob("hot.db*"), tmp_path / "crashed"], check=True)
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
        await server.app[keys.STORE].write(state.still_alive, server.clock.read())
        (tmp_path / "crashed").mkdir()
        subprocess.run(["cp", *tmp_path.glob("hot.db*"), tmp_path / "crashed"], check=True)
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


@pytest.mark.parametrize(("token", "status"), [("let-me-in", 201), ("let-me-out", 403), ("", 403)])
async def test_registration_can_ask_for_a_token(
    config: Config, start_server: StartServer, token: str, status: int
) -> None:
    async with start_server(replace(config, registration_token="let-me-in")) as server:
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
        async with server.http.get(url, headers={"X-Conclave": ""}) as response:
            assert (await response.json())["error_code"] == 201
