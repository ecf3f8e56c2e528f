"""One encrypted group with every kind of client: two browsers, a terminal, and an existing client.

The existing client takes part only if `CONCLAVE_MLS_PEER` names its program.
"""

import asyncio
import shutil
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, closing
from pathlib import Path
from uuid import UUID

import pytest

from conclave.client import Client
from tests.client.chat.test_terminal import Terminal
from tests.client.encryption.test_existing import PEER, Existing, existing_client
from tests.client.mls.actors import PeerProcess
from tests.support import browser
from tests.support.chatting import signed_up
from tests.support.proxies import free_ports
from tests.support.server import ServerProcess, waiting
from tests.web import fake
from tests.web.people import TIMER_SECONDS, BrowserUser, server_on, user_with_browser

pytestmark = pytest.mark.system

SENT_ONCE_SECONDS = 2.0
"""Within this time a message that was sent twice would appear twice."""

EARLY_SECONDS, LATE_SECONDS = 2.0, 1.0
"""How much earlier or later than the server a client may hide a message.

The server's ``Date`` and the terminal's own clocks both count whole seconds, and the terminal assumes the latest time
that they allow: less than a second ahead for each.
"""

LEAST, MOST = TIMER_SECONDS - 2, TIMER_SECONDS + 3
"""How long a self-destructing message may be shown: clocks have whole seconds, and expiry is checked each second."""


class Scene:
    """A group of Alice (admin) and Bob with browsers, Carol with a terminal, and Eve with an existing client.

    ``reader``: a client of Carol's account that fetches the messages on the server.
    """

    def __init__(self, alice: BrowserUser, bob: BrowserUser, carol: Terminal, reader: Client, group: UUID) -> None:
        self.alice, self.bob, self.carol, self.reader, self.group = alice, bob, carol, reader, group
        self.eve: Existing | None = None
        self._said = 0

    @property
    def others(self) -> int:
        """The number of members besides Alice."""
        return 2 if self.eve is None else 3

    async def shows(self, *texts: str) -> None:
        """Wait until Carol's terminal shows all texts."""
        await asyncio.to_thread(self.carol.shows, *texts)

    async def hides(self, text: str) -> None:
        await asyncio.to_thread(self.carol.hides, text)

    async def all_read(self, text: str, *, but: BrowserUser | None = None) -> None:
        for each in (self.alice, self.bob):
            if each is not but:
                await each.sees(text)
        await asyncio.to_thread(self._carol_reads, text)
        if self.eve:
            await self.eve.hears(self.group, text)

    def _carol_reads(self, text: str) -> None:
        for _ in waiting(lambda: f"{text} in {self.carol.screen()}"):
            if text in self.carol.screen():
                return
            self.carol.type("", "C-End")  # the newest may be below the visible part

    async def eve_says(self, text: str) -> None:
        if self.eve:
            await self.eve.says(self.group, text)
            self.eve.read.append(text)  # a client cannot decrypt its own messages

    async def all_talk(self, *, but: BrowserUser | None = None) -> None:
        """Each member sends a message that all others read, without member ``but``."""
        self._said += 1
        for each in (self.alice, self.bob):
            if each is not but:
                await each.write(f"{each.name} says {self._said}.")
                await self.all_read(f"{each.name} says {self._said}.", but=but)
        self.carol.type(f"carol says {self._said}.", "Enter")
        await self.all_read(f"carol says {self._said}.", but=but)
        if self.eve:
            await self.eve_says(f"eve says {self._said}.")
            await self.all_read(f"eve says {self._said}.", but=but)

    async def read_once(self, *texts: str) -> None:
        """Check that all members show each text once."""
        for text in texts:
            await self.all_read(text)
        await asyncio.sleep(SENT_ONCE_SECONDS)
        for each in (self.alice, self.bob):
            shown = await each.texts()
            assert [shown.count(text) for text in texts] == [1] * len(texts), each.name
        screen = self.carol.screen()
        assert [screen.count(text) for text in texts] == [1] * len(texts), screen
        if self.eve:
            await self.eve.fetches(self.group)
            assert [self.eve.read.count(text) for text in texts] == [1] * len(texts)

    async def gone_at(self, text: str) -> dict[str, float]:
        """Wait until a text has disappeared from all screens, and return when, in Unix seconds."""
        screens = await asyncio.gather(
            self.alice.gone_at(text), self.bob.gone_at(text), asyncio.to_thread(self._gone_from_the_terminal, text)
        )
        return dict(zip(("alice", "bob", "carol"), screens, strict=True))

    def _gone_from_the_terminal(self, text: str) -> float:
        while text in self.carol.screen():
            time.sleep(0.02)
        return time.time()

    async def created_at(self) -> int:
        """Return the server's time of the newest message."""
        found = await self.reader.fetch(self.group)
        while more := await self.reader.fetch(self.group, found[-1].sequence_num):
            found = more
        return found[-1].created_at


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    browser.found()
    if not shutil.which("tmux"):
        pytest.skip("no terminal to look at: tmux is not installed (Debian: apt install tmux)")
    return tmp_path


@pytest.fixture
def start(folder: Path) -> Callable[[], ServerProcess]:
    """Start servers one after the other with the same data and port."""
    [port] = free_ports(1)
    return lambda: server_on(folder, port)


@pytest.fixture
async def server(start: Callable[[], ServerProcess]) -> AsyncIterator[ServerProcess]:
    with start() as running:
        yield running


@pytest.fixture
async def scene(server: ServerProcess, folder: Path) -> AsyncIterator[Scene]:
    """All members are in Alice's group, which is open on all screens."""
    async with AsyncExitStack() as stack:
        alice, bob = [
            await stack.enter_async_context(user_with_browser(folder, f"{server.url}/", name))
            for name in ("alice", "bob")
        ]
        for each in (alice, bob):
            await each.create_account()
        (folder / "carol").mkdir()
        session = await signed_up(folder / "carol" / "home", server.url, "carol")
        carol = stack.enter_context(closing(Terminal(folder / "carol")))
        await asyncio.to_thread(carol.start)
        await asyncio.to_thread(carol.shows, "online")
        await alice.create("club")
        await alice.invite("bob")
        await bob.press("Accept the invite")
        await alice.is_with(1)
        await alice.invite("carol")
        await asyncio.to_thread(carol.shows, "✉ club")
        carol.type("/accept", "Enter")
        await asyncio.to_thread(carol.shows, "kept forever", "encrypted")
        await alice.is_with(2)
        reader = await stack.enter_async_context(Client(server.url))
        reader.resume(session)
        [group] = [each.group_id for each in await reader.groups()]
        made = Scene(alice, bob, carol, reader, group)
        if PEER:
            process = stack.enter_context(closing(PeerProcess(Path(PEER))))
            made.eve = await stack.enter_async_context(existing_client(server.url, "eve", process))
            await alice.invite("eve")
            await made.eve.accepts()
            await alice.is_with(3)
        await made.all_talk()
        yield made


async def renew_keys(scene: Scene, *, but: BrowserUser | None = None) -> None:
    """The existing client renews its keys by a commit, and then by a proposal that Alice's browser commits."""
    if scene.eve is None:
        return
    await scene.eve.commits(scene.group)
    await scene.all_talk(but=but)
    epoch = scene.eve.mls.ask("info")["epoch"]
    await scene.eve.client.send(scene.group, scene.eve.mls.propose("update", None, None))
    async with asyncio.timeout(30):
        while scene.eve.mls.ask("info")["epoch"] == epoch:
            await scene.eve.fetches(scene.group)
            await asyncio.sleep(0.1)
    assert scene.eve.mls.ask("info")["epoch"] == epoch + 1


async def test_all_renew_keys_and_a_member_who_missed_fifty_messages_reads_them(scene: Scene) -> None:
    alice, bob = scene.alice, scene.bob
    await renew_keys(scene)
    await scene.all_talk()
    await bob.leave()
    said = []
    for number in range(17):
        said += [f"{name} tells {number}." for name in ("alice", "carol", "eve" if scene.eve else "carol again")]
        await alice.write(said[-3])
        scene.carol.type(said[-2], "Enter")
        if scene.eve:
            await scene.eve_says(said[-1])
        else:
            scene.carol.type(said[-1], "Enter")
        if number == 8:
            await renew_keys(scene, but=bob)
    await bob.open()
    await bob.go_to("club")
    for text in said:
        await bob.sees(text)
    found = [each for each in await bob.texts() if " tell" in each]
    assert sorted(found) == sorted(said), "all, and each once"
    for name in ("alice", "carol"):
        assert [each for each in found if each.startswith(f"{name} tells")] == [f"{name} tells {n}." for n in range(17)]
    await scene.all_talk()


async def test_interrupted_sends_lose_nothing_and_send_nothing_twice(
    scene: Scene, server: ServerProcess, start: Callable[[], ServerProcess]
) -> None:
    alice, bob = scene.alice, scene.bob
    # Reloaded as soon as the message is in the list.
    for text in ("one reload", "another reload"):
        await bob.write(text)
        await bob.sees(text)
        await bob.open()
        await bob.sees(text)
    await scene.read_once("one reload", "another reload")
    # Closed, then crashed, while the server has the request and does not respond.
    for text, end in (("closed in mid-send", alice.leave), ("crashed in mid-send", alice.tab.crash)):
        server.process.send_signal(signal.SIGSTOP)
        await alice.write(text)
        await alice.sees(text, ".sending")
        await end()
        server.process.send_signal(signal.SIGCONT)
        await alice.open()
        await alice.go_to("club")
        await scene.read_once(text)
    await scene.all_talk()
    # The server is killed, and messages are written before it is back.
    server.process.kill()
    server.process.wait()
    await alice.write("written by alice meanwhile")
    await alice.sees("written by alice meanwhile", ".sending")
    scene.carol.type("written by carol meanwhile", "Enter")
    with start():
        for each in (alice, bob):
            await each.hurry()
        await scene.read_once("written by alice meanwhile", "written by carol meanwhile")
        await scene.all_talk()


async def test_a_member_who_was_removed_or_lost_the_keys_rejoins_and_talks(scene: Scene) -> None:
    alice, bob = scene.alice, scene.bob
    await alice.open_member("bob")
    await alice.press("Remove")
    await alice.sees("Remove bob?", "dialog")
    await alice.press("Remove")
    await alice.close_dialogs()
    await bob.sees("No conversations yet.", ".sidebar")
    await alice.is_with(scene.others - 1)
    await scene.all_talk(but=bob)
    await alice.invite("bob")
    await bob.press("Accept the invite")
    await alice.is_with(scene.others)
    await scene.all_talk()
    assert [each for each in await bob.texts() if "says 2" in each] == [], "sent while he was not a member"
    # Bob's browser loses its data.
    await bob.clear_site_data()
    await bob.open()
    await bob.log_in(replaces=True)
    await bob.go_to("club")
    await bob.is_with(scene.others)
    await alice.press("Accept without comparing")
    await alice.is_with(scene.others)
    await scene.shows("bob's key has changed")
    scene.carol.type("to the new bob", "Enter")
    await scene.shows("Send anyway")
    scene.carol.type("", "Left", "Enter")
    await scene.all_read("to the new bob")
    await scene.all_talk()
    assert [each for each in await bob.texts() if "says 3" in each] == [], "sent to his former keys"


async def test_messages_disappear_from_all_screens_in_the_second_they_expire(scene: Scene) -> None:
    alice, bob = scene.alice, scene.bob
    # Taken back.
    await alice.write("a slip of the pen")
    await scene.all_read("a slip of the pen")
    await alice.take_back("a slip of the pen")
    await scene.gone_at("a slip of the pen")
    # Self-destructing messages start their timers when seen: Bob has reloaded the page, without any input since.
    await bob.open()
    await bob.sees("alice says 1.")
    await alice.write_self_destructing("burn after reading")
    sent = time.time()
    await scene.all_read("burn after reading")
    assert LEAST <= await alice.gone_at("burn after reading") - sent <= MOST
    await scene.hides("burn after reading")
    await asyncio.sleep(2)
    assert "burn after reading" in await bob.texts()
    await fake.press(bob.tab, "ArrowUp")
    seen = time.time()
    assert LEAST <= await bob.gone_at("burn after reading") - seen <= MOST
    # By the policy: older messages disappear at once, new ones in the second they expire.
    await alice.open_member("carol")
    await alice.press("Make admin")
    await alice.close_dialogs()
    await scene.shows("you are an admin")
    scene.carol.type("/expire 8s", "Enter")
    await scene.shows("Change expiry?")
    scene.carol.type("", "Left", "Enter")
    await scene.gone_at("alice says 1.")
    for text in ("said in a browser", "said in a terminal"):
        if text == "said in a browser":
            await alice.write(text)
        else:
            scene.carol.type(text, "Enter")
        await scene.all_read(text)
        due = await scene.created_at() + 8 + 1
        await bob.press("More actions for the message from")
        await bob.sees("Reply", "dialog")
        moments = await scene.gone_at(text)
        late = {name: round(at - due, 2) for name, at in moments.items()}
        assert {name: each for name, each in late.items() if not -EARLY_SECONDS <= each <= LATE_SECONDS} == {}
        await bob.sees("This message is gone.", "dialog")
        await bob.close_dialogs()
