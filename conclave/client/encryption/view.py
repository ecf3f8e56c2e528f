"""Immutable views of a group's encryption and of users' keys, for a user interface."""

from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID


class EncryptionStatus(StrEnum):
    """The state of the user's encryption in a group."""

    PLAIN = "plain"
    """Not encrypted: the server can read everything."""
    ENCRYPTED = "encrypted"
    """The user has the keys."""
    WAITING = "waiting"
    """The client is joining, and sends texts once it has the keys. The user need not act."""
    REPLACED = "replaced"
    """Another device of the account has replaced this one, until the user resets the keys."""


class Trust(StrEnum):
    """The user's trust in a key."""

    UNKNOWN = "unknown"
    """The first known key of this user: trusted on first use, not verified."""
    VERIFIED = "verified"
    """The user has verified it."""
    CHANGED = "changed"
    """It differs from the known key, and the user has neither verified nor accepted it."""


@dataclass(frozen=True)
class KnownKey:
    """A user's key: in a group, or the last known one. ``former``: the previous fingerprint, if it has changed.

    ``fingerprint``: SHA-256 of the public signature key, 64 hexadecimal digits, as existing clients show it.
    ``was_verified``: the former key had been verified.
    """

    user_id: UUID
    fingerprint: str
    trust: Trust
    former: str = ""
    was_verified: bool = False


@dataclass(frozen=True)
class GroupView:
    """The state of a group's encryption. ``members``: the keys of the others who can decrypt.

    ``strangers``: users with keys of the group who are not on the server's list of members; an admin's client removes
    them. ``keyless``: members without keys, who cannot decrypt yet. ``epoch``: counts changes of keys.
    """

    status: EncryptionStatus
    members: tuple[KnownKey, ...] = ()
    strangers: tuple[UUID, ...] = ()
    keyless: tuple[UUID, ...] = ()
    epoch: int = 0

    @property
    def changed(self) -> tuple[KnownKey, ...]:
        """Changed keys that the user has neither verified nor accepted: warn before anything is sent."""
        return tuple(each for each in self.members if each.trust is Trust.CHANGED)

    @property
    def verified(self) -> int:
        """Number of verified members."""
        return sum(each.trust is Trust.VERIFIED for each in self.members)


PLAIN = GroupView(EncryptionStatus.PLAIN)
"""A group without encryption."""
