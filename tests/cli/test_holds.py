"""`conclave hold`: what can be held, what is refused, what is printed and noted."""

import asyncio
import json
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from click.testing import Result

from conclave.actions import holds as actions
from conclave.actions.context import Context
from conclave.clock import FakeClock
from conclave.config.cleanup import CleanupConfig
from conclave.config.settings import Config
from conclave.errors import NotFoundError
from conclave.retention import holds
from conclave.store.engine import sqlite
from conclave.store.resources import users
from conclave.system import locks, operator_identity
from spark.environment import RunEnvironment
from spark.run import clean_up
from tests.conftest import Running
from tests.support import stores
from tests.support.client import PASSWORD, Client, encode
from tests.support.commands import Run, done, refused, runner
from tests.support.server import PATIENCE, waiting

WHY = ("--reason", "case 17")


@pytest.fixture
def config(config: Config) -> Config:
    return replace(config, cleanup=CleanupConfig(engine="sql", disk_reserve=0))


@pytest.fixture
def run(config: Config, clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    return runner(config, clock, tmp_path, monkeypatch)


async def call(run: Run, *words: str) -> Result:
    return await asyncio.to_thread(run, *words)


async def listed(run: Run) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done(await call(run, "hold", "list", "--json")).splitlines()]


async def audited(run: Run, *words: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done(await call(run, "evidence", "audit", "--json", *words)).splitlines()]


async def commit(client: Client, group: str) -> None:
    await client.post(f"/groups/{group}/commit", commit_message=encode(b"a commit"), group_info=encode(b"info"))


async def clean(server: Running) -> None:
    await server.settle()
    report = await asyncio.to_thread(clean_up, RunEnvironment(server.config, server.clock))
    assert report.error == ""


async def test_holds_are_added_listed_and_released_and_each_is_noted(running: Running, run: Run) -> None:
    alice = await running.user("alice")
    group = await alice.create_group("friends")
    now, actor = running.clock.now(), operator_identity.current()
    assert done(await call(run, "hold", "list", "--json")) == ""
    by_name = await call(run, "hold", "add", "--group", "friends", "--reason", "  case 17 ")
    assert done(by_name) == f"hold 1: covers all messages of the group friends ({group})\n"
    by_id = await call(run, "hold", "add", "--group", group.upper(), "--reason", "case 18")
    assert done(by_id) == f"hold 2: covers all messages of the group friends ({group})\n"
    running.clock.advance(7)
    of_user = await call(run, "hold", "add", "--user", "alice", *WHY)
    assert done(of_user) == f"hold 3: covers all messages sent by the user alice ({alice.user_id})\n"
    held = {"covers": "group", "subject_id": group, "subject": "friends", "added_by": actor}
    first = held | {"id": 1, "reason": "case 17", "added_at": now}
    of_alice = {"covers": "user", "subject_id": alice.user_id, "subject": "alice", "reason": "case 17"}
    assert await listed(run) == [
        first,
        held | {"id": 2, "reason": "case 18", "added_at": now},
        of_alice | {"id": 3, "added_by": actor, "added_at": now + 7},
    ]
    shown = done(await call(run, "hold", "list"))
    assert all(each in shown for each in (group, alice.user_id, "case 18", actor))
    released = await call(run, "hold", "release", "1")
    assert done(released) == f"hold 1: released; it covered all messages of the group friends ({group})\n"
    assert [each["id"] for each in await listed(run)] == [2, 3], "two holds on one thing are independent"
    assert refused(await call(run, "hold", "release", "1")) == "no such hold: 1; see `conclave hold list`"
    added = await call(run, "hold", "add", "--group", "friends", *WHY)
    assert done(added).startswith("hold 4:"), "no id is used again"
    entries = await audited(run)
    assert [each["action"] for each in entries] == [
        *("group_held", "group_released", "user_held", "group_held", "group_held")
    ]
    assert {each["actor"] for each in entries} == {actor}
    assert (entries[1]["subject"], entries[1]["subject_id"], entries[1]["at"]) == ("friends", group, now + 7)
    assert entries[1]["details"] == {"hold": 1, "reason": "case 17", "added_by": actor, "added_at": now}
    assert entries[4]["details"] == {"hold": 1, "reason": "case 17"}


@pytest.mark.parametrize(
    "words",
    [
        ("--group", "nothing"),
        ("--group", str(uuid4())),
        ("--user", "nobody"),
        ("--user", str(uuid4())),
        ("--user", "Alice"),
        ("--user", "friends"),
        ("--group", "alice"),
        ("--group", ""),
        ("--user", ""),
    ],
)
async def test_what_is_not_there_cannot_be_held(running: Running, run: Run, words: tuple[str, str]) -> None:
    alice = await running.user("alice")
    await alice.send(await alice.create_group("friends"))
    assert "no such" in refused(await call(run, "hold", "add", *words, *WHY))
    assert await listed(run) == []
    assert await audited(run) == []


@pytest.mark.parametrize("reason", ["", " \n\t", "x" * 1001])
async def test_a_reason_is_needed_and_bounded(running: Running, run: Run, reason: str) -> None:
    alice = await running.user("alice")
    await alice.create_group("friends")
    told = refused(await call(run, "hold", "add", "--group", "friends", "--reason", reason))
    assert told == "the reason must have 1 to 1,000 characters"
    assert await listed(run) == []


@pytest.mark.parametrize(
    "words",
    [
        ("add", "--group", "friends"),
        ("add", *WHY),
        ("add", "--group", "friends", "--user", "alice", *WHY),
        ("add", "--group", "friends", "--reason", "\udcff"),
        ("add", "--group", "\udcff", *WHY),
        ("release",),
        ("release", "one"),
        ("release", "0"),
        ("release", str(2**63)),
    ],
)
async def test_a_wrong_command_line_changes_nothing(running: Running, run: Run, words: tuple[str, ...]) -> None:
    alice = await running.user("alice")
    await alice.create_group("friends")
    assert (await call(run, "hold", *words)).exit_code == 2
    assert await listed(run) == []


async def test_a_group_cannot_draw_a_hold_to_itself_by_its_name(running: Running, run: Run) -> None:
    """32 hexadecimal digits are a name that anybody may give, even those of another group's id."""
    alice, eve = await running.users("alice", "eve")
    meant = await alice.create_group("meant")
    digits = UUID(meant).hex
    assert "no such group" in refused(await call(run, "hold", "add", "--group", digits, *WHY))
    decoy = await eve.create_group(digits)
    assert meant in done(await call(run, "hold", "add", "--group", meant, *WHY))
    assert decoy in done(await call(run, "hold", "add", "--group", digits, *WHY))


async def test_a_deleted_group_is_held_by_its_id_until_all_of_it_is_erased(running: Running, run: Run) -> None:
    alice = await running.user("alice")
    held, lost = await alice.create_group("held"), await alice.create_group("lost")
    for group in (held, lost):
        await alice.send(group)
        await alice.post(f"/groups/{group}/delete")
    assert "use the id for a deleted group" in refused(await call(run, "hold", "add", "--group", "held", *WHY))
    added = done(await call(run, "hold", "add", "--group", held, *WHY))
    assert added == f"hold 1: covers all messages of the group {held}, which is deleted\n"
    assert (await listed(run))[0]["subject"] == ""
    await clean(running)
    assert await running.query("SELECT group_key FROM messages") == [(1,)]
    assert "all of it is erased" in refused(await call(run, "hold", "add", "--group", lost, *WHY))
    done(await call(run, "hold", "add", "--group", held, *WHY))


async def test_a_deleted_user_is_held_by_id_while_anything_is_left_commits_too(running: Running, run: Run) -> None:
    alice, bob, carol = await running.users("alice", "bob", "carol")
    group = await alice.create_group("g")
    for each in (bob, carol):
        await each.join(group)
        await each.send(group)
    await commit(bob, group)
    for each in (bob, carol):
        await each.post("/delete-account", password=PASSWORD)
    assert "use the id for a deleted account" in refused(await call(run, "hold", "add", "--user", "bob", *WHY))
    added = done(await call(run, "hold", "add", "--user", bob.user_id, *WHY))
    assert added == f"hold 1: covers all messages sent by the user {bob.user_id}, which is deleted\n"
    done(await call(run, "hold", "release", "1"))
    await clean(running)
    assert await running.query("SELECT * FROM user_tombstones") == []
    done(await call(run, "hold", "add", "--user", bob.user_id, *WHY))
    told = refused(await call(run, "hold", "add", "--user", carol.user_id, *WHY))
    assert "all messages of the account are erased" in told


async def test_the_archive_may_have_commits_of_a_deleted_user_and_the_command_says_so(
    running: Running, run: Run
) -> None:
    with closing(sqlite.connect(running.config.database)) as connection:
        connection.execute("INSERT INTO archive_parts VALUES (1, -1, 0, 1, 1, 0, 0, 1, 1, 0)")
    unknown = str(uuid4())
    result = await call(run, "hold", "add", "--no-wait", "--user", unknown, *WHY)
    assert unknown in done(result)
    assert "the archive may have commits" in result.stderr
    assert "no such user" in refused(await call(run, "hold", "add", "--user", "nobody", *WHY))


async def test_a_group_that_is_erased_just_now_is_not_held(running: Running, run: Run) -> None:
    """Between finding it and holding it."""
    alice = await running.user("alice")
    group = await alice.create_group("g")
    with closing(sqlite.connect(running.config.database)) as connection:
        found = actions.find_group(connection, group)
        await alice.post(f"/groups/{group}/delete")
        await clean(running)
        context = Context(running.config.policy, running.clock)
        with pytest.raises(NotFoundError, match="erased just now"):
            actions.add(connection, context, "operator root", found, "case 17")
        assert holds.list_all(connection) == []


async def test_a_reason_cannot_act_on_the_terminal_or_forge_a_line(running: Running, run: Run) -> None:
    alice = await running.user("alice")
    await alice.create_group("g")
    odd = "[red]case\n 9 │ operator root\x1b[2K\u202e\x9b\r17"
    done(await call(run, "hold", "add", "--group", "g", "--reason", odd))
    for words, escaped in (
        (("hold", "list"), r"\x1b"),
        (
            (
                "evidence",
                "audit",
            ),
            r"\u001b",
        ),
    ):
        plain = done(await call(run, *words))
        done(await call(run, "hold", "add", "--group", "g", "--reason", "plain"))
        more = done(await call(run, *words))
        done(await call(run, "hold", "release", str((await listed(run))[-1]["id"])))
        assert len(more.splitlines()) == len(plain.splitlines()) + 1, "one line each"
        assert all(each.isprintable() for line in plain.splitlines() for each in line)
        assert escaped in plain
        assert "[red]" in plain
    assert (await listed(run))[0]["reason"] == odd
    assert all(line.isascii() for line in done(await call(run, "hold", "list", "--json")).splitlines())


def in_a_thread(run: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(run()))
    thread.start()
    return thread, results


@pytest.fixture
def archived(config: Config, clock: FakeClock) -> Config:
    """A database with a user and an archive that no server has open: a lock must not be closed beside one."""
    stores.prepare(config.database)
    with closing(sqlite.connect(config.database)) as connection:
        users.add(connection, "alice", "", "", clock.now())
        connection.execute("INSERT INTO archive_parts VALUES (9, -1, 0, 1, 1, 0, 0, 1, 1, 0)")
    return config


def held_users(config: Config) -> bool:
    with closing(sqlite.connect(config.database, readonly=True)) as connection:
        return holds.has_held_senders(connection)


def test_with_an_archive_a_hold_is_in_force_at_once_and_waits_for_the_run_under_way(archived: Config, run: Run) -> None:
    with locks.hold(archived.database, locks.CLEANUP):
        thread, results = in_a_thread(lambda: run("hold", "add", "--user", "alice", *WHY))
        for _ in waiting("the hold"):
            if held_users(archived):
                break
        thread.join(0.3)
        assert thread.is_alive()
    thread.join(PATIENCE)
    assert done(results[0]).startswith("hold 1: covers all messages sent by the user alice")
    assert "waiting for the running cleanup" in results[0].stderr
    assert "waiting" not in run("hold", "add", "--user", "alice", *WHY).stderr


def test_a_hold_does_not_wait_if_it_need_not(archived: Config, run: Run) -> None:
    with locks.hold(archived.database, locks.CLEANUP):
        done(run("hold", "add", "--no-wait", "--user", "alice", *WHY))
        with closing(sqlite.connect(archived.database)) as connection:
            connection.execute("DELETE FROM archive_parts")
        result = run("hold", "add", "--user", "alice", *WHY)
        assert (done(result)[:7], result.stderr) == ("hold 2:", ""), "each step in the database looks again"


def test_a_lock_that_cannot_be_had_is_told_and_the_hold_stays(archived: Config, run: Run) -> None:
    archived.database.with_name(archived.database.name + locks.CLEANUP.suffix).symlink_to(archived.database)
    assert "the change itself is done" in refused(run("hold", "add", "--user", "alice", *WHY))
    assert held_users(archived)


def test_only_the_server_creates_a_database(run: Run, config: Config) -> None:
    for words in (("list",), ("add", "--group", "g", *WHY), ("release", "1")):
        assert "no such database" in refused(run("hold", *words))
    assert not config.database.exists()
