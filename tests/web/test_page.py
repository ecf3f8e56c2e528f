"""The browser chat's page in a real browser with a fake engine: what it shows, reports and stores."""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import browser
from tests.support.browser import Tab, browsing
from tests.web import fake
from tests.web.fake import BOB, BOOKS, DIRECT
from tests.web.hostile import NAMES, TEXTS
from tests.web.screens import everything, screens

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]
AXE = ROOT / "web" / "node_modules" / "axe-core" / "axe.min.js"
DRAWN = ROOT / "docs" / "pictures"
PICTURES = "CONCLAVE_PICTURES"
"""Set this variable to renew the pictures of the docs."""

SHOWN = {
    (360, "light"): ("list", "compare-keys"),
    (360, "dark"): ("conversation",),
    (1280, "light"): ("conversation", "change"),
    (1280, "dark"): ("warned",),
}
"""The pictures that the docs show, by width and scheme."""

RULES = {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}


@pytest.fixture
async def tab(tmp_path: Path) -> AsyncIterator[Tab]:
    browser.found()
    async with browsing(tmp_path) as opened:
        yield opened
        own = [each for each in opened.asked if not each.startswith(("http://127.0.0.1:", "data:"))]
        assert own == [], "no other servers"
        assert [each for each in opened.complaints if "Content Security" in each or "Trusted" in each] == []


def complaints(tab: Tab) -> list[str]:
    """Return the browser's warnings and errors, without hints and requests to a stopped server."""
    usual = (
        "[DOM]",
        "Error while trying to use the following icon",
        "Failed to load resource: net::ERR_CONNECTION_REFUSED",
        "An unknown error occurred when fetching the script",
    )
    return [each for each in tab.complaints if not each.startswith(usual)]


async def test_local_data_can_be_erased_after_the_session_has_ended(tab: Tab) -> None:
    async with fake.serving(everything(phase="out")) as url:
        await fake.opened(tab, url)
        await tab.run("[...document.querySelectorAll('button.link')].at(-1).click()")
        await fake.seen(tab, "dialog button", "Erase")
        await tab.run("document.querySelector('dialog button.danger').click()")
        await asyncio.sleep(0.5)
        assert "Erase" not in await tab.run("document.body.textContent")


async def test_a_login_to_another_account_asks_before_it_erases_the_local_data(tab: Tab) -> None:
    async with fake.serving(everything(phase="out")) as url:
        await fake.opened(tab, url)
        for name, value in (("username", "bob"), ("password", "password of bob")):
            await tab.run(f"document.querySelector('[name={name}]').focus()")
            await fake.write(tab, value)
        await fake.press(tab, "Enter")
        await fake.seen(tab, "dialog", "messages and keys of alice")
        assert not await tab.run("!!document.querySelector('.chat')")
        await tab.run("document.querySelector('dialog button.danger').click()")
        await fake.seen(tab, ".chat")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(360, 640), (1280, 800)])
async def test_axe_finds_no_violation_on_any_screen_and_nothing_overflows(
    tab: Tab, width: int, height: int, scheme: str
) -> None:
    if not AXE.exists():
        pytest.skip("axe-core is not there: make web")
    await tab.look(width, height, scheme)
    found: dict[str, Any] = {}
    names = []
    async for name in screens(tab):
        names.append(name)
        await tab.run(AXE.read_text(encoding="utf-8") + "; 0")
        violations = await tab.run(f"axe.run({{ runOnly: {RULES} }}).then((results) => results.violations)")
        found |= {f"{name}: {each['id']}": [one["html"][:200] for one in each["nodes"]] for each in violations}
        assert await tab.run("document.documentElement.scrollWidth") <= width, name
        if os.environ.get(PICTURES) and name in SHOWN[width, scheme]:
            await asyncio.sleep(0.3)
            (DRAWN / f"browser-{name}-{scheme}-{width}.png").write_bytes(await tab.picture())
    assert found == {}
    assert {
        "login",
        "register",
        "list",
        "conversation",
        "warned",
        "change",
        "compare-keys",
        "account",
        "new-conversation",
        "empty",
    } <= {*names}
    assert complaints(tab) == []


async def test_a_message_vanishes_at_its_second_and_counts_down_before(tab: Tab) -> None:
    shown = everything()
    gone_at = int(time.time()) + 6
    shown["messages"][BOOKS] = [fake.message(1, "stays"), fake.message(2, "goes", goneAt=gone_at)]
    async with fake.serving(shown) as url:
        await fake.opened(tab, url, BOOKS)
        seconds = []
        while "goes" in (text := await tab.run("document.querySelector('.timeline').innerText")):
            assert time.time() < gone_at + 0.5
            seconds.append(text)
            await asyncio.sleep(0.02)
        assert gone_at - 0.1 <= time.time() < gone_at + 0.5
        assert "stays" in text
        assert any("disappears in 2 s" in each.replace("\n", " ") for each in seconds)
        assert await tab.run("document.body.textContent.includes('goes')") is False, "nor for a screen reader"


async def test_the_announcement_and_the_menu_of_a_message_disappear_with_it(tab: Tab) -> None:
    shown = everything()
    shown["messages"][BOOKS] = [fake.message(1, "stays")]
    async with fake.serving(shown) as url:
        await fake.opened(tab, url, BOOKS)
        gone_at = int(time.time()) + 4
        added = {"groupId": BOOKS, "message": fake.message(2, "soon gone", goneAt=gone_at)}
        await tab.run(f"channel.postMessage({{ add: {json.dumps(added)} }})")
        await fake.seen(tab, ".sr[role=status]", "bob: soon gone")
        await tab.run("[...document.querySelectorAll('[aria-label^=More]')].at(-1).click()")
        await fake.seen(tab, "dialog", "Copy text")
        await fake.true(tab, "!document.body.textContent.includes('soon gone')")
        assert time.time() < gone_at + 0.5
        await fake.seen(tab, "dialog", "This message is gone.")
        assert await tab.run("document.querySelector('dialog').textContent.includes('Copy')") is False


async def test_ten_thousand_messages_scroll_by_a_window_that_keeps_its_place(tab: Tab) -> None:
    shown = everything()
    shown["messages"][BOOKS] = [fake.message(each, f"message {each}\n" * (1 + each % 3)) for each in range(1, 10_001)]
    shown["conversations"][BOOKS] = fake.conversation()
    async with fake.serving(shown) as url:
        await fake.opened(tab, url, BOOKS)
        await fake.seen(tab, ".text", "message 10000")
        await tab.run("""
            new Promise((done) => {
              const box = document.querySelector(".timeline");
              let left = 600;
              const step = () => {
                box.scrollTop -= 400;
                if (left--) requestAnimationFrame(step);
                else done(true);
              };
              requestAnimationFrame(step);
            })
        """)
        first = await tab.run("Number(document.querySelector('li[data-number]').dataset.number)")
        assert first < 9_000, "it went on loading"
        assert await tab.run("document.querySelectorAll('li[data-number]').length") <= 600
        # Messages that are loaded above do not move those on the screen.
        moved = await tab.run("""
            (async () => {
              const wait = (ms) => new Promise((go) => setTimeout(go, ms)), box = document.querySelector(".timeline");
              const rows = () => [...document.querySelectorAll("li[data-number]")];
              box.scrollTop = 2000;
              await wait(500);
              while (box.scrollTop > 820) {
                box.scrollTop -= 20;
                await wait(10);
              }
              await wait(200);
              const first = rows()[0].id, row = rows().find((each) => each.getBoundingClientRect().top > 150);
              const before = row.getBoundingClientRect().top;
              box.scrollTop -= 60;
              await wait(500);
              const now = document.getElementById(row.id).getBoundingClientRect().top;
              return [first !== rows()[0].id, now - before - 60];
            })()
        """)
        assert moved[0], "the window has moved"
        assert abs(moved[1]) <= 1, "not by more than rounding"
        await tab.run("document.querySelector('.to-end').click()")
        await fake.seen(tab, ".text", "message 10000")
        assert await tab.run(
            "(({ scrollHeight, scrollTop, clientHeight }) => scrollHeight - scrollTop - clientHeight)"
            "(document.querySelector('.timeline')) < 48"
        )


async def test_messages_are_reported_as_seen_only_while_the_user_is_active(tab: Tab) -> None:
    shown = everything()
    shown["messages"][BOOKS] = [fake.message(each, f"message {each}", isUnread=each > 20) for each in range(1, 101)]
    shown["conversations"][BOOKS] = fake.conversation(unreadFrom=21)
    async with fake.serving(shown) as url:
        await tab.look(360, 640, "light")
        await fake.opened(tab, url, BOOKS)
        await asyncio.sleep(1.5)
        assert await fake.asked(tab, "markSeen") == [], "no input yet"
        await fake.press(tab, "ArrowUp")
        await asyncio.sleep(1.5)
        told = {each for _, numbers in await fake.asked(tab, "markSeen") for each in numbers}
        assert min(told) == 21
        assert max(told) < 60, "what is below was not seen"
        await tab.run("document.querySelector('.heading').click()")
        await tab.run("document.querySelector('.timeline').scrollTop = 1e6")
        await asyncio.sleep(1.5)
        assert {each for _, numbers in await fake.asked(tab, "markSeen") for each in numbers} == told, "below a dialog"
        await fake.press(tab, "Escape")
        await asyncio.sleep(1.5)
        assert 100 in {each for _, numbers in await fake.asked(tab, "markSeen") for each in numbers}


async def test_everything_can_be_done_by_keyboard(tab: Tab) -> None:
    async with fake.serving(everything()) as url:
        await fake.opened(tab, url)
        await tab.run(
            "globalThis.focused = () => document.activeElement?.ariaLabel || document.activeElement?.textContent"
        )

        async def tab_to(text: str) -> None:
            for _ in range(40):
                await fake.press(tab, "Tab")
                if text in (await tab.run("focused()") or ""):
                    return
            raise AssertionError(text)

        await tab_to("Book club")
        await fake.press(tab, "Enter")
        await fake.seen(tab, ".composer")
        await tab.run("""
            globalThis.channel = new BroadcastChannel("fake");
            globalThis.asked = () => new Promise((done) => {
              channel.onmessage = ({ data }) => data.asked && done(data.asked);
              channel.postMessage({ log: true });
            });
        """)
        assert await tab.run("document.activeElement.tagName") == "TEXTAREA"
        await fake.write(tab, "good evening @ca")
        await fake.seen(tab, "[role=option]", "@carol")
        await fake.press(tab, "Tab")
        await fake.write(tab, "and all")
        await fake.press(tab, "Enter")
        assert await fake.asked(tab, "send") == [[BOOKS, "good evening @carol and all", {}]]
        # To the messages, to one of them, and a reply to it.
        await fake.press(tab, "Tab", 8)
        while not await tab.run("document.activeElement.matches('li.message')"):
            await fake.press(tab, "Tab", 8)
        await fake.press(tab, "ArrowUp")
        await fake.press(tab, "ArrowUp")
        assert "See you all" in await tab.run("document.activeElement.textContent")
        await fake.press(tab, "Tab")
        assert await tab.run("focused()") == "Reply to bob"
        await fake.press(tab, "Enter")
        await fake.seen(tab, ".replying", "Thanks!")
        await fake.write(tab, "yes")
        await fake.press(tab, "Enter")
        assert (await fake.asked(tab, "send"))[-1] == [BOOKS, "yes", {"replyTo": 8}]
        # A dialog keeps the focus, and gives it back.
        await tab_to("About this conversation")
        await fake.press(tab, "Enter")
        await fake.seen(tab, "dialog", "Members")
        for _ in range(30):
            await fake.press(tab, "Tab")
            assert await tab.run(
                "document.activeElement === document.body || !!document.activeElement.closest('dialog')"
            )
        await fake.press(tab, "Escape")
        await fake.true(tab, "!document.querySelector('dialog')")
        assert "About this conversation" in await tab.run("focused()")
        await fake.press(tab, "ArrowDown", 1)
        await fake.seen(tab, ".heading", "bob")


async def test_hostile_names_and_texts_inject_nothing(tab: Tab) -> None:
    async with fake.serving(everything()) as url:
        await fake.opened(tab, url)
        expected = await tab.run("document.querySelectorAll('script, img, iframe, object, style, svg image').length")
    for name, text in zip(NAMES, TEXTS, strict=True):
        shown = everything()
        shown["view"]["groups"][0] |= {"title": text[:64], "members": [fake.member(BOB, name, alias=text[:64])]}
        shown["view"]["invites"][0] |= {"title": text, "inviter": name}
        shown["messages"][BOOKS] = [fake.message(1, text, sender=name), fake.message(2, f"@{name} {name}", sender=name)]
        shown["conversations"][BOOKS]["notices"] = [{"at": 1, "kind": "danger", "text": text}]
        async with fake.serving(shown) as url:
            await fake.opened(tab, url, BOOKS)
            await tab.run("document.querySelector('.heading').click()")
            await fake.seen(tab, "dialog", "Members")
            assert await tab.run("globalThis.owned") is None, text
            assert await tab.run("document.title") == "(16) Conclave", text
            found = await tab.run("document.querySelectorAll('script, img, iframe, object, style, svg image').length")
            assert found == expected, text
            links = await tab.run("[...document.links].map((each) => each.protocol)")
            assert {*links} <= {"http:", "https:"}, text
            assert await tab.run("document.documentElement.scrollWidth") <= await tab.run("innerWidth"), text
            assert not await tab.run(r"/[\u202a-\u202e\u2066-\u2069\u0000-\u0008]/.test(document.body.textContent)")
    assert complaints(tab) == []


async def test_the_service_worker_caches_the_page_and_no_api_response(tab: Tab) -> None:
    async with fake.serving(everything()) as url:
        await fake.opened(tab, url, BOOKS)
        await tab.run("navigator.serviceWorker.ready.then(() => 0)")
        await tab.run("fetch('/api/v1/me').then(() => 0)")
        kept = await tab.run("""
            caches.keys()
              .then((names) => Promise.all(names.map((name) => caches.open(name).then((cache) => cache.keys()))))
              .then((found) => found.flat().map(({ url }) => new URL(url).pathname))
        """)
        assert {each.partition("-")[0] for each in kept} == {"/", "/page", "/worker"}
    await tab.open(url)  # the server is gone
    await fake.seen(tab, ".chat")


async def test_a_failed_command_shows_its_error_and_keeps_the_text(tab: Tab) -> None:
    shown = everything()
    shown["answers"]["send"] = {"fault": fake.FAULT}
    async with fake.serving(shown) as url:
        await fake.opened(tab, url, BOOKS)
        await tab.run("document.querySelector('textarea').focus()")
        await fake.write(tab, "hello")
        await fake.press(tab, "Enter")
        await fake.seen(tab, "[role=alert]", "the server does not answer")
        await fake.true(tab, "document.querySelector('textarea').value === 'hello'")


async def test_an_error_in_a_dialog_is_above_it_and_can_be_closed(tab: Tab) -> None:
    shown = everything()
    shown["answers"]["openDirect"] = {"fault": fake.FAULT}
    at_toast = """(() => {
      const { left, top } = document.querySelector(".toast button").getBoundingClientRect();
      return document.elementFromPoint(left + 5, top + 5)?.closest(".toast") != null;
    })()"""
    async with fake.serving(shown) as url:
        await tab.look(360, 640, "light")
        await fake.opened(tab, url)
        await tab.run("document.querySelector('[aria-label=\"New conversation\"]').click()")
        await fake.seen(tab, "dialog", "Direct message")
        await tab.run("document.querySelector('[name=person]').focus()")
        await fake.write(tab, "bob")
        await fake.press(tab, "Enter")
        await fake.seen(tab, "[role=alert]", "the server does not answer")
        assert await tab.run(at_toast)
        await tab.run("document.querySelector('.toast button').click()")
        await fake.true(tab, "!document.querySelector('.toast') && !!document.querySelector('dialog[open]')")


async def test_a_message_that_was_found_before_is_scrolled_to_again(tab: Tab) -> None:
    shown = everything()
    shown["messages"][BOOKS] = [fake.message(each, f"message {each}") for each in range(1, 301)]
    shown["conversations"][BOOKS] = fake.conversation()
    on_screen = """(() => {
      const box = document.querySelector(".timeline").getBoundingClientRect();
      const row = document.getElementById("m150")?.getBoundingClientRect();
      return !document.querySelector("dialog") && !!row && row.top >= box.top && row.bottom <= box.bottom;
    })()"""
    away = ["document.querySelector('.timeline').scrollTop += 2000", "document.querySelector('.to-end').click()", ""]
    async with fake.serving(shown) as url:
        await fake.opened(tab, url, BOOKS)
        for scroll_away in away:
            await tab.run("document.querySelector('[aria-label=\"Search in this conversation\"]').click()")
            await fake.seen(tab, "dialog", "Words")
            await fake.write(tab, "message 150")
            await fake.seen(tab, ".results button", "message 150")
            await tab.run("document.querySelector('.results button').click()")
            await fake.true(tab, on_screen)
            if scroll_away:
                await tab.run(scroll_away)
                await fake.true(tab, f"!{on_screen}")


@pytest.mark.parametrize(
    ("command", "path"),
    [
        ("takeBack", ["More actions for the message from You", "Take back for everyone", "Take back"]),
        ("setExpiry", ["About this conversation", "Change", "Set lifetime"]),
        ("verify", ["About this conversation", "bob", "Compare keys", "They match"]),
        ("setRole", ["About this conversation", "alice", "Step down"]),
    ],
)
async def test_a_failed_action_of_a_dialog_shows_its_error_and_leaves_it_open(
    tab: Tab, command: str, path: list[str]
) -> None:
    shown = everything()
    shown["answers"][command] = {"fault": fake.FAULT}
    async with fake.serving(shown) as url:
        await fake.opened(tab, url, BOOKS)
        for label in path:
            top = "[...([...document.querySelectorAll('dialog')].at(-1) ?? document).querySelectorAll('button')]"
            named = f"{top}.filter((each) => ((each.ariaLabel ?? '') + each.textContent).includes({label!r}))"
            await fake.true(tab, f"{named}.some((each) => !each.disabled)")
            await tab.run(f"{named}.at(-1).click()")
        await fake.seen(tab, "dialog .toast", "the server does not answer")
        await asyncio.sleep(0.3)
        await fake.seen(tab, "dialog .toast", "the server does not answer")


async def test_a_narrow_screen_shows_above_the_conversation_that_there_is_no_connection(tab: Tab) -> None:
    offline = {"state": "offline", "why": "the server does not answer", "retryAt": 0}
    async with fake.serving(everything(connection=offline)) as url:
        await tab.look(360, 640, "light")
        await fake.opened(tab, url, BOOKS)
        await fake.true(
            tab,
            "[...document.querySelectorAll('.connection p')].filter((each) => each.checkVisibility()).length === 1",
        )


async def test_a_changed_key_is_shown_until_it_is_verified(tab: Tab) -> None:
    async with fake.serving(everything()) as url:
        await fake.opened(tab, url, DIRECT)
        await fake.seen(tab, "[role=alert]", "bob's key changed after you verified it")
        await tab.run("document.querySelector('.decision.danger .primary').click()")
        await fake.seen(tab, "dialog .code", "12345")
        await tab.run("[...document.querySelectorAll('dialog button')].at(-1).click()")
        await fake.true(tab, "!document.querySelector('dialog')")
        assert await fake.asked(tab, "verify") == [[BOB, "f" * 64]]
