"""The chat as it is started by default: encrypted end to end, with keys of its own, at a real server."""

import contextlib
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from conclave.client.chat.options import create_mls_codec
from conclave.client.encryption.comparison import comparison_code
from tests.support.chatting import Chat, chatting, signed_up, until
from tests.support.server import ServerProcess

pytestmark = pytest.mark.system


@contextlib.asynccontextmanager
async def talking(server: ServerProcess, home: Path, name: str) -> AsyncIterator[tuple[Chat, Chat]]:
    """Two people in a group of theirs."""
    people = f"{name}_one", f"{name}_two"
    for who in people:
        await signed_up(home / who, server.url, who)
    async with (
        chatting(home / people[0], size=(100, 30), make_codec=create_mls_codec) as one,
        chatting(home / people[1], size=(100, 30), make_codec=create_mls_codec) as two,
    ):
        await one.do(f"/new {name}")
        await one.shows("you are an admin", "encrypted · docs/encryption.md")
        await one.do(f"/invite {people[1]}")
        await two.shows(f"✉ {name}")
        await two.do("/accept")
        await two.open(name)
        for each in (one, two):
            await each.shows("encrypted, 0 of 1 verified")
        yield one, two


def bytes_of(server: ServerProcess) -> bytes:
    """What the server has in its files, its log among them."""
    return b"".join(each.read_bytes() for each in server.folder.rglob("*") if each.is_file())


async def test_two_people_talk_and_the_server_has_no_word_of_it(server: ServerProcess, tmp_path: Path) -> None:
    async with talking(server, tmp_path, "duet") as (one, two):
        one.type("the heron stands in the reeds", "enter")
        await two.shows("the heron stands in the reeds", "duet_one")
        two.type("and the otter swims below", "enter")
        await one.shows("and the otter swims below")
        await until(lambda: not one.room.pending and not two.room.pending)
        stored = bytes_of(server)
        assert b"duet" in stored, "what is no message is found"
        for text in (b"heron stands", b"otter swims"):
            assert text not in stored
    keys = list(tmp_path.rglob("codec/keys"))
    assert len(keys) == 2
    for each in keys:
        assert stat.S_IMODE(each.stat().st_mode) == 0o600
        assert b"heron stands" not in each.read_bytes(), "it is in the history alone"


async def test_both_see_one_code_and_what_was_compared_stays_so(server: ServerProcess, tmp_path: Path) -> None:
    async with talking(server, tmp_path, "code") as (one, two):
        prints = [each.conversation.keys.fingerprint for each in (one, two)]
        code = comparison_code(*prints)
        for chat, other in ((one, "code_two"), (two, "code_one")):
            await chat.do(f"/verify {other}")
            await chat.asked(f"Compare keys with {other}", "  ".join(code.digits[:3]), "  ".join(code.words[:4]))
            chat.press("left", "enter")
            await chat.shows("encrypted, all of 1 verified")
        one.press("f2")
        await one.asked("code_two  verified", prints[1][:50], prints[0][:50])
        one.press("escape")


async def test_new_keys_are_told_loudly_and_asked_about_before_anything_is_sent(
    server: ServerProcess, tmp_path: Path
) -> None:
    async with talking(server, tmp_path, "anew") as (one, two):
        await one.do("/verify anew_two")
        await one.asked("Compare keys")
        one.press("left", "enter")
        await one.shows("all of 1 verified")
        await two.do("/reset")
        await two.asked("Create new keys?", "unreadable")
        two.press("left", "enter")
        await two.said("You have new keys")
        await one.shows("anew_two: new key, /verify anew_two", "anew_two's verified key has changed")
        one.type("the plum is ripe", "enter")
        await one.asked("anew_two's key has changed", "has not been sent")
        one.press("left", "enter")  # "Send anyway"
        await two.shows("the plum is ripe")
        await one.shows("encrypted, 0 of 1 verified")
        two.type("so it is", "enter")
        await one.shows("so it is")


async def test_a_log_out_takes_the_keys_along(server: ServerProcess, tmp_path: Path) -> None:
    async with talking(server, tmp_path, "leaving") as (one, _):
        await one.do("/logout")
        await one.asked("Log out?", "notified")
        one.press("left", "enter")
        await one.shows("Logged out")
        await until(lambda: not list((tmp_path / "leaving_one").rglob("keys")))


async def test_a_file_of_keys_that_is_damaged_is_said_so_in_a_line(server: ServerProcess, tmp_path: Path) -> None:
    session = await signed_up(tmp_path, server.url, "damaged")
    async with chatting(tmp_path, make_codec=create_mls_codec):
        pass
    [keys] = tmp_path.rglob("codec/keys")
    keys.write_bytes(b"no database at all, but long enough to be read as one" * 100)
    async with chatting(tmp_path, online=False, make_codec=create_mls_codec) as chat:
        assert chat.app._exit
        assert str(keys) in (chat.app.return_value or "")
        assert session.token not in (chat.app.return_value or "")
