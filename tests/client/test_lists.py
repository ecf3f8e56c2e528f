"""The library reads lists of any length, a page at a time."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from conclave import app_keys
from conclave.client import AnswerError, Client, Format, InputError
from conclave.client.calls import caller, groups, invites
from conclave.client.errors import AnswerTooLongError
from tests.conftest import Running
from tests.support.client import PASSWORD
from tests.support.lists import CASES, Scene

Ask = Callable[[Client, UUID], Any]

ASK: dict[str, tuple[Ask, str]] = {
    "own groups": (lambda client, _: client.groups(), "group_id"),
    "public groups": (lambda client, _: client.public_groups("row"), "group_id"),
    "own invites": (lambda client, _: client.invites(), "invite_id"),
    "invites of a group": (lambda client, group: client.invites_of(group), "invite_id"),
    "welcomes": (lambda client, _: client.welcomes(), "welcome_id"),
    "bans": (lambda client, group: client.banned(group), "user_id"),
    "admins": (lambda client, group: client.admins(group), "user_id"),
    "sessions": (lambda client, _: client.sessions(), "id"),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("written_in", Format)
async def test_a_list_of_many_pages_is_read_to_its_end(
    running: Running, monkeypatch: pytest.MonkeyPatch, name: str, written_in: Format
) -> None:
    monkeypatch.setattr(groups, "GROUP_PAGE_SIZE", 7)
    monkeypatch.setattr(invites, "WELCOME_PAGE_SIZE", 7)
    monkeypatch.setattr(caller, "PAGE_SIZE", 7)
    ask, id_name = ASK[name]
    async with Client(running.url, written_in=written_in) as client:
        await client.register("alice", PASSWORD)
        await client.login("alice", PASSWORD)
        group = await client.create_group("club")
        [(key,)] = await running.query("SELECT group_key FROM groups")
        scene = Scene(client.session.user_id.bytes, key, group.bytes, running.clock.now())
        names = [f"row_{number:03}" for number in range(30)]
        added = await running.app[app_keys.STORE].write(CASES[name].add, scene, names)
        found = [getattr(each, id_name).bytes for each in await ask(client, group)]
    assert set(added) <= set(found)
    assert len(found) == len(set(found)) <= 31


@asynccontextmanager
async def paging(pages: Sequence[web.Response | dict[str, Any]]) -> AsyncIterator[tuple[list[Any], Client]]:
    """Start what answers with ``pages``, one after the other, and a client; yield the queries, and the client."""
    asked: list[Any] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(dict(request.query))
        page = pages[min(len(asked), len(pages)) - 1]
        return page if isinstance(page, web.Response) else web.json_response(page)

    app = web.Application()
    app.router.add_route("GET", "/{rest:.*}", answer)
    async with AsyncExitStack() as stack:
        server = TestServer(app)
        await server.start_server()
        stack.push_async_callback(server.close)
        yield asked, await stack.enter_async_context(Client(str(server.make_url("/"))))


def page(ids: Sequence[UUID], *, more: bool) -> dict[str, Any]:
    shown = {"group_name": "g", "alias": "", "member_count": 1}
    return {"groups": [{"group_id": str(each), **shown} for each in ids], "more": more}


def gone(code: int = 101) -> web.Response:
    values = {"message": "begin again", "error_code": code, "error": "x", "errors": {}}
    return web.json_response(values, status=400)


async def test_reading_begins_again_when_the_last_of_a_page_is_gone() -> None:
    first, second, third = uuid4(), uuid4(), uuid4()
    pages: list[web.Response | dict[str, Any]] = [
        page([first, second], more=True),
        gone(),
        page([first], more=True),
        page([third], more=False),
    ]
    async with paging(pages) as (asked, client):
        assert [each.group_id for each in await client.public_groups()] == [first, third]
    assert [each.get("after") for each in asked] == [None, str(second), None, str(first)]


async def test_an_older_server_that_knows_no_pages_gives_all_at_once() -> None:
    ids = [uuid4() for _ in range(5)]
    old = page(ids, more=False)
    del old["more"]
    async with paging([old]) as (asked, client):
        assert [each.group_id for each in await client.public_groups()] == ids
    assert len(asked) == 1


async def test_a_refusal_of_the_first_page_is_told() -> None:
    async with paging([gone()]) as (_, client):
        with pytest.raises(InputError):
            await client.public_groups()


async def test_a_list_without_an_end_is_not_read_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    same = page([uuid4()], more=True)
    async with paging([same]) as (asked, client):
        with pytest.raises(AnswerError):
            await client.public_groups()
        assert len(asked) == 2
    async with paging([page([], more=True)]) as (_, client):
        with pytest.raises(AnswerError):
            await client.public_groups()
    pages: list[web.Response | dict[str, Any]] = []
    for _ in range(30):
        pages += [page([uuid4()], more=True), gone()]
    async with paging(pages) as (_, client):
        with pytest.raises(InputError):
            await client.public_groups()
    monkeypatch.setattr(caller, "MAX_PAGES", 5)
    async with paging([page([uuid4()], more=True) for _ in range(9)]) as (asked, client):
        with pytest.raises(AnswerTooLongError):
            await client.public_groups()
        assert len(asked) == 5
