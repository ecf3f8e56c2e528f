"""Each command at a real server: what it does, what it asks first, and what it says of what is wrong."""

import asyncio
import re
from dataclasses import replace
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from conclave import app_keys
from conclave.client import Client, EncryptionError, GroupError, InputError, MlsCodec, ResourceError
from conclave.client.chat import commands, formatting, help_text
from conclave.client.chat.command_context import CommandContext, CommandError
from conclave.client.chat.commands import COMMANDS
from conclave.client.chat.rooms import Room
from conclave.config.retention import RetentionConfig
from tests.conftest import Running
from tests.support.client import PASSWORD
from tests.support.conversing import NewChat, RecordingDesk
from tests.support.server import PATIENCE

HOUR = 3_600


@pytest.fixture
async def alice(chat: NewChat) -> RecordingDesk:
    """Alice, with no group."""
    return RecordingDesk(await chat("alice"))


@pytest.fixture
async def bob(chat: NewChat) -> RecordingDesk:
    return RecordingDesk(await chat("bob"))


@pytest.fixture
async def club(alice: RecordingDesk, bob: RecordingDesk) -> UUID:
    """A group that both have open. Alice is its admin."""
    group = await alice.chat.new("club", bob.chat)
    for each in (alice, bob):
        each.open_group(group)
    return group


def test_every_command_of_the_table_is_exercised() -> None:
    files = Path(__file__), *(Path(__file__).with_name(f"test_{each}.py") for each in ("keys", "search_handlers"))
    source = "".join(each.read_text(encoding="utf-8") for each in files)
    assert set(re.findall(r'does\(f?"/(\w+)', source)) >= set(COMMANDS)


def test_the_table_is_what_it_says() -> None:
    for name, command in COMMANDS.items():
        assert command.name == name == name.lower()
        assert command.usage == f"/{name} {command.arguments}".strip()
        assert command.description == command.description[0].lower() + command.description[1:]
        assert commands.find(name) is command
        assert commands.matching(f"/{name}") == [command], "no name is the beginning of another"


class TestTakingBack:
    async def test_undo_takes_back_what_was_sent_last(
        self, alice: RecordingDesk, bob: RecordingDesk, club: UUID
    ) -> None:
        for desk, text in ((alice, "one"), (bob, "two"), (alice, "three"), (bob, "four")):
            await _sent(alice, bob, club, desk, text)
        assert (await alice.does("/undo"))[0].startswith("Took back your message of ")
        for desk in (alice, bob):
            await desk.chat.shows(club, "one", "two", "four")
        await alice.does("/undo")
        for desk in (alice, bob):
            await desk.chat.shows(club, "two", "four")
        with pytest.raises(CommandError, match="you have no messages in club"):
            await alice.does("/undo")

    async def test_delete_takes_back_a_chosen_one_once_the_user_is_sure(
        self, alice: RecordingDesk, bob: RecordingDesk, club: UUID
    ) -> None:
        for text in ("lunch at one", "lunch at two", "supper"):
            await _sent(alice, bob, club, bob, text)
        for bob.agrees in (False, True):
            await bob.does("/delete LUNCH at")
        assert len(bob.asked) == 2
        assert all("lunch" not in each for asked in bob.asked for each in asked), "the text may vanish meanwhile"
        for desk in (alice, bob):
            await desk.chat.shows(club, "lunch at one", "supper")
        with pytest.raises(CommandError, match="no message from you in club contains these words"):
            await bob.does("/delete dinner")
        with pytest.raises(GroupError, match="not yours to take back"):  # the operator does not let admins
            await alice.does("/delete supper")

    async def test_an_admin_takes_back_what_was_sent_in_some_time(
        self, running: Running, alice: RecordingDesk, bob: RecordingDesk, club: UUID
    ) -> None:
        await _sent(alice, bob, club, alice, "old")
        running.clock.advance(2 * HOUR)
        for desk, text in ((bob, "one"), (alice, "two")):
            await _sent(alice, bob, club, desk, text)
        with pytest.raises(CommandError, match="only the sender can take a message back"):
            await alice.does("/purge 1h")
        assert not alice.asked, "nor is anything gone"
        may_redact = RetentionConfig(admins_may_redact=True)
        running.app._state[app_keys.CONFIG] = replace(running.config, retention=may_redact)
        with pytest.raises(CommandError, match="only admins of club can"):
            await bob.does("/purge 1h")
        with pytest.raises(CommandError, match="for example /purge 1h for the last hour"):
            await alice.does("/purge some")
        alice.agrees = False
        await alice.does("/purge 1h")
        await alice.chat.shows(club, "old", "one", "two")
        assert "2 messages of the last 1 hour, 1 of them yours" in alice.asked[-1][1]
        alice.agrees = True
        await bob.chat.client.take_back(club, bob.conversation.history.last_messages(club, 2)[0].sequence_num)
        assert await alice.does("/purge 1h") == ["Took back 1 message in club"]
        for desk in (alice, bob):
            await desk.chat.shows(club, "old")
        assert (await alice.does("/purge 1h"))[0].startswith("No local messages of club")

    def test_words_of_a_message_do_not_stay_in_the_line(self) -> None:
        assert commands.has_message("/delete lunch")
        assert not commands.has_message("/undo")


async def _sent(alice: RecordingDesk, bob: RecordingDesk, club: UUID, desk: RecordingDesk, text: str) -> None:
    """Have one of them send a text, and wait until both have it."""
    desk.chat.send(club, text)
    for each in (alice, bob):
        await each.chat.until(lambda each=each: each.chat.texts(club)[-1:] == [text])  # type: ignore[misc]  # mypy knows no default in a lambda
    await desk.chat.until(lambda: not desk.chat.room(club).pending)


class TestMuting:
    async def test_a_group_is_muted_by_name_and_for_a_time(
        self, alice: RecordingDesk, bob: RecordingDesk, club: UUID
    ) -> None:
        den = await alice.chat.new("den")
        now, room = alice.conversation.now(), alice.chat.room

        async def muted(line: str) -> list[int]:
            await alice.does(line)
            return [room(each).muted_until - now for each in (club, den)]

        for_good = formatting.MAX_TIME - now
        assert await muted("/mute 2h") == [2 * HOUR, -now]
        assert await muted("/mute den 30min") == [2 * HOUR, HOUR // 2]
        assert await muted("/mute den") == [2 * HOUR, for_good]
        assert await muted("/mute") == [for_good, for_good]
        assert alice.said[-1] == "club is muted until /unmute"
        await alice.does("/groups")
        assert alice.told[-1][1].count(", muted") == 2
        await alice.does("/unmute den")
        await alice.does("/unmute")
        assert not any(room(each).is_muted(now) for each in (club, den))
        with pytest.raises(CommandError, match="you have no group nowhere"):
            await alice.does("/mute nowhere 2h")


class TestReading:
    async def test_what_is_unread_is_put_aside_here_or_everywhere(
        self, alice: RecordingDesk, bob: RecordingDesk, club: UUID
    ) -> None:
        den = await alice.chat.new("den", bob.chat)
        for group in (club, den):
            alice.chat.send(group, "one", "two")
            await bob.chat.until(lambda group=group: bob.chat.room(group).unread == 2)  # type: ignore[misc]  # mypy knows no default in a lambda
        await bob.does("/read")
        assert [bob.chat.room(each).unread for each in (club, den)] == [0, 2]
        await bob.does("/read all")
        assert bob.chat.room(den).unread == 0
        await alice.chat.until(lambda: not bob.chat.history.unreported_reads())
        for line, wrong in (("/read some", "usage: /read"), ("/read x all", "usage: /read")):
            with pytest.raises(CommandError, match=re.escape(wrong)):
                await bob.does(line)

    async def test_without_an_open_group_there_is_only_all(self, alice: RecordingDesk) -> None:
        with pytest.raises(CommandError, match="open a group first"):
            await alice.does("/read")
        await alice.does("/read all")


class TestLines:
    @pytest.mark.parametrize(
        ("typed", "name"),
        [
            ("n", "new"),
            ("exp", "expire"),
            ("EXPIRE", "expire"),
            ("Exp", "expire"),
            ("unb", "unban"),
            ("inf", "info"),
            ("q", "quit"),
            *((each, None) for each in ("", "in", "re", "d", "p", "x", "expired", "new group", "-", "[")),
        ],
    )
    def test_a_name_can_be_cut_as_long_as_it_stays_the_only_one(self, typed: str, name: str | None) -> None:
        found = commands.find(typed)
        assert (found and found.name) == name

    @pytest.mark.parametrize(
        ("line", "could"),
        [
            ("/un", ["unmute", "uninvite", "undo", "unban"]),
            ("/DE", ["decline", "delete", "demote"]),
            ("/exp 1h", ["expire"]),
            ("/in x", []),
            ("/zzz", []),
            ("/", list(COMMANDS)),
        ],
    )
    def test_what_a_line_could_become(self, line: str, could: list[str]) -> None:
        assert [each.name for each in commands.matching(line)] == could

    @pytest.mark.parametrize(
        ("line", "wrong"),
        [
            ("/nonsense", "/nonsense is not a command; /help lists all commands"),
            ("/", "/ is not a command; /help lists all commands"),
            ("/ new x", "/ is not a command; /help lists all commands"),
            ("/x\x1b[2J", "/x\N{REPLACEMENT CHARACTER}[2J is not a command; /help lists all commands"),
            ("/un bob", "/un is ambiguous: /unmute, /uninvite, /undo or /unban"),
            ("/in", "/in is ambiguous: /invite or /info"),
            ("/new", "usage: /new NAME [public]"),
            ("/new  ", "usage: /new NAME [public]"),
            ("/discard me", "/discard needs a group: open one first, or create one with /new NAME"),
            ("/quit now", "/quit takes no arguments"),
        ],
    )
    async def test_what_is_wrong_with_a_line_is_said(self, alice: RecordingDesk, line: str, wrong: str) -> None:
        with pytest.raises(CommandError) as refused:
            await alice.does(line)
        assert str(refused.value) == wrong

    @pytest.mark.parametrize(
        "command", [each for each in COMMANDS.values() if each.needs_group], ids=lambda each: each.name
    )
    async def test_what_is_about_a_group_needs_an_open_one(
        self, alice: RecordingDesk, command: commands.Command
    ) -> None:
        with pytest.raises(CommandError, match=f"^/{command.name} needs a group: open one first, or create one with"):
            await alice.does(f"/{command.name} x")

    async def test_it_is_about_the_group_that_was_open_when_it_was_typed(self, alice: RecordingDesk) -> None:
        for name in ("den", "attic"):
            await alice.does(f"/new {name}")
        den = alice.conversation.rooms.by_name("den")
        await commands.run(alice, "/title The Den", den)
        await commands.run(alice, "/burn 1h", den)
        await alice.chat.refresh()
        assert {each.name: each.group.alias for each in alice.conversation.rooms.ordered()} == {
            "attic": "",
            "den": "The Den",
        }
        assert [each.self_destruct_seconds for each in alice.conversation.rooms.ordered()] == [0, HOUR]
        with pytest.raises(CommandError, match="needs a group"):
            await commands.run(alice, "/title x", None)

    @pytest.mark.parametrize(
        ("line", "is_immediate"),
        [
            *(("/go den", True), ("/burn 1h", True), ("/bu 1h", True), ("/retry", True), ("/discard", True)),
            *(("/expire 1h", False), ("/new den", False), ("/r", False), ("/", False), ("/zzz", False)),
        ],
    )
    def test_some_wait_for_nothing(self, line: str, is_immediate: bool) -> None:
        assert commands.is_immediate(line) is is_immediate

    @pytest.mark.parametrize(
        "command",
        [each for each in COMMANDS.values() if each.arguments and not each.arguments.startswith("[")],
        ids=lambda each: each.name,
    )
    async def test_what_is_missing_is_said(self, alice: RecordingDesk, command: commands.Command) -> None:
        alice.open_group(await alice.chat.new())
        with pytest.raises(CommandError) as refused:
            await alice.does(f"/{command.name}   ")
        assert str(refused.value) == f"usage: {command.usage}"

    def test_a_screen_and_the_recorder_are_desks(self, alice: RecordingDesk) -> None:
        context: CommandContext = alice
        assert context.room is None


class TestGroups:
    async def test_new(self, alice: RecordingDesk) -> None:
        said = await alice.does("/new club")
        assert said == ["Created club. Invite people with /invite NAME, set the expiry with /expire 1h"]
        assert alice.room
        assert (alice.room.name, alice.room.group.visibility) == ("club", "private")
        assert alice.room.is_admin(alice.chat.user_id)
        await alice.does("/new den public")
        assert (alice.room.name, alice.room.group.visibility) == ("den", "public")
        await alice.does("/new attic private")
        assert (alice.room.name, alice.room.group.visibility) == ("attic", "private")
        assert alice.opened == [
            each.group.group_id for name in ("club", "den", "attic") if (each := alice.conversation.rooms.by_name(name))
        ]

    async def test_new_with_what_is_no_name(self, alice: RecordingDesk, club: UUID) -> None:
        before = len(alice.opened)
        for typed, fault in (
            ("_club", "it begins with _"),
            ("c" * 65, "it has 65"),
            ("...", r'"\." at place 1 is not allowed'),
            ("\N{CJK UNIFIED IDEOGRAPH-6771}", '"\N{CJK UNIFIED IDEOGRAPH-6771}" at place 1 is not allowed'),
        ):
            with pytest.raises(InputError, match=fault):
                await alice.does(f"/new {typed}")
        with pytest.raises(CommandError, match="a title has at most 64 characters; this one has 65"):
            await alice.does(f"/new {'c ' * 32}c")
        with pytest.raises(ResourceError):
            await alice.does("/new club")
        assert len(alice.opened) == before
        assert len(await alice.chat.client.groups()) == 1

    async def test_a_name_for_people_is_the_title_and_makes_the_name(self, alice: RecordingDesk) -> None:
        def opened() -> Room:
            assert alice.room
            return alice.room

        for name in ("Smith_v_Jones_2026", "Smith_v_Jones_2026_2"):
            await alice.does("/new Smith v. Jones, 2026")
            assert (opened().name, opened().group.alias) == (name, "Smith v. Jones, 2026")
            assert opened().label == "Smith v. Jones, 2026"
        await alice.does("/new B\u00fccher der Stra\u00dfe public")
        assert (opened().name, opened().group.visibility) == ("Bucher_der_Strasse", "public")
        await alice.does("/new den")
        await alice.does("/title Smith v. Jones, 2026")
        await alice.chat.refresh()
        assert opened().label == "den", "a title that the name was not made of is no name"
        await alice.does("/go b\u00fccher der stra\u00dfe")
        assert opened().name == "Bucher_der_Strasse"
        await alice.does("/groups")
        assert "den (Smith v. Jones, 2026): " in alice.told[-1][1]

    async def test_who_has_never_logged_in_has_no_keys_and_that_is_said(self, alice: RecordingDesk, club: UUID) -> None:
        async with Client(str(alice.conversation.client.transport.url)) as client:
            await client.register("zoe", PASSWORD)
        with pytest.raises(
            ResourceError, match="zoe has no keys yet, and cannot be invited: invite again after the first"
        ):
            await alice.does("/invite zoe")
        with pytest.raises(ResourceError):
            await alice.does("/invite nobody_here")

    async def test_find(self, alice: RecordingDesk, bob: RecordingDesk, club: UUID) -> None:
        await bob.does("/new den public")
        await bob.does("/new hidden")
        await alice.does("/find")
        await alice.does("/find EN")
        await alice.does("/find nothing")
        assert alice.told == [
            ("Public groups", "club  2 members  \nden  1 member  \n\nType /join NAME to join one."),
            ("Public groups", "den  1 member  \n\nType /join NAME to join one."),
            ("Public groups", "No public groups found."),
        ]

    async def test_join(self, alice: RecordingDesk, bob: RecordingDesk) -> None:
        await alice.does("/new den public")
        await alice.does("/new garden public")
        await bob.does("/join DEN")
        assert bob.room
        assert bob.room.name == "den"
        assert {each.username for each in bob.room.group.members} == {"alice", "bob"}
        with pytest.raises(CommandError, match="no public group d; /find lists public groups"):
            await bob.does("/join d")
        await bob.does("/join garden")
        await bob.does("/join den")
        assert bob.room.name == "den", "where one is already, one goes"
        assert len(bob.room.group.members) == 2

    async def test_msg_opens_or_makes_the_group_of_the_two(
        self, alice: RecordingDesk, bob: RecordingDesk, club: UUID
    ) -> None:
        await alice.does("/msg bob hello there")
        await bob.chat.shows(club, "hello there")
        await alice.does("/new den")
        await alice.does("/invite bob")
        await alice.does("/go club")
        await alice.does("/leave")
        said = await alice.does("/dm bob are you there")
        assert said[-1] == "bob has not joined yet. Send the text once they have"
        assert alice.room
        assert (alice.room.name, alice.room.typed) == ("alice_and_bob", "are you there")
        made = alice.room.group.group_id
        await alice.does("/msg bob once more")
        assert alice.room.group.group_id == made
        await bob.chat.until(lambda: len(bob.chat.conversation.rooms.invites) == 2)
        await bob.does("/accept alice_and_bob")
        await alice.chat.until(lambda: len(alice.chat.room(made).group.members) == 2)
        await alice.does("/msg bob now then")
        await bob.chat.shows(made, "now then")
        for line, wrong in (("/msg alice x", "yourself"), ("/msg", "usage: /msg USER")):
            with pytest.raises(CommandError, match=re.escape(wrong)):
                await alice.does(line)
        with pytest.raises(ResourceError):
            await alice.does("/msg nobody_there x")

    async def test_words_of_other_chats_and_the_beginning_of_a_name(self, alice: RecordingDesk, club: UUID) -> None:
        await alice.does("/new Smith v. Jones, 2026")
        for typed, name in (("clu", "club"), ("smith", "Smith_v_Jones_2026"), ("club", "club")):
            await alice.does(f"/go {typed}")
            assert alice.room
            assert alice.room.name == name
        await alice.does("/title Reading")
        await alice.chat.until(lambda: alice.chat.room(club).sidebar_label == "club (Reading)")
        await alice.does("/go smith")
        await alice.does("/go reading")
        assert alice.room
        assert alice.room.name == "club"
        assert (await alice.does("/nick Al")) == ["Alias set to Al"]
        await alice.does("/names")
        assert alice.done == ["info"]
        alice.agrees = False
        await alice.does("/kick bob")
        await alice.does("/part")
        assert [title for title, _, _ in alice.asked] == ["Remove bob?", "Leave club?"]

    async def test_a_join_that_cannot_be_is_undone_and_says_why(self, alice: RecordingDesk, chat: NewChat) -> None:
        await alice.does("/new open_group public")
        codec = MlsCodec(None, uuid4())
        dora = RecordingDesk(await chat("dora", codec=codec))
        for _ in range(2):
            with pytest.raises(EncryptionError, match="this group has no encryption keys"):
                await dora.does("/join open_group")
            assert await dora.chat.client.groups() == ()

    async def test_join_says_which_of_two_is_meant(self, alice: RecordingDesk, bob: RecordingDesk) -> None:
        await alice.does("/new den public")
        await alice.does("/new Den public")
        await bob.does("/join Den")
        assert bob.room
        assert bob.room.name == "Den"
        with pytest.raises(CommandError, match="no public group DEN"):
            await bob.does("/join DEN")

    async def test_join_of_a_group_that_has_banned_one(
        self, alice: RecordingDesk, bob: RecordingDesk, club: UUID
    ) -> None:
        await alice.does("/ban bob")
        await bob.chat.until(lambda: bob.room is None)
        with pytest.raises(GroupError):
            await bob.does("/join club")
        assert bob.conversation.rooms.all == {}

    async def test_go(self, alice: RecordingDesk, club: UUID) -> None:
        await alice.does("/new den")
        await alice.does("/go CLUB")
        assert alice.opened[-1] == club
        with pytest.raises(CommandError, match="you have no group attic"):
            await alice.does("/go attic")

    async def test_groups(self, alice: RecordingDesk, bob: RecordingDesk, club: UUID) -> None:
        await bob.does("/new den")
        await bob.does("/invite alice")
        await alice.chat.until(lambda: alice.conversation.rooms.invites)
        await alice.does("/new attic")
        await alice.does("/expire 1h")
        bob.chat.send(club, "one", "two")
        await alice.chat.until(lambda: alice.chat.room(club).unread == 2)
        await alice.does("/groups")
        assert alice.told == [
            (
                "Your groups",
                "attic: deleted after 1 hour\nclub: kept forever, 2 unread\ninvited to den by bob",
            )
        ]

    async def test_groups_of_somebody_new(self, alice: RecordingDesk) -> None:
        await alice.does("/groups")
        assert alice.told == [("Your groups", "You have no groups yet.")]

    async def test_groups_whose_policy_is_not_known_yet(self, alice: RecordingDesk, club: UUID) -> None:
        alice.chat.room(club).retention = None
        await alice.does("/groups")
        assert alice.told == [("Your groups", "club")]

    async def test_leave(self, alice: RecordingDesk, bob: RecordingDesk, club: UUID) -> None:
        alice.chat.send(club, "secret")
        await bob.chat.shows(club, "secret")
        bob.agrees = False
        await bob.does("/leave")
        assert bob.asked == [("Leave club?", "Your local copy of club will be erased.", "Leave")]
        assert club in bob.conversation.rooms.all, "who does not agree stays"
        bob.agrees = True
        await bob.does("/leave")
        assert club not in bob.conversation.rooms.all
        assert bob.chat.history.groups() == {}
        await alice.chat.until(lambda: len(alice.chat.room(club).group.members) == 1)
        await alice.does("/leave")
        assert alice.asked[-1][1].endswith("You are the last member: the group will be deleted.")
        assert await alice.chat.client.groups() == ()

    async def test_delete(self, alice: RecordingDesk, bob: RecordingDesk, club: UUID) -> None:
        with pytest.raises(GroupError):
            await bob.does("/disband")
        alice.agrees = False
        await alice.does("/disband")
        title, text, yes = alice.asked[-1]
        assert (title, yes) == ("Delete club?", "Delete")
        assert text == "club and all its messages will be deleted for 2 members. This cannot be undone."
        assert len(await alice.chat.client.groups()) == 1
        alice.agrees = True
        await alice.does("/disband")
        for each in (alice, bob):
            await each.chat.until(lambda: not each.conversation.rooms.all)  # noqa: B023 - it is over before the next


class TestSettings:
    async def test_rename_and_title(self, alice: RecordingDesk, bob: RecordingDesk, club: UUID) -> None:
        await alice.does("/rename den")
        await alice.does("/title The Den of Us")
        await bob.chat.until(lambda: bob.chat.room(club).group.alias == "The Den of Us")
        assert bob.chat.room(club).name == "den"
        await alice.does("/title")
        await bob.chat.until(lambda: bob.chat.room(club).group.alias == "")
        for line in ("/rename attic", "/title x"):
            with pytest.raises(GroupError):
                await bob.does(line)
        with pytest.raises(InputError):
            await alice.does("/rename no name")

    async def test_public_and_private(self, alice: RecordingDesk, bob: RecordingDesk) -> None:
        await alice.does("/new den")
        alice.agrees = False
        await alice.does("/public")
        assert alice.asked == [
            ("Make the group public?", "Everyone on this server will be able to find and join den.", "Make public")
        ]
        assert await bob.chat.client.public_groups() == ()
        alice.agrees = True
        await alice.does("/public")
        assert [each.group_name for each in await bob.chat.client.public_groups()] == ["den"]
        await alice.does("/private")
        assert await bob.chat.client.public_groups() == ()
        assert len(alice.asked) == 2, "to close it is asked about by nobody"

    async def test_only_admins_open_and_close(self, bob: RecordingDesk, club: UUID) -> None:
        for line in ("/public", "/private"):
            with pytest.raises(GroupError):
                await bob.does(line)

    async def test_alias(self, alice: RecordingDesk, club: UUID) -> None:
        assert await alice.does("/alias Al the First") == ["Alias set to Al the First"]
        assert (await alice.chat.client.me()).alias == "Al the First"
        assert await alice.does("/alias") == ["Alias removed"]
        assert (await alice.chat.client.me()).alias == ""
        with pytest.raises(InputError):
            await alice.does("/alias " + "x" * 65)

    async def test_expire_says_first_what_it_would_hide(
        self, alice: RecordingDesk, bob: RecordingDesk, club: UUID, running: Running
    ) -> None:
        bob.chat.send(club, "old", "old too")
        await alice.chat.shows(club, "old", "old too")
        running.clock.advance(2 * HOUR)
        bob.chat.send(club, "young")
        await alice.chat.shows(club, "old", "old too", "young")
        alice.agrees = False
        await alice.does("/expire 1h")
        [(title, text, yes)] = alice.asked
        assert (title, yes) == ("Change expiry?", "Change")
        first, _, second = text.partition("\n\n")
        assert first == "Messages in club will be deleted after 1 hour."
        assert re.fullmatch(
            r"2 messages, the oldest from \w+ \d+ \w+ 2023, \d\d:\d\d, will be hidden for everyone now\."
            r" This cannot be undone\.",
            second,
        )
        await bob.chat.shows(club, "old", "old too", "young")
        alice.agrees = True
        await alice.does("/expire 1 hour")
        for each in (alice, bob):
            await each.chat.shows(club, "young")

    async def test_expire_fetched_says_what_goes_from_the_server_and_what_stays_here(
        self, alice: RecordingDesk, bob: RecordingDesk, club: UUID, running: Running
    ) -> None:
        await alice.does("/expire 1h")
        bob.chat.send(club, "countdowns continue")
        for each in (alice, bob):
            await each.chat.shows(club, "countdowns continue")
        await alice.chat.until(lambda: alice.chat.room(club).expiry == HOUR)
        await asyncio.sleep(0.2)  # both confirm what they have fetched
        await alice.does("/expire fetched")
        [(_, text, _)] = alice.asked
        assert re.search(
            r"1 message, the oldest from .* 2023, .*, will be deleted from the server now, since all", text
        )
        assert "cannot be undone" not in text
        assert "Devices keep their copies. In this chat, countdowns continue; other messages" in text
        for each in (alice, bob):
            await each.chat.until(lambda each=each: each.chat.room(club).expiry == 0)  # type: ignore[misc]  # no type
            assert [m.text for m in each.chat.history.messages(club) if m.gone_at] == ["countdowns continue"]
        running.clock.advance(HOUR + 1)
        for each in (alice, bob):
            await each.chat.shows(club)

    @pytest.mark.parametrize(
        ("typed", "setting", "becomes"),
        [
            ("fetched", 0, "deleted once all have fetched them"),
            ("Read", 0, "deleted once all have fetched them"),
            ("off", -1, "kept forever"),
            ("2 days", 172_800, "deleted after 2 days"),
            ("90min", 5_400, "deleted after 90 minutes"),
            ("5m", 300, "deleted after 5 minutes"),
        ],
    )
    async def test_expire_takes_times_and_words(
        self, alice: RecordingDesk, typed: str, setting: int, becomes: str
    ) -> None:
        await alice.does("/new den")
        await alice.does("/expire 1min")
        await alice.does(f"/expire {typed}")
        assert not alice.asked, "nothing is hidden, so nothing is asked"
        retention = await alice.chat.client.retention((await alice.chat.client.groups())[0].group_id)
        assert becomes == formatting.policy(retention.effective_expiry_seconds)
        assert (await alice.chat.client.groups())[0].message_expiry_seconds == setting

    @pytest.mark.parametrize(
        ("typed", "wrong"),
        [
            (
                "soon",
                "soon is not a duration: write a number and a unit (s, min, h, d, w, mo, y), such as 1h, or fetched",
            ),
            ("0", "0 is not a duration"),
            ("-1", "-1 is not a duration"),
            ("9" * 30 + "y", "is not a duration"),
        ],
    )
    async def test_expire_of_what_is_no_time(self, alice: RecordingDesk, typed: str, wrong: str) -> None:
        await alice.does("/new den")
        with pytest.raises(CommandError, match=re.escape(wrong)):
            await alice.does(f"/expire {typed}")
        assert alice.asked == []

    async def test_expire_is_for_admins_who_are_not_asked_in_vain(self, bob: RecordingDesk, club: UUID) -> None:
        with pytest.raises(GroupError):
            await bob.does("/expire 1h")
        assert bob.asked == []


class TestMembers:
    async def test_invite_and_accept(self, alice: RecordingDesk, bob: RecordingDesk) -> None:
        await alice.does("/new den")
        assert await alice.does("/invite bob") == ["Invited bob to den"]
        await bob.chat.until(lambda: bob.conversation.rooms.invites)
        await bob.does("/accept")
        assert bob.room
        assert bob.room.name == "den"
        await alice.chat.until(lambda: alice.room and len(alice.room.group.members) == 2)

    async def test_an_invite_that_is_not_listed_yet_can_be_accepted(
        self, alice: RecordingDesk, bob: RecordingDesk
    ) -> None:
        await alice.does("/new den")
        await alice.does("/invite bob")
        bob.conversation.rooms.invites = ()
        await bob.does("/accept")
        assert bob.room
        assert bob.room.name == "den"

    async def test_which_invite_is_meant(self, alice: RecordingDesk, bob: RecordingDesk) -> None:
        for line in ("/accept", "/decline", "/accept den"):
            with pytest.raises(CommandError, match="you have no invites"):
                await bob.does(line)
        for name in ("den", "attic"):
            await alice.does(f"/new {name}")
            await alice.does("/invite bob")
        await bob.chat.until(lambda: len(bob.conversation.rooms.invites) == 2)
        for line in ("/accept", "/decline", "/accept cellar"):
            with pytest.raises(CommandError) as refused:
                await bob.does(line)
            assert re.fullmatch(r"name the group: you are invited to (den and attic|attic and den)", str(refused.value))
        await bob.does("/decline ATTIC")
        assert [each.group_name for each in bob.conversation.rooms.invites] == ["den"]
        await bob.does("/accept den")
        assert bob.room
        assert bob.room.name == "den"

    async def test_decline(self, alice: RecordingDesk, bob: RecordingDesk) -> None:
        await alice.does("/new den")
        await alice.does("/invite bob")
        await bob.chat.until(lambda: bob.conversation.rooms.invites)
        await bob.does("/decline")
        assert (bob.conversation.rooms.invites, bob.opened) == ((), [])
        await alice.chat.until(lambda: alice.chat.told.said)

    async def test_uninvite(self, alice: RecordingDesk, bob: RecordingDesk) -> None:
        await alice.does("/new den")
        with pytest.raises(ResourceError):
            await alice.does("/uninvite bob")
        await alice.does("/invite bob")
        await bob.chat.until(lambda: bob.conversation.rooms.invites)
        assert await alice.does("/uninvite bob") == ["Withdrew the invite of bob to den"]
        await bob.chat.until(lambda: not bob.conversation.rooms.invites)

    @pytest.mark.parametrize(
        "line", ["/invite nobody", "/uninvite nobody", "/promote nobody", "/ban nobody", "/invite Bob"]
    )
    async def test_who_is_not_there(self, alice: RecordingDesk, club: UUID, line: str) -> None:
        with pytest.raises(ResourceError):
            await alice.does(line)
        assert (alice.asked, alice.said) == ([], [])

    async def test_who_is_in_already_is_not_invited(self, alice: RecordingDesk, club: UUID) -> None:
        with pytest.raises(ResourceError):
            await alice.does("/invite bob")

    async def test_promote_and_demote(self, alice: RecordingDesk, bob: RecordingDesk, club: UUID) -> None:
        await alice.does("/promote bob")
        await bob.chat.until(lambda: bob.chat.room(club).is_admin(bob.chat.user_id))
        await alice.does("/demote bob")
        await bob.chat.until(lambda: not bob.chat.room(club).is_admin(bob.chat.user_id))
        assert bob.chat.notices(club)[-2:] == ["you are now an admin", "you are no longer an admin"]

    async def test_remove(self, alice: RecordingDesk, bob: RecordingDesk, club: UUID) -> None:
        alice.agrees = False
        await alice.does("/remove bob")
        assert alice.asked == [
            (
                "Remove bob?",
                "bob will be removed from club. They can join again, since the group is public; use /ban to"
                " prevent that.",
                "Remove",
            )
        ]
        assert len((await alice.chat.client.groups())[0].members) == 2
        alice.agrees = True
        await alice.does("/remove bob")
        await bob.chat.until(lambda: bob.room is None and bob.chat.told.bad)  # or the news would come after the join
        await bob.does("/join club")
        assert bob.room

    async def test_ban_and_unban(self, alice: RecordingDesk, bob: RecordingDesk, club: UUID) -> None:
        assert await alice.does("/ban bob") == ["Banned bob in club"]
        assert alice.asked == [("Ban bob?", "bob will be removed from club. They cannot return until /unban.", "Ban")]
        await bob.chat.until(lambda: bob.room is None and bob.chat.told.bad)
        await alice.chat.until(lambda: len(alice.chat.room(club).group.members) == 1)
        assert await alice.does("/unban bob") == ["Unbanned bob in club"]
        await bob.does("/join club")
        with pytest.raises(InputError):
            await alice.does("/unban bob")

    async def test_one_is_meant_as_the_name_is_written(
        self, alice: RecordingDesk, bob: RecordingDesk, chat: NewChat, club: UUID
    ) -> None:
        """Bob is no member: it is not bob who is banned."""
        await chat("Bob")
        await alice.does("/ban Bob")
        assert [each.username for each in await alice.chat.client.banned(club)] == ["Bob"]
        assert {each.username for each in (await alice.chat.client.groups())[0].members} == {"alice", "bob"}

    @pytest.mark.parametrize("what", ["promote", "demote", "remove", "ban", "unban", "invite", "uninvite"])
    async def test_who_is_no_admin_changes_nothing(self, bob: RecordingDesk, club: UUID, what: str) -> None:
        before = await bob.chat.client.groups()
        name = "bob" if what in ("invite", "uninvite") else "alice"
        with pytest.raises((GroupError, ResourceError)):
            await bob.does(f"/{what} {name}")
        assert await bob.chat.client.groups() == before

    async def test_a_group_that_is_gone_meanwhile(self, alice: RecordingDesk, bob: RecordingDesk, club: UUID) -> None:
        """It was open when the command was typed."""
        room = bob.room
        await alice.chat.client.delete_group(club)
        await bob.chat.until(lambda: bob.room is None)
        assert room
        for line in ("/title x", "/expire 1h", "/leave"):
            # Each time: news may take it away again while a command waits for the server.
            bob.conversation.rooms.all[club], bob.conversation.open_group_id = room, club
            with pytest.raises(GroupError):
                await bob.does(line)


class TestTexts:
    async def test_burn_with_a_text(self, alice: RecordingDesk, bob: RecordingDesk, club: UUID) -> None:
        assert await alice.does("/burn 30s  psst: /quit\nnow ") == []
        await bob.chat.shows(club, "psst: /quit\nnow")
        assert [each.self_destruct_seconds for each in bob.chat.room(club).messages.values()] == [30]
        await alice.does("/burn 1h\nnext line")
        await bob.chat.shows(club, "psst: /quit\nnow", "next line")
        assert alice.room
        assert alice.room.self_destruct_seconds == 0, "only this once"

    async def test_burn_until_it_is_off(self, alice: RecordingDesk, club: UUID) -> None:
        assert alice.room
        await alice.chat.until(lambda: alice.room and alice.room.retention)
        alice.chat.told.shown.clear()
        said = await alice.does("/burn 1min")
        assert club in alice.chat.told.shown, "the head says it, whatever else happens"
        assert said == ["Your messages here self-destruct 1 minute after reading, until /burn off"]
        assert alice.room.self_destruct_seconds == 60
        alice.chat.told.shown.clear()
        assert await alice.does("/burn off") == ["Your messages no longer self-destruct"]
        assert club in alice.chat.told.shown
        assert [alice.room.self_destruct_seconds] == [0]

    @pytest.mark.parametrize("typed", ["soon", "0s", "-1", "30 seconds x", "fetched", "off hello"])
    async def test_burn_of_what_is_no_time(self, alice: RecordingDesk, club: UUID, typed: str) -> None:
        with pytest.raises(CommandError, match=r": for example /burn 30s hello$"):
            await alice.does(f"/burn {typed}")
        assert alice.room
        assert (alice.room.self_destruct_seconds, alice.room.pending) == (0, [])

    async def test_burn_for_longer_than_the_server_allows(self, alice: RecordingDesk, club: UUID) -> None:
        with pytest.raises(CommandError, match="the longest timer is 365 days: for example /burn 30s hello"):
            await alice.does("/burn 2y")
        assert alice.room
        assert alice.room.self_destruct_seconds == 0
        await alice.does("/burn 1y")

    async def test_retry_and_discard(self, alice: RecordingDesk, bob: RecordingDesk, club: UUID) -> None:
        assert await alice.does("/retry") == ["There is nothing to retry here"]
        assert await alice.does("/discard") == ["There is nothing to discard here"]
        room = alice.room
        assert room
        alice.chat.send(club, "one", "two", self_destruct_seconds=10**9)
        await alice.chat.until(lambda: all(each.refused for each in room.pending))
        room.pending[0].self_destruct_seconds = 0
        assert await alice.does("/retry") == []
        await bob.chat.shows(club, "one")
        await alice.chat.until(lambda: [bool(each.refused) for each in room.pending] == [True])
        assert await alice.does("/discard") == []
        assert room.pending == []


class TestDesk:
    """What the screen does for a command."""

    async def test_they_are_handed_on(self, alice: RecordingDesk, club: UUID) -> None:
        await alice.does("/help")
        await alice.does("/info")
        await alice.does("/password")
        await alice.does("/quit")
        assert alice.done == ["help", "info", "change_password", "leave_chat"]

    async def test_a_password_is_not_typed_into_the_line(self, alice: RecordingDesk) -> None:
        with pytest.raises(CommandError, match="do not type the password here: /password alone asks for it"):
            await alice.does("/password secret")
        assert alice.done == []

    async def test_logout_asks_first(self, alice: RecordingDesk) -> None:
        alice.agrees = False
        await alice.does("/logout")
        [(title, text, yes)] = alice.asked
        assert (title, yes) == ("Log out?", "Log out")
        assert "your messages and drafts are erased from this machine" in text
        assert alice.done == []
        alice.agrees = True
        await alice.does("/logout")
        assert alice.done == ["log_out"]


class TestAbout:
    async def test_what_there_is_to_know_of_a_group(
        self, alice: RecordingDesk, bob: RecordingDesk, chat: NewChat, club: UUID
    ) -> None:
        await chat("carol")
        dave = RecordingDesk(await chat("dave"))
        await dave.does("/join club")
        await alice.chat.until(lambda: len(alice.chat.room(club).group.members) == 3)
        for line in ("/title The Club", "/invite carol", "/ban dave", "/expire fetched"):
            await alice.does(line)
        alice.chat.send(club, "for all")
        await bob.chat.disconnect()
        alice.chat.send(club, "for Bob too")
        await alice.chat.shows(club, "for all", "for Bob too")
        async with asyncio.timeout(PATIENCE):  # her own last fetch may be on its way
            while (await alice.chat.client.retention(club)).held_by != (bob.chat.user_id,):
                await asyncio.sleep(0.01)
        await alice.chat.refresh()
        assert alice.room
        found = (await help_text.about(alice.conversation, alice.room)).splitlines()
        assert found == [
            "Title: The Club",
            "Public: everyone can find and join it.",
            "Messages are deleted once all have fetched them.",
            "  group setting: delete after all have fetched, by alice",
            "  server default: none",
            "Not fetched yet by bob; deletion waits for that.",
            "",
            "Not encrypted: the server can read this.",
            "",
            "2 members:",
            "  alice  admin",
            "  bob",
            "",
            "Invited: carol",
            "Banned: dave",
        ]

    async def test_a_member_learns_no_more_than_members_may(
        self, alice: RecordingDesk, bob: RecordingDesk, chat: NewChat, club: UUID
    ) -> None:
        await chat("carol")
        for line in ("/invite carol", "/expire fetched"):
            await alice.does(line)
        await bob.chat.refresh()
        assert bob.room
        found = await help_text.about(bob.conversation, bob.room)
        assert "carol" not in found
        assert "deletion waits" not in found

    def test_the_help_has_every_command(self) -> None:
        found = help_text.help_content().plain
        for command in COMMANDS.values():
            assert command.usage in found
            assert command.description in found
