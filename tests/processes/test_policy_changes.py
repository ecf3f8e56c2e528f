"""A start with another policy: logged, warned of, and refused if it hides much at once."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

from aiohttp import ClientSession

from tests.support.client import Client
from tests.support.server import PATIENCE, ServerProcess, conclave

SQL = '[cleanup]\nengine = "sql"\ndisk_reserve = "0"\n'
GROUP = str(UUID(int=7))


def events(server: ServerProcess, name: str) -> list[dict[str, Any]]:
    return [event for event in server.events() if event.get("event") == name]


def marks(folder: Path) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(folder / "conclave.db")) as connection:
        rows = connection.execute("SELECT gone_below, expired_before, floor_seq, commits_below FROM groups").fetchall()
        return [*rows, *connection.execute("SELECT policy_settings FROM server_state").fetchall()]


async def test_a_start_that_hides_much_is_refused_until_an_operator_accepts_it(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, SQL) as server:
        async with ClientSession() as http:
            alice = await Client.register(http, server.url, "alice")
            group = await alice.create_group("g")
            for _ in range(5):
                await alice.send(group)
        assert not events(server, "policy_changed")
        assert server.stop()[0] == 0
        first = marks(tmp_path)
    await asyncio.sleep(2.1)
    shorter = f'message_retention = "1s"\n{SQL}'
    refusing = ServerProcess(tmp_path, shorter)
    assert refusing.process.wait(PATIENCE) == 1
    refusal = (tmp_path / "server.log").read_text().splitlines()[-1]
    assert refusal.startswith(
        "conclave: message_retention: this change would hide 5 of 5 messages at once"
        " (5 in the database, 0 in the archive) in 1 group; `conclave check-config` tells more"
    )
    assert marks(tmp_path) == first, "nothing is settled"
    told = conclave("check-config", "conclave.toml", cwd=tmp_path)
    assert "starting with it would hide 5 messages" in told.stdout
    dry = conclave("cleanup", "run", "--dry-run", "--config", "conclave.toml", cwd=tmp_path)
    assert dry.returncode == 0, dry.stderr
    assert "with the settings of this configuration, which change message_retention" in dry.stdout
    [row] = [line for line in dry.stdout.splitlines() if "older than the group's expiry" in line]
    assert row.split("│")[-2].strip() == "5"
    assert marks(tmp_path) == first, "nothing is touched"
    with ServerProcess(tmp_path, SQL) as server:
        async with ClientSession() as http:
            again = Client(http, server.url)
            await again.login("alice")
            assert await again.numbers(group) == [1, 2, 3, 4, 5], "the former settings serve as ever"
        assert server.stop()[0] == 0
    with ServerProcess(tmp_path, shorter, options=("--accept-policy-change",)) as server:
        [changed] = events(server, "policy_changed")
        assert changed["changed"] == {"message_retention": [-1, 1]}
        assert (changed["groups"], changed["messages_hidden"], changed["archived_hidden"]) == (1, 5, 0)
        async with ClientSession() as http:
            again = Client(http, server.url)
            await again.login("alice")
            assert await again.numbers(group) == []
        assert server.stop()[0] == 0
    with ServerProcess(tmp_path, shorter) as server:
        assert not events(server, "policy_changed"), "the second start changes nothing"


async def test_doubtful_settings_are_logged_where_a_group_is_concerned(tmp_path: Path) -> None:
    def doubtful() -> list[str]:
        assert {event["level"] for event in events(server, "doubtful_setting")} <= {"warning"}
        return [event["setting"] for event in events(server, "doubtful_setting")]

    text = (
        f'message_retention = "30d"\n[retention]\ngroups = {{ "{GROUP}" = {{}} }}\n'
        f'purge_jobs = [{{ interval = "1h", longest_max_lifetime = "3d" }}]\n{SQL}'
    )
    of_an_override = f"retention.groups.{GROUP}"
    with ServerProcess(tmp_path, text) as server:
        assert doubtful() == [of_an_override], "no other group is there"
        async with ClientSession() as http:
            alice = await Client.register(http, server.url, "alice")
            await alice.create_group("of_a_month")
            await alice.create_group("after_fetch", expiry=0)
        assert server.stop()[0] == 0
    with ServerProcess(tmp_path, text) as server:
        assert doubtful() == ["retention.purge_jobs", "message_retention", of_an_override]
        [first, *_] = events(server, "doubtful_setting")
        assert first["means"].startswith("no job covers lifetimes over 3d")
