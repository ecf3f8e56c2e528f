"""Searching and answering on the screen: the results, the way to the place and back, and what is quoted."""

from pathlib import Path

import pytest
from aiohttp import ClientSession
from textual.widgets import Static

from tests.support.chatting import chatting, new_group, signed_up, until
from tests.support.client import Client
from tests.support.server import ServerProcess

pytestmark = pytest.mark.system

HOUR = 3_600


@pytest.mark.parametrize(("size", "is_plain"), [((80, 24), False), ((40, 12), False), ((40, 12), True)])
async def test_from_a_search_to_the_place_to_an_answer_and_to_the_end(
    server: ServerProcess, http: ClientSession, tmp_path: Path, size: tuple[int, int], is_plain: bool
) -> None:
    name = f"seeker_{size[0]}_{is_plain:d}"
    session = await signed_up(tmp_path, server.url, name)
    group = await new_group(session, f"reeds_{name}", expiry=HOUR)
    await new_group(session, f"pond_{name}")
    friend = await Client.register(http, server.url, f"of_{name}")
    await friend.join(str(group))
    for number in range(230):
        await friend.send(str(group), b"where is the heron?" if number == 3 else f"line {number};".encode())
    async with chatting(tmp_path, size=size, is_plain=is_plain) as chat:
        await until(lambda: chat.conversation.history.fetched_up_to(group) == 230)
        await chat.open(f"reeds_{name}")
        await chat.do("/read")
        await chat.open(f"pond_{name}")
        await chat.do("/search all HERON")
        await chat.asked("where is the heron?", f"reeds_{name}")
        assert not is_plain or "▌" not in chat.screen
        chat.press("enter")
        await chat.shows(f"found: of_{name}" if is_plain else "▸ where is the heron?", "line 4;")
        assert "line 229;" not in chat.screen
        chat.type("/reply ")
        await chat.shows(f"> of_{name}: where is")
        chat.type("in the reeds", "enter")
        await chat.shows("in the reeds")
        await until(lambda: not chat.room.pending)
        assert [*chat.room.messages.values()][-1].text == f"> of_{name}: where is the heron?\nin the reeds"
        assert "▸" not in chat.screen
        assert "found: " not in chat.screen
        await chat.do("/search heron")
        await chat.asked("where is the")
        chat.press("down", "enter")
        await chat.shows("line 4;")
        chat.press("ctrl+end")
        await chat.shows("in the reeds")
        chat.press("up")
        await until(lambda: chat.composer.text)
        assert chat.composer.text == "/search heron", "a search comes back, and an answer never"


async def test_results_vanish_with_their_messages_and_what_is_unread_and_burns_is_none(
    server: ServerProcess, http: ClientSession, tmp_path: Path
) -> None:
    session = await signed_up(tmp_path, server.url, "finder")
    group = await new_group(session, "finding")
    await new_group(session, "finding_elsewhere")
    friend = await Client.register(http, server.url, "of_finder")
    await friend.join(str(group))
    async with chatting(tmp_path) as chat:
        await chat.open("finding")
        await friend.send(str(group), b"a heron burns", 5)
        await chat.shows("a heron burns")
        await friend.send(str(group), b"a heron stays")
        await chat.shows("a heron stays")
        await chat.open("finding_elsewhere")
        await friend.send(str(group), b"a heron that nobody has read", 5)
        await until(lambda: chat.conversation.history.fetched_up_to(group) == 3)
        await chat.do("/search all heron")
        await chat.asked("a heron stays")
        assert "nobody has read" not in chat.screen
        await chat.hides("a heron burns")
        await chat.shows("a heron stays")
        assert len(chat.app.screen_stack) > 2, "the list is still there"
        chat.press("escape")
        await chat.do("/search all bittern")
        await chat.said("No local message in your groups contains bittern")


async def test_what_a_reply_would_quote_goes_at_its_second_though_nothing_comes_from_the_server(
    server: ServerProcess, http: ClientSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await signed_up(tmp_path, server.url, "quoter")
    group = await new_group(session, "quoting", expiry=HOUR)
    friend = await Client.register(http, server.url, "of_quoter")
    await friend.join(str(group))
    await friend.send(str(group), b"where is the heron?")
    async with chatting(tmp_path) as chat:
        await chat.open("quoting")
        await chat.shows("where is the heron?")
        await until(lambda: not chat.room.unread)
        chat.type("/reply yes")
        hint = chat.chat_screen.query_one("#hint", Static)
        await until(lambda: "> of_quoter: where is the heron?" in str(hint.content), lambda: chat.screen)
        [message] = chat.room.messages.values()
        assert message.gone_at
        gone_at = message.gone_at
        # Hidden, and not erased: nothing is told of it.
        monkeypatch.setattr(chat.conversation.history, "now", lambda: gone_at)
        await until(lambda: "heron" not in str(hint.content), lambda: chat.screen)
        assert "heron" not in chat.screen
        assert chat.composer.text == "/reply yes"
