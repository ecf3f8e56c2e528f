"""The operators' page: what it shows, to whom, and what it never runs."""

import asyncio
import base64
import re
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from conclave import app_keys
from conclave.admin.page import snapshot
from conclave.admin.page.routes import POLICY
from conclave.config.admin import AdminConfig
from conclave.config.settings import Config
from conclave.health.parts import HealthPart
from conclave.measures import Requests
from conclave.retention import holds
from conclave.store.views import overview, runs
from conclave.store.views.runs import Run
from conclave.system import certificate
from tests.admin.conftest import Operators, operating_beside
from tests.conftest import StartServer

TOKEN = "0123456789abcdef" * 2
MARKUP = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"
YEAR = 365 * 86_400
DECEIVING = "safe\u202egnp.exe\u200b\x1b[31m"


class Parsed(HTMLParser):
    """The tags of a page, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


async def page(operators: Operators, **headers: str) -> str:
    status, html, response = await operators.ask("/", **headers)
    assert (status, response.content_type, response.charset) == (200, "text/html", "utf-8")
    return str(html)


def section(html: str, anchor: str) -> str:
    """Return the text of a section, its spaces as a browser shows them."""
    found = re.search(rf'<section aria-labelledby="{anchor}">(.*?)</section>', html, re.DOTALL)
    assert found, anchor
    return " ".join(Parsed(re.sub("<d[td]|</t[dh]>", " \\g<0>", found[1])).text.split())


async def test_a_new_server_has_a_page(operators: Operators) -> None:
    html = await page(operators)
    assert "Everything works" in section(html, "health")
    assert "last run none yet" in section(html, "cleanup")
    for anchor, text in (("gone", "No run yet."), ("overdue", "Nothing."), ("waiting", "None."), ("holds", "None.")):
        assert text in section(html, anchor)
    assert "event streams open 0" in section(html, "amounts")
    assert html.count("<form") == 1, "the dry run"


async def test_it_shows_what_an_operator_asks_for(operators: Operators) -> None:
    running = operators.running
    alice, bob = await running.users("alice", "bob")
    group = await alice.create_group("friends", expiry=0)
    await alice.create_group("family", expiry=3600)
    await bob.join(group)
    await bob.send(group)
    for _ in range(2):
        await alice.send(group)
    await alice.fetch(group)
    await running.settle()
    store, now = running.app[app_keys.STORE], running.clock.now()
    bad = Run("sql", now - 7200, now - 7190, "failed", "the disk is full")
    await store.write(runs.add, bad)
    await store.write(runs.add, Run("sql", now - 3660, now - 3659, "ok", "", deleted={}))
    await store.write(runs.add, Run("sql", now - 60, now - 58, "ok", "", deleted={"expired": 40, "fetched": 2}))
    operators.health.set_fault(HealthPart.CLEANUP, "java <b>died</b>")
    html = await page(operators)
    assert "1 part of the server does not work cleanup java <b>died</b>" in section(html, "health")
    assert "Not healthy: cleanup" in section(html, "cleanup")
    assert "42 messages erased" in section(html, "cleanup")
    assert "failed: the disk is full" in section(html, "cleanup")
    gone = section(html, "gone")
    assert "expired: 40" in gone
    assert "fetched: 2" in gone
    assert "Set cleanup_interval to" in section(html, "advice")
    assert "1h (now) 1h" in section(html, "advice")
    assert "2 groups, 2 users" in section(html, "policies")
    for policy in ("1h group 1", "delete-after-fetch group 1"):
        assert policy in section(html, "policies")
    assert f"friends {group} 1 2" in section(html, "waiting")
    assert "family" not in html
    assert "messages sent per second, last minute 0.0" not in section(html, "amounts")


@pytest.mark.parametrize("chosen", [MARKUP, DECEIVING])
async def test_text_that_somebody_has_chosen_is_only_text(operators: Operators, chosen: str) -> None:
    """Names of groups, reasons of holds, errors: whatever is written to the store."""
    running = operators.running
    alice = await running.user("alice")
    await alice.create_group("friends")
    store, now = running.app[app_keys.STORE], running.clock.now()
    await store.write(holds.add, 1, b"1" * 16, chosen, chosen, chosen, now)
    await store.write(runs.add, Run("sql", now, now, "failed", chosen, job=chosen))
    operators.health.set_fault(HealthPart.CLEANUP, chosen)
    html = await page(operators)
    parsed = Parsed(html)
    assert [attrs for tag, attrs in parsed.tags if tag == "script"] == [{"src": "/page.js", "defer": None}]
    assert not [tag for tag, _ in parsed.tags if tag in ("img", "iframe", "object", "style", "base")]
    assert not [name for _, attrs in parsed.tags for name in attrs if name.startswith("on") or name == "style"]
    assert not re.search("[\u200b\u202e\x1b]", html)
    shown = "\\u202e" if chosen == DECEIVING else "<script>alert(1)</script>"
    assert parsed.text.count(shown) >= 4


async def test_nothing_is_run_or_loaded_from_elsewhere(operators: Operators) -> None:
    html = await page(operators)
    for path in ("/", "/page.css", "/page.js", "/metrics"):
        status, _, response = await operators.ask(path)
        assert status == 200
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert response.headers["Cache-Control"] == "no-store"
        if path != "/metrics":
            assert response.headers["Content-Security-Policy"] == POLICY
            assert response.headers["X-Frame-Options"] == "DENY"
    assert "unsafe" not in POLICY
    assert not re.findall(r"https?://", html)
    links = [value for _, attrs in Parsed(html).tags for name, value in attrs.items() if name in ("src", "href")]
    assert set(links) <= {"/page.css", "/page.js", "data:,"}


@pytest.fixture
async def guarded(config: Config, start_server: StartServer) -> AsyncIterator[Operators]:
    config = replace(config, admin=AdminConfig(token=TOKEN))
    async with start_server(config) as running, operating_beside(running) as found:
        yield found


def basic(password: str, name: str = "anybody") -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


async def test_a_browser_is_asked_for_the_token(guarded: Operators) -> None:
    for path in ("/", "/page.css", "/page.js"):
        status, body, response = await guarded.ask(path, Accept="text/html,application/xhtml+xml")
        assert status == 401
        assert response.headers["WWW-Authenticate"].startswith("Basic realm=")
        assert list(body) == ["message"]
    for authorization in (basic(TOKEN), basic(TOKEN, ""), f"Bearer {TOKEN}"):
        await page(guarded, Authorization=authorization)
    for wrong in (basic(TOKEN[:-1]), basic(""), basic("anybody", TOKEN), "Basic !!!", "Basic", f"Digest {TOKEN}"):
        assert (await guarded.ask("/", Authorization=wrong))[0] == 401


async def test_another_host_has_no_page(operators: Operators) -> None:
    assert (await operators.ask("/", Host="evil.example.org"))[0] == 421


async def test_a_store_that_cannot_be_read_is_told(operators: Operators) -> None:
    await page(operators)
    running = operators.running
    running.app[app_keys.HEALTH].phase = running.app[app_keys.HEALTH].phase.STOPPING
    operators.snapshot.expire()
    assert "could not be updated" in section(await page(operators), "health")


async def test_a_store_that_does_not_answer_holds_up_nothing_else(
    operators: Operators, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, goes_on = overview.read_overview, threading.Event()

    def hanging(*arguments: Any) -> overview.Overview:
        assert goes_on.wait(30)
        return look(*arguments)

    monkeypatch.setattr(overview, "read_overview", hanging)
    monkeypatch.setattr(snapshot, "LATE_SECONDS", 0.01)
    operators.health.set_fault(HealthPart.STORAGE, "the disk hangs")
    try:
        told = section(await page(operators), "health")
        assert "the disk hangs" in told
        assert "could not be updated: the store has not answered for" in told
    finally:
        goes_on.set()
    monkeypatch.setattr(snapshot, "LATE_SECONDS", 30)  # a busy machine is not what is told here
    while operators.snapshot.last is None:
        await operators.snapshot.refresh()
    html = await page(operators)
    assert "could not be updated" not in section(html, "health")
    assert "No groups yet" in section(html, "policies")


async def test_what_is_overdue_is_named_with_its_reason(operators: Operators) -> None:
    running = operators.running
    alice = await running.user("alice")
    group = await alice.create_group("friends", expiry=60)
    gone = await alice.create_group("gone")
    for each in (group, gone):
        await alice.send(each)
    await alice.leave(gone)
    running.clock.advance(10_000)
    told = section(await page(operators), "overdue")
    assert "2 groups with messages due for erasure, 2 groups late" in told
    assert f"friends {group} 2h expired, or fetched by all late" in told
    assert f"(deleted) {gone}" in told
    assert "hidden for good, redacted or deleted" in told
    running.clock.set_wrong(YEAR)
    operators.health.set_fault(HealthPart.CLOCK, "the wall clock was set forward")
    operators.snapshot.expire()
    html = await page(operators)
    assert "Not healthy: clock" in section(html, "cleanup")
    assert section(html, "overdue").startswith("Overdue While the clock is wrong nothing is erased")


async def test_many_who_look_at_once_have_one_look(operators: Operators, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    look = overview.read_overview

    def counting(*arguments: Any) -> overview.Overview:
        looks.append(arguments)
        return look(*arguments)

    monkeypatch.setattr(overview, "read_overview", counting)
    await asyncio.gather(*(page(operators) for _ in range(20)))
    assert len(looks) == 1


async def test_the_certificate_is_told(
    config: Config, start_server: StartServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = int(time.time())
    config = replace(config, tls_cert_path=str(tmp_path / "cert.pem"), tls_key_path=str(tmp_path / "key.pem"))
    for ends, text in ((now + 30 * 86_400, "expires "), (now - 1, "has expired "), (None, None)):
        monkeypatch.setattr(certificate, "expires_at", lambda _, ends=ends: ends)
        async with start_server(config) as running, operating_beside(running) as operators:
            told = section(await page(operators), "amounts")
            assert (f"certificate {text}" in told) if text else ("certificate" not in told)


async def test_a_certificate_that_waits_in_its_file_is_not_taken_for_the_one_that_clients_get(
    config: Config, start_server: StartServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = int(time.time())
    config = replace(config, tls_cert_path=str(tmp_path / "cert.pem"), tls_key_path=str(tmp_path / "key.pem"))
    monkeypatch.setattr(certificate, "expires_at", lambda _: now + 3 * 86_400 + 60)
    async with start_server(config) as running, operating_beside(running) as operators:
        assert "loads it" not in section(await page(operators), "amounts")
        monkeypatch.setattr(certificate, "expires_at", lambda _: now + 90 * 86_400)
        operators.snapshot.expire()
        told = section(await page(operators), "amounts")
        assert "in 3d; its file has another one: systemctl reload conclave loads it" in told


async def test_the_send_rate_is_of_successes_by_the_second(monkeypatch: pytest.MonkeyPatch) -> None:
    requests, now = Requests(), [1000.0]
    monkeypatch.setattr(snapshot, "time", SimpleNamespace(monotonic=lambda: now[0]))
    measured = snapshot.SendRate(requests)
    assert measured.rate == 0
    await measured.sample()
    for status in (200, 200, 200, 429, 507):
        requests.record("POST", snapshot.SENDS, status, 0.1)
    requests.record("GET", snapshot.SENDS, 200, 0.1)
    now[0] += 6
    assert measured.rate == 0.5
