"""What is remembered of groups and sessions, and by the writer of their members: what is heard, bounds, forgetting."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from uuid import UUID

import pytest

from conclave import app_keys
from conclave.auth import tokens
from conclave.cache import freshness, groups, ranges
from conclave.cache.groups import GroupCache, Recipients
from conclave.events import MessageStored
from conclave.store import invalidation
from conclave.store.engine import sqlite
from conclave.wire.formats import Format
from tests.conftest import Running
from tests.support import stores
from tests.support.alone import once
from tests.support.client import Client
from tests.support.racing import right_after

ALL = 500


async def filled(running: Running, count: int, name: str = "friends", size: int = 1) -> tuple[Client, str, int]:
    """A user who has read a group with messages; the group's id and key."""
    client = await running.user(f"{name}_user")
    group = await client.create_group(name)
    for n in range(1, count + 1):
        await client.send(group, b"%d" % n * size)
    await client.fetch(group)
    await running.settle()
    key = (await running.query("SELECT group_key FROM groups WHERE group_id = ?", UUID(group).bytes))[0][0]
    return client, group, key


def memory(running: Running) -> GroupCache:
    return running.app[app_keys.GROUPS]


def page(running: Running, client: Client, group: str, after: int = 0, limit: int = ALL) -> list[bytes] | None:
    """What is remembered, if anything."""
    ids = UUID(group).bytes, UUID(client.user_id).bytes
    found = memory(running).page(*ids, after, limit, Format.JSON)
    return None if found is None else found.pieces


def expect_measured(running: Running) -> None:
    """What the bounds go by is what there is."""
    known = memory(running)
    sizes = [each.measure() for each in known._by_id.values()]
    assert [each.size for each in known._by_id.values()] == sizes
    assert known._bytes == sum(sizes)
    assert known._ids == {each.group.group_key: group_id for group_id, each in known._by_id.items()}


async def test_messages_are_heard_once_in_order_and_a_gap_forgets_the_group(running: Running) -> None:
    client, group, key = await filled(running, 2)

    def hear(number: int, body: bytes = b"x") -> None:
        memory(running).add_news([MessageStored(key, number, UUID(client.user_id).bytes, body, 1_700_000_000)])

    before = page(running, client, group)
    assert before
    assert len(before) == 2
    hear(2)
    hear(1)
    assert page(running, client, group) == before, "both are there"
    hear(3)
    assert len(page(running, client, group) or []) == 3
    hear(5)
    assert page(running, client, group) is None
    expect_measured(running)


async def test_a_message_of_another_group_is_not_heard(running: Running) -> None:
    client, group, key = await filled(running, 2)
    memory(running).add_news([MessageStored(key + 1, 1, b"", b"x", 0)])
    assert page(running, client, group) is not None


async def test_a_page_that_was_read_before_a_send_was_heard_hears_it_no_second_time(running: Running) -> None:
    client, group, key = await filled(running, 3)
    touch(running, key)
    assert page(running, client, group) is None
    await client.fetch(group)
    for _ in range(2):
        memory(running).add_news([MessageStored(key, 3, b"", b"again", 0)])
    assert len(page(running, client, group) or []) == 3


def touch(running: Running, key: int) -> None:
    once(running.config.database, "INSERT INTO touches (group_key) VALUES (?)", key)
    running.app[app_keys.FRESHNESS].expire()


async def test_readers_at_different_places_have_runs_of_their_own_until_they_meet(running: Running) -> None:
    client, group, key = await filled(running, 20)
    touch(running, key)
    for after in (15, 2, 9):
        await client.fetch(group, after, 3)
    known = memory(running)._by_id[UUID(group).bytes]

    def spans() -> list[tuple[int, int]]:
        return sorted((cached.base, cached.end) for _, cached in known.ranges)

    assert spans() == [(2, 5), (9, 12), (15, 18)]
    assert page(running, client, group, 2, 3) is not None
    assert page(running, client, group, 2, 4) is None, "the cached does not say what follows it"
    await client.fetch(group, 5, 4)
    assert spans() == [(2, 12), (15, 18)]
    await client.fetch(group, 9, 6)
    assert spans() == [(2, 18)]
    assert page(running, client, group, 9, 9) is not None
    await client.fetch(group, 0, 4)
    await client.fetch(group, 18, 2)
    assert spans() == [(0, 20)]
    for number in range(21, 23):
        await client.send(group)
        assert spans() == [(0, number)]
    assert len(page(running, client, group, 15) or []) == 7
    [joined] = page(running, client, group) or []
    assert len(await client.fetch(group, 0)) == joined.count(b"sequence_num") == 22
    expect_measured(running)


async def test_a_group_has_few_runs_and_the_oldest_goes_first(running: Running) -> None:
    client, group, key = await filled(running, 30)
    touch(running, key)
    for after in (25, 20, 15, 10, 5):
        await client.fetch(group, after, 2)
    found = [page(running, client, group, after, 2) is not None for after in (25, 20, 15, 10, 5)]
    assert found == [False, True, True, True, True]
    assert len(memory(running)._by_id[UUID(group).bytes].ranges) == groups.MAX_RANGES
    expect_measured(running)


async def test_groups_take_no_more_bytes_than_they_may_and_the_idle_ones_go_first(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "MAX_BYTES", 12_000)
    monkeypatch.setattr(ranges, "RANGE_BYTES", 5_000)
    made = [await filled(running, 6, f"g{n}", size=300) for n in range(3)]
    assert memory(running)._bytes <= 12_000
    assert list(memory(running)._ids) == [key for *_, key in made[1:]]
    first, group, key = made[1]
    await first.fetch(group)
    for _ in range(5):
        await first.send(group, bytes(500))
        assert memory(running)._bytes <= 12_000
        expect_measured(running)
    assert key in memory(running)._ids, "it was used last"
    monkeypatch.setattr(groups, "MAX_BYTES", 1)
    await first.send(group)
    assert list(memory(running)._ids) == [key], "one stays, however large"
    expect_measured(running)


async def test_a_touch_forgets_its_group_and_everything_forgets_all(running: Running) -> None:
    one, other = await filled(running, 1, "one"), await filled(running, 1, "other")
    touch(running, one[2])
    assert page(running, *one[:2]) is None
    assert page(running, *other[:2]) is not None
    once(running.config.database, "INSERT INTO touches (group_key, session_id) VALUES (NULL, NULL)")
    running.app[app_keys.FRESHNESS].expire()
    assert page(running, *other[:2]) is None
    assert running.app[app_keys.SESSIONS]._by_hash == {}
    expect_measured(running)


async def test_requests_of_one_pass_share_a_look_and_the_next_pass_looks_again(running: Running) -> None:
    client, group, key = await filled(running, 1)
    fresh = running.app[app_keys.FRESHNESS]
    fresh.refresh()
    once(running.config.database, "INSERT INTO touches (group_key) VALUES (?)", key)
    assert page(running, client, group) is not None, "of the same pass, before the touch"
    await running.settle()
    assert page(running, client, group) is None


async def test_sessions_are_bounded_and_the_idle_ones_go_first(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freshness, "MAX_SESSIONS", 3)
    users = await running.users("a1", "b1", "c1", "d1")
    known = running.app[app_keys.SESSIONS]
    for client in [*users[:3], users[0], users[3]]:
        await client.get("/me")
    held = [tokens.token_hash(client.token) in known._by_hash for client in users]
    assert held == [True, False, True, True]
    assert sorted(known._hashes.values()) == sorted(known._by_hash)
    for client in users:
        await client.get("/me")
    assert len(known._by_hash) == len(known._hashes) == 3


async def test_a_session_is_forgotten_when_it_is_touched_and_when_it_is_extended(running: Running) -> None:
    alice, bob = await running.users("alice", "bob")
    known = running.app[app_keys.SESSIONS]

    def is_known(client: Client) -> bool:
        running.app[app_keys.FRESHNESS].expire()
        running.app[app_keys.FRESHNESS].refresh()
        return tokens.token_hash(client.token) in known._by_hash

    await alice.get("/me")
    await bob.get("/me")
    assert is_known(alice)
    once(running.config.database, "DELETE FROM sessions WHERE user_id = ?", UUID(alice.user_id).bytes)
    assert not is_known(alice)
    assert is_known(bob)
    session = known._by_hash[tokens.token_hash(bob.token)].session_id
    once(running.config.database, "UPDATE sessions SET expires_at = expires_at + 5")
    assert is_known(bob), "the server does that itself"
    known.drop_extended([session, 10**6])
    assert not is_known(bob)
    assert (known._by_hash, known._hashes) == ({}, {})


async def test_a_session_that_was_extended_while_it_was_read_is_not_remembered(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be remembered as it was before, and no touch would ever tell."""
    alice = await running.user("alice")
    known = running.app[app_keys.SESSIONS]

    async def extend() -> None:
        once(running.config.database, "UPDATE sessions SET expires_at = expires_at + 5")
        known.drop_extended([1])

    right_after(running, monkeypatch, invalidation.with_invalidation, extend)
    await alice.get("/me")
    assert known._by_hash == {}
    await alice.get("/me")
    assert list(known._by_hash) == [tokens.token_hash(alice.token)]


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A store with five groups: the n-th has n members."""
    stores.prepare(tmp_path / "hot.db")
    with closing(sqlite.connect(tmp_path / "hot.db")) as opened:
        for user in range(1, 6):
            opened.execute(
                "INSERT INTO users (user_id, username, password_hash, alias, created_at) VALUES (?, ?, '', '', 0)",
                (bytes([user]), str(user)),
            )
        for key in range(1, 6):
            opened.execute(
                "INSERT INTO groups (group_key, group_id, group_name, alias, created_at) VALUES (?, ?, ?, '', 0)",
                (key, bytes([key]), str(key)),
            )
            for user in range(1, key + 1):
                come(opened, key, user)
        yield opened


def come(connection: sqlite3.Connection, key: int, user: int) -> None:
    connection.execute(
        "INSERT INTO members (group_key, user_id, role, joined_at) VALUES (?, ?, 'member', 0)", (key, bytes([user]))
    )


def found(known: Recipients, connection: sqlite3.Connection, key: int) -> set[int] | None:
    """The members of a group in a transaction of a writer."""
    with sqlite.write_transaction(connection):
        known.catch_up(connection)
        members = known.find(connection, bytes([key]))
        assert members is None or members.group_key == key
        return None if members is None else {each[0] for each in members.members}


def test_members_are_remembered_until_they_change(connection: sqlite3.Connection) -> None:
    known, asked = Recipients(), list[str]()
    assert found(known, connection, 3) == {1, 2, 3}
    connection.set_trace_callback(asked.append)
    assert found(known, connection, 3) == {1, 2, 3}
    assert not [each for each in asked if "FROM members" in each]
    connection.set_trace_callback(None)
    come(connection, 3, 5)
    assert found(known, connection, 3) == {1, 2, 3, 5}
    connection.execute("DELETE FROM members WHERE group_key = 3 AND user_id = x'01'")
    assert found(known, connection, 3) == {2, 3, 5}
    connection.execute("DELETE FROM groups WHERE group_key = 3")
    assert found(known, connection, 3) is None
    assert found(known, connection, 9) is None


def test_members_are_as_before_once_a_transaction_was_undone(connection: sqlite3.Connection) -> None:
    known = Recipients()
    assert found(known, connection, 2) == {1, 2}

    def fail() -> None:
        with sqlite.write_transaction(connection):
            known.catch_up(connection)
            assert known.find(connection, b"\x02")
            come(connection, 2, 4)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert found(known, connection, 2) == {1, 2}
    come(connection, 2, 5)
    assert found(known, connection, 2) == {1, 2, 5}, "by a touch with the number of the one that was undone"


def test_members_are_bounded_and_the_idle_groups_go_first(
    connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "MAX_MEMBERS", 6)
    known = Recipients()
    for key in (1, 2, 3, 1):
        found(known, connection, key)
    assert known._count == 6
    found(known, connection, 2)
    found(known, connection, 5)
    assert (list(known._ids), known._count) == ([5], 5)
    monkeypatch.setattr(groups, "MAX_MEMBERS", 1)
    assert found(known, connection, 4) == {1, 2, 3, 4}
    assert (list(known._ids), known._count) == ([4], 4)


def test_members_are_all_forgotten_by_one_who_is_too_far_behind(connection: sqlite3.Connection) -> None:
    known = Recipients()
    assert found(known, connection, 2) == {1, 2}
    come(connection, 2, 3)
    with sqlite.write_transaction(connection):
        for _ in range(4200):
            invalidation.invalidate_group(connection, 9)
    assert found(known, connection, 2) == {1, 2, 3}
