"""What members' clients do by themselves, so that a group goes on: coming in, mending the tree, renewing keys.

Nothing here remembers what was begun: each look compares what is with what should be. So, whatever was lost on the way
and wherever a process died, the next look goes on from there.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from conclave.client.encryption.agenda import ROUND_SECONDS, Agenda, GroupAgenda
from conclave.client.encryption.branches import Branches
from conclave.client.encryption.coming_in import AWAITED_SECONDS, ComingIn, Keys, is_admin
from conclave.client.encryption.groups import Stage
from conclave.client.encryption.people import user_of
from conclave.client.errors import (
    ClientError,
    SessionOverError,
)
from conclave.client.events import EncryptionNotice, News
from conclave.client.mls import Group as MlsGroup
from conclave.wire.results import Group

if TYPE_CHECKING:
    from conclave.client.api import Client

RENEWED_SECONDS = 6 * 86_400
"""The own leaf is renewed after six days, or with any commit of the user's before that."""

TURN_SECONDS = 2.0
"""What several members could do the first does at once, the next after two seconds if it is still to be done."""

LONGEST_TURN = 20.0

STRANGER_TOLD_AFTER = 5.0
"""Who has just left has keys for a moment: that is told only if it stays so for five seconds."""


class Keeper:
    """Looks at groups when the agenda says so."""

    def __init__(self, keys: Keys, agenda: Agenda, user_id: UUID, news: list[News], now: Callable[[], int]) -> None:
        self._keys, self._agenda, self._user_id, self._news, self._now = keys, agenda, user_id, news, now
        self._entry = ComingIn(keys, agenda, user_id)
        self._branches = Branches(keys, self._entry, agenda, user_id, news)

    async def run_maintenance(self, client: "Client", groups: Sequence[Group]) -> set[UUID]:
        """Look at the groups that are due; return those that are to be fetched then. Raises SessionOverError."""
        due, to_fetch = set(self._agenda.due()), set[UUID]()
        for gone in due - {each.group_id for each in groups}:
            self._pass_over(gone)
        for group in groups:
            if group.group_id not in due:
                continue
            agenda = self._agenda.of(group.group_id)
            agenda.at = None
            self._agenda.want(group.group_id, ROUND_SECONDS)
            try:
                fetched = await self._look(client, group, agenda)
            except SessionOverError:
                raise
            except ClientError:
                self._agenda.want(group.group_id, agenda.wait())
                fetched = True  # the answer may be lost, and the commit there
            if fetched:
                to_fetch.add(group.group_id)
        return to_fetch

    def _pass_over(self, group_id: UUID) -> None:
        """The user is not in a group; or was not when the server was asked, and has come in since."""
        if self._keys.held(group_id) is None:
            self._agenda.forget(group_id)
            return
        self._agenda.of(group_id).at = None
        self._agenda.want(group_id, AWAITED_SECONDS)

    async def _look(self, client: "Client", group: Group, agenda: GroupAgenda) -> bool:
        """Look at a group. Tell whether it is to be fetched."""
        self._keys.update_members([group])
        held = self._keys.held(group.group_id)
        if held and held.stage is Stage.REPLACED:
            return False
        if held and held.stage is Stage.AWAITING:
            if (rest := agenda.asked_at + AWAITED_SECONDS - self._agenda.clock()) > 0:
                self._agenda.want(group.group_id, rest)
                return True
            # It was fetched since the commit was sent, or the welcome came, and the commit was not there.
            self._keys.drop_state(group.group_id)
        if held is None or held.stage is not Stage.IN or held.group is None:
            return await self._entry.come_in(client, group, agenda)
        if not agenda.is_caught_up:
            self._agenda.want(group.group_id)
            return True
        if group.mls_group_id != held.group.group_id.hex():
            await self._entry.name(client, group, held.group)
            return False
        if await self._branches.check(client, group.group_id, agenda):
            return True
        return await self._mend(client, group, agenda)

    async def _mend(self, client: "Client", group: Group, agenda: GroupAgenda) -> bool:
        """Commit what has to be: without strangers, with proposals that wait, with new own keys."""
        group_id = group.group_id
        held = self._keys.held(group_id)
        if held is None or held.stage is not Stage.IN or held.group is None:
            return False
        ours = held.group
        listed = agenda.listed or frozenset()
        strangers = [each for each in ours.members().values() if user_of(each) not in listed]
        self._tell_strangers(group_id, agenda, [user_of(each) for each in strangers])
        removable = [each.leaf_index for each in strangers] if is_admin(group, self._user_id) else []
        is_needed = bool(removable) or ours.has_proposals
        if not is_needed:
            agenda.needed_since = None
        elif not self._has_turn(group, ours, agenda):
            return False
        is_old = held.is_doubtful or self._now() - held.renewed_at >= RENEWED_SECONDS
        if not is_needed and not is_old:
            return False
        change = self._keys.commit(group_id, removable)
        self._agenda.want(group_id, AWAITED_SECONDS)
        await client.commit(group_id, commit_message=change.commit, group_info=change.group_info)
        return True

    def _has_turn(self, group: Group, ours: MlsGroup, agenda: GroupAgenda) -> bool:
        """Tell whether it is this client's turn to do what several could."""
        now = self._agenda.clock()
        agenda.needed_since = now if agenda.needed_since is None else agenda.needed_since
        in_tree = {user_of(each) for each in ours.members().values()}
        order = sorted((each.role != "admin", each.user_id) for each in group.members if each.user_id in in_tree)
        rank = [user_id for _, user_id in order].index(self._user_id)
        wait = agenda.needed_since + min(rank * TURN_SECONDS, LONGEST_TURN) - now
        if wait > 0:
            self._agenda.want(group.group_id, wait)
        return wait <= 0

    def _tell_strangers(self, group_id: UUID, agenda: GroupAgenda, strangers: Sequence[UUID]) -> None:
        """Tell who has keys without being a member, if it stays so; and that it is over."""
        now = self._agenda.clock()
        if not strangers:
            if agenda.is_stranger_told:
                sentence = "Only members have the keys of this group again."
                self._news.append(EncryptionNotice(group_id, "mended", sentence))
            agenda.stranger_since, agenda.is_stranger_told = None, False
            return
        agenda.stranger_since = now if agenda.stranger_since is None else agenda.stranger_since
        if agenda.is_stranger_told:
            return
        if now - agenda.stranger_since < STRANGER_TOLD_AFTER:
            self._agenda.want(group_id, STRANGER_TOLD_AFTER)
            return
        agenda.is_stranger_told = True
        sentence = "This person can read what is written here, and is no member: an admin's client has to change that."
        self._news.extend(EncryptionNotice(group_id, "stranger", sentence, each) for each in strangers)
