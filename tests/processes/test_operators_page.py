"""The operators' page in a real browser: of a server with 10,000 groups, light and dark, on a phone; and its forms."""

import asyncio
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from bench import stores
from conclave.retention import holds
from conclave.store.engine import sqlite
from conclave.store.views import runs
from conclave.store.views.runs import Run
from tests.support import browser
from tests.support.browser import Tab, browsing
from tests.support.server import ServerProcess, waiting

GROUPS, DAYS = 10_000, 86_400
TOKEN = "0123456789abcdef" * 2
PICTURES = "CONCLAVE_PICTURES"
"""The test that draws the pictures of the docs does so only where this is set: it changes the tree."""

DRAWN = Path(__file__).parents[2] / "docs" / "pictures"
SHOWN = (("light", 1000), ("dark", 360))
"""The pictures that the docs show."""

MARKUP = '<script>document.title="owned"</script>'
SQL = '[cleanup]\nengine = "sql"\n'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """10,000 groups, some with what waits for a fetch, a history of runs, and a hold with markup for its reason."""
    browser.found()
    folder = tmp_path_factory.mktemp("page")
    now = int(time.time())
    shape = stores.Shape(users=100, groups=GROUPS, members=2, expiries=(-1, 0, 7 * DAYS, 30 * DAYS, 90 * DAYS))
    stores.build(folder, "sql", now, shape, [now - 5 * DAYS, now])
    with closing(sqlite.connect(folder / "conclave.db")) as connection, sqlite.write_transaction(connection):
        _fill(connection, now)
    settings = f'database_path = "{folder}/conclave.db"\n{SQL}'
    with ServerProcess(folder, settings, admin=f'token = "{TOKEN}"\nallow_actions = true') as started:
        started.wait_for("cleanup_run")
        yield started


def _fill(connection: sqlite3.Connection, now: int) -> None:
    connection.execute("UPDATE members SET watermark = 2 WHERE group_key % 50 != 2")  # the others' second members wait
    holds.add(connection, 1, b"1" * 16, "group0", MARKUP, "operator conclave", now)
    for ago in range(48, 0, -1):
        deleted = {"expired": 400 + 37 * (ago % 7), "fetched": 120 + 11 * (ago % 5), "deleted_account": 9 * (ago % 3)}
        began = now - ago * 3600
        done = Run("sql", began, began + 2, "ok", "", deleted=deleted, bytes_returned=4096 * ago)
        runs.add(connection, replace(done, cpu_seconds=0.4, lock_seconds=0.1, longest_lock_seconds=0.009))


@pytest.fixture
async def tab(server: ServerProcess, tmp_path: Path) -> AsyncIterator[Tab]:
    async with browsing(tmp_path, TOKEN) as opened:
        yield opened


def address(server: ServerProcess) -> str:
    return str(server.wait_for("listening")["admin_url"])


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1000, 1080), (360, 1080)])
async def test_the_page_is_readable(server: ServerProcess, tab: Tab, scheme: str, width: int, height: int) -> None:
    await tab.look(width, height, scheme)
    await tab.open(f"{address(server)}/")
    text = await tab.run("document.body.innerText")
    assert "Everything works" in text
    assert f"{GROUPS:,} groups, 100 users" in text
    assert "In 200 groups that delete messages after all members have fetched them" in text
    assert MARKUP in text, "as text"
    assert await tab.run("document.title") == "Conclave: operations"
    assert await tab.run("document.documentElement.scrollWidth") <= width, "nothing sticks out"
    assert await tab.run("document.querySelectorAll('svg.chart rect').length") > 40
    assert await tab.run("document.querySelector('svg.chart desc').textContent.includes('expired')")
    ground = await tab.run("getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(250, 250, 248)", "dark": "rgb(21, 22, 26)"}[scheme], "the style counts"
    assert tab.complaints == []
    assert {url.partition("?")[0] for url in tab.asked if not url.startswith("data:")} == {
        f"{address(server)}/{name}" for name in ("", "page.css", "page.js")
    }
    if os.environ.get(PICTURES) and (scheme, width) in SHOWN:
        _draw(await tab.picture(), f"operators-page-{scheme}-{width}.png")


def _draw(picture: bytes, name: str) -> None:
    assert len(picture) < 150_000, "pictures are small"
    DRAWN.mkdir(exist_ok=True)
    (DRAWN / name).write_bytes(picture)


async def test_it_renews_itself_and_keeps_what_is_unfolded(server: ServerProcess, tab: Tab) -> None:
    await tab.open(f"{address(server)}/")
    await tab.run("document.querySelector('#runs').open = true; document.querySelector('header p').textContent = 'old'")
    await tab.run("document.querySelector('#hold-form input[name=reason]').value = 'half written'")
    await tab.run("renew()")
    assert "version" in await tab.run("document.querySelector('header p').textContent")
    assert await tab.run("document.querySelector('#runs').open") is True
    assert await tab.run("document.querySelector('#hold-form input[name=reason]').value") == "half written"
    assert tab.complaints == []


async def test_its_forms_work_in_a_browser(server: ServerProcess, tab: Tab) -> None:
    page = f"{address(server)}/"
    await tab.open(page)
    await tab.click("form[action='/dry-run'] button")
    text = await tab.run("document.body.innerText")
    assert "Nothing was changed." in text
    assert "expired" in text
    before = sum(event["event"] == "cleanup_run" for event in server.events())
    await tab.open(page)
    await tab.click("form[action='/actions/run'] button")
    assert "Cleanup runs now." in await tab.run("document.body.innerText")
    for _ in waiting("another run"):
        if sum(event["event"] == "cleanup_run" for event in server.events()) > before:
            break
        await asyncio.sleep(0)
    with closing(sqlite.connect(server.folder / "conclave.db", readonly=True)) as connection:
        [row] = connection.execute("SELECT actor, subject FROM audit WHERE action = 'cleanup_ordered'").fetchall()
    assert tuple(row) == ("operator page at 127.0.0.1", "")
    assert tab.complaints == []
