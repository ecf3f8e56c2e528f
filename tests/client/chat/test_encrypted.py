"""Two chats in real terminals and a client of the library, at a real server that can read nothing of it."""

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, closing
from pathlib import Path

import pytest

from conclave.clock import SystemClock
from tests.client.chat.test_terminal import Terminal
from tests.client.encryption.devices import Device
from tests.client.encryption.test_files import secrets
from tests.support.chatting import signed_up
from tests.support.server import ServerProcess, alive, waiting

pytestmark = pytest.mark.system


SAID = ["the heron stands in the reeds", "the otter has seen it", "the pike says nothing"]


@pytest.fixture
async def carol(server: ServerProcess, tmp_path: Path) -> AsyncIterator[Device]:
    async with AsyncExitStack() as stack:
        made = Device(server.url, "carol", tmp_path, SystemClock())
        stack.push_async_callback(made.end)
        await made.begin()
        await made.connect()
        yield made


def kill(terminal: Terminal, process: int) -> None:
    os.kill(process, signal.SIGKILL)
    for _ in waiting("its end"):
        if not alive(process):
            return


async def test_two_chats_and_a_client_of_the_library_talk_and_the_server_reads_nothing(
    server: ServerProcess, carol: Device, tmp_path: Path
) -> None:
    if not shutil.which("tmux"):
        pytest.skip("no terminal to look at: tmux is not installed (Debian: apt install tmux)")
    homes = {name: tmp_path / name for name in ("alice", "bob")}
    for name, folder in homes.items():
        folder.mkdir()
        await signed_up(folder / "home", server.url, name)
    with closing(Terminal(homes["alice"])) as alice, closing(Terminal(homes["bob"])) as bob:

        async def shows(terminal: Terminal, *texts: str) -> None:
            await asyncio.to_thread(terminal.shows, *texts)

        started = {each: await asyncio.to_thread(each.start) for each in (alice, bob)}
        await shows(alice, "online")
        await shows(bob, "online")
        alice.type("/new pond", "Enter")
        await shows(alice, "you are an admin", "encrypted")
        alice.type("/invite bob", "Enter")
        await shows(bob, "✉ pond")
        bob.type("/accept", "Enter")
        await shows(bob, "kept forever", "encrypted")
        alice.type("/invite carol", "Enter")
        [group] = [each.group_id for each in await carol.until_groups(1)]
        await carol.comes_in(group)
        alice.type(SAID[0], "Enter")
        await shows(bob, SAID[0])
        bob.type(SAID[1], "Enter")
        await shows(alice, SAID[1])
        await carol.sync.send(group, SAID[2])
        await shows(alice, SAID[2])
        await shows(bob, SAID[2])

        kill(bob, started[bob])
        with closing(Terminal(homes["bob"])) as again:
            await asyncio.to_thread(again.start)
            await shows(again, *SAID)
            again.type("after the kill", "Enter")
            await shows(alice, "after the kill")
            await carol.hears("after the kill")
            again.type("/leave", "Enter")
            await shows(again, "Leave pond?")
            again.type("", "Left", "Enter")
            await shows(again, "no group")
            await carol.until(lambda: len(carol.mls(group).members()) == 2)
            alice.type("without Bob", "Enter")
            await carol.hears("without Bob")
            alice.type("/invite bob", "Enter")
            await shows(again, "✉ pond")
            again.type("/accept", "Enter")
            await shows(again, "kept forever", "encrypted")
            assert "without Bob" not in again.screen()

        homes["bob again"] = tmp_path / "bob_again"
        await signed_up(homes["bob again"] / "home", server.url, "bob", is_new=False)
        with closing(Terminal(homes["bob again"])) as reinstalled:
            await asyncio.to_thread(reinstalled.start)
            await shows(reinstalled, "kept forever", "encrypted")
            await shows(alice, "bob's key has changed")
            alice.type("to the new Bob", "Enter")
            await shows(alice, "has not been sent", "Send anyway")
            alice.type("", "Left", "Enter")
            await shows(reinstalled, "to the new Bob")
            await carol.hears("to the new Bob")
            reinstalled.type("from the new Bob", "Enter")
            await carol.hears("from the new Bob")
            assert SAID[0] not in reinstalled.screen()
            alice.type("/remove bob", "Enter")
            await shows(alice, "Remove bob")
            alice.type("", "Left", "Enter")
            await shows(reinstalled, "no group")
            await carol.until(lambda: len(carol.mls(group).members()) == 2)
            alice.type("after the kick", "Enter")
            await carol.hears("after the kick")
            assert "after the kick" not in reinstalled.screen()

    held = b"".join(each.read_bytes() for each in server.folder.rglob("*") if each.is_file())
    for text in [*SAID, "after the kill", "without Bob", "to the new Bob", "from the new Bob", "after the kick"]:
        assert text.encode() not in held
    keys = carol.codec._own_keys.stored_packages()
    own = {each for one in keys for each in (one.init_private, one.encryption_private, one.signature_private)}
    assert [each for each in secrets(carol.mls(group)) | own if each in held] == [], "a key is in a file of the server"
