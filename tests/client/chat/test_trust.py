"""What the chat says of encryption: the worst first, and who it is about."""

from uuid import UUID

import pytest

from conclave.client.chat import trust
from conclave.client.encryption.comparison import comparison_code
from conclave.client.encryption.view import PLAIN, EncryptionStatus, GroupView, Trust
from tests.support.keyring import OWN, key

BOB, CAROL, DAVE = (UUID(int=number) for number in (2, 3, 4))
NAMES = {BOB: "bob", CAROL: "carol", DAVE: "dave"}
SAFE = EncryptionStatus.ENCRYPTED


def name(user_id: UUID) -> str:
    return NAMES[user_id]


class TestState:
    @pytest.mark.parametrize(
        ("view", "text"),
        [
            (None, "encrypted"),
            (GroupView(SAFE), "encrypted"),
            (GroupView(SAFE, (key(BOB),)), "encrypted, 0 of 1 verified"),
            (GroupView(SAFE, (key(BOB, Trust.VERIFIED), key(CAROL))), "encrypted, 1 of 2 verified"),
            (GroupView(SAFE, (key(BOB, Trust.VERIFIED),)), "encrypted, all of 1 verified"),
            (GroupView(SAFE, (key(BOB),), keyless=(CAROL,)), "encrypted, carol cannot read yet"),
            (GroupView(SAFE, (key(BOB),), keyless=(CAROL, DAVE)), "encrypted, carol and 1 more cannot read yet"),
        ],
    )
    def test_what_is_well(self, view: GroupView | None, text: str) -> None:
        assert trust.encryption_summary(view, name) == (text, False)

    @pytest.mark.parametrize(
        ("view", "text"),
        [
            (PLAIN, "not encrypted: the server can read this"),
            (GroupView(EncryptionStatus.WAITING), "waiting for keys"),
            (GroupView(EncryptionStatus.REPLACED), "replaced by another device of yours: /reset to use this one"),
            (GroupView(SAFE, (key(BOB, Trust.CHANGED),)), "bob: new key, /verify bob"),
            (
                GroupView(SAFE, (key(BOB, Trust.CHANGED), key(CAROL, Trust.CHANGED))),
                "bob and 1 more: new key, /verify bob",
            ),
            (GroupView(SAFE, strangers=(DAVE,)), "non-member dave can read"),
            (
                GroupView(SAFE, (key(BOB, Trust.CHANGED),), strangers=(DAVE,), keyless=(CAROL,)),
                "bob: new key, /verify bob",
            ),
        ],
    )
    def test_what_is_wrong(self, view: GroupView, text: str) -> None:
        assert trust.encryption_summary(view, name) == (text, True)


class TestComparison:
    def test_both_sides_show_the_same_code(self) -> None:
        theirs = "12" * 32
        one = trust.comparison_text(OWN, key(BOB, fingerprint=theirs), "bob", "alice")
        other = trust.comparison_text(theirs, key(CAROL, fingerprint=OWN), "alice", "bob")
        code = comparison_code(OWN, theirs)
        for text in (one, other):
            assert [each for each in text.split() if each.isdigit()] == list(code.digits)
            assert " ".join(text.split()).endswith(" ".join(code.words))
        assert "Ask bob to type /verify alice" in one

    @pytest.mark.parametrize(
        ("trusted", "says"),
        [(Trust.VERIFIED, "You have verified this key"), (Trust.CHANGED, "bob's key has changed.")],
    )
    def test_what_was_known_before_comes_first(self, trusted: Trust, says: str) -> None:
        assert trust.comparison_text(OWN, key(BOB, trusted), "bob", "alice").startswith(says)


def test_about_says_everything_and_where_to_read_more() -> None:
    view = GroupView(SAFE, (key(BOB, Trust.CHANGED),), strangers=(DAVE,), keyless=(CAROL,))
    text = "\n".join(trust.describe_group(view, OWN, name))
    for each in ("Bob: new key, /verify bob.", "carol", "dave", OWN, trust.DOC_PAGE):
        assert each in text
    assert list(trust.describe_group(PLAIN, "", name)) == ["Not encrypted: the server can read this."]
