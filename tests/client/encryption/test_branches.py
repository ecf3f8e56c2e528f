"""Commits that cross, and the group infos of those that lost: nobody stays in an epoch beside the others.

There is a server of a few lines, with one group, and a clock that is set by hand: what happens at the same moment is
the test's to say.
"""

from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar, cast
from uuid import UUID, uuid4

import pytest

from conclave.client import Client, MlsCodec
from conclave.client.codec import MembershipChange, PendingResend
from conclave.client.encryption.branches import MAX_UNREADABLE
from conclave.client.encryption.headers import read_group_info
from conclave.client.encryption.people import POLICY
from conclave.client.encryption.texts import UNCONFIRMED_SECONDS, Texts
from conclave.client.encryption.view import EncryptionStatus
from conclave.client.errors import EncryptionError, NoAnswerError, NotReadyError, RefusedError
from conclave.client.events import EncryptionNotice
from conclave.client.mls import MlsGroup, decode_message, encode_message
from conclave.client.mls.framing import PublicMessage
from conclave.client.mls.welcome import GroupInfo
from conclave.errors import ErrorCode
from conclave.wire.results import FetchedMessage, GroupDetails, MemberInfo
from tests.client.encryption.devices import compared

GROUP = uuid4()
START = 1_000_000
T = TypeVar("T")

TOGETHER = 30.0
"""Who has come in beside the others is with them within 30 seconds."""


class Server:
    """Keeps messages in their order, and the last group info that it was given."""

    def __init__(self) -> None:
        self.time = 0.0
        self.messages: list[FetchedMessage] = []
        self.info, self.mls_group_id = b"", ""
        self.members: dict[UUID, str] = {}
        self.gone = 0
        """Messages up to this number have expired."""

    def store(self, sender: UUID, message: bytes, info: bytes = b"") -> None:
        if sender not in self.members:
            raise RefusedError(403, ErrorCode.GROUP_NOT_MEMBER, "not a member")
        if message:
            self.messages.append(FetchedMessage(len(self.messages) + 1, sender, message, 0))
        self.info = info or self.info

    def group(self) -> GroupDetails:
        members = tuple(MemberInfo(each, each.hex, "", "", role) for each, role in self.members.items())
        return GroupDetails(GROUP, "", members, "club", self.mls_group_id, -1, "public")


def run(doing: Coroutine[Any, Any, T]) -> T:
    """Run what never waits, also within such a run."""
    try:
        doing.send(None)
    except StopIteration as done:
        return cast(T, done.value)
    raise AssertionError("it waits")


class Person:
    """Somebody with a codec at the server: reads, and does what goes on by itself, when told to."""

    def __init__(self, server: Server) -> None:
        self.user_id, self.server = uuid4(), server
        self.codec = MlsCodec(None, self.user_id, now=lambda: START + int(server.time), clock=lambda: server.time)
        self.read_up_to = 0
        self.refuses: set[int] = set()
        self.told: list[EncryptionNotice] = []
        self.texts: list[str | None] = []

    # What a client asks of the server

    async def group_info(self, _: UUID) -> bytes:
        return self.server.info

    async def commit(
        self, _: UUID, *, commit_message: bytes = b"", group_info: bytes = b"", mls_group_id: str = ""
    ) -> None:
        self.server.store(self.user_id, commit_message, group_info)
        self.server.mls_group_id = self.server.mls_group_id or mls_group_id

    async def external_join(self, _: UUID, message: bytes, __: str, group_info: bytes = b"") -> None:
        self.server.store(self.user_id, message)

    # What it does

    def read(self) -> None:
        if self.user_id not in self.server.members:
            self.codec.forget(GROUP)
            return
        new = self.server.messages[self.read_up_to :]
        unread = self.refuses | set(range(self.server.gone + 1))
        found = self.codec.decode(GROUP, [each for each in new if each.sequence_num not in unread])
        self.texts += [each.text for each in found]
        self.read_up_to += len(new)
        self.codec.record_stored(GROUP, self.read_up_to)
        self.codec.record_caught_up(GROUP)
        self.told += [each for each in self.codec.take_news() if isinstance(each, EncryptionNotice)]

    def settle(self) -> None:
        groups = [self.server.group()] if self.user_id in self.server.members else []
        if self.codec.is_due:
            run(self.codec.run_maintenance(cast(Client, self), groups))
        self.told += [each for each in self.codec.take_news() if isinstance(each, EncryptionNotice)]

    def repeats(self) -> None:
        """Send again what is to be, as ``Sync`` does."""
        for again in self.codec.pending_resends():
            with suppress(NotReadyError):
                self.server.store(self.user_id, self.codec.encode_resend(again))
                self.codec.drop_resend(again.key)

    def begin(self) -> None:
        self.server.members[self.user_id] = "admin"
        beginning = self.codec.create(GROUP)
        self.server.info, self.server.mls_group_id = beginning.group_info, beginning.mls_group_id

    def says(self, text: str) -> None:
        compared(self.codec)  # or it would wait until it knows whether it is alone in a branch
        self.server.store(self.user_id, self.codec.encode(GROUP, text))

    def joins(self, *, is_admin: bool = False) -> None:
        self.server.members[self.user_id] = "admin" if is_admin else "member"
        info = self.server.info
        run(self.external_join(GROUP, self.codec.join(GROUP, info).commit, ""))
        self.codec.schedule_check(GROUP)

    def renews(self) -> None:
        change = self.codec.commit(GROUP)
        self.server.store(self.user_id, change.commit, change.group_info)

    @property
    def is_in(self) -> bool:
        return self.codec.view(GROUP).status is EncryptionStatus.ENCRYPTED

    def state(self) -> tuple[int, bytes]:
        record = self.codec.record(GROUP)
        assert record is not None
        assert record.group is not None
        return record.group.epoch, record.group.epoch_authenticator

    def kinds(self) -> set[str]:
        return {each.kind for each in self.told}


def group_info(person: Person) -> bytes:
    record = person.codec.record(GROUP)
    assert record
    assert record.group
    return record.group.group_info()


def until_quiet(server: Server, people: list[Person], seconds: float = 60.0) -> None:
    """Let everybody do what goes on by itself for so long."""
    for _ in range(int(seconds / 0.5)):
        for each in people:
            each.read()
            each.settle()
            each.repeats()
        server.time += 0.5


def check(server: Server, people: list[Person]) -> None:
    members = [each for each in people if each.user_id in server.members]
    assert all(each.is_in for each in members), [each.codec.record(GROUP) for each in members]
    assert len({each.state() for each in members}) == 1, [each.state()[0] for each in members]
    record = members[0].codec.record(GROUP)
    assert record
    assert record.group
    assert {each.credential.identity for each in record.group.members().values()} == {
        each.bytes for each in server.members
    }


def goes_back(person: Person, kept: bytes, *, read_up_to: int | None = None) -> None:
    """Put an old copy of a person's keys in the place of those that are there. ``read_up_to``: the copy's, if older."""
    with person.codec._change_group(GROUP) as record:
        record.group = MlsGroup.from_bytes(kept, POLICY)
        record.up_to = record.up_to if read_up_to is None else read_up_to


@pytest.fixture
def club() -> tuple[Server, list[Person]]:
    """Alice and Bob, who are admins, and Carol, who is not in yet."""
    server = Server()
    people = [Person(server) for _ in range(3)]
    alice, bob, _ = people
    alice.begin()
    bob.joins(is_admin=True)
    until_quiet(server, [alice, bob])
    check(server, people)
    return server, people


class TestAGroupInfoOfACommitThatLost:
    def test_who_comes_in_by_it_is_with_the_others_in_the_end(self, club: tuple[Server, list[Person]]) -> None:
        """Nobody says anything meanwhile: so the others' messages do not tell it."""
        server, [alice, bob, carol] = club
        alice.renews()
        bob.renews()
        carol.joins()
        until_quiet(server, [alice, bob, carol])
        check(server, [alice, bob, carol])
        assert not {"lost", "replaced"} & (alice.kinds() | bob.kinds()), "they have read all, and stay"

    def test_who_knows_of_the_commit_that_won_waits_for_another_one(self, club: tuple[Server, list[Person]]) -> None:
        server, [alice, bob, carol] = club
        carol.joins()
        until_quiet(server, [alice, bob, carol])
        carol.codec.reset_keys()
        alice.renews()
        bob.renews()
        carol.read()
        server.time += 1
        carol.settle()
        assert len(server.messages) == 4, "it has not asked in"
        until_quiet(server, [alice, bob, carol])
        check(server, [alice, bob, carol])
        assert "refused" not in alice.kinds() | bob.kinds()

    def test_the_own_key_of_before_is_no_other_device_s(self, club: tuple[Server, list[Person]]) -> None:
        server, [alice, bob, carol] = club
        carol.joins()
        until_quiet(server, [alice, bob, carol])
        old = server.info
        carol.codec.reset_keys()
        carol.codec.reset_keys()
        until_quiet(server, [alice, bob, carol])
        carol.codec.drop_state(GROUP)
        assert not carol.codec.gives_way(GROUP, old)


class TestAGroupInfoThatIsOlderThanACommit:
    """It is uploaded by who compared it before, and stored after the commit: the server keeps what came last."""

    @pytest.fixture
    def crossed(self, club: tuple[Server, list[Person]]) -> tuple[Server, Person, Person, bytes, int]:
        """Bob changes the group between Alice's look at the group info and her upload. Also Bob's keys before that."""
        server, [alice, bob, _] = club
        record, stores = bob.codec.record(GROUP), alice.commit
        assert record
        assert record.group
        kept, read_up_to = record.group.to_bytes(), record.up_to

        async def crossing(group_id: UUID, **sent: Any) -> None:
            alice.commit = stores  # type: ignore[method-assign]
            bob.renews()
            await stores(group_id, **sent)

        alice.commit = crossing  # type: ignore[method-assign,assignment]
        server.info = b""
        alice.codec._agenda.group(GROUP).check_info_soon(is_own=True)
        alice.codec.schedule_check(GROUP)
        server.time += 1
        alice.settle()
        alice.read()
        header = read_group_info(server.info)
        assert header
        assert header.epoch == alice.state()[0] - 1
        return server, alice, bob, kept, read_up_to

    @pytest.mark.parametrize("reads", ["the commit", "from after it"])
    def test_an_old_copy_does_not_come_in_by_it(
        self, crossed: tuple[Server, Person, Person, bytes, int], reads: str
    ) -> None:
        server, alice, bob, kept, read_up_to = crossed
        if reads == "the commit":
            goes_back(bob, kept)
        else:  # the history has it already
            goes_back(bob, kept, read_up_to=read_up_to)
            bob.read_up_to = len(server.messages)
        bob.read()
        count = len(server.messages)
        server.time += 0.3
        bob.settle()
        assert len(server.messages) == count, "it would come in beside the others, and what it says would be lost"
        until_quiet(server, [alice, bob])
        check(server, [alice, bob])
        assert "restored" in bob.kinds()
        assert "refused" not in alice.kinds()
        assert "lost" not in bob.kinds()

    def test_it_is_compared_again_soon_where_the_server_did_not_answer(
        self, crossed: tuple[Server, Person, Person, bytes, int]
    ) -> None:
        server, alice, *_ = crossed
        asks = alice.group_info

        async def unanswered(_: UUID) -> bytes:
            alice.group_info = asks  # type: ignore[method-assign]
            raise NoAnswerError("no answer")

        alice.group_info = unanswered  # type: ignore[method-assign]
        until_quiet(server, [alice], 5)
        header = read_group_info(server.info)
        assert header
        assert header.epoch == alice.state()[0]


class TestWhoIsBehindTheOthers:
    """Reads slowly, or waits for the disk: that is no other branch."""

    def test_replaces_no_group_info_that_was_newer_than_what_was_read(self, club: tuple[Server, list[Person]]) -> None:
        server, [alice, bob, carol] = club
        carol.joins()
        until_quiet(server, [alice, bob, carol])
        for _ in range(3):
            bob.renews()
            bob.read()
        newer = server.info
        alice.codec._agenda.group(GROUP).check_info_soon()
        alice.codec.schedule_check(GROUP)
        for _ in range(20):
            server.time += 0.5
            alice.settle()
        assert server.info == newer
        until_quiet(server, [alice, bob, carol])
        check(server, [alice, bob, carol])
        assert not {"refused", "lost"} & alice.kinds()

    def test_replaces_none_where_messages_were_read_while_it_was_on_its_way(
        self, club: tuple[Server, list[Person]]
    ) -> None:
        """And the state was loaded anew, since something else had failed."""
        server, [alice, bob, _] = club
        asks = alice.group_info

        async def reading(group_id: UUID) -> bytes:
            with suppress(EncryptionError):
                alice.codec.add(GROUP, uuid4(), b"no key package")
            bob.renews()
            alice.read()
            return await asks(group_id)

        alice.group_info = reading  # type: ignore[method-assign,assignment]
        alice.codec._agenda.group(GROUP).check_info_soon()
        alice.codec.schedule_check(GROUP)
        server.time += 1
        alice.settle()
        header = read_group_info(server.info)
        assert header
        assert header.epoch == alice.state()[0]
        assert alice.kinds() == set()

    def test_does_not_come_in_again(self, club: tuple[Server, list[Person]]) -> None:
        server, [alice, bob, carol] = club
        carol.joins()
        carol.read()
        assert carol.is_in
        for _ in range(3):
            for each in (alice, bob):
                each.read()
            bob.renews()
        count = len(server.messages)
        for _ in range(20):
            server.time += 0.5
            carol.settle()
        assert len(server.messages) == count
        until_quiet(server, [alice, bob, carol])
        check(server, [alice, bob, carol])


@pytest.mark.parametrize(("stay", "lost"), [(8, 2), (2, 8)])
def test_two_branches_become_one_while_nobody_says_anything(
    club: tuple[Server, list[Person]], stay: int, lost: int
) -> None:
    """However many have come in beside the others, one after the other."""
    server, [alice, bob, _] = club
    others = [Person(server) for _ in range(stay - 2)]
    for each in others:
        each.joins()
        until_quiet(server, [alice, bob, *others], 3.0)
    check(server, [alice, bob, *others])
    alice.renews()
    void = bob.codec.commit(GROUP)
    server.store(bob.user_id, void.commit, void.group_info)
    beside = [Person(server) for _ in range(lost)]
    for each in beside:
        each.read_up_to = len(server.messages)  # what was there before has expired
        each.joins()
        for one in beside:
            one.read()
        assert each.is_in
        server.info = group_info(each)
    people = [alice, bob, *others]
    for each in people:
        each.read()
    assert len({each.state() for each in people}) == len({each.state() for each in beside}) == 1
    assert alice.state() != beside[0].state()
    until_quiet(server, [*people, *beside], TOGETHER)
    check(server, [*people, *beside])
    assert not {"lost", "replaced"} & set().union(*(each.kinds() for each in people))


@pytest.mark.parametrize("talks", [False, True], ids=["and nobody talks", "and all talk"])
def test_who_follows_a_commit_that_all_others_refuse_is_with_them_in_the_end(
    club: tuple[Server, list[Person]], *, talks: bool
) -> None:
    """Other programs may have other rules."""
    server, [alice, bob, carol] = club
    carol.joins()
    until_quiet(server, [alice, bob, carol])
    alice.renews()
    for each in (bob, carol):
        each.refuses.add(len(server.messages))
    bob.renews()
    for each in (alice, bob, carol):
        each.read()
    assert alice.state() != bob.state() == carol.state()
    for number in range(MAX_UNREADABLE + 4 if talks else 0):
        for each in (alice, bob):
            with suppress(NotReadyError):
                each.says(f"{number}")
        until_quiet(server, [alice, bob, carol], 2.0)
    until_quiet(server, [alice, bob, carol])
    check(server, [alice, bob, carol])
    assert "replaced" not in alice.kinds() | bob.kinds() | carol.kinds()


def come_in_by_a_void_commit(server: Server, alice: Person, bob: Person, carol: Person) -> Person:
    """Let Carol come in by the group info of a commit that lost, and Dave by hers; return Dave. Nobody knows of it."""
    dave = Person(server)
    alice.renews()
    bob.renews()
    void = server.info
    for each in (alice, bob):
        each.read()
    server.gone, server.info = len(server.messages), void
    carol.joins()
    carol.read()
    server.info = group_info(carol)
    dave.joins()
    for each in (carol, dave):
        each.read()
    return dave


class TestWhoWasThereFirstDecides:
    """Which commits led into the epoch that somebody came in by has gone, so nobody can tell that it was a void one."""

    def test_two_who_come_in_by_each_other_do_not_confirm_each_other(self, club: tuple[Server, list[Person]]) -> None:
        """They have the same keys, and talk; the others, who say nothing, have others."""
        server, [alice, bob, carol] = club
        dave = come_in_by_a_void_commit(server, alice, bob, carol)
        carol.says("do you read me?")
        dave.read()
        dave.says("yes")
        carol.read()
        assert alice.state() == bob.state() != carol.state() == dave.state()
        until_quiet(server, [alice, bob, carol, dave], 120.0)
        check(server, [alice, bob, carol, dave])
        assert not {"lost", "replaced"} & (alice.kinds() | bob.kinds())

    def test_whoever_missed_a_commit_comes_in_again_before_anything_is_changed(
        self, club: tuple[Server, list[Person]]
    ) -> None:
        """Also if nobody says anything: by the gap in the numbers."""
        server, [alice, bob, carol] = club
        carol.joins()
        until_quiet(server, [alice, bob, carol])
        alice.renews()
        alice.read()
        server.gone = len(server.messages)
        alice.says("something")
        until_quiet(server, [alice, bob, carol])
        check(server, [alice, bob, carol])
        assert "lost" not in alice.kinds()

    def test_a_false_group_info_that_nobody_could_come_in_by_makes_nobody_leave(
        self, club: tuple[Server, list[Person]]
    ) -> None:
        """Bob is unsure, and Alice was there before; but she has not signed it."""
        server, [alice, bob, _] = club
        body = decode_message(group_info(alice))
        assert isinstance(body, GroupInfo)
        context = replace(body.group_context, epoch=body.group_context.epoch + 1)
        server.info = encode_message(replace(body, group_context=context, confirmation_tag=b"false"))
        bob.codec._agenda.group(GROUP).check_info_soon()
        bob.codec.schedule_check(GROUP)
        server.time += 1
        until_quiet(server, [bob])
        assert bob.kinds() == {"refused"}
        check(server, [alice, bob])


class TestWhatIsSaidInABranchThatIsGivenUp:
    @pytest.fixture
    def parted(self, club: tuple[Server, list[Person]]) -> tuple[Server, list[Person]]:
        """Carol and Dave have come in by the group info of a commit that lost. Nobody knows of it yet."""
        server, [alice, bob, carol] = club
        dave = come_in_by_a_void_commit(server, alice, bob, carol)
        assert alice.state() == bob.state() != carol.state() == dave.state()
        return server, [alice, bob, carol, dave]

    @pytest.mark.parametrize("when", ["comes back before", "comes back after"])
    def test_it_is_said_again_to_all_once(self, parted: tuple[Server, list[Person]], when: str) -> None:
        server, people = parted
        *_, carol, dave = people
        carol.says("is anybody there?")
        for each in (carol, dave) if when == "comes back before" else (dave,):
            each.read()
        dave.says("I am")
        for each in (dave, carol) if when == "comes back before" else ():
            each.read()
        until_quiet(server, people, 120.0)
        check(server, people)
        for each in people:
            assert sorted(text for text in each.texts if text) == ["I am", "is anybody there?"]
        assert not carol.codec.pending_resends()
        assert not dave.codec.pending_resends()

    @pytest.mark.parametrize("is_invited", [True, False], ids=["is invited", "joins"])
    @pytest.mark.parametrize("sees", [True, False], ids=["sees who comes", "does not see who comes"])
    def test_but_not_to_who_came_after_it(
        self, parted: tuple[Server, list[Person]], *, sees: bool, is_invited: bool
    ) -> None:
        """Who comes into a group gets nothing that was said before."""
        server, people = parted
        alice, bob, carol, dave = people
        eve = Person(server)
        carol.says("before Eve came")
        for each in (carol, dave):
            each.read()
        for _ in range(3):  # or Carol's and Dave's commits are the first ones of the epoch that Eve comes in by
            alice.renews()
            alice.read()
        if is_invited:
            is_invited_by(alice, eve)
        else:
            eve.joins()
        if not sees:
            carol.refuses.add(len(server.messages))
        alice.read()
        alice.says("welcome")
        for each in (alice, bob, carol, eve):
            each.read()
        assert carol.state() != alice.state() == eve.state()
        if sees:
            carol.says("when she was there")
        until_quiet(server, [*people, eve], 120.0)
        check(server, [*people, eve])
        if sees and not is_invited:  # who is invited has sent nothing herself: Carol does not know when she came
            assert [text for text in eve.texts if text] == ["welcome", "when she was there"]
        assert "before Eve came" not in [*alice.texts, *bob.texts, *eve.texts, *kept(people)]

    def test_nor_to_who_was_out_meanwhile(self, parted: tuple[Server, list[Person]]) -> None:
        server, people = parted
        alice, bob, carol, dave = people
        removes(server, carol, dave)
        server.info = group_info(carol)
        dave.joins()
        for each in (carol, dave):
            each.read()
        assert carol.state() == dave.state()
        until_quiet(server, people, 120.0)
        check(server, people)
        assert "while Dave was out" not in [*alice.texts, *bob.texts, *dave.texts, *kept(people)]

    def test_nor_to_who_was_out_and_came_back_unseen(self, parted: tuple[Server, list[Person]]) -> None:
        server, people = parted
        alice, bob, carol, dave = people
        removes(server, carol, dave)
        server.info = group_info(alice)
        dave.joins()
        carol.refuses.add(len(server.messages))
        until_quiet(server, people, 120.0)
        check(server, people)
        assert "while Dave was out" not in [*alice.texts, *bob.texts, *dave.texts, *kept(people)]

    @pytest.mark.parametrize("is_invited", [True, False], ids=["as invited", "as one who joins"])
    def test_who_is_invented_keeps_nothing_from_the_others(
        self, parted: tuple[Server, list[Person]], *, is_invited: bool
    ) -> None:
        """Anybody can be named in a commit that nobody takes, and what others have said would be lost."""
        server, people = parted
        _, bob, carol, _ = people
        mallory = Person(server)
        carol.says("to all of you")
        carol.read()
        if is_invited:
            server.store(bob.user_id, nobody_takes(adds(bob, mallory).commit))
        else:
            server.members[mallory.user_id] = "member"
            server.store(mallory.user_id, nobody_takes(mallory.codec.join(GROUP, server.info).commit))
            carol.read()
            del server.members[mallory.user_id]
        carol.says("and more")
        until_quiet(server, people, 120.0)
        check(server, people)
        for each in people:
            assert sorted(text for text in each.texts if text) == ["and more", "to all of you"]

    @pytest.mark.parametrize("sees", [True, False], ids=["sees her come", "does not see her come"])
    def test_who_was_named_before_and_comes_later_gets_nothing_of_before(
        self, parted: tuple[Server, list[Person]], *, sees: bool
    ) -> None:
        server, people = parted
        alice, bob, carol, dave = people
        eve = Person(server)
        server.store(bob.user_id, nobody_takes(adds(bob, eve).commit))
        for each in (carol, dave):
            each.read()
        carol.says("before Eve came")
        for each in (carol, dave):
            each.read()
        for _ in range(3):
            alice.renews()
            alice.read()
        eve.joins()
        if not sees:
            carol.refuses.add(len(server.messages))
        for each in (alice, bob, carol, eve):
            each.read()
        assert alice.state() == bob.state() == eve.state()
        assert not sees or carol.state() != eve.state()
        until_quiet(server, [*people, eve], 120.0)
        check(server, [*people, eve])
        assert "before Eve came" not in [*alice.texts, *bob.texts, *eve.texts, *kept(people)]

    @pytest.mark.parametrize("way", ["gone", "taken back elsewhere"])
    def test_unless_it_is_gone_by_then(self, parted: tuple[Server, list[Person]], way: str) -> None:
        server, people = parted
        carol = people[2]
        carol.says("a moment only")
        carol.read()
        carol.codec.erase_messages(GROUP, [len(server.messages)])
        assert kept(people) == []
        until_quiet(server, people, 120.0)
        check(server, people)
        assert "a moment only" not in people[0].texts

    def test_a_restart_does_not_change_that(self, parted: tuple[Server, list[Person]]) -> None:
        server, people = parted
        carol = people[2]
        carol.says("said before the restart")
        carol.read()
        carol.codec._texts = Texts(carol.codec._database)
        carol.codec._processor._texts = carol.codec._texts
        server.time += 3 * 86_400
        carol.codec.record_caught_up(GROUP)
        carol.says("said after it")
        until_quiet(server, people, 120.0)
        check(server, people)
        for each in people:
            assert [text for text in each.texts if text] == ["said before the restart", "said after it"]

    def test_it_is_kept_for_some_hours_and_until_somebody_who_was_there_before_was_heard(
        self, club: tuple[Server, list[Person]]
    ) -> None:
        server, [alice, bob, carol] = club
        carol.joins()
        for each in (alice, bob, carol):
            each.read()
        carol.says("hello")
        carol.read()
        server.time += UNCONFIRMED_SECONDS + 1
        carol.read()
        assert kept([carol]) == ["hello"], "nobody has answered"
        alice.says("welcome")
        carol.read()
        assert kept([carol]) == []
        carol.says("thanks")
        carol.read()
        assert kept([carol]) == [], "it has been there for long"
        until_quiet(server, [alice, bob, carol])
        assert alice.texts == bob.texts == ["hello", "welcome", "thanks"]


def removes(server: Server, carol: Person, dave: Person) -> None:
    """Have Carol remove Dave, and say something before he comes in again."""
    removal = carol.codec.remove(GROUP, dave.user_id)
    server.store(carol.user_id, removal.commit, removal.group_info)
    carol.read()
    carol.says("while Dave was out")
    for each in (carol, dave):
        each.read()
    assert not dave.is_in


def adds(by: Person, other: Person) -> MembershipChange:
    [package] = other.codec.key_packages(1, last_resort=False).regular
    return by.codec.add(GROUP, other.user_id, package)


def is_invited_by(admin: Person, other: Person) -> None:
    """Invite somebody, who accepts at once."""
    change = adds(admin, other)
    admin.server.members[other.user_id] = "member"
    admin.server.store(admin.user_id, change.commit, change.group_info)
    other.codec.join_by_welcome(GROUP, change.welcome)


def nobody_takes(commit: bytes) -> bytes:
    """Return a commit whose signature is wrong."""
    body = decode_message(commit)
    assert isinstance(body, PublicMessage)
    return encode_message(replace(body, auth=replace(body.auth, signature=bytes(len(body.auth.signature)))))


class TestARepeat:
    def test_is_dropped_only_if_the_one_who_sends_it_has_sent_the_first(
        self, club: tuple[Server, list[Person]]
    ) -> None:
        """Or a member could have others see what somebody does not see who had read another one's message."""
        server, [alice, bob, carol] = club
        carol.joins()
        until_quiet(server, [alice, bob, carol])
        alice.says("hers")
        for each in (alice, bob, carol):
            each.read()
        number = len(server.messages)
        server.store(carol.user_id, carol.codec.encode_resend(PendingResend(1, GROUP, "mine", 0, number)))
        alice.says("the next")
        server.store(alice.user_id, alice.codec.encode_resend(PendingResend(1, GROUP, "hers", 0, number)))
        for each in (alice, bob, carol):
            each.read()
        assert bob.texts == ["hers", "mine", "the next"]
        assert bob.codec.repeats_of(GROUP, number) == [number + 3]


def kept(people: list[Person]) -> list[str]:
    """What is in the files of keys of own texts."""
    found = []
    for each in people:
        places = each.codec._database.connection.execute("SELECT segment, body_id FROM own_texts").fetchall()
        found += [each.codec._database.get(place).decode() for place in places]
    return found


def test_a_device_gives_way_to_another_one_of_its_account_only_where_that_is_signed(
    club: tuple[Server, list[Person]],
) -> None:
    server, [alice, bob, _] = club
    with MlsCodec(None, bob.user_id) as other:
        commit = other.join(GROUP, server.info).commit
        other.decode(GROUP, [FetchedMessage(len(server.messages) + 1, bob.user_id, commit, 0)])
        record = other.record(GROUP)
        assert record
        assert record.group
        info = record.group.group_info()
    body = decode_message(info)
    assert isinstance(body, GroupInfo)
    assert not bob.codec.gives_way(GROUP, encode_message(replace(body, signature=bytes(len(body.signature)))))
    check(server, [alice, bob])
    assert bob.codec.gives_way(GROUP, info)


class TestComingIn:
    def test_what_has_happened_meanwhile_does_not_make_it_ask_twice(self, club: tuple[Server, list[Person]]) -> None:
        """The commit is on its way: who gave it up would miss what is said before the next one is there."""
        server, [alice, bob, carol] = club
        server.members[carol.user_id] = "member"
        commit = carol.codec.join(GROUP, server.info).commit
        carol.codec.schedule_check(GROUP)
        server.time += 1
        carol.settle()
        server.store(carol.user_id, commit)
        carol.read()
        assert carol.is_in
        until_quiet(server, [alice, bob, carol])
        check(server, [alice, bob, carol])
        assert [each.sender_id for each in server.messages].count(carol.user_id) == 1

    def test_who_comes_in_while_the_list_of_groups_is_on_its_way_is_looked_at_later(
        self, club: tuple[Server, list[Person]]
    ) -> None:
        """Its commit is lost, and no event tells of it."""
        server, [alice, bob, carol] = club
        carol.codec.join(GROUP, server.info)
        carol.codec.schedule_check(GROUP)
        server.time += 1
        carol.settle()  # by a list that was made before
        server.members[carol.user_id] = "member"
        until_quiet(server, [alice, bob, carol])
        check(server, [alice, bob, carol])

    @pytest.mark.parametrize("restarts", [False, True])
    def test_a_request_that_comes_after_a_welcome_is_no_other_device_s(
        self, club: tuple[Server, list[Person]], *, restarts: bool
    ) -> None:
        server, [alice, bob, carol] = club
        [package] = carol.codec.key_packages(1, last_resort=False).regular
        invite = alice.codec.add(GROUP, carol.user_id, package)
        server.members[carol.user_id] = "member"
        server.store(alice.user_id, invite.commit, invite.group_info)
        late = carol.codec.join(GROUP, server.info).commit
        carol.codec.join_by_welcome(GROUP, invite.welcome)
        carol.read()
        assert carol.is_in
        server.store(carol.user_id, late)
        if restarts:
            carol.codec._agenda._groups.clear()  # what is in memory only
        until_quiet(server, [alice, bob, carol])
        check(server, [alice, bob, carol])
        assert "replaced" not in carol.kinds()
