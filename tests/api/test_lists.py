"""Lists: their pages, and how a whole one is written while it is read."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from uuid import UUID, uuid4

import pytest
from aiohttp import ClientPayloadError

from conclave import app_keys
from conclave.store import bodies
from conclave.store.resources import own_groups, welcomes
from conclave.wire import handover, lists, pace
from tests.conftest import Running
from tests.support.client import Client, RefusedError, expect
from tests.support.lists import CASES, Case, Scene, add_members, fill, remove, scene_of
from tests.support.protobuf import ProtobufClient, decode
from tests.support.server import PATIENCE, until
from tests.support.slow import raw

KIB = 1024
ENDED = b"\r\n0\r\n\r\n"
"""How a body in chunks ends that is whole."""

each_list = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
both_formats = pytest.mark.parametrize("kind", [Client, ProtobufClient])


@pytest.fixture
def in_small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have lists of some rows be too long to be answered whole."""
    monkeypatch.setattr(lists, "MAX_WHOLE_BYTES", 3 * KIB)
    monkeypatch.setattr(lists, "CHUNK_BYTES", KIB)
    monkeypatch.setattr(lists, "MAX_INLINE_BYTES", 700)


async def listed(
    running: Running, case: Case, kind: type[Client], count: int
) -> tuple[Client, Scene, list[bytes], Callable[..., Awaitable[dict[str, Any]]]]:
    """Return a user, the scene, all ids on the list in their order, and what asks for the list."""
    alice = await kind.register(running.http, running.url, "alice")
    scene = await scene_of(running, alice)
    await fill(running, case, scene, [f"row_{number:03}" for number in range(count)])

    # Sessions are listed in JSON whatever was asked for.
    asker = Client(running.http, running.url, alice.token) if case.field == "sessions" else alice

    async def ask(**query: Any) -> dict[str, Any]:
        return await asker.get(scene.path(case.path), **query)

    return alice, scene, case.ids(await ask()), ask


async def paged(case: Case, ask: Callable[..., Awaitable[dict[str, Any]]], limit: int) -> AsyncIterator[list[bytes]]:
    """Yield the pages of a list."""
    after: dict[str, str] = {}
    while True:
        page = await ask(limit=limit, **after)
        assert set(page) == {case.field, "more"}
        yield case.ids(page)
        if not page["more"]:
            return
        after = {"after": page[case.field][-1][case.id]}


@each_list
@both_formats
async def test_pages_are_the_list(running: Running, case: Case, kind: type[Client]) -> None:
    _, _, whole, ask = await listed(running, case, kind, 25)
    assert len(whole) >= 25
    for limit in (1, 7, len(whole), 1000, 10**9):
        pages = [page async for page in paged(case, ask, limit)]
        assert [row for page in pages for row in page] == whole
        assert [len(page) for page in pages[:-1]] == [limit] * (len(pages) - 1), "each but the last is full"
        assert 0 < len(pages[-1]) <= limit
    for query in ({"limit": 0}, {"limit": -3}, {"limit": "x"}, {"after": "x"}, {"after": ""}, {"after": str(uuid4())}):
        with pytest.raises(RefusedError) as refused:
            await ask(**query)
        assert (refused.value.status, refused.value.code) == (400, 101)
        if kind is Client or case.field == "sessions":
            assert list(refused.value.body["errors"]) == list(query)


@each_list
@both_formats
async def test_without_parameters_existing_clients_get_all_or_the_first_thousand(
    running: Running, monkeypatch: pytest.MonkeyPatch, case: Case, kind: type[Client]
) -> None:
    monkeypatch.setattr(lists, "MAX_PAGE_ITEMS", 20)
    _, scene, whole, ask = await listed(running, case, kind, 5)
    await fill(running, case, scene, [f"more_{number:03}" for number in range(30)])
    pages = [page async for page in paged(case, ask, 9)]
    answer = await ask()
    expected = [row for page in pages for row in page]
    assert len(expected) == len(whole) + 30
    assert case.ids(answer) == (expected if case.is_complete else expected[:20])
    assert answer["more"] == (not case.is_complete)
    assert len(case.ids(await ask(after=UUID(bytes=expected[3]).hex))) == 20, "a page, since it is asked for one"


@each_list
async def test_what_comes_and_goes_between_pages_moves_nothing_else(running: Running, case: Case) -> None:
    _, scene, before, ask = await listed(running, case, Client, 40)
    chance, gone, seen = random.Random(1), set[bytes](), list[bytes]()
    number = 0
    async for page in paged(case, ask, 4):
        seen += page
        number += 1
        await fill(running, case, scene, [f"a_{number}", f"z_{number}"])
        for each in chance.sample(before[1:], 3):
            if each != page[-1] and each not in gone and each != scene.user_id:
                await remove(running, case, scene, each)
                gone.add(each)
        if number == 30:
            break
    assert len(seen) == len(set(seen))
    assert [each for each in seen if each in before and each not in gone] == [
        each for each in before if each not in gone
    ]


@each_list
@both_formats
async def test_who_goes_on_after_what_is_gone_is_told_to_begin_again(
    running: Running, case: Case, kind: type[Client]
) -> None:
    _, scene, whole, ask = await listed(running, case, kind, 6)
    at = next(each for each in whole[2:] if each != scene.user_id)
    await remove(running, case, scene, at)
    with pytest.raises(RefusedError) as refused:
        await ask(after=str(UUID(bytes=at)))
    assert (refused.value.status, refused.value.code) == (400, 101)
    assert "begin again without `after`" in refused.value.body["message"]


async def test_nobody_goes_on_after_a_row_of_somebody_elses_list(running: Running) -> None:
    """Or they would learn that it is there."""
    alice, bob = await running.users("alice", "bob")
    first, second = await scene_of(running, alice), await scene_of(running, bob, "other")
    for name, case in CASES.items():
        if name == "public groups":
            continue
        [row] = await fill(running, case, first, [f"of_{CASES[name].field}_{name[0]}_{len(name)}"])
        await expect(bob.get(second.path(case.path), after=str(UUID(bytes=row))), 400, 101)


@each_list
@both_formats
@pytest.mark.usefixtures("in_small_chunks")
async def test_a_list_in_chunks_is_the_same_answer(running: Running, case: Case, kind: type[Client]) -> None:
    alice, scene, whole, ask = await listed(running, case, kind, 60)
    path = f"{running.url}/api/v1{scene.path(case.path)}"
    async with running.http.get(path, headers={"Authorization": f"Bearer {alice.token}"}) as response:
        assert "Content-Length" not in response.headers
        await response.read()
    in_chunks = await ask()
    with pytest.MonkeyPatch.context() as usual:
        usual.setattr(lists, "MAX_WHOLE_BYTES", 256 * KIB)
        at_once = await ask()
    if case.field != "sessions":  # their last use may differ
        assert in_chunks == at_once
    assert case.ids(in_chunks) == whole
    assert [row async for page in paged(case, ask, 50) for row in page] == whole, "a page may be long, too"
    async with running.http.head(path, headers={"Authorization": f"Bearer {alice.token}"}) as response:
        assert (response.status, await response.read()) == (200, b"")
    assert (await ask(limit=2))["more"], "the connection goes on"
    await running.settle()
    assert running.app[app_keys.BUDGET].used == 0


async def with_members(running: Running, kind: type[Client], count: int) -> tuple[Client, Scene]:
    alice = await kind.register(running.http, running.url, "alice")
    scene = await scene_of(running, alice)
    await add_members(running, scene, [f"member_{number:04}" for number in range(count)])
    return alice, scene


@both_formats
async def test_a_group_with_very_many_members_comes_with_all_of_them(running: Running, kind: type[Client]) -> None:
    alice, scene = await with_members(running, kind, 3_000)
    await alice.post("/groups", group_name="before_and", alias='","members":[] \\"members":[]')
    small = await scene_of(running, alice, "behind")
    answer = await alice.get("/groups")
    assert [each["group_name"] for each in answer["groups"]] == ["club", "before_and", "behind"]
    assert answer["groups"][1]["alias"] == '","members":[] \\"members":[]'
    assert [len(each["members"]) for each in answer["groups"]] == [3_001, 1, 1]
    rows = await running.query("SELECT username FROM members JOIN users USING (user_id) ORDER BY member_id")
    assert [(each["username"],) for each in answer["groups"][0]["members"]] == rows[:3_001]
    assert answer["groups"][0]["members"][2_000]["alias"] == "alias of member_1999"
    assert (await alice.get("/groups", limit=1))["more"]
    assert (await alice.get("/groups", after=str(UUID(bytes=scene.group_id)), limit=1))["groups"] == [
        answer["groups"][1]
    ]
    assert not (await alice.get("/groups", after=str(UUID(bytes=small.group_id))))["groups"]


@both_formats
async def test_members_may_come_go_and_be_renamed_while_their_group_is_written(
    running: Running, kind: type[Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, _ = await with_members(running, kind, 2_000)
    store = running.app[app_keys.STORE]

    def change(connection: Any) -> None:
        connection.execute("DELETE FROM members WHERE user_id IN (SELECT user_id FROM users WHERE username LIKE '%77')")
        connection.execute("UPDATE users SET alias = ? WHERE username LIKE '%9'", ("\u00e4" * 12,))

    await between_parts(running, monkeypatch, own_groups.members, lambda: store.write(change))
    [group] = (await alice.get("/groups"))["groups"]
    assert group["group_name"] == "club"
    names = [each["username"] for each in group["members"]]
    assert len(names) == len(set(names)) >= 1_981
    assert {f"member_{number:04}" for number in range(2_000) if number % 100 != 77} <= set(names)


async def between_parts(
    running: Running, monkeypatch: pytest.MonkeyPatch, read: Callable[..., Any], happens: Callable[[], Awaitable[Any]]
) -> None:
    """Have ``happens`` take place once, after a part was read by the store's ``read``, before the next one is."""
    module = own_groups if read is own_groups.members else welcomes
    store, was_read, once = running.app[app_keys.STORE], [False], [happens]

    def noted(*args: Any) -> Any:
        was_read[0] = True
        return read(*args)

    original = store.read

    async def racing(fn: Callable[..., Any], *values: Any, **named: Any) -> Any:
        if was_read[0] and once:
            await once.pop()()
        return await original(fn, *values, **named)

    monkeypatch.setattr(module, read.__name__, noted)
    monkeypatch.setattr(store, "read", racing)


async def test_members_who_grow_too_much_break_the_answer_off(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, _ = await with_members(running, ProtobufClient, 2_000)
    store = running.app[app_keys.STORE]

    def change(connection: Any) -> None:
        connection.execute("UPDATE users SET alias = ?", ("\u00e4" * 64,))

    await between_parts(running, monkeypatch, own_groups.members, lambda: store.write(change))
    with pytest.raises(ClientPayloadError):
        await alice.get("/groups")
    assert len((await alice.get("/groups"))["groups"][0]["members"]) == 2_001


async def with_large_welcomes(running: Running, kind: type[Client], count: int, size: int) -> tuple[Client, Scene]:
    """Return a user with welcomes of ``size`` random bytes each."""
    alice = await kind.register(running.http, running.url, "alice")
    scene = await scene_of(running, alice)
    chance = random.Random(size)

    def store(connection: Any) -> None:
        for _ in range(count):
            body = bodies.put(connection, chance.randbytes(size))
            welcomes.add(connection, scene.group_key, scene.user_id, body)

    await running.app[app_keys.STORE].write(store)
    return alice, scene


@both_formats
async def test_large_welcomes_are_complete(running: Running, kind: type[Client]) -> None:
    """They were listed up to 32 MiB, the rest once these were accepted."""
    size = 1000 * KIB + 1
    alice, scene = await with_large_welcomes(running, kind, 36, size)
    await fill(running, CASES["welcomes"], scene, ["small"])
    chance = random.Random(size)
    assert await alice.welcomes() == [*(chance.randbytes(size) for _ in range(36)), b"small" * 9]
    page = await alice.get("/welcomes", limit=2)
    assert (len(page["welcomes"]), page["more"]) == (2, True)
    await running.settle()
    assert running.app[app_keys.BUDGET].used == 0


@both_formats
async def test_a_welcome_that_goes_while_it_is_written_breaks_the_answer_off(
    running: Running, kind: type[Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, _ = await with_large_welcomes(running, kind, 2, 300 * KIB)
    [(welcome,), _] = await running.query("SELECT welcome_id FROM welcomes ORDER BY welcome_key")
    accept = f"/welcomes/{UUID(bytes=welcome)}/accept"
    await between_parts(running, monkeypatch, welcomes.piece_of_body, lambda: alice.post(accept))
    with pytest.raises(ClientPayloadError):
        await alice.get("/welcomes")
    assert len(await alice.welcomes()) == 1


async def broken_off(running: Running, request: bytes, meanwhile: Callable[[], Awaitable[Any]]) -> bytes:
    """Ask for a long list, read a little, let ``meanwhile`` happen, and return what comes: it is no whole answer."""
    async with raw(running, request) as (reader, _):
        got = bytearray(await reader.readexactly(2 * KIB))
        await meanwhile()
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(PATIENCE):
                while some := await reader.read(64 * KIB):
                    got += some
    assert got.startswith(b"HTTP/1.1 200")
    assert not got.endswith(ENDED)
    return bytes(got)


@both_formats
async def test_who_logs_out_in_the_middle_of_a_list_gets_no_more_of_it(running: Running, kind: type[Client]) -> None:
    alice, _ = await with_large_welcomes(running, kind, 30, 1000 * KIB)
    phone = await alice.another("alice")
    for end in (
        lambda: phone.post("/logout"),
        lambda: alice.call("POST", "/change-password", json=NEW_PASSWORD),
    ):
        asker = phone if phone.token else alice
        got = await broken_off(running, asker.raw_get("/welcomes"), end)
        assert len(got) < 20_000 * KIB
        phone.token = ""
    await until(lambda: running.app[app_keys.BUDGET].used == 0)


NEW_PASSWORD = {"current_password": "correct horse", "new_password": "battery staple"}


@pytest.mark.parametrize("name", ["invites of a group", "bans", "admins"])
@pytest.mark.usefixtures("in_small_chunks")
async def test_who_loses_the_role_in_the_middle_of_a_list_gets_no_more_of_it(
    running: Running, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    _, scene, _, ask = await listed(running, case, Client, 60)
    store, reads = running.app[app_keys.STORE], [0]
    original = store.read

    async def racing(fn: Callable[..., Any], *values: Any, **named: Any) -> Any:
        reads[0] += 1
        if reads[0] == 3:
            own = "DELETE FROM members WHERE user_id = ?"
            await store.write(lambda connection: connection.execute(own, (scene.user_id,)))
        return await original(fn, *values, **named)

    monkeypatch.setattr(store, "read", racing)
    with pytest.raises(ClientPayloadError):
        await ask()
    with pytest.raises(RefusedError) as refused:
        await ask()
    assert refused.value.status == 401


async def test_who_speaks_http_1_0_takes_no_part_for_the_whole(running: Running) -> None:
    """There the end of the connection is the end of the answer, so it is reset where that is not the end."""
    alice, _ = await with_large_welcomes(running, ProtobufClient, 8, 1000 * KIB)
    asked = alice.raw_get("/welcomes").replace(b"HTTP/1.1", b"HTTP/1.0")
    async with raw(running, asked) as (reader, _):
        async with asyncio.timeout(PATIENCE):
            _, _, body = (await reader.read()).partition(b"\r\n\r\n")
    assert len(decode("ListPendingWelcomesResponse", body)["welcomes"]) == 8
    async with raw(running, asked) as (reader, _):
        await reader.readexactly(2 * KIB)
        await alice.post("/logout")
        with pytest.raises(ConnectionResetError):
            async with asyncio.timeout(PATIENCE):
                await reader.read()


@both_formats
@pytest.mark.parametrize("what", ["welcomes", "members"])
async def test_slow_readers_hold_little_each_and_starve_nobody(
    running: Running, kind: type[Client], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if what == "welcomes":
        alice, scene = await with_large_welcomes(running, kind, 24, 1000 * KIB)
    else:
        alice, scene = await with_members(running, kind, 3_000)
        monkeypatch.setattr(handover, "UNSENT_BYTES", 4 * KIB)
    bob = await kind.register(running.http, running.url, "bob")
    memory, path = running.app[app_keys.BUDGET], "/welcomes" if what == "welcomes" else "/groups"
    async with contextlib.AsyncExitStack() as stack:
        slow = [await stack.enter_async_context(raw(running, alice.raw_get(path) * 3)) for _ in range(6)]
        for reader, _ in slow:
            assert await reader.readexactly(12) == b"HTTP/1.1 200"
        await until(lambda: memory.used > 0)
        assert memory.used <= 6 * (lists.MAX_WHOLE_BYTES + lists.CHUNK_BYTES)
        for case in CASES.values():
            asker = alice if "group_id" in case.path else bob
            asker = Client(running.http, running.url, bob.token) if case.field == "sessions" else asker
            answer = await asker.get(scene.path(case.path), limit=5)
            assert set(answer) == {case.field, "more"}
        assert await bob.get("/groups") == {"groups": [], "more": False}
    await until(lambda: memory.used == 0)


@both_formats
async def test_who_takes_a_list_slowly_but_takes_it_gets_all_of_it(running: Running, kind: type[Client]) -> None:
    alice, _ = await with_large_welcomes(running, kind, 4, 1000 * KIB)
    got = bytearray()
    async with raw(running, alice.raw_get("/welcomes")) as (reader, _):
        async with asyncio.timeout(PATIENCE):
            while not got.endswith(ENDED):
                got += await reader.read(96 * KIB)
                await asyncio.sleep(0.005)
    assert len(got) > 4_000 * KIB
    assert len(await alice.welcomes()) == 4


async def test_who_takes_nothing_of_a_list_is_cut_off(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    alice, _ = await with_large_welcomes(running, Client, 10, 1000 * KIB)
    monkeypatch.setattr(pace, "WINDOW_SECONDS", 0.3)
    memory = running.app[app_keys.BUDGET]
    async with raw(running, alice.raw_get("/welcomes")) as (reader, _):
        await until(lambda: memory.used > 0)
        await until(lambda: memory.used == 0)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(10_000 * KIB)
