"""A circle of people for days on end: some at the chat in a real terminal, some by the library, and a bot."""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

from conclave.client import Client, History, LoginSession, MessageArrived, MlsCodec, NotReadyError, ResourceError, Sync
from conclave.client.encryption.view import EncryptionStatus
from conclave.wire.events import InviteReceived
from tests.client.chat.test_terminal import Terminal
from tests.support.client import PASSWORD
from tests.support.nights import ROOT, Nights, SleptClock
from tests.support.server import PATIENCE, USUAL_SIGNALS, alive, until

AGAIN_SECONDS = 10.0
"""After which an invite that was refused is typed again."""


class AtATerminal:
    """Somebody at the chat. A morning begins it, an evening ends it."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self._folder = folder / name
        self._folder.mkdir()
        self._known = False
        self.password = ""
        """What to log in with once more, where the session is over."""

    async def comes(self, url: str, environment: dict[str, str], token: str = "") -> None:
        """Open a terminal and the chat: the first time with a new account, by ``token``."""
        self._terminal = Terminal(self._folder)
        variables = " ".join(f"{name}={value}" for name, value in environment.items())
        self._terminal.type(f"export {variables}; clear", "Enter")
        self._process = await asyncio.to_thread(self._terminal.start, *(() if self._known else (url,)))
        if not self._known:
            await self.shows("Create account")
            self.type(self.name, "Enter")
            self.type(PASSWORD, "Tab", "Tab", "Enter")
            await self.shows("Repeat")
            self.type(PASSWORD, "Enter")
            if token:
                await self.shows("token")
                self.type(token, "Enter")
            await self.shows("You have no groups yet.")
        if self.password:
            await self.logs_in(self.password)
            self.password = ""
        self._known = True
        await self.shows(f"{self.name} at", "online")

    async def logs_in(self, password: str) -> None:
        """Log in once more, where the session is over."""
        await self.shows("session has expired")
        self.type(password, "Enter")

    async def goes(self) -> None:
        self.type("/quit", "Enter")
        await until(lambda: not alive(self._process))
        self._terminal.close()

    def close(self) -> None:
        self._terminal.close()

    def type(self, text: str, *keys: str) -> None:
        self._terminal.type(text, *keys)

    async def does(self, line: str, *shown: str) -> None:
        """Type a line; wait until the screen shows some texts."""
        self.type(line, "Enter")
        await self.shows(*shown)

    async def invites(self, name: str) -> None:
        """Invite somebody, and again where the keys for that are on their way."""
        while True:
            self.type(f"/invite {name}", "Enter")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_SECONDS):
                    await until(lambda: f"Invited {name}" in self.screen)
                    return

    async def says(self, group: str, text: str) -> None:
        await self.opens(group)
        await self.does(text, text)

    async def opens(self, group: str) -> None:
        await self.does(f"/go {group}", f" {group} ")

    async def shows(self, *texts: str) -> None:
        await asyncio.to_thread(self._terminal.shows, *texts)

    async def hides(self, text: str) -> None:
        await asyncio.to_thread(self._terminal.hides, text)

    async def is_ready(self, group: str) -> None:
        """Wait until everybody there can read everybody."""
        await self.opens(group)
        await until(self._encrypts_for_all)

    def _encrypts_for_all(self) -> bool:
        screen = self.screen
        members = re.search(r"([0-9]+) members", screen)
        return members is not None and f"encrypted, 0 of {int(members[1]) - 1} verified" in screen

    async def has(self, group: str, texts: list[str]) -> None:
        """Wait until the last of the texts are on the screen of the group, in any order."""
        await self.opens(group)
        await self.shows(*texts[-4:])

    async def lacks(self, word: str) -> None:
        """Have all groups searched for what has gone."""
        await self.does(f"/search all {word}", "No local message in your groups contains")
        self.type("", "Escape")

    @property
    def screen(self) -> str:
        return self._terminal.screen()


class ByTheLibrary:
    """Somebody whose program is of a few lines, and accepts each invite."""

    def __init__(self, name: str, folder: Path, nights: Nights) -> None:
        self.name = name
        self._files = folder / name
        self._nights = nights
        self._session: LoginSession | None = None
        self._stack = contextlib.AsyncExitStack()

    async def comes(self, url: str, token: str = "") -> None:
        self._stack = contextlib.AsyncExitStack()
        self.client = await self._stack.enter_async_context(Client(url))
        if self._session is None:
            await self.client.register(self.name, PASSWORD, registration_token=token)
            self._session = await self.client.login(self.name, PASSWORD)
        else:
            self.client.resume(self._session)
        clock = SleptClock(self._nights)
        self.history = self._stack.enter_context(History(self._files.with_suffix(".history"), clock=clock))
        self._codec = self._stack.enter_context(MlsCodec(self._files.with_suffix(".keys"), self._session.user_id))
        self.sync = await self._stack.enter_async_context(Sync(self.client, self.history, self._codec))
        self._listening = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        for each in await self.client.invites():
            await self.client.accept_invite(each.invite_id)
        async for news in self.sync:
            match news:
                case InviteReceived():
                    with contextlib.suppress(ResourceError):  # it was among those that had come before
                        await self.client.accept_invite(news.invite_id)
                case MessageArrived(message):
                    self.sync.read(message.group_id, message.sequence_num)

    async def goes(self) -> None:
        self._listening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._listening
        await self._stack.aclose()

    async def logs_in(self, url: str, password: str) -> None:
        """Get a new session, as after a restore, which ends all."""
        async with Client(url) as client:
            self._session = await client.login(self.name, password)

    async def group(self, name: str) -> UUID:
        async def found() -> UUID | None:
            return next((each.group_id for each in await self.client.groups() if each.group_name == name), None)

        group_id = await until(found)
        assert group_id
        return group_id

    async def says(self, group: str, text: str) -> None:
        group_id = await self.group(group)
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    await self.sync.send(group_id, text)
                except NotReadyError:  # its keys are on their way
                    continue
                return

    async def is_ready(self, group: str) -> None:
        group_id = await self.group(group)

        async def encrypts_for_all() -> bool:
            [group] = [each for each in await self.client.groups() if each.group_id == group_id]
            view = self._codec.view(group_id)
            return view.status is EncryptionStatus.ENCRYPTED and len(group.members) == len(view.members) + 1

        await until(encrypts_for_all)

    async def has(self, group: str, texts: list[str]) -> None:
        await self._until(group, lambda known: {*texts} <= known, f"{texts}")

    async def lacks(self, group: str, texts: list[str]) -> None:
        await self._until(group, lambda known: not {*texts} & known, f"none of {texts}")

    async def _until(self, group: str, holds: Callable[[set[str | None]], bool], what: str) -> None:
        group_id = await self.group(group)
        try:
            await until(lambda: holds(self._texts(group_id)))
        except TimeoutError as error:
            raise AssertionError(f"{self.name} in {group}: {what}, of {self._texts(group_id)}") from error

    def _texts(self, group_id: UUID) -> set[str | None]:
        assert not self._listening.done(), self._listening
        return {message.text for message in self.history.last_messages(group_id, 1_000)}


class Bot:
    """The bot of docs/client.md, in a process of its own."""

    def __init__(self, name: str, folder: Path) -> None:
        self._folder = folder / name
        self._folder.mkdir()
        self.name = name

    def comes(self, url: str, environment: dict[str, str]) -> None:
        page = (ROOT / "docs" / "client.md").read_text(encoding="utf-8")
        [program] = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
        (self._folder / "bot.py").write_text(program)
        account = {"CONCLAVE_URL": url, "CONCLAVE_USER": self.name, "CONCLAVE_PASSWORD": PASSWORD}
        command = [*USUAL_SIGNALS, sys.executable, "-P", "bot.py"]
        with (self._folder / "log").open("a") as log:
            self._process = subprocess.Popen(
                command, cwd=self._folder, env=os.environ | environment | account, stderr=log
            )

    async def goes(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(self._process.wait, PATIENCE) == 0, (self._folder / "log").read_text()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
