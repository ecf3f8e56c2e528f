"""What the chat says of encryption: whether it holds, whose key is whose, and what is wrong. Pure functions."""

from collections.abc import Callable, Iterator
from typing import NamedTuple
from uuid import UUID

from conclave.client.chat import formatting
from conclave.client.encryption.comparison import comparison_code
from conclave.client.encryption.view import EncryptionStatus, GroupView, KnownKey, Trust

PAGE = "docs/encryption.md"
"""Says what the line at the top means."""

NOT_ENCRYPTED = "not encrypted: the server can read this"

HELD = "a member's key has changed"
"""Why a text is not sent that waits for the user to say so."""

Name = Callable[[UUID], str]


class State(NamedTuple):
    """How encryption stands. ``text``: in a few words. ``is_wrong``: the user should do something about it."""

    text: str
    is_wrong: bool = False


def state_of(view: GroupView | None, name: Name) -> State:
    """Say how encryption stands in a group; None: no group is open. What is worst is said."""
    if view is None:
        return State("encrypted")
    if view.status is EncryptionStatus.PLAIN:
        return State(NOT_ENCRYPTED, is_wrong=True)
    if view.status is EncryptionStatus.WAITING:
        return State("waiting for the keys", is_wrong=True)
    if view.status is EncryptionStatus.REPLACED:
        return State("another device of yours is in: /reset brings this one back", is_wrong=True)
    if view.changed:
        who = [name(each.user_id) for each in view.changed]
        return State(f"{formatting.listed(who, 1)}: another key, /verify {who[0]}", is_wrong=True)
    if view.strangers:
        return State(f"{_names(view.strangers, name)} can read, and is no member", is_wrong=True)
    if view.keyless:
        return State(f"encrypted, {_names(view.keyless, name)} cannot read yet")
    others = len(view.members)
    if not others:
        return State("encrypted")
    return State(f"encrypted, {'all' if view.verified == others else view.verified} of {others} verified")


def changed(key: KnownKey, who: str) -> str:
    """Say that a person has another key, and what that may mean."""
    compared = ", which you had compared" if key.was_verified else ""
    return (
        f"{who} has another key than before{compared}. A new or reset device does that;"
        f" so does an attacker who wants to read along."
    )


def noticed_change(who: str, *, was_verified: bool) -> str:
    """Tell in a group that a member has another key."""
    compared = ", not the one that you have compared" if was_verified else ""
    return f"{who} has another key now{compared}: /verify {who} before you trust it"


def comparison(own: str, key: KnownKey, who: str, own_name: str) -> str:
    """Return what is shown to compare a key. ``own``: the user's fingerprint."""
    code = comparison_code(own, key.fingerprint)
    first = {
        Trust.UNKNOWN: "",
        Trust.VERIFIED: "You have compared this key before.\n\n",
        Trust.CHANGED: f"{changed(key, who)}\n\n",
    }[key.trust]
    digits = "\n".join("   " + "  ".join(code.digits[place : place + 3]) for place in (0, 3))
    spoken = "\n".join("   " + "  ".join(code.words[place : place + 4]) for place in (0, 4, 8))
    return (
        f"{first}Compare one of the two with what {who} sees after /verify {own_name}: face to face or by a call,"
        f" not in this chat. If it is the same, no attacker sits between you.\n\n{digits}\n\n{spoken}"
    )


def in_words(key: KnownKey | None) -> str:
    """Say in a word or two what is known of a key; None: there is none."""
    if key is None:
        return "no key yet"
    return {Trust.UNKNOWN: "not compared", Trust.VERIFIED: "verified", Trust.CHANGED: "ANOTHER KEY"}[key.trust]


def about(view: GroupView, own: str, name: Name) -> Iterator[str]:
    """Say in lines how a group is encrypted. ``own``: the user's fingerprint. Members' own lines are not among them."""
    state = state_of(view, name)
    text = f"{state.text[:1].upper()}{state.text[1:]}."
    yield f"{text} What that means: {PAGE}" if own else text
    if view.keyless:
        yield f"  no keys yet, and cannot read: {formatting.listed([name(each) for each in view.keyless], 20)}"
    if view.strangers:
        yield f"  can read without being a member: {formatting.listed([name(each) for each in view.strangers], 20)}"
    if own:
        yield "  your fingerprint:"
        yield f"  {own}"


RESET = (
    "This device gets new keys, and enters every group again. Do so if others may have your keys, if they are lost, or"
    " if another device of yours has taken the place of this one, which is then put out."
    "\n\nWhat others have sent and this device has not fetched cannot be read any more. The others are told that"
    " your key has changed, and have to compare it again.\n\nIf a device was stolen, change your password"
    " first: that ends its session."
)
"""What new keys cost."""


def _names(users: tuple[UUID, ...], name: Name) -> str:
    return formatting.listed([name(each) for each in users], 1)
