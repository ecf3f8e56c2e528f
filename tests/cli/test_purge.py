"""`conclave cleanup purge`: what it asks, hides, erases and leaves."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from conclave.clock import FakeClock
from conclave.config.cleanup import CleanupConfig
from conclave.config.load import load_config
from conclave.config.settings import Config
from conclave.system import operator_identity
from tests.conftest import Running, StartServer
from tests.support.archive import Mover
from tests.support.client import encode
from tests.support.commands import Run, done, refused, runner
from tests.support.forensics import StoreSearch
from tests.support.listening import listening

HOUR, DAY = 3600, 86_400
START = 1_700_000_000  # 2023-11-14 22:13:20 UTC
NONE = "no such group: {!r}; a deleted group is already hidden, and all of it is erased"
MARKS = "SELECT expired_before FROM groups ORDER BY group_key"


@pytest.fixture
def config(config: Config) -> Config:
    return replace(config, cleanup=CleanupConfig(engine="sql", disk_reserve=0))


@pytest.fixture
def run(config: Config, clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    return runner(config, clock, tmp_path, monkeypatch)


async def purge(run: Run, group: str, before: str, *more: str) -> Result:
    return await asyncio.to_thread(run, "cleanup", "purge", "--group", group, "--before", before, *more)


async def numbers(server: Running) -> list[Any]:
    return [row[0] for row in await server.query("SELECT sequence_num FROM messages ORDER BY sequence_num")]


async def test_what_is_older_is_hidden_at_once_and_erased_and_the_rest_stays(
    running: Running, run: Run, tmp_path: Path
) -> None:
    search = StoreSearch()
    alice, bob = await running.users("alice", "bob")
    group, other = await alice.create_group("g"), await alice.create_group("other")
    await bob.join(group)
    for number in range(4):
        for each in (group, other):
            await alice.send(each, search.body(2 * number + (each == other), 5000))
        running.clock.advance(DAY)
    assert await bob.numbers(group) == [1, 2, 3, 4], "remembered by the server"
    told = done(await purge(run, "g", "2d", "--yes", "--no-run"))
    assert "in the database: 2 messages with 10,000 bytes" in told
    assert "from 2023-11-14 22:13:20 to 2023-11-15 22:13:20" in told
    assert await bob.numbers(group) == await alice.numbers(group) == [3, 4], "to the second: 3 is as old as the time"
    await alice.set_expiry(group, 365 * DAY)
    await alice.set_expiry(group, -1)
    assert await bob.numbers(group) == [3, 4], "whatever the policy becomes"
    assert await numbers(running) == [1, 1, 2, 2, 3, 3, 4, 4]
    await running.settle()
    assert "older than the group's expiry" in done(await purge(run, group, "2d", "--yes"))
    assert await numbers(running) == [1, 2, 3, 3, 4, 4]
    assert await bob.numbers(group) == [3, 4]
    assert [each.body for each in await alice.fetch(other)] == [search.body(2 * n + 1, 5000) for n in range(4)]
    assert search.numbers_in(tmp_path) == {1, 3, 4, 5, 6, 7}
    assert await running.query(MARKS) == [(START + 2 * DAY,), (0,)]


async def test_members_are_told_and_learn_what_they_are_to_delete_too(running: Running, run: Run) -> None:
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("g")
    await bob.join(group)
    running.clock.advance(2 * DAY)
    assert (await bob.get(f"/groups/{group}/retention"))["hidden_before"] == 0
    async with listening(bob) as events:
        done(await purge(run, "g", "1d", "--yes", "--no-run"))
        assert await events.next() == ("group_update", {"group_id": group, "update_type": "group_settings"})
    assert (await bob.get(f"/groups/{group}/retention"))["hidden_before"] == START + DAY


async def test_a_purge_is_noted_and_the_mark_never_falls(running: Running, run: Run) -> None:
    alice = await running.user("alice")
    group = await alice.create_group("g")
    running.clock.advance(10 * DAY)
    done(await purge(run, "g", "2d", "--yes", "--no-run"))
    done(await purge(run, "g", "5d", "--yes", "--no-run"))
    mark = START + 8 * DAY
    assert await running.query(MARKS) == [(mark,)]
    lines = done(await asyncio.to_thread(run, "evidence", "audit", "--group", group, "--json")).splitlines()
    later, first = (json.loads(line) for line in lines)
    assert first["details"] == {"before": mark, "expired_before": [0, mark]}
    assert later["details"] == {"before": START + 5 * DAY, "expired_before": [mark, mark]}
    assert {(each["actor"], each["subject"]) for each in (first, later)} == {(operator_identity.current(), "g")}


@pytest.mark.parametrize(
    ("before", "second"),
    [
        ("2023-11-15", 1_700_006_400),
        ("2023-11-15T12:00:00", 1_700_049_600),
        ("2023-11-15 12:00:00", 1_700_049_600),
        ("2023-11-15T12:00:00Z", 1_700_049_600),
        ("2023-11-15T12:00:00+01:00", 1_700_046_000),
        ("2023-11-15T12:00:00.999999", 1_700_049_600),
        ("1d", START + 9 * DAY),
        ("90min", START + 10 * DAY - 5400),
        ("2023-11-24T22:13:20", START + 10 * DAY),
        ("1969-12-31", 0),
        ("60y", 0),
    ],
)
async def test_times_are_utc_unless_they_say_otherwise(running: Running, run: Run, before: str, second: int) -> None:
    await (await running.user("alice")).create_group("g")
    running.clock.advance(10 * DAY)
    done(await purge(run, "g", before, "--yes", "--no-run"))
    assert await running.query(MARKS) == [(second,)]


@pytest.mark.parametrize(
    ("before", "why"),
    [
        ("2023-11-24T22:13:21", "is in the future"),
        ("2023-11-24T23:13:20-01:00", "is in the future"),
        ("9999-12-31", "is in the future"),
        ("yesterday", "is not a date"),
        ("1700000000", "is not a date"),
        ("30", "is not a date"),
        ("", "is not a date"),
        ("-1d", "is not a date"),
        ("0d", "is not a duration"),
        ("5x", "is not a duration"),
        ("2023-02-30", "is not a date"),
        ("12:00:00", "is not a date"),
        ("\udcff", "is not a date"),
    ],
)
async def test_other_times_are_refused(running: Running, run: Run, before: str, why: str) -> None:
    await (await running.user("alice")).create_group("g")
    running.clock.advance(10 * DAY)
    assert why in refused(await purge(run, "g", before, "--yes"))
    assert await running.query(MARKS) == [(0,)]


@pytest.mark.parametrize("group", ["nothing", "8f14e45f-ceea-467f-9a3d-2b1c6d5e7f80", ""])
async def test_a_group_that_is_not_there_is_told_in_a_line(running: Running, run: Run, group: str) -> None:
    assert refused(await purge(run, group, "1d", "--yes")) == NONE.format(group)


async def test_a_deleted_group_cannot_be_purged(running: Running, run: Run) -> None:
    alice = await running.user("alice")
    group = await alice.create_group("g")
    await alice.send(group)
    await alice.post(f"/groups/{group}/delete")
    assert refused(await purge(run, group, "1d", "--yes")) == NONE.format(group)


async def test_a_dry_run_and_a_refusal_touch_nothing(running: Running, run: Run) -> None:
    alice = await running.user("alice")
    group = await alice.create_group("g")
    await alice.send(group)
    running.clock.advance(DAY)
    assert "1 message with 5 bytes" in done(await purge(run, "g", "1h", "--dry-run"))
    unasked = await purge(run, "g", "1h")
    assert (unasked.exit_code, unasked.stderr) == (
        1,
        "conclave: no terminal for a confirmation: use --yes to skip it\n",
    )
    assert "1 message with 5 bytes" in unasked.stdout
    assert await running.query(MARKS) == [(0,)]
    assert await alice.numbers(group) == [1]
    assert await running.query("SELECT * FROM audit") == []
    assert await running.query("SELECT * FROM cleanup_runs") == []


async def test_an_archive_that_cannot_be_read_keeps_nothing_from_being_hidden(running: Running, run: Run) -> None:
    alice = await running.user("alice")
    group = await alice.create_group("g")
    for _ in range(3):
        await alice.send(group)
    mover = Mover(running.config)
    mover.move(group, 2)
    running.clock.advance(DAY)
    mover.hide()
    planned = await purge(run, "g", "1h", "--dry-run")
    assert planned.exit_code == 1
    assert "in the database: 1 message with 5 bytes" in planned.stdout
    assert f"in the archive: cannot be counted: {running.config.archive_path}" in planned.stdout
    assert await running.query(MARKS) == [(0,)]
    assert "are hidden permanently" in done(await purge(run, "g", "1h", "--yes", "--no-run"))
    mover.unhide()
    assert await alice.numbers(group) == []


async def test_while_the_clock_is_in_doubt_nothing_is_purged_and_the_server_learns_of_it(
    running: Running, run: Run
) -> None:
    alice = await running.user("alice")
    await alice.create_group("g")
    running.clock.advance(DAY)
    running.clock.set_wrong(365 * DAY)
    told = await purge(run, "g", "1h", "--yes")
    assert told.exit_code == 1
    assert "set forward by 31536000 seconds" in told.stderr
    assert "correct the clock and accept it with `conclave cleanup run --accept-clock` first" in told.stderr
    running.clock.set_wrong(-365 * DAY)
    assert "set forward" in (await purge(run, "g", "1h", "--yes")).stderr, "until somebody has looked"
    assert await running.query(MARKS) == [(0,)]
    assert await running.query("SELECT * FROM audit") == []


async def test_what_is_held_or_too_young_is_told_hidden_and_kept_until_that_is_over(
    running: Running, run: Run, tmp_path: Path
) -> None:
    search = StoreSearch()
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("g")
    await bob.join(group)
    for number, sender in enumerate((alice, bob, alice, bob)):
        await sender.send(group, search.body(number, 3000))
        running.clock.advance(HOUR)
    done(await asyncio.to_thread(run, "hold", "add", "--user", "bob", "--reason", "case 17"))
    told = done(await purge(run, "g", "1min", "--yes"))
    assert "4 messages" in told
    assert "2 under a legal hold: hidden, but not erased until its release" in told
    assert await alice.numbers(group) == await bob.numbers(group) == []
    assert await numbers(running) == [2, 4]
    assert search.numbers_in(tmp_path) == {1, 3}
    done(await asyncio.to_thread(run, "hold", "release", "1"))
    assert search.numbers_in(tmp_path) == {1, 3}, "a run erases"
    await running.settle()
    done(await asyncio.to_thread(run, "cleanup", "run"))
    assert await numbers(running) == []
    assert search.numbers_in(tmp_path) == set()


async def test_a_least_lifetime_delays_the_erasure(
    config: Config, start_server: StartServer, run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "conclave.toml"
    path.write_text(path.read_text() + '[retention]\ndefault_policy = { min_lifetime = "3h" }\n')
    async with start_server(load_config(path)) as server:
        alice = await server.user("alice")
        group = await alice.create_group("g")
        for _ in range(3):
            await alice.send(group)
            server.clock.advance(2 * HOUR)
        told = done(await purge(run, "g", "1min", "--yes"))
        assert "1 hidden, but not erased until they are old enough (min_lifetime)" in told
        assert await alice.numbers(group) == []
        assert await numbers(server) == [3]
        server.clock.advance(HOUR)
        await server.settle()
        done(await asyncio.to_thread(run, "cleanup", "run"))
        assert await numbers(server) == []


async def test_commits_that_are_kept_for_a_member_stay_visible_until_all_have_fetched_them(
    config: Config, start_server: StartServer, run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "conclave.toml"
    path.write_text(path.read_text() + "[retention]\nretain_commits = true\n")
    async with start_server(load_config(path)) as server:
        alice, bob = await server.users("alice", "bob")
        group = await alice.create_group("g")
        await bob.join(group)
        await alice.send(group)
        await alice.post(f"/groups/{group}/commit", commit_message=encode(b"commit"), group_info=encode(b"info"))
        server.clock.advance(HOUR)
        told = done(await purge(run, "g", "1min", "--yes"))
        assert "in the database: 1 message" in told
        assert "1 further commits stay until all members have fetched them" in told
        assert await numbers(server) == [2]
        assert await alice.numbers(group) == await bob.numbers(group) == [2]
        await server.settle()
        assert await alice.numbers(group) == await bob.numbers(group) == []
        done(await asyncio.to_thread(run, "cleanup", "run"))
        assert await numbers(server) == []


async def test_if_the_run_cannot_begin_the_messages_are_hidden_all_the_same(
    config: Config, start_server: StartServer, run: Run
) -> None:
    async with start_server(replace(config, message_retention=90 * DAY)) as server:
        alice = await server.user("alice")
        group = await alice.create_group("g")
        await alice.send(group)
        server.clock.advance(DAY)
        result = await purge(run, "g", "1h", "--yes")
        assert result.exit_code == 1
        assert "are hidden permanently" in result.stdout
        assert "message_retention: this configuration differs" in result.stderr
        assert await alice.numbers(group) == []
        assert await numbers(server) == [1]


def test_only_the_server_creates_a_database(run: Run, config: Config) -> None:
    assert "no such database" in refused(run("cleanup", "purge", "--group", "g", "--before", "1d", "--yes"))
    assert not config.database.exists()
