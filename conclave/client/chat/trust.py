"""Describes encryption: its status, keys, and warnings. Pure functions."""

from collections.abc import Callable, Iterator
from typing import NamedTuple
from uuid import UUID

from conclave.client.chat import formatting
from conclave.client.encryption.comparison import comparison_code
from conclave.client.encryption.view import EncryptionStatus, GroupView, KnownKey, Trust

DOC_PAGE = "docs/encryption.md"
"""Explains the status."""

NOT_ENCRYPTED = "not encrypted: the server can read this"

KEY_CHANGED = "a member's key has changed"
"""Why a message is held back until the user decides."""

Name = Callable[[UUID], str]


class EncryptionSummary(NamedTuple):
    """A short description of the encryption. ``is_wrong``: the user should act on it."""

    text: str
    is_wrong: bool = False


def encryption_summary(view: GroupView | None, name: Name) -> EncryptionSummary:
    """Return the encryption status of a group, the worst problem first. ``view``: None if no group is open."""
    if view is None:
        return EncryptionSummary("encrypted")
    if view.status is EncryptionStatus.PLAIN:
        return EncryptionSummary(NOT_ENCRYPTED, is_wrong=True)
    if view.status is EncryptionStatus.WAITING:
        return EncryptionSummary("waiting for keys", is_wrong=True)
    if view.status is EncryptionStatus.REPLACED:
        return EncryptionSummary("replaced by another device of yours: /reset to use this one", is_wrong=True)
    if view.changed:
        who = [name(each.user_id) for each in view.changed]
        return EncryptionSummary(f"{formatting.join_names(who, 1)}: new key, /verify {who[0]}", is_wrong=True)
    if view.strangers:
        return EncryptionSummary(f"non-member {_names(view.strangers, name)} can read", is_wrong=True)
    if view.keyless:
        return EncryptionSummary(f"encrypted, {_names(view.keyless, name)} cannot read yet")
    others = len(view.members)
    if not others:
        return EncryptionSummary("encrypted")
    return EncryptionSummary(f"encrypted, {'all' if view.verified == others else view.verified} of {others} verified")


def change_warning(key: KnownKey, who: str) -> str:
    """Explain that a user's key has changed, and what that may mean."""
    compared = ", which you had verified," if key.was_verified else ""
    return (
        f"{who}'s key{compared} has changed. The reason may be a new or reset device,"
        " or an attacker who wants to read your messages."
    )


def change_notice(who: str, *, was_verified: bool) -> str:
    """Return the notice in a group that a member's key has changed."""
    compared = "verified key" if was_verified else "key"
    return f"{who}'s {compared} has changed: /verify {who} before you trust it"


def comparison_text(own: str, key: KnownKey, who: str, own_name: str) -> str:
    """Return the text of the dialog for comparing keys. ``own``: the user's fingerprint."""
    code = comparison_code(own, key.fingerprint)
    first = {
        Trust.UNKNOWN: "",
        Trust.VERIFIED: "You have verified this key.\n\n",
        Trust.CHANGED: f"{change_warning(key, who)}\n\n",
    }[key.trust]
    digits = "\n".join("   " + "  ".join(code.digits[place : place + 3]) for place in (0, 3))
    spoken = "\n".join("   " + "  ".join(code.words[place : place + 4]) for place in (0, 4, 8))
    return (
        f"{first}Ask {who} to type /verify {own_name}. Compare the numbers or the words, in person or in a call, not"
        f" in this chat. If they match, there is no attacker between you.\n\n{digits}\n\n{spoken}"
    )


def key_status(key: KnownKey | None) -> str:
    """Describe what is known of a key in a word or two."""
    if key is None:
        return "no key yet"
    return {Trust.UNKNOWN: "not verified", Trust.VERIFIED: "verified", Trust.CHANGED: "KEY CHANGED"}[key.trust]


def describe_group(view: GroupView, own: str, name: Name) -> Iterator[str]:
    """Describe the encryption of a group, without its members' keys. ``own``: the user's fingerprint."""
    state = encryption_summary(view, name)
    text = f"{state.text[:1].upper()}{state.text[1:]}."
    yield f"{text} See {DOC_PAGE}" if own else text
    if view.keyless:
        yield f"  cannot read, no keys yet: {formatting.join_names([name(each) for each in view.keyless], 20)}"
    if view.strangers:
        yield f"  non-members who can read: {formatting.join_names([name(each) for each in view.strangers], 20)}"
    if own:
        yield "  your fingerprint:"
        yield f"  {own}"


RESET = (
    "This device gets new keys and rejoins all groups. Do this if your keys were lost or stolen, or if another device"
    " has replaced this one; that device is then removed."
    "\n\nMessages that this device has not fetched yet become unreadable. Other members are notified of the key change"
    " and have to verify your key again.\n\nIf a device was stolen, change your password first, to end its session."
)
"""The warning before a reset."""


def _names(users: tuple[UUID, ...], name: Name) -> str:
    return formatting.join_names([name(each) for each in users], 1)
