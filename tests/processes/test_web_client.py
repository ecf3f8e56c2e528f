"""A web page in a real browser that uses a server of another origin."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.support import browser
from tests.support.browser import Tab, browsing
from tests.support.proxies import KINDS, proxy
from tests.support.server import ServerProcess

PROTOCOL = Path(__file__).parents[2] / "docs" / "protocol.md"

PAGE = """
const api = SERVER + "/api/v1";
async function call(path, body, token, method) {
  const headers = { "Content-Type": "application/json" };
  if (token) headers.Authorization = `Bearer ${token}`;
  const asked = { method: method ?? (body ? "POST" : "GET"), headers, body: body && JSON.stringify(body) };
  const answer = await fetch(api + path, asked);
  return { status: answer.status, id: answer.headers.get("X-Request-ID"), date: answer.headers.get("Date"),
    body: await answer.json() };
}
async function member(name) {
  const account = { username: name, password: "correct horse" };
  await call("/register", account);
  return (await call("/login", account)).body.token;
}
"""

CONVERSATION = """
(async () => {
  const ann = await member("ann"), ben = await member("ben");
  const group = (await call("/groups", { group_name: "news" }, ann)).body.group_id;
  await call(`/groups/${group}/commit`, { group_info: btoa("group info") }, ann);
  await call(`/groups/${group}`, { visibility: "public" }, ann, "PATCH");
  await call(`/groups/${group}/join`, {}, ben);
  let number = 0;
  const ended = listen(SERVER, ben, (name, data) => { if (name === "new_message") number = data.sequence_num; });
  ended.catch(() => { number = -1; });
  while (!number) { // what is sent before the stream is open is in no event
    await call(`/groups/${group}/messages`, { mls_message: btoa("hello") }, ann);
    await new Promise((go) => setTimeout(go, 100));
  }
  const page = await call(`/groups/${group}/messages?after=0`, undefined, ben);
  const refused = await call("/nothing", undefined, ben), over = await call("/me", undefined, "ab".repeat(32));
  return { number, text: atob(page.body.messages[0].mls_message), id: page.id, date: page.date,
    refused: [refused.status, refused.body.error_code, refused.id], over: [over.status, over.body.error_code] };
})()
"""


@asynccontextmanager
async def pages() -> AsyncIterator[str]:
    """Serve an empty page while the block lasts, and yield its origin."""

    async def empty(_: web.Request) -> web.Response:
        return web.Response(text="<!DOCTYPE html><title>A client</title>", content_type="text/html")

    app = web.Application()
    app.router.add_get("/", empty)
    server = TestServer(app)
    await server.start_server()
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        await server.close()


def settings(origin: str) -> str:
    return f'[web]\nallowed_origins = ["{origin}"]\n[cleanup]\nengine = "sql"\ndisk_reserve = "0"\n'


async def opened(tab: Tab, origin: str, server: str) -> None:
    """Have the browser show a page of ``origin``, which has the functions of the docs and of this test."""
    [snippet] = re.findall(r"^```js\n(.*?)^```$", PROTOCOL.read_text(), flags=re.MULTILINE | re.DOTALL)
    await tab.open(origin)
    await tab.run(f'var SERVER = "{server}";\n{snippet}\n{PAGE}')


def assert_talked(told: dict[str, Any]) -> None:
    assert told["number"] >= 1, "by an event"
    assert told["text"] == "hello"
    assert told["date"]
    assert len(told["id"]) == 32
    assert told["refused"][:2] == [404, 300]
    assert told["refused"][2] != told["id"]
    assert told["over"] == [401, 202]


async def test_a_page_of_an_allowed_origin_talks_and_reads_the_event_stream(tmp_path: Path) -> None:
    browser.found()
    async with pages() as origin, pages() as other:
        with ServerProcess(tmp_path, settings(origin)) as server:
            async with browsing(tmp_path) as tab:
                await opened(tab, origin, server.url)
                assert_talked(await tab.run(CONVERSATION))
                await opened(tab, other, server.url)
                assert await tab.run("fetch(api + '/docs').then(() => 'read', () => 'hidden')") == "hidden"
                assert await tab.run("member('cleo').then(() => 'read', () => 'hidden')") == "hidden"
                await opened(tab, origin, server.url)
                answer = "call('/login', { username: 'cleo', password: 'correct horse' })"
                assert await tab.run(f"{answer}.then((told) => told.status)") == 401, "no page of another made it"


@pytest.mark.parametrize("kind", KINDS)
async def test_it_does_so_through_a_proxy(tmp_path: Path, kind: str) -> None:
    browser.found()
    (tmp_path / "server").mkdir()
    async with pages() as origin:
        with (
            ServerProcess(tmp_path / "server", settings(origin)) as server,
            proxy(kind, tmp_path / kind, server.url) as front,
        ):
            async with browsing(tmp_path, flags=("--ignore-certificate-errors",)) as tab:
                await opened(tab, origin, front.url)
                assert_talked(await tab.run(CONVERSATION))
