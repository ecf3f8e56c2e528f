"""Coming in from outside: asks in by what the server has for those who come in, or begins a group that never began."""

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
"""A commit that was sent is there after five seconds, or was not stored."""

MAX_STALE_INFO_ATTEMPTS = 3
"""So often a joiner waits for a newer group info; then a commit that says otherwise may be rubbish."""

CONFLICT_RETRY_SECONDS = 0.2
"""Of several who come in at the same moment all but one are late: each asks again after 0.2 to 0.4 seconds."""

SERVER_ERROR_STATUS = 500
"""With a status below 500 nothing was done."""


class GroupOperations(Protocol):
    """What is asked of the codec."""

    def record(self, group_id: UUID) -> GroupRecord | None:
        """Return a group, to be looked at."""
        ...

    def create(self, group_id: UUID) -> NewGroup:
        """Begin a new group."""
        ...

    def join(self, group_id: UUID, group_info: bytes, *, anew: bool = False) -> ExternalCommit:
        """Make what brings the user in from outside. ``anew``: what was known of the group's commits is forgotten."""
        ...

    def commit(self, group_id: UUID, remove: Sequence[int] = ()) -> MembershipChange:
        """Make a commit."""
        ...

    def update_members(self, groups: Sequence[GroupDetails]) -> None:
        """Take the members and admins of groups, as the server lists them now."""
        ...

    def drop_state(self, group_id: UUID) -> None:
        """Give a state up."""
        ...

    def gives_way(self, group_id: UUID, group_info: bytes) -> bool:
        """Tell whether another device of the account is in by now, so that this one stays out."""
        ...

    def is_outdated(self, record: GroupRecord, info: GroupInfoHeader) -> bool:
        """Tell whether a group info is too old, or of a commit that lost against another one."""
        ...

    def forget_commits(self, record: GroupRecord) -> None:
        """Forget why it seems to be."""
        ...

    def has_passed(self, record: GroupRecord, info: GroupInfoHeader) -> bool:
        """Tell whether the state has been where a group info is."""
        ...

    def is_senior(self, record: GroupRecord, user_id: UUID) -> bool:
        """Tell whether a user has not come in after this device."""
        ...


class GroupJoiner:
    """Brings the user into groups."""

    def __init__(
        self, operations: GroupOperations, agenda: Agenda, user_id: UUID, chance: Callable[[], float] = random.random
    ) -> None:
        self._operations, self._agenda, self._user_id, self._chance = operations, agenda, user_id, chance

    async def join(self, client: "Client", group: GroupDetails, agenda: GroupAgenda) -> bool:
        """Ask in by an external commit, or begin the group if it never began. Tell whether it is to be fetched."""
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
        self, client: "Client", group_id: UUID, joining: ExternalCommit, agenda: GroupAgenda
    ) -> None:
        """Send an external commit. It counts once it comes back."""
        agenda.attempts += 1
        self._agenda.schedule(group_id, max(COMMIT_ARRIVAL_SECONDS, agenda.next_join_delay()))
        try:
            await client.external_join(group_id, *joining)
        except RefusedError as error:
            if error.status < SERVER_ERROR_STATUS:
                self._operations.drop_state(group_id)
            if error.code != ErrorCode.RESOURCE_CONFLICT:
                raise
            agenda.reset_attempts()
            self._agenda.schedule(group_id, CONFLICT_RETRY_SECONDS * (1 + self._chance()))

    async def _create(self, client: "Client", group_id: UUID) -> None:
        """Begin a group that has members, but no keys: its creator's client died, or did not encrypt."""
        beginning = self._operations.create(group_id)
        await client.commit(group_id, mls_group_id=beginning.mls_group_id)  # of two who begin the first is the one
        self._agenda.schedule(group_id, 0)

    async def announce_group_id(self, client: "Client", group: GroupDetails, ours: MlsGroup) -> None:
        """The server does not know the group by its id: say it, or give way to another one that began first."""
        if group.mls_group_id:
            self._operations.drop_state(group.group_id)
        else:
            await client.commit(group.group_id, group_info=ours.group_info(), mls_group_id=ours.group_id.hex())
        self._agenda.schedule(group.group_id, 0)


def is_admin(group: GroupDetails, user_id: UUID) -> bool:
    """Tell whether a user is an admin of a group."""
    return any(each.user_id == user_id and each.role == "admin" for each in group.members)


async def fetch_group_info(client: "Client", group_id: UUID) -> bytes:
    """Return the group info that the server has; b"" if it has none."""
    try:
        return await client.group_info(group_id)
    except ResourceError:
        return b""
