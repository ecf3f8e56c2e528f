"""What operators do to accounts, by the command line, while the server runs and while it is stopped."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

from aiohttp import ClientSession

from conclave.store.engine import sqlite
from conclave.store.resources import users
from tests.support import stores
from tests.support.client import API, PASSWORD, Client, expect
from tests.support.listening import StreamConnection, listening
from tests.support.server import ServerProcess, conclave
from tests.support.terminal import at_a_terminal

SQL = '[cleanup]\nengine = "sql"\n'

PROMPT_SECONDS = 8.0
"""The server looks once a second for what other processes did; a busy machine takes its time.

What only a stream's next sign of life would notice may take 10 seconds.
"""


async def user(server: ServerProcess, *arguments: str) -> str:
    """Run a command of `conclave user` that succeeds; return what it prints."""
    done = await asyncio.to_thread(
        conclave, "user", *arguments, "--config", server.config, cwd=server.folder, env={"PYTHONIOENCODING": "utf-8"}
    )
    assert done.returncode == 0, done.stderr
    assert not [line for line in done.stderr.splitlines() if line.startswith("{")], "the audit log has what was done"
    return done.stdout


async def log_in(client: Client, name: str, password: str) -> Client:
    token = (await client.post("/login", username=name, password=password))["token"]
    return Client(client.http, client.url, token, client.user_id)


@contextlib.asynccontextmanager
async def ends_soon(stream: StreamConnection) -> AsyncIterator[None]:
    """The stream ends soon after what the block does."""
    assert not stream.response.content.is_eof()
    yield
    done = time.monotonic()
    await stream.ended()
    assert time.monotonic() - done < PROMPT_SECONDS


async def test_commands_about_accounts_while_the_server_runs_and_while_it_is_stopped(tmp_path: Path) -> None:
    async with ClientSession() as http:
        with ServerProcess(tmp_path, SQL) as server:
            alice, bob, carol = [await Client.register(http, server.url, name) for name in ("alice", "bob", "carol")]
            group = await alice.create_group("friends")
            await bob.join(group)
            await carol.join(group)
            async with listening(carol) as heard:
                await disable_and_enable_bob(server, bob, await reset_password_of_bob(server, bob))
                await delete_alice(server, alice)
                event = ("member_removed", {"group_id": group, "removed_user_id": alice.user_id})
                role = ("group_update", {"group_id": group, "update_type": "role_change"})
                assert [await heard.next(), await heard.next()] == [event, role]
                await asyncio.sleep(1.2)
                assert heard.waiting() == [], "told once"
            listed = [json.loads(line) for line in (await user(server, "list", "--json")).splitlines()]
            assert [(each["username"], each["groups"], each["disabled"]) for each in listed] == [
                ("bob", 1, False),
                ("carol", 1, False),
            ]
            assert server.stop()[0] == 0
        password = (await user(server, "reset-password", "bob")).strip()
        await user(server, "delete", "carol", "--yes")
        with ServerProcess(tmp_path, SQL) as server:
            bob = await log_in(Client(http, server.url), "bob", password)
            [found] = (await bob.get("/groups"))["groups"]
            assert [(each["username"], each["role"]) for each in found["members"]] == [("bob", "admin")]
            await expect(Client(http, server.url, carol.token).get("/me"), 401, 202)


async def reset_password_of_bob(server: ServerProcess, bob: Client) -> str:
    async with listening(bob) as stream:
        async with ends_soon(stream):
            password = (await user(server, "reset-password", "bob")).removesuffix("\n")
            await expect(bob.get("/me"), 401, 202)
            await expect(log_in(bob, "bob", PASSWORD), 401, 202)
            again = await log_in(bob, "bob", password)
            new = await again.http.get(f"{again.url}{API}/events", headers={"Authorization": f"Bearer {again.token}"})
        await asyncio.sleep(0.2)
        assert not new.content.is_eof(), "the end of the former sessions, which came late, is not that of a new one"
        new.close()
    return password


async def disable_and_enable_bob(server: ServerProcess, client: Client, password: str) -> None:
    bob = await log_in(client, "bob", password)
    async with listening(bob) as stream, ends_soon(stream):
        await user(server, "disable", "bob")
        await expect(bob.get("/me"), 401, 202)
        disabled = await expect(log_in(bob, "bob", password), 401, 202)
        assert disabled == await expect(log_in(bob, "bob", "wrong password"), 401, 202)
    await user(server, "enable", "bob")
    await expect(bob.get("/me"), 401, 202)
    bob = await log_in(bob, "bob", password)
    assert len((await bob.get("/groups"))["groups"]) == 1


async def delete_alice(server: ServerProcess, alice: Client) -> None:
    async with listening(alice) as stream, ends_soon(stream):
        await user(server, "delete", "alice", "--yes")
        await expect(alice.get("/me"), 401, 202)
        await expect(log_in(alice, "alice", PASSWORD), 401, 202)


def test_at_a_terminal_a_password_is_asked_for_twice_and_a_deletion_is_confirmed(tmp_path: Path) -> None:
    config = tmp_path / "conclave.toml"
    config.write_text("")
    stores.prepare(tmp_path / "conclave.db")
    with closing(sqlite.connect(tmp_path / "conclave.db")) as connection:
        users.add(connection, "bob", "", "", 0)
    answers = {"New password": "typed password", "Repeat for confirmation": "typed password"}
    assert at_a_terminal(config, "user", "reset-password", "bob", "--prompt", answers=answers) == (0, "", "")
    assert at_a_terminal(config, "user", "delete", "bob", answers={"Permanently": "n"}) == (1, "", "n\r\n")
    deleted = at_a_terminal(config, "user", "delete", "bob", answers={"Permanently": "y"})
    assert deleted == (0, "bob: deleted\n", "y\r\n")
