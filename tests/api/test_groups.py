"""Groups over HTTP: creating, changing, joining, leaving, deleting."""

from dataclasses import replace

import pytest

from conclave.config.settings import Config
from tests.conftest import Running, StartServer
from tests.support.client import Client, encode, expect

DAY = 86_400


async def test_the_creator_is_sole_member_and_admin(running: Running) -> None:
    alice = await running.user("alice")
    group = (await alice.post("/groups", group_name="friends", alias="Old Friends"))["group_id"]
    assert await alice.get("/groups") == {
        "groups": [
            {
                "group_id": group,
                "alias": "Old Friends",
                "members": [
                    {
                        "user_id": alice.user_id,
                        "username": "alice",
                        "alias": "",
                        "role": "admin",
                        "signing_key_fingerprint": "",
                    }
                ],
                "group_name": "friends",
                "mls_group_id": "",
                "message_expiry_seconds": -1,
                "visibility": "private",
            }
        ],
        "more": False,
    }


async def test_a_group_name_is_taken_once(running: Running) -> None:
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("friends")
    await expect(bob.post("/groups", group_name="friends"), 409, 301)
    other = await bob.create_group("others")
    await expect(bob.patch(other, group_name="friends", alias="changed"), 409, 301)
    assert (await bob.get("/groups"))["groups"][0]["alias"] == "", "all or nothing"
    await alice.patch(group, group_name="friends")
    await alice.patch(group, group_name="companions")
    await bob.patch(other, group_name="friends")


async def test_an_absent_field_changes_nothing_and_an_empty_alias_clears(running: Running) -> None:
    alice = await running.user("alice")
    group = (await alice.post("/groups", group_name="friends", alias="Old Friends"))["group_id"]
    await alice.patch(group, visibility="public")
    await alice.patch(group, alias=None, visibility=None)
    shown = (await alice.get("/groups"))["groups"][0]
    assert (shown["alias"], shown["visibility"]) == ("Old Friends", "public")
    await alice.patch(group, alias="")
    assert (await alice.get("/groups"))["groups"][0]["alias"] == ""


@pytest.mark.parametrize(
    ("changes", "code", "field"),
    [
        ({"visibility": "secret"}, 101, "visibility"),
        ({"alias": "a" * 65}, 101, "alias"),
        ({"alias": "line\nbreak"}, 101, "alias"),
        ({"group_name": ""}, 101, "group_name"),
        ({"group_name": "_under"}, 101, "group_name"),
        ({"message_expiry_seconds": -2, "update_message_expiry": True}, 101, "message_expiry_seconds"),
        ({"message_expiry_seconds": 2**53, "update_message_expiry": True}, 101, "message_expiry_seconds"),
        ({"message_expiry_seconds": 1.5, "update_message_expiry": True}, 101, "message_expiry_seconds"),
        ({"message_expiry_seconds": True, "update_message_expiry": True}, 101, "message_expiry_seconds"),
        ({"message_expiry_seconds": 60, "update_message_expiry": 1}, 101, "update_message_expiry"),
        ({"update_message_expiry": True}, 100, "message_expiry_seconds"),
        ({"update_mesage_expiry": True}, 101, "update_mesage_expiry"),
    ],
)
async def test_a_bad_change_is_refused_with_its_field_and_changes_nothing(
    running: Running, changes: dict[str, object], code: int, field: str
) -> None:
    alice = await running.user("alice")
    group = await alice.create_group("friends")
    before = await alice.get("/groups")
    answer = await expect(alice.patch(group, **{"alias": "new"} | changes), 400, code)
    assert list(answer["errors"]) == [field]
    assert await alice.get("/groups") == before


async def test_all_wrong_fields_are_reported_at_once(running: Running) -> None:
    alice = await running.user("alice")
    answer = await expect(alice.post("/register", password="short", alias="a" * 65, nickname="x"), 400, 100)
    assert set(answer["errors"]) == {"username", "password", "alias", "nickname"}


async def test_only_admins_change_and_delete(running: Running) -> None:
    alice, bob, carol = await running.users("alice", "bob", "carol")
    group = await alice.create_group("friends")
    await bob.join(group)
    for other in (bob, carol):
        await expect(other.patch(group, alias="x"), 401, 401)
        await expect(other.patch(group, update_message_expiry=True), 400, 100)
        await expect(other.post(f"/groups/{group}/delete"), 401, 401)
    await expect(alice.patch("00000000-0000-4000-8000-000000000000", alias="x"), 401, 401)


async def test_public_groups_are_found_by_a_part_of_their_name(running: Running) -> None:
    alice = await running.user("alice")
    first = await alice.create_group("book_club", expiry=60)
    await alice.create_group("bookXclub")
    await alice.create_group("secret_book_club", public=False)
    listed = (await alice.get("/groups/public"))["groups"]
    assert [each["group_name"] for each in listed] == ["bookXclub", "book_club"]
    found = (await alice.get("/groups/public", pattern="k_c"))["groups"]
    assert found == [{"group_id": first, "group_name": "book_club", "alias": "", "member_count": 1}]
    assert (await alice.get("/groups/public", pattern="%"))["groups"] == []
    assert (await alice.get("/groups/public", pattern="x" * 7000))["groups"] == []


async def test_joining_a_group(running: Running) -> None:
    alice, bob = await running.users("alice", "bob")
    group = (await alice.post("/groups", group_name="friends"))["group_id"]
    await expect(bob.join("00000000-0000-4000-8000-000000000000"), 404, 300)
    await expect(bob.join(group), 403, 402)
    await alice.patch(group, visibility="public")
    await expect(bob.join(group), 400, 100)
    await alice.post(f"/groups/{group}/commit", group_info=encode(b"info"))
    assert await bob.post(f"/groups/{group}/join") == {"group_info": encode(b"info")}
    await expect(bob.join(group), 409, 301)
    members = (await alice.get("/groups"))["groups"][0]["members"]
    assert [(each["username"], each["role"]) for each in members] == [("alice", "admin"), ("bob", "member")]


async def test_when_the_last_admin_leaves_the_longest_standing_member_follows(running: Running) -> None:
    alice, bob, carol = await running.users("alice", "bob", "carol")
    group = await alice.create_group("friends")
    await bob.join(group)
    await carol.join(group)
    await alice.leave(group)
    members = (await carol.get("/groups"))["groups"][0]["members"]
    assert [(each["username"], each["role"]) for each in members] == [("bob", "admin"), ("carol", "member")]
    await expect(alice.send(group), 401, 400)


async def test_a_group_goes_with_its_last_member(running: Running) -> None:
    alice = await running.user("alice")
    group = await alice.create_group("friends")
    await alice.send(group)
    await alice.post(f"/groups/{group}/leave", commit_message=encode(b"bye"), group_info=encode(b"empty"))
    assert await alice.get("/groups") == {"groups": [], "more": False}
    assert await running.query("SELECT count(*) FROM tombstones") == [(1,)]
    assert await alice.create_group("friends") != group


async def test_a_leaving_member_hands_over_a_commit(running: Running) -> None:
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("friends")
    await bob.join(group)
    await bob.post(f"/groups/{group}/leave", commit_message=encode(b"bye"), group_info=encode(b"after bob"))
    [message] = await alice.fetch(group)
    assert (message.sender_id, message.body) == (bob.user_id, b"bye")
    assert await alice.get(f"/groups/{group}/group-info") == {"group_info": encode(b"after bob")}


async def test_a_commit_stores_what_it_brings(running: Running) -> None:
    alice, bob = await running.users("alice", "bob")
    group = (await alice.post("/groups", group_name="friends"))["group_id"]
    path = f"/groups/{group}/commit"
    await expect(alice.get(f"/groups/{group}/group-info"), 404, 300)
    assert await alice.post(path, commit_message=encode(b"c"), group_info=encode(b"i"), mls_group_id="0aFF") == {}
    assert await alice.get(f"/groups/{group}/group-info") == {"group_info": encode(b"i")}
    assert [message.body for message in await alice.fetch(group)] == [b"c"]
    await alice.post(path, mls_group_id="ff00")
    assert (await alice.get("/groups"))["groups"][0]["mls_group_id"] == "0aFF", "set once"
    assert await alice.numbers(group) == [1]
    for bad in ("xyz", "a" * 1025):
        await expect(alice.post(path, mls_group_id=bad), 400, 101)
    await expect(bob.post(path, group_info=encode(b"i")), 401, 400)
    await expect(bob.get(f"/groups/{group}/group-info"), 401, 400)


LAYERS = ("server_retention_seconds", "group_expiry_seconds", "effective_expiry_seconds")

EFFECTIVE = [
    (-1, -1, "keep"),
    (-1, 60, 60),
    (-1, 0, "after fetch"),
    (60, -1, 60),
    (60, 30, 30),
    (60, 60, 60),
    (0, -1, "after fetch"),
    (0, 0, "after fetch"),
    (60, 0, "after fetch"),
]


@pytest.mark.parametrize(("server", "group", "expected"), EFFECTIVE)
async def test_the_effective_expiry(
    config: Config, start_server: StartServer, server: int, group: int, expected: object
) -> None:
    async with start_server(replace(config, message_retention=server)) as running:
        alice, bob = await running.users("alice", "bob")
        group_id = await alice.create_group("friends", expiry=group)
        await bob.join(group_id)
        await alice.send(group_id)
        shown = await alice.get(f"/groups/{group_id}/retention")
        in_force = {"keep": -1, "after fetch": 0}.get(str(expected), expected)
        assert [shown[name] for name in LAYERS] == [server, group, in_force]
        if isinstance(expected, int):
            running.clock.advance(expected)
            assert await bob.numbers(group_id) == [1]
            running.clock.advance(1)
            assert await bob.numbers(group_id) == []
        else:
            running.clock.advance(20 * DAY)
            assert await bob.numbers(group_id) == [1]


@pytest.mark.parametrize(("server", "group", "smaller"), [(60, 3600, 30), (0, 3600, 60)])
async def test_a_retention_lowered_later_bounds_what_groups_have(
    config: Config, start_server: StartServer, server: int, group: int, smaller: int
) -> None:
    async with start_server(config) as running:
        alice = await running.user("alice")
        group_id = await alice.create_group("friends", expiry=group)
    async with start_server(replace(config, message_retention=server)) as running:
        alice = Client(running.http, running.url, alice.token)
        shown = await alice.get(f"/groups/{group_id}/retention")
        assert [shown[name] for name in LAYERS] == [server, group, server]
        await alice.send(group_id)
        running.clock.advance(61)
        assert await alice.numbers(group_id) == ([] if server else [1])
        if server == 0:
            await expect(alice.set_expiry(group_id, smaller), 400, 100)
        else:
            await alice.set_expiry(group_id, smaller)


CAP = [
    (-1, 2**53 - 1, True),
    (60, 60, True),
    (60, 61, False),
    (60, -1, True),
    (60, 0, True),
    (0, 1, False),
    (0, -1, True),
    (0, 0, True),
]


@pytest.mark.parametrize(("server", "requested", "within"), CAP)
async def test_the_cap(config: Config, start_server: StartServer, server: int, requested: int, within: bool) -> None:
    async with start_server(replace(config, message_retention=server)) as running:
        alice = await running.user("alice")
        group = await alice.create_group("friends")
        if within:
            await alice.set_expiry(group, requested)
        else:
            answer = await expect(alice.set_expiry(group, requested), 400, 100)
            assert str(server) in answer["message"], "the text names the cap"
        shown = await alice.get(f"/groups/{group}/retention")
        assert shown["group_expiry_seconds"] == (requested if within else -1)


async def test_an_expiry_without_its_flag_changes_nothing(running: Running) -> None:
    alice = await running.user("alice")
    group = await alice.create_group("friends")
    await alice.patch(group, message_expiry_seconds=60)
    await alice.patch(group, message_expiry_seconds=60, update_message_expiry=False)
    assert (await alice.get(f"/groups/{group}/retention"))["group_expiry_seconds"] == -1
