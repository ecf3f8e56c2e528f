"""Joins groups by external commits, with the server's group info, or creates the MLS group if it is missing."""

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from conclave.client.codec import ExternalCommit, MembershipChange, NewGroup
from conclave.client.encryption.agenda import Agenda, GroupAgenda
from conclave.client.encryption.groups import GroupRecord
from conclave.client.encryption.headers import GroupInfoHeader, read_group_info
from conclave.client.errors import RefusedError, ResourceError
from conclave.client.mls import MlsGroup
from conclave.errors import ErrorCode
from conclave.wire.results import GroupDetails

if TYPE_CHECKING:
    from conclave.client.api import Client

COMMIT_ARRIVAL_SECONDS = 5.0
"""Time after which a sent commit has arrived, unless the server did not store it."""

MAX_STALE_INFO_ATTEMPTS = 3
"""How often a joiner waits for a newer group info before it assumes that the commit after it is invalid."""

CONFLICT_RETRY_SECONDS = 0.2
"""Minimum delay before a client retries after another client joined first; the maximum is twice this delay."""

SERVER_ERROR_STATUS = 500
"""The lowest error status after which a request may have been executed."""


class GroupOperations(Protocol):
    """The operations of the codec on groups."""

    def record(self, group_id: UUID) -> GroupRecord | None:
        """Return the record of a group, read-only."""
        ...

    def create(self, group_id: UUID) -> NewGroup:
        """Create a group."""
        ...

    def join(self, group_id: UUID, group_info: bytes, *, forget_commits: bool = False) -> ExternalCommit:
        """Create an external commit. ``forget_commits``: first forget the group's known commits."""
        ...

    def commit(self, group_id: UUID, remove: Sequence[int] = ()) -> MembershipChange:
        """Create a commit that removes leaves."""
        ...

    def update_members(self, groups: Sequence[GroupDetails]) -> None:
        """Update the members and admins from the server's list."""
        ...

    def drop_state(self, group_id: UUID) -> None:
        """Drop the state of a group."""
        ...

    def gives_way(self, group_id: UUID, group_info: bytes) -> bool:
        """Return whether another device of the account has replaced this one; record it."""
        ...

    def is_outdated(self, record: GroupRecord, info: GroupInfoHeader) -> bool:
        """Return whether a group info is outdated, or its commit came second."""
        ...

    def forget_commits(self, record: GroupRecord) -> None:
        """Forget the group's known commits."""
        ...

    def has_passed(self, record: GroupRecord, info: GroupInfoHeader) -> bool:
        """Return whether the state has passed the epoch of a group info."""
        ...

    def is_senior(self, record: GroupRecord, user_id: UUID) -> bool:
        """Return whether a user did not join after this device."""
        ...


class GroupJoiner:
    """Joins the user to groups."""

    def __init__(
        self, operations: GroupOperations, agenda: Agenda, user_id: UUID, chance: Callable[[], float] = random.random
    ) -> None:
        self._operations, self._agenda, self._user_id, self._chance = operations, agenda, user_id, chance

    async def join(self, client: "Client", group: GroupDetails, agenda: GroupAgenda) -> bool:
        """Join by an external commit, or create the MLS group. Return whether to fetch the group."""
        group_id = group.group_id
        info = await fetch_group_info(client, group_id)
        header = read_group_info(info)
        if not group.mls_group_id and header is None:
            if is_admin(group, self._user_id):
                await self._create(client, group_id)
            else:
                self._agenda.schedule(group_id, agenda.next_join_delay())
            return False
        record = self._operations.record(group_id)
        if header is None or (group.mls_group_id and header.mls_group_id.hex() != group.mls_group_id):
            self._agenda.schedule(group_id, agenda.next_join_delay())
            return False
        if record and self._operations.is_outdated(record, header):
            if agenda.attempts < MAX_STALE_INFO_ATTEMPTS:
                self._agenda.schedule(group_id, agenda.next_join_delay())
                return True
            self._operations.forget_commits(record)
        if self._operations.gives_way(group_id, info):
            return False
        await self.send_external_commit(client, group_id, self._operations.join(group_id, info), agenda)
        return True

    async def send_external_commit(
        self, client: "Client", group_id: UUID, external_commit: ExternalCommit, agenda: GroupAgenda
    ) -> None:
        """Send an external commit, which takes effect when the server delivers it."""
        agenda.attempts += 1
        self._agenda.schedule(group_id, max(COMMIT_ARRIVAL_SECONDS, agenda.next_join_delay()))
        try:
            await client.external_join(group_id, *external_commit)
        except RefusedError as error:
            if error.status < SERVER_ERROR_STATUS:
                self._operations.drop_state(group_id)
            if error.code != ErrorCode.RESOURCE_CONFLICT:
                raise
            agenda.reset_attempts()
            self._agenda.schedule(group_id, CONFLICT_RETRY_SECONDS * (1 + self._chance()))

    async def _create(self, client: "Client", group_id: UUID) -> None:
        """Create the MLS group of a group without keys: its creator's client has stopped, or does not encrypt."""
        created = self._operations.create(group_id)
        await client.commit(group_id, mls_group_id=created.mls_group_id)  # if two clients do this, the first wins
        self._agenda.schedule(group_id, 0)

    async def announce_group_id(self, client: "Client", group: GroupDetails, mls_group: MlsGroup) -> None:
        """Upload the MLS id that the server lacks, or drop the state if another client's came first."""
        if group.mls_group_id:
            self._operations.drop_state(group.group_id)
        else:
            await client.commit(
                group.group_id, group_info=mls_group.group_info(), mls_group_id=mls_group.group_id.hex()
            )
        self._agenda.schedule(group.group_id, 0)


def is_admin(group: GroupDetails, user_id: UUID) -> bool:
    """Return whether a user is an admin of a group."""
    return any(each.user_id == user_id and each.role == "admin" for each in group.members)


async def fetch_group_info(client: "Client", group_id: UUID) -> bytes:
    """Return the server's group info; b"" if it has none."""
    try:
        return await client.group_info(group_id)
    except ResourceError:
        return b""
