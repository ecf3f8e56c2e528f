"""What clients are told of retention: the policy in force, who holds messages back, what the operator has set."""

from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest

from conclave import app_keys
from conclave.config.retention import RetentionConfig
from conclave.config.settings import Config
from conclave.retention.policy import AFTER_FETCH, KEEP
from conclave.retention.resolve import LifetimeLimits, LifetimeRange, Lifetimes
from conclave.store.resources import members
from tests.conftest import Running, StartServer
from tests.support.archive import Mover
from tests.support.client import PASSWORD, Client, expect
from tests.support.protobuf import ProtobufClient

MINUTE, HOUR, DAY = 60, 3600, 86_400
MOST = 2**53 - 1

both_formats = pytest.mark.parametrize("kind", [Client, ProtobufClient])


async def users(running: Running, kind: type[Client], *names: str) -> list[Client]:
    return [await kind.register(running.http, running.url, name) for name in names]


async def told(client: Client, group: str) -> dict[str, Any]:
    return await client.get(f"/groups/{group}/retention")


async def set_least(client: Client, group: str, seconds: int, **more: Any) -> None:
    await client.patch(group, min_lifetime_seconds=seconds, update_min_lifetime=True, **more)


async def held_by(running: Running, client: Client, group: str) -> list[str]:
    await running.settle()
    found: list[str] = (await told(client, group))["held_by"]
    return found


POLICIES: list[tuple[str, int, RetentionConfig, tuple[int, int], tuple[int, int, str]]] = [
    ("nothing is set", KEEP, RetentionConfig(), (KEEP, KEEP), (KEEP, 0, "none")),
    ("the admins decide", KEEP, RetentionConfig(), (DAY, HOUR), (DAY, HOUR, "group")),
    ("the server decides", HOUR, RetentionConfig(), (KEEP, KEEP), (HOUR, 0, "server")),
    (
        "the default",
        KEEP,
        RetentionConfig(default_policy=Lifetimes(HOUR, DAY)),
        (KEEP, KEEP),
        (DAY, HOUR, "default"),
    ),
    (
        "the limits, which count for admins",
        KEEP,
        RetentionConfig(limits=LifetimeLimits(LifetimeRange(HOUR, KEEP), LifetimeRange(DAY, KEEP))),
        (MINUTE, 1),
        (DAY, HOUR, "group"),
    ),
    (
        "a server that keeps for less than the least lifetime: hidden by one, erased by the other",
        MINUTE,
        RetentionConfig(),
        (KEEP, HOUR),
        (MINUTE, HOUR, "server"),
    ),
]


@both_formats
@pytest.mark.parametrize(("why", "server", "retention", "own", "expected"), POLICIES, ids=lambda each: str(each)[:30])
async def test_members_learn_which_policy_is_in_force_and_where_it_comes_from(
    config: Config,
    start_server: StartServer,
    kind: type[Client],
    why: str,
    server: int,
    retention: RetentionConfig,
    own: tuple[int, int],
    expected: tuple[int, int, str],
) -> None:
    async with start_server(replace(config, message_retention=server, retention=retention)) as running:
        alice, bob = await users(running, kind, "alice", "bob")
        group = await alice.create_group("friends")
        await bob.join(group)
        await set_least(alice, group, own[1], message_expiry_seconds=own[0], update_message_expiry=True)
        for client in (alice, bob):
            assert await told(client, group) == {
                "server_retention_seconds": server,
                "group_expiry_seconds": own[0],
                "effective_expiry_seconds": expected[0],
                "min_lifetime_seconds": expected[1],
                "policy_source": expected[2],
                "legal_hold": False,
                "held_by": [],
                "hidden_before": 0,
                "taken_back": [],
                "more": False,
                "last_sequence_num": 0,
                "expiry_set_by": "" if own[0] == KEEP else alice.user_id,
            }, why


@both_formats
async def test_members_learn_who_has_set_the_expiry_as_it_is(running: Running, kind: type[Client]) -> None:
    alice, bob, carol = await users(running, kind, "alice", "bob", "carol")
    group = await alice.create_group("friends")
    for each in (bob, carol):
        await each.join(group)
    await alice.post(f"/groups/{group}/promote", user_id=bob.user_id)

    async def setter() -> str:
        [found] = {(await told(each, group))["expiry_set_by"] for each in (alice, bob, carol)}
        return str(found)

    assert await setter() == ""
    await alice.set_expiry(group, DAY)
    await bob.patch(group, alias="our friends")
    await bob.set_expiry(group, DAY)
    assert await setter() == alice.user_id, "who has changed nothing of it has not set it"
    await bob.patch(group, message_expiry_seconds=HOUR, update_message_expiry=True, dry_run=True)
    assert await setter() == alice.user_id
    await bob.set_expiry(group, HOUR)
    assert await setter() == bob.user_id
    await alice.post(f"/groups/{group}/demote", user_id=bob.user_id)
    assert await setter() == bob.user_id
    await bob.post("/delete-account", password=PASSWORD)
    assert {(await told(each, group))["expiry_set_by"] for each in (alice, carol)} == {""}


@both_formats
async def test_what_admins_set_where_the_operator_has_decided_is_stored_and_has_no_effect(
    config: Config, start_server: StartServer, kind: type[Client]
) -> None:
    async with start_server(config) as running:
        [alice] = await users(running, kind, "alice")
        group = await alice.create_group("friends")
        await alice.send(group)
    overriding = replace(config, retention=RetentionConfig(groups={group: Lifetimes(HOUR, 30 * DAY)}))
    async with start_server(overriding) as running:
        alice = kind(running.http, running.url, alice.token)
        running.clock.advance(DAY)
        for expiry, dry in ((MINUTE, True), (2 * DAY, False)):
            by_admin = {"message_expiry_seconds": expiry, "update_message_expiry": True, "dry_run": dry}
            assert (await alice.call("PATCH", f"/groups/{group}", json=by_admin))["messages_expiring"] == 0
        shown = await told(alice, group)
        assert (shown["group_expiry_seconds"], shown["effective_expiry_seconds"]) == (2 * DAY, 30 * DAY)
        assert (shown["min_lifetime_seconds"], shown["policy_source"]) == (HOUR, "override")
        assert await alice.numbers(group) == [1]
    async with start_server(config) as running:
        alice = kind(running.http, running.url, alice.token)
        assert (await told(alice, group))["policy_source"] == "group", "what was stored counts once nobody overrides it"


@both_formats
async def test_a_legal_hold_of_the_group_is_told_and_one_of_a_user_is_not(running: Running, kind: type[Client]) -> None:
    alice, bob = await users(running, kind, "alice", "bob")
    group = await alice.create_group("friends")
    await bob.join(group)

    async def hold(group_key: int | None, user_id: bytes | None) -> None:
        await running.app[app_keys.STORE].write(
            lambda connection: connection.execute(
                "INSERT INTO holds (group_key, user_id, subject_id, name, reason, added_by, added_at)"
                " VALUES (?, ?, x'00', '', '', '', 0)",
                (group_key, user_id),
            )
        )

    await hold(None, UUID(bob.user_id).bytes)
    assert [(await told(each, group))["legal_hold"] for each in (alice, bob)] == [False, False]
    await hold(1, None)
    assert [(await told(each, group))["legal_hold"] for each in (alice, bob)] == [True, True]


@both_formats
async def test_admins_learn_who_holds_messages_back_and_others_do_not(running: Running, kind: type[Client]) -> None:
    alice, bob, carol, dora = await users(running, kind, "alice", "bob", "carol", "dora")
    group = await alice.create_group("friends", expiry=0)
    for each in (bob, carol, dora):
        await each.join(group)
    assert await held_by(running, alice, group) == [], "nobody holds back what is not there"
    for _ in range(3):
        await alice.send(group)
    assert await held_by(running, alice, group) == [bob.user_id, carol.user_id, dora.user_id]
    await bob.fetch(group)
    await carol.fetch(group, limit=2)
    assert await held_by(running, alice, group) == [dora.user_id, carol.user_id], "who is furthest behind comes first"
    assert await held_by(running, bob, group) == []
    await alice.act("promote", group, bob)
    assert await held_by(running, bob, group) == [dora.user_id, carol.user_id]
    await alice.set_expiry(group, HOUR)
    assert await held_by(running, alice, group) == [], "nobody holds anything back in other groups"
    await alice.set_expiry(group, 0)
    await dora.leave(group)
    await carol.fetch(group)
    assert await held_by(running, alice, group) == []


async def test_what_nobody_has_fetched_is_held_back_by_nobody_in_particular(running: Running) -> None:
    alice, bob, carol = await running.users("alice", "bob", "carol")
    group = await alice.create_group("friends", expiry=0)
    await alice.bring(bob, group)  # its commit moves no watermark
    assert await held_by(running, alice, group) == []
    await alice.fetch(group)
    assert await held_by(running, alice, group) == [bob.user_id]
    await alice.bring(carol, group)
    assert await held_by(running, alice, group) == [bob.user_id, carol.user_id]


async def test_nobody_holds_back_what_is_no_longer_served(config: Config, start_server: StartServer) -> None:
    limited = replace(config, retention=RetentionConfig(fetch_hold_limit=DAY))
    async with start_server(limited) as running:
        alice, bob = await running.users("alice", "bob")
        group = await alice.create_group("friends", expiry=0)
        await bob.join(group)
        await alice.send(group)
        running.clock.advance(DAY)
        assert await held_by(running, alice, group) == [bob.user_id]
        running.clock.advance(1)
        assert await held_by(running, alice, group) == []


async def test_the_list_of_those_who_hold_back_is_bounded(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "MAX_LAGGING", 2)
    alice, *others = await running.users("alice", "bob", "carol", "dora")
    group = await alice.create_group("friends", expiry=0)
    for each in others:
        await each.join(group)
    await alice.send(group)
    assert await held_by(running, alice, group) == [each.user_id for each in others[:2]]


async def test_what_is_archived_is_held_back_too(running: Running) -> None:
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("friends")
    await bob.join(group)
    for _ in range(4):
        await alice.send(group)
    Mover(running.config).move(group, 4)
    await alice.set_expiry(group, 0)
    assert await held_by(running, alice, group) == [bob.user_id]
    await bob.fetch(group)
    assert await held_by(running, alice, group) == []


LEAST_REFUSED = [
    ({"min_lifetime_seconds": -2}, 101),
    ({"min_lifetime_seconds": MOST + 1}, 101),
    ({"min_lifetime_seconds": "5"}, 101),
    ({"min_lifetime_seconds": True}, 101),
    ({"update_min_lifetime": 1}, 101),
    ({"dry_run": "yes"}, 101),
    ({"update_min_lifetime": True}, 100),
    ({"update_min_lifetime": True, "min_lifetime_seconds": None}, 100),
    ({"update_minimum_lifetime": True}, 101),
]


@pytest.mark.parametrize(("changes", "code"), LEAST_REFUSED)
async def test_a_malformed_least_lifetime_is_refused_and_named(
    running: Running, changes: dict[str, Any], code: int
) -> None:
    alice = await running.user("alice")
    group = await alice.create_group("friends")
    answer = await expect(alice.patch(group, **changes), 400, code)
    assert len(answer["errors"]) == 1
    assert (await told(alice, group))["min_lifetime_seconds"] == 0


async def test_both_lifetimes_that_are_missing_are_named_at_once(running: Running) -> None:
    alice = await running.user("alice")
    group = await alice.create_group("friends")
    answer = await expect(alice.patch(group, update_min_lifetime=True, update_message_expiry=True), 400, 100)
    assert sorted(answer["errors"]) == ["message_expiry_seconds", "min_lifetime_seconds"]


TOGETHER = [
    (KEEP, KEEP, True),
    (KEEP, MOST, True),
    (AFTER_FETCH, MOST, True),
    (DAY, KEEP, True),
    (DAY, 0, True),
    (DAY, DAY, True),
    (DAY, DAY + 1, False),
    (1, 2, False),
    (MOST, MOST, True),
]


@both_formats
@pytest.mark.parametrize("order", ["expiry first", "least first", "together"])
async def test_the_expiry_must_not_be_less_than_the_least_lifetime(
    running: Running, kind: type[Client], order: str
) -> None:
    """Whichever of them is stored and whichever is set."""
    [alice] = await users(running, kind, "alice")
    for number, (expiry, least, goes) in enumerate(TOGETHER):
        group = await alice.create_group(f"friends{number}")
        by_expiry = {"message_expiry_seconds": expiry, "update_message_expiry": True}
        by_least = {"min_lifetime_seconds": least, "update_min_lifetime": True}
        orders: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
            "expiry first": (by_expiry, by_least),
            "least first": (by_least, by_expiry),
            "together": ({"alias": "x"}, by_expiry | by_least),
        }
        first, last = orders[order]
        await alice.patch(group, **first)
        before = await told(alice, group)
        if goes:
            await alice.patch(group, **last)
            shown = await told(alice, group)
            assert (shown["group_expiry_seconds"], shown["min_lifetime_seconds"]) == (expiry, max(least, 0))
        else:
            answer = await expect(alice.patch(group, **last), 400, 100)
            named = set(answer["message"].replace("(", " ").split())
            assert {"message_expiry_seconds", "min_lifetime_seconds"} <= named
            if kind is Client:
                assert sorted(answer["errors"]) == ["message_expiry_seconds", "min_lifetime_seconds"]
            assert await told(alice, group) == before
            await alice.patch(group, alias="the rest is as before")


async def test_a_least_lifetime_without_its_flag_changes_nothing(running: Running) -> None:
    alice = await running.user("alice")
    group = await alice.create_group("friends")
    await alice.patch(group, min_lifetime_seconds=HOUR)
    await alice.patch(group, min_lifetime_seconds=HOUR, update_min_lifetime=False)
    assert (await told(alice, group))["min_lifetime_seconds"] == 0
    await set_least(alice, group, HOUR)
    await alice.patch(group, min_lifetime_seconds=DAY, alias="x")
    assert (await told(alice, group))["min_lifetime_seconds"] == HOUR


async def test_a_least_lifetime_hides_nothing_and_shows_nothing(running: Running) -> None:
    alice = await running.user("alice")
    group = await alice.create_group("friends", expiry=HOUR)
    await alice.send(group)
    running.clock.advance(HOUR)
    await alice.send(group)
    marks = "SELECT floor_seq, gone_below, expired_before FROM groups"
    before = await running.query(marks)
    for least in (HOUR, 0, KEEP, MINUTE):
        await set_least(alice, group, least)
        assert await alice.numbers(group) == [1, 2]
        assert await running.query(marks) == before, "it moves no mark"
    running.clock.advance(1)
    await set_least(alice, group, 0)
    assert await alice.numbers(group) == [2]


CONFIGURATIONS: list[tuple[str, int, RetentionConfig, dict[str, Any], dict[str, Any]]] = [
    ("nothing", KEEP, RetentionConfig(), {}, {}),
    ("the server's retention", DAY, RetentionConfig(), {"max_lifetime": DAY * 1000}, {}),
    ("delete-after-fetch", AFTER_FETCH, RetentionConfig(), {"max_lifetime": 0}, {}),
    (
        "the default within the limits",
        KEEP,
        RetentionConfig(
            default_policy=Lifetimes(min_lifetime=MINUTE, max_lifetime=9 * DAY),
            limits=LifetimeLimits(LifetimeRange(HOUR, KEEP), LifetimeRange(KEEP, DAY)),
        ),
        {"min_lifetime": HOUR * 1000, "max_lifetime": DAY * 1000},
        {"min_lifetime": {"min": HOUR * 1000}, "max_lifetime": {"max": DAY * 1000}},
    ),
    (
        "the default and the server's retention",
        HOUR,
        RetentionConfig(
            default_policy=Lifetimes(max_lifetime=DAY),
            limits=LifetimeLimits(LifetimeRange(0, DAY), LifetimeRange(MINUTE, DAY)),
        ),
        {"max_lifetime": HOUR * 1000},
        {
            "min_lifetime": {"min": 0, "max": DAY * 1000},
            "max_lifetime": {"min": MINUTE * 1000, "max": DAY * 1000},
        },
    ),
    (
        "the longest",
        KEEP,
        RetentionConfig(default_policy=Lifetimes(max_lifetime=MOST)),
        {"max_lifetime": MOST},
        {},
    ),
]


@pytest.mark.parametrize(("why", "server", "retention", "default", "limits"), CONFIGURATIONS, ids=lambda e: str(e)[:30])
async def test_every_user_learns_what_the_operator_has_set(
    config: Config,
    start_server: StartServer,
    why: str,
    server: int,
    retention: RetentionConfig,
    default: dict[str, Any],
    limits: dict[str, Any],
) -> None:
    async with start_server(replace(config, message_retention=server, retention=retention)) as running:
        alice = await running.user("alice")
        assert await alice.get("/retention/configuration") == {
            "policies": {"*": default} if default else {},
            "limits": limits,
        }, why


@both_formats
async def test_a_user_learns_of_the_operators_policies_for_their_own_groups_only(
    config: Config, start_server: StartServer, kind: type[Client]
) -> None:
    async with start_server(config) as running:
        alice, bob = await users(running, kind, "alice", "bob")
        groups = [await alice.create_group(name) for name in ("one", "two", "three")]
        await bob.join(groups[0])
    overrides = {
        groups[0]: Lifetimes(max_lifetime=DAY),
        groups[1].replace("-", ""): Lifetimes(min_lifetime=HOUR),
        str(uuid4()): Lifetimes(max_lifetime=MINUTE),
    }
    async with start_server(replace(config, retention=RetentionConfig(groups=overrides))) as running:
        # In JSON also for the token of a protobuf client.
        alice, bob = (Client(running.http, running.url, each.token) for each in (alice, bob))
        policies = {groups[0]: {"max_lifetime": DAY * 1000}, groups[1]: {"min_lifetime": HOUR * 1000}}
        assert (await alice.get("/retention/configuration"))["policies"] == policies
        del policies[groups[1]]
        assert (await bob.get("/retention/configuration"))["policies"] == policies
        await bob.leave(groups[0])
        assert (await bob.get("/retention/configuration")) == {"policies": {}, "limits": {}}
