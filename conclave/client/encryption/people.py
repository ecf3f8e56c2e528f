"""Whose key is which: the first one is trusted and remembered, another one is told."""

import sqlite3
from functools import lru_cache
from uuid import UUID

from conclave.client.encryption.vault import Vault
from conclave.client.encryption.view import KnownKey, Trust
from conclave.client.mls import Credential, Member, Policy, fingerprint
from conclave.client.mls.credentials import DEFAULT_PROPOSALS
from conclave.client.mls.proposals import ProposalType

ID_BYTES = 16
"""A credential has the id of a user."""


def _is_a_user(credential: Credential, _signature_key: bytes) -> bool:
    """Take the credential of a user. Which one it has to be is known once the server names the sender."""
    return len(credential.identity) == ID_BYTES


POLICY = Policy(authenticate=_is_a_user, proposals=DEFAULT_PROPOSALS - {ProposalType.PSK, ProposalType.REINIT})
"""Whom groups take, and which changes. No client of the protocol has pre-shared keys, or goes on in another group."""


class People:
    """The keys of people, as they were seen last in any group."""

    def __init__(self, vault: Vault, user_id: UUID) -> None:
        self._vault, self._user_id = vault, user_id
        rows = self._connection.execute("SELECT user_id, fingerprint, trust, former, was_verified FROM people")
        self._known = {
            UUID(bytes=row[0]): KnownKey(UUID(bytes=row[0]), row[1], Trust(row[2]), row[3], bool(row[4]))
            for row in rows.fetchall()
        }

    @property
    def _connection(self) -> sqlite3.Connection:
        return self._vault.connection

    def get(self, user_id: UUID) -> KnownKey | None:
        """Return what is known of a person's key."""
        return self._known.get(user_id)

    def key_of(self, member: Member) -> KnownKey:
        """Return what is known of the key that a member has in a group; it may be another one than in other groups.

        A key that was judged is good where it is, and nowhere else: the server may have put another one here before.
        """
        user_id, seen = user_of(member), _fingerprint(member.signature_key)
        known = self._known.get(user_id)
        if known is None or known.fingerprint == seen:
            return known or KnownKey(user_id, seen, Trust.UNKNOWN)
        return KnownKey(user_id, seen, Trust.CHANGED, known.fingerprint, _was_verified(known))

    def meet(self, member: Member) -> KnownKey | None:
        """Remember the key of a group's member; return it if it is another one than before. Within a transaction."""
        user_id, seen = user_of(member), _fingerprint(member.signature_key)
        known = self._known.get(user_id)
        if user_id == self._user_id or (known and known.fingerprint == seen):
            return None
        if known is None:
            self._store(KnownKey(user_id, seen, Trust.UNKNOWN))
            return None
        changed = KnownKey(user_id, seen, Trust.CHANGED, known.fingerprint, _was_verified(known))
        self._store(changed)
        return changed

    def judge(self, user_id: UUID, of: str, trust: Trust) -> None:
        """Note what the user thinks of a key, which is the one that is good from here on."""
        with self._vault.transaction():
            self._store(KnownKey(user_id, of, trust))

    def _store(self, key: KnownKey) -> None:
        self._connection.execute(
            "INSERT OR REPLACE INTO people VALUES (?, ?, ?, ?, ?)",
            (key.user_id.bytes, key.fingerprint, key.trust, key.former, key.was_verified),
        )
        self._known[key.user_id] = key

    def reload(self) -> None:
        """Forget what was not stored, after an error."""
        self.__init__(self._vault, self._user_id)  # type: ignore[misc]  # all that it has is read anew


def _was_verified(known: KnownKey) -> bool:
    return known.trust is Trust.VERIFIED or (known.trust is Trust.CHANGED and known.was_verified)


@lru_cache(maxsize=8_192)
def _fingerprint(signature_key: bytes) -> str:
    """Return a fingerprint: those of a large group are looked at with each message."""
    return fingerprint(signature_key)


def user_of(member: Member) -> UUID:
    """Return the user who a member says it is; that there are 16 bytes was checked when it came in."""
    return UUID(bytes=member.credential.identity)
