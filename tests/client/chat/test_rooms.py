"""What the chat makes of groups as they were and as they are: what has changed, and in which order things stand."""

from dataclasses import replace
from uuid import UUID, uuid4

import pytest
from hypothesis import given, strategies as st

from conclave.client.chat.rooms import (
    MAX_NOTICES,
    Notice,
    PendingMessage,
    Room,
    Rooms,
    changes,
    find_by_name,
    missing_fetchers,
)
from conclave.client.events import Message
from conclave.wire.results import GroupDetails, MemberInfo, RetentionInfo

ME, BOB, CAROL = (UUID(int=number) for number in (1, 2, 3))
NOW = 1_700_000_000


def member(user_id: UUID, username: str, role: str = "member") -> MemberInfo:
    return MemberInfo(user_id=user_id, username=username, alias="", role=role, signing_key_fingerprint="")


MYSELF, HE, SHE = member(ME, "me", "admin"), member(BOB, "bob"), member(CAROL, "carol")
CLUB = GroupDetails(UUID(int=9), "", (MYSELF, HE), "club", "", -1, "private")


def message(number: int, *, gone_at: int | None = None, text: str | None = "text") -> Message:
    return Message(CLUB.group_id, number, BOB, text, NOW, 0, gone_at)


class TestChanges:
    @pytest.mark.parametrize(
        ("after", "told"),
        [
            (CLUB, []),
            (replace(CLUB, members=(HE, MYSELF)), []),
            (replace(CLUB, members=(MYSELF, HE, SHE)), ["carol joined"]),
            (replace(CLUB, members=(MYSELF,)), ["bob is no longer a member"]),
            (replace(CLUB, members=(MYSELF, SHE)), ["carol joined", "bob is no longer a member"]),
            (replace(CLUB, members=(MYSELF, replace(HE, role="admin"))), ["bob is now an admin"]),
            (replace(CLUB, members=(replace(MYSELF, role="member"), HE)), ["you are no longer an admin"]),
            (replace(CLUB, members=(MYSELF, replace(HE, alias="Bobby"))), []),
            (replace(CLUB, group_name="den"), ["the group was renamed to den"]),
            (replace(CLUB, alias="The Den"), ["the title is now The Den"]),
            (replace(CLUB, visibility="public"), ["the group is now public"]),
            (replace(CLUB, message_expiry_seconds=60), []),
            (
                replace(CLUB, group_name="den", alias="x", visibility="public", members=(MYSELF, SHE)),
                [
                    *("carol joined", "bob is no longer a member", "the group was renamed to den"),
                    *("the title is now x", "the group is now public"),
                ],
            ),
        ],
    )
    def test_what_has_changed_is_said(self, after: GroupDetails, told: list[str]) -> None:
        assert list(changes(CLUB, after, ME)) == told

    @pytest.mark.parametrize(
        ("before", "told"),
        [
            (replace(CLUB, members=(MYSELF, replace(HE, role="admin"))), ["bob is no longer an admin"]),
            (replace(CLUB, members=(replace(MYSELF, role="member"), HE)), ["you are now an admin"]),
            (replace(CLUB, alias="The Den"), ["the title was removed"]),
            (replace(CLUB, visibility="public"), ["the group is now private"]),
            (replace(CLUB, members=(HE,)), ["you joined"]),
        ],
    )
    def test_what_has_changed_back_too(self, before: GroupDetails, told: list[str]) -> None:
        assert list(changes(before, CLUB, ME)) == told

    def test_names_of_others_do_nothing_to_the_terminal(self) -> None:
        evil = "\x1b[2J\u202e"
        after = replace(CLUB, group_name=evil, alias=evil, members=(MYSELF, member(CAROL, evil, "admin")))
        for one, other in ((CLUB, after), (after, CLUB)):
            assert not [each for each in changes(one, other, ME) if "\x1b" in each or "\u202e" in each]


class TestItems:
    def test_messages_notices_and_drafts_stand_in_their_order(self) -> None:
        room = Room(CLUB, fetched_up_to=2)
        room.load([message(number) for number in (1, 2, 4, 5)])
        first, second = Notice(0, NOW, "first"), Notice(1, NOW, "second")
        room.notices = [first, second]
        room.notice("third", NOW)
        room.notice("fourth", NOW)
        room.fetched_up_to = 5
        room.notice("last", NOW)
        sent, waiting = PendingMessage(CLUB.group_id, "sent", number=7), PendingMessage(CLUB.group_id, "waiting")
        room.pending = [sent, PendingMessage(CLUB.group_id, "came already", is_stored=True), waiting]
        shown = list(room.items(NOW))
        texts = [each.text if isinstance(each, Notice) else getattr(each, "sequence_num", each) for each in shown]
        assert texts == ["first", 1, "second", 2, "third", "fourth", 4, 5, "last", sent, waiting]

    def test_what_is_gone_is_not_among_them(self) -> None:
        room = Room(CLUB)
        room.load([message(1, gone_at=NOW - 1), message(2, gone_at=NOW), message(3, gone_at=NOW + 1), message(4)])
        assert [each.sequence_num for each in room.items(NOW) if isinstance(each, Message)] == [3, 4]
        assert [each.sequence_num for each in room.items(NOW + 1) if isinstance(each, Message)] == [4]

    def test_only_the_last_notices_are_kept(self) -> None:
        room = Room(CLUB)
        for turn in range(MAX_NOTICES + 5):
            room.notice(str(turn), NOW)
        assert [each.text for each in room.notices] == [str(turn) for turn in range(5, MAX_NOTICES + 5)]

    @given(st.lists(st.integers(1, 40), unique=True), st.sets(st.integers(1, 40)), st.booleans())
    def test_messages_are_in_order_whenever_they_come(
        self, order: list[int], loaded: set[int], has_earlier: bool
    ) -> None:
        """As those that were stored but not told when a program ended."""
        room = Room(CLUB, has_earlier=has_earlier)
        room.load(message(number) for number in sorted(loaded))
        expected = set(loaded)
        for number in order:
            room.add(message(number))
            if not has_earlier or not expected or number >= min(expected):
                expected.add(number)
        assert list(room.messages) == sorted(expected)


class TestDraft:
    def test_it_waits_until_it_is_sent_or_refused(self) -> None:
        waiting, refused, sent = (PendingMessage(CLUB.group_id, "text", number=number) for number in (None, None, 1))
        refused.refuse("no")
        assert [each.waits for each in (waiting, refused, sent)] == [True, False, False]

    def test_one_that_is_refused_is_shown_whatever_came_before(self) -> None:
        room = Room(CLUB, pending=[PendingMessage(CLUB.group_id, "ok", is_stored=True)])
        room.pending[0].refuse("no")
        assert list(room.items(NOW)) == room.pending

    def test_its_text_stays_out_of_logs(self) -> None:
        assert "secret" not in repr(PendingMessage(CLUB.group_id, "secret"))


class TestRooms:
    def test_groups_are_taken_as_they_are(self) -> None:
        rooms = Rooms(ME)
        other = replace(CLUB, group_id=uuid4(), group_name="Alpha")
        rooms.update([CLUB, other], NOW)
        assert [each.name for each in rooms.ordered()] == ["Alpha", "club"]
        assert [list(each.notices) for each in rooms.ordered()] == [[], []], "what a group is at first is no change"
        room = rooms.all[CLUB.group_id]
        room.typed = "half a sentence"
        rooms.update([replace(CLUB, members=(MYSELF, HE, SHE))], NOW + 5)
        assert rooms.all == {CLUB.group_id: room}
        assert (room.typed, room.notices) == ("half a sentence", [Notice(0, NOW + 5, "carol joined")])
        assert rooms.name_of(other.group_id) == "Alpha", "how it was called is known"
        assert rooms.name_of(uuid4()) == "a group"

    def test_people_are_called_by_their_names_also_when_they_have_left(self) -> None:
        rooms = Rooms(ME)
        rooms.update([replace(CLUB, members=(MYSELF, replace(HE, username="\x1bbob", alias="Carol")))], NOW)
        rooms.update([replace(CLUB, members=(MYSELF,))], NOW)
        assert rooms.display_name(BOB) == rooms.known_name(BOB) == "\N{REPLACEMENT CHARACTER}bob"
        assert (rooms.display_name(CAROL), rooms.known_name(CAROL)) == ("unknown user", None)

    def test_an_admin_is_one(self) -> None:
        assert [Room(CLUB).is_admin(each) for each in (ME, BOB, CAROL)] == [True, False, False]

    def test_a_member_is_meant_as_the_name_is_written(self) -> None:
        room = Room(replace(CLUB, members=(MYSELF, HE)))
        assert Rooms(ME).member(room, "bob") == BOB
        assert Rooms(ME).member(room, "Bob") is None, "who is somebody else, and perhaps no member"

    def test_who_holds_it_back(self) -> None:
        room = Room(CLUB)
        assert missing_fetchers(room) == []
        room.retention = RetentionInfo(-1, 0, 0, held_by=(BOB, CAROL))
        assert missing_fetchers(room) == ["bob", "unknown user"]
        assert missing_fetchers(room, {CAROL: "carol\x07"}) == ["bob", "carol\N{REPLACEMENT CHARACTER}"]

    def test_unsent_texts_are_counted(self) -> None:
        rooms = Rooms(ME)
        rooms.update([CLUB], NOW)
        rooms.all[CLUB.group_id].pending = [
            PendingMessage(CLUB.group_id, "waits"),
            PendingMessage(CLUB.group_id, "refused", refused="no"),
            PendingMessage(CLUB.group_id, "sent", number=3),
            PendingMessage(CLUB.group_id, "came", is_stored=True),
        ]
        assert rooms.unsent_count() == 2


@pytest.mark.parametrize(
    ("name", "found"),
    [("club", "club"), ("Club", "Club"), ("CLUB", None), ("Den", "den"), ("den", "den"), ("de", None), ("", None)],
)
def test_capitals_count_where_they_make_a_difference(name: str, found: str | None) -> None:
    assert find_by_name(name, ["club", "Club", "den"], str) == found
