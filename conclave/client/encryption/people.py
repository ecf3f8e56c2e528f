"""Users' keys: trust on first use, warnings about changes, and the view of a group's encryption."""

import sqlite3
from functools import lru_cache
from uuid import UUID

from conclave.client.encryption.agenda import Agenda
from conclave.client.encryption.groups import GroupRecords, Stage
from conclave.client.encryption.key_database import KeyDatabase
from conclave.client.encryption.view import EncryptionStatus, GroupView, KnownKey, Trust
from conclave.client.mls import Credential, MlsMember, Policy, fingerprint
from conclave.client.mls.credentials import DEFAULT_PROPOSALS
from conclave.client.mls.proposals import ProposalType

ID_BYTES = 16
"""Length of a credential's identity, the id of a user."""


def _accept_user(credential: Credential, _signature_key: bytes) -> bool:
    """Accept any user's credential. The user is checked later, when the server reports the sender."""
    return len(credential.identity) == ID_BYTES


POLICY = Policy(authenticate=_accept_user, proposals=DEFAULT_PROPOSALS - {ProposalType.PSK, ProposalType.REINIT})
"""Accepted credentials and proposals. The protocol's clients use neither pre-shared keys nor ReInit."""


class KnownKeys:
    """The last known keys of users, in any group."""

    def __init__(self, database: KeyDatabase, user_id: UUID) -> None:
        self._database, self._user_id = database, user_id
        rows = self._connection.execute("SELECT user_id, fingerprint, trust, former, was_verified FROM people")
        self._known = {
            UUID(bytes=row[0]): KnownKey(UUID(bytes=row[0]), row[1], Trust(row[2]), row[3], bool(row[4]))
            for row in rows.fetchall()
        }

    @property
    def _connection(self) -> sqlite3.Connection:
        return self._database.connection

    def get(self, user_id: UUID) -> KnownKey | None:
        """Return the last known key of a user."""
        return self._known.get(user_id)

    def key_of(self, member: MlsMember) -> KnownKey:
        """Return a member's key in a group, with its trust; it may differ from the user's key in other groups.

        A verified key is trusted only in groups that use it: the server may have put another one into this group.
        """
        user_id, current = user_of(member), _fingerprint(member.signature_key)
        known_key = self._known.get(user_id)
        if known_key is None or known_key.fingerprint == current:
            return known_key or KnownKey(user_id, current, Trust.UNKNOWN)
        return KnownKey(user_id, current, Trust.CHANGED, known_key.fingerprint, _was_verified(known_key))

    def record_key(self, member: MlsMember) -> KnownKey | None:
        """Record a member's key; return it if it has changed. Within a transaction."""
        user_id, current = user_of(member), _fingerprint(member.signature_key)
        known_key = self._known.get(user_id)
        if user_id == self._user_id or (known_key and known_key.fingerprint == current):
            return None
        if known_key is None:
            self._store(KnownKey(user_id, current, Trust.UNKNOWN))
            return None
        changed_key = KnownKey(user_id, current, Trust.CHANGED, known_key.fingerprint, _was_verified(known_key))
        self._store(changed_key)
        return changed_key

    def set_trust(self, user_id: UUID, fingerprint: str, trust: Trust) -> None:
        """Set the trust of a key, which becomes the user's known key."""
        with self._database.transaction():
            self._store(KnownKey(user_id, fingerprint, trust))

    def _store(self, key: KnownKey) -> None:
        self._connection.execute(
            "INSERT OR REPLACE INTO people VALUES (?, ?, ?, ?, ?)",
            (key.user_id.bytes, key.fingerprint, key.trust, key.former, key.was_verified),
        )
        self._known[key.user_id] = key

    def reload(self) -> None:
        """Reload from the file, after an error."""
        self.__init__(self._database, self._user_id)  # type: ignore[misc]  # everything is read again


class GroupViews:
    """Returns views of groups, and records trust in keys."""

    def __init__(self, user_id: UUID, groups: GroupRecords, known_keys: KnownKeys, agenda: Agenda) -> None:
        self._user_id, self._groups, self._known_keys, self._agenda = user_id, groups, known_keys, agenda

    def view(self, group_id: UUID) -> GroupView:
        """Return the current state of a group's encryption."""
        record = self._groups.get(group_id)
        if record is None or record.stage is not Stage.ACTIVE or record.group is None:
            is_replaced = record is not None and record.stage is Stage.REPLACED
            return GroupView(EncryptionStatus.REPLACED if is_replaced else EncryptionStatus.WAITING)
        members = record.group.members().values()
        ids = [user_of(each) for each in members]
        member_keys = [self._known_keys.key_of(each) for each in members if user_of(each) != self._user_id]
        agenda = self._agenda.group(group_id)
        listed = agenda.listed
        strangers = tuple(sorted(set(ids) - (listed or set()))) if agenda.is_stranger_reported else ()
        keyless = () if listed is None else tuple(sorted(listed - set(ids)))
        return GroupView(EncryptionStatus.ENCRYPTED, tuple(member_keys), strangers, keyless, record.group.epoch)

    def set_trust(self, user_id: UUID, fingerprint: str, trust: Trust) -> bool:
        """Set the trust of a key. Return False if the user does not have it."""
        if fingerprint not in self._keys_of(user_id):
            return False
        self._known_keys.set_trust(user_id, fingerprint, trust)
        return True

    def _keys_of(self, user_id: UUID) -> set[str]:
        """Return the fingerprints of a user's keys: the last known key, and the keys in groups."""
        known_key = self._known_keys.get(user_id)
        in_groups = {
            key.fingerprint
            for group_id in self._groups.ids()
            for key in self.view(group_id).members
            if key.user_id == user_id
        }
        return in_groups | ({known_key.fingerprint} if known_key else set())


def _was_verified(key: KnownKey) -> bool:
    return key.trust is Trust.VERIFIED or (key.trust is Trust.CHANGED and key.was_verified)


@lru_cache(maxsize=8_192)
def _fingerprint(signature_key: bytes) -> str:
    """Return a fingerprint, cached since views of large groups need many."""
    return fingerprint(signature_key)


def user_of(member: MlsMember) -> UUID:
    """Return the user id in a member's credential; its length was checked when it joined."""
    return UUID(bytes=member.credential.identity)
