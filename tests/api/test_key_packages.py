"""Key packages over HTTP: kept, handed out once each, not too often."""

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from conclave.store.resources import key_packages
from tests.conftest import Running
from tests.support.client import API, PACKAGE, Client, RefusedError, encode, expect

START = bytes([0, 1, 0, 5])


def package(number: int) -> bytes:
    return PACKAGE + str(number).encode()


async def taken(by: Client, owner: Client, count: int) -> list[bytes]:
    return [await by.take(owner) for _ in range(count)]


async def hand_out(admin: Client, group: str, *users: Client) -> list[str]:
    """Ask for a key package of each user to invite; return whose were handed out."""
    answer = await admin.post(f"/groups/{group}/invite", user_ids=[each.user_id for each in users])
    return [each["user_id"] for each in answer["member_key_packages"]]


async def test_the_ten_newest_are_kept_and_handed_out_the_oldest_first(running: Running) -> None:
    alice, bob = await running.users("alice", "bob")
    await bob.upload(*(package(number) for number in range(7)))
    await bob.upload(*(package(number) for number in range(7, 12)))
    assert await taken(alice, bob, 10) == [package(number) for number in range(2, 12)]
    running.clock.advance(60)
    await expect(alice.take(bob), 404, 300)
    assert await running.query("SELECT count(*) FROM bodies") == [(0,)], "those that fell out are erased"


async def test_of_many_in_one_request_the_last_ten_are_kept(running: Running) -> None:
    alice, bob = await running.users("alice", "bob")
    await bob.upload(*(package(number) for number in range(30)))
    assert await taken(alice, bob, 10) == [package(number) for number in range(20, 30)]


async def test_the_last_resort_is_handed_out_when_no_other_is_left_and_stays(running: Running) -> None:
    alice, bob = await running.users("alice", "bob")
    await bob.upload(package(1), last_resort=b"\0\1\0\5 first")
    await bob.upload(package(2), last_resort=b"\0\1\0\5 second")
    assert await taken(alice, bob, 4) == [package(1), package(2), *[b"\0\1\0\5 second"] * 2]
    await bob.upload(package(3))
    assert await taken(alice, bob, 2) == [package(3), b"\0\1\0\5 second"]
    await bob.upload(last_resort=b"\0\1\0\5 third")
    assert await taken(alice, bob, 1) == [b"\0\1\0\5 third"]


async def test_the_last_resort_is_not_one_of_the_ten(running: Running) -> None:
    alice, bob = await running.users("alice", "bob")
    await bob.upload(*(package(number) for number in range(10)), last_resort=START)
    await bob.upload(package(10))
    assert await taken(alice, bob, 10) == [package(number) for number in range(1, 11)]
    running.clock.advance(60)
    assert await alice.take(bob) == START


async def test_a_package_is_handed_out_once_however_many_ask(running: Running) -> None:
    alice, bob, carol = await running.users("alice", "bob", "carol")
    await bob.upload(*(package(number) for number in range(4)))
    requests = [each.take(bob) for each in (alice, carol) * 5]
    outcomes = await asyncio.gather(*requests, return_exceptions=True)
    assert sorted(each for each in outcomes if isinstance(each, bytes)) == [package(number) for number in range(4)]
    refused = [(each.status, each.code) for each in outcomes if isinstance(each, RefusedError)]
    assert refused == [(404, 300)] * 6, "what was refused does not count as handed out"


async def test_a_head_takes_none(running: Running) -> None:
    alice, bob = await running.users("alice", "bob")
    await bob.upload(package(1))
    headers = {"Authorization": f"Bearer {alice.token}"}
    async with running.http.head(f"{running.url}{API}/key-packages/{bob.user_id}", headers=headers) as response:
        assert (response.status, await response.read()) == (405, b"")
    assert await alice.take(bob) == package(1)


async def test_one_can_fetch_one_s_own(running: Running) -> None:
    alice = await running.user("alice")
    await alice.upload(package(1))
    assert await alice.take(alice) == package(1)


async def test_an_invite_hands_out_one_of_each_user_and_none_of_the_caller(running: Running) -> None:
    alice, bob, carol = await running.users("alice", "bob", "carol")
    group = await alice.create_group("friends")
    for user in (alice, bob, carol):
        await user.upload(*(user.user_id.encode().join([START, bytes([number])]) for number in range(2)))
    asked = [carol.user_id, alice.user_id, bob.user_id, carol.user_id]
    answer = await alice.post(f"/groups/{group}/invite", user_ids=asked)
    assert answer["member_key_packages"] == [
        {"user_id": each.user_id, "key_package_data": encode(START + each.user_id.encode() + b"\0")}
        for each in (carol, bob)
    ]
    assert await alice.take(alice) == START + alice.user_id.encode() + b"\0"
    assert await alice.take(bob) == START + bob.user_id.encode() + b"\1"
    assert (await alice.post(f"/groups/{group}/invite", user_ids=[alice.user_id]))["member_key_packages"] == []
    assert await bob.invited_to() == [], "nobody is invited by it"


@pytest.mark.parametrize("other", ["nobody", "no package", "a member", "banned", "too often"])
async def test_an_invite_that_fails_for_one_takes_none(running: Running, other: str) -> None:
    alice, bob, carol = await running.users("alice", "bob", "carol")
    group = await alice.create_group("friends")
    await bob.upload(package(1))
    expected = {"a member": (409, 301), "banned": (403, 403), "too often": (429, 100)}.get(other, (404, 300))
    if other in ("a member", "banned", "too often"):
        await carol.upload(last_resort=START)
    if other == "a member":
        await carol.join(group)
    elif other == "banned":
        await alice.act("ban", group, carol)
    elif other == "too often":
        await taken(alice, carol, 10)
    elif other == "nobody":
        carol = Client(running.http, running.url, user_id="00000000-0000-4000-8000-000000000000")
    for users in ((bob, carol), (carol, bob)):
        await expect(hand_out(alice, group, *users), *expected)
    assert await alice.take(bob) == package(1)


async def test_only_an_admin_is_handed_out_packages_to_invite(running: Running) -> None:
    alice, bob, carol = await running.users("alice", "bob", "carol")
    group = await alice.create_group("friends")
    await bob.join(group)
    await carol.upload(package(1))
    for other in (bob, carol):
        await expect(hand_out(other, group, carol), 401, 401)
    await expect(alice.post(f"/groups/{group}/invite", user_ids=[]), 400, 100)
    await expect(alice.post(f"/groups/{group}/invite"), 400, 100)
    assert await hand_out(alice, group, carol) == [carol.user_id]


async def test_ten_of_a_user_are_handed_out_in_a_minute_whoever_asks_and_by_whichever_way(running: Running) -> None:
    alice, bob, carol, dave = await running.users("alice", "bob", "carol", "dave")
    group, other = await alice.create_group("friends"), await carol.create_group("others")
    for user in (bob, dave):
        await user.upload(last_resort=START)
    await taken(alice, bob, 3)
    running.clock.advance(20)
    for admin, invited_to in ((alice, group), (carol, other)) * 3:
        await hand_out(admin, invited_to, bob)
    await carol.take(bob)
    for request in (alice.take(bob), hand_out(alice, group, bob), hand_out(carol, other, dave, bob)):
        assert await retry_after(request) == 40
    assert await alice.take(dave) == START, "each user has a minute of their own"
    running.clock.advance(39)
    assert await retry_after(alice.take(bob)) == 1
    running.clock.advance(1)
    await taken(alice, bob, 2)
    await hand_out(carol, other, bob)
    assert await retry_after(alice.take(bob)) == 20, "the first three count no more"


async def retry_after(request: Awaitable[Any]) -> int:
    """Make a request that has to be refused for now, and return in how many seconds it may come again."""
    with pytest.raises(RefusedError) as refused:
        await request
    assert (refused.value.status, refused.value.code) == (429, 100)
    return int(refused.value.headers["Retry-After"])


async def test_a_reset_erases_all_packages_and_keeps_memberships(running: Running) -> None:
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("friends")
    await bob.join(group)
    for user in (alice, bob):
        await user.upload(package(1), last_resort=START)
    assert await bob.post("/reset-account") == {}
    await expect(alice.take(bob), 404, 300)
    assert await bob.roles(group) == {"alice": "admin", "bob": "member"}
    assert await bob.take(alice) == package(1)
    await bob.upload(package(2))
    assert await alice.take(bob) == package(2)


@pytest.mark.parametrize(
    ("data", "good"),
    [
        (b"", False),
        (START[:3], False),
        (START, True),
        (START + b"x", True),
        (b"\0\1\0\4 a key package", False),
        (b" " + START, False),
        (START.ljust(16_384, b"x"), True),
        (START.ljust(16_385, b"x"), False),
    ],
    ids=["nothing", "3 bytes", "4 bytes", "5 bytes", "another type", "moved by one", "16 KiB", "16 KiB and one"],
)
@pytest.mark.parametrize("form", ["single", "entries"])
async def test_what_a_key_package_looks_like(running: Running, data: bytes, good: bool, form: str) -> None:
    alice = await running.user("alice")
    single = {"key_package_data": encode(data)}
    body: dict[str, Any] = (
        single if form == "single" else {"entries": [{"data": encode(package(0))}, {"data": encode(data)}]}
    )
    if good:
        await alice.post("/key-packages", **body)
        assert (await taken(alice, alice, len(body.get("entries", [1]))))[-1] == data
        return
    answer = await expect(alice.post("/key-packages", **body), 400, 101 if data else 100)
    field = "key_package_data" if form == "single" else "entries.1.data"
    assert field in answer["errors"]
    await expect(alice.take(alice), 404, 300)


@pytest.mark.parametrize(
    ("entries", "code", "field"),
    [
        ([5], 101, "entries.0"),
        ([None], 101, "entries.0"),
        ([[]], 101, "entries.0"),
        (["x"], 101, "entries.0"),
        ([{}], 100, "entries.0.data"),
        ([{"data": encode(START)}, {"data": 5}], 101, "entries.1.data"),
        ([{"data": None}], 100, "entries.0.data"),
        ([{"data": {}}], 101, "entries.0.data"),
        ([{"data": "not base64!"}], 101, "entries.0.data"),
        ([{"data": encode(START), "is_last_resort": 1}], 101, "entries.0.is_last_resort"),
        ([{"data": encode(START), "is_last_resort": "true"}], 101, "entries.0.is_last_resort"),
        ([{"data": encode(START), "datum": ""}], 101, "entries.0.datum"),
        ({"data": encode(START)}, 101, "entries"),
        (5, 101, "entries"),
        ("x", 101, "entries"),
        ([], 100, "entries"),
        (None, 100, "entries"),
    ],
    ids=str,
)
async def test_what_is_wrong_inside_entries_is_named_by_its_place(
    running: Running, entries: Any, code: int, field: str
) -> None:
    alice = await running.user("alice")
    answer = await expect(alice.post("/key-packages", entries=entries), 400, code)
    assert list(answer["errors"]) == [field]
    assert all(isinstance(each, str) for each in answer["errors"][field])
    await expect(alice.take(alice), 404, 300)


async def test_an_upload_is_all_or_nothing(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    alice = await running.user("alice")
    await alice.upload(package(1), last_resort=package(2))
    add, calls = key_packages.add, iter(range(10))

    def fail_at_the_third(*values: Any, **named: Any) -> None:
        add(*values, **named)
        if next(calls) == 2:
            raise RuntimeError

    with monkeypatch.context() as patched:
        patched.setattr(key_packages, "add", fail_at_the_third)
        await expect(alice.upload(package(3), package(4), last_resort=package(5)), 500, 0)
    bad = [{"data": encode(package(3))}, {"data": encode(b"bad")}]
    await expect(alice.post("/key-packages", entries=bad, signing_key_fingerprint="ab"), 400, 101)
    assert (await alice.get("/me"))["signing_key_fingerprint"] == ""
    assert await taken(alice, alice, 2) == [package(1), package(2)]


async def test_a_package_in_both_forms_is_one(running: Running) -> None:
    alice, bob = await running.users("alice", "bob")
    single, entries = encode(package(1)), [{"data": encode(package(1))}, {"data": encode(package(2))}]
    await bob.post("/key-packages", key_package_data=single, entries=entries)
    await bob.post("/key-packages", key_package_data=encode(package(3)))
    assert await taken(alice, bob, 3) == [package(1), package(2), package(3)]
    await expect(alice.take(bob), 404, 300)


async def test_a_package_that_is_uploaded_again_is_handed_out_once(running: Running) -> None:
    """A client whose answer was lost sends the same request again."""
    alice, bob, carol = await running.users("alice", "bob", "carol")
    for _ in range(2):
        await bob.upload(package(1), package(2), package(3), last_resort=START)
    await bob.upload(package(4), package(2), package(4))
    await carol.upload(package(1))
    assert await taken(alice, bob, 6) == [*(package(number) for number in range(1, 5)), START, START]
    assert await alice.take(carol) == package(1), "what others have is theirs"


async def test_packages_that_are_uploaded_again_push_none_out(running: Running) -> None:
    alice, bob = await running.users("alice", "bob")
    packages = [package(number) for number in range(10)]
    await bob.upload(*packages)
    await bob.upload(*packages[5:])
    assert await taken(alice, bob, 10) == packages
    assert await running.query("SELECT count(*) FROM bodies") == [(0,)]


async def test_of_more_than_are_kept_the_newest_stay_when_all_are_uploaded_again(running: Running) -> None:
    alice, bob = await running.users("alice", "bob")
    packages = [package(number) for number in range(25)]
    for _ in range(2):
        await bob.upload(*packages)
    assert await taken(alice, bob, 10) == packages[15:]


async def test_a_fingerprint_is_shown_of_oneself_and_of_members(running: Running) -> None:
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("friends")
    await bob.join(group)
    await alice.post("/key-packages", key_package_data=encode(START), signing_key_fingerprint="AB:cd \u2603")
    await alice.upload(package(1))
    assert (await alice.get("/me"))["signing_key_fingerprint"] == "AB:cd \u2603", "kept where none is given"
    assert (await bob.get("/users/alice"))["signing_key_fingerprint"] == "AB:cd \u2603"
    members = (await bob.get("/groups"))["groups"][0]["members"]
    assert [each["signing_key_fingerprint"] for each in members] == ["AB:cd \u2603", ""]
    [admin] = (await bob.get(f"/groups/{group}/admins"))["admins"]
    assert admin["signing_key_fingerprint"] == "AB:cd \u2603"
