"""Two groups of one person's, who has another key in one of them: a bad server has put somebody else in that place."""

from collections.abc import Iterator
from uuid import UUID, uuid4

import pytest

from conclave.client.encryption.codec import MlsCodec
from conclave.client.encryption.view import Trust
from conclave.client.events import KeyChanged
from conclave.wire.results import FetchedMessage

ALICE, BOB = uuid4(), uuid4()
HERE, THERE = uuid4(), uuid4()


class Trio:
    """Alice, Bob, and somebody in Bob's place, without a server between them."""

    def __init__(self) -> None:
        self.alice, self.bob, self.mole = MlsCodec(None, ALICE), MlsCodec(None, BOB), MlsCodec(None, BOB)
        self.numbers = {HERE: 0, THERE: 0}
        for group in (HERE, THERE):
            self.enter(self.bob, group, self.alice.create(group).group_info)

    def enter(self, who: MlsCodec, group: UUID, info: bytes) -> None:
        self.give(group, who.join(group, info).commit, self.alice, who)

    def renew(self, group: UUID) -> None:
        """Bob says in a commit which key he has."""
        self.give(group, self.bob.commit(group).commit, self.alice, self.bob)

    def give(self, group: UUID, commit: bytes, *to: MlsCodec) -> None:
        self.numbers[group] += 1
        for each in to:
            each.decode(group, [FetchedMessage(self.numbers[group], BOB, commit, 0)])

    def trust(self, group: UUID) -> Trust:
        [key] = self.alice.view(group).members
        return key.trust


@pytest.fixture
def trio() -> Iterator[Trio]:
    made = Trio()
    with made.alice, made.bob, made.mole:
        yield made


def take_the_place(trio: Trio, group: UUID) -> None:
    trio.enter(trio.mole, group, info_of(trio, group))


def info_of(trio: Trio, group: UUID) -> bytes:
    record = trio.alice.record(group)
    assert record is not None
    assert record.group is not None
    return record.group.group_info()


def test_a_key_that_was_compared_in_one_group_says_nothing_of_another_ones(trio: Trio) -> None:
    """It would be read along in the group in which nobody has compared anything."""
    take_the_place(trio, THERE)
    trio.renew(HERE)
    assert trio.alice.verify(BOB, trio.bob.fingerprint)
    assert trio.trust(HERE) is Trust.VERIFIED
    [doubted] = trio.alice.view(THERE).changed
    assert (doubted.fingerprint, doubted.former) == (trio.mole.fingerprint, trio.bob.fingerprint)
    assert doubted.was_verified


def test_a_key_is_taken_in_its_own_group_too_and_then_the_other_ones_is_in_doubt(trio: Trio) -> None:
    take_the_place(trio, THERE)
    trio.renew(HERE)
    assert trio.alice.verify(BOB, trio.bob.fingerprint)
    assert trio.alice.accept(BOB, trio.mole.fingerprint)
    assert (trio.trust(HERE), trio.trust(THERE)) == (Trust.CHANGED, Trust.UNKNOWN)
    assert not trio.alice.accept(BOB, trio.alice.fingerprint), "nobody has that key in a group"


def test_new_keys_are_compared_once_for_all_groups_in_which_they_are(trio: Trio) -> None:
    take_the_place(trio, THERE)
    trio.renew(HERE)
    assert trio.alice.verify(BOB, trio.bob.fingerprint)
    trio.bob.reset_keys()  # as /reset
    trio.enter(trio.bob, THERE, info_of(trio, THERE))
    trio.enter(trio.bob, HERE, info_of(trio, HERE))
    assert [each.fingerprint for each in trio.alice.view(THERE).changed] == [trio.bob.fingerprint]
    assert [each.user_id for each in trio.alice.take_news() if isinstance(each, KeyChanged)] == [BOB] * 3
    assert trio.alice.verify(BOB, trio.bob.fingerprint)
    assert (trio.trust(HERE), trio.trust(THERE)) == (Trust.VERIFIED, Trust.VERIFIED)
