"""The chat and an existing client share a group: each sees of the other what it can, and hears what it always heard."""

import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from aiohttp import ClientSession

from tests.support.chatting import Chat, chatting, signed_up, until
from tests.support.client import PACKAGE, encode
from tests.support.listening import StreamConnection, listening
from tests.support.protobuf import ProtobufClient, decode
from tests.support.server import ServerProcess

pytestmark = pytest.mark.system

OPAQUE = b"\x00\x01\x00\x02\xff\xfe sealed"
"""As MLS has it: no text."""


class Existing:
    """An existing client. It hears protobuf on its stream, and goes by it as it always has."""

    def __init__(self, client: ProtobufClient, stream: StreamConnection) -> None:
        self.client = client
        self._stream = stream

    async def hears(self, name: str) -> dict[str, Any]:
        """Wait for an event, and return what it says; others before it are passed over."""
        while True:
            _, data = await self._stream.next()
            [(heard, values)] = decode("ServerEvent", bytes.fromhex(data)).items()
            if heard == name:
                return dict(values)

    async def bodies(self, group: UUID) -> list[bytes]:
        return [each.body for each in await self.client.fetch(str(group))]


@contextlib.asynccontextmanager
async def existing(server: ServerProcess, name: str) -> AsyncIterator[Existing]:
    async with ClientSession() as http:
        client = await ProtobufClient.register(http, server.url, name)
        await client.upload(PACKAGE, last_resort=PACKAGE)
        async with listening(client) as stream:
            yield Existing(client, stream)


@contextlib.asynccontextmanager
async def shared(server: ServerProcess, home: Path, name: str) -> AsyncIterator[tuple[Chat, Existing, UUID]]:
    """A group that the chat has made, with the existing client in it by an invite."""
    await signed_up(home, server.url, f"{name}_chat")
    async with existing(server, f"{name}_old") as old, chatting(home) as chat:
        await chat.do(f"/new {name}")
        await until(lambda: chat.chat_screen.room, lambda: chat.screen)
        group = chat.room.group.group_id
        await chat.do(f"/invite {name}_old")
        invite = await old.hears("invite_received")
        assert (invite["group_name"], UUID(invite["group_id"])) == (name, group)
        await old.client.accept(invite["invite_id"])
        assert UUID((await old.hears("welcome"))["group_id"]) == group
        await chat.shows(f"{name}_old joined")
        yield chat, old, group


async def test_each_sees_what_the_other_says_and_what_is_sealed_is_shown_as_unreadable(
    server: ServerProcess, tmp_path: Path
) -> None:
    async with shared(server, tmp_path, "mixed") as (chat, old, group):
        chat.type("grüße from the chat", "enter")
        event = await old.hears("new_message")
        assert UUID(event["group_id"]) == group
        assert UUID(event["sender_id"]) == chat.conversation.user_id
        assert (await old.bodies(group))[-1] == "grüße from the chat".encode()
        number = await old.client.send(str(group), OPAQUE)
        await chat.shows("mixed_old", "a message that cannot be decrypted")
        assert chat.room.messages[number].text is None
        assert "sealed" not in chat.screen
        await old.client.send(str(group), b"text, as it happens")
        await chat.shows("text, as it happens")
        chat.type("/burn 1d as new clients do", "enter")
        await old.hears("new_message")
        assert (await old.bodies(group))[-1] == b"as new clients do"


async def test_policies_are_changed_from_either_side(server: ServerProcess, tmp_path: Path) -> None:
    async with shared(server, tmp_path, "governed") as (chat, old, group):
        await old.client.send(str(group), OPAQUE)
        chat.type("soon gone", "enter")
        await chat.shows("soon gone", "cannot be decrypted")
        await until(lambda: not chat.room.pending and len(chat.room.messages) >= 2)
        written = max(each.created_at for each in chat.room.messages.values())
        await until(lambda: time.time() > written + 3)
        await chat.do("/expire 2s")
        await chat.asked("will be hidden for everyone now")
        chat.press("left", "enter")
        event = await old.hears("group_update")
        while event["update_type"] != "group_settings":
            event = await old.hears("group_update")
        assert await old.bodies(group) == [], "hidden for everyone now"
        assert (await old.client.get(f"/groups/{group}/retention"))["group_expiry_seconds"] == 2
        await chat.hides("soon gone", "cannot be decrypted")
        await chat.do("/promote governed_old")
        await chat.shows("governed_old is now an admin")
        await old.client.set_expiry(str(group), 3600)
        await chat.shows("changed the expiry", "deleted after 1 hour · 2 members")
        await old.client.patch(str(group), alias="Renamed [bold]from[/] afar")
        await chat.shows("the title is now Renamed [bold]from[/] afar")
        assert "soon gone" not in chat.screen


async def test_invites_go_both_ways(server: ServerProcess, tmp_path: Path) -> None:
    await signed_up(tmp_path, server.url, "invited_chat")
    async with existing(server, "inviting_old") as old, chatting(tmp_path) as chat:
        group = await old.client.create_group("old_house", public=False)
        await old.client.post(f"/groups/{group}/invite", user_ids=[str(chat.conversation.user_id)])
        carried = dict.fromkeys(("commit_message", "welcome_message", "group_info"), encode(OPAQUE))
        await old.client.post(f"/groups/{group}/escrow-invite", invitee_id=str(chat.conversation.user_id), **carried)
        await chat.shows("✉ old_house")
        await chat.do("/decline")
        assert UUID((await old.hears("invite_declined"))["declined_user_id"]) == chat.conversation.user_id
        await chat.hides("✉ old_house")
        await old.client.post(f"/groups/{group}/escrow-invite", invitee_id=str(chat.conversation.user_id), **carried)
        await chat.shows("✉ old_house")
        await old.client.post(f"/groups/{group}/cancel-invite", invitee_id=str(chat.conversation.user_id))
        await chat.hides("✉ old_house")
        await chat.said("An invite was withdrawn")
        await old.client.post(f"/groups/{group}/escrow-invite", invitee_id=str(chat.conversation.user_id), **carried)
        await chat.shows("✉ old_house")
        await chat.do("/accept old_house")
        await until(lambda: chat.chat_screen.room, lambda: chat.screen)
        assert await old.client.roles(group) == {"inviting_old": "admin", "invited_chat": "member"}
        chat.type("a good house", "enter")
        await old.hears("new_message")
        assert (await old.bodies(UUID(group)))[-1] == b"a good house"


async def test_bans_and_removals_reach_the_other_side(server: ServerProcess, tmp_path: Path) -> None:
    async with shared(server, tmp_path, "strict") as (chat, old, group):
        await chat.do("/ban strict_old")
        await chat.asked("Ban strict_old?")
        chat.press("left", "enter")
        event = await old.hears("member_removed")
        assert (UUID(event["group_id"]), event["removed_user_id"]) == (group, old.client.user_id)
        await chat.shows("strict_old is no longer a member", "strict_old was banned")
        assert [each["group_id"] for each in (await old.client.get("/groups"))["groups"]] == []
        await chat.do("/unban strict_old")
        await chat.said("Unbanned strict_old")


async def test_the_existing_client_removes_the_chat_and_deletes_the_group(
    server: ServerProcess, tmp_path: Path
) -> None:
    async with shared(server, tmp_path, "handed") as (chat, old, group):
        await old.client.send(str(group), b"words of the group")
        await chat.shows("words of the group")
        await chat.do("/promote handed_old")
        await chat.shows("handed_old is now an admin")
        chat_user = str(chat.conversation.user_id)
        await old.client.post(f"/groups/{group}/remove", user_id=chat_user, commit_message=encode(OPAQUE))
        await chat.said("You were removed from handed")
        await chat.hides("words of the group")
        await old.client.patch(str(group), visibility="public")
        await chat.do("/join handed")
        await until(lambda: chat.chat_screen.room, lambda: chat.screen)
        await old.client.send(str(group), b"words after it")
        await chat.shows("words after it")
        await old.client.post(f"/groups/{group}/delete")
        await chat.said("handed was deleted")
        await chat.hides("words after it")
        assert UUID((await old.hears("group_deleted"))["group_id"]) == group
