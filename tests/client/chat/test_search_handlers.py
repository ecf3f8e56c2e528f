"""Searching and answering: what is found of the local history, and what is not, or not any more."""

from pathlib import Path
from uuid import UUID

import pytest

from conclave.client.chat.command_context import CommandError
from conclave.client.chat.loading import PAGE
from conclave.client.chat.search import MAX_EXCERPT, MAX_RESULTS, excerpt, has_all, parse_terms
from tests.conftest import Running
from tests.support.conversing import NewChat, Pair, RecordingDesk, say

HOUR = 3_600


@pytest.mark.parametrize(
    ("typed", "text", "found"),
    [
        ("heron", "The Herons stand", True),
        ("HERON", "the heron stands", True),
        ("stand heron", "the heron stands", True),
        ('"stand heron"', "the heron stands", False),
        ('"the heron" stands', "The  heron stands", False),
        ('"the heron" stands', "The heron stands", True),
        ("straße", "STRASSE", True),
        ("cafe\u0301", "Café", True),
        ("%_*.", "a%_*.b", True),
        (".*", "anything", False),
        ('"', "a", False),
    ],
)
def test_words_are_found_in_any_order_and_whatever_their_capitals(typed: str, text: str, found: bool) -> None:
    words = parse_terms(typed)
    assert (bool(words) and has_all(words, text)) is found


def test_an_excerpt_is_one_line_around_what_was_looked_for() -> None:
    assert excerpt(["x"], "a\n b") == "a b"
    part = excerpt(["needle"], f"{'hay ' * 100}Needle{' hay' * 100}")
    assert "Needle" in part
    assert part.startswith("…")
    assert part.endswith("…")
    assert len(part) == MAX_EXCERPT + 2


@pytest.fixture
def desks(pair: Pair) -> tuple[RecordingDesk, RecordingDesk, UUID]:
    alice, bob, club = pair
    return RecordingDesk(alice), RecordingDesk(bob), club


Desks = tuple[RecordingDesk, RecordingDesk, UUID]


class TestSearching:
    async def test_here_or_everywhere_the_newest_first_and_to_the_place(self, desks: Desks) -> None:
        alice, bob, club = desks
        den = await alice.chat.new("den", bob.chat)
        alice.chat.send(club, "the heron", "nothing")
        await bob.chat.shows(club, "the heron", "nothing")
        alice.chat.send(den, "a Heron in the den")
        await bob.chat.until(lambda: bob.chat.room(den).unread == 1)
        bob.picks = 9
        await bob.does("/search heron")
        [(title, told)] = bob.told
        assert title == "heron in club: 1"
        assert told.startswith("alice, ")
        assert told.endswith("\nthe heron")
        bob.picks = 0
        bob.conversation.open_group_id = club
        await bob.does("/search all heron")
        title, told = bob.told[-1]
        assert title == "heron in your groups: 2"
        assert {each.split(",")[0] for each in told.splitlines()[::2]} == {"club", "den"}
        assert bob.room
        assert bob.room.found == next(
            number for number, each in bob.room.messages.items() if "eron" in (each.text or "")
        )
        [said] = await bob.does("/search bittern")
        assert said.startswith("No local message in")

    @pytest.mark.parametrize("line", ["/search", '/search ""', '/search all "'])
    async def test_nothing_is_looked_for_without_a_word(self, desks: Desks, line: str) -> None:
        _, bob, club = desks
        bob.chat.send(club, "all")
        with pytest.raises(CommandError, match="usage:"):
            await bob.does(line)
        await bob.chat.until(lambda: bob.chat.history.messages(club))
        await bob.does("/search all")
        assert [title for title, _ in bob.told] == ["all in club: 1"], "the word itself"

    async def test_of_many_the_newest_are_found_with_what_stands_around_one(self, chat: NewChat) -> None:
        alice = RecordingDesk(await chat("alice"))
        club = await alice.chat.new("club")
        alice.conversation.open_group(club)
        await alice.chat.client.send(club, b"the needle")
        await say(alice.chat, club, 250)
        alice.conversation.sync.request_fetch(club)
        await alice.chat.until(lambda: alice.chat.history.fetched_up_to(club) == 251)
        room = alice.chat.room(club)
        alice.picks = MAX_RESULTS - 1
        await alice.does("/search text")
        assert alice.told[0][0] == f"text in club: the newest {MAX_RESULTS}"
        assert room.found == 252 - MAX_RESULTS
        alice.picks = 0
        await alice.does("/search needle")
        assert (room.found, list(room.messages)) == (1, list(range(1, PAGE + 1)))
        assert (room.has_earlier, room.has_later) == (False, True)
        assert alice.conversation.load_later(room)
        assert max(room.messages) == 251
        alice.conversation.load_last(room)
        assert room.found is None

    async def test_results_go_with_their_messages_their_policy_and_their_group(
        self, desks: Desks, chat: NewChat, running: Running
    ) -> None:
        alice, bob, club = desks
        alice.chat.send(club, "the heron")
        await bob.chat.shows(club, "the heron")
        bob.conversation.mark_seen(club, [bob.chat.history.fetched_up_to(club)])
        await alice.chat.client.send(club, b"a heron that goes", self_destruct_seconds=60)
        await bob.chat.shows(club, "the heron", "a heron that goes")
        await bob.does("/search heron")
        assert len(bob.look()) == 1, "what nobody has read is not shown by a search"
        bob.conversation.mark_seen(club, bob.chat.room(club).messages)
        await bob.does("/search heron")
        assert len(bob.look()) == 2
        running.clock.advance(61)
        assert [part for *_, part in bob.look()] == ["the heron"]
        await alice.chat.client.update_group(club, expiry=30)
        await bob.chat.until(lambda: not bob.look())
        await alice.chat.client.update_group(club, expiry=HOUR)
        alice.chat.send(club, "another heron")
        await bob.chat.until(lambda: "another heron" in bob.chat.texts(club))
        await bob.does("/search heron")
        assert len(bob.look()) == 1
        await alice.chat.client.delete_group(club)
        await bob.chat.until(lambda: not bob.look())

    async def test_a_search_writes_nothing_down(self, chat: NewChat, tmp_path: Path) -> None:
        alice = RecordingDesk(await chat("alice", tmp_path / "alice"))
        club = await alice.chat.new("club")
        alice.conversation.open_group(club)
        alice.chat.send(club, "the heron stands in the reeds")
        await alice.chat.shows(club, "the heron stands in the reeds")

        def files() -> dict[Path, bytes]:
            return {each: each.read_bytes() for each in tmp_path.glob("alice*")}

        history = alice.chat.history
        await alice.chat.until(
            lambda: not (alice.chat.room(club).pending or history.unhandled(club) or history.unreported_reads())
        )
        before = files()
        await alice.does("/search heron")
        assert alice.told
        assert files() == before
        alice.chat.history.forget(club, [alice.chat.history.fetched_up_to(club)])
        assert not alice.look()
        assert not [each for each, content in files().items() if b"heron stands" in content]


class TestAnswering:
    async def test_the_last_one_of_somebody_else_or_of_somebody_is_answered(self, desks: Desks, chat: NewChat) -> None:
        alice, bob, club = desks
        carol = await chat("carol")
        await carol.client.join(club)
        await carol.client.external_join(club)
        for each in (alice.chat, bob.chat, carol):
            await each.refresh()
        alice.chat.send(club, "shall we?")
        await bob.chat.shows(club, "shall we?")
        carol.send(club, "where to?")
        await bob.chat.shows(club, "shall we?", "where to?")
        with pytest.raises(CommandError, match="no message here that you have seen"):
            await bob.does("/reply yes")
        bob.conversation.mark_read(bob.chat.room(club))
        await bob.does("/reply to the hut")
        await alice.chat.until(lambda: "> carol: where to?\nto the hut" in alice.chat.texts(club))
        assert bob.done == ["end"]
        await bob.does("/reply @alice yes")
        await alice.chat.until(lambda: "> alice: shall we?\nyes" in alice.chat.texts(club))
        await bob.does("/reply @nobody yes")
        await alice.chat.until(lambda: "> carol: where to?\n@nobody yes" in alice.chat.texts(club))
        with pytest.raises(CommandError, match="usage: /reply TEXT"):
            await bob.does("/reply")
        alice.conversation.mark_read(alice.chat.room(club))
        await alice.does("/reply @bob good")
        await bob.chat.until(lambda: "> bob: @nobody yes\ngood" in bob.chat.texts(club))

    async def test_what_was_found_is_answered_and_what_destroys_itself_is_not_quoted(
        self, desks: Desks, running: Running
    ) -> None:
        alice, bob, club = desks
        alice.chat.send(club, "an old question", "something else")
        await bob.chat.shows(club, "an old question", "something else")
        await alice.chat.client.send(club, b"the code is 4711", self_destruct_seconds=60)
        await bob.chat.until(lambda: "the code is 4711" in bob.chat.texts(club))
        bob.conversation.mark_seen(club, bob.chat.room(club).messages)
        await bob.does("/search question")
        await bob.does("/reply an old answer")
        await alice.chat.until(lambda: "> alice: an old question\nan old answer" in alice.chat.texts(club))
        bob.conversation.load_last(bob.chat.room(club))
        await bob.does("/reply thanks")
        await alice.chat.until(lambda: "> alice: (a self-destructing message)\nthanks" in alice.chat.texts(club))
        assert not [each for each in alice.chat.texts(club) if each and "4711" in each and each.startswith(">")]
        running.clock.advance(61)
        await bob.does("/reply and now")
        await alice.chat.until(lambda: "> alice: something else\nand now" in alice.chat.texts(club))

    async def test_who_came_in_without_a_word_and_who_has_left_are_answered_by_name(
        self, desks: Desks, chat: NewChat
    ) -> None:
        _, bob, club = desks
        carol = await chat("carol")
        await carol.client.join(club)  # no more than that: the commit that tells the others is never sent
        await carol.client.send(club, b"where to?")
        await bob.chat.shows(club, "where to?")
        await bob.chat.until(lambda: bob.room and carol.user_id in {each.user_id for each in bob.room.group.members})
        bob.conversation.mark_read(bob.chat.room(club))
        await carol.client.leave(club)
        await bob.chat.until(
            lambda: bob.room and carol.user_id not in {each.user_id for each in bob.room.group.members}
        )
        await bob.does("/reply to the hut")
        await bob.chat.shows(club, "where to?", "> carol: where to?\nto the hut")

    async def test_a_reply_in_a_group_where_all_burns_burns_too(self, desks: Desks) -> None:
        alice, bob, club = desks
        alice.chat.send(club, "shall we?")
        await bob.chat.shows(club, "shall we?")
        bob.conversation.mark_read(bob.chat.room(club))
        await bob.does("/burn 30s")
        await bob.does("/reply yes")
        messages = bob.chat.room(club).messages
        await bob.chat.until(lambda: [each.self_destruct_seconds for each in messages.values()][1:] == [30])
