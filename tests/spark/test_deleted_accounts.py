"""A deleted account: what it sent is hidden at once and erased by the next run; what others need stays."""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from conclave.actions.messages import append
from conclave.clock import FakeClock
from conclave.config.cleanup import CleanupConfig
from conclave.config.settings import Config
from conclave.retention import due, rules
from conclave.retention.plan import Plan, make_plan
from conclave.retention.resolve import PolicySettings
from conclave.store.engine import sqlite
from conclave.store.resources import groups, state, users
from conclave.store.views import overdue
from spark import apply
from spark.environment import RunEnvironment
from spark.hot_store import Pacer
from spark.rehearsal import rehearse
from tests.conftest import Cleanup, Running, StartServer
from tests.support import stores
from tests.support.cleaner import Cleaner
from tests.support.client import PASSWORD, Client, encode
from tests.support.forensics import StoreSearch
from tests.support.memberships import member_of

START, HOUR = 1_700_000_000, 3600
POLICY = PolicySettings(-1, 2_592_000, 604_800)


async def delete_account(client: Client) -> None:
    await client.post("/delete-account", password=PASSWORD)


async def commit(client: Client, group: str, body: bytes = b"commit") -> None:
    await client.post(f"/groups/{group}/commit", commit_message=encode(body), group_info=encode(b"group info"))


async def stored(server: Running) -> list[tuple[int, int]]:
    """Group keys and sequence numbers of what is stored, whether it is served or not."""
    return await server.query("SELECT group_key, sequence_num FROM messages ORDER BY group_key, sequence_num")


async def test_what_a_deleted_account_sent_is_hidden_at_once_and_erased_by_the_next_run(
    running: Running, cleanup: Cleanup
) -> None:
    alice, bob, carol = await running.users("alice", "bob", "carol")
    first, second = [await alice.create_group(name) for name in ("first", "second")]
    for group in (first, second):
        await bob.join(group)
        await carol.join(group)
        await alice.send(group)
        await bob.send(group)
        await commit(bob, group, b"a commit of bob's")
        await carol.send(group)
        await bob.send(group)
    assert await alice.numbers(first) == [1, 2, 3, 4, 5]
    await delete_account(bob)
    for group in (first, second):
        for reader in (alice, carol):
            assert await reader.numbers(group) == [1, 3, 4]
    assert len(await stored(running)) == 10, "nothing is erased yet"
    assert await cleanup(running) == {**dict.fromkeys(rules.REPORTED, 0), "deleted_account": 4}
    assert await stored(running) == [(key, number) for key in (1, 2) for number in (1, 3, 4)]
    for group in (first, second):
        left = {each.sequence_num: (each.sender_id, each.body) for each in await carol.fetch(group)}
        assert left == {
            1: (alice.user_id, b"hello"),
            3: (bob.user_id, b"a commit of bob's"),
            4: (carol.user_id, b"hello"),
        }
        assert await alice.send(group) == 6
    assert await running.query("SELECT * FROM user_tombstones") == []
    assert sum((await cleanup(running)).values()) == 0


async def test_the_bodies_of_a_deleted_account_are_in_no_file_after_the_next_run(
    config: Config, start_server: StartServer, cleanup: Cleanup, tmp_path: Path
) -> None:
    search = StoreSearch()
    async with start_server(config) as server:
        alice, bob = await server.users("alice", "bob")
        group = await alice.create_group("g")
        await bob.join(group)
        for number in range(0, 60, 3):
            await alice.send(group, search.body(number, 300))
            await bob.send(group, search.body(number + 1, 300))
            await commit(bob, group, search.body(number + 2, 300))
        await delete_account(bob)
        assert (await cleanup(server))["deleted_account"] == 20
    assert search.numbers_in(tmp_path) == {number for number in range(60) if number % 3 != 1}


async def test_commits_of_a_deleted_account_expire_like_any_other(running: Running, cleanup: Cleanup) -> None:
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("g", expiry=HOUR)
    await bob.join(group)
    await commit(bob, group)
    await delete_account(bob)
    assert await alice.numbers(group) == [1]
    running.clock.advance(HOUR + 1)
    assert await alice.numbers(group) == []
    assert (await cleanup(running))["expired"] == 1
    assert await stored(running) == []


async def test_a_deleted_account_that_never_sent_anything_leaves_nothing(running: Running, cleanup: Cleanup) -> None:
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("g")
    await alice.send(group)
    await delete_account(bob)
    assert sum((await cleanup(running)).values()) == 0
    assert await running.query("SELECT * FROM user_tombstones") == []
    assert await alice.numbers(group) == [1]


async def test_a_message_that_several_rules_take_is_counted_once(running: Running, cleaner: Cleaner) -> None:
    alice, bob = await running.users("alice", "bob")
    kept, fetched, expired, deleted = [
        await alice.create_group(name, expiry=expiry)
        for name, expiry in (("kept", -1), ("fetched", 0), ("expired", HOUR), ("deleted", -1))
    ]
    for group in (kept, fetched, expired, deleted):
        await bob.join(group)
        for sender in (bob, alice, bob, bob):
            await sender.send(group)
    await alice.fetch(fetched, 0, 2)
    await bob.numbers(fetched)
    running.clock.advance(HOUR + 1)
    await bob.send(expired)
    await alice.post(f"/groups/{deleted}/delete")
    await delete_account(bob)
    await running.settle()
    config = replace(running.config, cleanup=CleanupConfig(engine="sql"))
    before = await stored(running), await running.query("SELECT * FROM user_tombstones")
    planned = rehearse(RunEnvironment(config, running.clock))
    assert (await stored(running), await running.query("SELECT * FROM user_tombstones")) == before
    report = await asyncio.to_thread(cleaner.run, config, running.clock.now())
    # Of bob's: 3 in the group that keeps, 2 that not all have fetched, 1 that has not expired.
    counts = {"expired": 4, "fetched": 2, "redacted": 0, "taken_back": 0, "deleted_group": 4, "deleted_account": 6}
    counts |= {"sessions": 0, "invites": 0}
    assert report["deleted"] == dict(planned.counts) == counts
    assert report["groups_touched"] == planned.groups_touched == 4


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    stores.prepare(tmp_path / "hot.db")
    with closing(sqlite.connect(tmp_path / "hot.db")) as opened:
        state.begin_serving(opened, POLICY, FakeClock(START).read())
        yield opened


def leave_messages(connection: sqlite3.Connection, count: int) -> bytes:
    """Store messages of two users in one group, and delete the account of the one whose id is returned."""
    stays, goes = [users.add(connection, name, "", "", START) for name in ("stays", "goes")]
    member = member_of(connection, groups.add(connection, stays, "g", "", START, POLICY), stays)
    for _ in range(count):
        for user_id in (stays, goes):
            append(connection, replace(member, member_id=0, user_id=user_id), b"body", START, is_commit=False)
    connection.execute("INSERT INTO user_tombstones (user_id, created_at) VALUES (?, ?)", (goes, START))
    return goes


def sent_by(connection: sqlite3.Connection, user_id: bytes) -> int:
    return int(connection.execute("SELECT count(*) FROM messages WHERE sender_id = ?", (user_id,)).fetchone()[0])


def test_the_tombstone_stays_until_the_last_message_is_gone(connection: sqlite3.Connection) -> None:
    count = 2 * apply.CHUNK + 1
    goes = leave_messages(connection, count)
    plan = make_plan(connection, POLICY, START)
    assert plan.deleted_accounts == [goes]
    counts: Counter[str] = Counter()
    named = due.of_plan(connection, plan)
    (listed,) = due.list_due(connection, named)
    next(apply._deletions(connection, named, listed, counts))()
    assert sent_by(connection, goes) == count - apply.CHUNK
    for step in apply._steps(connection, plan, POLICY, counts):
        step()
    again = make_plan(connection, POLICY, START)
    assert again == plan, "a run that was stopped here is gone on with by the next one"
    apply.apply_plan(Pacer(connection), again, POLICY, counts)
    assert counts == {rules.DELETED_ACCOUNT: count}
    assert sent_by(connection, goes) == 0
    assert connection.execute("SELECT count(*) FROM messages").fetchone()[0] == count, "those of the other user"
    assert make_plan(connection, POLICY, START) == Plan(START)


def test_an_account_deleted_between_plan_and_apply_is_left_to_the_next_run(connection: sqlite3.Connection) -> None:
    plan = make_plan(connection, POLICY, START)
    goes = leave_messages(connection, 3)
    counts: Counter[str] = Counter()
    apply.apply_plan(Pacer(connection), plan, POLICY, counts)
    assert counts.total() == 0
    apply.apply_plan(Pacer(connection), make_plan(connection, POLICY, START), POLICY, counts)
    assert counts == {rules.DELETED_ACCOUNT: 3}
    assert sent_by(connection, goes) == 0


def test_only_accounts_with_a_tombstone_lose_their_messages(connection: sqlite3.Connection) -> None:
    goes = leave_messages(connection, 3)
    (stays,) = connection.execute("SELECT user_id FROM members").fetchone()
    plan = Plan(START, deleted_accounts=[stays])
    counts: Counter[str] = Counter()
    apply.apply_plan(Pacer(connection), plan, POLICY, counts)
    assert counts.total() == 0
    assert (sent_by(connection, stays), sent_by(connection, goes)) == (3, 3)


def test_the_messages_of_an_account_are_found_without_looking_at_all_messages(connection: sqlite3.Connection) -> None:
    leave_messages(connection, 3)
    plan = make_plan(connection, POLICY, START)
    statements: list[str] = []
    connection.set_trace_callback(statements.append)
    apply.count_plan(connection, plan)
    due.groups(connection, plan)
    apply.apply_plan(Pacer(connection), plan, POLICY, Counter())
    connection.set_trace_callback(None)
    searches = [each for each in statements if "CROSS JOIN messages" in each and "sender_id =" in each]
    assert len(searches) == 4, "counting messages, counting groups, deleting, and looking whether any is left"
    for search in searches:
        details = [row["detail"] for row in connection.execute(f"EXPLAIN QUERY PLAN {search}")]
        assert "SEARCH messages USING INDEX messages_by_sender (group_key=? AND sender_id=?" in " ".join(
            details
        ).replace("COVERING ", "")
        assert not any("SCAN messages" in detail for detail in details), details
        assert any(each in search for each in ("DISTINCT", "ORDER BY")) or not any(
            "TEMP B-TREE" in detail for detail in details
        ), details


def test_in_one_group_they_are_found_without_looking_at_all_its_messages(connection: sqlite3.Connection) -> None:
    leave_messages(connection, 3)
    connection.execute(
        "INSERT INTO holds (group_key, subject_id, name, reason, added_by, added_at) VALUES (1, x'00', '', '', '', 0)"
    )
    statements: list[str] = []
    connection.set_trace_callback(statements.append)
    overdue.find(connection, START, 1)
    assert due.count_held(connection, START) == 3
    connection.set_trace_callback(None)
    searches = [each for each in statements if "INDEXED BY messages_by_sender" in each]
    assert len(searches) == 2
    for search in searches:
        plan = " ".join(row["detail"] for row in connection.execute(f"EXPLAIN QUERY PLAN {search}"))
        assert "SEARCH messages USING INDEX messages_by_sender (group_key=? AND sender_id=?)" in plan
