"""Coming in from outside: asks in by what the server has for those who come in, or begins a group that never began."""

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from conclave.client.codec import ExternalCommit, MembershipChange, NewGroup
from conclave.client.encryption.agenda import Agenda, GroupAgenda
from conclave.client.encryption.groups import Held
from conclave.client.encryption.headers import InfoHeader, read_info
from conclave.client.errors import RefusedError, ResourceError
from conclave.client.mls import Group as MlsGroup
from conclave.errors import ErrorCode
from conclave.wire.results import Group

if TYPE_CHECKING:
    from conclave.client.api import Client

AWAITED_SECONDS = 5.0
"""A commit that was sent is there after five seconds, or was not stored."""

TRIES_BY_STALE_INFO = 3
"""So often a joiner waits for a newer group info; then a commit that says otherwise may be rubbish."""

LATE_SECONDS = 0.2
"""Of several who come in at the same moment all but one are late: each asks again after 0.2 to 0.4 seconds."""

REFUSED_BELOW = 500
"""With a status below 500 nothing was done."""


class Keys(Protocol):
    """What is asked of the codec."""

    def held(self, group_id: UUID) -> Held | None:
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

    def update_members(self, groups: Sequence[Group]) -> None:
        """Take the members and admins of groups, as the server lists them now."""
        ...

    def drop_state(self, group_id: UUID) -> None:
        """Give a state up."""
        ...

    def gives_way(self, group_id: UUID, group_info: bytes) -> bool:
        """Tell whether another device of the account is in by now, so that this one stays out."""
        ...

    def is_outdated(self, held: Held, info: InfoHeader) -> bool:
        """Tell whether a group info is too old, or of a commit that lost against another one."""
        ...

    def forget_commits(self, held: Held) -> None:
        """Forget why it seems to be."""
        ...

    def is_passed(self, held: Held, info: InfoHeader) -> bool:
        """Tell whether the state has been where a group info is."""
        ...

    def is_senior(self, held: Held, user_id: UUID) -> bool:
        """Tell whether a user has not come in after this device."""
        ...


class ComingIn:
    """Brings the user into groups."""

    def __init__(self, keys: Keys, agenda: Agenda, user_id: UUID, chance: Callable[[], float] = random.random) -> None:
        self._keys, self._agenda, self._user_id, self._chance = keys, agenda, user_id, chance

    async def come_in(self, client: "Client", group: Group, agenda: GroupAgenda) -> bool:
        """Ask in by an external commit, or begin the group if it never began. Tell whether it is to be fetched."""
        group_id = group.group_id
        info = await fetch_info(client, group_id)
        header = read_info(info)
        if not group.mls_group_id and header is None:
            if is_admin(group, self._user_id):
                await self._begin(client, group_id)
            else:
                self._agenda.want(group_id, agenda.wait())
            return False
        held = self._keys.held(group_id)
        if header is None or (group.mls_group_id and header.mls_group_id.hex() != group.mls_group_id):
            self._agenda.want(group_id, agenda.wait())
            return False
        if held and self._keys.is_outdated(held, header):
            if agenda.attempts < TRIES_BY_STALE_INFO:
                self._agenda.want(group_id, agenda.wait())
                return True
            self._keys.forget_commits(held)
        if self._keys.gives_way(group_id, info):
            return False
        await self.ask(client, group_id, self._keys.join(group_id, info), agenda)
        return True

    async def ask(self, client: "Client", group_id: UUID, joining: ExternalCommit, agenda: GroupAgenda) -> None:
        """Send an external commit. It counts once it comes back."""
        agenda.attempts += 1
        self._agenda.want(group_id, max(AWAITED_SECONDS, agenda.wait()))
        try:
            await client.external_join(group_id, *joining)
        except RefusedError as error:
            if error.status < REFUSED_BELOW:
                self._keys.drop_state(group_id)
            if error.code != ErrorCode.RESOURCE_CONFLICT:
                raise
            agenda.is_late()
            self._agenda.want(group_id, LATE_SECONDS * (1 + self._chance()))

    async def _begin(self, client: "Client", group_id: UUID) -> None:
        """Begin a group that has members, but no keys: its creator's client died, or did not encrypt."""
        beginning = self._keys.create(group_id)
        await client.commit(group_id, mls_group_id=beginning.mls_group_id)  # of two who begin the first is the one
        self._agenda.want(group_id, 0)

    async def name(self, client: "Client", group: Group, ours: MlsGroup) -> None:
        """The server does not know the group by its id: say it, or give way to another one that began first."""
        if group.mls_group_id:
            self._keys.drop_state(group.group_id)
        else:
            await client.commit(group.group_id, group_info=ours.group_info(), mls_group_id=ours.group_id.hex())
        self._agenda.want(group.group_id, 0)


def is_admin(group: Group, user_id: UUID) -> bool:
    """Tell whether a user is an admin of a group."""
    return any(each.user_id == user_id and each.role == "admin" for each in group.members)


async def fetch_info(client: "Client", group_id: UUID) -> bytes:
    """Return the group info that the server has; b"" if it has none."""
    try:
        return await client.group_info(group_id)
    except ResourceError:
        return b""
