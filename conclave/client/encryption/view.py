"""What is known of a group's encryption and of people's keys: frozen values, for a user interface."""

from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID


class EncryptionStatus(StrEnum):
    """How the user stands in a group's encryption."""

    PLAIN = "plain"
    """Nothing is encrypted: the server can read it."""
    ENCRYPTED = "encrypted"
    """The user has the keys."""
    WAITING = "waiting"
    """The user asks in, or has to ask in: what is typed is sent once the keys are there. It goes on by itself."""
    REPLACED = "replaced"
    """Another device of the account has taken this one's place. Nothing goes on here until the user makes new keys."""


class Trust(StrEnum):
    """What the user knows of a key."""

    UNKNOWN = "unknown"
    """The first key of this person that was seen here, trusted and remembered; it was not compared."""
    VERIFIED = "verified"
    """The user has compared it."""
    CHANGED = "changed"
    """Another key than the one that was known, before or elsewhere; so until the user says that it is right."""


@dataclass(frozen=True)
class KnownKey:
    """A person's key, in a group or as it was seen last. ``former``: the fingerprint before it, if it changed.

    ``fingerprint``: SHA-256 of the public signature key, 64 hexadecimal digits, as existing clients show it.
    ``was_verified``: the former one had been compared.
    """

    user_id: UUID
    fingerprint: str
    trust: Trust
    former: str = ""
    was_verified: bool = False


@dataclass(frozen=True)
class GroupView:
    """A group's encryption as it is now. ``members``: who can read, without the user, as the keys say.

    ``strangers``: have keys of the group, and are no members by the server's list: they are being removed, or an admin
    has to. ``keyless``: members by that list who have no keys yet, and cannot read. ``epoch``: counts changes of keys.
    """

    status: EncryptionStatus
    members: tuple[KnownKey, ...] = ()
    strangers: tuple[UUID, ...] = ()
    keyless: tuple[UUID, ...] = ()
    epoch: int = 0

    @property
    def changed(self) -> tuple[KnownKey, ...]:
        """The keys that have changed, and that the user has not judged yet: say so before anything is sent."""
        return tuple(each for each in self.members if each.trust is Trust.CHANGED)

    @property
    def verified(self) -> int:
        """How many of the others are verified."""
        return sum(each.trust is Trust.VERIFIED for each in self.members)


PLAIN = GroupView(EncryptionStatus.PLAIN)
"""A group of which nothing is encrypted."""
