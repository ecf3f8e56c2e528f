"""Who may change the members of a group, by the server's list; and what a group's data does stays in that group."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from unittest import mock
from uuid import UUID, uuid4

import pytest

from conclave.client.codec import MembershipChange
from conclave.client.encryption.codec import MAX_REQUEST_BYTES, MlsCodec, _change
from conclave.client.encryption.groups import Stage
from conclave.client.encryption.message_processor import MessageProcessor
from conclave.client.encryption.view import EncryptionStatus
from conclave.client.errors import EncryptionError
from conclave.client.events import EncryptionNotice
from conclave.client.mls import MlsGroup, OwnCommit
from conclave.wire.results import FetchedMessage, GroupDetails, MemberInfo

ALICE, BOB, CAROL, DAVE = (uuid4() for _ in range(4))
CLUB, OTHER = uuid4(), uuid4()


def listed(group_id: UUID, *members: UUID, admins: tuple[UUID, ...] = (ALICE,)) -> GroupDetails:
    """A group as the server lists it."""
    everybody = tuple(
        MemberInfo(each, f"u{number}", "", "", "admin" if each in admins else "member")
        for number, each in enumerate(members)
    )
    return GroupDetails(
        group_id=group_id,
        alias="",
        group_name="club",
        members=everybody,
        mls_group_id="",
        message_expiry_seconds=-1,
        visibility="public",
    )


class Club:
    """Alice, who is the admin, Bob and Carol, without a server between them."""

    def __init__(self, keys: Path | None = None) -> None:
        self.codecs = {ALICE: MlsCodec(keys, ALICE), BOB: MlsCodec(None, BOB), CAROL: MlsCodec(None, CAROL)}
        self.numbers = {CLUB: 0, OTHER: 0}
        for group in (CLUB, OTHER):
            info = self.codecs[ALICE].create(group).group_info
            for each in (BOB, CAROL):
                self.give(group, each, self.codecs[each].join(group, info).commit, ALICE, BOB, CAROL)
                info = self.mls(ALICE, group).group_info()
        self.note(listed(CLUB, ALICE, BOB, CAROL), listed(OTHER, ALICE, BOB, CAROL))
        for codec in self.codecs.values():
            codec.take_news()

    def mls(self, who: UUID, group: UUID) -> MlsGroup:
        record = self.codecs[who].record(group)
        assert record is not None
        assert record.group is not None
        return record.group

    def note(self, *groups: GroupDetails) -> None:
        for codec in self.codecs.values():
            codec.update_members(groups)

    def message(self, group: UUID, sender: UUID, payload: bytes) -> FetchedMessage:
        self.numbers[group] += 1
        return FetchedMessage(self.numbers[group], sender, payload, 0)

    def give(self, group: UUID, sender: UUID, payload: bytes, *to: UUID) -> None:
        message = self.message(group, sender, payload)
        for each in to:
            self.codecs[each].decode(group, [message])

    def removal(self, by: UUID, who: UUID) -> MembershipChange:
        return self.codecs[by].remove(CLUB, who)

    def notices(self, who: UUID) -> list[EncryptionNotice]:
        return [each for each in self.codecs[who].take_news() if isinstance(each, EncryptionNotice)]

    def close(self) -> None:
        for codec in self.codecs.values():
            codec.close()


@pytest.fixture
def club() -> Iterator[Club]:
    made = Club()
    yield made
    made.close()


def kinds(notices: list[EncryptionNotice]) -> list[str]:
    return [each.kind for each in notices]


@pytest.mark.parametrize("who", [ALICE, CAROL], ids=["the admin", "a member"])
def test_a_member_who_is_no_admin_removes_nobody_who_is_listed(club: Club, who: UUID) -> None:
    epoch = club.mls(ALICE, CLUB).epoch
    other = CAROL if who == ALICE else ALICE
    club.give(CLUB, BOB, club.removal(BOB, who).commit, ALICE, CAROL)
    for each in (ALICE, CAROL):
        assert club.mls(each, CLUB).epoch == epoch
        [notice] = club.notices(each)
        assert notice.kind == "refused"
        assert notice.user_id == BOB
        assert "only an admin" in notice.sentence
    club.give(CLUB, other, club.codecs[other].commit(CLUB).commit, ALICE, CAROL)
    assert club.mls(ALICE, CLUB).epoch == club.mls(CAROL, CLUB).epoch == epoch + 1


def test_who_has_removed_whom_is_told(club: Club) -> None:
    club.note(listed(CLUB, ALICE, BOB))
    club.give(CLUB, ALICE, club.removal(ALICE, CAROL).commit, ALICE, BOB, CAROL)
    for each in (ALICE, BOB, CAROL):
        assert [(n.user_id, n.other_id) for n in club.notices(each) if n.kind == "removed"] == [(ALICE, CAROL)]
    assert club.codecs[CAROL].view(CLUB).status is EncryptionStatus.WAITING


def test_every_member_may_remove_who_is_not_on_the_list(club: Club) -> None:
    """So an admin's commit is taken by who reads it after the admin has left, too."""
    club.note(listed(CLUB, ALICE, BOB))
    epoch = club.mls(ALICE, CLUB).epoch
    club.give(CLUB, BOB, club.removal(BOB, CAROL).commit, ALICE, BOB)
    assert club.mls(ALICE, CLUB).epoch == club.mls(BOB, CLUB).epoch == epoch + 1


@pytest.mark.parametrize("is_member", [True, False])
def test_who_is_no_admin_adds_only_those_whom_the_server_lists(club: Club, *, is_member: bool) -> None:
    dave = MlsCodec(None, DAVE)
    with dave:
        [package] = dave.key_packages(1, last_resort=False).regular
        club.note(listed(CLUB, ALICE, BOB, CAROL, *((DAVE,) if is_member else ())))
        epoch = club.mls(ALICE, CLUB).epoch
        club.give(CLUB, BOB, club.codecs[BOB].add(CLUB, DAVE, package).commit, ALICE)
    assert club.mls(ALICE, CLUB).epoch == epoch + is_member
    assert ("refused" in kinds(club.notices(ALICE))) is not is_member


def test_the_list_is_asked_for_only_where_somebody_else_than_a_known_admin_changes_the_members(club: Club) -> None:
    alice = club.codecs[ALICE]
    removal = club.removal(BOB, CAROL).commit
    renewal = club.codecs[CAROL].commit(CLUB).commit
    assert alice.needs_members(CLUB, [FetchedMessage(9, BOB, removal, 0)])
    assert not alice.needs_members(CLUB, [FetchedMessage(9, ALICE, removal, 0)])
    assert not alice.needs_members(CLUB, [FetchedMessage(9, CAROL, renewal, 0), FetchedMessage(10, BOB, b"rubbish", 0)])
    assert not alice.needs_members(uuid4(), [FetchedMessage(9, BOB, removal, 0)])


def test_an_admin_who_was_promoted_just_now_may_remove(club: Club) -> None:
    """The list is read anew before a change is judged."""
    removal = club.removal(BOB, CAROL).commit
    assert club.codecs[ALICE].needs_members(CLUB, [FetchedMessage(9, BOB, removal, 0)])
    club.note(listed(CLUB, ALICE, BOB, admins=(ALICE, BOB)))
    epoch = club.mls(ALICE, CLUB).epoch
    club.give(CLUB, BOB, removal, ALICE)
    assert club.mls(ALICE, CLUB).epoch == epoch + 1


@pytest.mark.parametrize("error", [OverflowError("too large"), sqlite3.IntegrityError("rubbish"), KeyError("x")])
def test_what_the_data_of_a_group_leads_to_costs_only_the_keys_of_this_group(club: Club, error: Exception) -> None:
    alice = club.codecs[ALICE]
    message = club.message(CLUB, BOB, club.codecs[BOB].commit(CLUB).commit)
    with mock.patch.object(MessageProcessor, "_apply_change", side_effect=error):
        assert alice.decode(CLUB, [message]) == []
    assert alice.view(CLUB).status is EncryptionStatus.WAITING
    assert "lost" in kinds(club.notices(ALICE))
    record = alice.record(CLUB)
    assert record is not None
    assert record.up_to == message.sequence_num  # it is not read again
    assert alice.view(OTHER).status is EncryptionStatus.ENCRYPTED
    assert alice.is_due or alice._agenda.group(CLUB).at is not None


def test_what_the_disk_raises_is_not_taken_for_a_fault_of_the_group(club: Club) -> None:
    alice = club.codecs[ALICE]
    message = club.message(CLUB, BOB, club.codecs[BOB].commit(CLUB).commit)
    full = sqlite3.OperationalError("database or disk is full")
    with (
        mock.patch.object(MessageProcessor, "_apply_change", side_effect=full),
        pytest.raises(sqlite3.OperationalError),
    ):
        alice.decode(CLUB, [message])
    assert alice.view(CLUB).status is EncryptionStatus.ENCRYPTED


def test_a_change_that_fails_is_an_error_of_the_client(club: Club) -> None:
    with mock.patch.object(MlsGroup, "commit", side_effect=OverflowError("too large")):
        with pytest.raises(EncryptionError, match="the group cannot be changed"):
            club.codecs[ALICE].commit(CLUB)
        with pytest.raises(EncryptionError):
            club.removal(ALICE, BOB)


def test_a_state_that_cannot_be_loaded_is_lost_keys_of_its_group(tmp_path: Path) -> None:
    path = tmp_path / "alice.keys"
    club = Club(path)
    record = club.codecs[ALICE].record(CLUB)
    assert record is not None
    with mock.patch.object(MlsGroup, "to_bytes", return_value=b"no state"), club.codecs[ALICE]._database.transaction():
        club.codecs[ALICE]._groups.save(record)
    club.close()
    with MlsCodec(path, ALICE) as alice:
        assert alice.view(CLUB).status is EncryptionStatus.WAITING
        assert alice.view(OTHER).status is EncryptionStatus.ENCRYPTED
        lost = [each for each in alice.take_news() if isinstance(each, EncryptionNotice)]
        assert [(each.kind, each.group_id) for each in lost] == [("lost", CLUB)]
        alice.join(CLUB, club.mls(BOB, CLUB).group_info())
        again = alice.record(CLUB)
        assert again is not None
        assert again.stage is Stage.AWAITING


def test_a_state_that_could_not_be_loaded_again_is_not_stored(club: Club) -> None:
    with (
        mock.patch("conclave.client.encryption.groups.MAX_STATE", 100),
        pytest.raises(EncryptionError, match="more than 100 bytes"),
    ):
        club.codecs[ALICE].commit(CLUB)
    assert club.codecs[ALICE].view(CLUB).status is EncryptionStatus.ENCRYPTED
    club.codecs[ALICE].commit(CLUB)


def test_a_group_info_that_does_not_fit_into_a_request_is_left_out() -> None:
    """Members can be removed whatever the size of the group."""
    fits = OwnCommit(b"commit", None, bytes(MAX_REQUEST_BYTES - 6), 1, b"")
    assert _change(fits).group_info == fits.group_info
    assert _change(OwnCommit(b"commit", None, bytes(MAX_REQUEST_BYTES - 5), 1, b"")) == MembershipChange(
        b"commit", b"", b""
    )


@pytest.mark.parametrize(("inviter", "kind"), [(ALICE, "welcomed"), (None, "welcomed"), (BOB, "refused")])
def test_who_has_signed_the_welcome_is_told_and_compared_with_who_invites(
    club: Club, inviter: UUID | None, kind: str
) -> None:
    with MlsCodec(None, DAVE) as dave:
        [package] = dave.key_packages(1, last_resort=False).regular
        welcome = club.codecs[ALICE].add(CLUB, DAVE, package).welcome
        assert dave.join_by_welcome(CLUB, welcome, inviter)
        told = [each for each in dave.take_news() if isinstance(each, EncryptionNotice)]
        assert [(each.kind, each.user_id) for each in told] == [(kind, ALICE)]
