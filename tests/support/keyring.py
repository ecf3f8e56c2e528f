"""A codec of which a test says whose keys it knows: for states that a real server leads to only by attacks."""

from collections.abc import Collection
from dataclasses import replace
from uuid import UUID

from conclave.client import PlaintextCodec
from conclave.client.codec import PendingResend
from conclave.client.encryption.view import EncryptionStatus, GroupView, KnownKey, Trust

OWN = "ab" * 32


def key(user_id: UUID, trust: Trust = Trust.UNKNOWN, fingerprint: str = "cd" * 32) -> KnownKey:
    """Return somebody's key."""
    return KnownKey(user_id, fingerprint, trust, former="ef" * 32 if trust is Trust.CHANGED else "")


class Keyring(PlaintextCodec):
    """Says that it encrypts; it does not."""

    encrypts = True
    fingerprint = OWN

    def __init__(self) -> None:
        self.keys: dict[UUID, KnownKey] = {}
        self.shows = GroupView(EncryptionStatus.ENCRYPTED)
        self.again: list[PendingResend] = []

    def holds(self, *keys: KnownKey) -> None:
        """Let these be the keys of every group's members."""
        self.keys |= {each.user_id: each for each in keys}
        self.shows = replace(self.shows, members=tuple(self.keys.values()))

    def pending_resends(self) -> list[PendingResend]:
        return list(self.again)

    def drop_resend(self, key: int) -> None:
        self.again = [each for each in self.again if each.key != key]

    def erase_messages(self, group_id: UUID, numbers: Collection[int], *, are_taken_back: bool = False) -> None:
        self.again = [each for each in self.again if each.group_id != group_id or each.original not in numbers]

    def view(self, group_id: UUID) -> GroupView:
        return self.shows

    def known_key(self, user_id: UUID) -> KnownKey | None:
        return self.keys.get(user_id)

    def verify(self, user_id: UUID, fingerprint: str) -> bool:
        return self._judge(user_id, fingerprint, Trust.VERIFIED)

    def accept(self, user_id: UUID, fingerprint: str) -> bool:
        return self._judge(user_id, fingerprint, Trust.UNKNOWN)

    def _judge(self, user_id: UUID, fingerprint: str, trust: Trust) -> bool:
        if self.keys[user_id].fingerprint != fingerprint:
            return False
        self.holds(KnownKey(user_id, fingerprint, trust))
        return True
