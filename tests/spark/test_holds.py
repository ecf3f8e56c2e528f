"""Legal holds: whatever hides a message, its bytes stay until the last hold on it is released."""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from conclave.actions import accounts, holds
from conclave.actions.command_runner import CommandRunner
from conclave.actions.context import Context
from conclave.actions.groups import change as change_group
from conclave.actions.messages import append
from conclave.clock import FakeClock
from conclave.retention.plan import make_plan
from conclave.retention.resolve import PolicySettings
from conclave.store.engine import sqlite
from conclave.store.resources import groups, members, state, users
from conclave.store.resources.groups import GroupChanges
from spark import apply
from spark.hot_store import Pacer
from tests.conftest import Cleanup, Running
from tests.support import stores
from tests.support.cleaner import Cleaner
from tests.support.client import PASSWORD, Client, encode
from tests.support.forensics import StoreSearch
from tests.support.memberships import member_of

HOUR, SIZE = 3600, 3000
START = 1_700_000_000
POLICY = PolicySettings(-1, 2_592_000, 604_800)


class Held:
    """What operators do to a running server's store."""

    def __init__(self, server: Running) -> None:
        self._outside = CommandRunner(server.config, server.clock)

    async def group(self, group: str) -> int:
        return await asyncio.to_thread(self._add, self._outside.read(holds.find_group, group))

    async def user(self, user: str) -> int:
        return await asyncio.to_thread(self._add, self._outside.read(holds.find_user, user))

    def _add(self, covered: holds.HoldSubject) -> int:
        return self._outside.write(holds.add, self._outside.context(), "operator root", covered, "case 17").hold_id

    async def release(self, *hold_ids: int) -> None:
        for hold_id in hold_ids:
            await asyncio.to_thread(self._release, hold_id)

    def _release(self, hold_id: int) -> None:
        self._outside.write(holds.release, self._outside.context(), "operator root", hold_id)


@pytest.fixture
def held(running: Running) -> Held:
    return Held(running)


async def commit(client: Client, group: str, body: bytes) -> None:
    await client.post(f"/groups/{group}/commit", commit_message=encode(body), group_info=encode(b"group info"))


async def stored(server: Running) -> list[int]:
    return [row[0] for row in await server.query("SELECT sequence_num FROM messages ORDER BY message_id")]


async def test_expired_messages_under_a_hold_are_hidden_and_kept_until_it_is_released(
    running: Running, cleanup: Cleanup, held: Held, tmp_path: Path
) -> None:
    search = StoreSearch()
    alice = await running.user("alice")
    covered, other = [await alice.create_group(name, expiry=HOUR) for name in ("covered", "other")]
    for number, group in enumerate((covered, other, covered, other)):
        await alice.send(group, search.body(number, SIZE))
    first, second = await held.group(covered), await held.group("covered")
    running.clock.advance(HOUR + 1)
    young = await alice.send(covered, search.body(4, SIZE))
    assert await alice.numbers(covered) == [young]
    assert await alice.numbers(other) == []
    assert (await cleanup(running))["expired"] == 2
    assert search.numbers_in(tmp_path) == {0, 2, 4}
    assert await alice.numbers(covered) == [young], "a hold shows nothing"
    await held.release(first)
    assert (await cleanup(running))["expired"] == 0, "the second hold keeps them"
    assert search.numbers_in(tmp_path) == {0, 2, 4}
    await held.release(second)
    assert (await cleanup(running))["expired"] == 2
    assert search.numbers_in(tmp_path) == {4}
    assert [each.body for each in await alice.fetch(covered)] == [search.body(4, SIZE)]


async def test_what_all_have_fetched_stays_hidden_although_somebody_joins(
    running: Running, cleanup: Cleanup, held: Held, tmp_path: Path
) -> None:
    search = StoreSearch()
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("g", expiry=0)
    await alice.send(group, search.body(0, SIZE))
    await alice.send(group, search.body(1, SIZE))
    await alice.numbers(group)
    hold = await held.group(group)
    assert (await cleanup(running))["fetched"] == 0
    await bob.join(group)
    assert await bob.numbers(group) == await alice.numbers(group) == []
    assert search.numbers_in(tmp_path) == {0, 1}
    await held.release(hold)
    assert (await cleanup(running))["fetched"] == 2
    assert search.numbers_in(tmp_path) == set()


async def test_a_deleted_group_under_a_hold_is_gone_for_clients_and_kept(
    running: Running, cleanup: Cleanup, held: Held, tmp_path: Path
) -> None:
    search = StoreSearch()
    alice = await running.user("alice")
    group, kept = await alice.create_group("g"), await alice.create_group("kept")
    await alice.send(group, search.body(0, SIZE))
    await alice.send(kept, search.body(1, SIZE))
    hold = await held.group(group)
    await alice.post(f"/groups/{group}/delete")
    await alice.create_group("g")
    assert (await cleanup(running))["deleted_group"] == 0
    assert search.numbers_in(tmp_path) == {0, 1}
    again = await held.group(group)
    await held.release(hold)
    assert (await cleanup(running))["deleted_group"] == 0, "held once more, by its id"
    await held.release(again)
    assert (await cleanup(running))["deleted_group"] == 1
    assert search.numbers_in(tmp_path) == {1}
    assert await alice.numbers(kept) == [1]
    assert await running.query("SELECT * FROM tombstones") == []


async def test_what_a_user_has_sent_is_kept_in_every_group_commits_too_and_after_the_account(
    running: Running, cleanup: Cleanup, held: Held, tmp_path: Path
) -> None:
    search = StoreSearch()
    alice, bob = await running.users("alice", "bob")
    expiring, deleted, lasting = [await alice.create_group(name) for name in ("expiring", "deleted", "lasting")]
    await alice.set_expiry(expiring, HOUR)
    for at, group in enumerate((expiring, deleted, lasting)):
        await bob.join(group)
        await alice.send(group, search.body(10 + at, SIZE))
        await bob.send(group, search.body(20 + at, SIZE))
        await commit(bob, group, search.body(30 + at, SIZE))
    hold = await held.user("bob")
    await bob.post("/delete-account", password=PASSWORD)
    await alice.post(f"/groups/{deleted}/delete")
    running.clock.advance(HOUR + 1)
    assert await alice.numbers(expiring) == []
    assert await alice.numbers(lasting) == [1, 3], "the commit is shown, as without a hold"
    gone = Counter(await cleanup(running))
    assert (gone["expired"], gone["deleted_group"], gone["deleted_account"]) == (1, 1, 0)
    assert search.numbers_in(tmp_path) == {12, 20, 21, 22, 30, 31, 32}
    assert await alice.numbers(lasting) == [1, 3], "what is hidden stays so"
    await held.release(hold)
    await cleanup(running)
    assert search.numbers_in(tmp_path) == {12, 32}, "what no rule names has stayed"
    assert await alice.numbers(lasting) == [1, 3]
    assert await running.query("SELECT * FROM user_tombstones") == []
    assert sum((await cleanup(running)).values()) == 0


async def test_a_hold_covers_what_is_sent_later_and_nothing_of_others(
    running: Running, cleanup: Cleanup, held: Held, tmp_path: Path
) -> None:
    search = StoreSearch()
    alice, bob = await running.users("alice", "bob")
    await held.user(bob.user_id)
    group = await alice.create_group("g", expiry=HOUR)
    await bob.join(group)
    await alice.send(group, search.body(0, SIZE))
    await bob.send(group, search.body(1, SIZE))
    running.clock.advance(HOUR + 1)
    assert (await cleanup(running))["expired"] == 1
    assert search.numbers_in(tmp_path) == {1}
    assert await stored(running) == [2]


async def test_a_hold_covers_no_key_packages_welcomes_group_info_or_invites(
    running: Running, cleanup: Cleanup, held: Held, tmp_path: Path
) -> None:
    search = StoreSearch()
    head = b"\x00\x01\x00\x05"
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("g")
    await alice.upload(head + search.body(0, SIZE))
    await alice.post(f"/groups/{group}/commit", group_info=encode(search.body(1, SIZE)))
    carried = {name: encode(search.body(2, SIZE)) for name in ("commit_message", "welcome_message", "group_info")}
    await alice.post(f"/groups/{group}/escrow-invite", invitee_id=bob.user_id, **carried)
    await held.group(group)
    await held.user("alice")
    running.clock.advance(8 * 24 * HOUR)
    assert (await cleanup(running))["invites"] == 1
    await bob.login("bob")
    await bob.take(alice)
    await alice.post(f"/groups/{group}/delete")
    await cleanup(running)
    assert search.numbers_in(tmp_path) == set()


@pytest.mark.parametrize("by_user", [False, True])
async def test_a_run_counts_what_holds_kept_and_not_what_something_else_did(
    running: Running, cleaner: Cleaner, held: Held, *, by_user: bool
) -> None:
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("g", expiry=HOUR)
    await bob.join(group)
    await alice.patch(group, min_lifetime_seconds=HOUR, update_min_lifetime=True)
    await bob.send(group)
    hold = await held.user("bob") if by_user else await held.group(group)
    await alice.set_expiry(group, 0)
    await alice.numbers(group)
    await bob.numbers(group)
    config = replace(running.config, cleanup=replace(running.config.cleanup, engine="sql"))

    async def kept() -> int:
        await running.settle()
        report = await asyncio.to_thread(cleaner.run, config, running.clock.now())
        return int(report["held"])

    running.clock.advance(HOUR - 1)
    assert await kept() == 0, "it is too young to go"
    running.clock.advance(1)
    assert await kept() == 1
    await held.release(hold)
    assert await kept() == 0
    assert await stored(running) == []


@pytest.mark.parametrize("by_user", [False, True])
async def test_a_dry_run_counts_what_holds_would_keep_of_what_its_marks_would_hide(
    running: Running, cleaner: Cleaner, held: Held, *, by_user: bool
) -> None:
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("g", expiry=0)
    await bob.join(group)
    await bob.send(group)
    assert [await each.numbers(group) for each in (alice, bob)] == [[1], [1]]
    await (held.user("bob") if by_user else held.group(group))
    config = replace(running.config, cleanup=replace(running.config.cleanup, engine="sql"))
    await running.settle()
    for told in (cleaner.dry_run, cleaner.run):
        assert (await asyncio.to_thread(told, config, running.clock.now()))["held"] == 1


async def test_what_a_deleted_account_left_in_a_held_group_is_counted_as_kept(
    running: Running, cleaner: Cleaner, held: Held
) -> None:
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("g")
    await bob.join(group)
    await bob.send(group)
    await commit(bob, group, b"commit")
    await held.group(group)
    await bob.post("/delete-account", password=PASSWORD)
    config = replace(running.config, cleanup=replace(running.config.cleanup, engine="sql"))
    await running.settle()
    report = await asyncio.to_thread(cleaner.run, config, running.clock.now())
    assert report["held"] == 1, "the commit would have stayed"
    assert await stored(running) == [1, 2]


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    stores.prepare(tmp_path / "hot.db")
    with closing(sqlite.connect(tmp_path / "hot.db")) as opened:
        state.begin_serving(opened, POLICY, FakeClock(START).read())
        yield opened


@pytest.mark.parametrize("rule", ["expired", "fetched", "deleted_group", "deleted_account"])
@pytest.mark.parametrize("by_user", [False, True])
def test_what_a_run_has_planned_is_kept_if_it_is_held_before_it_is_erased(
    connection: sqlite3.Connection, rule: str, *, by_user: bool
) -> None:
    context = Context(POLICY, FakeClock(START))
    user_id = users.add(connection, "alice", "", "", START)
    group_id = groups.add(connection, user_id, "g", "", START, POLICY)
    member = member_of(connection, group_id, user_id)
    expiry = {"expired": HOUR, "fetched": 0}.get(rule, -1)
    changes = GroupChanges(message_expiry_seconds=expiry)
    change_group(connection, context, member.group, changes)
    for _ in range(3):
        member = member_of(connection, group_id, user_id)
        append(connection, member, b"body", START, is_commit=False)
    if rule == "deleted_group":
        groups.remove(connection, member.group, START)
    elif rule == "deleted_account":
        bob = users.add(connection, "bob", "", "", START)
        members.add(connection, member.group.group_key, bob, START)
        accounts.end(connection, user_id, START)
    plan = make_plan(connection, POLICY, START + HOUR + 1)
    covered = (
        holds.HoldSubject(None, user_id, "") if by_user else holds.HoldSubject(member.group.group_key, group_id, "")
    )
    hold = holds.add(connection, context, "operator root", covered, "case 17")
    counts: Counter[str] = Counter()
    apply.apply_plan(Pacer(connection), plan, POLICY, counts)
    assert counts.total() == 0
    assert connection.execute("SELECT count(*) FROM messages").fetchone()[0] == 3
    holds.release(connection, context, "operator root", hold.hold_id)
    again = make_plan(connection, POLICY, START + HOUR + 1)
    apply.apply_plan(Pacer(connection), again, POLICY, counts)
    assert +counts == {rule: 3}, "the plan was not empty for another reason"
