"""The bot of docs/client.md runs as it is written there, and the page's table of errors is that of the library."""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest

from conclave import client as library
from conclave.client import Client, History, MessageArrived, MlsCodec, Sync
from conclave.client.encryption.view import EncryptionStatus
from tests.support.client import PASSWORD
from tests.support.server import PATIENCE, USUAL_SIGNALS, ServerProcess

PAGE = (Path(__file__).parents[2] / "docs" / "client.md").read_text(encoding="utf-8")


@contextlib.asynccontextmanager
async def alice(folder: Path) -> AsyncIterator[tuple[Sync, dict[str, str]]]:
    """Write the bot, make it an account, and have somebody else online; yield her and the bot's environment."""
    write_bot(folder)
    (folder / "server").mkdir()
    with ServerProcess(folder / "server", '[cleanup]\nengine = "sql"\ndisk_reserve = "0"\n') as server:
        variables = {"CONCLAVE_URL": server.url, "CONCLAVE_USER": "bot", "CONCLAVE_PASSWORD": PASSWORD}
        async with Client(server.url) as client, asyncio.timeout(2 * PATIENCE):
            await client.register("bot", PASSWORD)
            await client.register("alice", PASSWORD)
            await client.login("alice", PASSWORD)
            with History() as history, MlsCodec(None, client.session.user_id) as codec:
                async with Sync(client, history, codec) as sync:
                    yield sync, os.environ | variables


@pytest.mark.system
async def test_the_bot_answers_and_goes_on_where_it_was(tmp_path: Path) -> None:
    async with alice(tmp_path) as (sync, environment):
        first = subprocess.Popen([sys.executable, "-P", "bot.py"], cwd=tmp_path, env=environment)
        try:
            group = await sync.membership.create("club")
            await invite(sync, group)
            await sync.send(group, "ping")
            assert await texts(sync, 2) == ["ping", "pong"]
        finally:
            first.kill()
            first.wait()
        await sync.send(group, "ping")
        again = subprocess.Popen([sys.executable, "-P", "bot.py"], cwd=tmp_path, env=environment)
        try:
            assert await texts(sync, 2) == ["ping", "pong"], "also what was said while it was away"
        finally:
            again.kill()
            again.wait()


@pytest.mark.system
async def test_the_bot_logs_says_in_a_line_what_is_wrong_and_stops_on_sigterm(tmp_path: Path) -> None:
    write_bot(tmp_path)
    (tmp_path / "server").mkdir()
    command = [*USUAL_SIGNALS, sys.executable, "-P", "bot.py"]
    with ServerProcess(tmp_path / "server", '[cleanup]\nengine = "sql"\ndisk_reserve = "0"\n') as server:
        variables = os.environ | {"CONCLAVE_URL": server.url, "CONCLAVE_USER": "bot", "CONCLAVE_PASSWORD": PASSWORD}
        async with Client(server.url) as client:
            await client.register("bot", PASSWORD)
        wrong = variables | {"CONCLAVE_PASSWORD": "something else"}
        done = subprocess.run(command, cwd=tmp_path, env=wrong, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (1, "")
        [line] = done.stderr.splitlines()
        assert line.startswith("bot: ")
        assert "password" in line
        for number in (signal.SIGTERM, signal.SIGINT):
            with subprocess.Popen(command, cwd=tmp_path, env=variables, stderr=subprocess.PIPE, text=True) as bot:
                assert bot.stderr
                assert "INFO online as bot" in bot.stderr.readline()
                bot.send_signal(number)
                left = bot.stderr.read().splitlines()
            assert bot.returncode == 0, left
            assert left[-1].endswith("INFO stopped")


@pytest.mark.system
async def test_the_bot_goes_on_where_an_invite_is_cancelled_before_it_has_accepted(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "bot.py"]
    async with alice(tmp_path) as (sync, environment):
        with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as bot:
            try:
                assert bot.stderr
                assert "online" in bot.stderr.readline()
                group = await sync.membership.create("club")
                await has_keys(sync, group)
                bot.send_signal(signal.SIGSTOP)
                await sync.membership.invite(group, "bot")
                [invited] = await sync.client.invites_of(group)
                await sync.client.cancel_invite(group, invited.invitee_id)
                bot.send_signal(signal.SIGCONT)
                assert "invited to club" in bot.stderr.readline()
                assert "WARNING" in bot.stderr.readline()
                await invite(sync, group)
                await sync.send(group, "ping")
                assert await texts(sync, 2) == ["ping", "pong"]
            finally:
                bot.kill()


@pytest.mark.system
async def test_the_bot_is_silent_when_a_key_has_changed_until_a_person_has_compared_it(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "bot.py"]
    async with alice(tmp_path) as (sync, environment):
        with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as bot:
            try:
                assert bot.stderr
                group = await sync.membership.create("club")
                await invite(sync, group)
                await sync.send(group, "ping")
                assert await texts(sync, 2) == ["ping", "pong"]
                await sync.reset()
                listening = asyncio.create_task(texts(sync, 1))
                while sync.codec.view(group).status is not EncryptionStatus.ENCRYPTED:
                    await asyncio.sleep(0.05)
                await sync.send(group, "ping")
                assert await listening == ["ping"]
                line = await asyncio.to_thread(_line_with, bot, "changed its key")
                assert sync.codec.fingerprint in line
            finally:
                bot.kill()
        told = environment | {"CONCLAVE_COMPARED": sync.codec.fingerprint}
        with subprocess.Popen(command, cwd=tmp_path, env=told) as bot:
            try:
                await sync.send(group, "ping")
                heard = await texts(sync, 2)
                assert heard[-1] == "pong"
            finally:
                bot.kill()
    (tmp_path / "bot.keys").write_bytes(b"no keys at all, but a long text" * 100)
    with ServerProcess(tmp_path / "server", '[cleanup]\nengine = "sql"\ndisk_reserve = "0"\n') as server:
        environment["CONCLAVE_URL"] = server.url
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith("bot: bot.keys: is not a key file of a client")


def _line_with(bot: "subprocess.Popen[str]", text: str) -> str:
    assert bot.stderr
    return next(line for line in bot.stderr if text in line)


async def has_keys(sync: Sync, group: UUID) -> None:
    """Wait until the bot can be invited."""
    bot = await sync.client.user("bot")
    while True:
        try:
            await sync.client.key_packages_for(group, [bot.user_id])
        except library.ResourceError:
            await asyncio.sleep(0.05)
        else:
            return


def write_bot(folder: Path) -> None:
    """Write the bot of the page into a folder."""
    [program] = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    assert len(program.splitlines()) <= 60
    (folder / "bot.py").write_text(program)


async def invite(sync: Sync, group: UUID) -> None:
    """Invite the bot as soon as it has key packages, and wait until it has accepted."""
    while True:
        try:
            await sync.membership.invite(group, "bot")
        except library.ResourceError:
            await asyncio.sleep(0.05)
        else:
            break
    while len((await sync.client.groups())[0].members) < 2:
        await asyncio.sleep(0.05)


async def texts(sync: Sync, count: int) -> list[str | None]:
    heard: list[str | None] = []
    news = aiter(sync)
    while len(heard) < count:
        each = await anext(news)
        if isinstance(each, MessageArrived):
            heard.append(each.message.text)
    sync.history.mark_handled(each.message.group_id, each.message.sequence_num)  # type: ignore[union-attr]  # the last one is a message
    await news.aclose()  # type: ignore[attr-defined]  # it is a generator
    return heard


def test_the_table_of_errors_has_every_class() -> None:
    table = set(re.findall(r"^\| `(\w+Error)` \|", PAGE, flags=re.MULTILINE))
    classes = {
        name
        for name, value in vars(library).items()
        if isinstance(value, type) and issubclass(value, library.ClientError)
    }
    assert table == classes - {"ClientError", "RefusedError"}
