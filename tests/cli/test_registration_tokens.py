"""`conclave invite-token`, and registering with what it makes, at a real server."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from conclave.clock import FakeClock
from conclave.config.cleanup import CleanupConfig
from conclave.config.limits import LimitsConfig
from conclave.config.settings import Config
from conclave.store.resources import registration_tokens
from spark.environment import RunEnvironment
from spark.run import clean_up
from tests.conftest import Running, StartServer
from tests.support.client import PASSWORD, Client, expect
from tests.support.commands import Run, done, refused, runner

DAY = 86_400


@pytest.fixture
def config(config: Config) -> Config:
    return replace(config, registration_enabled=False, cleanup=CleanupConfig(engine="sql", disk_reserve=0))


@pytest.fixture
def run(config: Config, clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    return runner(config, clock, tmp_path, monkeypatch)


@pytest.fixture
async def server(config: Config, start_server: StartServer) -> AsyncIterator[Running]:
    async with start_server(config) as running:
        yield running


async def call(run: Run, *words: str) -> Result:
    return await asyncio.to_thread(run, "invite-token", *words)


async def new(run: Run, *words: str) -> str:
    """Make a token, and check that it is all that is printed."""
    result = await call(run, "new", *words)
    [token] = done(result).splitlines()
    assert token not in result.stderr
    return token


async def listed(run: Run) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done(await call(run, "list", "--json")).splitlines()]


async def register(server: Running, name: str, token: str) -> int:
    body = {"username": name, "password": PASSWORD, "registration_token": token}
    async with server.http.post(f"{server.url}/api/v1/register", json=body) as response:
        answer = await response.json()
        if response.status == 403:
            assert answer["error_code"] == 302
            assert answer["message"] == "wrong registration token"
        return response.status


async def test_a_token_opens_as_many_accounts_as_it_says(server: Running, run: Run) -> None:
    token = await new(run, "--uses", "2", "--note", "choir")
    assert await register(server, "alice", token) == 201
    assert await register(server, "alice", token) == 409, "which uses nothing up"
    assert await register(server, "bob", token) == 201
    assert await register(server, "carol", token) == 403
    [row] = await listed(run)
    assert (row["state"], row["uses"], row["most_uses"], row["note"]) == ("used up", 2, 2, "choir")


async def test_never_more_register_than_a_token_allows_however_many_try_at_once(server: Running, run: Run) -> None:
    token = await new(run, "--uses", "3")
    statuses = await asyncio.gather(*(register(server, f"user{number}", token) for number in range(12)))
    assert sorted(statuses) == [201] * 3 + [403] * 9
    assert await server.query("SELECT count(*) FROM users") == [(3,)]
    assert [row["uses"] for row in await listed(run)] == [3]


async def test_a_name_taken_by_somebody_at_the_same_time_uses_nothing_up(server: Running, run: Run) -> None:
    token = await new(run, "--uses", "5")
    statuses = await asyncio.gather(*(register(server, "alice", token) for _ in range(5)))
    assert sorted(statuses) == [201] + [409] * 4
    assert [row["uses"] for row in await listed(run)] == [1]


async def test_an_expired_token_a_revoked_one_and_a_wrong_one_look_the_same(server: Running, run: Run) -> None:
    expired, revoked = await new(run, "--expires", "1h"), await new(run)
    server.clock.advance(3599)
    assert await register(server, "alice", expired) == 201
    assert done(await call(run, "revoke", "2")) == "token 2: revoked; 0 accounts created with it\n"
    again = await new(run, "--expires", "1h", "--uses", "2")
    server.clock.advance(3600)
    for token in (expired, revoked, again, "never-made", "\0"):
        assert await register(server, "bob", token) == 403
    assert [(row["token_id"], row["state"]) for row in await listed(run)] == [(1, "expired"), (3, "expired")]
    assert "no such token: 2" in refused(await call(run, "revoke", "2"))


async def test_stored_tokens_are_valid_beside_the_configured_one(
    config: Config, start_server: StartServer, run: Run
) -> None:
    for enabled in (True, False):
        asked = replace(config, registration_enabled=enabled, registration_token="let-me-in")
        async with start_server(asked) as server:
            token = await new(run)
            assert await register(server, f"alice{enabled}", "let-me-in") == 201
            assert await register(server, f"bob{enabled}", token) == 201
            assert await register(server, f"carol{enabled}", token) == 403
            await expect(Client.register(server.http, server.url, "dora"), 403, 302)


async def test_where_registration_is_open_no_token_is_used_up(
    config: Config, start_server: StartServer, run: Run
) -> None:
    async with start_server(replace(config, registration_enabled=True)) as server:
        token = await new(run)
        for name, brought in (("alice", token), ("bob", "wrong"), ("carol", "")):
            assert await register(server, name, brought) == 201
        assert [row["uses"] for row in await listed(run)] == [0]
        assert "registration needs no token" in (await call(run, "new")).stderr


async def test_wrong_tokens_of_an_address_are_counted_and_right_ones_are_not(
    config: Config, start_server: StartServer, run: Run
) -> None:
    limits = LimitsConfig(registration_failures_per_address=3)
    async with start_server(replace(config, limits=limits)) as server:
        token = await new(run, "--uses", "9")
        assert [await register(server, f"user{number}", token) for number in range(5)] == [201] * 5
        await expect(Client.register(server.http, server.url, "alice"), 403, 302)  # no token is no guess
        statuses = await asyncio.gather(*(register(server, "alice", f"guess{number}") for number in range(9)))
        assert sorted(statuses) == [403] * 3 + [429] * 6
        assert await register(server, "alice", token) == 429
        server.clock.advance(limits.login_window)
        assert await register(server, "alice", token) == 201


async def test_the_database_has_only_the_hash_and_the_audit_log_tells_who(
    server: Running, run: Run, config: Config
) -> None:
    token = await new(run, "--note", "choir")
    assert await server.query("SELECT token_hash FROM registration_tokens") == [
        (hashlib.sha256(token.encode()).digest(),)
    ]
    assert all(token.encode() not in path.read_bytes() for path in config.database.parent.iterdir() if path.is_file())
    assert token not in done(await call(run, "list"))
    await call(run, "revoke", "1")
    log = await asyncio.to_thread(run, "evidence", "audit", "--json")
    entries = [json.loads(line) for line in done(log).splitlines()]
    assert [(each["action"], each["details"]["note"]) for each in entries] == [
        ("registration_token_revoked", "choir"),
        ("registration_token_added", "choir"),
    ]


async def test_cleanup_removes_a_token_that_expired_long_ago(server: Running, run: Run) -> None:
    await new(run, "--expires", "1d")
    await new(run, "--expires", "60d")
    server.clock.advance(DAY + registration_tokens.KEPT_SECONDS)
    await clean(server)
    assert [row["token_id"] for row in await listed(run)] == [1, 2]
    server.clock.advance(1)
    await clean(server)
    assert [row["token_id"] for row in await listed(run)] == [2]


async def clean(server: Running) -> None:
    await server.settle()
    report = await asyncio.to_thread(clean_up, RunEnvironment(server.config, server.clock))
    assert report.error == ""


@pytest.mark.parametrize("words", [["--uses", "0"], ["--expires", "0"], ["--expires", "soon"], ["--note", "n" * 1001]])
def test_a_token_that_makes_no_sense_is_refused(run: Run, words: list[str]) -> None:
    assert run("invite-token", "new", *words).exit_code == 2
