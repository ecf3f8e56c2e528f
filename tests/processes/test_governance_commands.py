"""Holds, purges and the audit log by the command line, while the server runs and while it is stopped."""

import asyncio
import json
from pathlib import Path
from typing import Any

from aiohttp import ClientSession

from conclave.system import operator_identity
from tests.support.client import Client
from tests.support.forensics import StoreSearch
from tests.support.server import ServerProcess, conclave
from tests.support.terminal import at_a_terminal

SQL = '[cleanup]\nengine = "sql"\n'


async def command(server: ServerProcess, *words: str, status: int = 0) -> str:
    """Run a command; return what it prints."""
    env = {"PYTHONIOENCODING": "utf-8"}
    done = await asyncio.to_thread(conclave, *words, "--config", server.config, cwd=server.folder, env=env)
    assert done.returncode == status, done.stderr
    return done.stdout


async def audited(server: ServerProcess) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (await command(server, "evidence", "audit", "--json")).splitlines()]


async def test_holds_purges_and_the_audit_log_while_the_server_runs_and_while_it_is_stopped(tmp_path: Path) -> None:
    search = StoreSearch()
    async with ClientSession() as http:
        with ServerProcess(tmp_path, SQL) as server:
            server.wait_for("cleanup_run")
            alice = await Client.register(http, server.url, "alice")
            group, other = await alice.create_group("friends"), await alice.create_group("other")
            for number in range(2):
                await alice.send(group, search.body(2 * number, 3000))
                await alice.send(other, search.body(2 * number + 1, 3000))
            assert await alice.numbers(group) == [1, 2]
            assert "hold 1:" in await command(server, "hold", "add", "--group", "friends", "--reason", "case 17")
            await asyncio.sleep(2.1)
            purge = "cleanup", "purge", "--group", group, "--before", "1s"
            assert "2 under a legal hold" in await command(server, *purge, "--dry-run")
            assert await alice.numbers(group) == [1, 2]
            await command(server, *purge, status=1)
            assert await alice.numbers(group) == [1, 2], "without a terminal nothing is purged unasked"
            asked = at_a_terminal(server.config, *purge, answers={"and erase them?": "n"})
            assert asked[0] == 1
            assert await alice.numbers(group) == [1, 2]
            status, printed, _ = at_a_terminal(server.config, *purge, answers={"and erase them?": "y"})
            assert status == 0, printed
            assert await alice.numbers(group) == [], "the server's memory too"
            assert await alice.numbers(other) == [1, 2]
            assert search.numbers_in(tmp_path) == {0, 1, 2, 3}
            assert server.stop()[0] == 0
        assert "friends" in await command(server, "hold", "list")
        await command(server, "hold", "release", "1")
        assert "expired" in await command(server, "cleanup", "run")
        assert search.numbers_in(tmp_path) == {1, 3}
        entries = await audited(server)
        assert [each["action"] for each in entries] == ["group_released", "group_purged", "group_held"]
        assert {(each["actor"], each["subject"]) for each in entries} == {(operator_identity.current(), "friends")}
        with ServerProcess(tmp_path, f'message_retention = "30d"\n{SQL}') as server:
            alice = Client(http, server.url, alice.token)
            assert await alice.numbers(group) == []
            assert await alice.numbers(other) == [1, 2]
            [changed, *_] = await audited(server)
            assert (changed["actor"], changed["action"]) == ("server", "settings_changed")
            assert changed["details"] == {"changed": {"message_retention": [-1, 2_592_000]}}
