"""What an operator may do from the page: only if it is allowed, only by its own forms, once, and noted."""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import FormData
from aiohttp.test_utils import TestServer
from yarl import URL

from conclave import app_keys
from conclave.admin.access import Guard
from conclave.admin.app import create_admin_app
from conclave.admin.page import routes
from conclave.config.admin import AdminConfig
from conclave.config.load import ConfigError, parse_config
from conclave.config.settings import Config
from conclave.health.parts import Phase
from conclave.store.engine.faults import StoreFullError
from spark.report import Report
from tests.admin.conftest import Operators
from tests.admin.test_page import Parsed, page, section
from tests.conftest import Running, StartServer

TOKEN = "0123456789abcdef" * 2
BROUGHT = {"Authorization": f"Bearer {TOKEN}"}
ACTIONS = ("run", "hold", "release", "disable", "enable")


class FakeWorker:
    """Stands for the supervisor of the cleanup worker."""

    def __init__(self) -> None:
        self.runs = 0
        self.counts = 0
        self.report: dict[str, Any] | None = Report("sql", 1, finished_at=2, groups_touched=3, held=4).to_mapping()

    def run_now(self) -> bool:
        self.runs += 1
        return True

    async def count(self) -> dict[str, Any] | None:
        self.counts += 1
        return self.report


class Acting(Operators):
    """The operators' listener of a server, with a worker that only counts what it is told."""

    def __init__(self, running: Running, server: TestServer, worker: FakeWorker) -> None:
        super().__init__(running, server)
        self.worker = worker
        self.health.worker = 1

    async def ticket(self, action: str) -> str:
        """Return the ticket of a form on the page."""
        html = await page(self, **BROUGHT)
        found = re.search(rf'action="{action}"><input type="hidden" name="ticket" value="([^"]+)"', html)
        assert found, action
        return found[1]

    async def send(self, action: str, ticket: str | None = None, /, **fields: str) -> tuple[int, str]:
        """Send a form as a browser does; ``Origin`` and other headers are fields that begin with H_."""
        headers = {name[2:].replace("_", "-"): fields.pop(name) for name in list(fields) if name.startswith("H_")}
        own = f"http://127.0.0.1:{self.server.port}"
        headers = {"Origin": own, "Sec-Fetch-Site": "same-origin", **BROUGHT, **headers}
        url = URL(f"{own}{action}")
        form = FormData({"ticket": await self.ticket(action) if ticket is None else ticket, **fields})
        async with self.running.http.post(url, data=form, headers=headers) as response:
            assert response.headers["Cache-Control"] == "no-store"
            html = await response.text()
            return response.status, " ".join(Parsed(html).text.split())

    async def audited(self) -> list[tuple[Any, ...]]:
        return await self.running.query("SELECT action, actor, subject FROM audit ORDER BY audit_id")


@pytest.fixture
def allows() -> bool:
    return True


@pytest.fixture
async def acting(config: Config, start_server: StartServer, allows: bool) -> AsyncIterator[Acting]:
    config = replace(config, admin=AdminConfig(token=TOKEN, allow_actions=allows))
    async with start_server(config) as running:
        worker = FakeWorker()
        server = TestServer(create_admin_app(running.app, Guard(config.admin), worker))
        await server.start_server()
        try:
            yield Acting(running, server, worker)
        finally:
            await server.close()


@pytest.mark.parametrize("allows", [False])
async def test_without_allow_actions_there_are_no_forms_but_the_dry_run(acting: Acting) -> None:
    await acting.running.user("alice")
    html = await page(acting, **BROUGHT)
    assert [attrs["action"] for tag, attrs in Parsed(html).tags if tag == "form"] == ["/dry-run"]
    ticket = await acting.ticket("/dry-run")
    for action in ACTIONS:
        status, text = await acting.send(
            f"/actions/{action}", ticket, name="alice", covers="user", reason="x", hold="1"
        )
        assert status == 403
        assert "allow_actions is false" in text
    assert await acting.audited() == []
    assert acting.worker.runs == 0


def test_actions_need_a_token() -> None:
    with pytest.raises(ConfigError, match=r"admin\.allow_actions: .* set admin\.token"):
        parse_config("[admin]\nallow_actions = true", "x")
    for more in (f'token = "{TOKEN}"', 'token_file = "/a/token"'):
        assert parse_config(f"[admin]\nallow_actions = true\n{more}", "x").admin.allow_actions


async def test_a_dry_run_shows_counts(acting: Acting) -> None:
    status, text = await acting.send("/dry-run")
    assert status == 200
    assert "Nothing was changed" in text
    assert "In 3 groups" in text
    assert "keep 4 messages" in text
    acting.worker.report = {"error": "the clock <b>"}
    assert "the clock <b>" in (await acting.send("/dry-run"))[1]
    acting.worker.report = None
    status, text = await acting.send("/dry-run")
    assert (status, "there is no cleanup worker now" in text) == (409, True)
    assert await acting.audited() == []


async def test_cleanup_runs_now(acting: Acting) -> None:
    status, text = await acting.send("/actions/run")
    assert (status, acting.worker.runs) == (200, 1)
    assert "Cleanup runs now." in text
    assert await acting.audited() == [("cleanup_ordered", "operator page at 127.0.0.1", "")]
    acting.health.worker = None
    status, text = await acting.send("/actions/run")
    assert (status, acting.worker.runs) == (409, 1)
    assert len(await acting.audited()) == 1


async def test_cleanup_that_is_asleep_runs_now_and_the_page_says_that_it_is(acting: Acting) -> None:
    health = acting.health
    health.worker, health.is_asleep, health.next_run_at = None, True, time.time() + 3000
    assert "in 50min; until then the worker is asleep" in " ".join(Parsed(await page(acting, **BROUGHT)).text.split())
    status, text = await acting.send("/actions/run")
    assert (status, acting.worker.runs) == (200, 1)
    assert "Cleanup runs now." in text
    health.is_asleep = False
    shown = " ".join(Parsed(await page(acting, **BROUGHT)).text.split())
    assert "asleep" not in shown


async def test_a_hold_is_added_and_released(acting: Acting) -> None:
    alice = await acting.running.user("alice")
    group = await alice.create_group("friends")
    status, text = await acting.send("/actions/hold", covers="group", name="friends", reason=" <i>why</i> ")
    assert status == 200
    assert f"Hold 1 is in force: it covers all messages of the group friends ({group})." in text
    html = await page(acting, **BROUGHT)
    assert "1 group friends <i>why</i> operator page at 127.0.0.1" in section(html, "holds")
    assert (await acting.send("/actions/hold", covers="user", name=alice.user_id, reason="x"))[0] == 200
    status, text = await acting.send("/actions/release", hold="1")
    assert (status, "Hold 1 is released" in text) == (200, True)
    status, text = await acting.send("/actions/release", hold="1")
    assert (status, "no such hold: 1" in text) == (404, True)
    actor = "operator page at 127.0.0.1"
    expected = [("group_held", actor, "friends"), ("user_held", actor, "alice"), ("group_released", actor, "friends")]
    assert await acting.audited() == expected


async def test_a_user_is_disabled_and_enabled(acting: Acting) -> None:
    alice = await acting.running.user("alice")
    await alice.get("/groups")
    status, text = await acting.send("/actions/disable", name="alice")
    assert (status, "alice is disabled, and logged out." in text) == (200, True)
    async with acting.running.http.get(f"{alice.url}/api/v1/groups", headers={"Authorization": alice.token}) as refused:
        assert refused.status == 401
    assert (await acting.send("/actions/enable", name=alice.user_id))[0] == 200
    await alice.login("alice")
    actions = [row[0] for row in await acting.audited()]
    assert actions == ["account_disabled", "account_enabled"]


@pytest.mark.parametrize(
    ("action", "fields", "status"),
    [
        ("hold", {"covers": "group", "name": "nothing", "reason": "x"}, 404),
        ("hold", {"covers": "user", "name": "nobody", "reason": "x"}, 404),
        ("hold", {"covers": "group", "name": "friends", "reason": "  "}, 400),
        ("hold", {"covers": "group", "name": "friends", "reason": "x" * 1001}, 400),
        ("hold", {"covers": "everything", "name": "friends", "reason": "x"}, 400),
        ("hold", {}, 400),
        ("release", {"hold": "-1"}, 400),
        ("release", {"hold": "9" * 19}, 400),
        ("release", {"hold": "\u0661"}, 400),
        ("release", {"hold": "7"}, 404),
        ("disable", {"name": "nobody"}, 404),
        ("disable", {}, 404),
        ("enable", {"name": "<script>"}, 404),
    ],
)
async def test_what_cannot_be_done_is_told_and_not_noted(
    acting: Acting, action: str, fields: dict[str, str], status: int
) -> None:
    alice = await acting.running.user("alice")
    await alice.create_group("friends")
    found, text = await acting.send(f"/actions/{action}", **fields)
    assert (found, "Nothing was done" in text) == (status, True), text
    assert await acting.audited() == []


async def test_an_unknown_action_and_another_method_do_nothing(acting: Acting) -> None:
    assert (await acting.send("/actions/delete", await acting.ticket("/actions/run")))[0] == 400
    for path in ("/actions/run", "/dry-run"):
        assert (await acting.ask(path, **BROUGHT))[0] == 405
    assert acting.worker.runs == 0


@pytest.mark.parametrize(
    "headers",
    [
        {"H_Origin": "http://evil.example.org"},
        {"H_Origin": "null"},
        {"H_Origin": "http://127.0.0.1:1"},
        {"H_Origin": "http://["},
        {"H_Origin": "http://127.0.0.1.evil.example.org"},
        {"H_Sec_Fetch_Site": "cross-site"},
        {"H_Sec_Fetch_Site": "same-site"},
        {"H_Sec_Fetch_Site": "none"},
        {"H_Content_Type": "text/plain"},
        {"H_Content_Type": "application/x-www-form-urlencoded; charset=utf-7"},
        {"H_Host": "evil.example.org"},
        {"H_Authorization": "Bearer wrong"},
    ],
)
async def test_a_page_from_elsewhere_can_do_nothing(acting: Acting, headers: dict[str, str]) -> None:
    ticket = await acting.ticket("/actions/run")
    for action in ("/actions/run", "/dry-run"):
        status, _ = await acting.send(action, ticket, **headers)
        assert status in (400, 401, 403, 421), headers
    assert (acting.worker.runs, acting.worker.counts, await acting.audited()) == (0, 0, [])


@pytest.mark.parametrize("ticket", ["", ".", "1.a.b", "\u20ac", "1.aaaaaaaaaaaaaaaaaaaaaa." + "0" * 64])
async def test_a_forged_ticket_is_refused(acting: Acting, ticket: str) -> None:
    status, text = await acting.send("/actions/run", ticket)
    assert (status, acting.worker.runs) == (403, 0)
    assert "reload the page" in text


def test_used_tickets_take_bounded_memory_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a token whoever can log in to the machine may ask for a dry run as often as they like."""
    monkeypatch.setattr(routes, "MAX_REMEMBERED", 3)
    made = routes.FormTokens()
    first, *others = (made.make() for _ in range(4))
    for each in (first, *others):
        made.redeem(each)
        with pytest.raises(routes.FormTokenError, match="only once"):
            made.redeem(each)
    for each in others:
        with pytest.raises(routes.FormTokenError, match="only once"):
            made.redeem(each)
    made.redeem(first)


async def test_a_ticket_of_before_a_restart_or_of_yesterday_is_refused(
    acting: Acting, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await acting.send("/actions/run", routes.FormTokens().make()))[0] == 403
    ticket = await acting.ticket("/actions/run")
    monkeypatch.setattr(routes, "TOKEN_SECONDS", -2.0)
    status, text = await acting.send("/actions/run", ticket)
    assert (status, "too old" in text) == (403, True)


async def test_the_same_form_twice_at_once_acts_once(acting: Acting) -> None:
    alice = await acting.running.user("alice")
    await alice.create_group("friends")
    ticket = await acting.ticket("/actions/hold")
    fields = {"covers": "group", "name": "friends", "reason": "x"}
    sent = await asyncio.gather(*(acting.send("/actions/hold", ticket, **fields) for _ in range(5)))
    assert sorted(status for status, _ in sent) == [200, 403, 403, 403, 403]
    assert await acting.running.query("SELECT count(*) FROM holds") == [(1,)]


async def test_two_operators_release_a_hold_at_once(acting: Acting) -> None:
    alice = await acting.running.user("alice")
    await alice.create_group("friends")
    await acting.send("/actions/hold", covers="group", name="friends", reason="x")
    both = [await acting.ticket("/actions/release") for _ in range(2)]
    sent = await asyncio.gather(*(acting.send("/actions/release", ticket, hold="1") for ticket in both))
    assert sorted(status for status, _ in sent) == [200, 404]
    assert [row[0] for row in await acting.audited()] == ["group_held", "group_released"]


async def test_a_form_in_an_unknown_charset_is_refused(acting: Acting) -> None:
    header = "application/x-www-form-urlencoded; charset=nothing"
    assert (await acting.send("/actions/run", H_Content_Type=header))[0] == 400
    assert acting.worker.runs == 0


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.STOPPING])
async def test_while_the_server_does_not_serve_nothing_is_done(acting: Acting, phase: Phase) -> None:
    """The listener answers before the server serves, and after."""
    sent = {action: await acting.ticket(action) for action in ("/actions/run", "/dry-run")}
    acting.health.phase = phase
    acting.snapshot.expire()
    assert "could not be updated" in section(await page(acting, **BROUGHT), "health")
    for action, ticket in sent.items():
        status, text = await acting.send(action, ticket)
        assert (status, "is starting or stopping" in text) == (503, True)
    acting.health.phase = Phase.SERVING
    assert (await acting.send("/actions/run", sent["/actions/run"]))[0] == 200, "the ticket still counts"


async def test_a_store_that_is_full_is_told(acting: Acting, monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(*_: Any) -> None:
        raise StoreFullError("/var/lib/conclave: No space left on device")

    await acting.running.user("alice")
    monkeypatch.setattr(acting.running.app[app_keys.CLOCK_WATCH], "write", full)
    status, text = await acting.send("/actions/disable", name="alice")
    assert (status, "No space left on device" in text, "Nothing was done" in text) == (503, True, True)


async def test_a_wrong_clock_is_told(acting: Acting) -> None:
    alice = await acting.running.user("alice")
    await alice.create_group("friends")
    acting.running.clock.set_wrong(700)
    status, text = await acting.send("/actions/hold", covers="group", name="friends", reason="x")
    assert (status, "Hold 1 is in force" in text) == (200, True), "a hold deletes nothing, so it need not wait"
