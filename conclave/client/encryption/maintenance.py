"""The automatic work in groups: joining, removing strangers, committing proposals, renewing keys.

The work is stateless: each check compares the group's state with the desired one. So it recovers from lost answers,
and from crashes at any point.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from conclave.client.encryption.agenda import CHECK_INTERVAL_SECONDS, Agenda, GroupAgenda
from conclave.client.encryption.branches import Branches
from conclave.client.encryption.groups import Stage
from conclave.client.encryption.joining import COMMIT_ARRIVAL_SECONDS, GroupJoiner, GroupOperations, is_admin
from conclave.client.encryption.people import user_of
from conclave.client.errors import (
    ClientError,
    SessionOverError,
)
from conclave.client.events import EncryptionNotice, News
from conclave.client.mls import MlsGroup
from conclave.wire.results import GroupDetails

if TYPE_CHECKING:
    from conclave.client.api import Client

RENEWAL_SECONDS = 6 * 86_400
"""Age at which the own leaf is renewed. Each own commit also renews it."""

TURN_SECONDS = 2.0
"""Delay between members who could make the same commit. The first member does not wait."""

MAX_TURN_WAIT = 20.0

STRANGER_REPORT_SECONDS = 5.0
"""Delay before a stranger is reported: a user who has just left has keys for a moment."""


class GroupMaintenance:
    """Checks groups when they are due."""

    def __init__(
        self, operations: GroupOperations, agenda: Agenda, user_id: UUID, news: list[News], now: Callable[[], int]
    ) -> None:
        self._operations, self._agenda, self._user_id, self._news, self._now = operations, agenda, user_id, news, now
        self._joiner = GroupJoiner(operations, agenda, user_id)
        self._branches = Branches(operations, self._joiner, agenda, user_id, news)

    async def run_maintenance(self, client: "Client", groups: Sequence[GroupDetails]) -> set[UUID]:
        """Check the groups that are due; return those to fetch afterwards. Raises SessionOverError."""
        due, to_fetch = set(self._agenda.due()), set[UUID]()
        for group_id in due - {each.group_id for each in groups}:
            self._skip(group_id)
        for group in groups:
            if group.group_id not in due:
                continue
            agenda = self._agenda.group(group.group_id)
            agenda.at = None
            self._agenda.schedule(group.group_id, CHECK_INTERVAL_SECONDS)
            try:
                must_fetch = await self._check_group(client, group, agenda)
            except SessionOverError:
                raise
            except ClientError:
                self._agenda.schedule(group.group_id, agenda.next_join_delay())
                must_fetch = True  # the answer may be lost, and the commit stored
            if must_fetch:
                to_fetch.add(group.group_id)
        return to_fetch

    def _skip(self, group_id: UUID) -> None:
        """Skip a group that the server did not list: the user has left it, or joined it since."""
        if self._operations.record(group_id) is None:
            self._agenda.forget(group_id)
            return
        self._agenda.group(group_id).at = None
        self._agenda.schedule(group_id, COMMIT_ARRIVAL_SECONDS)

    async def _check_group(self, client: "Client", group: GroupDetails, agenda: GroupAgenda) -> bool:
        """Check a group. Return whether to fetch it."""
        self._operations.update_members([group])
        record = self._operations.record(group.group_id)
        if record and record.stage is Stage.REPLACED:
            return False
        if record and record.stage is Stage.AWAITING:
            if (remaining := agenda.join_sent_at + COMMIT_ARRIVAL_SECONDS - self._agenda.clock()) > 0:
                self._agenda.schedule(group.group_id, remaining)
                return True
            # The group was fetched since, and the awaited commit has not arrived.
            self._operations.drop_state(group.group_id)
        if record is None or record.stage is not Stage.ACTIVE or record.group is None:
            return await self._joiner.join(client, group, agenda)
        if not agenda.is_caught_up:
            self._agenda.schedule(group.group_id)
            return True
        if group.mls_group_id != record.group.group_id.hex():
            await self._joiner.announce_group_id(client, group, record.group)
            return False
        if await self._branches.check(client, group.group_id, agenda):
            return True
        return await self._commit_if_needed(client, group, agenda)

    async def _commit_if_needed(self, client: "Client", group: GroupDetails, agenda: GroupAgenda) -> bool:
        """Commit removals of strangers, proposals and new own keys, if needed. Return whether a commit was sent."""
        group_id = group.group_id
        record = self._operations.record(group_id)
        if record is None or record.stage is not Stage.ACTIVE or record.group is None:
            return False
        mls_group = record.group
        listed = agenda.listed or frozenset()
        strangers = [each for each in mls_group.members().values() if user_of(each) not in listed]
        self._report_strangers(group_id, agenda, [user_of(each) for each in strangers])
        removable = [each.leaf_index for each in strangers] if is_admin(group, self._user_id) else []
        is_needed = bool(removable) or mls_group.has_proposals
        if not is_needed:
            agenda.commit_needed_since = None
        elif not self._is_own_turn(group, mls_group, agenda):
            return False
        is_old = record.is_doubtful or self._now() - record.renewed_at >= RENEWAL_SECONDS
        if not is_needed and not is_old:
            return False
        change = self._operations.commit(group_id, removable)
        self._agenda.schedule(group_id, COMMIT_ARRIVAL_SECONDS)
        await client.commit(group_id, commit_message=change.commit, group_info=change.group_info)
        return True

    def _is_own_turn(self, group: GroupDetails, mls_group: MlsGroup, agenda: GroupAgenda) -> bool:
        """Return whether it is this client's turn to make a commit that several members could make."""
        now = self._agenda.clock()
        agenda.commit_needed_since = now if agenda.commit_needed_since is None else agenda.commit_needed_since
        in_tree = {user_of(each) for each in mls_group.members().values()}
        order = sorted((each.role != "admin", each.user_id) for each in group.members if each.user_id in in_tree)
        rank = [user_id for _, user_id in order].index(self._user_id)
        wait = agenda.commit_needed_since + min(rank * TURN_SECONDS, MAX_TURN_WAIT) - now
        if wait > 0:
            self._agenda.schedule(group.group_id, wait)
        return wait <= 0

    def _report_strangers(self, group_id: UUID, agenda: GroupAgenda, strangers: Sequence[UUID]) -> None:
        """Report users who have keys without being members, and their removal."""
        now = self._agenda.clock()
        if not strangers:
            if agenda.is_stranger_reported:
                sentence = "Only members have the keys of this group again."
                self._news.append(EncryptionNotice(group_id, "mended", sentence))
            agenda.stranger_since, agenda.is_stranger_reported = None, False
            return
        agenda.stranger_since = now if agenda.stranger_since is None else agenda.stranger_since
        if agenda.is_stranger_reported:
            return
        if now - agenda.stranger_since < STRANGER_REPORT_SECONDS:
            self._agenda.schedule(group_id, STRANGER_REPORT_SECONDS)
            return
        agenda.is_stranger_reported = True
        sentence = "This user can read this group without being a member. An admin's client has to remove the keys."
        self._news.extend(EncryptionNotice(group_id, "stranger", sentence, each) for each in strangers)
