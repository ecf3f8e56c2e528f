"""What `conclave explain` and `conclave group` tell operators, in words and for programs."""

import asyncio
import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from click.testing import CliRunner, Result

from conclave.cli import open_store
from conclave.cli.main import main
from conclave.clock import FakeClock
from conclave.config.retention import RetentionConfig
from conclave.config.settings import Config
from conclave.retention.jobs import PurgeJob
from conclave.retention.resolve import LifetimeLimits, LifetimeRange, Lifetimes
from conclave.store.engine import sqlite
from conclave.store.resources import state
from spark.environment import RunEnvironment
from spark.run import clean_up
from tests.conftest import Running, StartServer
from tests.support import stores
from tests.support.archive import Mover
from tests.support.client import Client

DAY = 86_400

Told = Callable[..., Result]


def toml(config: Config) -> str:
    """Write what these tests set of a configuration."""
    retention = config.retention
    lines = [f'database_path = "{config.database}"', f'message_retention = "{config.message_retention}s"']
    if config.message_retention <= 0:
        lines[1] = f'message_retention = "{config.message_retention}"'
    lines += ['[cleanup]\nengine = "sql"', "[retention]", f"enabled = {str(retention.enabled).lower()}"]
    lines.append(f"retain_commits = {str(retention.retain_commits).lower()}")
    if retention.fetch_hold_limit > 0:
        lines.append(f'fetch_hold_limit = "{retention.fetch_hold_limit}s"')
    if retention.limits.max_lifetime.min > 0:
        lines.append(f'limits.max_lifetime.min = "{retention.limits.max_lifetime.min}s"')
    for group_id, set_ in retention.groups.items():
        lines.append(f'[retention.groups."{group_id}"]\nmax_lifetime = "{set_.max_lifetime}s"')
    for job in retention.purge_jobs:
        lines.append(f'[[retention.purge_jobs]]\nlongest_max_lifetime = "{job.longest_max_lifetime}s"')
        lines.append(f'interval = "{job.interval}s"')
    return "\n".join(lines)


@pytest.fixture
def tell(clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Told:
    """Run a command on the database of a configuration, at the time of the other fixtures."""
    monkeypatch.setattr(open_store, "SystemClock", lambda: clock)
    monkeypatch.setattr("conclave.cli.common.use_console_log", lambda: None)

    def run(config: Config, *arguments: str) -> Result:
        path = tmp_path / "conclave.toml"
        path.write_text(toml(config))
        result = CliRunner().invoke(main, [*arguments, "--config", str(path)])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return run


async def told(tell: Told, server: Running, *arguments: str) -> str:
    done = await asyncio.to_thread(tell, server.config, *arguments)
    assert done.exit_code == 0, done.stderr
    return done.stdout


async def group_of(server: Running, *names: str) -> tuple[str, list[Client]]:
    """Make a group whose members are new users of these names."""
    users = await server.users(*names)
    group = await users[0].create_group("team")
    for other in users[1:]:
        await other.join(group)
    return group, users


async def clean(server: Running) -> None:
    await server.settle()
    config = replace(server.config, cleanup=replace(server.config.cleanup, engine="sql"))
    report = await asyncio.to_thread(clean_up, RunEnvironment(config, server.clock))
    assert not report.error


async def test_a_message_expires_at_a_second_and_is_erased_by_the_next_run(running: Running, tell: Told) -> None:
    running_config = running.config
    group, [alice] = await group_of(running, "alice")
    await alice.set_expiry(group, 3 * DAY)
    await alice.send(group)
    said = await told(tell, running, "explain", "team", "1")
    assert "messages expire 3 days after sending" in said
    assert "- its admins set 3d" in said
    assert "policy_changed by admin alice" in said
    assert "Hidden: from" in said
    assert "(in 3 days)." in said
    assert "Erased: by the first run (everything) from" in said
    running.clock.advance(3 * DAY)
    assert await alice.numbers(group) == [1]
    running.clock.advance(1)
    assert await alice.numbers(group) == []
    said = await told(tell, running, "explain", group, "1")
    assert "Hidden: already, it has expired" in said
    assert "Erased: by the next run (everything)." in said
    await clean(running)
    said = await told(tell, running, "explain", "team", "1")
    assert "Message 1: gone, by one of these receipts" in said
    assert "expired" in said
    assert "Message 9: not sent yet; the last number is 1." in await told(tell, running, "explain", "team", "9")
    assert running.config == running_config


async def test_a_group_that_keeps_everything_is_told_so(running: Running, tell: Told) -> None:
    _, [alice] = await group_of(running, "alice")
    group = (await alice.get("/groups"))["groups"][0]["group_id"]
    await alice.send(group)
    said = await told(tell, running, "explain", "team", "1")
    assert "messages are kept until their group or account is deleted" in said
    assert "In force since: unknown" in said
    assert "Hidden: never, by the current policy." in said
    assert "Erased: never, by the current policy." in said


async def test_who_holds_messages_back_is_named(running: Running, tell: Told) -> None:
    group, [alice, bob, carol] = await group_of(running, "alice", "bob", "carol")
    await alice.set_expiry(group, 0)
    for _ in range(3):
        await alice.send(group)
    await bob.numbers(group)
    await alice.numbers(group)
    await running.settle()
    said = await told(tell, running, "explain", group, "2")
    assert "messages are deleted once all members have fetched them" in said
    assert "- carol has fetched nothing; last used the server: " in said
    assert "- bob" not in said
    assert "Hidden: by the first run after all members have fetched it; it has no time limit." in said
    assert "Not fetched yet by: carol." in said
    found = json.loads(await told(tell, running, "explain", group, "--json"))
    assert [each["username"] for each in found["waiting"]] == ["carol"]
    assert (found["lifetime"], found["source"], found["waiting_in_all"]) == (0, "group", 1)
    await carol.numbers(group)
    await running.settle()
    said = await told(tell, running, "explain", group, "2")
    assert "Hidden: by the next run; all members have fetched it." in said
    assert "Erased: by the next run (everything)." in said
    assert "waits for members who have not fetched" not in said
    await clean(running)
    assert "fetched: all members have fetched it" in await told(tell, running, "explain", group, "2")


async def test_a_timer_is_told_of_until_its_last_reader_has_it_redacted(running: Running, tell: Told) -> None:
    group, [alice, bob, _] = await group_of(running, "alice", "bob", "carol")
    await alice.send(group, b"secret", 60)
    await bob.read(group, 1)
    said = await told(tell, running, "explain", group, "1")
    assert "It self-destructs 1 minute after reading, for each reader separately." in said
    assert "who still are): 3; 1 of them has not read it; for 0 it is redacted; the next timer ends" in said
    assert "(in 30 days), even if members have not read it by then." in said
    assert said.endswith("Not read yet by: carol.\n")
    [waiting] = json.loads(await told(tell, running, "explain", group, "1", "--json"))["message"]["unread"]
    assert (waiting["username"], waiting["fetched"], waiting["disabled"]) == ("carol", 0, False)
    running.clock.advance(60)
    said = await told(tell, running, "explain", group, "1")
    assert "1 of them has not read it; for 2 it is redacted." in said
    assert "Not read yet by: carol." in said
    running.clock.advance(30 * DAY)
    said = await told(tell, running, "explain", group, "1")
    assert "Hidden: already, it has self-destructed for all readers." in said
    assert "Not read yet by" not in said
    assert "Erased: by the next run (of any job)." in said
    assert "Overdue: messages could have been erased for" in said
    await clean(running)
    assert "redacted: it has self-destructed" in await told(tell, running, "explain", group, "1")


async def test_who_has_taken_a_message_back_is_told_and_what_is_left_of_it(running: Running, tell: Told) -> None:
    group, [alice, bob] = await group_of(running, "alice", "bob")
    await alice.patch(group, min_lifetime_seconds=DAY, update_min_lifetime=True)
    await bob.send(group)
    running.clock.advance(60)
    await bob.take_back(group, 1)
    said = await told(tell, running, "explain", "team", "1")
    assert "It was taken back by its sender, bob, " in said
    assert "Hidden: already, it was taken back." in said
    assert "Erased: by the first run (of any job) from" in said
    assert "Withheld by: min_lifetime" in said
    found = json.loads(await told(tell, running, "explain", "team", "1", "--json"))["message"]
    assert found["taken_back"] == {"at": running.clock.now(), "by": "bob", "is_own": True}
    running.clock.advance(DAY)
    assert "Erased: by the next run (of any job)." in await told(tell, running, "explain", "team", "1")
    await clean(running)
    assert "1 message up to 1, taken_back: it was taken back" in await told(tell, running, "explain", "team", "1")
    log = await told(tell, running, "evidence", "audit", "--group", "team")
    assert "message_taken_back" in log
    assert "user bob" in log


async def test_long_lists_are_cut(running: Running, tell: Told) -> None:
    names = [f"user{number}" for number in range(14)]
    group, [first, *_] = await group_of(running, *names)
    await first.set_expiry(group, 0)
    await first.send(group)
    await first.numbers(group)
    await running.settle()
    said = await told(tell, running, "explain", group, "1")
    assert said.count("has fetched nothing") == 10
    assert "and 3 more" in said


async def test_who_has_not_read_a_message_that_destroys_itself_is_named(running: Running, tell: Told) -> None:
    group, members = await group_of(running, *(f"user{number:02}" for number in range(14)))
    await members[0].send(group, b"secret", 60)
    late = await running.user("late")
    await late.join(group)
    said = await told(tell, running, "explain", group, "1")
    listed = ", ".join(f"user{number:02}" for number in range(1, 11))
    assert said.endswith(f"Not read yet by: {listed}, and 3 more.\n")
    for each in members[1:12]:
        await each.read(group, 1)
    await members[12].leave(group)
    assert (await told(tell, running, "explain", group, "1")).endswith("Not read yet by: user13.\n")
    await members[13].read(group, 1)
    said = await told(tell, running, "explain", group, "1", "--json")
    assert json.loads(said)["message"]["unread"] == []
    await members[0].send(group, b"plain")
    assert "Not read yet" not in await told(tell, running, "explain", group, "2")


async def test_a_hold_withholds_and_is_named_with_its_reason(running: Running, tell: Told) -> None:
    group, [alice] = await group_of(running, "alice")
    await alice.set_expiry(group, 10)
    await alice.send(group)
    hold(running.config, "group", UUID(group).bytes, "\x1b[31mcase 7")
    running.clock.advance(11)
    said = await told(tell, running, "explain", group, "1")
    assert "Legal hold 1 keeps all messages of the group: \\x1b[31mcase 7 (added" in said
    assert "Erased: by the first run (everything) once it is no longer withheld. Withheld by: legal hold 1." in said
    assert "Overdue: nothing." in said
    await clean(running)
    assert await running.query("SELECT count(*) FROM messages") == [(1,)]


async def test_a_users_hold_is_told_where_the_user_is(running: Running, tell: Told) -> None:
    group, [alice, bob] = await group_of(running, "alice", "bob")
    other = await alice.create_group("elsewhere")
    await bob.send(group)
    hold(running.config, "user", UUID(bob.user_id).bytes, "case 8")
    assert "keeps messages from bob: case 8" not in await told(tell, running, "explain", other)
    said = await told(tell, running, "explain", group, "1")
    assert "Legal hold 1 keeps messages from" in said
    assert "case 8" in said
    assert "Withheld by: legal hold 1." in said


async def test_a_deleted_group_is_explained_by_its_id_until_it_is_erased(running: Running, tell: Told) -> None:
    group, [alice] = await group_of(running, "alice")
    await alice.send(group)
    await alice.post(f"/groups/{group}/delete")
    said = await told(tell, running, "explain", group, "1")
    assert "group (deleted)" in said
    assert "Hidden: already, its group was deleted." in said
    assert "Erased: by the next run (of any job)." in said
    listed = json.loads(await told(tell, running, "group", "list", "--json"))
    assert (listed["group_id"], listed["hot_messages"], listed["name"]) == (group, 1, "")
    await clean(running)
    done = await asyncio.to_thread(tell, running.config, "explain", group)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == "conclave: no such group, or all of it is erased; its last receipt is number 1\n"


@pytest.mark.parametrize("command", [("explain",), ("group", "show")])
@pytest.mark.parametrize("name", ["nobody", "", "00000000-0000-4000-8000-000000000000", "0" * 32])
async def test_an_unknown_group_is_told_in_a_line(
    running: Running, tell: Told, command: tuple[str, ...], name: str
) -> None:
    done = await asyncio.to_thread(tell, running.config, *command, name)
    assert (done.exit_code, done.stdout) == (1, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("conclave: no such group")


def test_another_configuration_than_the_servers_is_refused(config: Config, clock: FakeClock, tell: Told) -> None:
    stores.prepare(config.database)
    for command in (["explain", "team"], ["group", "list"], ["group", "show", "team"]):
        assert "has not been used by a server yet" in tell(config, *command).stderr
    with closing(sqlite.connect(config.database)) as connection, sqlite.write_transaction(connection):
        state.begin_serving(connection, config.policy, clock.read())
    for command in (["explain", "team"], ["group", "list"], ["group", "show", "team"]):
        done = tell(replace(config, message_retention=DAY), *command)
        assert (done.exit_code, done.stdout) == (1, "")
        assert done.stderr.startswith("conclave: message_retention: this configuration differs")


async def test_an_override_binds_and_what_admins_have_stored_is_told(
    config: Config, start_server: StartServer, tell: Told
) -> None:
    async with start_server(config) as server:
        group, [alice] = await group_of(server, "alice")
        await alice.set_expiry(group, 3600)
    retention = RetentionConfig(groups={group: Lifetimes(-1, 30 * DAY)})
    async with start_server(replace(config, retention=retention)) as server:
        said = await told(tell, server, "explain", "team")
    assert "Policy: messages expire 30 days after sending. Source: override." in said
    assert "- the operator's override for this group applies: max_lifetime 30d" in said
    assert "- its admins set 1h, which the override overrules" in said


@pytest.mark.parametrize(
    ("retention", "server", "own", "said"),
    [
        (RetentionConfig(), 7 * DAY, -1, "- message_retention of the server, 7d, applies"),
        (RetentionConfig(), 7 * DAY, 0, "retention.fetch_hold_limit is not set"),
        (
            RetentionConfig(fetch_hold_limit=30 * DAY),
            7 * DAY,
            0,
            "a message expires after 30d, fetched by all",
        ),
        (
            RetentionConfig(limits=LifetimeLimits(LifetimeRange(), LifetimeRange(DAY))),
            -1,
            60,
            "- retention.limits.max_lifetime.min raises it to 1d",
        ),
        (
            RetentionConfig(limits=LifetimeLimits(LifetimeRange(), LifetimeRange(DAY))),
            -1,
            0,
            "Messages are not erased until 1 day after sending",
        ),
        (RetentionConfig(enabled=False), -1, 60, "Nothing is erased on this server: retention.enabled is false."),
        (RetentionConfig(retain_commits=True), -1, 60, "a commit does not expire by age until every member"),
        (RetentionConfig(purge_jobs=(PurgeJob(DAY, -1, 3 * DAY),)), -1, 60, "Runs: up to 3d every 1d."),
        (RetentionConfig(purge_jobs=(PurgeJob(DAY, -1, 3 * DAY),)), -1, 9 * DAY, "no purge job covers this lifetime"),
    ],
)
async def test_what_binds_is_told(
    config: Config,
    start_server: StartServer,
    tell: Told,
    retention: RetentionConfig,
    server: int,
    own: int,
    said: str,
) -> None:
    async with start_server(replace(config, message_retention=server, retention=retention)) as running:
        group, [alice] = await group_of(running, "alice")
        await alice.set_expiry(group, own)
        assert said in await told(tell, running, "explain", group)


async def test_the_list_and_one_group_tell_the_same(running: Running, tell: Told) -> None:
    group, [alice, _] = await group_of(running, "alice", "bob")
    await alice.create_group("zebra")
    await alice.set_expiry(group, 10)
    await alice.send(group, b"12345")
    first, second = (json.loads(line) for line in (await told(tell, running, "group", "list", "--json")).splitlines())
    shown = json.loads(await told(tell, running, "group", "show", "team", "--json"))
    assert (first["name"], second["name"]) == ("team", "zebra")
    assert shown == first | {"hot_bytes": 5}
    assert (first["lifetime"], first["source"], first["members"], first["hot_messages"]) == (10, "group", 2, 1)
    assert (first["overdue_since"], first["holds"], first["archived_messages"]) == (None, 0, 0)
    assert await told(tell, running, "group", "list", "--overdue", "--json") == ""
    running.clock.advance(10 + 3 * 3600)
    late = json.loads(await told(tell, running, "group", "list", "--overdue", "--json"))
    assert (late["name"], late["overdue_since"], late["is_late"]) == ("team", first["oldest"] + 11, True)
    assert "for 2h (late)" in await told(tell, running, "group", "list")
    assert "overdue:           for 2h (late)" in await told(tell, running, "group", "show", "team")
    assert "zebra" not in await told(tell, running, "group", "list", "--like", "TEA")


def hold(config: Config, covers: str, subject: bytes, reason: str) -> None:
    """Add a hold, as the command does."""
    with closing(sqlite.connect(config.database)) as connection, sqlite.write_transaction(connection):
        row = connection.execute("SELECT group_key FROM groups WHERE group_id = ?", (subject,)).fetchone()
        values = (row[0] if covers == "group" else None, subject if covers == "user" else None, subject, reason)
        _add(connection, values)


def _add(connection: sqlite3.Connection, values: tuple[object, ...]) -> None:
    connection.execute(
        "INSERT INTO holds (group_key, user_id, subject_id, name, reason, added_by, added_at)"
        " VALUES (?, ?, ?, 'bob', ?, 'operator o', 0)",
        values,
    )


async def test_an_archived_message_is_explained_from_its_own_row(running: Running, tell: Told) -> None:
    group, [alice] = await group_of(running, "alice")
    await alice.set_expiry(group, 90 * DAY)
    for _ in range(3):
        await alice.send(group)
        running.clock.advance(60)
    mover = Mover(running.config)
    rows = mover.append(group, 2)
    mover.switch(group, 2, rows)
    assert "in the archive, with a copy in the database until the next run" in await told(
        tell, running, "explain", group, "2"
    )
    mover.drop_copies(group)
    said = await told(tell, running, "explain", group, "2")
    assert "Message 2: in the archive (partition lifetime=" in said
    assert "Sent at" in said
    assert "by alice (" in said
    assert "(in 89 days)." in said
    found = json.loads(await told(tell, running, "explain", group, "2", "--json"))
    [(sent_at,)] = await running.query("SELECT created_at - 60 FROM messages WHERE sequence_num = 3")
    assert found["message"]["sent"] == {"created_at": sent_at, "sender_id": alice.user_id, "is_commit": False}
    shown = json.loads(await told(tell, running, "group", "show", group, "--json"))
    assert (shown["hot_messages"], shown["archived_messages"], shown["border"]) == (1, 2, 2)
    shutil.rmtree(running.config.archive_path)
    said = await told(tell, running, "explain", group, "2")
    assert "Its time cannot be read: " in said
    assert "Message 2: in the archive (partition lifetime=" in said


def test_a_name_that_is_no_text_is_refused(config: Config, tell: Told) -> None:
    for command in (["explain"], ["group", "show"]):
        done = tell(config, *command, "\udcff")
        assert (done.exit_code, done.stdout) == (2, "")
        assert "not valid UTF-8" in done.stderr


async def test_while_the_clock_is_wrong_the_next_run_erases_nothing(running: Running, tell: Told) -> None:
    group, [alice] = await group_of(running, "alice")
    await alice.set_expiry(group, 10)
    await alice.send(group)
    running.clock.advance(11)
    assert json.loads(await told(tell, running, "explain", group, "1", "--json"))["message"]["fate"]["goes"]
    running.clock.set_wrong(DAY)
    found = json.loads(await told(tell, running, "explain", group, "1", "--json"))
    assert not found["message"]["fate"]["goes"]
    assert found["clock_fault"]
    said = await told(tell, running, "explain", group, "1")
    assert "The clock is not trusted: " in said
    assert "Withheld by: the clock guard." in said
