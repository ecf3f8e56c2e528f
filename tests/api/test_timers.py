"""Self-destructing messages: a timer for each reader, from the receipt to the second at which it ends."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

import pytest

from conclave import app_keys
from conclave.actions import timers
from conclave.config.retention import RetentionConfig
from conclave.config.settings import Config
from conclave.server import duties
from conclave.store.resources import timers as stored
from conclave.wire import conclave_pb2
from tests.conftest import Running, StartServer
from tests.support.client import Client, encode, expect
from tests.support.listening import listening
from tests.support.protobuf import ProtobufClient
from tests.support.world import outcome

DAY = 86_400


@pytest.fixture
async def room(running: Running) -> "Room":
    return await Room.of(running)


class Room:
    """Alice, the admin of a group, and its members bob and carol; dave is a stranger."""

    def __init__(self, users: Sequence[Client], group: str) -> None:
        self.alice, self.bob, self.carol, self.dave = users
        self.group = group

    @classmethod
    async def of(cls, running: Running) -> "Room":
        users = await running.users("alice", "bob", "carol", "dave")
        group = await users[0].create_group("friends")
        for member in users[1:3]:
            await member.join(group)
        return cls(users, group)

    async def seen(self, client: Client) -> dict[int, bytes | None]:
        """What somebody sees: the body by its number, None for one that is redacted."""
        every = await client.fetch(self.group, limit=500, include_redacted=True)
        plain = await client.fetch(self.group, limit=500)
        assert plain == [each for each in every if not each.redacted], "redacted ones are left out unless asked for"
        assert all(each.body == b"" and each.self_destruct_seconds for each in every if each.redacted)
        return {each.sequence_num: None if each.redacted else each.body for each in every}


async def test_a_reader_sees_it_until_the_own_timer_ends(running: Running, room: Room) -> None:
    await room.alice.send(room.group, b"secret", 60)
    await room.alice.send(room.group, b"plain")
    running.clock.advance(30)
    await room.bob.read(room.group, 2)
    running.clock.advance(29)
    assert await room.seen(room.alice) == {1: b"secret", 2: b"plain"}
    running.clock.advance(1)
    assert await room.seen(room.alice) == {1: None, 2: b"plain"}, "who sends it has read it"
    running.clock.advance(29)
    assert await room.seen(room.bob) == {1: b"secret", 2: b"plain"}
    running.clock.advance(1)
    assert await room.seen(room.bob) == {1: None, 2: b"plain"}
    running.clock.advance(10 * DAY)
    assert await room.seen(room.carol) == {1: b"secret", 2: b"plain"}, "who has not read it keeps it"


async def test_the_first_receipt_counts(running: Running, room: Room) -> None:
    await room.alice.send(room.group, b"secret", 60)
    await room.bob.read(room.group, 1)
    for up_to in (1, 5, 1):
        running.clock.advance(19)
        await room.bob.read(room.group, up_to)
    assert await room.seen(room.bob) == {1: b"secret"}
    running.clock.advance(3)
    assert await room.seen(room.bob) == {1: None}


async def test_a_receipt_starts_the_timer_of_each_message_that_it_covers(running: Running, room: Room) -> None:
    for seconds in (10, 0, 30, 20):
        await room.alice.send(room.group, b"%d" % seconds, seconds)
    await room.bob.read(room.group, 3)
    running.clock.advance(10)
    assert await room.seen(room.bob) == {1: None, 2: b"0", 3: b"30", 4: b"20"}
    running.clock.advance(20)
    assert await room.seen(room.bob) == {1: None, 2: b"0", 3: None, 4: b"20"}


async def test_a_receipt_over_very_many_starts_all_of_their_timers(
    running: Running, room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes several transactions then, so that no sender waits for all of them, whoever else reads meanwhile."""
    monkeypatch.setattr(stored, "STARTED_PER_STEP", 3)
    alice, bob, group = room.alice, room.bob, room.group
    for number in range(10):
        await alice.send(group, b"x", 10 if number % 2 else 0)
    await bob.read(group, 9)
    started = "SELECT sequence_num FROM timers JOIN members USING (member_id) WHERE user_id = ? ORDER BY 1"
    assert await running.query(started, UUID(bob.user_id).bytes) == [(2,), (4,), (6,), (8,)]
    assert await running.query("SELECT read_up_to FROM members WHERE user_id = ?", UUID(bob.user_id).bytes) == [(9,)]
    await bob.read(group, 10)
    assert await running.query(started, UUID(bob.user_id).bytes) == [(2,), (4,), (6,), (8,), (10,)]
    await asyncio.gather(*(room.carol.read(group, number) for number in range(1, 11)))
    assert await running.query(started, UUID(room.carol.user_id).bytes) == [(2,), (4,), (6,), (8,), (10,)]


async def test_a_receipt_where_nothing_destroys_itself_writes_nothing(running: Running, room: Room) -> None:
    for _ in range(3):
        await room.alice.send(room.group)
    await room.bob.read(room.group, 2)
    unread = "SELECT read_up_to FROM members WHERE user_id = ?"
    assert await running.query(unread, UUID(room.bob.user_id).bytes) == [(0,)]
    await room.alice.send(room.group, b"secret", 60)
    running.clock.advance(60)
    assert await room.seen(room.bob) == {1: b"hello", 2: b"hello", 3: b"hello", 4: b"secret"}
    await room.bob.read(room.group, 4)
    assert await running.query(unread, UUID(room.bob.user_id).bytes) == [(4,)]


@pytest.mark.parametrize(("bound", "value"), [("MAX_TIMERS", 8), ("MAX_MESSAGES", 2)])
async def test_a_group_has_so_many_at_most(room: Room, monkeypatch: pytest.MonkeyPatch, bound: str, value: int) -> None:
    """Each is for three members, and each page passes over those that its reader may not see."""
    monkeypatch.setattr(stored, bound, value)
    found = await asyncio.gather(*(outcome(room.alice.send(room.group, b"x", 60)) for _ in range(5)))
    assert sorted(each for each in found if isinstance(each, int)) == [1, 2]
    refused = [each for each in found if not isinstance(each, int)]
    assert refused == [(400, 100)] * 3
    assert await room.alice.send(room.group) == 3, "others may be sent"


async def test_a_receipt_says_nothing_of_what_is_not_sent_yet(running: Running, room: Room) -> None:
    await room.bob.read(room.group, 2**63 + 5)
    await room.alice.send(room.group, b"secret", 1)
    running.clock.advance(5)
    assert await room.seen(room.bob) == {1: b"secret"}
    await room.bob.read(room.group, 1)
    running.clock.advance(1)
    assert await room.seen(room.bob) == {1: None}


async def test_who_was_no_member_sees_it_only_redacted(running: Running, room: Room) -> None:
    await room.alice.send(room.group, b"secret", 60)
    await room.dave.join(room.group)
    await room.alice.send(room.group, b"for dave too", 60)
    assert await room.seen(room.dave) == {1: None, 2: b"for dave too"}
    await room.carol.leave(room.group)
    await room.carol.join(room.group)
    assert await room.seen(room.carol) == {1: None, 2: None}, "who comes back stays redacted"
    await room.alice.act("ban", room.group, room.bob)
    await room.alice.act("unban", room.group, room.bob)
    await room.alice.bring(room.bob, room.group)
    assert await room.seen(room.bob) == {1: None, 2: None, 3: b"add commit"}


async def test_who_never_reads_it_sees_it_until_it_is_too_old(config: Config, start_server: StartServer) -> None:
    config = replace(config, retention=RetentionConfig(self_destruct_max_age=DAY))
    async with start_server(config) as running:
        room = await Room.of(running)
        await room.alice.send(room.group, b"secret", 31_536_000)
        await room.alice.send(room.group, b"plain")
        running.clock.advance(DAY)
        assert await room.seen(room.bob) == {1: b"secret", 2: b"plain"}
        running.clock.advance(1)
        assert await room.seen(room.bob) == {1: None, 2: b"plain"}
    # A longer age brings nothing back.
    config = replace(config, retention=RetentionConfig(self_destruct_max_age=9 * DAY))
    async with start_server(config) as running:
        for each in (room.alice, room.bob):
            each.http, each.url = running.http, running.url
        assert await room.seen(room.bob) == {1: None, 2: b"plain"}
        await room.alice.send(room.group, b"another", 60)
        running.clock.advance(DAY + 1)
        assert await room.seen(room.bob) == {1: None, 2: b"plain", 3: b"another"}


async def test_who_has_read_it_sees_it_for_its_whole_time(config: Config, start_server: StartServer) -> None:
    """The greatest age is for those who have not read it. Once it is reached, no timer starts."""
    config = replace(config, retention=RetentionConfig(self_destruct_max_age=DAY))
    async with start_server(config) as running:
        room = await Room.of(running)
        await room.alice.send(room.group, b"secret", 3 * DAY)
        running.clock.advance(DAY)
        await room.bob.read(room.group, 1)
        running.clock.advance(1)
        assert [await room.seen(each) for each in (room.alice, room.bob)] == [{1: b"secret"}] * 2
        assert await room.seen(room.carol) == {1: None}
        await room.carol.read(room.group, 1)
        assert await room.seen(room.carol) == {1: None}
        running.clock.advance(3 * DAY - 2)
        assert [await room.seen(each) for each in (room.alice, room.bob)] == [{1: None}, {1: b"secret"}]
        running.clock.advance(1)
        assert await room.seen(room.bob) == {1: None}
    # Nor does a longer age start one.
    config = replace(config, retention=RetentionConfig(self_destruct_max_age=99 * DAY))
    async with start_server(config) as running:
        for each in (room.carol, room.dave):
            each.http, each.url = running.http, running.url
        await room.carol.read(room.group, 1)
        assert await room.seen(room.carol) == {1: None}


async def test_what_is_refused(room: Room) -> None:
    path = f"/groups/{room.group}"
    for seconds in (-1, 0, 31_536_001, 2**32):
        found = await expect(
            room.alice.post(f"{path}/messages", mls_message="QQ==", self_destruct_seconds=seconds), 400, 101
        )
        assert list(found["errors"]) == ["self_destruct_seconds"]
    await expect(room.alice.post(f"{path}/messages", mls_message="QQ==", self_destruct_seconds="5"), 400, 101)
    for receipt in ({}, {"sequence_num": 0}, {"sequence_num": None}):
        await expect(room.alice.post(f"{path}/read", **receipt), 400, 100)
    await expect(room.alice.post(f"{path}/read", sequence_num=-1), 400, 101)
    await expect(room.dave.read(room.group, 1), 401, 400)
    await expect(room.alice.get(f"{path}/messages", include_redacted="yes"), 400, 101)
    await room.alice.post(f"{path}/messages", mls_message="QQ==", self_destruct_seconds=None)
    await room.alice.post(f"{path}/messages", mls_message="QQ==", self_destruct_seconds=31_536_000)
    found = await room.bob.get(f"{path}/messages")
    assert [each["self_destruct_seconds"] for each in found["messages"]] == [0, 31_536_000]


async def test_both_formats_say_the_same(running: Running, room: Room) -> None:
    bob = await ProtobufClient(running.http, running.url, user_id=room.bob.user_id).another("bob")
    await bob.send(room.group, b"x", 5)
    path = f"/groups/{room.group}"
    await expect(bob.send(room.group, b"x", 31_536_001), 400, 101)
    for include in ("false", "true"):
        assert await bob.get(f"{path}/messages", include_redacted=include) == await room.bob.get(
            f"{path}/messages", include_redacted=include
        )
    await room.alice.read(room.group, 1)
    running.clock.advance(5)
    assert await room.seen(room.bob) == {1: None}
    assert (await bob.fetch(room.group, include_redacted=True))[0].redacted
    assert await bob.fetch(room.group) == []
    async with listening(bob) as stream:
        name, data = await stream.next()
    event = conclave_pb2.ServerEvent.FromString(bytes.fromhex(data)).message_redacted
    assert (name, event.sequence_num, str(UUID(bytes=event.group_id))) == ("", 1, room.group)


async def test_each_reader_hears_of_the_own_end(running: Running, room: Room) -> None:
    async with listening(room.alice) as alice, listening(room.bob) as bob, listening(room.carol) as carol:
        await room.alice.send(room.group, b"secret", 60)
        await room.bob.read(room.group, 1)
        running.clock.advance(60)
        told = ("message_redacted", {"group_id": room.group, "sequence_num": 1})
        assert await alice.next() == told
        assert [await bob.next() for _ in range(2)][1] == told
        assert (await carol.next())[0] == "new_message"
        assert carol.is_empty


async def test_who_was_away_hears_of_it_with_the_next_stream_once(running: Running, room: Room) -> None:
    await room.alice.send(room.group, b"secret", 60)
    await room.bob.read(room.group, 1)
    running.clock.advance(60)
    await until_told(running)
    told = ("message_redacted", {"group_id": room.group, "sequence_num": 1})
    async with listening(room.bob) as first:
        assert await first.next() == told
    await until_none_missed(running, 1)
    async with listening(room.bob) as second:
        await room.alice.send(room.group, b"x")
        assert (await second.next())[0] == "new_message"


async def test_who_has_left_hears_nothing(running: Running, room: Room) -> None:
    await room.alice.send(room.group, b"secret", 60)
    await room.bob.read(room.group, 1)
    await room.bob.leave(room.group)
    running.clock.advance(60)
    await until_told(running)
    async with listening(room.bob) as bob:
        await room.bob.begin_join(room.group)
        await room.alice.send(room.group, b"x")
        assert (await bob.next())[0] == "new_message"


async def test_those_that_ended_meanwhile_come_before_anything_is_served(
    config: Config, start_server: StartServer
) -> None:
    async with start_server(config) as running:
        room = await Room.of(running)
        await room.alice.send(room.group, b"secret", 60)
    running.clock.advance(60)
    async with start_server(config) as running:
        assert await running.query("SELECT count(*) FROM timers WHERE NOT told") == [(0,)]
        room.alice.http, room.alice.url = running.http, running.url
        async with listening(room.alice) as alice:
            assert (await alice.next())[0] == "message_redacted"


async def test_a_red_clock_hides_and_tells_nobody(running: Running, room: Room) -> None:
    await room.alice.send(room.group, b"secret", 60)
    running.clock.set_wrong(5_000)
    await running.app[app_keys.CLOCK_WATCH].record()
    assert await room.seen(room.alice) == {1: None}
    await until_looked(running)
    assert await running.query("SELECT told FROM timers") == [(0,)]


async def test_what_was_told_stays_hidden_by_any_clock(running: Running, room: Room) -> None:
    await room.alice.send(room.group, b"secret", 60)
    running.clock.advance(60)
    await until_told(running)
    running.clock.set_wrong(-50_000)
    await running.app[app_keys.CLOCK_WATCH].record()
    assert await room.seen(room.alice) == {1: None}
    assert await room.seen(room.bob) == {1: b"secret"}


async def test_every_stream_of_a_reader_hears_of_it_once(running: Running, room: Room) -> None:
    """One that begins right after it was told is not told again: its user knows."""
    other = await room.alice.another("alice")
    for _ in range(3):
        await room.alice.send(room.group, b"secret", 60)
    told = [("message_redacted", {"group_id": room.group, "sequence_num": number}) for number in (1, 2, 3)]
    async with listening(room.alice) as first, listening(other) as second:
        running.clock.advance(60)
        for each in (first, second):
            assert [await each.next() for _ in told] == told
        async with listening(room.alice) as third:
            await until_none_missed(running, 0)
            await room.bob.send(room.group)
            for each in (first, second, third):
                assert (await each.next())[0] == "new_message"


async def test_what_a_stream_was_told_is_noted_when_the_server_stops(
    config: Config, start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with start_server(config) as running:
        room = await Room.of(running)
        await room.alice.send(room.group, b"secret", 60)
        running.clock.advance(60)
        await until_told(running)
        monkeypatch.setattr(duties, "TIMERS_INTERVAL_SECONDS", 3600)
        async with listening(room.alice) as alice:
            assert (await alice.next())[0] == "message_redacted"
    async with start_server(config) as running:
        assert await running.query("SELECT count(*) FROM missed_redactions") == [(0,)]


async def until_looked(running: Running) -> None:
    """Have the server look for ended timers at least once."""
    store, context = running.app[app_keys.STORE], running.app[app_keys.CONTEXT]
    assert not any(await store.read(timers.unannounced, context))


async def until_told(running: Running) -> None:
    while await running.query("SELECT 1 FROM timers WHERE NOT told"):
        await running.settle()


async def until_none_missed(running: Running, but: int) -> None:
    while (await running.query("SELECT count(*) FROM missed_redactions"))[0][0] > but:
        await running.settle()


async def test_pages_are_exact_in_a_group_with_timers(running: Running, room: Room) -> None:
    """Nothing is remembered for all that only some may see; what comes before or between is."""
    for number in range(6):
        await room.alice.send(room.group, b"%d" % number, 60 if number % 2 else 0)
    for _ in range(2):
        assert await room.bob.numbers(room.group) == [1, 2, 3, 4, 5, 6]
        assert await room.alice.numbers(room.group) == [1, 2, 3, 4, 5, 6]
    running.clock.advance(60)
    assert await room.bob.numbers(room.group) == [1, 2, 3, 4, 5, 6]
    assert await room.alice.numbers(room.group) == [1, 3, 5]
    assert encode(b"") == ""
