"""Taking a message back: who may, what everybody sees of it from then on, and who hears of it; in both tiers."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from uuid import UUID

import pytest

from conclave import app_keys
from conclave.config.limits import LimitsConfig
from conclave.config.retention import RetentionConfig
from conclave.config.settings import Config
from conclave.retention.fate import MessageFacts
from conclave.retention.stretches import Stretch
from conclave.store.resources import taken_back
from tests.conftest import Running, StartServer
from tests.support.archive import Mover
from tests.support.client import Client, encode, expect
from tests.support.listening import listening
from tests.support.protobuf import ProtobufClient

DAY = 86_400


class Room:
    """Alice, the admin of a group, and its members bob and carol; dave is a stranger. Bob has sent 1 to 6."""

    def __init__(self, running: Running, users: list[Client], group: str) -> None:
        self.running = running
        self.alice, self.bob, self.carol, self.dave = users
        self.group = group
        self.mover = Mover(running.config)

    @classmethod
    async def of(cls, running: Running, archived: int) -> "Room":
        users = await running.users("alice", "bob", "carol", "dave")
        group = await users[0].create_group("friends")
        for member in users[1:3]:
            await member.join(group)
        for number in range(1, 7):
            await users[1].send(group, b"%d" % number)
        room = cls(running, users, group)
        if archived:
            room.mover.move(group, archived)
        return room

    async def seen(self, client: Client, limit: int = 500) -> list[int]:
        """The numbers that somebody gets; with ``include_redacted`` all others are told without their bodies."""
        plain, every = list[int](), list[int]()
        for found, include_redacted in ((plain, False), (every, True)):
            while page := await client.fetch(
                self.group, found[-1] if found else 0, limit, include_redacted=include_redacted
            ):
                found += [each.sequence_num for each in page]
                assert all(each.body == (b"" if each.redacted else b"%d" % each.sequence_num) for each in page)
                assert all(each.redacted == (each.sequence_num not in plain) for each in page)
        assert every == sorted({*every, *plain})
        return plain


@pytest.fixture(params=[0, 3, 4, 6], ids="archived up to {}".format)
async def room(running: Running, request: pytest.FixtureRequest) -> Room:
    """Everything has to be the same wherever the border of the archive is: message 4 is in question."""
    return await Room.of(running, request.param)


@pytest.fixture
async def admins(config: Config, start_server: StartServer) -> AsyncIterator[Running]:
    """A server whose admins may take back what others have sent."""
    async with start_server(replace(config, retention=RetentionConfig(admins_may_redact=True))) as running:
        yield running


async def test_its_sender_takes_it_back_from_everybody_at_once(room: Room) -> None:
    for client in (room.alice, room.bob, room.carol):
        assert await room.seen(client) == [1, 2, 3, 4, 5, 6], "and it is remembered"
    await room.bob.take_back(room.group, 4)
    for client in (room.alice, room.bob, room.carol):
        assert await room.seen(client) == [1, 2, 3, 5, 6]
        assert await room.seen(client, 1) == [1, 2, 3, 5, 6]
        every = await client.fetch(room.group, 2, 3, include_redacted=True)
        assert [(each.sequence_num, each.redacted, each.body) for each in every] == [
            *((3, False, b"3"), (4, True, b""), (5, False, b"5"))
        ]
    await room.bob.take_back(room.group, 4)  # again
    assert await room.seen(room.bob) == [1, 2, 3, 5, 6]


async def test_it_is_done_also_where_a_run_has_erased_it_and_has_not_ended(running: Running) -> None:
    room = await Room.of(running, 0)
    await room.bob.take_back(room.group, 4)
    room.mover.execute("DELETE FROM messages WHERE sequence_num = 4")
    await room.bob.take_back(room.group, 4)
    await expect(room.carol.take_back(room.group, 4), 404, 300)


async def test_what_is_sent_after_it_comes_as_ever(room: Room) -> None:
    await room.bob.take_back(room.group, 6)
    assert await room.seen(room.alice) == [1, 2, 3, 4, 5]
    assert await room.bob.send(room.group, b"7") == 7
    for _ in range(2):
        assert await room.seen(room.alice) == [1, 2, 3, 4, 5, 7]
    await room.bob.take_back(room.group, 7)
    assert await room.alice.fetch(room.group, 5) == []


async def test_who_may_not_is_told_so_and_nothing_changes(room: Room) -> None:
    await expect(room.alice.take_back(room.group, 4), 403, 402)  # an admin, whom the operator does not let
    await expect(room.carol.take_back(room.group, 4), 403, 402)
    await expect(room.dave.take_back(room.group, 4), 401, 400)
    await expect(room.dave.take_back(str(UUID(int=7)), 4), 401, 400)
    for text in ("0", "-1", "x", "1.0", "+4", str(2**63), "9" * 100):
        await expect(room.bob.call("DELETE", f"/groups/{room.group}/messages/{text}"), 400, 101)
    for number in (7, 2**63 - 1):
        await expect(room.bob.take_back(room.group, number), 404, 300)
    assert await room.seen(room.carol) == [1, 2, 3, 4, 5, 6]
    assert await room.running.query("SELECT * FROM taken_back") == []


async def test_a_dry_run_says_what_the_request_would_and_changes_nothing(room: Room, running: Running) -> None:
    await room.bob.take_back(room.group, 4, dry_run=True)
    await expect(room.alice.take_back(room.group, 4, dry_run=True), 403, 402)
    await expect(room.dave.take_back(room.group, 4, dry_run=True), 401, 400)
    await expect(room.bob.take_back(room.group, 7, dry_run=True), 404, 300)
    await expect(room.bob.call("DELETE", f"/groups/{room.group}/messages/4?dry_run=perhaps"), 400, 101)
    for client in (room.alice, room.bob, room.carol):
        assert await room.seen(client) == [1, 2, 3, 4, 5, 6]
    for table in ("taken_back", "audit"):
        assert await running.query(f"SELECT * FROM {table}") == []
    await room.bob.take_back(room.group, 4)
    await room.bob.take_back(room.group, 4, dry_run=True)
    await expect(room.carol.take_back(room.group, 4, dry_run=True), 403, 402)


async def test_admins_may_if_the_operator_lets_them(admins: Running) -> None:
    room = await Room.of(admins, 3)
    await expect(room.carol.take_back(room.group, 2), 403, 402)
    await room.alice.take_back(room.group, 2)
    await room.alice.take_back(room.group, 5)
    assert await room.seen(room.bob) == [1, 3, 4, 6]
    await room.bob.take_back(room.group, 2)  # its sender: it is so already
    entries = await admins.query(
        "SELECT actor, details FROM audit WHERE action = 'message_taken_back' ORDER BY audit_id"
    )
    told = {"sender_id": room.bob.user_id, "admin_id": room.alice.user_id}
    assert [(actor, json.loads(details)) for actor, details in entries] == [
        ("admin alice", {"sequence_num": number, **told}) for number in (2, 5)
    ]


async def test_the_audit_log_names_its_sender(room: Room) -> None:
    await room.bob.take_back(room.group, 4)
    await room.bob.take_back(room.group, 4)
    entries = await room.running.query(
        "SELECT actor, subject_id, subject, details FROM audit WHERE action = 'message_taken_back'"
    )
    [(actor, subject_id, subject, details)] = entries
    assert (actor, UUID(bytes=subject_id), subject) == ("user bob", UUID(room.group), "friends")
    assert json.loads(details) == {"sequence_num": 4, "sender_id": room.bob.user_id}


@pytest.mark.parametrize("archived", [0, 8])
async def test_a_commit_cannot_be_taken_back(admins: Running, archived: int) -> None:
    room = await Room.of(admins, 0)
    await room.bob.post(f"/groups/{room.group}/commit", commit_message=encode(b"7"))
    await room.bob.send(room.group, b"8")
    if archived:
        room.mover.move(room.group, archived)
    await expect(room.bob.take_back(room.group, 7), 400, 100)
    await expect(room.alice.take_back(room.group, 7), 400, 100)
    await expect(room.carol.take_back(room.group, 7), 403, 402)
    assert await room.seen(room.bob) == [1, 2, 3, 4, 5, 6, 7, 8]


async def test_what_nobody_sees_any_more_is_not_there(room: Room) -> None:
    room.running.clock.advance(60)
    await room.bob.send(room.group, b"7")
    await room.alice.set_expiry(room.group, 30)
    await expect(room.bob.take_back(room.group, 4), 404, 300)
    await room.bob.take_back(room.group, 7)
    await room.alice.set_expiry(room.group, -1)
    assert await room.seen(room.alice) == []


async def test_what_a_deleted_account_has_sent_is_not_there(admins: Running) -> None:
    room = await Room.of(admins, 3)
    await room.bob.post("/delete-account", password="correct horse")
    for number in (2, 5):
        await expect(room.alice.take_back(room.group, number), 404, 300)


async def test_who_has_left_cannot_and_what_was_taken_back_stays_so(room: Room) -> None:
    await room.bob.take_back(room.group, 4)
    await room.bob.leave(room.group)
    await expect(room.bob.take_back(room.group, 4), 401, 400)
    await room.bob.join(room.group)
    assert await room.seen(room.bob) == [1, 2, 3, 5, 6]
    await room.bob.take_back(room.group, 3)
    assert await room.seen(room.carol) == [1, 2, 5, 6]


async def test_all_members_hear_of_it_on_all_their_streams(room: Room) -> None:
    phone = await room.carol.another("carol")
    told = ("message_redacted", {"group_id": room.group, "sequence_num": 4})
    async with listening(room.bob) as bob, listening(room.carol) as first, listening(phone) as second:
        await room.bob.take_back(room.group, 4)
        assert [await each.next() for each in (bob, first, second)] == [told] * 3
    await room.bob.take_back(room.group, 4)
    async with listening(room.alice) as alice, listening(room.bob) as bob, listening(room.dave) as dave:
        assert await alice.next() == told, "who was away hears of it with the next stream"
        await room.bob.take_back(room.group, 5)
        assert await alice.next() == ("message_redacted", told[1] | {"sequence_num": 5})
        assert await bob.next() == ("message_redacted", told[1] | {"sequence_num": 5}), "and of each once"
        assert dave.is_empty


async def test_very_many_members_hear_of_it_some_at_a_time(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taken_back, "MESSAGES_PER_STEP", 2)
    tell = taken_back.take_unnotified
    monkeypatch.setattr(taken_back, "take_unnotified", lambda connection: tell(connection, 2))
    room = await Room.of(running, 2)
    async with listening(room.alice) as alice, listening(room.carol) as carol:
        for number in range(1, 7):
            await room.bob.take_back(room.group, number)
        for stream in (alice, carol):
            assert sorted([(await stream.next())[1]["sequence_num"] for _ in range(6)]) == [1, 2, 3, 4, 5, 6]
    assert await running.query("SELECT 1 FROM taken_back WHERE told_to IS NOT NULL") == []


async def test_it_may_be_told_by_the_next_server(config: Config, start_server: StartServer) -> None:
    async with start_server(config) as running:
        room = await Room.of(running, 0)
        room.mover.execute("INSERT INTO taken_back VALUES (?, 4, 0, x'', 0, 0)", room.mover.key(room.group))
        room.mover.execute("UPDATE groups SET taken_back_count = 1")
    async with start_server(config) as running:
        room.carol.http, room.carol.url = running.http, running.url
        async with listening(room.carol) as carol:
            assert (await carol.next())[1]["sequence_num"] == 4


async def test_a_watermark_goes_beyond_it(room: Room) -> None:
    """It holds nothing back in delete-after-fetch, and nothing is lost by it."""
    await room.bob.take_back(room.group, 4)
    await room.bob.take_back(room.group, 6)
    assert [each.sequence_num for each in await room.carol.fetch(room.group, 0, 3)] == [1, 2, 3]
    await room.running.settle()
    of_carol = "SELECT watermark FROM members JOIN users USING (user_id) WHERE username = 'carol'"
    assert await room.running.query(of_carol) == [(3,)]
    assert [each.sequence_num for each in await room.carol.fetch(room.group, 3)] == [5]
    assert await room.carol.fetch(room.group, 5) == []
    await room.carol.fetch(room.group, 6)
    await room.running.settle()
    assert await room.running.query(of_carol) == [(6,)]


async def test_a_self_destructing_one_is_gone_for_all_readers(running: Running) -> None:
    """Also for its sender, who has seen the end of the own timer already, and may still take it back."""
    room = await Room.of(running, 0)
    await room.bob.send(room.group, b"7", 60)
    await room.carol.read(room.group, 7)
    running.clock.advance(60)
    assert await room.seen(room.bob) == [1, 2, 3, 4, 5, 6]
    assert await room.seen(room.alice) == [1, 2, 3, 4, 5, 6, 7]
    await room.bob.take_back(room.group, 7)
    assert await room.seen(room.alice) == [1, 2, 3, 4, 5, 6]
    await room.alice.read(room.group, 7)
    assert await room.seen(room.alice) == [1, 2, 3, 4, 5, 6]


async def test_a_page_on_its_way_is_read_anew_if_the_message_moves(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it is by the time at which it is looked at, and at which it is taken back."""
    room = await Room.of(running, 4)
    reader = running.app[app_keys.ARCHIVE]
    find, once = reader.find, [room.mover.restore]

    async def find_late(stretch: Stretch) -> MessageFacts | None:
        if once:
            once.pop()(room.group)
        return await find(stretch)

    monkeypatch.setattr(reader, "find", find_late)
    await room.bob.take_back(room.group, 3)
    assert await room.seen(room.carol) == [1, 2, 4, 5, 6]
    room.mover.move(room.group, 6)
    assert await room.seen(room.carol) == [1, 2, 4, 5, 6], "and it stays so in the other tier"
    room.mover.restore(room.group)
    assert await room.seen(room.carol) == [1, 2, 4, 5, 6]


async def test_both_formats_say_the_same(room: Room) -> None:
    phone = ProtobufClient(room.bob.http, room.bob.url)
    await phone.login("bob")
    path = f"/groups/{room.group}/messages/4"
    for _ in range(2):
        async with room.bob.http.delete(
            f"{room.bob.url}/api/v1{path}", headers={"Authorization": f"Bearer {phone.token}"}
        ) as response:
            assert (response.status, await response.read()) == (200, b"")
            assert response.content_type == "application/x-protobuf"
    headers = {"Authorization": f"Bearer {room.bob.token}"}
    async with room.bob.http.delete(f"{room.bob.url}/api/v1{path}", headers=headers) as response:
        assert (response.status, await response.json()) == (200, {})
    async with room.bob.http.get(f"{room.bob.url}/api/v1{path}", headers=headers) as response:
        assert (response.status, response.headers["Allow"]) == (405, "DELETE")


async def test_a_group_has_so_many_at_most(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taken_back, "MAX_PER_GROUP", 2)
    room = await Room.of(running, 3)
    for number in (2, 5, 5):
        await room.bob.take_back(room.group, number)
    await expect(room.bob.take_back(room.group, 6), 400, 100)
    await room.bob.take_back(room.group, 2)


async def test_it_counts_in_the_rate_of_sends(config: Config, start_server: StartServer) -> None:
    """The audit log keeps it for years. What is so already does not count."""
    async with start_server(replace(config, limits=LimitsConfig(user_sends_per_minute=8))) as running:
        room = await Room.of(running, 0)
        for number in (1, 2, 2):
            await room.bob.take_back(room.group, number)
        await expect(room.bob.take_back(room.group, 3), 429, 100)
        running.clock.advance(60)
        await room.bob.take_back(room.group, 3)
        assert await room.seen(room.alice) == [4, 5, 6]


async def test_a_policy_foretells_without_it(room: Room) -> None:
    """What is hidden already does not expire by a change."""
    room.running.clock.advance(60)
    await room.bob.take_back(room.group, 4)
    change = {"message_expiry_seconds": 30, "update_message_expiry": True, "dry_run": True}
    found = await room.alice.call("PATCH", f"/groups/{room.group}", json=change)
    assert found["messages_expiring"] == 5


async def test_what_only_a_wrong_clock_hides_has_to_wait(running: Running) -> None:
    """It is there still once the clock is right; so it is neither refused for good nor taken back unseen."""
    room = await Room.of(running, 3)
    await room.alice.set_expiry(room.group, DAY)
    running.clock.set_wrong(2 * DAY)
    await running.app[app_keys.CLOCK_WATCH].check()
    for number in (2, 5):
        await expect(room.bob.take_back(room.group, number), 503, 0)
    running.clock.set_wrong(-2 * DAY)
    for number in (2, 5):
        await room.bob.take_back(room.group, number)


@pytest.mark.parametrize("kind", [Client, ProtobufClient])
async def test_whoever_was_away_learns_of_all_that_was_taken_back(running: Running, kind: type[Client]) -> None:
    """However many: the last 1,000, that there are others, and all of them in pages."""
    alice = await kind.register(running.http, running.url, "alice")
    group = await alice.create_group("friends")
    path, mover = f"/groups/{group}/retention", Mover(running.config)
    key, most = mover.key(group), taken_back.MAX_LISTED
    found = await alice.get(path)
    assert (found["taken_back"], found["more"]) == ([], False)
    for first, last in ((1, most), (most + 1, 2 * most + 300)):
        # The greater a number, the earlier it was taken back.
        mover.execute(
            "WITH RECURSIVE numbers (number) AS (SELECT ? UNION ALL SELECT number + 1 FROM numbers WHERE number < ?)"
            " INSERT INTO taken_back SELECT ?, number, 10000 - number, x'', 1, NULL FROM numbers",
            *(first, last, key),
        )
        found = await alice.get(path)
        assert found["taken_back"] == list(range(1, most + 1)), "the last that were taken back"
        assert found["more"] == (last > most)
    pages = list[list[int]]()
    more, after = True, 0
    while more:
        found = await alice.get(path, taken_back_after=after)
        pages.append(found["taken_back"])
        more, after = found["more"], found["taken_back"][-1]
    assert pages == [[*range(1, 1_001)], [*range(1_001, 2_001)], [*range(2_001, 2_301)]]
    found = await alice.get(path, taken_back_after=2_300)
    assert (found["taken_back"], found["more"]) == ([], False)
    for wrong in ("-1", "x", ""):
        await expect(alice.get(path, taken_back_after=wrong), 400, 101)
