"""Reads how long the messages of the user's groups live, sets it, and tells in a group when it has changed."""

from collections.abc import Awaitable, Callable
from itertools import count
from uuid import UUID

from conclave.client.api import Client
from conclave.client.chat.policies import effective, told
from conclave.client.chat.rooms import Room, Rooms
from conclave.client.errors import GroupError
from conclave.wire.results import GroupUpdated, RetentionInfo


class Lifetimes:
    """How long messages live, as the server says: nothing of it is worked out here."""

    def __init__(
        self,
        client: Client,
        rooms: Rooms,
        now: Callable[[], int],
        name: Callable[[UUID], Awaitable[str]],
        changed: Callable[[Room], None],
    ) -> None:
        """``name``: finds out how somebody is called. ``changed``: a group's policy is another one now."""
        self._client = client
        self._rooms = rooms
        self._now = now
        self._name = name
        self._changed = changed
        self._reads = count(1)

    async def change(self, group_id: UUID, expiry: int, *, dry_run: bool) -> GroupUpdated:
        """Set how long a group's messages live, or only ask what that would hide. Raises ClientError."""
        done = await self._client.update_group(group_id, expiry=expiry, dry_run=dry_run)
        if not dry_run:
            await self.read(group_id)
        return done

    async def effective(self, group_id: UUID, expiry: int) -> int:
        """Return what a group's setting comes to together with what the operator has set. Raises ClientError."""
        server = (await self._client.retention(group_id)).server_retention_seconds
        return effective(group_id, expiry, server, await self._client.retention_configuration())

    async def read(self, group_id: UUID) -> None:
        """Read a group's policy, and tell in the group what has changed. Raises ClientError."""
        number = next(self._reads)
        try:
            found = await self._client.retention(group_id)
        except GroupError:
            return  # no member any more: news of that follow
        room = self._rooms.all.get(group_id)
        if room is None or number < room.retention_read:
            return  # an answer that came late would undo a later one
        room.retention_read = number
        if room.retention != found:
            former, room.retention = room.retention, found
            if former and former.effective_expiry_seconds != found.effective_expiry_seconds:
                await self._tell(room, former, found)
            room.went = 0
            self._changed(room)

    async def _tell(self, room: Room, former: RetentionInfo, found: RetentionInfo) -> None:
        """Tell in a group that its messages live for another time."""
        now, admin = self._now(), found.expiry_set_by
        is_own = admin == self._rooms.user_id
        who = "you have" if is_own else f"{await self._name(admin)} has" if admin else "an admin has"
        lifetime = found.effective_expiry_seconds
        due = [each for each in room.messages.values() if 0 < lifetime < now - each.created_at]
        went, room.went = room.went + len(due), 0
        room.notice(told(former, found, who, went), now)
