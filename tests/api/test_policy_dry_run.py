"""What a change of a group's policy hides: told with the change, or by a dry run, which changes nothing."""

import asyncio
import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any, cast
from uuid import UUID

import pytest
import structlog

from conclave import app_keys
from conclave.actions import groups as actions
from conclave.actions.authorisation import require_group
from conclave.archive.layout import DAY as SPAN_DAY, KEEP_WIDTH
from conclave.archive.reader import Archive
from conclave.auth import passwords
from conclave.config.retention import RetentionConfig
from conclave.config.settings import Config
from conclave.retention import rehearsal
from conclave.retention.hidden import ArchiveCount, MessageTotals
from conclave.retention.policy import KEEP
from conclave.retention.resolve import Lifetimes
from conclave.retention.stretches import Stretch
from conclave.store.engine import sqlite
from tests.conftest import Running, StartServer
from tests.support.alone import StoreAlone
from tests.support.archive import Mover
from tests.support.client import PASSWORD, Client, encode, expect
from tests.support.protobuf import ProtobufClient
from tests.support.server import until

MINUTE, HOUR, DAY, YEAR = 60, 3600, 86_400, 31_536_000

both_formats = pytest.mark.parametrize("kind", [Client, ProtobufClient])

Answer = tuple[int, int]
"""How many messages expire, and when the oldest of them was stored."""


async def change(client: Client, group: str, expiry: int | None = None, *, dry: bool = False, **more: Any) -> Answer:
    """Change a group's expiry and other settings, or do as if."""
    body = more | ({} if expiry is None else {"message_expiry_seconds": expiry, "update_message_expiry": True})
    told = await client.call("PATCH", f"/groups/{group}", json=body | ({"dry_run": True} if dry else {}))
    assert set(told) == {"messages_expiring", "oldest_expiring"}
    return told["messages_expiring"], told["oldest_expiring"]


async def foretold_and_made(client: Client, group: str, expiry: int | None, **more: Any) -> Answer:
    """Return what a dry run and then the change itself say, which is the same."""
    dry = await change(client, group, expiry, dry=True, **more)
    assert await change(client, group, expiry, **more) == dry
    return dry


async def a_message_an_hour(running: Running, client: Client, group: str, count: int) -> int:
    """Send that many, the last one now. Return when the first was stored."""
    first = running.clock.now()
    for number in range(count):
        running.clock.advance(HOUR if number else 0)
        await client.send(group)
    return first


@both_formats
async def test_a_shorter_expiry_hides_what_is_older(running: Running, kind: type[Client]) -> None:
    alice = await kind.register(running.http, running.url, "alice")
    group = await alice.create_group("friends")
    first = await a_message_an_hour(running, alice, group, 10)
    assert await foretold_and_made(alice, group, 10 * HOUR) == (0, 0)
    assert await foretold_and_made(alice, group, 9 * HOUR) == (0, 0)
    assert await foretold_and_made(alice, group, 6 * HOUR) == (3, first)
    assert await foretold_and_made(alice, group, 6 * HOUR) == (0, 0), "it is so already"
    assert await foretold_and_made(alice, group, 4 * HOUR - 1) == (3, first + 3 * HOUR), "what is hidden counts no more"
    assert await foretold_and_made(alice, group, KEEP) == (0, 0)
    assert await foretold_and_made(alice, group, 1) == (3, first + 6 * HOUR)


@both_formats
async def test_entering_delete_after_fetch_hides_what_all_have_fetched(running: Running, kind: type[Client]) -> None:
    alice, bob = [await kind.register(running.http, running.url, name) for name in ("alice", "bob")]
    group = await alice.create_group("friends")
    await bob.join(group)
    first = await a_message_an_hour(running, alice, group, 5)
    assert await change(alice, group, 0, dry=True) == (0, 0)
    await bob.fetch(group, limit=3)
    await running.settle()
    assert await foretold_and_made(alice, group, 0) == (3, first)
    assert await bob.numbers(group) == [1, 2, 3, 4, 5], "they go with the next run"
    await running.settle()
    assert await foretold_and_made(alice, group, KEEP) == (5, first), "and at once when the group leaves it"
    assert await bob.numbers(group) == []


async def test_what_is_hidden_already_does_not_count_again(running: Running) -> None:
    alice = await running.user("alice")
    group = await alice.create_group("friends", expiry=2 * HOUR)
    first = await a_message_an_hour(running, alice, group, 6)
    assert await change(alice, group, 0, dry=True) == (3, first + 3 * HOUR)
    assert await change(alice, group, HOUR, dry=True) == (1, first + 3 * HOUR)


async def test_for_a_newcomer_all_is_kept_on_entering_and_nothing_on_leaving(running: Running) -> None:
    alice, bob, carol = await running.users("alice", "bob", "carol")
    group = await alice.create_group("friends")
    first = await a_message_an_hour(running, alice, group, 3)
    await alice.fetch(group)
    await running.settle()
    await bob.join(group)
    assert await foretold_and_made(alice, group, 0) == (0, 0), "what former members had is not gone for bob"
    await bob.fetch(group, limit=2)
    await running.settle()
    await carol.join(group)
    assert await foretold_and_made(alice, group, KEEP) == (2, first), "all who were members had these"
    assert await carol.numbers(group) == [3]


async def test_what_deleted_accounts_have_sent_does_not_count_but_for_commits(running: Running) -> None:
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("friends")
    await bob.join(group)
    await bob.send(group)
    running.clock.advance(1)
    second = running.clock.now()
    await bob.post(f"/groups/{group}/commit", commit_message=encode(b"a commit"))
    await alice.send(group)
    await alice.fetch(group)
    await bob.post("/delete-account", password=PASSWORD)
    running.clock.advance(HOUR)
    assert await change(alice, group, MINUTE, dry=True) == (2, second)
    assert await change(alice, group, 0, dry=True) == (2, second)


async def test_what_a_hold_or_a_least_lifetime_keeps_from_being_erased_counts(running: Running) -> None:
    alice = await running.user("alice")
    group = await alice.create_group("friends")
    await running.app[app_keys.STORE].write(
        lambda connection: connection.execute(
            "INSERT INTO holds (group_key, subject_id, name, reason, added_by, added_at)"
            " VALUES (1, x'00', '', '', '', 0)"
        )
    )
    first = await a_message_an_hour(running, alice, group, 3)
    least = {"min_lifetime_seconds": HOUR, "update_min_lifetime": True}
    assert await foretold_and_made(alice, group, None, **least) == (0, 0)
    assert await foretold_and_made(alice, group, HOUR, **least) == (1, first)


async def test_the_operators_policy_for_a_group_leaves_nothing_to_hide(
    config: Config, start_server: StartServer
) -> None:
    async with start_server(config) as running:
        alice = await running.user("alice")
        group = await alice.create_group("friends")
        await a_message_an_hour(running, alice, group, 3)
    async with start_server(replace(config, retention=RetentionConfig(groups={group: Lifetimes()}))) as running:
        alice = Client(running.http, running.url, alice.token)
        assert await foretold_and_made(alice, group, 1) == (0, 0)
        assert await foretold_and_made(alice, group, 0) == (0, 0)
        assert await alice.numbers(group) == [1, 2, 3]


async def test_commits_that_are_kept_do_not_count_until_all_have_them(
    config: Config, start_server: StartServer
) -> None:
    async with start_server(replace(config, retention=RetentionConfig(retain_commits=True))) as running:
        alice, bob = await running.users("alice", "bob")
        group = await alice.create_group("friends")
        await bob.join(group)
        first = running.clock.now()
        for number in range(4):
            await alice.send(group) if number % 2 else await alice.post(
                f"/groups/{group}/commit", commit_message=encode(b"a commit")
            )
            running.clock.advance(1)
        running.clock.advance(HOUR)
        assert await change(alice, group, MINUTE, dry=True) == (2, first + 1)
        await bob.fetch(group, limit=2)
        await running.settle()
        assert await change(alice, group, MINUTE, dry=True) == (3, first)
        Mover(running.config).move(group, 4)
        assert await change(alice, group, MINUTE, dry=True) == (3, first), "in the archive as well"


async def test_other_changes_hide_nothing(running: Running) -> None:
    alice = await running.user("alice")
    group = await alice.create_group("friends")
    await a_message_an_hour(running, alice, group, 3)
    assert await foretold_and_made(alice, group, None, alias="Friends", visibility="private") == (0, 0)
    assert await change(alice, group, message_expiry_seconds=1) == (0, 0), "without its flag"
    assert await alice.numbers(group) == [1, 2, 3]


async def test_an_answer_about_nothing_has_no_bytes_in_protobuf(running: Running) -> None:
    """As existing clients know it."""
    alice = await ProtobufClient.register(running.http, running.url, "alice")
    group = await alice.create_group("friends")
    headers = {"Authorization": f"Bearer {alice.token}"}
    async with running.http.patch(f"{running.url}/api/v1/groups/{group}", headers=headers) as response:
        assert (response.status, await response.read()) == (200, b"")


@both_formats
async def test_a_dry_run_changes_nothing_and_nobody_hears_of_it(running: Running, kind: type[Client]) -> None:
    alice, bob = [await kind.register(running.http, running.url, name) for name in ("alice", "bob")]
    group = await alice.create_group("friends", expiry=DAY)
    await bob.join(group)
    await a_message_an_hour(running, alice, group, 3)
    await bob.fetch(group)
    await running.settle()
    tables = ("groups", "members", "messages", "server_state", "touches", "audit", "outbox")
    before = [await running.query(f"SELECT * FROM {table}") for table in tables]
    announced: list[object] = []
    least = {"min_lifetime_seconds": 1, "update_min_lifetime": True}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running.app[app_keys.EVENTS], "publish", announced.append)
        told = await change(alice, group, HOUR, dry=True, alias="x", group_name="y", visibility="private", **least)
    assert told[0] == 1
    assert [await running.query(f"SELECT * FROM {table}") for table in tables] == before
    assert announced == []
    assert await bob.numbers(group) == [1, 2, 3]


REFUSED = [
    ("alice", {"group_name": "_x"}, 400, 101),
    ("alice", {"message_expiry_seconds": 2 * DAY, "update_message_expiry": True}, 400, 100),
    ("alice", {"message_expiry_seconds": 1, "min_lifetime_seconds": 2, "update_message_expiry": True}, 200, 0),
    (
        "alice",
        {
            "message_expiry_seconds": 1,
            "update_message_expiry": True,
            "min_lifetime_seconds": 2,
            "update_min_lifetime": True,
        },
        400,
        100,
    ),
    ("alice", {"group_name": "taken"}, 409, 301),
    ("bob", {"alias": "x"}, 401, 401),
    ("carol", {"message_expiry_seconds": 1, "update_message_expiry": True}, 401, 401),
]


@pytest.mark.parametrize(("who", "changes", "status", "code"), REFUSED)
async def test_a_dry_run_is_refused_as_the_change_is(
    config: Config, start_server: StartServer, who: str, changes: dict[str, Any], status: int, code: int
) -> None:
    async with start_server(replace(config, message_retention=DAY)) as running:
        clients = dict(zip(("alice", "bob", "carol"), await running.users("alice", "bob", "carol"), strict=True))
        group = await clients["alice"].create_group("friends")
        await clients["alice"].create_group("taken")
        await clients["bob"].join(group)
        if status == 200:
            assert await change(clients[who], group, dry=True, **changes) == (0, 0)
            return
        dry = await expect(clients[who].patch(group, dry_run=True, **changes), status, code)
        assert await expect(clients[who].patch(group, **changes), status, code) == dry


async def test_while_the_clock_is_wrong_a_dry_run_is_refused_too_and_a_least_lifetime_may_change(
    running: Running,
) -> None:
    alice = await running.user("alice")
    group = await alice.create_group("friends")
    await a_message_an_hour(running, alice, group, 2)
    marks = await running.query("SELECT floor_seq, gone_below, expired_before FROM groups")
    running.clock.set_wrong(YEAR)
    await alice.login("alice")
    for dry in (True, False):
        refused = change(alice, group, HOUR, dry=dry, min_lifetime_seconds=0, update_min_lifetime=True)
        assert "clock" in (await expect(refused, 503, 0))["message"]
        assert "clock" in running.app[app_keys.HEALTH].faults, "a dry run that finds the clock wrong tells of it too"
    assert await change(alice, group, dry=True, min_lifetime_seconds=DAY, update_min_lifetime=True) == (0, 0)
    assert await change(alice, group, min_lifetime_seconds=DAY, update_min_lifetime=True) == (0, 0)
    shown = await alice.get(f"/groups/{group}/retention")
    assert (shown["group_expiry_seconds"], shown["min_lifetime_seconds"]) == (KEEP, DAY)
    assert await running.query("SELECT floor_seq, gone_below, expired_before FROM groups") == marks


async def test_what_is_archived_counts_in_parts_that_expire_whole_or_not(running: Running) -> None:
    alice, bob = await running.users("alice", "bob")
    group, mover = await alice.create_group("friends"), Mover(running.config)
    await bob.join(group)
    now = running.clock.now()
    stored = [now - each * KEEP_WIDTH // 4 for each in range(20, 0, -1)]
    for at in stored:
        mover.send(group, alice.user_id, b"x", at)
    mover.move(group, 15)
    tallied = count_calls(running)
    for expiry in (1, KEEP_WIDTH // 4, KEEP_WIDTH, 2 * KEEP_WIDTH + SPAN_DAY, 4 * KEEP_WIDTH, 10 * KEEP_WIDTH):
        old = [at for at in stored if at < now - expiry]
        assert await change(alice, group, expiry, dry=True) == (len(old), old[0] if old else 0), expiry
    assert max(len(stretch.parts) for stretch in tallied) == 1, "only the part is read that expires in part"
    assert len(tallied) < 6
    await bob.fetch(group, after=7, limit=1)
    await running.settle()
    assert await foretold_and_made(alice, group, 0) == (8, stored[0])


async def test_of_an_archived_part_only_what_is_still_served_counts(running: Running) -> None:
    alice, group, _ = await filled_archive(running)
    now, bob = running.clock.now(), await running.user("bob")
    await bob.join(group)
    await bob.fetch(group, limit=4)
    await running.settle()
    assert await foretold_and_made(alice, group, 0) == (4, now - 10 * DAY)
    assert await foretold_and_made(alice, group, KEEP) == (4, now - 10 * DAY)
    assert await foretold_and_made(alice, group, HOUR) == (6, now - 6 * DAY)


def count_calls(running: Running, patch: Callable[[Stretch], None] = lambda _: None) -> list[Stretch]:
    """Return a list to which each stretch is added that the archive is asked about, after ``patch``."""
    archive, asked = running.app[app_keys.ARCHIVE], list[Stretch]()
    tally = Archive.tally

    async def counted(archive_count: ArchiveCount) -> MessageTotals:
        asked.append(archive_count.stretch)
        patch(archive_count.stretch)
        return await tally(archive, archive_count)

    archive.tally = counted  # type: ignore[method-assign]  # the archive is this test's
    return asked


async def filled_archive(running: Running) -> tuple[Client, str, Mover]:
    """A group whose ten messages are archived in one part, a day apart; the last is a day old."""
    alice = await running.user("alice")
    group, mover = await alice.create_group("friends"), Mover(running.config)
    span = running.clock.now() - running.clock.now() % KEEP_WIDTH
    running.clock.advance(span + 11 * DAY - running.clock.now() if span + 11 * DAY > running.clock.now() else 0)
    for each in range(10, 0, -1):
        mover.send(group, alice.user_id, b"x", running.clock.now() - each * DAY)
    mover.move(group, 10)
    return alice, group, mover


async def test_an_archive_that_cannot_be_read_does_not_stop_a_change(running: Running) -> None:
    alice, group, mover = await filled_archive(running)
    now = running.clock.now()
    parts = await running.query("SELECT count(*) FROM archive_parts WHERE oldest < ?", now - 5 * DAY)
    assert await change(alice, group, 5 * DAY, dry=True) == (5, now - 10 * DAY)
    mover.hide()
    running.app[app_keys.ARCHIVE]._open = None
    with structlog.testing.capture_logs():
        told = await foretold_and_made(alice, group, 5 * DAY)
    assert parts == [(1,)]
    assert told == (10, now - 10 * DAY), "a part counts as a whole: too many, never too few"
    mover.unhide()
    assert await alice.numbers(group) == [6, 7, 8, 9, 10], "the change was made"


async def test_what_was_restored_from_the_archive_meanwhile_is_looked_for_again(running: Running) -> None:
    alice, group, mover = await filled_archive(running)
    now = running.clock.now()

    def restore(_: Stretch) -> None:
        mover.restore(group)

    asked = count_calls(running, restore)
    assert await change(alice, group, 5 * DAY, dry=True) == (5, now - 10 * DAY)
    assert len(asked) == 1


@pytest.mark.parametrize("seed", range(16))
async def test_what_is_foretold_is_what_happens(config: Config, start_server: StartServer, seed: int) -> None:
    """Random groups in both tiers: what is served before and not after, or goes with the next run."""
    chance = random.Random(seed)
    limit, keeps = chance.choice([KEEP, 30 * DAY]), chance.random() < 0.4
    set_ = RetentionConfig(fetch_hold_limit=limit, retain_commits=keeps)
    asked = replace(config, message_retention=chance.choice([KEEP, 40 * DAY]), retention=set_)
    async with start_server(asked) as running, StoreAlone(running.app) as alone:
        alice, bob, carol, dora = await running.users("alice", "bob", "carol", "dora")
        group, mover = await alice.create_group("friends"), Mover(running.config)
        await bob.join(group)
        await carol.join(group)
        at = running.clock.now() - 60 * DAY
        for _ in range(chance.randint(0, 60)):
            at = min(at + chance.randint(0, 3 * DAY), running.clock.now())
            mover.send(group, chance.choice([alice, bob, carol]).user_id, b"x", at, is_commit=chance.random() < 0.3)
        last = alone.last(group)
        readers = [alice, bob, carol]
        for _ in range(12):
            match chance.randrange(7):
                case 0:
                    to, lifetime = chance.randint(0, last), chance.choice([KEEP, 30 * DAY])
                    mover.switch(group, to, mover.append(group, to, lifetime))
                    if chance.random() < 0.5:
                        mover.drop_copies(group)
                case 1:
                    await chance.choice(readers).fetch(group, chance.randint(0, last), chance.randint(1, 30))
                case 2:
                    after = chance.randint(0, last)
                    for each in readers:
                        await each.fetch(group, after)
                case 3 if carol in readers and chance.random() < 0.3:
                    await carol.post("/delete-account", password=PASSWORD)
                    readers.remove(carol)
                case 4 if dora not in readers and chance.random() < 0.3:
                    await dora.join(group)
                    readers.append(dora)
                case _:
                    running.clock.advance(chance.choice([1, DAY, 5 * DAY]))
            expiry = chance.choice([KEEP, 0, 0, 1, DAY, 10 * DAY, 25 * DAY, 40 * DAY])
            await running.settle()
            before = await served(alone, alice, group)
            [(old,)] = await running.query("SELECT message_expiry_seconds FROM groups")
            least = min(alone.watermarks().values())
            told = await foretold_and_made(alice, group, expiry) if expiry != old else (0, 0)
            goes_next = least if expiry == 0 != old else 0
            left = {number for number in await served(alone, alice, group) if number > goes_next}
            gone = [at for number, at in before.items() if number not in left]
            assert told == (len(gone), min(gone, default=0)), (seed, old, expiry)


async def served(alone: StoreAlone, client: Client, group: str) -> dict[int, int]:
    """What a client would be served, by numbers: when it was stored. No watermark moves."""
    page = cast(list[tuple[int, str, bytes, int, int, int, bool]], await alone.page(client.token, group, 0, 500))
    return {number: created_at for number, _, _, created_at, *_ in page}


async def test_a_count_looks_at_no_message_where_the_index_tells_all(running: Running) -> None:
    """A group may have millions of messages, of which some are hidden and wait for a run."""
    alice = await running.user("alice")
    group = await alice.create_group("friends", expiry=DAY)
    await a_message_an_hour(running, alice, group, 40)
    told: list[str] = []
    with closing(sqlite.connect(running.config.database)) as connection:
        found = require_group(connection, UUID(group).bytes)
        connection.set_trace_callback(told.append)
        for expiry in (HOUR, 30 * HOUR):
            changed = replace(found, message_expiry_seconds=expiry)
            rehearsal.of_change(connection, found, changed, running.config.policy, running.clock.now())
        connection.set_trace_callback(None)
        counts = [sql for sql in told if "count(*)" in sql]
        assert counts
        for sql in counts:
            assert uses_index_alone(connection, sql), sql


def uses_index_alone(connection: sqlite3.Connection, sql: str) -> bool:
    return all("COVERING INDEX" in row["detail"] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}"))


async def test_users_take_turns_and_who_asks_too_often_is_told_to_wait(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often one admin asks, one question is worked on at a time, and others come next."""
    monkeypatch.setattr(passwords, "MAX_WAITING_PER_KEY", 3)
    alice, bob = await running.users("alice", "bob")
    of_alice, of_bob = await alice.create_group("friends"), await bob.create_group("club")
    under_way, most, go_on = 0, 0, asyncio.Event()
    order: list[bytes] = []
    store = running.app[app_keys.STORE]
    read = store.read

    async def slowly(fn: Any, *args: Any, **more: Any) -> Any:
        nonlocal under_way, most
        if fn is not actions.rehearse:
            return await read(fn, *args, **more)
        under_way, most = under_way + 1, max(most, under_way + 1)
        order.append(args[2])
        await go_on.wait()
        try:
            return await read(fn, *args, **more)
        finally:
            under_way -= 1

    monkeypatch.setattr(store, "read", slowly)
    asked = [asyncio.create_task(change(alice, of_alice, 1, dry=True)) for _ in range(4)]
    await until(lambda: running.app[app_keys.REHEARSALS].waiting >= 3)
    with pytest.raises(Exception, match="503") as refused:
        await change(alice, of_alice, 1)
    assert refused.value.headers["Retry-After"] == "5"  # type: ignore[attr-defined]  # it is a RefusedError
    asked.append(asyncio.create_task(change(bob, of_bob, 1, dry=True)))
    await until(lambda: running.app[app_keys.REHEARSALS].waiting >= 4)
    go_on.set()
    assert await asyncio.gather(*asked) == [(0, 0)] * 5
    assert most == 1
    assert order.index(UUID(bob.user_id).bytes) == 2, "bob came after those of alice that were there, but one"
