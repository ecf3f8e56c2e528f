"""Quotas over HTTP: how fast users and groups send, how much they store. What one user does stops nobody else."""

import asyncio
import threading
from collections import Counter
from dataclasses import replace

import pytest

from conclave import app_keys
from conclave.actions import quotas
from conclave.config.limits import LimitsConfig
from conclave.config.settings import Config
from conclave.store import bodies
from tests.conftest import Cleanup, Running, StartServer
from tests.support.client import Client, encode, expect
from tests.support.server import PATIENCE, until

MINUTE = 60


def limited(config: Config, **values: int) -> Config:
    return replace(config, limits=LimitsConfig(**values))  # type: ignore[arg-type]  # all of them are numbers


async def send(client: Client, group: str, body: bytes = b"x") -> tuple[int, str, int]:
    """Return status, ``Retry-After`` and error code."""
    url = f"{client.url}/api/v1/groups/{group}/messages"
    headers = {"Authorization": f"Bearer {client.token}"}
    async with client.http.post(url, json={"mls_message": encode(body)}, headers=headers) as response:
        answer = await response.json()
        return response.status, response.headers.get("Retry-After", ""), answer.get("error_code", 0)


async def statuses(client: Client, group: str, count: int, body: bytes = b"x") -> Counter[int]:
    """Send several at once, and return how often each status came."""
    sent = await asyncio.gather(*(send(client, group, body) for _ in range(count)))
    return Counter(status for status, _, _ in sent)


async def friends(server: Running) -> tuple[Client, Client, Client, str]:
    """Alice and bob are members of a group, carol is not. A minute has gone by since it was created."""
    alice, bob, carol = await server.users("alice", "bob", "carol")
    group = await alice.create_group("friends")
    await bob.join(group)
    server.clock.advance(MINUTE)
    return alice, bob, carol, group


async def test_without_quotas_nothing_is_counted(running: Running) -> None:
    assert running.app[app_keys.CONTEXT].quotas is None
    alice, _, _, group = await friends(running)
    assert await statuses(alice, group, 300) == {200: 300}


async def test_a_user_sends_so_much_at_once_and_evenly_after_that(config: Config, start_server: StartServer) -> None:
    async with start_server(limited(config, user_sends_per_minute=6)) as server:
        alice, bob, _, group = await friends(server)
        other = await alice.create_group("other")
        server.clock.advance(MINUTE)
        assert await statuses(alice, group, 20) == {200: 6, 429: 14}
        assert await send(alice, other) == (429, "10", 100), "in any group"
        assert await statuses(bob, group, 6) == {200: 6}
        server.clock.advance(9)
        assert await send(alice, group) == (429, "1", 100)
        server.clock.advance(1)
        assert await statuses(alice, group, 5) == {200: 1, 429: 4}
        server.clock.advance(MINUTE)
        assert await statuses(alice, other, 20) == {200: 6, 429: 14}
        assert await server.query("SELECT count(*) FROM messages") == [(19,)]


async def test_groups_that_a_user_creates_count(config: Config, start_server: StartServer) -> None:
    async with start_server(limited(config, user_sends_per_minute=3)) as server:
        alice, bob = await server.users("alice", "bob")
        for name in ("a", "b", "c"):
            await alice.create_group(name)
        await expect(alice.create_group("d"), 429, 100)
        await bob.create_group("d")


async def test_a_database_has_no_more_groups_than_ids_for_their_messages(running: Running) -> None:
    alice = await running.user("alice")
    await alice.create_group("first")
    await running.app[app_keys.STORE].write(
        lambda connection: connection.execute(
            "UPDATE sqlite_sequence SET seq = ? WHERE name = 'groups'", (bodies.MAX_GROUP_KEY - 1,)
        )
    )
    group = await alice.create_group("last")
    assert await statuses(alice, group, 2) == {200: 2}
    assert len(await alice.fetch_all(group)) == 2
    await expect(alice.create_group("another"), 507, 0)
    assert await statuses(alice, group, 1) == {200: 1}


async def test_a_message_counts_once_whatever_is_written_with_it(config: Config, start_server: StartServer) -> None:
    """A read receipt that shares its transaction has it done on another thread."""
    async with start_server(limited(config, user_sends_per_minute=3)) as server:
        alice, bob, _, group = await friends(server)
        await bob.send(group, seconds=MINUTE)
        store, free = server.app[app_keys.STORE], threading.Event()
        slow = asyncio.create_task(store.write(lambda _: free.wait(PATIENCE)))
        await until(lambda: not store.writes_waiting)
        sent = asyncio.create_task(send(bob, group))
        await until(lambda: store.writes_waiting == 1)
        read = asyncio.create_task(alice.read(group, 1))
        await until(lambda: store.writes_waiting == 2)
        free.set()
        await asyncio.gather(slow, sent, read)
        assert await statuses(bob, group, 3) == {200: 1, 429: 2}


async def test_a_group_takes_so_many_from_all_its_members_and_nobody_else_uses_them_up(
    config: Config, start_server: StartServer
) -> None:
    async with start_server(limited(config, group_sends_per_minute=4)) as server:
        alice, bob, carol, group = await friends(server)
        assert await statuses(carol, group, 20) == {401: 20}
        assert await statuses(alice, group, 3) == {200: 3}
        assert await statuses(bob, group, 3) == {200: 1, 429: 2}
        other = await bob.create_group("other")
        assert await statuses(bob, other, 4) == {200: 4}


async def test_commits_count_as_messages_do_and_leaving_is_never_refused(
    config: Config, start_server: StartServer
) -> None:
    async with start_server(limited(config, user_sends_per_minute=2, group_stored_messages=3)) as server:
        alice, bob, _, group = await friends(server)
        commit = {"commit_message": encode(b"commit")}
        await alice.post(f"/groups/{group}/commit", **commit, group_info=encode(b"info"))
        await alice.post(f"/groups/{group}/external-join", **commit)
        await expect(alice.post(f"/groups/{group}/external-join", **commit), 429, 100)
        await expect(alice.post(f"/groups/{group}/commit", **commit), 429, 100)
        await alice.post(f"/groups/{group}/commit", group_info=encode(b"other info"))  # without a message
        server.clock.advance(2 * MINUTE)
        await bob.leave(group)
        await bob.begin_join(group)
        await bob.post(f"/groups/{group}/commit", **commit)
        await expect(bob.post(f"/groups/{group}/commit", **commit), 403, 302)
        await bob.post(f"/groups/{group}/external-join", **commit)
        await bob.post(f"/groups/{group}/leave", **commit)
        assert await server.query("SELECT count(*) FROM messages") == [(5,)]


@pytest.mark.parametrize(
    ("quota", "most"),
    [({"group_stored_messages": 5}, 5), ({"group_stored_bytes": 35}, 3), ({"user_stored_bytes": 29}, 2)],
)
async def test_what_is_stored_is_bounded_however_many_send_at_once(
    config: Config, start_server: StartServer, quota: dict[str, int], most: int
) -> None:
    async with start_server(limited(config, **quota)) as server:
        alice, bob, carol, group = await friends(server)
        assert await statuses(alice, group, 12, b"0123456789") == {200: most, 403: 12 - most}
        status, _, code = await send(alice, group, b"0123456789")
        assert (status, code) == (403, 302)
        other = await bob.create_group("other")
        assert (await send(bob, other, b"0123456789"))[0] == 200
        assert (await send(bob, group, b"0123456789"))[0] == (200 if "user_stored_bytes" in quota else 403)
        assert (await send(carol, group))[0] == 401, "who is no member does not learn of it"


@pytest.mark.parametrize("quota", [{"group_stored_messages": 3}, {"group_stored_bytes": 30}, {"user_stored_bytes": 30}])
async def test_a_start_measures_what_is_stored_already(
    config: Config, start_server: StartServer, quota: dict[str, int]
) -> None:
    async with start_server(config) as server:
        alice, _, _, group = await friends(server)
        assert await statuses(alice, group, 2, b"0123456789") == {200: 2}
    async with start_server(limited(config, **quota)) as server:
        again = Client(server.http, server.url, alice.token)
        assert await statuses(again, group, 8, b"0123456789") == {200: 1, 403: 7}


async def test_what_cleanup_erases_makes_room_within_a_minute(
    config: Config, start_server: StartServer, cleanup: Cleanup
) -> None:
    async with start_server(limited(config, group_stored_messages=2, user_stored_bytes=20)) as server:
        alice, _, _, group = await friends(server)
        await alice.patch(group, message_expiry_seconds=MINUTE, update_message_expiry=True)
        assert await statuses(alice, group, 5, b"0123456789") == {200: 2, 403: 3}
        server.clock.advance(2 * MINUTE)
        assert await send(alice, group, b"0123456789") == (403, "", 302), "hidden, but still stored"
        assert (await cleanup(server))["expired"] == 2
        server.clock.advance(quotas.MIN_REMEASURE_SECONDS)
        assert await statuses(alice, group, 5, b"0123456789") == {200: 2, 403: 3}


async def test_what_is_never_refused_counts_from_the_next_measurement_on(
    config: Config, start_server: StartServer
) -> None:
    async with start_server(limited(config, group_stored_messages=5)) as server:
        alice, bob, _, group = await friends(server)
        assert await statuses(alice, group, 2) == {200: 2}
        for _ in range(2):
            await bob.post(f"/groups/{group}/leave", commit_message=encode(b"good bye"))
            await bob.join(group)
        server.clock.advance(quotas.MAX_MEASURE_AGE_SECONDS)
        assert await statuses(alice, group, 4) == {200: 1, 403: 3}


async def test_nobody_stores_without_end_by_joining_and_leaving_or_starting_again(
    config: Config, start_server: StartServer
) -> None:
    """Each of these commits has to be taken, and may have a megabyte."""
    async with start_server(limited(config, group_stored_messages=4)) as server:
        alice, bob, carol, group = await friends(server)
        commit = {"commit_message": encode(b"commit")}
        for _ in range(2):
            await bob.post(f"/groups/{group}/leave", **commit)
            await bob.join(group)
        await alice.post(f"/groups/{group}/remove", user_id=bob.user_id, **commit)
        await bob.join(group)
        await alice.post(f"/groups/{group}/ban", user_id=bob.user_id, **commit)
        await expect(carol.post(f"/groups/{group}/join"), 403, 302)
        await expect(alice.invite(group, carol), 403, 302)
        await expect(alice.post(f"/groups/{group}/external-join", **commit), 403, 302)
        await expect(bob.post(f"/groups/{group}/join"), 403, 403)
        assert await server.query("SELECT count(*) FROM messages") == [(4,)]
        private = await alice.create_group("private")
        await alice.patch(private, visibility="private")
        await expect(carol.post(f"/groups/{private}/join"), 403, 402)


async def test_an_invite_that_is_accepted_counts(config: Config, start_server: StartServer) -> None:
    async with start_server(limited(config, group_stored_messages=2)) as server:
        alice, _, carol, group = await friends(server)
        assert await statuses(alice, group, 1) == {200: 1}
        await alice.invite(group, carol)
        [invite] = (await carol.get("/invites"))["invites"]
        await carol.post(f"/invites/{invite['invite_id']}/accept")
        assert await statuses(alice, group, 1) == {403: 1}


async def test_what_waits_with_invites_and_as_welcomes_counts_until_it_is_gone(
    config: Config, start_server: StartServer
) -> None:
    """Each invite carries up to a megabyte; nobody has to answer it."""
    async with start_server(limited(config, user_stored_bytes=700, group_stored_bytes=1000)) as server:
        alice, bob, carol, group = await friends(server)
        [dave] = await server.users("dave")
        other = await alice.create_group("other")
        body = bytes(200)  # three of these, and a word with each
        invite = await alice.invite(group, carol, body)
        for each in (group, other):
            await expect(alice.invite(each, dave, body), 403, 302)
            assert await statuses(alice, each, 1, bytes(100)) == {403: 1}
        assert await statuses(bob, group, 1, bytes(100)) == {200: 1}, "bob has not invited anybody"
        assert await statuses(bob, group, 1, bytes(300)) == {403: 1}, "but the group is full"
        server.clock.advance(quotas.MIN_REMEASURE_SECONDS)
        assert await statuses(alice, group, 1, bytes(100)) == {403: 1}, "a measurement counts it too"
        await carol.accept(invite)
        server.clock.advance(quotas.MIN_REMEASURE_SECONDS)
        assert await statuses(alice, other, 1, bytes(100)) == {200: 1}, "it is no invite any more"
        assert await statuses(bob, group, 1, bytes(600)) == {403: 1}, "commit and welcome are in the group"
        [welcome] = (await carol.get("/welcomes"))["welcomes"]
        await carol.post(f"/welcomes/{welcome['welcome_id']}/accept")
        server.clock.advance(quotas.MIN_REMEASURE_SECONDS)
        assert await statuses(bob, group, 1, bytes(600)) == {200: 1}, "and the welcome was fetched"


async def test_policies_are_changed_no_faster_than_messages_are_sent(config: Config, start_server: StartServer) -> None:
    """The audit log keeps each change for years."""
    async with start_server(limited(config, user_sends_per_minute=2, group_sends_per_minute=2)) as server:
        alice, bob, _, group = await friends(server)
        assert await statuses(bob, group, 3) == {200: 2, 429: 1}
        await alice.set_expiry(group, 60)
        await alice.set_expiry(group, 60)
        await alice.patch(group, alias="nothing that the audit log keeps")
        await alice.set_expiry(group, 70)
        await expect(alice.set_expiry(group, 80), 429, 100)
        found = await server.query("SELECT count(*) FROM audit WHERE action = 'policy_changed'")
        assert found == [(2,)]


async def test_who_is_too_fast_neither_joins_nor_invites_and_every_commit_counts(
    config: Config, start_server: StartServer
) -> None:
    async with start_server(limited(config, user_sends_per_minute=2)) as server:
        alice, bob, carol, group = await friends(server)
        commit = {"commit_message": encode(b"commit")}
        await bob.post(f"/groups/{group}/leave", **commit)
        await bob.join(group)
        await bob.post(f"/groups/{group}/leave", **commit)
        await expect(bob.post(f"/groups/{group}/join"), 429, 100)
        assert await statuses(alice, group, 2) == {200: 2}
        await expect(alice.invite(group, carol), 429, 100)
        server.clock.advance(MINUTE)
        await bob.join(group)
        assert await carol.get("/invites") == {"invites": [], "more": False}
        await alice.invite(group, carol)
        await alice.post(f"/groups/{group}/cancel-invite", invitee_id=carol.user_id)
        await alice.invite(group, carol)
        await alice.post(f"/groups/{group}/cancel-invite", invitee_id=carol.user_id)
        await expect(alice.invite(group, carol), 429, 100)
        assert await statuses(bob, group, 3) == {200: 2, 429: 1}, "who joins without a commit has used up nothing"


async def test_a_user_who_is_an_admin_of_enough_groups_creates_no_other(
    config: Config, start_server: StartServer
) -> None:
    async with start_server(limited(config, user_groups=2)) as server:
        alice, bob = await server.users("alice", "bob")
        first = await alice.create_group("one")
        await alice.create_group("two")
        await expect(alice.post("/groups", group_name="three"), 403, 302)
        await bob.create_group("three")
        await bob.join(first)
        assert len((await bob.get("/groups"))["groups"]) == 2
        await bob.create_group("four")
        await alice.post(f"/groups/{first}/delete")
        await alice.create_group("five")
