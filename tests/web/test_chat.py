"""The chat in real browsers at a real server: two people who talk, what goes, and what their profiles keep."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support import browser
from tests.support.browser import Tab, browsing
from tests.support.client import PASSWORD
from tests.support.proxies import free_ports
from tests.support.server import ServerProcess
from tests.web import fake

pytestmark = pytest.mark.system

SETTINGS = '[cleanup]\nengine = "sql"\ndisk_reserve = "0"\n'

TEXTS = ".timeline .text"


class Person:
    """Somebody at a browser, who does what people do."""

    def __init__(self, tab: Tab, url: str, name: str) -> None:
        self.tab, self.url, self.name = tab, url, name

    async def create_account(self) -> None:
        await self.tab.do("Emulation.setFocusEmulationEnabled", enabled=True)
        await self.tab.open(self.url)
        await fake.seen(self.tab, "button", "Create an account")
        await self.press("Create an account")
        await self.fill("username", self.name)
        await self.fill("password", PASSWORD)
        await self.fill("again", PASSWORD)
        await fake.press(self.tab, "Enter")
        await fake.seen(self.tab, ".sidebar h1", "Conclave")

    async def fill(self, field: str, text: str) -> None:
        await self.tab.run(f"[...document.querySelectorAll('[name={field}]')].at(-1).focus()")
        await self.tab.run("document.activeElement.select?.()")
        await fake.write(self.tab, text)

    async def hurry(self) -> None:
        """Have the page connect now, unless it has done so by itself."""
        await self.tab.run(
            "(() => [...document.querySelectorAll('button')].find((each) => each.textContent === 'Try now')?.click())()"
        )

    async def press(self, button: str) -> None:
        """Press the last button with such a name or text, once it is there."""
        named = f"(each) => ((each.ariaLabel ?? '') + each.textContent).includes({button!r})"
        found = f"[...document.querySelectorAll('button')].filter({named})"
        await fake.true(self.tab, f"{found}.length > 0")
        await self.tab.run(f"{found}.at(-1).click()")

    async def write(self, text: str) -> None:
        await fake.seen(self.tab, ".composer")
        await self.tab.run("document.querySelector('textarea').focus()")
        await fake.write(self.tab, text)
        await fake.press(self.tab, "Enter")

    async def sees(self, text: str, selector: str = TEXTS) -> None:
        await fake.seen(self.tab, selector, text)

    async def misses(self, text: str) -> None:
        await fake.true(self.tab, f"!document.body.textContent.includes({text!r})")

    async def texts(self) -> list[str]:
        found: list[str] = await self.tab.run(
            f"[...document.querySelectorAll({TEXTS!r})].map((each) => each.textContent)"
        )
        return found


class Pair(NamedTuple):
    """Alice and Bob, each with a browser and an account, and the port of their server."""

    alice: Person
    bob: Person
    folder: Path
    port: int
    server: ServerProcess


def server_on(folder: Path, port: int) -> ServerProcess:
    (folder / "server").mkdir(exist_ok=True)
    settings = f"listen_port = {port}\n{SETTINGS}[admin]\nlisten_port = 0\n"
    return ServerProcess(folder / "server", file=(folder / "server" / "conclave.toml", settings))


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    browser.found()
    [port] = free_ports(1)
    async with AsyncExitStack() as stack:
        people = []
        with server_on(tmp_path, port) as server:
            for name in ("alice", "bob"):
                (tmp_path / name).mkdir()
                tab = await stack.enter_async_context(browsing(tmp_path / name))
                people.append(Person(tab, f"{server.url}/", name))
                await people[-1].create_account()
            yield Pair(people[0], people[1], tmp_path, port, server)
        for each in people:
            assert [url for url in each.tab.asked if not url.startswith(each.url)] == [], "it asks nobody else"
            assert [told for told in each.tab.complaints if "Content Security" in told or "Trusted" in told] == []


async def talking(alice: Person, bob: Person) -> None:
    """Have Alice write to Bob, and Bob answer."""
    await alice.press("New conversation")
    await alice.fill("person", "bob")
    await fake.press(alice.tab, "Enter")
    await alice.sees("bob is invited", ".empty")
    await bob.press("Accept the invite")
    await alice.sees("encrypted, 0 of 1 verified", ".heading")
    await alice.write("hello bob")
    await bob.sees("hello bob")
    await bob.write("hello alice")
    await alice.sees("hello alice")


async def test_two_newcomers_talk_and_what_expires_goes_from_both_screens(
    pair: Pair,
) -> None:
    alice, bob, *_ = pair
    await talking(alice, bob)
    # A reload changes nothing.
    await bob.tab.open(bob.url)
    await bob.sees("hello bob")
    assert [each for each in await bob.texts() if "hello" in each] == ["hello bob", "hello alice"]
    # Taken back: gone for both.
    await alice.write("a slip of the pen")
    await bob.sees("a slip of the pen")
    await alice.press("More for the message of You")
    await alice.press("Take back for everybody")
    await alice.sees("It goes for everybody", "dialog")
    await alice.press("Take back")
    await bob.misses("a slip of the pen")
    await alice.misses("a slip of the pen")
    # How long messages live, with the dry run before.
    await alice.press("About this conversation")
    await alice.press("Change")
    await alice.tab.run("[...document.querySelectorAll('input[type=radio]')].at(-2).click()")
    await alice.tab.run("document.querySelector('dialog input[type=number]').focus()")
    await alice.tab.run("document.activeElement.select()")
    await fake.write(alice.tab, "1")
    await alice.tab.run(
        "(each => { each.value = 60; each.dispatchEvent(new Event('change', { bubbles: true })) })"
        "([...document.querySelectorAll('dialog select')].at(-1))"
    )
    await alice.sees("No message would go at once", ".outcome")
    await alice.press("Set it")
    await bob.sees("1 minute", ".heading")
    while await alice.tab.run("!!document.querySelector('dialog')"):
        await fake.press(alice.tab, "Escape")
    # A self-destructing one: its time begins once Bob has seen it.
    await alice.tab.run(
        "(each => { each.value = 10; each.dispatchEvent(new Event('change', { bubbles: true })) })"
        "(document.querySelector('.burn select'))"
    )
    await alice.write("burn after reading")
    await bob.sees("burn after reading")
    began = time.monotonic()
    await fake.press(bob.tab, "ArrowUp")
    await bob.misses("burn after reading")
    assert 8 <= time.monotonic() - began <= 16


async def test_what_is_written_without_a_server_is_sent_once(pair: Pair) -> None:
    alice, bob, folder, port, server = pair
    await talking(alice, bob)
    server.stop()
    await alice.write("written in a tunnel")
    await alice.sees("written in a tunnel", ".sending")
    await alice.tab.open(alice.url)  # the shell opens from its cache, and the text is still there
    await alice.sees("written in a tunnel", ".sending")
    with server_on(folder, port):
        for each in (alice, bob):
            await each.hurry()
        await bob.sees("written in a tunnel")
        await asyncio.sleep(2)
        assert (await bob.texts()).count("written in a tunnel") == 1
        assert (await alice.texts()).count("written in a tunnel") == 1


async def test_after_log_out_nothing_of_it_is_in_the_profile(pair: Pair) -> None:
    alice, bob, folder, *_ = pair
    await talking(alice, bob)
    await bob.press("Account")
    await bob.press("Log out")
    await bob.press("Log out and erase")
    await bob.sees("Log in", "button")
    await asyncio.sleep(3)
    found = [
        path.relative_to(folder).as_posix()
        for path in (folder / "bob").rglob("*")
        if path.is_file()
        and any(text in path.read_bytes() for text in (b"hello bob", b"hello alice", b"h\0e\0l\0l\0o\0 \0b"))
    ]
    assert found == []
