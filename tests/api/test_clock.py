"""A wall clock that is wrong: what it must not decide, what is brought back, and small steps back."""

import asyncio
import logging
import sqlite3
from contextlib import closing
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from conclave import app_keys, failpoints
from conclave.clock import FakeClock
from conclave.config.cleanup import CleanupConfig
from conclave.config.settings import Config
from conclave.store import clock_repair
from conclave.store.engine import sqlite
from conclave.store.resources import audit, sessions
from spark.environment import RunEnvironment
from spark.report import Report
from spark.run import clean_up
from tests.conftest import Running, StartServer
from tests.support import stores
from tests.support.client import Client, expect
from tests.support.failpoints import CLOCK_POINTS
from tests.support.server import until

MINUTE, HOUR, DAY, YEAR = 60, 3600, 86_400, 31_536_000
MARKS = "SELECT group_key, last_seq, floor_seq, gone_below, expired_before FROM groups"


@pytest.fixture
def config(config: Config) -> Config:
    return replace(config, cleanup=CleanupConfig(engine="sql"))


async def run(server: Running, *, accept: bool = False) -> Report:
    """Do a cleanup run as one by hand, which may fail."""
    await server.settle()
    return await asyncio.to_thread(clean_up, RunEnvironment(server.config, server.clock), accept_clock=accept)


async def accept(server: Running) -> Report:
    """Accept the clock, and wait until the server knows."""
    report = await run(server, accept=True)
    assert report.error == ""
    await until_told(server, red=False)
    return report


async def brought_back(server: Running) -> dict[str, int]:
    """Accept the clock; return how many rows of what were stamped ahead, as the audit log has it."""
    await accept(server)
    with closing(sqlite.connect(server.config.database, readonly=True)) as connection:
        return dict(audit.last(connection, 1)[0].details["brought_back"])


async def until_told(server: Running, *, red: bool) -> None:
    await until(lambda: ("clock" in server.app[app_keys.HEALTH].faults) is red)


def again(client: Client, server: Running) -> Client:
    """The same session, with a server that was started anew."""
    return Client(server.http, server.url, client.token, client.user_id)


async def test_entering_delete_after_fetch_waits_for_the_clock_and_loses_nothing(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    alice, bob, carol = await running.users("alice", "bob", "carol")
    group = await alice.create_group("g")
    await bob.join(group)
    for _ in range(5):
        await alice.send(group)
    for each in (alice, bob):
        assert await each.numbers(group) == [1, 2, 3, 4, 5]
    await carol.join(group)
    before = await running.query(MARKS)
    running.clock.set_wrong(700)
    with caplog.at_level(logging.ERROR):
        await expect(alice.set_expiry(group, 0), 503, 0)
    assert "set forward by 700 seconds" in running.app[app_keys.HEALTH].faults["clock"]
    assert await running.query("SELECT clock_fault FROM server_state") == [
        ("the wall clock was set forward by 700 seconds",)
    ]
    running.clock.set_wrong(-700)
    await expect(alice.set_expiry(group, 0), 503, 0)
    assert await running.query(MARKS) == before
    assert (await accept(running)).counts.total() == 0
    await alice.set_expiry(group, 0)
    assert (await run(running)).counts.total() == 0
    assert await carol.numbers(group) == [1, 2, 3, 4, 5]


async def test_while_the_clock_is_wrong_an_expiry_does_not_change_and_all_else_goes_on(running: Running) -> None:
    alice, bob, carol = await running.users("alice", "bob", "carol")
    group = await alice.create_group("g", expiry=0)
    await bob.join(group)
    await alice.send(group)
    await bob.numbers(group)
    running.clock.set_wrong(700)
    refused = await expect(alice.patch(group, alias="x", message_expiry_seconds=-1, update_message_expiry=True), 503, 0)
    assert "clock" in refused["message"]
    assert await running.query("SELECT alias, message_expiry_seconds FROM groups") == [("", 0)], "all or nothing"
    await expect(bob.set_expiry(group, -1), 401, 401)
    await expect(alice.set_expiry(group, -2), 400, 101)
    await expect(
        alice.patch(group, group_name="no name", message_expiry_seconds=-1, update_message_expiry=True), 400, 101
    )
    await alice.patch(group, alias="y", message_expiry_seconds=0, update_message_expiry=True)
    await carol.join(group)
    await bob.leave(group)
    assert (await running.query("SELECT floor_seq FROM groups"))[0][0] == 1, "joins and leaves go on"
    running.clock.set_wrong(-700)
    assert (await accept(running)).counts["fetched"] == 1, "what all had fetched is not left for ever"


async def test_an_answer_that_waits_for_the_clock_says_when_to_ask_again(running: Running) -> None:
    alice = await running.user("alice")
    group = await alice.create_group("g")
    running.clock.set_wrong(700)
    async with running.http.patch(
        f"{running.url}/api/v1/groups/{group}",
        json={"message_expiry_seconds": 5, "update_message_expiry": True},
        headers={"Authorization": f"Bearer {alice.token}"},
    ) as response:
        assert (response.status, response.headers["Retry-After"]) == (503, "60")


async def test_what_a_fast_clock_stamped_ends_as_if_stored_when_the_clock_was_accepted(running: Running) -> None:
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("g", expiry=MINUTE)
    running.clock.set_wrong(YEAR)
    fast = running.clock.now()
    for each in (alice, bob):
        await each.login("alice" if each is alice else "bob")
    await bob.join(group)
    await alice.send(group)
    running.clock.set_wrong(-YEAR)
    assert [each.created_at for each in await alice.fetch(group)] == [fast]
    assert await brought_back(running) == {"messages": 1, "members": 1, "sessions": 2}
    assert [each.created_at for each in await alice.fetch(group)] == [running.clock.now()]
    running.clock.advance(MINUTE + 1)
    assert await bob.numbers(group) == []
    assert (await run(running)).counts["expired"] == 1
    running.clock.advance(running.config.token_ttl_seconds - MINUTE - 2)
    await alice.get("/me")
    running.clock.advance(1)
    await bob.get("/me")
    running.clock.advance(running.config.token_ttl_seconds)
    await expect(bob.get("/me"), 401, 202)


async def test_a_use_under_a_fast_clock_that_the_server_keeps_in_memory_is_not_honoured_after_it(
    config: Config, start_server: StartServer
) -> None:
    async with start_server(config) as server:
        alice, bob = await server.users("alice", "bob")
        server.clock.set_wrong(config.token_ttl_seconds // 2)
        for each in (alice, bob):
            await each.get("/me")
        uses = server.app[app_keys.ACTIVITY].unstored()
        await server.app[app_keys.CLOCK_WATCH].record()
        server.clock.set_wrong(-(config.token_ttl_seconds // 2))
        await accept(server)
        now = server.clock.now()
        await server.app[app_keys.STORE].write(
            sessions.extend, uses, config.token_ttl_seconds, server.app[app_keys.CLOCK]
        )  # on its way while the clock was accepted
        (listed,) = (await alice.get("/sessions"))["sessions"]
        assert listed["last_used_at"] == now
        assert listed["expires_at"] == now + config.token_ttl_seconds
        server.clock.advance(config.token_ttl_seconds)
        for each in (alice, bob):
            await expect(each.get("/me"), 401, 202)


async def test_what_is_hidden_stays_hidden_and_nothing_else_becomes_so_when_the_clock_is_accepted(
    config: Config, start_server: StartServer, clock: FakeClock
) -> None:
    async with start_server(config) as server:
        alice = await server.user("alice")
        group = await alice.create_group("g", expiry=HOUR)
        await alice.send(group, b"1: before")
    clock.set_wrong(YEAR)
    clock.boot_id = "restarted with the clock ahead: that cannot be seen"
    async with start_server(config) as server:
        alice = await login(server, "alice")
        await alice.send(group, b"2: expires ahead")
        clock.advance(HOUR + 1)
        await alice.send(group, b"3: shown")
        await alice.set_expiry(group, -1)
        assert await alice.numbers(group) == [3]
    clock.set_wrong(-YEAR)
    clock.boot_id = "restarted with the clock mended"
    async with start_server(config) as server:
        alice = again(alice, server)
        await until_told(server, red=True)
        assert await alice.send(group, b"4: while nobody has looked") == 4
        assert await alice.numbers(group) == [3, 4]
        told = await brought_back(server)
        assert (told["messages"], told["marks"]) == (3, 1)
        assert await alice.send(group, b"5: in the same second") == 5
        assert await alice.numbers(group) == [3, 4, 5]
        assert await server.query("SELECT expired_before FROM groups") == [(clock.now(),)]
        assert await server.query("SELECT sequence_num FROM messages ORDER BY 1") == [(3,), (4,), (5,)]
        assert await server.query("SELECT count(*) FROM messages WHERE created_at > ?", clock.now()) == [(0,)]


@pytest.mark.parametrize("point", CLOCK_POINTS)
async def test_wherever_accepting_fails_the_guard_stays_red_and_repeating_does_the_rest(
    config: Config, start_server: StartServer, clock: FakeClock, point: str
) -> None:
    async with start_server(config) as server:
        alice = await server.user("alice")
        group = await alice.create_group("g", expiry=HOUR)
    clock.set_wrong(YEAR)
    clock.boot_id = "ahead"
    async with start_server(config) as server:
        alice = await login(server, "alice")
        await alice.send(group)
        clock.advance(HOUR + 1)
        await alice.send(group)
        await alice.set_expiry(group, -1)
    clock.set_wrong(-YEAR)
    clock.boot_id = "mended"
    async with start_server(config) as server:
        alice = again(alice, server)
        failpoints.arm(f"{point}=io")
        try:
            assert "disk I/O error" in (await run(server, accept=True)).error
        finally:
            failpoints.arm("")
        assert await alice.numbers(group) == [2]
        assert "ClockWrongError" in (await run(server)).error
        await accept(server)
        assert await alice.numbers(group) == [2]
        assert await server.query("SELECT created_at FROM messages WHERE sequence_num = 2") == [(clock.now(),)]


def test_every_column_of_numbers_is_known_to_be_a_time_or_not(config: Config) -> None:
    """Add a column with a time to clock_repair, or one without to this list."""
    no_times = {
        "server_state": {"id", "stopped_cleanly", "clock_since_boot", "clock_acceptances", "self_destruct_max_age"},
        "users": {"disabled"},
        "sessions": {"session_id"},
        "bodies": {"body_id"},
        "message_bodies": {"message_id"},
        "groups": {
            *("group_key", "message_expiry_seconds", "group_info_body"),
            *("last_seq", "floor_seq", "gone_below", "archived_seq", "commits_below", "min_lifetime_seconds"),
            *("self_destructs", "effective_expiry", "least_lifetime", "hold_limit", "keeps_commits", "erases"),
            "taken_back_count",
        },
        "key_state": {"id", "settled", "serial"},
        "key_erasures": {"first_seq", "last_seq"},
        "taken_back": {"group_key", "sequence_num", "erased", "told_to"},
        "members": {
            *("member_id", "group_key", "joining", "watermark", "joined_after", "read_up_to"),
            *("missed_from", "missed_to"),
        },
        "timers": {"timer_id", "group_key", "sequence_num", "member_id", "seconds", "told"},
        "messages": {"group_key", "sequence_num", "is_commit", "size"},
        "invites": {"invite_key", "group_key", "commit_body", "welcome_body", "group_info_body"},
        "tombstones": {
            *("group_key", "message_expiry_seconds", "min_lifetime_seconds"),
            *("effective_expiry", "least_lifetime", "hold_limit", "keeps_commits", "erases"),
        },
        "outbox": {"outbox_id"},
        "touches": {"touch", "group_key", "session_id"},
        "cleanup_runs": {"run_id"},
        "key_packages": {"key_package_id", "is_last_resort", "package_body"},
        "welcomes": {"welcome_key", "group_key", "welcome_body"},
        "bans": {"ban_key", "group_key"},
        "archive_state": {"id", "version", "unerased", "relaid", "turn", "former_turn", "unsettled"},
        "archive_moves": {"batch", "message_count", "checksum"},
        "archive_move_ranges": {"batch", "group_key", "first_seq", "last_seq", "lifetime"},
        "archive_parts": {
            *("group_key", "lifetime", "first_seq", "last_seq", "message_count", "body_bytes", "checksum"),
        },
        "archive_senders": {"group_key"},
        "holds": {"hold_id", "group_key"},
        "registration_tokens": {"token_id", "most_uses", "uses", "lifetime"},
        "send_ids": {"send_key", "group_key", "sequence_num"},
        "self_destructing": {"group_key", "sequence_num", "seconds", "ended"},
        "ledger_changes": {"change", "since"},
        "ledger_state": {"id", "claimed", "written", "restored"},
        "ended_timers": {"group_key", "sequence_num"},
        "missed_redactions": {"missed_id", "group_key", "sequence_num"},
        "audit": {"audit_id"},
        "archive_dead": {"lifetime", "messages"},
        "archive_returned": {"lifetime", "group_key", "messages"},
        "erasures": {"group_key", "messages", "last_seq"},
        "receipts": {"receipt_id", "messages", "last_seq"},
        "receipts_anchor": {"id", "receipt_id"},
    }
    stores.prepare(config.database)
    with closing(sqlite.connect(config.database)) as connection:
        stored = numbers(connection)
    times = clock_repair.PLAIN, clock_repair.SPECIAL, clock_repair.EVIDENCE
    known = {
        table: {*no_times.get(table, ()), *(column for of in times for column in of.get(table, ()))}
        for table in {*no_times, *(table for of in times for table in of)}
    }
    assert {table: columns for table, columns in stored.items() if columns} == known


async def test_each_time_that_lies_ahead_is_brought_back(running: Running) -> None:
    alice, bob, carol = await running.users("alice", "bob", "carol")
    group, doomed = await alice.create_group("g"), await alice.create_group("doomed")
    await alice.send(group, send_id=str(uuid4()))
    await alice.send(doomed)
    await alice.invite(group, carol)
    await alice.act("ban", group, bob)
    await alice.post(f"/groups/{doomed}/delete")
    await running.settle()
    with closing(sqlite.connect(running.config.database)) as connection, sqlite.write_transaction(connection):
        connection.execute("INSERT INTO archive_moves (fixed_at, finished_at) VALUES (?1, ?1)", (running.clock.now(),))
        connection.execute("INSERT INTO user_tombstones VALUES (zeroblob(16), ?)", (running.clock.now(),))
        connection.execute(
            "INSERT INTO cleanup_runs (started_at, finished_at, engine, outcome, counts) VALUES (1, 1, '', 'ok', '{}')"
        )
        connection.execute(
            "INSERT INTO holds (group_key, subject_id, name, reason, added_by, added_at)"
            " VALUES (1, x'', '', '', '', ?)",
            (running.clock.now(),),
        )
        connection.execute(
            "INSERT INTO registration_tokens (token_hash, most_uses, created_at, lifetime, added_by, note)"
            " VALUES (x'', 1, ?, 60, '', '')",
            (running.clock.now(),),
        )
        connection.execute("INSERT INTO archive_state (id, archive_id, version) VALUES (1, '', 0)")
        connection.execute(
            "INSERT INTO archive_dead (lifetime, span, messages, since) VALUES (-1, 0, 1, ?)", (running.clock.now(),)
        )
        for table, columns in (*clock_repair.PLAIN.items(), ("messages", ("created_at",))):
            for column in columns:
                changed = connection.execute(f"UPDATE {table} SET {column} = {column} + {2 * YEAR}").rowcount
                assert changed, table
        connection.execute(f"UPDATE sessions SET created_at = {3 * 10**9}, last_used_at = {3 * 10**9}")
        connection.execute(f"UPDATE sessions SET expires_at = {4 * 10**9}")
        connection.execute(f"UPDATE groups SET expired_before = {3 * 10**9}")
        audit.note(connection, 3 * 10**9, "operator root", audit.AuditAction.GROUP_PURGED)
    await accept(running)
    now = running.clock.now()
    with closing(sqlite.connect(running.config.database)) as connection:
        for table, columns in (*clock_repair.PLAIN.items(), *clock_repair.SPECIAL.items()):
            for column in columns:
                latest = now + running.config.token_ttl_seconds if column == "expires_at" else now
                newest = connection.execute(f"SELECT max({column}) FROM {table}").fetchone()[0]
                assert newest is None or newest <= latest, (table, column)
        assert [each.at for each in audit.last(connection, 9)] == [now, 3 * 10**9], "what was noted stays as it was"


async def test_only_what_a_wrong_clock_calls_dead_does_not_make_way(running: Running) -> None:
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("g")
    await alice.invite(group, bob)
    before = await running.query("SELECT * FROM invites")
    running.clock.set_wrong(running.config.invite_ttl_seconds + 1)
    assert await bob.invited_to() == [], "hiding goes by the clock as it is"
    await expect(alice.invite(group, bob), 503, 0)
    assert "clock" in running.app[app_keys.HEALTH].faults
    await expect(bob.join(group), 503, 0)
    await expect(alice.post(f"/groups/{group}/cancel-invite", invitee_id=bob.user_id), 404, 300)
    assert await running.query("SELECT * FROM invites") == before
    running.clock.set_wrong(-running.config.invite_ttl_seconds - 1)
    await accept(running)
    assert await bob.invited_to() == [group]
    running.clock.advance(running.config.invite_ttl_seconds + 1)
    for each, name in ((alice, "alice"), (bob, "bob")):
        await each.login(name)
    await bob.join(group)


@pytest.mark.parametrize("restarted", [False, True])
async def test_what_has_expired_stays_so_when_the_clock_steps_back_a_little(
    config: Config, start_server: StartServer, clock: FakeClock, *, restarted: bool
) -> None:
    async with start_server(config) as server:
        alice = await server.user("alice")
        group = await alice.create_group("g", expiry=MINUTE)
        await alice.send(group)
        clock.advance(MINUTE + 1)
        assert await alice.numbers(group) == []
        if not restarted:
            clock.set_wrong(-300)
            await expired_for_good(server, alice, group)
    clock.set_wrong(-300)
    async with start_server(config) as server:
        await expired_for_good(server, again(alice, server), group)


async def expired_for_good(server: Running, alice: Client, group: str) -> None:
    """Hidden, no longer due later, and erased, without anybody who looks at the clock."""
    before = (await server.query("SELECT acted_until FROM server_state"))[0][0]
    assert await alice.numbers(group) == []
    number = await alice.send(group)
    assert [each.created_at for each in await alice.fetch(group)] == [server.app[app_keys.CLOCK].now()]
    assert server.app[app_keys.CLOCK].now() >= before
    await alice.set_expiry(group, -1)
    assert await alice.numbers(group) == [number]
    await run(server)
    assert await server.query("SELECT sequence_num FROM messages") == [(number,)]
    assert "clock" not in server.app[app_keys.HEALTH].faults
    await alice.set_expiry(group, MINUTE)
    server.clock.advance(300 + MINUTE + 1)
    assert await alice.numbers(group) == []


async def test_a_session_that_has_expired_stays_so_when_the_clock_steps_back_a_little(running: Running) -> None:
    alice = await running.user("alice")
    running.clock.advance(running.config.token_ttl_seconds)
    await expect(alice.get("/me"), 401, 202)
    running.clock.set_wrong(-300)
    await expect(alice.get("/me"), 401, 202)


async def test_a_server_does_not_revive_what_a_run_by_hand_has_acted_on(
    config: Config, start_server: StartServer, clock: FakeClock
) -> None:
    async with start_server(config) as server:
        alice = await server.user("alice")
        group = await alice.create_group("g", expiry=HOUR)
        await alice.send(group)
    clock.advance(HOUR + 1)
    failpoints.arm("plan.made=io")
    try:
        report = await asyncio.to_thread(clean_up, RunEnvironment(config, clock))
    finally:
        failpoints.arm("")
    assert "disk I/O error" in report.error
    clock.set_wrong(-300)
    async with start_server(config) as server:
        alice = again(alice, server)
        assert await alice.numbers(group) == []
        clock.advance(500)
        assert (await asyncio.to_thread(clean_up, RunEnvironment(config, clock))).counts["expired"] == 1


async def test_a_running_server_learns_what_a_run_has_acted_on(running: Running) -> None:
    now = running.clock.now()
    ahead = FakeClock(now + 400, set_by=400)
    assert (await asyncio.to_thread(clean_up, RunEnvironment(running.config, ahead))).error == ""
    await until(lambda: running.app[app_keys.CLOCK].now() == now + 400)


async def test_a_run_does_not_go_back_behind_what_the_server_acted_on(running: Running) -> None:
    alice = await running.user("alice")
    group = await alice.create_group("g", expiry=MINUTE)
    await alice.send(group)
    running.clock.advance(MINUTE + 1)
    assert await alice.numbers(group) == []
    await running.app[app_keys.CLOCK_WATCH].record()
    running.clock.set_wrong(-300)
    acted = await running.query("SELECT acted_until FROM server_state")
    report = await run(running)
    assert (report.counts["expired"], report.started_at) == (1, acted[0][0])


async def test_the_policy_of_before_counts_until_the_last_time_that_was_acted_on(
    config: Config, start_server: StartServer, clock: FakeClock
) -> None:
    async with start_server(replace(config, message_retention=HOUR)) as server:
        alice = await server.user("alice")
        group = await alice.create_group("g")
        await alice.send(group)
        clock.advance(HOUR + 1)
        assert await alice.numbers(group) == []
    clock.set_wrong(-300)
    async with start_server(replace(config, message_retention=2 * HOUR)) as server:
        assert await again(alice, server).numbers(group) == []


async def test_accepting_a_clock_that_is_a_little_behind_lets_it_go_on_from_there(running: Running) -> None:
    alice = await running.user("alice")
    group = await alice.create_group("g")
    before = running.clock.now()
    running.clock.set_wrong(HOUR)
    await expect(alice.set_expiry(group, 5), 503, 0)
    running.clock.set_wrong(-HOUR - 500)
    assert running.app[app_keys.CLOCK].now() == before
    report = await accept(running)
    assert (report.error, running.app[app_keys.CLOCK].now()) == ("", before - 500)
    await alice.send(group)
    assert [each.created_at for each in await alice.fetch(group)] == [before - 500]
    assert (await run(running)).error == ""


async def login(server: Running, name: str) -> Client:
    client = Client(server.http, server.url)
    await client.login(name)
    return client


def numbers(connection: sqlite3.Connection) -> dict[str, set[str]]:
    """The columns of integers by table."""
    tables: list[Any] = connection.execute(
        "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    ).fetchall()
    return {
        table: {row["name"] for row in connection.execute(f"PRAGMA table_info({table})") if row["type"] == "INTEGER"}
        for (table,) in tables
    }
