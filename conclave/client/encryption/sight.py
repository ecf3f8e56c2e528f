"""What a user sees of the encryption: who can read a group, and whose keys they know."""

from uuid import UUID

from conclave.client.encryption.agenda import Agenda
from conclave.client.encryption.groups import Groups, Stage
from conclave.client.encryption.people import People, user_of
from conclave.client.encryption.view import GroupView, Standing, Trust


class Sight:
    """Looks at groups, and takes what the user thinks of keys."""

    def __init__(self, user_id: UUID, groups: Groups, people: People, agenda: Agenda) -> None:
        self._user_id, self._groups, self._people, self._agenda = user_id, groups, people, agenda

    def view(self, group_id: UUID) -> GroupView:
        """Return a group's encryption as it is now."""
        held = self._groups.get(group_id)
        if held is None or held.stage is not Stage.IN or held.group is None:
            is_replaced = held is not None and held.stage is Stage.REPLACED
            return GroupView(Standing.REPLACED if is_replaced else Standing.WAITING)
        members = held.group.members().values()
        ids = [user_of(each) for each in members]
        known = [self._people.key_of(each) for each in members if user_of(each) != self._user_id]
        agenda = self._agenda.of(group_id)
        listed = agenda.listed
        strangers = tuple(sorted(set(ids) - (listed or set()))) if agenda.is_stranger_told else ()
        keyless = () if listed is None else tuple(sorted(listed - set(ids)))
        return GroupView(Standing.ENCRYPTED, tuple(known), strangers, keyless, held.group.epoch)

    def judge(self, user_id: UUID, fingerprint: str, trust: Trust) -> bool:
        """Note what the user thinks of a key. False: the person does not have it."""
        if fingerprint not in self._keys_of(user_id):
            return False
        self._people.judge(user_id, fingerprint, trust)
        return True

    def _keys_of(self, user_id: UUID) -> set[str]:
        """Return the keys that a person has now: the one that was seen last, and those in groups."""
        known = self._people.get(user_id)
        in_groups = {
            key.fingerprint
            for group_id in self._groups.ids()
            for key in self.view(group_id).members
            if key.user_id == user_id
        }
        return in_groups | ({known.fingerprint} if known else set())
