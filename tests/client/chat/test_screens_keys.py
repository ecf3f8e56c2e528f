"""What the screen shows of keys: how encryption stands, whose key has changed, and the code to compare."""

import re
from pathlib import Path

import pytest
from aiohttp import ClientSession

from conclave.client.encryption.comparison import comparison_code
from conclave.client.encryption.view import EncryptionStatus, GroupView, Trust
from conclave.client.events import EncryptionChanged, KeyChanged
from tests.support.chatting import chatting, signed_up, until
from tests.support.client import Client
from tests.support.keyring import OWN, Keyring, key
from tests.support.server import ServerProcess

pytestmark = pytest.mark.system

OPAQUE = b"\x00\x01\x00\x02 sealed"


async def test_the_top_line_says_how_encryption_stands(
    server: ServerProcess, http: ClientSession, tmp_path: Path
) -> None:
    codec = Keyring()
    session = await signed_up(tmp_path, server.url, "watcher")
    bob = await Client.register(http, server.url, "watched")
    group = await bob.create_group("watch")
    await Client(http, server.url, session.token, str(session.user_id)).join(group)
    async with chatting(tmp_path, size=(110, 36), make_codec=lambda *_: codec) as chat:
        room = await chat.open("watch")
        await chat.shows("encrypted · docs/encryption.md")
        other = next(each.user_id for each in room.group.members if each.username == "watched")
        codec.holds(key(other))
        chat.conversation.keys.handle(EncryptionChanged(room.group.group_id))
        await chat.shows("encrypted, 0 of 1 verified · docs/encryption.md")
        await chat.do("/verify watched")
        await chat.asked("Compare keys with watched", comparison_code(OWN, "cd" * 32).digits[0])
        chat.press("left", "enter")
        await chat.shows("encrypted, all of 1 verified")
        chat.press("f2")
        await chat.asked("watched  admin  verified", "cd" * 28, OWN[:50])
        chat.press("escape")
        codec.shows = GroupView(EncryptionStatus.WAITING)
        chat.conversation.keys.handle(EncryptionChanged(room.group.group_id))
        await chat.shows("waiting for keys")


async def test_before_anything_is_sent_a_changed_key_is_asked_about(
    server: ServerProcess, http: ClientSession, tmp_path: Path
) -> None:
    codec = Keyring()
    session = await signed_up(tmp_path, server.url, "careful")
    bob = await Client.register(http, server.url, "changer")
    group = await bob.create_group("care")
    await Client(http, server.url, session.token, str(session.user_id)).join(group)
    async with chatting(tmp_path, make_codec=lambda *_: codec) as chat:
        room = await chat.open("care")
        other = next(each.user_id for each in room.group.members if each.username == "changer")
        codec.holds(key(other, Trust.CHANGED, "12" * 32))
        chat.conversation.keys.handle(KeyChanged(room.group.group_id, other, "cd" * 32, "12" * 32, was_verified=True))
        await chat.said("changer's verified key has changed")
        await chat.shows("changer: new key", "· changer's verified key has changed")
        chat.type("the plum is ripe", "enter")
        await chat.asked("changer's key has changed", "has not been sent")
        chat.press("enter")  # which is "Not now"
        await chat.shows("the plum is ripe", "not sent: a member's key has changed")
        assert await bob.fetch(group) == []
        await chat.do("/retry")
        await chat.asked("changer's key has changed")
        chat.press("left", "left", "enter")  # "Compare"
        await chat.asked("Compare keys with changer")
        chat.press("left", "left", "enter")  # "It is the same"
        await until(lambda: room.messages and not room.pending, lambda: chat.screen)
        assert len(await bob.fetch(group)) == 1
        await chat.shows("encrypted, all of 1 verified")


async def test_what_cannot_be_read_is_one_line_and_read_once_it_was_seen(
    server: ServerProcess, http: ClientSession, tmp_path: Path
) -> None:
    session = await signed_up(tmp_path, server.url, "late_comer")
    bob = await Client.register(http, server.url, "early")
    group = await bob.create_group("before")
    await Client(http, server.url, session.token, str(session.user_id)).join(group)
    for _ in range(40):
        await bob.send(group, OPAQUE)
    async with chatting(tmp_path) as chat:
        room = await chat.open("before")
        # The group opens by itself, perhaps before all of them came: then a line says where new ones begin.
        counted = re.compile(r"(?:(\d+) messages|a message) that cannot be decrypted")
        await until(lambda: sum(int(each or 1) for each in counted.findall(chat.screen)) == 40, lambda: chat.screen)
        assert len(counted.findall(chat.screen)) <= 2
        await until(lambda: not room.unread, lambda: chat.screen)
        await bob.send(group, b"and now in the clear")
        await chat.shows("messages that cannot be decrypted", "and now in the clear")
