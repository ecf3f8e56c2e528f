"""A week of ten people: chats in real terminals, programs by the library, a bot, and an operator at work.

The operator makes a backup each night, shortens what is kept, holds a group, loses the disk and restores it, and lets
people in and out. Nobody may read what has gone, and nobody may miss what is there. The short form has three terminals
and SQL; the whole (`make trials`) six, Spark and an archive, and many messages.
"""

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from conclave.client import Client
from tests.support.circle import AtATerminal, Bot, ByTheLibrary
from tests.support.client import PASSWORD
from tests.support.nights import Nights
from tests.support.proxies import free_ports
from tests.support.sample import amount, is_all
from tests.support.server import PATIENCE, ServerProcess

DAY = 86_400
NAMES = ["ann", "ben", "cleo", "dora", "emil", "finn", "gwen", "hugo", "ines"]


class Operator:
    """The server from day to day, and the commands."""

    def __init__(self, folder: Path, nights: Nights) -> None:
        self.folder = folder
        self.folder.mkdir()
        self.nights = nights
        self.policy = 'message_retention = "30d"\n'
        self._ports = free_ports(2)
        self.backups = folder.parent / "backups"

    def settings(self) -> str:
        engine = 'engine = "sql"' if not is_all() else 'engine = "spark"'
        archive = '\n[archive]\nafter = "1d"' if is_all() else ""
        return (
            f'listen_address = "127.0.0.1"\nlisten_port = {self._ports[0]}\n'
            f'database_path = "{self.folder}/conclave.db"\n'
            f"registration_enabled = false\n{self.policy}"
            f'[cleanup]\n{engine}\ndisk_reserve = "0"{archive}\n[admin]\nlisten_port = {self._ports[1]}\n'
        )

    def starts(self, *options: str) -> None:
        self.server = ServerProcess(
            self.folder,
            env=self.environment,
            file=(self.folder / "conclave.toml", self.settings()),
            options=options,
        )
        self.url = self.server.wait_for("listening")["url"]

    @property
    def environment(self) -> dict[str, str]:
        return self.nights.environment()

    def stops(self) -> None:
        status, _ = self.server.stop()
        assert status == 0
        assert [each for each in self.server.events() if each.get("level") in ("error", "critical")] == []

    def tries(self, *words: str | Path) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-P", "-m", "conclave", *words]
        environment = os.environ | self.environment | {"CONCLAVE_CONFIG": str(self.folder / "conclave.toml")}
        return subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=PATIENCE
        )

    async def does(self, *words: str | Path) -> str:
        """Do a command, and return what it prints."""
        ran = await asyncio.to_thread(self.tries, *words)
        assert ran.returncode == 0, (words, ran.stdout, ran.stderr)
        return ran.stdout

    async def restores(self, backup: Path) -> None:
        """Lose the disk with database and archive, and bring a backup back; all sessions are over."""
        for lost in self.folder.glob("conclave.db*"):
            if "ledger" not in lost.name:
                lost.unlink()
        shutil.rmtree(self.folder / "conclave.data", ignore_errors=True)
        await self.does("restore", backup)

    async def makes_a_backup(self) -> Path:
        await self.does("backup", "--keep", "3", self.backups)
        made = max(self.backups.glob("20*"))
        await self.does("backup", "verify", made)
        return made

    async def looks(self) -> None:
        """Look whether all is as it should be."""
        await self.does("cleanup", "run")
        assert "health:     ok" in await self.does("status")
        assert "wrong" not in await self.does("doctor")
        await self.does("verify-erasure")
        await self.does("evidence", "verify")


class Week:
    """Who takes part, and what was said."""

    def __init__(self, folder: Path, operator: Operator, nights: Nights) -> None:
        count = amount(6, 3)
        self.operator = operator
        self.nights = nights
        self.chats = [AtATerminal(name, folder) for name in NAMES[:count]]
        self.programs = [ByTheLibrary(name, folder, nights) for name in NAMES[count:]]
        self.bot = Bot("robin", folder)
        self.backup = Path()
        self.said: dict[str, list[tuple[int, str]]] = {}

    async def morning(self, token: str = "") -> None:
        """Have all come who were there yesterday; with ``token``, for the first time."""
        for program in self.programs:
            await program.comes(self.operator.url, token)
        self.bot.comes(self.operator.url, self.operator.environment)
        await asyncio.gather(*(each.comes(self.operator.url, self.operator.environment, token) for each in self.chats))

    async def evening(self) -> None:
        for each in self.chats:
            await each.goes()
        for program in self.programs:
            await program.goes()
        await self.bot.goes()

    async def logs_in(self) -> None:
        """Begin anew where all sessions are over."""
        for program in self.programs:
            await program.logs_in(self.operator.url, PASSWORD)
        for each in self.chats:
            each.password = PASSWORD

    @property
    def today(self) -> int:
        return self.nights.slept // DAY

    async def talk(self, group: str, *absent: str) -> None:
        """Have everybody in a group say something, and wait until all have it.

        Who has accepted comes in a moment later, and cannot read what is said until then.
        """
        said = self.said.setdefault(group, [])
        here = [each for each in self.everyone if each.name not in absent]
        for each in here:
            await each.is_ready(group)
        for number in range(amount(5, 1)):
            for each in here:
                text = f"{each.name} on day {self.today}: {number}"
                await each.says(group, text)
                said.append((self.today, text))
        for each in here:
            await each.has(group, self.words(group, self.today))

    @property
    def everyone(self) -> list[AtATerminal | ByTheLibrary]:
        return [*self.chats, *self.programs]

    def words(self, group: str, day: int) -> list[str]:
        return [text for when, text in self.said[group] if when == day]

    async def opens(self) -> str:
        """Make a token for all, and the bot's account; return the token."""
        token = (await self.operator.does("invite-token", "new", "--uses", "10", "--expires", "7d")).strip()
        async with Client(self.operator.url) as client:
            await client.register(self.bot.name, PASSWORD, registration_token=token)
        return token

    async def invites(self, name: str) -> ByTheLibrary:
        """Let somebody in who is new here, and into the group."""
        somebody = ByTheLibrary(name, self.operator.folder.parent, self.nights)
        token = await self.operator.does("invite-token", "new", "--expires", "1d")
        await somebody.comes(self.operator.url, token.strip())
        await self.chats[0].opens("book_club")
        await self.chats[0].invites(name)
        return somebody

    async def has_gone(self, group: str, day: int) -> None:
        """Look in every program for what was said on a day that is past."""
        texts = self.words(group, day)
        assert texts
        for program in self.programs:
            await program.lacks(group, texts)
        for each in self.chats:
            await each.lacks(f'"on day {day}"')


@pytest.fixture
async def week(tmp_path: Path) -> AsyncIterator[Week]:
    if not shutil.which("tmux"):
        pytest.skip("no terminal to type into: tmux is not installed (Debian: apt install tmux)")
    nights = Nights(tmp_path / "nights")
    operator = Operator(tmp_path / "server", nights)
    made = Week(tmp_path, operator, nights)
    try:
        yield made
    finally:
        ends = [*(each.close for each in made.chats), made.bot.close]
        for end in ends:
            with contextlib.suppress(AttributeError):  # it has not come yet
                end()
        with contextlib.suppress(AttributeError):
            operator.server.__exit__()


async def test_a_week_of_ten_people(week: Week) -> None:
    operator = week.operator
    for number, day in enumerate([monday, tuesday, wednesday, thursday, friday, saturday, sunday]):
        if number == 3:
            await operator.restores(week.backup)
        operator.starts()
        if number == 3:
            await week.logs_in()
        await week.morning("" if number else await week.opens())
        await day(week)
        if is_all() or day in (monday, thursday, sunday):
            await operator.looks()
        await week.evening()
        operator.stops()
        week.nights.slept += DAY


async def monday(week: Week) -> None:
    """A group of all ten."""
    ann, *_ = week.chats
    await ann.does("/new book_club", "you are an admin")
    await ann.does("/expire 2d", "deleted after 2 days")
    for name in [*NAMES[1:], week.bot.name]:
        await ann.invites(name)
    for each in week.chats[1:]:
        await each.shows("/accept")
        await each.does("/accept", "deleted after 2 days")
    await week.talk("book_club")
    await ann.does("ping", "pong")
    await week.operator.makes_a_backup()


async def tuesday(week: Week) -> None:
    """All is there. A group forgets what all have fetched, and somebody takes a word back."""
    ann, ben, *_ = week.chats
    for each in week.everyone:
        await each.has("book_club", week.words("book_club", 0))
    await week.talk("book_club")
    await ann.says("book_club", "a slip of the tongue")
    for program in week.programs:
        await program.has("book_club", ["a slip of the tongue"])
    await ann.does("/undo")
    await ann.hides("a slip")
    for program in week.programs:
        await program.lacks("book_club", ["a slip of the tongue"])
    await ann.does("/new minutes", "you are an admin")
    for program in week.programs[:2]:
        await ann.invites(program.name)
    await week.programs[0].says("minutes", "decided on Tuesday")
    await ann.has("minutes", ["decided on Tuesday"])
    await ben.does("/new whispers", "you are an admin")
    await ben.does("/expire fetched", "fetched")
    await ben.does("/invite ann", "Invited ann")
    await ann.shows("whispers")
    await ann.does("/accept whispers", "fetched")
    await ben.says("whispers", "between us")
    await ann.has("whispers", ["between us"])
    await week.operator.makes_a_backup()


async def wednesday(week: Week) -> None:
    """What was said on Monday goes. The operator may not hide much by mistake, holds a group, and loses the disk."""
    operator = week.operator
    await week.talk("book_club")
    await week.has_gone("book_club", 0)
    operator.stops()
    operator.policy = 'message_retention = "1h"\n'
    (operator.folder / "conclave.toml").write_text(operator.settings())
    refused = await asyncio.to_thread(operator.tries, "serve")
    assert (refused.returncode, "this change would hide" in refused.stderr) == (1, True)
    operator.policy = 'message_retention = "14d"\n'
    operator.starts()
    await operator.does("hold", "add", "--group", "book_club", "--reason", "a lawsuit")
    week.backup = await operator.makes_a_backup()
    zoe = await week.invites("zoe")
    await zoe.says("book_club", "said by zoe")
    await week.chats[1].says("book_club", "said after the backup")
    for each in week.everyone:
        await each.has("book_club", ["said by zoe", "said after the backup"])
    await zoe.goes()


async def thursday(week: Week) -> None:
    """Wednesday's backup was restored, from before zoe had come: her account is lost, and the keys since then.

    All log in again, and go on. What the server has lost, people still have; but not what zoe has said, since it goes
    with an account that is no more.
    """
    await week.talk("book_club")
    for each in week.programs:
        await each.has("book_club", ["said after the backup"])
        await each.lacks("book_club", ["said by zoe"])


async def friday(week: Week) -> None:
    """Somebody leaves, somebody is deleted, somebody has forgotten the password, and somebody new comes."""
    operator, ben = week.operator, week.chats[1]
    leaver, deleted = week.programs[-1], week.programs[-2]
    await leaver.sync.leave(await leaver.group("book_club"))
    await deleted.goes()
    await operator.does("user", "delete", deleted.name, "--yes")
    for each in (leaver, deleted):
        week.programs.remove(each)
    await leaver.goes()
    password = (await operator.does("user", "reset-password", ben.name)).strip()
    await ben.logs_in(password)
    await ben.shows(f"{ben.name} at", "online")
    joe = await week.invites("joe")
    week.programs.append(joe)
    await week.talk("book_club")
    await joe.lacks("book_club", week.words("book_club", 3))


async def saturday(week: Week) -> None:
    """The hold ends, and what it has kept goes; a backup is made as every night."""
    [held] = (await week.operator.does("hold", "list", "--json")).splitlines()
    await week.operator.does("hold", "release", str(json.loads(held)["id"]))
    await week.talk("book_club")
    await week.has_gone("book_club", 3)
    await week.operator.makes_a_backup()


async def sunday(week: Week) -> None:
    """All is purged, and the group goes on."""
    ann = week.chats[0]
    exported = json.loads(await week.operator.does("export", "ann"))
    assert exported["messages"]
    if is_all():
        assert "the archive is intact" in await week.operator.does("archive", "verify")
    await ann.has("minutes", ["decided on Tuesday"])
    await week.operator.does("cleanup", "purge", "--group", "book_club", "--before", "1s", "--yes")
    await week.has_gone("book_club", 5)
    await week.talk("book_club")
    await ann.does("ping", "pong")
