"""A bit that is flipped anywhere, by whoever is on the way: nothing is taken, and no state changes."""

import random
from collections.abc import Callable
from uuid import UUID, uuid4

import pytest

from conclave.client.codec import MembershipChange, Readable
from conclave.client.encryption.codec import MlsCodec
from conclave.client.encryption.view import EncryptionStatus
from conclave.client.errors import EncryptionError
from conclave.client.events import EncryptionNotice
from conclave.client.mls import MlsError
from conclave.client.mls.codec import MAX_MESSAGE
from conclave.wire.results import FetchedMessage
from tests.client.encryption.devices import compared
from tests.support import sample

ALICE, BOB, CAROL = (uuid4() for _ in range(3))
GROUP = uuid4()
FLIPS = sample.amount(300, 60)


class Pair:
    """Alice and Bob in a group, without a server between them."""

    def __init__(self) -> None:
        self.alice, self.bob = MlsCodec(None, ALICE), MlsCodec(None, BOB)
        self.number = 0
        self.alice.create(GROUP)
        [package] = self.bob.key_packages(1, last_resort=False).regular
        self.change = self.alice.add(GROUP, BOB, package)
        self.give(self.alice, ALICE, self.change.commit)
        self.bob.join_by_welcome(GROUP, self.change.welcome)
        self.number -= 1
        self.give(self.bob, ALICE, self.change.commit)
        assert self.bob.view(GROUP).status is EncryptionStatus.ENCRYPTED
        compared(self.bob)
        for _ in range(2):  # in epoch 3 any bit that is flipped in it leads to one that is known, or was not reached
            renewal = self.alice.commit(GROUP).commit
            self.give(self.alice, ALICE, renewal)
            self.number -= 1
            self.give(self.bob, ALICE, renewal)
        self.bob.take_news()

    def give(self, to: MlsCodec, sender: UUID, payload: bytes) -> list[Readable]:
        self.number += 1
        return to.decode(GROUP, [FetchedMessage(self.number, sender, payload, 0)])


def state(codec: MlsCodec) -> bytes:
    record = codec.record(GROUP)
    assert record is not None
    assert record.group is not None
    return record.group.to_bytes()


def flipped(data: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(8 * len(data))
    changed = bytearray(data)
    changed[place // 8] ^= 1 << place % 8
    return bytes(changed)


def message(pair: Pair) -> bytes:
    return pair.alice.encode(GROUP, "hello")


def commit(pair: Pair) -> bytes:
    return pair.alice.commit(GROUP).commit


def adding(pair: Pair) -> bytes:
    [package] = MlsCodec(None, CAROL).key_packages(1, last_resort=False).regular
    change: MembershipChange = pair.alice.add(GROUP, CAROL, package)
    return change.commit


@pytest.mark.parametrize("make", [message, commit, adding])
def test_what_was_changed_on_the_way_is_refused_and_told(make: Callable[[Pair], bytes]) -> None:
    pair, chance = Pair(), sample.chance(f"flips {make.__name__}")
    sound = make(pair)
    before = state(pair.bob)
    for _ in range(FLIPS):
        found = pair.give(pair.bob, ALICE, flipped(sound, chance))
        told = pair.bob.take_news()
        assert all(each.text is None for each in found)
        assert state(pair.bob) == before
        assert all(isinstance(each, EncryptionNotice) and each.kind == "refused" for each in told)
        assert len(found) + len(told) == 1, "it is said in one sentence"
    found = pair.give(pair.bob, ALICE, sound)
    if make is message:
        assert [each.text for each in found] == ["hello"]
    assert state(pair.bob) != before, "and the sound one is taken after all that"


@pytest.mark.parametrize("make", [message, commit])
def test_what_comes_under_another_name_is_refused(make: Callable[[Pair], bytes]) -> None:
    pair = Pair()
    sound = make(pair)
    before = state(pair.bob)
    assert pair.give(pair.bob, CAROL, sound) == []
    [notice] = pair.bob.take_news()
    assert isinstance(notice, EncryptionNotice)
    assert (notice.kind, notice.user_id) == ("refused", CAROL)
    assert "another member than the server names" in notice.sentence
    assert state(pair.bob) == before


def test_what_comes_twice_is_refused() -> None:
    pair = Pair()
    sound = message(pair)
    assert [each.text for each in pair.give(pair.bob, ALICE, sound)] == ["hello"]
    assert pair.give(pair.bob, ALICE, sound) == []
    [notice] = pair.bob.take_news()
    assert isinstance(notice, EncryptionNotice)
    assert notice.kind == "refused"


def test_a_welcome_that_was_changed_leads_nowhere() -> None:
    pair, chance = Pair(), sample.chance("flips welcome")
    carol = MlsCodec(None, CAROL)
    [package] = carol.key_packages(1, last_resort=False).regular
    change = pair.alice.add(GROUP, CAROL, package)
    for _ in range(FLIPS):
        carol.join_by_welcome(GROUP, flipped(change.welcome, chance))
        assert carol.record(GROUP) is None
    assert carol.join_by_welcome(GROUP, change.welcome)
    assert carol.decode(GROUP, [FetchedMessage(1, ALICE, change.commit, 0)]) == []
    assert carol.view(GROUP).status is EncryptionStatus.ENCRYPTED


def test_a_group_info_or_a_key_package_that_was_changed_is_not_used() -> None:
    pair, chance = Pair(), sample.chance("flips info")
    carol = MlsCodec(None, CAROL)
    info = pair.alice.commit(GROUP).group_info
    [package] = carol.key_packages(1, last_resort=False).regular
    before = state(pair.alice)
    for _ in range(FLIPS):
        with pytest.raises(EncryptionError):
            carol.join(GROUP, flipped(info, chance))
        assert carol.record(GROUP) is None
        with pytest.raises(EncryptionError):
            pair.alice.add(GROUP, CAROL, flipped(package, chance))
        assert state(pair.alice) == before


def test_a_key_package_of_somebody_else_adds_nobody() -> None:
    pair = Pair()
    [package] = MlsCodec(None, CAROL).key_packages(1, last_resort=False).regular
    with pytest.raises(EncryptionError, match="not this user's"):
        pair.alice.add(GROUP, uuid4(), package)
    assert not issubclass(EncryptionError, MlsError)


def test_what_cannot_be_done_is_said_and_changes_nothing() -> None:
    pair = Pair()
    with pytest.raises(ValueError, match="more than"):
        pair.alice.encode(GROUP, "x" * MAX_MESSAGE)
    for _ in range(32):
        pair.alice.commit(GROUP)
    before = state(pair.alice)
    with pytest.raises(EncryptionError, match="32 own commits"):
        pair.alice.commit(GROUP)
    assert state(pair.alice) == before
    assert pair.give(pair.bob, ALICE, pair.alice.encode(GROUP, "goes on"))[0].text == "goes on"
