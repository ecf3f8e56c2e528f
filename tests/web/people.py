"""Users of the browser chat: each drives a real browser at a real server through the page's own controls."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from conclave.client import Client
from tests.support.browser import Tab, browsing
from tests.support.client import PASSWORD
from tests.support.server import ServerProcess
from tests.web import fake

SETTINGS = '[cleanup]\nengine = "sql"\ndisk_reserve = "0"\n'

TEXTS = ".timeline .text"

TIMER_SECONDS = 10
"""The shortest self-destruct timer that the page offers."""

_GONE_AT = """
  new Promise((done) => {
    const look = () => document.body.textContent.includes(TEXT) || done(Date.now() / 1000);
    new MutationObserver(look).observe(document.body, { subtree: true, childList: true, characterData: true });
    look();
  })
"""

_EVER_SHOWN = """
  globalThis.everShown = [];
  const look = () => {
    for (const each of TEXTS)
      if (document.documentElement?.textContent.includes(each) && !everShown.includes(each)) everShown.push(each);
  };
  new MutationObserver(look).observe(document, { subtree: true, childList: true, characterData: true });
"""


class BrowserUser:
    """A user with a browser. ``steps``: the actions so far."""

    def __init__(self, tab: Tab, url: str, name: str) -> None:
        self.tab, self.url, self.name = tab, url, name
        self.steps: list[str] = []

    # Actions

    async def open(self) -> None:
        """Open or reload the page."""
        self.steps.append("open the page")
        await self.tab.open(self.url)
        await self.tab.do("Emulation.setFocusEmulationEnabled", enabled=True)

    async def leave(self) -> None:
        """Close the page at once."""
        await self.tab.open("about:blank")

    async def create_account(self) -> None:
        await self.open()
        await fake.seen(self.tab, "button", "Create an account")
        await self.press("Create an account")
        await self.fill("username", self.name)
        await self.fill("password", PASSWORD)
        await self.fill("again", PASSWORD)
        await self.enter()
        await fake.seen(self.tab, ".sidebar h1", "Conclave")
        # Once it is online, its key packages are uploaded, so that others can invite this user.
        await fake.true(self.tab, "document.querySelector('.connection')?.textContent === ''")

    async def log_in(self, *, replaces: bool = False) -> None:
        """Log in. ``replaces``: the account is in use on another device, which this one replaces."""
        await fake.seen(self.tab, "button", "Log in")
        await self.fill("username", self.name)
        await self.fill("password", PASSWORD)
        await self.enter()
        if replaces:
            await self.sees("Use this device instead?", "dialog")
            await self.press("Use this device")
        await fake.seen(self.tab, ".sidebar h1", "Conclave")

    async def fill(self, field: str, text: str) -> None:
        self.steps.append(f"fill in {field}")
        await fake.seen(self.tab, f"[name={field}]")
        await self.tab.run(f"[...document.querySelectorAll('[name={field}]')].at(-1).focus()")
        await self.tab.run("document.activeElement.select?.()")
        await fake.write(self.tab, text)

    async def enter(self) -> None:
        self.steps.append("press Enter")
        await fake.press(self.tab, "Enter")

    async def press(self, button: str) -> None:
        """Press the last button with this label or text, once it exists."""
        self.steps.append(f"press {button}")
        named = f"(each) => ((each.ariaLabel ?? '') + each.textContent).includes({button!r})"
        found = f"[...document.querySelectorAll('button')].filter({named})"
        await fake.true(self.tab, f"{found}.length > 0")
        await self.tab.run(f"{found}.at(-1).click()")

    async def choose(self, selector: str, value: int) -> None:
        """Choose a value in the last list that matches a selector."""
        await self.tab.run(
            f"(each => {{ each.value = {value}; each.dispatchEvent(new Event('change', {{ bubbles: true }})) }})"
            f"([...document.querySelectorAll({selector!r})].at(-1))"
        )

    async def close_dialogs(self) -> None:
        while await self.tab.run("!!document.querySelector('dialog')"):
            await fake.press(self.tab, "Escape")

    async def write(self, text: str) -> None:
        """Send a message to the open conversation."""
        await fake.seen(self.tab, ".composer")
        await self.tab.run("document.querySelector('textarea').focus()")
        await fake.write(self.tab, text)
        self.steps.append("write")
        await self.enter()

    async def write_self_destructing(self, text: str) -> None:
        await self.choose(".timer select", TIMER_SECONDS)
        await self.write(text)
        await self.choose(".timer select", 0)

    async def create(self, title: str) -> None:
        """Create a group, and wait until it is open."""
        await self.press("New conversation")
        await self.fill("title", title)
        await self.enter()
        await self.sees(title, ".heading")

    async def invite(self, name: str) -> None:
        """Invite a user to the open group."""
        await self.open_details()
        await self.fill("invitee", name)
        await self.enter()
        await self.sees(f"Invited {name}", ".toast")
        await self.close_dialogs()

    async def open_details(self) -> None:
        """Open the dialog of the open group."""
        await self.press("About this conversation")
        await self.sees("Members", "dialog")

    async def open_member(self, member: str) -> None:
        """Open the dialog of a member of the open group."""
        await self.open_details()
        await self.press(member)
        await self.sees("Key", "dialog")

    async def go_to(self, title: str) -> None:
        """Open a conversation, once it is listed."""
        await fake.seen(self.tab, ".groups button", title)
        await self.tab.run(
            "[...document.querySelectorAll('.groups button')]"
            f".find((each) => each.textContent.includes({title!r})).click()"
        )
        await self.sees(title, ".heading")

    async def take_back(self, text: str) -> None:
        """Take back an own message of the open conversation."""
        await self.tab.run(
            f"[...document.querySelectorAll('li.message')].find((each) => each.textContent.includes({text!r}))"
            ".querySelector('[aria-label^=More]').click()"
        )
        await self.press("Take back for everyone")
        await self.sees("is deleted for everyone", "dialog")
        await self.press("Take back")
        # The dialog closes with the server's response. Only then a user can reach what is behind it.
        await fake.true(self.tab, "!document.querySelector('dialog')")

    async def hurry(self) -> None:
        """Have the page reconnect now, unless it is connected."""
        await self.tab.run(
            "(() => [...document.querySelectorAll('button')].find((each) => each.textContent === 'Try now')?.click())()"
        )

    # Expectations

    async def sees(self, text: str, selector: str = TEXTS) -> None:
        await fake.seen(self.tab, selector, text)

    async def misses(self, text: str) -> None:
        await fake.true(self.tab, f"!document.body.textContent.includes({text!r})")

    async def is_with(self, others: int) -> None:
        """Wait until the open group has this many other members, all with keys, and shows no warning."""
        await fake.seen(self.tab, ".heading", f"encrypted, 0 of {others} verified")
        await fake.true(self.tab, "!document.querySelector('.decision')")

    async def texts(self) -> list[str]:
        found: list[str] = await self.tab.run(
            f"[...document.querySelectorAll({TEXTS!r})].map((each) => each.textContent)"
        )
        return found

    async def gone_at(self, text: str) -> float:
        """Wait until a text has disappeared from the page, and return when, in Unix seconds."""
        found: float = await self.tab.run(_GONE_AT.replace("TEXT", repr(text)))
        return found

    async def watch_for(self, texts: list[str]) -> None:
        """Record which of these texts the next page ever shows, from its start."""
        script = _EVER_SHOWN.replace("TEXTS", repr(texts))
        await self.tab.do("Page.addScriptToEvaluateOnNewDocument", source=script)

    async def ever_shown(self) -> list[str]:
        found: list[str] = await self.tab.run("everShown")
        return found

    # Faults

    async def clear_site_data(self) -> None:
        await self.leave()
        origin = self.url.removesuffix("/")
        await self.tab.do("Storage.clearDataForOrigin", origin=origin, storageTypes="all")


@asynccontextmanager
async def user_with_browser(folder: Path, url: str, name: str) -> AsyncIterator[BrowserUser]:
    """Start a user's browser. Its profile is in a folder with the user's name in ``folder``."""
    (folder / name).mkdir(exist_ok=True)
    async with browsing(folder / name) as tab:
        person = BrowserUser(tab, url, name)
        yield person
        assert [each for each in tab.asked if not each.startswith((url, "about:"))] == [], "no other servers"
        assert [each for each in tab.complaints if "Content Security" in each or "Trusted" in each] == []


class Pair(NamedTuple):
    """Alice and Bob, each with a browser and an account, and the port of their server."""

    alice: BrowserUser
    bob: BrowserUser
    folder: Path
    port: int
    server: ServerProcess


def server_on(folder: Path, port: int) -> ServerProcess:
    """Return a server with a fixed port. ``folder``: its data are in a folder in it, also from an earlier server."""
    (folder / "server").mkdir(exist_ok=True)
    settings = f"listen_port = {port}\n{SETTINGS}[admin]\nlisten_port = 0\n"
    return ServerProcess(folder / "server", file=(folder / "server" / "conclave.toml", settings))


async def talking(alice: BrowserUser, bob: BrowserUser) -> None:
    """Have Alice write to Bob, and Bob reply."""
    await alice.press("New conversation")
    await alice.fill("person", "bob")
    await alice.enter()
    await alice.sees("Waiting for bob", ".empty")
    await bob.press("Accept the invite")
    await alice.sees("encrypted, 0 of 1 verified", ".heading")
    await alice.write("hello bob")
    await bob.sees("hello bob")
    await bob.write("hello alice")
    await alice.sees("hello alice")


async def set_expiry(url: str, name: str, group: str, seconds: int) -> None:
    """Set a lifetime for the messages of a group, which may be shorter than the page offers."""
    async with Client(url) as client:
        await client.login(name, PASSWORD)
        [found] = [each.group_id for each in await client.groups() if each.group_name == group]
        await client.update_group(found, expiry=seconds)


def found_in(folder: Path, texts: Iterable[str]) -> list[str]:
    """Return the files in a folder that contain one of the texts, in UTF-8 or UTF-16."""
    wanted = [text.encode(encoding) for text in texts for encoding in ("utf-8", "utf-16-le", "utf-16-be")]
    found = []
    for path in folder.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            found += [f"{path.relative_to(folder)}: {each!r}" for each in wanted if each in content]
    return found
